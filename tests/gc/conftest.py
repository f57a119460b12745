"""A buffer in memory whose clock obeys, with the parts that a collector meets in it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kinds import BYTES, Kind, append_all

from forebay.buffer.base import names
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Head, Manifest, Queue, State, UnnamedReader
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, add_partitions, create_topic
from forebay.gc import Collector
from forebay.testing import ManualClock

GRACE = 600.0
_PLAIN = str.maketrans("[]", "__")
"""Brackets, as in the name of a test with parameters, make no URL."""


class Pool:
    """A buffer; each step of a test is one call. Batches hold one entry of a hundred bytes."""

    def __init__(self, store: ObjectStore, clock: ManualClock, kind: Kind = BYTES) -> None:
        self.clock = clock
        self.random = Random(7)
        self.store = store
        self.kind = kind
        self.queue = self.open_queue()

    def open_queue(self, store: ObjectStore | None = None) -> Queue:
        return Queue(store or self.store, clock=self.clock, random=self.random)

    def collector(self, store: ObjectStore | None = None, **settings: Any) -> Collector:
        settings.setdefault("grace", GRACE)
        return Collector(store or self.store, clock=self.clock, random=self.random, **settings)

    def collect(self, store: ObjectStore | None = None, **settings: Any) -> Any:
        return self.collector(store, **settings).collect_once()

    def upload(self, *, clock: ManualClock | None = None) -> NewBatch:
        value, now = self.random.randbytes(100), (clock or self.clock).now_ms()
        location = f"data/{names.mint(clock or self.clock, self.random)}.batch"
        return self.kind.upload(self.store, location, [value], now, now)

    def append(self, count: int, *, every: float = 0.0) -> list[str]:
        """Upload batches with this number of seconds between them, and list them 32 at a time."""
        batches = []
        for _ in range(count):
            batches.append(self.upload())
            self.clock.advance(every)
        for start in range(0, count, 32):
            append_all(self.queue, batches[start : start + 32])
        return [batch.location for batch in batches]

    def read(self, through: int) -> None:
        """The unnamed consumer comes, and acknowledges."""
        reader = UnnamedReader(self.queue)
        reader.ack(reader.claim(), through)

    def group(self, name: str, *, start: int | str = "earliest", through: int | None = None) -> None:
        """A group, with a cursor only if it has acknowledged something."""
        reader = GroupReader(self.queue, name, start=start, clock=self.clock, random=self.random)
        if through is not None:
            reader.ack(reader.claim(), through)

    def hold(self, hold_id: str, *, first: int | None = None, floor: str | None = None, ttl: float = 3600) -> None:
        """A hold that a collector has seen as soon as it was taken or renewed."""
        known = self.head.holds.get(hold_id)
        renewals = 0 if known is None else known.renewals + 1
        hold = Hold(first, floor, 0, "a test", int(ttl * 1000), renewals, self.clock.now_ms())
        self.queue.change_head(lambda head: head.with_hold(hold_id, hold), lambda head: head.holds.get(hold_id) == hold)

    def age(self, seconds: float = 2 * GRACE) -> None:
        """Time passes, and a writer's registration makes the store write the manifest."""
        self.clock.advance(seconds)
        queue = self.open_queue()
        state = queue.read()
        if isinstance(state, Head):
            queue.change_head(lambda head: head.touch(), lambda head: False)
        else:
            self.store.put("manifest", state.to_bytes())

    @property
    def head(self) -> Head:
        state = Queue(self.store).read()
        assert isinstance(state, Head)
        return state

    def objects(self, folder: str = "data") -> list[str]:
        return [found.key for found in self.store.list(f"{folder}/")]

    def listed(self) -> list[str]:
        """What can be reached through the manifest; each of them must be there."""
        queue = Queue(self.store)
        state = queue.read()
        found = [batch.location for batch in queue.descriptors(state.first_sequence, 10**6, state=state)]
        assert set(found) <= set(self.objects()), "the manifest lists what is gone"
        return found


def make_pool(name: str, state: State) -> Pool:
    clock = ManualClock()
    store = MemoryStore(f"memory://{name.translate(_PLAIN)}", clock=clock)
    store.create("manifest", state.to_bytes())
    return Pool(store, clock)


@pytest.fixture
def pool(request: pytest.FixtureRequest, kind: Kind) -> Pool:
    """A native buffer."""
    pool = make_pool(request.node.name, Head(buffer_id="b" * 32))
    pool.kind = kind
    kind.begin(pool.store)
    return pool


@pytest.fixture
def pool_v1(request: pytest.FixtureRequest) -> Pool:
    """A buffer of version 1."""
    return make_pool(request.node.name, Manifest.empty("new"))


class TopicPools:
    """A topic in memory; each partition is a pool."""

    def __init__(self, name: str, partitions: int) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"memory://{name}", clock=self.clock)
        topic = create_topic(self.store, partitions, clock=self.clock)
        self.partitions = [Pool(topic.partition(number), self.clock) for number in range(partitions)]

    def add_partition(self) -> Pool:
        total = len(self.partitions) + 1
        add_partitions(self.store, total, clock=self.clock)
        self.partitions.append(Pool(Topic(self.store).partition(total - 1), self.clock))
        return self.partitions[-1]

    def collector(self, store: ObjectStore | None = None, **settings: Any) -> Collector:
        settings.setdefault("grace", GRACE)
        return Collector(store or self.store, clock=self.clock, **settings)

    def age(self, seconds: float = 2 * GRACE) -> None:
        self.clock.advance(seconds)
        for pool in self.partitions:
            pool.age(0)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> TopicPools:
    """A topic of three partitions."""
    return TopicPools(request.node.name, 3)
