"""Segments: what is read on the way to a batch, what is kept, and what a missing or foreign one means.

A listing of rows has one more field, its version; test_schema_history.py and the simulation seal such listings.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from forebay.buffer.base import names
from forebay.buffer.base.errors import Corrupt, InvalidInput, Trimmed, Unavailable
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.manifest import Head, Queue, segments
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS, MAX_SEGMENT_LISTINGS
from forebay.buffer.manifest.nodes import Node
from forebay.buffer.manifest.register import Limits
from forebay.buffer.manifest.segments import Segments
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock

ANYBODY_SEALS = 4 * KEPT_LISTINGS
"""Entries after which even the last in turn seals."""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def time_of(sequence: int) -> int:
    return 1_700_000_000_000 + 1000 * sequence


def fill(store: Any, count: int, group: int = KEPT_LISTINGS) -> Head:
    """Append batches, one of them each second, from the first to the last millisecond of it."""
    queue = Queue(store, clock=ManualClock(), random=Random(1))
    for start in range(0, count, group):
        queue.append(
            [
                NewBatch(f"data/{i}", (), Facts(100, 200, 10, 0, time_of(i), time_of(i) + 999))
                for i in range(start, min(start + group, count))
            ]
        )
    state = queue.read()
    assert isinstance(state, Head)
    return state


def nodes_read(store: FaultyStore) -> int:
    return store.calls["get"]


def trim(store: MemoryStore, point: int) -> None:
    """As the collector does, but that nothing is deleted."""
    queue = Queue(store)
    head = queue.read()
    assert isinstance(head, Head)
    nodes = {ref.name: queue.segments.load(ref, head.buffer_id) for ref in head.refs if ref.level}
    queue.change_head(lambda head: head.trim(point, nodes).touch(), lambda _head: False)


def test_only_the_nodes_on_the_way_are_read_and_each_once(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * (FANOUT + 3))
    assert [ref.level for ref in head.refs] == [1, 0]
    counting = FaultyStore(store)
    queue = Queue(counting)
    assert [batch.sequence for batch in queue.descriptors(head.tail_start, 5)] == list(
        range(head.tail_start, head.tail_start + 5)
    )
    assert nodes_read(counting) == 1, "the head alone"
    assert [batch.sequence for batch in queue.descriptors(70, 3)] == [70, 71, 72]
    assert nodes_read(counting) == 3, "and an index node and a segment"
    assert [batch.sequence for batch in queue.descriptors(64, 64)] == list(range(64, 128))
    assert nodes_read(counting) == 3, "which are kept"
    assert len(queue.descriptors(64, 65)) == 65
    assert nodes_read(counting) == 4


def test_limit_may_end_anywhere(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * 5 + 7)
    queue = Queue(store)
    for first in (0, 1, 63, 64, head.tail_start - 1, head.tail_start, head.next_sequence - 1):
        for limit in (1, 2, 64, 65, 10**6):
            expected = list(range(first, min(first + limit, head.next_sequence)))
            assert [batch.sequence for batch in queue.descriptors(first, limit)] == expected
    assert queue.descriptors(head.next_sequence, 5) == []


def test_kept_nodes_are_bounded_by_what_they_hold(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of thousands of entries, as a migration makes them, must not all stay in memory."""
    monkeypatch.setattr(segments, "_KEPT_ITEMS", 3 * KEPT_LISTINGS)
    head = fill(store, KEPT_LISTINGS * 7)
    reader = Segments(store, clock=ManualClock(), random=Random(1))
    for _ in range(2):
        assert len(reader.descriptors(head, 0, 10**6)) == head.count
        assert 1 < len(reader._kept) <= 3
        assert reader._kept_items == sum(map(len, reader._kept.values())) <= 3 * KEPT_LISTINGS


def test_big_group_is_sealed_by_the_next_appender_in_segments_of_bounded_size(store: MemoryStore) -> None:
    queue = Queue(store, clock=ManualClock(), random=Random(1))
    queue.append([NewBatch(f"data/{i}") for i in range(2 * MAX_SEGMENT_LISTINGS + 100)])
    queue.append([NewBatch("data/next")])
    head = queue.read()
    assert isinstance(head, Head)
    assert [ref.count for ref in head.refs] == [MAX_SEGMENT_LISTINGS, MAX_SEGMENT_LISTINGS]
    assert len(head.tail) == 101


