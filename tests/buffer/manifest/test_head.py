"""The head of a version 2 manifest, alone and with its segments, while batches are appended, sealed and trimmed."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forebay.buffer.base import names
from forebay.buffer.base.errors import InvalidInput, Trimmed, Unknown
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.manifest import PlaceConsumed, Queue
from forebay.buffer.manifest.decode import read_head
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS, MAX_WRITERS, BelowFloor, Head
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.nodes import Node, NodeNeeded, Ref
from forebay.buffer.manifest.segments import Segments
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock

NOW = ManualClock().now_ms()


def name_at(milliseconds: int) -> str:
    return f"data/{names.at_time(NOW + milliseconds)}.batch"


_names = count()


class Log:
    """A head whose changes go through bytes, its segments, and beside them the truth."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self.clock = ManualClock()
        self.store = MemoryStore(f"memory://log-{next(_names)}")
        self.segments = Segments(self.store, clock=self.clock, random=self.random)
        self.head = Head(buffer_id="b")
        self.appended: list[NewBatch] = []
        self.bases: list[int] = []
        """The records before each batch, of those that were counted."""
        self.records = 0
        self.largest_group = 0

    def append(self, count: int, *, counted: bool = True) -> None:
        """Append as a producer does, with everything sealed that is due."""
        head = self.head
        while (node := head.plan_seal()) is not None:
            head = head.seal(self.segments.store_node(node, above=head.lowest_new_name), node.refs)
        group = tuple(self.new_batch(counted=counted) for _ in range(count))
        self.keep(head.append(group, "w", len(self.appended) + 1))
        for batch in group:
            self.appended.append(batch)
            self.bases.append(self.records)
            self.records += batch.facts.records if batch.facts else 0
        self.largest_group = max(self.largest_group, count)

    def new_batch(self, *, counted: bool) -> NewBatch:
        self.clock.advance(0.001)
        now = self.clock.now_ms()
        facts = Facts(10, 20, self.random.randrange(5), 0, now, now) if counted else None
        return NewBatch(f"data/{names.mint(self.clock, self.random)}.batch", (), facts)

    def trim(self, point: int) -> None:
        nodes: dict[str, Node] = {}
        while True:
            try:
                self.keep(self.head.trim(point, nodes))
                return
            except NodeNeeded as needed:
                nodes[needed.ref.name] = self.segments.load(needed.ref, "b")

    def keep(self, head: Head) -> None:
        self.head = read_head(head.to_bytes(), "here")

    def check(self) -> None:
        """Every retained sequence is found, with its location and the number of its first record."""
        found = self.segments.descriptors(self.head, 0, 10**6)
        assert [batch.sequence for batch in found] == list(range(self.head.first_sequence, len(self.appended)))
        for batch in found:
            assert batch.location == self.appended[batch.sequence].location
            assert batch.base_record == self.bases[batch.sequence]

    def levels(self) -> int:
        return max((ref.level for ref in self.head.refs), default=0) + 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 300)),
        st.tuples(st.just("append one by one"), st.integers(1, 150)),
        st.tuples(st.just("trim"), st.floats(0, 1)),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(steps, st.integers(0, 2**32))
def test_every_retained_batch_is_reachable_and_the_head_stays_small(todo: list[tuple[str, Any]], seed: int) -> None:
    log = Log(seed)
    for what, value in todo:
        if what == "trim":
            log.trim(log.head.first_sequence + int(value * log.head.count))
        else:
            for group in [value] if what == "append" else [1] * value:
                log.append(group)
        log.check()
        assert len(log.head.tail) < 2 * KEPT_LISTINGS + log.largest_group
        assert len(log.head.refs) <= 2 * FANOUT * log.levels()


def test_head_of_a_long_log_is_no_longer_than_that_of_a_short_one() -> None:
    log = Log(0)
    log.append(100)
    short = len(log.head.to_bytes())
    for _ in range(530):
        log.append(KEPT_LISTINGS)
    log.append(1)
    assert log.levels() == 4
    assert len(log.head.to_bytes()) < 2 * short
    log.check()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 200), st.lists(st.integers(1, 90), max_size=8))
def test_record_numbers_known_before_sealing_are_known_after(uncounted: int, groups: list[int]) -> None:
    """Batches from version 1 are not counted; those after them are, from 0."""
    log = Log(uncounted)
    log.append(uncounted, counted=False)
    for group in groups:
        log.append(group)
        found = log.segments.descriptors(log.head, uncounted, 10**6)
        assert [batch.base_record for batch in found] == log.bases[uncounted:]
    assert all(batch.base_record is None for batch in log.segments.descriptors(log.head, 0, uncounted))


# Sealing


