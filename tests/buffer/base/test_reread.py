"""A read that is falsified once counts for nothing: readers read again before they call an object damaged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.base.reread import MAX_READS
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.either.ranges import read_range
from forebay.buffer.eventlog.objects import ObjectsBackend
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.inspect.describe import describe
from forebay.buffer.inspect.verify import verify
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head import KEPT_LISTINGS
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicConsumer, TopicProducer, create_topic
from forebay.gc import Collector
from forebay.testing import Fault, FaultyStore, ManualClock

READS = ("get", "get_if_changed")
BATCHES = 3 * KEPT_LISTINGS
"""Enough that some of them are in a sealed segment."""
TIME = 1_700_000_000_000


def fill(store: Any, count: int = BATCHES) -> None:
    """Append batches of one entry, a few at a time, so that older ones are sealed."""
    batches = []
    for number in range(count):
        data = bytes(encode_batch([b"entry %d" % number], "none", 3))
        store.put(f"data/{number:04}.batch", data)
        facts = Facts(len(data), len(data) - 7, 1, crc32c(data), TIME, TIME)
        batches.append(NewBatch(f"data/{number:04}.batch", (Metadata(0, TIME, b""),), facts))
    queue = Queue(store)
    for start in range(0, count, 32):
        queue.append(batches[start : start + 32])


def read_by_consumer(store: Any, clock: ManualClock) -> Any:
    with Consumer(store, group="etl", clock=clock) as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)
        return batch.sequence, consumer.acked


def read_by_unnamed_consumer(store: Any, clock: ManualClock) -> Any:
    with Consumer(store, clock=clock) as consumer:
        return [list(batch.entries) for batch in consumer]


def read_by_fetch_handle(store: Any, clock: ManualClock) -> Any:
    descriptors = Queue(store, clock=clock).descriptors(0, BATCHES)
    fetcher = FetchHandle(store, clock=clock)
    return [list(fetcher.decode(found, fetcher.fetch_raw(found)).entries) for found in descriptors[:3]]


def read_by_range(store: Any, clock: ManualClock) -> Any:
    return [list(batch.entries) for batch in read_range(store, 1, 5, threads=1, clock=clock)]


def read_held(store: Any, clock: ManualClock) -> Any:
    with hold(store, from_=1, upto=3, clock=clock) as held:
        return [found.sequence for found in held.descriptors()]


def read_by_verify(store: Any, clock: ManualClock) -> Any:
    report = verify(store, clock=clock, max_concurrent_fetches=1)
    return report.findings, report.batches, report.entries, report.segments, report.groups


def read_stats(store: Any, clock: ManualClock) -> Any:
    found = describe(store, clock=clock)
    return found.first_sequence, found.next_sequence, [(group.name, group.acked) for group in found.groups]


def read_groups(store: Any, clock: ManualClock) -> Any:
    return Groups(store, clock=clock).describe("old")


def collect(store: Any, clock: ManualClock) -> Any:
    return Collector(store, clock=clock).collect_once().trimmed


def produce(store: Any, clock: ManualClock) -> Any:
    with Producer(store, clock=clock) as producer:
        producer.produce(b"one more")
        producer.flush().result()
    return Queue(store).read().next_sequence


READERS: list[Callable[[Any, ManualClock], Any]] = [
    read_by_consumer,
    read_by_unnamed_consumer,
    read_by_fetch_handle,
    read_by_range,
    read_held,
    read_by_verify,
    read_stats,
    read_groups,
    collect,
    produce,
]


@cache
def _template() -> MemoryStore:
    store = MemoryStore("memory://reread-template")
    fill(store)
    with Consumer(store, group="old") as consumer:
        consumer.next_descriptors(3)
        consumer.ack_through(2)
    assert next(iter(store.list("segments/")), None) is not None
    return store


def new_buffer(name: str) -> MemoryStore:
    """A buffer with a segment and a group that has read three batches."""
    store = MemoryStore(f"memory://reread-{name}")
    for found in _template().list():
        store.put(found.key, _template().get(found.key).data)
    return store


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_any_read_falsified_once_changes_nothing(read: Callable[[Any, ManualClock], Any]) -> None:
    sound = FaultyStore(new_buffer(f"{read.__name__}-sound"), only=READS)
    expected = read(sound, ManualClock())
    reads = sum(sound.calls[kind] for kind in READS)
    assert reads > 0
    # A read of many batches is the same again and again: the first ones, the last ones, and some between.
    numbers = sorted({*range(min(reads, 12)), *range(12, reads, 41), *range(max(0, reads - 3), reads)})
    for number in numbers:
        falsified = FaultyStore(new_buffer(f"{read.__name__}-{number}"), {number: Fault.FALSIFY}, only=READS)
        found = read(falsified, ManualClock())
        assert found == expected, f"read {number} of {reads} was falsified"


def test_topic_is_read_though_any_read_is_falsified_once() -> None:
    store = MemoryStore("memory://reread-topic")
    create_topic(store, 2)
    with TopicProducer(store, flush_interval=1000) as producer:
        for number in range(4):
            producer.produce(b"%d" % number, key=b"%d" % number)
            producer.flush().result()

    def read(faulty: FaultyStore) -> list[bytes]:
        with TopicConsumer(faulty, clock=ManualClock()) as consumer:
            return sorted(entry for _, batch in consumer for entry in batch.entries)

    sound = FaultyStore(store, only=READS)
    expected = read(sound)
    assert expected == [b"0", b"1", b"2", b"3"]
    for number in range(sum(sound.calls[kind] for kind in READS)):
        assert read(FaultyStore(store, {number: Fault.FALSIFY}, only=READS)) == expected


def test_event_log_is_read_though_any_read_is_falsified_once() -> None:
    store = MemoryStore("memory://reread-events/log")
    backend = ObjectsBackend(store, clock=ManualClock(), random=Random(1))
    backend.create("audit", 1)
    for number in range(5):
        backend.append("audit", 0, [b"event %d" % number])

    def read(faulty: FaultyStore) -> list[tuple[int, bytes]]:
        opened = ObjectsBackend(faulty, clock=ManualClock(), random=Random(1))
        assert opened.partitions("audit") == 1
        return opened.read("audit", 0, 0, 10)

    sound = FaultyStore(store, only=READS)
    expected = read(sound)
    assert [offset for offset, _ in expected] == list(range(5))
    for number in range(sum(sound.calls[kind] for kind in READS)):
        assert read(FaultyStore(store, {number: Fault.FALSIFY}, only=READS)) == expected


def test_batch_without_a_checksum_is_read_again_if_it_does_not_decode() -> None:
    """In version 1 the manifest has no checksum, so damage shows only where the batch is decoded."""
    store = MemoryStore("memory://reread-v1")
    paths = {"manifest_path": "manifest", "data_prefix": "data"}
    with Producer(store, profile="opendata", flush_interval=1000, compression="zstd", **paths) as producer:
        producer.produce([b"a" * 1000, b"b" * 1000])
        producer.flush().result()
    (found,) = Queue(store).descriptors(0, 10)
    assert found.facts is None
    fetcher = FetchHandle(store, clock=ManualClock())
    damaged = bytearray(store.get(found.location).data)
    damaged[len(damaged) // 2] ^= 1
    assert list(fetcher.decode(found, bytes(damaged)).entries) == [b"a" * 1000, b"b" * 1000]


def test_object_that_stays_damaged_is_read_three_times_with_pauses_and_then_corrupt() -> None:
    store = new_buffer("stays-damaged")
    (found,) = Queue(store).descriptors(0, 1)
    store.put(found.location, b"something else")
    faulty, clock = FaultyStore(store), ManualClock()
    with pytest.raises(Corrupt, match="is damaged"):
        FetchHandle(faulty, clock=clock).fetch(found)
    assert faulty.calls["get"] == MAX_READS
    assert clock.monotonic() > 0


def test_register_that_stays_damaged_is_corrupt_after_as_many_reads() -> None:
    store = new_buffer("register-stays-damaged")
    faulty = FaultyStore(store)
    queue = Queue(faulty, clock=ManualClock())
    queue.read()
    store.put("manifest", bytes(reversed(store.get("manifest").data)))
    faulty.calls.clear()
    with pytest.raises(Corrupt):
        queue.read()
    assert faulty.calls == {"get_if_changed": 1, "get": MAX_READS - 1}, "after the first, reads are unconditional"


def test_sound_read_costs_one_request() -> None:
    store = FaultyStore(new_buffer("one-request"))
    (found,) = Queue(store).descriptors(0, 1)
    store.calls.clear()
    clock = ManualClock()
    FetchHandle(store, clock=clock).fetch(found)
    assert store.calls == {"get": 1}
    assert clock.monotonic() == 0


def test_topic_is_no_damage() -> None:
    store = MemoryStore("memory://reread-is-topic")
    create_topic(store, 1)
    faulty = FaultyStore(store)
    with pytest.raises(InvalidInput, match="is a topic"):
        Queue(faulty).read()
    assert faulty.calls["get"] == 1
    assert Topic(store).partitions == 1