def test_failed_seal_does_not_stop_the_append(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    fill(store, ANYBODY_SEALS, group=ANYBODY_SEALS)
    queue = Queue(FaultyStore(store, {0: Fault.FAIL, 1: Fault.LOSE_ANSWER}, only={"put"}), clock=ManualClock())
    for turn in range(3):
        queue.read()
        queue.append([NewBatch(f"data/more-{turn}")])
        head = queue.read()
        assert isinstance(head, Head)
        assert len(head.refs) == (turn == 2)
    assert caplog.text.count("sealing older listings or idle writers failed") == 2
    assert len(Queue(store).descriptors(0, 10**6)) == ANYBODY_SEALS + 3


def test_sealed_segment_goes_with_the_next_append_if_this_one_fails(store: MemoryStore) -> None:
    fill(store, ANYBODY_SEALS, group=ANYBODY_SEALS)
    # Two writes register and append, without sealing: the head was not seen before. The third seals.
    faulty = FaultyStore(store, {2: Fault.FAIL}, only={"replace"})
    queue = Queue(faulty, limits=Limits(max_attempts=1), clock=ManualClock(), random=Random(2))
    queue.append([NewBatch("data/registers")])
    with pytest.raises(Unavailable):
        queue.append([NewBatch("data/fails")])
    assert faulty.calls["put"] == 1
    queue.append([NewBatch("data/works")])
    head = queue.read()
    assert isinstance(head, Head)
    assert (faulty.calls["put"], len(head.refs)) == (1, 1)


def test_two_that_seal_the_same_entries_leave_one_reference(store: MemoryStore) -> None:
    fill(store, ANYBODY_SEALS, group=ANYBODY_SEALS)
    one, other = (Queue(store, random=Random(i)) for i in (11, 12))
    for queue in (one, other):
        queue.read()
    one.seal_if_due()
    other.seal_if_due()
    one.append([NewBatch("data/one")])
    other.append([NewBatch("data/other")])
    assert len(list(store.list("segments/"))) == 2
    head = other.read()
    assert isinstance(head, Head)
    assert len(head.refs) == 1
    assert len(Queue(store).descriptors(0, 10**6)) == ANYBODY_SEALS + 2


# Missing, foreign, damaged


def test_missing_segment_is_corrupt_while_the_head_refers_to_it(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * 3)
    store.delete([f"segments/{head.refs[0].name}.segment"])
    for look in places_in_segments(Queue(store)):
        with pytest.raises(Corrupt, match="refers to a segment that is not there"):
            look(head)


def test_missing_segment_of_an_old_head_is_looked_up_in_the_new_one(store: MemoryStore) -> None:
    old = fill(store, KEPT_LISTINGS * (FANOUT + 3))
    assert old.refs[0].level == 1
    trim(store, 65)
    # Its index node was taken apart by the trim, and swept; the segments are there.
    store.delete([f"segments/{old.refs[0].name}.segment"])
    queue = Queue(store)
    assert [batch.sequence for batch in queue.descriptors(70, 100, state=old)] == list(range(70, 170))
    assert queue.sequence_of(moment(80), state=old) == 80
    assert queue.end_of(moment(80), state=old) == 80
    with pytest.raises(Trimmed) as caught:
        queue.descriptors(64, 1, state=old)
    assert caught.value.first == 65


def places_in_segments(queue: Queue) -> list[Callable[[Head], object]]:
    return [
        lambda head: queue.descriptors(0, 1, state=head),
        lambda head: queue.sequence_of(moment(5), state=head),
        lambda head: queue.end_of(moment(5), state=head),
    ]


def test_store_that_is_down_is_not_taken_for_damage(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * 3)
    with pytest.raises(Unavailable):
        Queue(FaultyStore(store, {0: Fault.FAIL})).descriptors(0, 1, state=head)


def swap(store: MemoryStore, head: Head, node: Node) -> None:
    store.put(f"segments/{head.refs[0].name}.segment", segments.pack(node))


def test_segment_of_another_buffer_is_corrupt(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * 3)
    node = Queue(store).segments.load(head.refs[0], head.buffer_id)
    swap(store, head, Node("another", 0, 0, 0, node.entries, ()))
    with pytest.raises(Corrupt, match="belongs to buffer another"):
        Queue(store).descriptors(0, 1)


def test_segment_that_is_not_what_its_reference_says_is_corrupt(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * 3)
    node = Queue(store).segments.load(head.refs[0], head.buffer_id)
    swap(store, head, Node(head.buffer_id, 0, 0, 0, node.entries[:-1], ()))
    with pytest.raises(Corrupt, match="not what the manifest says"):
        Queue(store).descriptors(0, 1)


def test_index_node_that_refers_to_itself_is_corrupt_and_not_endless(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * (FANOUT + 3))
    ref = head.refs[0]
    swap(store, head, Node(head.buffer_id, 1, ref.first_sequence, ref.first_record, (), (ref,)))
    with pytest.raises(Corrupt, match="another level"):
        Queue(store).descriptors(0, 1)


def test_reference_to_a_name_that_is_no_segment_is_corrupt(store: MemoryStore) -> None:
    head = fill(store, KEPT_LISTINGS * 3)
    (ref,) = head.refs
    foreign = type(ref)("../../secret", *(getattr(ref, name) for name in type(ref).__struct_fields__[1:]))
    with pytest.raises(Corrupt, match="not a segment's name"):
        Queue(store).segments.load(foreign, head.buffer_id)


def test_entry_that_names_no_object_is_corrupt(store: MemoryStore) -> None:
    store.create("manifest", Head("b", next_sequence=1, tail=(NewBatch("../secret"),)).to_bytes())
    with pytest.raises(Corrupt, match="names no object"):
        Queue(store).descriptors(0, 1)


# Times


def moment(sequence: int, milliseconds: int = 0) -> datetime:
    return datetime.fromtimestamp((time_of(sequence) + milliseconds) / 1000, UTC)


@pytest.mark.parametrize("trimmed", [0, 100])
def test_time_is_found_through_references_and_in_the_tail(store: MemoryStore, trimmed: int) -> None:
    head = fill(store, KEPT_LISTINGS * (FANOUT + 3))
    trim(store, trimmed)
    queue = Queue(store)
    state = queue.read()
    for sequence in (100, 127, 128, 511, head.tail_start - 1, head.tail_start, head.next_sequence - 1):
        # A batch spans its second: it is the first with an entry at or after any moment of it,
        assert queue.sequence_of(moment(sequence), state=state) == sequence
        assert queue.sequence_of(moment(sequence, 999), state=state) == sequence
        # and a range up to a moment ends behind it, but at its first millisecond.
        assert queue.end_of(moment(sequence, 1), state=state) == sequence + 1
        assert queue.end_of(moment(sequence), state=state) == sequence
    assert queue.sequence_of(moment(-5), state=state) == trimmed
    assert queue.end_of(moment(-5), state=state) == trimmed
    assert queue.sequence_of(moment(head.next_sequence), state=state) == head.next_sequence
    assert queue.end_of(moment(head.next_sequence), state=state) == head.next_sequence


def test_range_up_to_a_time_holds_every_batch_that_began_before_it(store: MemoryStore) -> None:
    """Producers' batches overlap: one that came late may hold entries that were taken in early."""
    queue = Queue(store)
    spans = [(0, 10), (20, 30), (5, 40), (50, 60)]
    queue.append([NewBatch(f"data/{i}", (), Facts(1, 1, 1, 0, *span)) for i, span in enumerate(spans)])
    state = queue.read()
    at = [datetime.fromtimestamp(milliseconds / 1000, UTC) for milliseconds in range(70)]
    assert queue.end_of(at[6], state=state) == 3
    assert queue.sequence_of(at[15], state=state) == 1
    assert queue.sequence_of(at[35], state=state) == 2


def test_batches_that_tell_no_time_count_as_older(store: MemoryStore) -> None:
    queue = Queue(store, clock=ManualClock(), random=Random(1))
    queue.append([NewBatch(f"data/{i}") for i in range(200)])
    for i in range(200, 400):
        queue.append([NewBatch(f"data/{i}", (), Facts(1, 1, 1, 0, time_of(i), time_of(i)))])
    state = queue.read()
    assert isinstance(state, Head)
    assert state.refs
    assert queue.sequence_of(moment(0), state=state) == 200
    assert queue.end_of(moment(0), state=state) == 200
    assert queue.end_of(moment(205), state=state) == 205


def test_place_is_a_sequence_from_0_a_time_with_a_zone_or_one_of_two_words(store: MemoryStore) -> None:
    fill(store, 10)
    queue = Queue(store)
    state = queue.read()
    assert [queue.sequence_of(place, state=state) for place in ("earliest", "latest", 3)] == [0, 10, 3]
    assert [queue.end_of(place, state=state) for place in ("earliest", "latest", 3, 99)] == [1, 10, 4, 10]
    assert queue.sequence_of(moment(4).isoformat(), state=state) == 4
    for bad in (-1, "yesterday", moment(4).replace(tzinfo=None), None):
        with pytest.raises(InvalidInput):
            queue.sequence_of(bad, state=state)  # type: ignore[arg-type]  # the last of them


def test_segment_is_minted_above_the_floor_by_a_clock_that_is_behind(store: MemoryStore) -> None:
    floor = names.mint(ManualClock(), Random(3))
    behind = Segments(store, clock=ManualClock(0), random=Random(1))
    ref = behind.store_node(Node("b", 0, 0, 0, (NewBatch("data/a"),), ()), above=floor)
    assert ref.name > floor