def test_seal_that_no_longer_fits_is_left_out() -> None:
    log = Log(1)
    log.append(130)
    node = log.head.plan_seal()
    assert node is not None
    ref = log.segments.store_node(node, above=names.LOWEST)
    sealed = log.head.seal(ref)
    assert (len(sealed.tail), sealed.refs) == (KEPT_LISTINGS, (ref,))
    assert sealed.seal(ref) is sealed, "somebody else sealed them first"
    log.trim(5)
    assert log.head.seal(ref) is log.head, "a trim took the first of them"


def test_segment_named_below_the_floor_is_left_out() -> None:
    """A sealer that slept: its segment may have been swept."""
    log = Log(2)
    log.append(130)
    node = log.head.plan_seal()
    assert node is not None
    ref = log.segments.store_node(node, above=names.LOWEST)
    floor = names.mint(ManualClock(NOW + 10**9), Random(0))
    raised = Head(**{name: getattr(log.head, name) for name in Head.__struct_fields__} | {"gc_floor": floor})
    assert raised.seal(ref) is raised


def test_index_node_goes_in_only_over_exactly_its_references() -> None:
    log = Log(3)
    for _ in range(FANOUT + 2):
        log.append(KEPT_LISTINGS)
    whole = log.head.refs[0]
    assert (whole.level, whole.count) == (1, FANOUT * KEPT_LISTINGS)
    log.trim(1)
    children = log.head.refs
    assert [ref.level for ref in children[:FANOUT]] == [0] * FANOUT
    below = children[:FANOUT]
    assert log.head.seal(whole, below).refs == (whole, *children[FANOUT:]), "its children stand there again"
    other = (*below[:-1], replace(below[-1], name=names.at_time(NOW)))
    assert log.head.seal(whole, other) is log.head, "another node holds the same entries"
    log.trim(KEPT_LISTINGS)
    assert log.head.seal(whole, below) is log.head, "one of them is gone"


def test_trim_through_a_node_asks_for_it() -> None:
    log = Log(4)
    for _ in range(FANOUT + 2):
        log.append(KEPT_LISTINGS)
    with pytest.raises(NodeNeeded) as caught:
        log.head.trim(1, {})
    assert caught.value.ref == log.head.refs[0]


def test_trim_stays_between_what_is_trimmed_and_what_is_there() -> None:
    log = Log(5)
    log.append(10)
    log.trim(4)
    assert log.head.trim(2, {}).first_sequence == 4
    beyond = log.head.trim(99, {})
    assert (beyond.first_sequence, beyond.count, beyond.tail) == (10, 0, ())
    assert read_head(beyond.to_bytes(), "here") == beyond


def test_lowest_name_counts_segments_and_everything_below_them() -> None:
    log = Log(6)
    early = names.mint(ManualClock(NOW - 10**6), Random(0))
    log.keep(log.head.append((NewBatch(f"data/{early}.batch"), NewBatch("data/unnamed")), "w", 1))
    log.appended += log.head.tail
    for _ in range(FANOUT + 2):
        log.append(KEPT_LISTINGS)
    assert log.head.refs[0].level == 1
    assert log.head.lowest == early
    log.trim(KEPT_LISTINGS + 2)
    assert log.head.lowest is not None
    assert log.head.lowest > early
    assert Head(buffer_id="b").lowest is None


# Appending


def test_batch_named_below_the_floor_is_refused_and_one_at_it_is_not() -> None:
    head = Head(buffer_id="b", gc_floor=names.at_time(NOW))
    with pytest.raises(BelowFloor) as caught:
        head.append((NewBatch(name_at(5)), NewBatch(name_at(-1))), "w", 1)
    assert caught.value.floor == head.gc_floor
    assert head.append((NewBatch(name_at(0)), NewBatch("data/not-a-ulid.batch")), "w", 1).next_sequence == 2


def test_writers_are_bounded_and_the_least_recent_is_forgotten() -> None:
    head = reduce(lambda head, i: head.register_writer(f"w{i}"), range(MAX_WRITERS), Head(buffer_id="b"))
    head = head.append((NewBatch("data/a"),), "w0", 1).register_writer("one more")
    assert len(head.writers) == MAX_WRITERS
    assert "w1" not in head.writers
    assert head.writers["w0"].number == 1


class EvictingStore(FaultyStore):
    """Just before a writer looks for its append, so many others append that the writer is forgotten."""

    armed = False

    def get(self, key: str) -> Any:
        if key == "manifest" and self.armed:
            self.armed = False
            others = Queue(self.inner)
            for i in range(MAX_WRITERS):
                others.change_head(lambda head, i=i: head.register_writer(f"other-{i}"), lambda _head: False)  # type: ignore[misc]
        return super().get(key)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP, Fault.LATE])
