"""Groups: rfcs/0005. Their start, fence and frontier are their own, and readers never write where writers write."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from kinds import Kind, append_all, kind_in

from forebay.buffer.base.errors import Corrupt, Fenced, InvalidInput, NotFound, Trimmed, Unsupported
from forebay.buffer.base.process import this_process
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Cursor, Groups, GroupState, cursor_key
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.head import KEPT_LISTINGS
from forebay.buffer.read.acks import ACKS_PER_WRITE
from forebay.buffer.store.base import InDoubt, StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    kind.begin(store)
    append(store, 10)
    return store


def append(store: MemoryStore, count: int) -> None:
    """Batches of one entry; batch i was taken in during second i."""
    queue = Queue(store)
    first = queue.read().next_sequence
    kind = kind_in(store)
    append_all(
        queue,
        [kind.upload(store, f"data/{i}", [b"%d" % i], 1000 * i, 1000 * i + 999) for i in range(first, first + count)],
    )


def trim(store: MemoryStore, point: int) -> None:
    """Trim them as retention does, read or not."""
    Queue(store).change_head(lambda head: head.trim(point, {}).touch(), lambda _head: False)
    store.delete([f"data/{i}" for i in range(point)])


def head_of(store: MemoryStore) -> Head:
    state = Queue(store).read()
    assert isinstance(state, Head)
    return state


def cursor_of(store: MemoryStore, group: str) -> Cursor:
    key = cursor_key(group, head_of(store).groups[group].generation)
    return unpack(store.get(key).data, Cursor, key)


def read(consumer: Consumer, count: int = 1000) -> list[int]:
    return [found.sequence for found in consumer.next_descriptors(count)]


def open_group(store: Any, group: str = "etl", **settings: Any) -> Consumer:
    return Consumer(store, group=group, clock=ManualClock(), random=Random(7), **settings)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# Each for itself


def test_groups_read_everything_each_at_its_own_pace(store: MemoryStore, kind: Kind) -> None:
    etl, audit = Consumer(store, group="etl"), Consumer(store, group="audit")
    assert read(etl, 6) == [0, 1, 2, 3, 4, 5]
    etl.ack_through(5)
    assert read(audit, 2) == [0, 1]
    assert kind.read_all(audit) == [b"%d" % i for i in range(2, 10)]
    unnamed = Consumer(store)
    assert read(unnamed) == list(range(10))
    assert read(etl) == [6, 7, 8, 9]
    assert (len(etl), len(audit), len(unnamed)) == (4, 10, 10)


def test_next_consumer_of_a_group_starts_after_its_frontier(store: MemoryStore) -> None:
    with Consumer(store, group="etl") as first:
        read(first, 5)
        first.ack(0)
        first.ack(1)
    with Consumer(store, group="etl") as second:
        assert second.epoch == first.epoch + 1
        assert read(second, 3) == [2, 3, 4]
        second.ack_through(3)
    with Consumer(store, group="etl", last_acked=6) as third:
        assert read(third) == [7, 8, 9]
    with Consumer(store, group="etl", last_acked=2) as fourth:
        assert read(fourth) == [7, 8, 9], "what is acknowledged stays so"


def test_acking_never_writes_the_manifest(store: MemoryStore) -> None:
    append(store, 2 * ACKS_PER_WRITE)
    counting = FaultyStore(store)
    consumer = Consumer(counting, group="etl")
    before = store.get("manifest").version
    counting.calls.clear()
    assert len(read(consumer)) == 210
    assert counting.calls == {"get_if_changed": 2}, "a look is the head and the cursor"
    counting.calls.clear()
    for sequence in range(ACKS_PER_WRITE):
        consumer.ack(sequence)
    assert counting.calls == {"replace": 1}, "and an ack the cursor alone"
    consumer.ack_through(150)
    consumer.close()
    assert counting.calls == {"replace": 3}
    assert store.get("manifest").version == before
    assert cursor_of(store, "etl").acked == 150


def test_appends_do_not_disturb_acks_nor_acks_appends(store: MemoryStore) -> None:
    consumer, producer = Consumer(store, group="etl"), Queue(store)
    for i in range(5):
        append_all(producer, [kind_in(store).upload(store, f"data/more-{i}", [b"more"])])
        read(consumer)
        consumer.ack_through(10 + i)
    assert (consumer.conflict_rate, producer.conflict_rate) == (0, 0)


# Registering


@pytest.mark.parametrize(
    ("from_", "first"),
    [("earliest", 2), ("latest", 10), (4, 4), (moment(6.5), 6), ("1970-01-01T00:00:07+00:00", 7), (moment(99), 10)],
)
def test_group_starts_where_it_was_told(store: MemoryStore, from_: Any, first: int) -> None:
    trim(store, 2)
    consumer = Consumer(store, group="etl", from_=from_)
    append(store, 2)
    assert read(consumer) == list(range(first, 12))


def test_start_counts_only_when_the_group_is_made(store: MemoryStore) -> None:
    Consumer(store, group="etl", from_=4).close()
    assert read(Consumer(store, group="etl", from_="latest")) == [4, 5, 6, 7, 8, 9]


def test_group_cannot_start_where_nothing_is(store: MemoryStore) -> None:
    trim(store, 3)
    with pytest.raises(Trimmed) as caught:
        Consumer(store, group="etl", from_=2)
    assert caught.value.first == 3
    for wrong in (11, -1, "yesterday", datetime(2026, 1, 1)):  # noqa: DTZ001 - that is what is wrong with it
        with pytest.raises(InvalidInput):
            Consumer(store, group="etl", from_=wrong)
    assert head_of(store).groups == {}


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", "x" * 101, "ä", "a b"])
def test_group_name_is_one_that_a_key_can_hold(store: MemoryStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="group's name"):
        Consumer(store, group=name)


def test_version_1_has_no_groups() -> None:
    store = MemoryStore("memory://groups-of-version-1")
    store.create("manifest", Manifest.empty("v1").to_bytes())
    with pytest.raises(Unsupported, match="migrate"):
        Consumer(store, group="etl")


def test_two_that_register_a_group_at_once_share_it(store: MemoryStore) -> None:
    class RivalFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if key == "manifest" and not rivals:
                rivals.append(Consumer(store, group="etl", from_=3))
            return super().replace(key, data, version)

    for fault in (None, Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP):
        rivals: list[Consumer] = []
        script = {} if fault is None else {0: fault}
        late = open_group(RivalFirst(store, script, only={"replace"}), from_=5)
        assert read(late) == list(range(3, 10)), "the first consumer decided where it starts"
        with pytest.raises(Fenced):
            read(rivals[0])
        Groups(store).delete("etl", force=True)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE])
def test_lost_answer_to_registering_claiming_acking_or_letting_go_is_found_out(
    store: MemoryStore, fault: Fault
) -> None:
    for call in range(5):
        faulty = FaultyStore(store, {call: fault}, only={"replace", "create"})
        consumer = open_group(faulty, f"etl-{call}")
        assert read(consumer, 4) == [0, 1, 2, 3]
        consumer.ack_through(1)
        consumer.ack_through(3)
        consumer.close()
        faulty.land_late_requests()
        cursor = cursor_of(store, f"etl-{call}")
        assert (cursor.acked, cursor.claim_id) == (3, "")


def test_crash_between_registering_and_claiming_leaves_a_group_at_its_start(store: MemoryStore) -> None:
    class DiesBeforeTheCursor(FaultyStore):
        def create(self, key: str, data: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Consumer(DiesBeforeTheCursor(store), group="etl", from_=4)
    assert Groups(store).describe("etl").acked is None
    assert not Groups(store).describe("etl").alive
    assert read(Consumer(store, group="etl")) == [4, 5, 6, 7, 8, 9]


# The fence


def test_claim_fences_the_consumer_before_which_changes_nothing_more(store: MemoryStore) -> None:
    old = Consumer(store, group="etl")
    other_group = Consumer(store, group="audit")
    read(old, 5)
    old.ack(0)
    new = Consumer(store, group="etl")
    before = cursor_of(store, "etl")
    for use in (lambda: read(old), lambda: old.ack_through(3), old.flush, old.close):
        with pytest.raises(Fenced, match="must stop"):
            use()
    assert cursor_of(store, "etl") == before
    assert read(new) == list(range(10))
    assert len(read(other_group)) == 10, "each group has a fence of its own"


def test_group_deleted_while_its_registration_is_in_doubt_is_made_in_another_life(store: MemoryStore) -> None:
    """Found by the simulation: the retry brought the deleted life back, with the cursor that somebody left in it."""

    class UsedAndDeletedMeanwhile(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            outcome = super().replace(key, data, version)
            if lives:
                return outcome
            other = Consumer(store, group="etl")
            lives.append(other.reader.generation)
            assert read(other, 3) == [0, 1, 2]
            other.ack_through(2)
            Groups(store).delete("etl", force=True)
            return InDoubt("the answer is lost")

    lives: list[str] = []
    consumer = Consumer(UsedAndDeletedMeanwhile(store), group="etl", clock=ManualClock())

    assert consumer.reader.generation not in lives
    assert read(consumer, 1) == [0]


def test_fenced_consumer_that_closes_does_not_let_go_of_its_successors_claim(store: MemoryStore) -> None:
    before = Consumer(store, group="etl")
    successor = Consumer(store, group="etl")
    with pytest.raises(Fenced):
        before.next_descriptors(1)

    before.close()

    assert Groups(store).describe("etl").alive
    assert read(successor, 2) == [0, 1]
    successor.ack_through(1)


def test_two_rivals_that_claim_at_the_same_instant_are_told_apart_by_their_claim_ids(store: MemoryStore) -> None:
    """Both read epoch e and write e + 1; one of them lands, and the other is above it in the end."""
    Consumer(store, group="etl").close()

    class RivalFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if key != "manifest" and not rivals:
                rivals.append(Consumer(store, group="etl"))
            return super().replace(key, data, version)

    for fault in (None, Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP):
        rivals: list[Consumer] = []
        late = open_group(RivalFirst(store, {} if fault is None else {0: fault}, only={"replace"}))
        assert late.epoch > rivals[0].epoch
        assert read(late) == list(range(10))
        with pytest.raises(Fenced):
            read(rivals[0])


def test_equal_epoch_with_another_claim_id_is_fenced(store: MemoryStore) -> None:
    """An epoch is not proof: a cursor that was put back from elsewhere may show ours."""
    consumer = Consumer(store, group="etl")
    cursor = cursor_of(store, "etl")
    key = cursor_key("etl", head_of(store).groups["etl"].generation)
    store.put(key, pack(Cursor(cursor.buffer_id, cursor.epoch, "somebody else", None, cursor.number + 1)))
    with pytest.raises(Fenced):
        read(consumer)


def test_cursor_of_another_buffer_is_corrupt_and_left_alone(store: MemoryStore) -> None:
    Consumer(store, group="etl").close()
    key = cursor_key("etl", head_of(store).groups["etl"].generation)
    foreign = pack(Cursor("another", 1, "", 3, 5))
    store.put(key, foreign)
    with pytest.raises(Corrupt, match="belongs to buffer another"):
        Consumer(store, group="etl")
    assert store.get(key).data == foreign


# Resetting


@pytest.mark.parametrize(("to", "first"), [("earliest", 0), (2, 2), (9, 9), ("latest", 10), (moment(5), 5)])
def test_reset_moves_a_group_back_or_forth(store: MemoryStore, to: Any, first: int) -> None:
    with Consumer(store, group="etl") as consumer:
        read(consumer)
        consumer.ack_through(6)
    state = Groups(store).reset("etl", to)
    assert (state.start, state.acked, state.waiting, state.alive) == (first, None, 10 - first, False)
    assert read(Consumer(store, group="etl")) == list(range(first, 10))


def test_reset_is_refused_while_a_consumer_has_the_group_unless_forced(store: MemoryStore) -> None:
    consumer = Consumer(store, group="etl")
    read(consumer)
    with pytest.raises(InvalidInput, match="close that consumer first"):
        Groups(store).reset("etl", 3)
    assert read(consumer) == []

    Groups(store).reset("etl", 3, force=True)
    with pytest.raises(Fenced, match="reset or deleted"):
        read(consumer)
    with pytest.raises(Fenced):
        consumer.ack_through(9)
    assert read(Consumer(store, group="etl")) == [3, 4, 5, 6, 7, 8, 9]


def test_reset_below_what_is_left_is_trimmed_and_changes_nothing(store: MemoryStore) -> None:
    Consumer(store, group="etl", from_=6).close()
    trim(store, 4)
    before = head_of(store).groups
    with pytest.raises(Trimmed) as caught:
        Groups(store).reset("etl", 3)
    assert caught.value.first == 4
    assert head_of(store).groups == before


def test_reset_that_a_trim_overtakes_is_trimmed(store: MemoryStore) -> None:
    """It was there when the reset was decided, and not when it was written."""
    Consumer(store, group="etl", from_=9).close()

    class TrimFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                trim(store, 5)
            return super().replace(key, data, version)

    with pytest.raises(Trimmed):
        Groups(TrimFirst(store)).reset("etl", 2)
    assert head_of(store).groups["etl"].start == 9


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE])
def test_reset_and_delete_survive_a_lost_answer(store: MemoryStore, fault: Fault) -> None:
    Consumer(store, group="etl").close()
    faulty = FaultyStore(store, {0: fault, 2: fault}, only={"replace"})
    groups = Groups(faulty, clock=ManualClock(), random=Random(3))
    assert groups.reset("etl", 4).start == 4
    assert head_of(store).groups["etl"].start == 4
    groups.delete("etl")
    faulty.land_late_requests()
    assert head_of(store).groups == {}


def test_two_resets_at_once_do_not_silently_undo_each_other(store: MemoryStore) -> None:
    Consumer(store, group="etl").close()

    class RivalFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                Groups(store).reset("etl", 7)
            return super().replace(key, data, version)

    with pytest.raises(InvalidInput, match="look at it again"):
        Groups(RivalFirst(store)).reset("etl", 2)
    assert head_of(store).groups["etl"].start == 7


# Deleting


def test_group_deleted_and_made_again_is_another_one(store: MemoryStore) -> None:
    old = Consumer(store, group="etl")
    read(old, 6)
    with pytest.raises(InvalidInput, match="force"):
        Groups(store).delete("etl")
    first_life = head_of(store).groups["etl"].generation
    Groups(store).delete("etl", force=True)
    with pytest.raises(Fenced):
        read(old)

    new = Consumer(store, group="etl", from_=2)
    assert head_of(store).groups["etl"].generation != first_life
    with pytest.raises(Fenced):
        read(old)
    with pytest.raises(Fenced):
        old.ack_through(5)
    assert read(new, 2) == [2, 3], "the first life's consumer harms nothing"
    new.ack_through(3)
    assert cursor_of(store, "etl").acked == 3

    # The collector takes cursors of lives that are over; then the old consumer's ack is refused.
    store.delete([cursor_key("etl", first_life)])
    with pytest.raises(Fenced):
        old.ack_through(5)
    assert [info.key for info in store.list("cursors/")] == [cursor_key("etl", head_of(store).groups["etl"].generation)]


@pytest.mark.parametrize("verb", ["reset", "delete"])
def test_late_ack_of_a_consumer_that_came_while_its_group_went_harms_nothing(store: MemoryStore, verb: str) -> None:
    """Nobody had the group when that was looked at, so nobody was fenced by its cursor."""
    Consumer(store, group="etl").close()

    class OpenedMeanwhile(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if not late:
                late.append(Consumer(store, group="etl"))
                assert read(late[0], 6) == [0, 1, 2, 3, 4, 5]
            return super().replace(key, data, version)

    late: list[Consumer] = []
    groups = Groups(OpenedMeanwhile(store))
    if verb == "reset":
        groups.reset("etl", 2)
    else:
        groups.delete("etl")
    new = Consumer(store, group="etl", from_=2)
    late[0].ack_through(5)
    with pytest.raises(Fenced, match="reset or deleted"):
        read(late[0])
    assert read(new) == list(range(2, 10))
    assert cursor_of(store, "etl").acked is None


def test_deleting_what_is_not_there_is_not_found_and_names_what_is(store: MemoryStore) -> None:
    Consumer(store, group="audit").close()
    with pytest.raises(NotFound, match="its groups are: audit"):
        Groups(store).delete("etl")


# Looking


def test_groups_are_listed_and_described(store: MemoryStore) -> None:
    assert Groups(store).list() == []
    Consumer(store, group="b", from_=4).close()
    clock = ManualClock()
    consumer = Consumer(store, group="a", clock=clock)
    read(consumer, 3)
    consumer.ack_through(2)
    a, b = Groups(store).list()
    owner = this_process(clock)
    generations = {name: group.generation for name, group in head_of(store).groups.items()}
    assert a == GroupState("a", generations["a"], start=0, acked=2, epoch=1, alive=True, waiting=7, owner=owner)
    assert b == GroupState("b", generations["b"], start=4, acked=None, epoch=1, alive=False, waiting=6)
    assert Groups(store).describe("b") == b
    trim(store, 6)
    assert Groups(store).describe("a").waiting == 4, "what is gone waits for nobody"


def test_looking_at_groups_writes_nothing_and_makes_no_buffer() -> None:
    nothing = MemoryStore("memory://no-groups-here")
    assert Groups(nothing).list() == []
    assert list(nothing.list()) == []


# Seeking


@pytest.mark.parametrize("group", ["etl", None])
def test_seek_goes_to_a_sequence_a_time_or_an_end(store: MemoryStore, group: str | None) -> None:
    trim(store, 1)
    consumer = Consumer(store, group=group)
    for to, first in [(7, 7), (moment(4.2), 4), ("earliest", 1), ("latest", 10), ("1970-01-01T00:00:02Z", 2), (12, 12)]:
        consumer.seek(to)
        assert read(consumer) == list(range(first, 10))
    with pytest.raises(Trimmed) as caught:
        consumer.seek(0)
    assert caught.value.first == 1
    for wrong in (-1, "tomorrow"):
        with pytest.raises(InvalidInput):
            consumer.seek(wrong)


def test_seek_through_segments_finds_the_second(store: MemoryStore) -> None:
    for _ in range(6):
        append(store, KEPT_LISTINGS)
    consumer = Consumer(store, group="etl")
    assert head_of(store).refs
    for sequence in (3, 70, 200, head_of(store).tail_start, 393):
        consumer.seek(moment(sequence))
        batch = consumer.next_batch()
        assert batch is not None
        assert batch.sequence == sequence


def test_seek_back_leaves_the_frontier_and_reads_again(store: MemoryStore) -> None:
    consumer = Consumer(store, group="etl")
    read(consumer, 6)
    consumer.ack(0)
    consumer.seek(2)
    assert cursor_of(store, "etl").acked == 0, "what was acknowledged before is written"
    consumer.ack_through(read(consumer, 3)[-1])
    assert cursor_of(store, "etl").acked == 4
    consumer.seek("earliest")
    assert read(consumer, 2) == [0, 1]
    consumer.ack(0)
    consumer.ack(1)
    consumer.close()
    assert cursor_of(store, "etl").acked == 4, "a frontier never goes back"


def test_seek_by_time_needs_version_2() -> None:
    store = MemoryStore("memory://seek-version-1")
    store.create("manifest", Manifest.empty("v1").to_bytes())
    append(store, 5)
    consumer = Consumer(store)
    consumer.seek(3)
    assert read(consumer) == [3, 4]
    with pytest.raises(Unsupported):
        consumer.seek(moment(2))


# Trimmed under the reader


@pytest.mark.parametrize("group", ["etl", None])
def test_reader_whose_next_batch_was_dropped_is_told_where_to_start(store: MemoryStore, group: str | None) -> None:
    consumer = Consumer(store, group=group)
    assert read(consumer, 2) == [0, 1]
    trim(store, 5)
    with pytest.raises(Trimmed) as caught:
        read(consumer)
    assert caught.value.first == 5
    consumer.seek(caught.value.first)
    assert read(consumer) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("group", ["etl", None])
def test_reader_may_skip_what_was_dropped_and_counts_it_once(store: MemoryStore, group: str | None) -> None:
    consumer = Consumer(store, group=group, on_trimmed="skip")
    assert read(consumer, 2) == [0, 1]
    trim(store, 10)
    for _ in range(3):
        assert read(consumer) == []
        assert consumer.skipped == 8, "however often it looks before something comes"
    append(store, 2)
    assert read(consumer) == [10, 11]
    trim(store, 12)
    append(store, 1)
    assert read(consumer) == [12]
    assert consumer.skipped == 8, "what was handed out was not missed"


def test_skipping_counts_from_the_groups_own_start_and_frontier(store: MemoryStore) -> None:
    late = Consumer(store, group="late", from_=4, on_trimmed="skip")
    with Consumer(store, group="acked") as first:
        read(first, 3)
        first.ack_through(2)
    trim(store, 6)
    assert read(late) == [6, 7, 8, 9]
    assert late.skipped == 2
    again = Consumer(store, group="acked", on_trimmed="skip")
    assert read(again, 1) == [6]
    assert again.skipped == 3


def test_acks_in_order_go_over_what_was_skipped(store: MemoryStore) -> None:
    consumer = Consumer(store, group="etl", on_trimmed="skip")
    read(consumer, 3)
    consumer.ack(0)
    trim(store, 6)
    assert read(consumer, 2) == [6, 7]
    consumer.ack(1)
    with pytest.raises(InvalidInput, match="batch 2 must be acknowledged next"):
        consumer.ack(6)
    consumer.ack(2)
    consumer.ack(6)
    consumer.ack(7)
    consumer.close()
    assert cursor_of(store, "etl").acked == 7


def test_acks_in_order_go_over_gaps_that_follow_one_another(store: MemoryStore) -> None:
    class Dropping(FaultyStore):
        """Drops more when the reader looks again after its first skip."""

        def get_if_changed(self, key: str, version: str) -> StoredObject | None:
            found = super().get_if_changed(key, version)
            if found is not None and key == "manifest" and Queue(store).read().first_sequence == 4:
                trim(store, 6)
            return found

    consumer = Consumer(Dropping(store), group="etl", on_trimmed="skip")
    assert read(consumer, 1) == [0]
    consumer.ack(0)
    trim(store, 4)
    assert read(consumer, 1) == [6]
    assert consumer.skipped == 5
    consumer.ack(6)
    consumer.close()
    assert cursor_of(store, "etl").acked == 6


def test_batch_that_fails_to_be_fetched_after_a_skip_is_not_counted_again(store: MemoryStore) -> None:
    consumer = Consumer(store, group="etl", on_trimmed="skip")
    trim(store, 4)
    data = store.get("data/4").data
    store.delete(["data/4"])
    for _ in range(2):
        with pytest.raises(NotFound):
            consumer.next_batch()
    store.put("data/4", data)
    batch = consumer.next_batch()
    assert batch is not None
    assert (batch.sequence, consumer.skipped) == (4, 4)


@pytest.mark.parametrize("change", ["reset", "delete"])
def test_ack_of_a_consumer_whose_group_was_taken_from_it_is_fenced(change: str) -> None:
    """A cursor that nobody reads any more must not take its acknowledgement."""
    store = MemoryStore(f"memory://ack-after-{change}")
    append_all(Queue(store), [NewBatch("data/a"), NewBatch("data/b")])
    consumer = Consumer(store, group="etl")
    consumer.next_descriptors(2)
    if change == "reset":
        Groups(store).reset("etl", "earliest", force=True)
    else:
        Groups(store).delete("etl", force=True)
    with pytest.raises(Fenced):
        consumer.ack_through(1)


def test_ack_of_what_a_seek_read_below_the_groups_start_moves_nothing_back() -> None:
    store = MemoryStore("memory://ack-below-start")
    append_all(Queue(store), [NewBatch(f"data/{i}") for i in range(10)])
    consumer = Consumer(store, group="etl", from_=6)
    consumer.seek(2)
    consumer.next_descriptors(2)
    consumer.ack_through(3)
    assert Groups(store).describe("etl").acked is None
    assert [found.sequence for found in Consumer(store, group="etl").next_descriptors(9)] == [6, 7, 8, 9]
