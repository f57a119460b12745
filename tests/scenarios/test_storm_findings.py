"""What storms found, each as a short story that always runs.

- A reader was stopped between being handed a batch and fetching it. Meanwhile another took over, acknowledged it, and
  the collector swept it; or retention dropped it. It found nothing there, and took that for a damaged batch: the
  runtime halted, or wrote a dead letter, instead of hearing that it had been fenced.
- A runtime that was to repeat a range of its predecessor's, and took several looks at a slow store to read it, cut it
  short when it had waited long enough for more to combine: as other commits than before, so that rows were there twice.

Mutation notes: `check_missing` in `Pipeline._prepare`, the second look in `Consumer._peek`, the planned ranges in
`PortionBuilder.due`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from kinds import Kind, values_of

from forebay.buffer.base.errors import Fenced, NotFound, Trimmed
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector, Retention
from forebay.runtime import Combining, Halted, Runtime, RuntimeConfig, Source
from forebay.testing import FaultyStore, ManualClock
from forebay.testing.ledger import LedgerSink

BATCHES = 4
GROUPS = pytest.mark.parametrize("group", ["etl", None])


class Stopped(FaultyStore):
    """The way to the store of a process that is stopped just before it fetches its first batch."""

    meanwhile: Callable[[], object] | None = None

    def get(self, key: str) -> StoredObject:
        if key.startswith("data/") and self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().get(key)


class Scene:
    """A buffer of a few batches, a minute old."""

    numbers = count()

    def __init__(self, kind: Kind) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"memory://findings-{next(self.numbers)}", clock=self.clock)
        with Producer(self.store, schema=kind.schema, clock=self.clock) as producer:
            for number in range(BATCHES):
                producer.produce(kind.make(b"%d" % number))
                producer.flush().wait()
                self.clock.advance(1)
        self.clock.advance(60)
        self.stopped = Stopped(self.store)

    def collect(self, retention: Retention | None = None) -> None:
        collector = Collector(self.store, grace=1, retention=retention, clock=self.clock)
        assert collector.collect_once().deleted

    def overtake(self, group: str | None) -> None:
        """Another runtime reads everything, and all of it is swept."""
        sink = LedgerSink()
        Runtime([Source(self.store, group=group, takeover=True)], sink).run(until_caught_up=True, show_progress=False)
        assert len(sink.values()) == BATCHES
        self.collect()

    def drop(self) -> None:
        """Retention lets go of all but the last."""
        size = sum(found.size for found in self.store.list("data/")) // BATCHES
        self.collect(Retention(max_bytes=size))


@pytest.fixture
def scene(kind: Kind) -> Scene:
    return Scene(kind)


def run(scene: Scene, group: str | None, letters: Producer | None = None) -> LedgerSink:
    sink = LedgerSink()
    runtime = Runtime([Source(scene.stopped, group=group)], sink, RuntimeConfig(fetch_workers=1), dead_letters=letters)
    runtime.run(until_caught_up=True, show_progress=False)
    return sink


@GROUPS
def test_overtaken_runtime_whose_batch_was_swept_is_fenced_and_writes_no_dead_letter(
    scene: Scene, group: str | None
) -> None:
    scene.stopped.meanwhile = lambda: scene.overtake(group)
    with Producer(f"{scene.store.url}-letters") as letters, pytest.raises(Fenced):
        run(scene, group, letters)
    assert Queue(MemoryStore(f"{scene.store.url}-letters")).read().next_sequence == 0


@GROUPS
def test_overtaken_consumer_whose_batch_was_swept_is_fenced(scene: Scene, group: str | None) -> None:
    consumer = Consumer(scene.stopped, group=group)
    scene.stopped.meanwhile = lambda: scene.overtake(group)
    with pytest.raises(Fenced):
        consumer.next_batch()


@GROUPS
def test_runtime_whose_batch_retention_has_dropped_says_so(scene: Scene, group: str | None) -> None:
    scene.stopped.meanwhile = scene.drop
    with pytest.raises(Trimmed) as caught:
        run(scene, group)
    assert caught.value.first == BATCHES - 1


def test_consumer_whose_batch_retention_has_dropped_says_so(scene: Scene) -> None:
    scene.stopped.meanwhile = scene.drop
    with pytest.raises(Trimmed):
        Consumer(scene.stopped, group="etl").next_batch()


def test_consumer_that_skips_what_is_trimmed_skips_it_then_too(scene: Scene) -> None:
    consumer = Consumer(scene.stopped, group="etl", on_trimmed="skip")
    scene.stopped.meanwhile = scene.drop
    assert [(batch.sequence, values_of(batch)) for batch in consumer] == [(BATCHES - 1, [b"3"])]
    assert consumer.skipped == BATCHES - 1


def test_batch_that_is_really_missing_is_still_reported_as_such(scene: Scene) -> None:
    scene.store.delete([found.key for found in scene.store.list("data/")][:1])
    with pytest.raises(NotFound):
        Consumer(scene.stopped).next_batch()
    with pytest.raises(Halted, match="NotFound"):
        run(scene, "etl")


def test_planned_range_is_repeated_as_it_was_however_many_looks_it_takes(kind: Kind) -> None:
    store = MemoryStore(f"memory://findings-planned-{kind.name}")
    with Producer(store, schema=kind.schema) as producer:
        for number in range(12):
            producer.produce(kind.make(b"%d" % number))
            producer.flush().wait()
    dying = Consumer(store, group="etl")
    dying.next_descriptors(10)
    dying.plan([9])  # as one commit, that may have been made
    impatient = LedgerSink(combining=Combining(target_bytes=1 << 20, max_seconds=1e-6))
    config = RuntimeConfig(descriptors_per_look=2)
    source = Source(store, group="etl", takeover=True)
    Runtime([source], impatient, config).run(until_caught_up=True, show_progress=False)
    assert impatient.ranges[0] == (0, 9)
