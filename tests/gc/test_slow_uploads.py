"""Uploads that take longer than the collector's grace period, and producers whose clock is behind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from forebay.buffer.base.errors import Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.write.settings import ProducerLimits
from forebay.gc import Collector
from forebay.testing import FaultyStore, ManualClock

NEVER = 10_000_000.0


class Reader:
    """Reads and acknowledges whatever is there, and has it collected: only then can the floor move."""

    def __init__(self, inner: MemoryStore, clock: ManualClock, grace: float) -> None:
        self.entries: list[bytes] = []
        self._consumer = Consumer(inner, clock=clock)
        self._collector = Collector(inner, grace=grace, clock=clock, random=Random(1))

    def read(self) -> list[bytes]:
        for batch in self._consumer:
            self.entries += batch.entries
            self._consumer.ack_through(batch.sequence)
        self._collector.collect_once()
        return self.entries


class SlowStore(FaultyStore):
    """Each upload of a batch takes some time, in which a reader and a collector come by."""

    def __init__(self, inner: MemoryStore, clock: ManualClock, seconds: Callable[[int], float], grace: float) -> None:
        super().__init__(inner)
        self.clock = clock
        self.seconds = seconds
        self.uploads = 0
        self.reader = Reader(inner, clock, grace)

    def put(self, key: str, data: Any) -> str:
        version = super().put(key, data)
        if key.startswith("data/"):
            self.uploads += 1
            self.clock.advance(self.seconds(self.uploads))
            self.reader.read()
        return version


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inner(request: pytest.FixtureRequest, clock: ManualClock) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}", clock=clock)


def produce(store: SlowStore, count: int, **settings: Any) -> None:
    with Producer(
        store,
        flush_interval=NEVER,
        limits=ProducerLimits(concurrent_uploads=1),
        clock=store.clock,
        random=Random(2),
        **settings,
    ) as producer:
        for number in range(count):
            producer.produce(b"%d" % number)
            producer.flush().result()


def test_uploads_slower_than_the_grace_period_become_durable(
    inner: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore(inner, clock, lambda _: 30.0, grace=10.0)
    with caplog.at_level(logging.WARNING, "forebay.producer"):
        produce(store, 5)
    assert store.reader.read() == [b"0", b"1", b"2", b"3", b"4"]
    assert store.uploads == 6, "only the first batch is uploaded twice"
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "forebay.producer"]
    assert "30.0 s" in warning
    assert "set the collector's grace to more than that" in warning


def test_uploads_that_become_slower_and_slower_become_durable(inner: MemoryStore, clock: ManualClock) -> None:
    store = SlowStore(inner, clock, lambda upload: 20.0 * 1.5**upload, grace=10.0)
    produce(store, 4)
    assert store.reader.read() == [b"0", b"1", b"2", b"3"]
    assert store.uploads <= 8


def test_upload_that_the_floor_always_passes_fails_as_not_stored(inner: MemoryStore, clock: ManualClock) -> None:
    """Each upload takes two days, and names are made a day ahead at most."""
    Queue(inner).register_writer()
    store = SlowStore(inner, clock, lambda _: 2 * 86_400.0, grace=1.0)
    with pytest.raises(Unavailable, match="nothing of this batch was stored; raise the collector's grace"):
        produce(store, 1)
    assert store.uploads == 10
    assert store.reader.read() == []


def test_producer_whose_clock_is_behind_uploads_each_batch_once(inner: MemoryStore, clock: ManualClock) -> None:
    """Its names are made above the floor that it has seen, not by its clock alone."""
    Queue(inner).register_writer()
    reader = Reader(inner, clock, grace=600.0)
    reader.read()
    store = FaultyStore(inner)
    behind = ManualClock(clock.now_ms() - 900_000)
    with Producer(
        store, flush_interval=NEVER, limits=ProducerLimits(concurrent_uploads=1), clock=behind, random=Random(2)
    ) as producer:
        for number in range(5):
            producer.produce(b"%d" % number)
            producer.flush().result()
            reader.read()
    assert store.calls["put"] == 5
    assert reader.entries == [b"0", b"1", b"2", b"3", b"4"]


def test_producer_whose_clock_is_behind_learns_how_far_the_floor_runs_ahead(
    inner: MemoryStore, clock: ManualClock
) -> None:
    """The floor moves between any two batches, and the producer sees it only when it lists one."""
    reader = Reader(inner, clock, grace=600.0)
    store = FaultyStore(inner)
    behind = ManualClock(clock.now_ms() - 900_000)
    with Producer(
        store, flush_interval=NEVER, limits=ProducerLimits(concurrent_uploads=1), clock=behind, random=Random(2)
    ) as producer:
        for number in range(6):
            clock.advance(300)
            behind.advance(300)
            reader.read()
            producer.produce(b"%d" % number)
            producer.flush().result()
    assert store.calls["put"] <= 7, "one batch at most is uploaded twice"
    assert reader.read() == [b"%d" % number for number in range(6)]
