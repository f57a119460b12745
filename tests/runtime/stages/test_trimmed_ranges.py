"""A recorded range whose beginning retention has dropped is never committed in part (rfcs/0007)."""

from __future__ import annotations

import pytest
from filled import acked, new_buffer, run

from forebay.buffer.consumer import Consumer
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector, Retention
from forebay.runtime import Combining, Fatal, Halted
from forebay.runtime.contract import CommitIdentity
from forebay.testing.ledger import LedgerSink


def trim(store: MemoryStore, count: int, left: int) -> None:
    """Have retention drop `count` batches of equal size, so that `left` are left."""
    size = len(store.get("data/10").data)
    report = Collector(store, grace=0, retention=Retention(max_bytes=left * size + size // 2)).collect_once()
    assert report.dropped_unread == count


def record_range(store: MemoryStore) -> CommitIdentity:
    """Acknowledge batches 0 to 4 and record 5 to 10 as one commit, as a process that dies then. Return its identity."""
    consumer = Consumer(store, group="etl")
    consumer.next_descriptors(20)
    consumer.ack_through(4)
    consumer.plan([10])
    reader = consumer.reader
    return CommitIdentity(reader.source, reader.group, reader.generation, 5, 10)


def with_trimmed_range(name: str) -> tuple[MemoryStore, CommitIdentity]:
    """A buffer of 5 batches that are acknowledged, and a recorded range of 6 of which 3 are left."""
    store = new_buffer(name, 11, size=100)
    identity = record_range(store)
    trim(store, 3, 3)
    return store, identity


def test_range_that_the_sink_has_is_acknowledged_and_not_committed_again() -> None:
    store, identity = with_trimmed_range("trimmed-committed")
    sink = LedgerSink()
    sink.rows[identity] = ["all rows of 5 to 10"]
    run(Consumer(store, group="etl", on_trimmed="skip"), sink)
    assert (sink.asked, sink.calls) == ([identity], [])
    assert acked(store) == 10


def test_range_that_the_sink_does_not_have_halts_and_names_what_is_left() -> None:
    store, _ = with_trimmed_range("trimmed-halts")
    sink = LedgerSink()
    with pytest.raises(Halted, match=r"batches 5 to 10, group etl: .* dropped those before 8,.* last_acked=7"):
        run(Consumer(store, group="etl", on_trimmed="skip"), sink)
    assert sink.calls == []
    assert acked(store) == 4


def test_rest_is_committed_once_somebody_has_acknowledged_what_was_dropped() -> None:
    store, _ = with_trimmed_range("trimmed-resumed")
    sink = LedgerSink()
    run(Consumer(store, group="etl", last_acked=7), sink)
    assert sink.ranges == [(8, 10)]
    assert acked(store) == 10


def test_range_that_was_recorded_after_a_gap_is_replayed_unchanged() -> None:
    store = new_buffer("trimmed-before", 11, size=100)
    consumer = Consumer(store, group="etl")
    consumer.next_descriptors(5)
    consumer.ack_through(4)
    trim(store, 3, 3)
    sink = LedgerSink((True, Fatal("the process dies")), combining=Combining(1 << 20))
    with pytest.raises(Halted, match="the process dies"):
        run(Consumer(store, group="etl", on_trimmed="skip"), sink)
    assert sink.ranges == [(8, 10)]
    run(Consumer(store, group="etl", on_trimmed="skip"), sink)
    assert len(sink.calls) == 1
    assert acked(store) == 10
