"""The reader of a source when the runtime stops: what it still commits, and what it must not (rfcs/0007)."""

from __future__ import annotations

import threading
from typing import Any

from filled import acked, fill, new_buffer, run, running
from patience import wait_for

from forebay.buffer.base.counted import counted
from forebay.buffer.consumer import Consumer
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Combining, Runtime, RuntimeConfig, Source
from forebay.testing import ManualClock
from forebay.testing.ledger import LedgerSink


def waits_to_combine(runtime: Runtime, count: int) -> bool:
    sources = runtime.status().sources
    return bool(sources) and sources[0].waits_for.startswith(f"{counted(count, 'batch')} waiting for more to combine")


def run_until_batches_wait(store: MemoryStore, sink: LedgerSink, count: int) -> None:
    """Run for a moment of the minute that the sink combines for, and stop."""
    runtime = Runtime([Source(store, group="etl")], sink, clock=ManualClock())
    with running(runtime) as outcome:
        wait_for(lambda: waits_to_combine(runtime, count))
        runtime.stop()
        wait_for(lambda: bool(outcome))


def test_stop_commits_what_waits_to_be_combined() -> None:
    store = new_buffer("stop-combining", 5)
    sink = LedgerSink(combining=Combining(1 << 20, max_seconds=60))
    run_until_batches_wait(store, sink, 5)
    assert acked(store) == 4
    fill(store, 3)
    run_until_batches_wait(store, sink, 3)
    assert acked(store) == 7
    assert sink.ranges == [(0, 4), (5, 7)]


def test_removal_commits_what_waits_to_be_combined() -> None:
    store = new_buffer("remove-combining", 5)
    sink = LedgerSink(combining=Combining(1 << 20, max_seconds=60))
    source = Source(store, group="etl")
    runtime = Runtime([source], sink, clock=ManualClock())
    with running(runtime):
        wait_for(lambda: waits_to_combine(runtime, 5))
        runtime.remove(source)
    assert sink.ranges == [(0, 4)]
    assert acked(store) == 4


def test_stop_closes_no_range_that_was_recorded_as_longer() -> None:
    store = new_buffer("stop-recorded", 10)
    with Consumer(store, group="etl") as before:
        before.next_descriptors(10)
        before.plan([9])
    consumer = Consumer(store, group="etl", clock=ManualClock())
    sink = LedgerSink(combining=Combining(1 << 20, max_seconds=60))
    runtime = Runtime([consumer], sink, RuntimeConfig(descriptors_per_look=4), clock=ManualClock())
    inner = consumer.next_descriptors

    def next_descriptors(most: int) -> Any:
        runtime.stop()
        return inner(most)

    consumer.next_descriptors = next_descriptors  # type: ignore[method-assign]
    with running(runtime) as outcome:
        wait_for(lambda: bool(outcome))
    assert sink.ranges == []
    consumer.close()
    run(store, sink)
    assert sink.ranges == [(0, 9)]


class CountsWaits(ManualClock):
    """Counts how often the thread of a source has begun to wait."""

    reader_waits = 0

    def wait_until(self, condition: threading.Condition, deadline: float | None) -> bool:
        if threading.current_thread().name.startswith("forebay-source"):
            self.reader_waits += 1
        return super().wait_until(condition, deadline)


def test_stop_commits_nothing_behind_batches_that_wait_for_room() -> None:
    store = new_buffer("stop-no-room", 0)
    fill(store, 9, size=50)
    sink = LedgerSink(combining=Combining(target_bytes=200, max_seconds=60))  # two batches each
    sink.hold()
    clock = CountsWaits()
    runtime = Runtime([Source(store, group="etl")], sink, RuntimeConfig(max_batches=4), clock=clock)
    with running(runtime) as outcome:
        assert sink.wait_for_calls(2)
        wait_for(lambda: "max_batches is 4" in runtime.status().sources[0].waits_for)
        waits = clock.reader_waits
        runtime.stop()
        wait_for(lambda: clock.reader_waits > waits)  # the reader has done all that it does after a stop
        sink.release()
        wait_for(lambda: bool(outcome))
    assert sink.ranges == [(0, 1), (2, 3)]
    assert acked(store) == 3
    sink.combining = Combining(target_bytes=1 << 20)
    run(store, sink)
    assert sorted(sequence for first, last in sink.ranges for sequence in range(first, last + 1)) == list(range(9))