def test_writer_forgotten_with_an_append_in_doubt_reports_unknown_and_never_appends_it_again(fault: Fault) -> None:
    inner = MemoryStore(f"memory://forgotten-writer-{fault.name}")
    store = EvictingStore(inner, {2: fault}, only={"replace"})
    queue = Queue(store, clock=ManualClock(), random=Random(1))
    queue.append([NewBatch("data/first")])  # a create that registers the writer, and the first replace
    queue.append([NewBatch("data/second")])
    store.armed = True
    with pytest.raises(Unknown) as caught:
        queue.append([NewBatch("data/in-doubt")])
    assert not isinstance(caught.value, PlaceConsumed), "that would be appended again"
    store.land_late_requests()
    queue.append([NewBatch("data/third")])
    landed = ["data/in-doubt"] if fault is Fault.LOSE_ANSWER else []
    found = [batch.location for batch in Queue(inner).descriptors(0, 10)]
    assert found == ["data/first", "data/second", *landed, "data/third"]


def test_producer_whose_writer_was_forgotten_fails_the_call_in_doubt_alone() -> None:
    inner = MemoryStore("memory://forgotten-producer")
    store = EvictingStore(inner, {2: Fault.LOSE_ANSWER}, only={"replace"})
    with Producer(store, flush_interval=60) as producer:
        for entry in (b"first", b"second"):
            producer.produce(entry)
            producer.flush().result()
        store.armed = True
        in_doubt = producer.produce(b"in doubt")
        with suppress(Unknown):
            producer.flush().result()
        with pytest.raises(Unknown):
            in_doubt.result()
        producer.produce(b"third")
        producer.flush().result()
    with Consumer(inner) as consumer:
        entries = [entry for batch in consumer for entry in batch.entries]
    assert entries == [b"first", b"second", b"in doubt", b"third"]


def test_idle_writer_that_was_forgotten_simply_registers_again() -> None:
    """It meets a plain conflict, which is no lost answer."""
    inner = MemoryStore("memory://forgotten-while-idle")
    store = EvictingStore(inner)
    queue = Queue(store, clock=ManualClock(), random=Random(1))
    queue.append([NewBatch("data/first")])
    Queue(inner).append([NewBatch("data/others")])
    store.armed = True
    assert queue.append([NewBatch("data/second")]) == range(2, 3)


def test_every_change_makes_other_bytes() -> None:
    """A version is a hash of the content on S3: a state that came back would let a late write land."""
    head = Head(buffer_id="b").append((NewBatch("data/a"),), "w", 1)
    hold = Hold(0, None, 5, "")
    changes = [
        head.claim("c"),
        head.claim("c").ack(0),
        head.with_group("g", "1", 0),
        head.with_group("g", "1", 0).without_group("g"),
        head.with_hold("h", hold),
        head.with_hold("h", hold).with_hold("h", hold),
        head.with_hold("h", hold).without_hold("h"),
        head.register_writer("w2"),
    ]
    assert all(change.revision > head.revision for change in changes)
    assert changes[4].to_bytes() != changes[5].to_bytes(), "a renewal that changes nothing else"


# Groups and holds


def test_group_and_hold_start_within_what_is_there() -> None:
    log = Log(7)
    log.append(10)
    log.trim(4)
    assert log.head.with_group("g", "1", 4).groups["g"].start == 4
    assert log.head.with_group("g", "1", 10).groups["g"].start == 10
    for start in (-1, 11):
        with pytest.raises(InvalidInput):
            log.head.with_group("g", "1", start)
    with pytest.raises(Trimmed) as caught:
        log.head.with_group("g", "1", 3)
    assert caught.value.first == 4
    with pytest.raises(Trimmed):
        log.head.with_hold("h", Hold(3, None, 0, ""))
    log.head.with_hold("h", Hold(None, names.LOWEST, 0, ""))


def test_size_of_what_is_retained_is_known_through_references() -> None:
    log = Log(8)
    for _ in range(FANOUT + 2):
        log.append(KEPT_LISTINGS)
    assert log.head.object_bytes == 10 * len(log.appended)
    assert sum(ref.object_bytes for ref in log.head.refs) == 10 * log.head.tail_start


def test_reference_tells_the_times_and_the_lowest_name_of_its_node() -> None:
    entries = (
        NewBatch(name_at(7), (), Facts(1, 1, 1, 0, 50, 60)),
        NewBatch(name_at(3), (), Facts(2, 1, 1, 0, 40, 70)),
        NewBatch("data/from-version-1"),
    )
    name = names.at_time(NOW + 5)
    ref = Node("b", 0, 100, 9, entries, ()).refer(name)
    assert ref == Ref(name, 0, 100, 3, 9, 3, names.at_time(NOW + 3), 40, 70, names.at_time(NOW + 7))
    above = Node("b", 1, 100, 9, (), (ref,)).refer(names.at_time(NOW + 1))
    assert (above.level, above.count, above.lowest) == (1, 3, names.at_time(NOW + 1))
