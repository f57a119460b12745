"""A store that is away for a while: what was under way waits for it, and what fails says truly that it failed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import pytest
from kinds import Kind, ValueProducer, ValueTopicProducer, values_of

from forebay.buffer.base.errors import Denied, InvalidInput, NotFound, StoreError, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store.base import InDoubt
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicConsumer, create_topic
from forebay.buffer.write.settings import ProducerLimits
from forebay.testing import FaultyStore, ManualClock

NEVER = 10_000.0
T = TypeVar("T")


class Outage(FaultyStore):
    """Every request until `ends`, by the clock, is answered like a 503: a plain put may have been applied."""

    def __init__(self, inner: MemoryStore, clock: ManualClock) -> None:
        super().__init__(inner)
        self.clock = clock
        self.ends = 0.0
        self.refusals: list[float] = []

    def begin(self, seconds: float) -> None:
        self.ends = self.clock.monotonic() + seconds

    def _call(self, kind: str, key: str, do: Callable[[], T], falsify: Callable[[T], T] = lambda answer: answer) -> T:
        if self.clock.monotonic() < self.ends:
            self.refusals.append(self.clock.monotonic())
            raise Unavailable(f"{self.url}/{key}: 503")
        return super()._call(kind, key, do, falsify)

    def _write(self, kind: str, key: str, do: Callable[[], Any]) -> Any:
        if self.clock.monotonic() < self.ends:
            self.refusals.append(self.clock.monotonic())
            return InDoubt("503")
        return super()._write(kind, key, do)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inner(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    inner = MemoryStore(f"memory://{request.node.name}")
    kind.begin(inner)
    return inner


@pytest.fixture
def store(inner: MemoryStore, clock: ManualClock) -> Outage:
    with ValueProducer(inner) as producer:
        producer.produce(b"before")
    return Outage(inner, clock)


def entries_in(store: Outage) -> list[bytes]:
    return [value for batch in Consumer(store.inner) for value in values_of(batch)]


def test_upload_outlasts_an_outage_of_a_second(store: Outage, clock: ManualClock) -> None:
    with ValueProducer(store, flush_interval=NEVER, clock=clock, random=Random(1)) as producer:
        store.begin(1.0)
        handle = producer.produce(b"x")
        producer.flush().result()
        handle.result(timeout=0)
    assert store.refusals
    assert entries_in(store) == [b"before", b"x"]


def test_upload_that_failed_is_reported_as_not_stored(store: Outage, clock: ManualClock) -> None:
    producer = ValueProducer(store, flush_interval=NEVER, clock=clock, random=Random(1))
    store.begin(NEVER)
    handle = producer.produce(b"x")
    with pytest.raises(Unavailable, match="nothing of this batch was stored; produce it again"):
        producer.flush().result()
    with pytest.raises(Unavailable):
        handle.result(timeout=0)
    assert 59 < max(store.refusals) <= 61
    assert len(store.refusals) < 1000
    store.ends = 0.0
    producer.close()
    assert entries_in(store) == [b"before"]


def test_retry_timeout_bounds_how_long_an_upload_is_retried(store: Outage, clock: ManualClock) -> None:
    producer = ValueProducer(store, flush_interval=NEVER, retry_timeout=5.0, clock=clock, random=Random(1))
    store.begin(NEVER)
    producer.produce(b"x")
    with pytest.raises(Unavailable, match="5 s"):
        producer.close()
    assert 4 < max(store.refusals) <= 6


def test_append_outlasts_an_outage_that_is_shorter_than_retry_timeout(inner: MemoryStore, clock: ManualClock) -> None:
    class ManifestAway(Outage):
        def _write(self, kind: str, key: str, do: Callable[[], Any]) -> Any:
            return do() if kind == "put" else super()._write(kind, key, do)

    store = ManifestAway(inner, clock)
    with ValueProducer(store, flush_interval=NEVER, retry_timeout=300.0, clock=clock, random=Random(1)) as producer:
        store.begin(250.0)
        producer.produce(b"x")
        producer.flush().result()
    assert max(store.refusals) > 200
    assert entries_in(store) == [b"x"]


@pytest.mark.parametrize(
    "error",
    [Denied("no right"), NotFound("no bucket", bucket=True), InvalidInput("too large")],
    ids=["denied", "missing bucket", "invalid"],
)
def test_bad_upload_fails_at_once_and_as_what_it_is(inner: MemoryStore, clock: ManualClock, error: StoreError) -> None:
    tries: list[str] = []

    class Refusing(FaultyStore):
        def put(self, key: str, data: Any) -> str:
            tries.append(key)
            raise error

    producer = ValueProducer(Refusing(inner), flush_interval=NEVER, clock=clock)
    producer.produce(b"x")
    with pytest.raises(type(error), match=str(error)):
        producer.close()
    assert len(tries) == 1


def test_close_during_an_outage_ends_though_many_batches_wait(store: Outage, clock: ManualClock) -> None:
    """All of them together are retried for `retry_timeout`, not one after the other."""
    producer = ValueProducer(
        store,
        flush_interval=NEVER,
        flush_size_bytes=1,
        limits=ProducerLimits(concurrent_uploads=1),
        clock=clock,
        random=Random(1),
    )
    store.begin(NEVER)
    handles = [producer.produce(b"%d" % i) for i in range(20)]
    began = clock.monotonic()
    with pytest.raises(Unavailable):
        producer.close()
    # The first one's own time may be over before the close.
    assert clock.monotonic() - began < 3 * 60
    for handle in handles:
        with pytest.raises(Unavailable):
            handle.result(timeout=0)


def test_topic_producer_takes_the_same_setting(request: pytest.FixtureRequest, clock: ManualClock, kind: Kind) -> None:
    inner = MemoryStore(f"memory://{request.node.name}")
    create_topic(inner, 1, schema=kind.schema)
    store = Outage(inner, clock)
    producer = ValueTopicProducer(store, flush_interval=NEVER, retry_timeout=5.0, clock=clock, random=Random(1))
    store.begin(NEVER)
    producer.produce(b"x")
    with pytest.raises(Unavailable, match="5 s"):
        producer.close()


# Reading


def test_consumer_outlasts_an_outage_of_a_second(store: Outage, clock: ManualClock) -> None:
    consumer = Consumer(store, clock=clock, random=Random(1))
    store.begin(1.0)
    batch = consumer.next_batch()
    assert batch is not None
    assert values_of(batch) == [b"before"]
    store.begin(1.0)
    consumer.ack_through(batch.sequence)
    store.begin(1.0)
    assert consumer.next_batch() is None


def test_consumer_gives_up_after_its_retry_timeout(store: Outage, clock: ManualClock) -> None:
    consumer = Consumer(store, clock=clock, random=Random(1), retry_timeout=5.0)
    store.begin(NEVER)
    with pytest.raises(Unavailable):
        consumer.next_batch()
    assert 4 < max(store.refusals) <= 6
    store.ends = 0.0
    assert consumer.next_batch() is not None, "nothing was handed out yet"


def test_fetching_outlasts_an_outage_of_a_second(store: Outage, clock: ManualClock) -> None:
    (descriptor,) = Queue(store).descriptors(0, 1)
    store.begin(1.0)
    assert values_of(FetchHandle(store, clock=clock).fetch(descriptor)) == [b"before"]
    assert store.refusals


def test_fetching_without_retries_fails_at_once(store: Outage, clock: ManualClock) -> None:
    (descriptor,) = Queue(store).descriptors(0, 1)
    store.begin(1.0)
    with pytest.raises(Unavailable):
        FetchHandle(store, clock=clock, retry_timeout=0).fetch(descriptor)
    assert len(store.refusals) == 1


def test_topic_consumer_outlasts_an_outage_of_a_second(
    request: pytest.FixtureRequest, clock: ManualClock, kind: Kind
) -> None:
    inner = MemoryStore(f"memory://{request.node.name}")
    create_topic(inner, 2, schema=kind.schema)
    with ValueTopicProducer(inner) as producer:
        producer.produce(b"x")
    store = Outage(inner, clock)
    consumer = TopicConsumer(store, group="g", clock=clock, random=Random(1))
    store.begin(1.0)
    batch = consumer.next_batch()
    assert batch is not None
    assert values_of(batch.batch) == [b"x"]
    assert store.refusals
