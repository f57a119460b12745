"""Acks are written in the background too: soon, by one thread, and without being waited for: rfcs/0004."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from kinds import Kind, append_all

from forebay.buffer.base.errors import Fenced
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Queue
from forebay.buffer.store.base import Outcome
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    kind.begin(store)
    append_all(Queue(store), [kind.upload(store, f"data/{number}", [b"x"]) for number in range(10)])
    return store


class Down(FaultyStore):
    """Fails every request while it is down, and counts those."""

    is_down = False
    refused = 0

    def next_fault(self, kind: str) -> Fault | None:
        self.refused += self.is_down
        return Fault.FAIL if self.is_down else super().next_fault(kind)


def acked(store: MemoryStore, group: str = "etl") -> int | None:
    return Groups(store).describe(group).acked


def advance_until(clock: ManualClock, is_met: Callable[[], object]) -> None:
    """Let the time pass in which something happens in another thread; a test that waits for ever fails."""
    for _ in range(100_000):
        if is_met():
            return
        clock.advance(0.25)
        threading.Event().wait(0.001)  # let the other threads run
    pytest.fail("it did not happen in seven hours")


def test_ack_is_written_after_the_interval(store: MemoryStore) -> None:
    clock = ManualClock()
    consumer = Consumer(store, group="etl", ack_interval=5.0, clock=clock)
    consumer.next_descriptors(3)
    consumer.ack(0)
    consumer.ack(1)
    assert acked(store) is None
    advance_until(clock, lambda: acked(store) == 1)
    assert clock.monotonic() >= 5.0
    consumer.ack(2)
    advance_until(clock, lambda: acked(store) == 2)
    assert clock.monotonic() >= 10.0


def test_acks_of_one_interval_are_one_write(store: MemoryStore) -> None:
    clock, counted = ManualClock(), FaultyStore(store)
    consumer = Consumer(counted, group="etl", clock=clock)
    consumer.next_descriptors(10)
    counted.calls.clear()
    for sequence in range(10):
        consumer.ack(sequence)
    advance_until(clock, lambda: acked(store) == 9)
    assert counted.calls == {"replace": 1}


def test_unnamed_consumer_writes_its_acks_too(store: MemoryStore) -> None:
    clock = ManualClock()
    consumer = Consumer(store, clock=clock)
    consumer.next_descriptors(1)
    consumer.ack(0)
    advance_until(clock, lambda: Queue(store).read().waiting == 9)


def test_ack_is_pending_until_a_write_succeeds(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    clock, down = ManualClock(), Down(store)
    consumer = Consumer(down, group="etl", clock=clock)
    consumer.next_descriptors(3)
    consumer.ack(0)
    down.is_down = True
    advance_until(clock, lambda: "will be tried again" in caplog.text)
    assert acked(store) is None
    down.is_down = False
    advance_until(clock, lambda: acked(store) == 0)


def test_call_after_a_write_that_met_a_fence_is_fenced(store: MemoryStore) -> None:
    clock = ManualClock()
    old = Consumer(store, group="etl", clock=clock)
    old.next_descriptors(3)
    old.ack(0)
    Consumer(store, group="etl")
    advance_until(clock, lambda: old.fence is not None)
    for call in (
        lambda: old.ack(1),
        lambda: old.ack_through(1),
        lambda: next(iter(old)),
        old.next_batch,
        old.flush,
        old.lag,
        old.close,
    ):
        with pytest.raises(Fenced, match="took over"):
            call()
    assert acked(store) is None


class Gated(FaultyStore):
    """Lets no write of a cursor through until the gate is open."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def replace(self, key: str, data: bytes | memoryview, version: str) -> Outcome:
        if key.startswith("cursors/") and not self.gate.is_set():
            self.waiting.set()
            self.gate.wait()
        return super().replace(key, data, version)


def test_ack_does_not_wait_for_a_write_in_the_background(store: MemoryStore) -> None:
    clock, gated = ManualClock(), Gated(store)
    consumer = Consumer(gated, group="etl", clock=clock)
    consumer.next_descriptors(3)
    consumer.ack(0)
    gated.gate.clear()
    advance_until(clock, gated.waiting.is_set)
    consumer.ack(1)
    gated.gate.set()
    advance_until(clock, lambda: acked(store) == 1)
    consumer.close()


def test_close_waits_for_a_write_in_the_background_and_writes_the_rest(store: MemoryStore) -> None:
    clock, gated = ManualClock(), Gated(store)
    consumer = Consumer(gated, group="etl", clock=clock)
    consumer.next_descriptors(3)
    consumer.ack(0)
    gated.gate.clear()
    advance_until(clock, gated.waiting.is_set)
    consumer.ack(1)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    gated.gate.set()
    closing.join()
    assert acked(store) == 1


def test_seek_begins_anew_after_a_write_in_the_background(store: MemoryStore) -> None:
    clock = ManualClock()
    consumer = Consumer(store, group="etl", clock=clock)
    consumer.next_descriptors(3)
    consumer.ack(0)
    consumer.ack(1)
    consumer.seek(5)
    assert acked(store) == 1, "a seek writes what is acknowledged"
    clock.advance(10)
    consumer.next_descriptors(2)
    consumer.ack(5)
    advance_until(clock, lambda: acked(store) == 5)


def test_many_consumers_share_the_threads_that_write(store: MemoryStore) -> None:
    clock = ManualClock()
    before = set(threading.enumerate())
    consumers = [Consumer(store, group=f"g{number}", clock=clock) for number in range(20)]
    for consumer in consumers:
        consumer.next_descriptors(1)
        consumer.ack(0)
    assert len(set(threading.enumerate()) - before) == 1
    for number in range(20):
        advance_until(clock, lambda number=number: acked(store, f"g{number}") == 0)  # type: ignore[misc]
    assert len(set(threading.enumerate()) - before) <= 2
    for consumer in consumers:
        consumer.close()


def test_closed_consumer_writes_nothing_in_the_background(store: MemoryStore) -> None:
    clock, down = ManualClock(), Down(store)
    before = set(threading.enumerate())
    consumer = Consumer(down, group="etl", clock=clock)
    consumer.next_descriptors(1)
    consumer.ack(0)
    Consumer(store, group="etl")
    with pytest.raises(Fenced):
        consumer.close()
    down.is_down = True
    clock.advance(100)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert down.refused == 0
