"""The producer: calls in, durable batches out."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from kinds import OF_BYTES, Kind, ValueProducer, kind_in, values_of
from patience import PATIENCE, wait_for

from forebay.buffer.base.errors import (
    Backpressure,
    Closed,
    Corrupt,
    InvalidInput,
    Timeout,
    Unavailable,
    Unknown,
    Unsupported,
)
from forebay.buffer.base.names import at_time, ulid_in
from forebay.buffer.consumer import Consumer
from forebay.buffer.coordinator import ApplyFailed, Durability, FlushFailed
from forebay.buffer.format.model import Metadata, NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.head import MAX_WRITERS
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicProducer
from forebay.buffer.write.accumulator import FLUSH_METADATA_BYTES, FLUSH_METADATA_BYTES_V1, MAX_METADATA_BYTES
from forebay.buffer.write.settings import ProducerLimits
from forebay.testing import Fault, FaultyStore, ManualClock
from forebay.testing.servers import SeaweedServer

NEVER = 10_000.0
"""A flush interval that no test waits for."""


def new_buffer(name: str, kind: Kind) -> MemoryStore:
    """A native buffer of either kind."""
    store = MemoryStore(f"memory://{name}-{kind.name}")
    kind.begin(store)
    return store


def read_all(store: MemoryStore) -> list[Batch]:
    return list(Consumer(store))


def entries_in(store: MemoryStore) -> list[bytes]:
    return [value for batch in read_all(store) for value in values_of(batch)]


def decompressed(batch: bytes | memoryview) -> bytes:
    """The batch's block."""
    return zstandard.decompress(bytes(batch[:-7]))


class NoUploads(FaultyStore):
    """Takes no batch while `away`."""

    away = True

    def put(self, key: str, data: Any) -> str:
        if self.away:
            raise Unavailable(f"{self.url}/{key}: away")
        return super().put(key, data)


# What goes in comes out


@OF_BYTES
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (b"one", [b"one"]),
        ([b"a", b"", b"c"], [b"a", b"", b"c"]),
        ((b"a", b"b"), [b"a", b"b"]),
        (pa.array([b"a", b"b"], pa.binary()), [b"a", b"b"]),
        (pa.array([b"x", b"a", b"b", b"y"], pa.large_binary()).slice(1, 2), [b"a", b"b"]),
        (pa.chunked_array([[b"a"], [], [b"b", b"c"]], pa.binary()), [b"a", b"b", b"c"]),
    ],
)
def test_entries_of_any_form_are_read_back(inner: MemoryStore, entries: Any, expected: list[bytes]) -> None:
    with ValueProducer(inner) as producer:
        producer.produce(entries).result()
    assert entries_in(inner) == expected


def test_mixed_calls_keep_their_order_within_a_batch(inner: MemoryStore) -> None:
    with ValueProducer(inner, flush_interval=NEVER) as producer:
        producer.produce([b"1", b"2"])
        producer.produce(pa.array([b"3", b"4"], pa.binary()))
        producer.produce(b"5")
        producer.produce(pa.chunked_array([[b"6"], [b"7"]], pa.large_binary()))
    (batch,) = read_all(inner)
    assert values_of(batch) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_list_may_be_changed_after_the_call(inner: MemoryStore) -> None:
    entries = [b"kept"]
    with ValueProducer(inner, flush_interval=NEVER) as producer:
        producer.produce(entries)
        entries[0] = b"changed"
        entries.append(b"added")
    assert entries_in(inner) == [b"kept"]


def test_metadata_covers_its_calls_entries_and_carries_their_time(inner: MemoryStore, profile: str) -> None:
    clock = ManualClock(now_ms=1_000)
    with ValueProducer(inner, flush_interval=NEVER, clock=clock) as producer:
        producer.produce([b"a", b"b"], b"web")
        producer.produce([b"c"], b"web")
        producer.produce([b"d"], b"app")
        clock.advance(0.5)
        producer.produce([b"e"], b"app")
    (batch,) = read_all(inner)
    # In version 2 equal metadata of one millisecond shares an item: nothing is lost by it.
    own_item = [Metadata(2, 1_000, b"web")] if profile == "opendata" else []
    assert batch.metadata == (
        Metadata(0, 1_000, b"web"), *own_item, Metadata(3, 1_000, b"app"), Metadata(4, 1_500, b"app"),
    )  # fmt: skip


def test_order_of_one_thread_is_the_order_read(inner: MemoryStore) -> None:
    expected = [str(i).encode() for i in range(3000)]
    with ValueProducer(inner, flush_size_bytes=200, limits=ProducerLimits(concurrent_uploads=4)) as producer:
        for entry in expected:
            producer.produce(entry)
    batches = read_all(inner)
    assert len(batches) > 50
    assert [value for batch in batches for value in values_of(batch)] == expected


def test_many_threads_lose_nothing_and_keep_their_own_order(inner: MemoryStore) -> None:
    with ValueProducer(inner, flush_interval=0.01) as producer:

        def send(name: int) -> None:
            for i in range(300):
                producer.produce(f"{name}:{i}".encode())

        threads = [threading.Thread(target=send, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = entries_in(inner)
    assert len(found) == 6 * 300
    for name in range(6):
        own = [entry for entry in found if entry.startswith(f"{name}:".encode())]
        assert own == [f"{name}:{i}".encode() for i in range(300)]


def test_opendata_layout_is_kept() -> None:
    inner = MemoryStore("memory://opendata-layout")
    layout: Any = {"profile": "opendata", "manifest_path": "ingest/manifest", "data_prefix": "ingest"}
    with ValueProducer(inner, **layout) as producer:
        producer.produce(b"x")
    keys = sorted(info.key for info in inner.list())
    assert len(keys) == 2
    assert keys[1] == "ingest/manifest"
    assert keys[0].startswith("ingest/01") or keys[0].startswith("ingest/0")
    assert [batch.location for batch in Consumer(inner, manifest_path="ingest/manifest")] == [keys[0]]
    assert decompressed(inner.get(keys[0]).data) == b"\x01\x00\x00\x00x"


def test_profile_opendata_stores_where_opendata_buffer_does_by_default() -> None:
    store = MemoryStore("memory://opendata-paths")
    with ValueProducer(store, profile="opendata") as producer:
        producer.produce(b"a").result(PATIENCE)
    keys = [found.key for found in store.list()]
    assert len(keys) == 2
    assert "ingest/manifest" in keys
    assert all(key.startswith("ingest/") for key in keys)
    assert [list(batch.entries) for batch in Consumer(store, manifest_path="ingest/manifest")] == [[b"a"]]


def test_paths_that_are_given_win_over_those_of_the_profile() -> None:
    store = MemoryStore("memory://opendata-own-paths")
    with ValueProducer(store, profile="opendata", manifest_path="m", data_prefix="d") as producer:
        producer.produce(b"a").result(PATIENCE)
    assert {found.key.partition("/")[0] for found in store.list()} == {"m", "d"}


def test_handle_tells_the_ingestion_time_that_readers_are_told(inner: MemoryStore) -> None:
    clock = ManualClock()
    with ValueProducer(inner, flush_interval=60, clock=clock) as producer:
        handle = producer.produce(b"a")
        producer.flush().wait(timeout=PATIENCE)
        assert handle.result(PATIENCE) is None
        (batch,) = Consumer(inner)
        assert handle.ingestion_time_ms == batch.metadata[0].ingestion_time_ms == clock.now_ms()
        assert handle.ingestion_time == datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


def test_handle_tells_no_ingestion_time_before_its_call_is_in_a_batch_or_if_it_never_will_be(
    inner: MemoryStore, profile: str
) -> None:
    if profile == "opendata":
        return  # it has no lasting writers
    with ValueProducer(inner, writer_id="w") as producer:
        producer.produce(b"a", number=1).result(PATIENCE)
    with ValueProducer(inner, writer_id="w") as producer:
        producer._channel.pause()
        handle = producer.produce(b"b", number=2)
        assert handle.ingestion_time is None
        producer._channel.resume()
        handle.result(PATIENCE)
        assert handle.ingestion_time is not None
        repeated = producer.produce(b"a", number=1)
        repeated.result(PATIENCE)
        assert repeated.ingestion_time is None


def test_batches_are_of_the_version_of_the_buffer() -> None:
    inner = MemoryStore("memory://batches-of-version-2")
    with ValueProducer(inner) as producer:
        producer.produce([b"ab", b"c"])
    old = opendata_buffer("batches-of-version-1")
    with Producer(old) as producer:
        producer.produce([b"ab", b"c"])
    found = [store.get(next(iter(Consumer(store))).location).data for store in (inner, old)]
    assert [bytes(data[-2:]) for data in found] == [b"\x02\x00", b"\x01\x00"]
    assert decompressed(found[0]) == b"abc\x02\x00\x00\x00\x01\x00\x00\x00"
    assert decompressed(found[1]) == b"\x02\x00\x00\x00ab\x01\x00\x00\x00c"


def test_buffer_that_another_made_of_version_1_takes_no_batch_that_its_readers_do_not_know() -> None:
    inner = MemoryStore("memory://made-of-version-1-meanwhile")
    with ValueProducer(inner, flush_interval=NEVER) as late:
        with ValueProducer(inner, profile="opendata", manifest_path="manifest") as first:
            first.produce(b"first")
        refused = late.produce(b"late")
        late.flush()
        with pytest.raises(Unsupported, match="open a new producer, and produce them again"):
            refused.result()
    assert entries_in(inner) == [b"first"]
    with ValueProducer(inner) as again:
        again.produce(b"late")
    assert entries_in(inner) == [b"first", b"late"]


# When a flush is due


def test_interval_flushes_without_being_asked(inner: MemoryStore) -> None:
    clock = ManualClock()
    with ValueProducer(inner, flush_interval=0.5, clock=clock) as producer:
        handle = producer.produce(b"x")
        handle.wait(Durability.APPLIED, timeout=PATIENCE)
        assert not handle.done()
        clock.advance(0.5)
        handle.wait(timeout=None)
        assert entries_in(inner) == [b"x"]


def test_size_flushes_without_being_asked(inner: MemoryStore) -> None:
    with ValueProducer(inner, flush_interval=NEVER, flush_size_bytes=1000) as producer:
        first = producer.produce(b"x" * 500)
        producer.produce(b"y" * 500).result()
        first.result(timeout=0)
        assert len(read_all(inner)) == 1


def test_much_metadata_flushes_however_few_the_entries(inner: MemoryStore, profile: str) -> None:
    much = FLUSH_METADATA_BYTES_V1 if profile == "opendata" else FLUSH_METADATA_BYTES
    with ValueProducer(inner, flush_interval=NEVER) as producer:
        producer.produce(b"x", b"m" * much).result()


def test_flush_makes_everything_before_it_durable(inner: MemoryStore) -> None:
    with ValueProducer(inner, flush_interval=NEVER) as producer:
        handles = [producer.produce(b"x") for _ in range(5)]
        assert producer.flush().result() == 5
        assert all(handle.done() for handle in handles)


def test_finished_batches_are_listed_by_one_append(inner: MemoryStore, profile: str) -> None:
    """Group commit: what was uploaded while an append was under way goes into the next one together."""
    store = FaultyStore(inner, {0: Fault.STALL}, only={"replace"})
    with ValueProducer(
        store, flush_interval=NEVER, flush_size_bytes=10, limits=ProducerLimits(concurrent_uploads=8)
    ) as producer:
        producer.produce(b"0" * 10)
        wait_for(lambda: store.calls["replace"])  # until the first append is under way
        others = [producer.produce(b"%d" % i * 10) for i in range(1, 8)]
        for handle in others:
            handle.wait(Durability.WRITTEN, timeout=PATIENCE)
        store.release()
    assert len(read_all(inner)) == 8
    registering = 0 if profile == "opendata" else 1
    assert store.calls["replace"] == 2 + registering


def test_empty_producer_writes_nothing() -> None:
    inner = MemoryStore("memory://empty-producer")
    with ValueProducer(inner) as producer:
        producer.flush().result()
    assert list(inner.list()) == []


# Handles


def test_handle_can_be_awaited(inner: MemoryStore) -> None:
    async def main() -> None:
        async with ValueProducer(inner, flush_interval=0.01) as producer:
            await asyncio.gather(*(producer.produce(b"%d" % i) for i in range(20)))
            assert len(entries_in(inner)) == 20
            await producer.flush()

    asyncio.run(main())


def test_written_comes_before_durable(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.STALL}, only={"replace"})
    with ValueProducer(store, flush_interval=0.01) as producer:
        handle = producer.produce(b"x")
        handle.wait(Durability.WRITTEN, timeout=PATIENCE)
        assert len(list(inner.list("data/"))) == 1
        assert not handle.done()
        store.release()
        handle.result()


# Bad input


@pytest.mark.parametrize("length", [2**31 - 15, 2**31 - 4, 2**31, 2**32 - 1, 2**32, 5 << 30])
@pytest.mark.parametrize("alone", [True, False])
def test_entry_longer_than_any_batch_can_hold_is_refused_at_the_call(alone: bool, length: int) -> None:
    entry = bytes(length)  # zeros that nobody looks at take no memory
    inner = MemoryStore(f"memory://too-long-{length}-{alone}")
    with ValueProducer(inner) as producer:
        for call in (producer.produce, producer.try_produce):
            with pytest.raises(InvalidInput, match="the most is"):
                call(entry if alone else [b"ok", entry])
    assert list(inner.list("data/")) == []


@OF_BYTES
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "no entries"),
        (pa.array([], pa.binary()), "no entries"),
        ("text", "must be bytes"),
        ([b"ok", "text"], "found str"),
        ([b"ok", None], "found NoneType"),
        ([bytearray(b"x")], "found bytearray"),
        (7, "not int"),
        (pa.array(["text"]), "cast it first"),
        (pa.array([b"a", None], pa.binary()), "1 of 2 entries are null"),
    ],
)
def test_entries_that_cannot_be_stored_are_refused_at_the_call(inner: MemoryStore, entries: Any, message: str) -> None:
    with ValueProducer(inner) as producer:
        for call in (producer.produce, producer.try_produce):
            with pytest.raises(InvalidInput, match=message):
                call(entries)
    assert list(inner.list("data/")) == []


@OF_BYTES
def test_call_too_large_for_a_batch_is_refused_before_anything_is_copied(inner: MemoryStore) -> None:
    one = b"x" * (64 << 20)
    with ValueProducer(inner) as producer, pytest.raises(InvalidInput, match="split them"):
        producer.produce([one] * 33)  # the same bytes 33 times: 2 GiB and some, of 64 MiB of memory


@OF_BYTES
@pytest.mark.parametrize("metadata", ["text", b"m" * (MAX_METADATA_BYTES + 1), None])
def test_metadata_that_cannot_be_stored_is_refused(inner: MemoryStore, metadata: Any) -> None:
    with ValueProducer(inner) as producer, pytest.raises(InvalidInput, match="metadata"):
        producer.produce(b"x", metadata)


@OF_BYTES
@pytest.mark.parametrize(
    "settings",
    [
        {"flush_interval": 0},
        {"flush_size_bytes": 0},
        {"compression": "gzip"},
        {"compression_level": 99},
        {"grace": 0},
        {"profile": "kafka"},
        {"data_prefix": "../elsewhere"},
        {"manifest_path": "/absolute"},
        {"manifest_path": "data"},
        {"data_prefix": "segments"},
        {"data_prefix": "cursors/etl"},
        {"flush_interval": "1"},
    ],
)
def test_settings_that_make_no_sense_are_refused(inner: MemoryStore, settings: Any) -> None:
    with pytest.raises(InvalidInput):
        ValueProducer(inner, **settings)


@pytest.mark.parametrize(
    "limits",
    [
        {"buffered_calls": 0},
        {"buffered_bytes": 0},
        {"concurrent_uploads": 0},
        {"backlog_bytes": 0},
        {"buffered_calls": 1.5},
        {"buffered_bytes": "1"},
        {"concurrent_uploads": None},
        {"backlog_bytes": True},
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: Any) -> None:
    with pytest.raises(InvalidInput, match=next(iter(limits))):
        ProducerLimits(**limits)


@pytest.mark.parametrize("kind", [Producer, TopicProducer])
def test_limits_of_another_type_are_refused(inner: MemoryStore, kind: Any) -> None:
    with pytest.raises(InvalidInput, match="limits must be ProducerLimits"):
        kind(inner, limits={"buffered_bytes": 100})


# Bounds


def stalled(inner: MemoryStore) -> FaultyStore:
    """A store whose uploads hang until released."""
    return FaultyStore(inner, dict.fromkeys(range(1000), Fault.STALL), only={"put"})


def test_byte_bound_refuses_what_does_not_fit_and_hands_it_back(inner: MemoryStore) -> None:
    store = stalled(inner)
    with ValueProducer(
        store,
        flush_size_bytes=1000,
        compression="none",  # else a batch counts less once it is encoded
        limits=ProducerLimits(buffered_bytes=3000),
        clock=ManualClock(),
    ) as producer:
        producer.produce(b"a" * 1000)
        producer.produce(b"b" * 1000)
        with pytest.raises(Backpressure) as refused:
            producer.try_produce([b"c" * 1000])
        assert refused.value.write == kind_in(inner).make_all([b"c" * 1000])
        assert 2000 < producer.buffered_bytes <= 3000
        store.release()
        producer.produce(b"c" * 1000, timeout=None).wait(timeout=None)
    assert entries_in(inner) == [b"a" * 1000, b"b" * 1000, b"c" * 1000]
    assert producer.buffered_bytes == 0


def test_produce_with_a_timeout_gives_up_and_hands_the_entries_back(inner: MemoryStore) -> None:
    store = stalled(inner)
    clock = ManualClock()
    limits = ProducerLimits(buffered_bytes=1500)
    with ValueProducer(store, limits=limits, compression="none", clock=clock) as producer:
        producer.produce(b"a" * 1000)
        errors: list[Timeout] = []

        def blocked() -> None:
            try:
                producer.produce(b"b" * 1000, timeout=5)
            except Timeout as error:
                errors.append(error)

        thread = threading.Thread(target=blocked)
        thread.start()
        while thread.is_alive():
            clock.advance(0.1)
        assert errors[0].write == kind_in(inner).make(b"b" * 1000)
        store.release()
    assert entries_in(inner) == [b"a" * 1000]


def test_call_larger_than_the_byte_bound_goes_in_alone(inner: MemoryStore) -> None:
    with ValueProducer(inner, limits=ProducerLimits(buffered_bytes=100)) as producer:
        producer.produce(b"x" * 10_000).result()
        producer.produce(b"y" * 10_000).result()
    assert len(read_all(inner)) == 2


# Failures


def test_batch_that_cannot_be_stored_fails_its_own_calls_only(inner: MemoryStore) -> None:
    store = NoUploads(inner)
    with ValueProducer(
        store, flush_interval=NEVER, limits=ProducerLimits(concurrent_uploads=1), clock=ManualClock()
    ) as producer:
        results = []
        for i in range(3):
            store.away = i == 1
            handle = producer.produce(b"%d" % i)
            with suppress(Unavailable):
                producer.flush().result()
            results.append(handle)
        results[0].result(timeout=0)
        with pytest.raises(Unavailable):
            results[1].result(timeout=0)
        results[2].result(timeout=0)
    assert entries_in(inner) == [b"0", b"2"]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.LATE, Fault.DROP, Fault.BUSY])
def test_append_with_a_bad_answer_lists_the_batch_once(inner: MemoryStore, fault: Fault) -> None:
    for call in range(2):  # in version 2 the first write registers the writer
        store = FaultyStore(inner, {call: fault}, only={"replace"})
        with ValueProducer(store) as producer:
            producer.produce(b"%d" % call).result()
        store.land_late_requests()
    assert entries_in(inner) == [b"0", b"1"]


def opendata_buffer(name: str) -> MemoryStore:
    store = MemoryStore(f"memory://{name}")
    store.create("manifest", Manifest.empty("new").to_bytes())
    return store


def test_append_that_cannot_be_found_out_is_repeated_under_a_new_name_in_version_1() -> None:
    """It forgets what was consumed: at least once is what it can promise."""
    inner = opendata_buffer("repeated-append")

    class ConsumedAtOnce(FaultyStore):
        def get(self, key: str) -> Any:
            if self.calls["replace"] == 1 and not seen:
                consumer = Consumer(inner)
                for batch in consumer:
                    seen.append(batch.location)
                    consumer.ack_through(batch.sequence)
            return super().get(key)

    seen: list[str] = []
    store = ConsumedAtOnce(inner, {0: Fault.LOSE_ANSWER}, only={"replace"})
    with ValueProducer(store) as producer:
        producer.produce(b"x").result()
    (batch,) = read_all(inner)
    assert list(batch.entries) == [b"x"]
    assert [batch.location] != seen


def test_append_in_doubt_that_cannot_be_repeated_is_unknown_and_not_failed() -> None:
    """It may have been read already: the second try's failure says nothing of the first."""
    inner = opendata_buffer("repeated-in-vain")

    class ConsumedAtOnce(FaultyStore):
        def get(self, key: str) -> Any:
            if self.calls["replace"] == 1:
                consumer = Consumer(inner)
                consumer.next_descriptors(9)
                consumer.ack_through(0)
                self._choose = lambda _number: Fault.FAIL
            return super().get(key)

    store = ConsumedAtOnce(inner, {0: Fault.LOSE_ANSWER}, only={"replace", "put"})
    store._choose = lambda number: Fault.LOSE_ANSWER if number == 1 else None  # number 0 is the upload
    producer = ValueProducer(store, clock=ManualClock())
    handle = producer.produce(b"x")
    with pytest.raises(Unknown, match="appending it again failed"):
        producer.close()
    with pytest.raises(Unknown):
        handle.result()


def test_batch_swept_before_it_was_listed_is_stored_again_in_version_1() -> None:
    """The collector took it for an orphan: the append came after half the grace period."""
    clock = ManualClock()
    inner = opendata_buffer("swept-early")

    class SleepsAndIsSwept(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            clock.advance(400)
            inner.delete([info.key for info in inner.list("data/")])
            return super().replace(key, data, version)

    with Producer(SleepsAndIsSwept(inner), grace=600, clock=clock) as producer:
        handle = producer.produce(b"x")
        producer.flush()
        handle.result()
    assert entries_in(inner) == [b"x"]


def test_batch_that_is_listed_and_cannot_be_verified_in_version_1_is_unknown_and_not_failed() -> None:
    """Found by the simulation: it was told as unavailable, which says that it is not there."""
    clock = ManualClock()
    inner = opendata_buffer("not-verified")

    class SleepsAndIsOutOfReach(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            clock.advance(400)
            return super().replace(key, data, version)

        def create(self, key: str, data: Any) -> Any:
            raise Unavailable(f"{key}: the store is out of reach")

    producer = Producer(SleepsAndIsOutOfReach(inner), grace=600, clock=clock)
    handle = producer.produce(b"x")
    with pytest.raises(Unknown, match="out of reach"):
        producer.close()
    with pytest.raises(Unknown):
        handle.result(timeout=0)
    assert entries_in(inner) == [b"x"]


def test_batch_below_the_collectors_floor_is_stored_again_above_it(kind: Kind) -> None:
    """However far the producer's clock is behind."""
    inner = MemoryStore(f"memory://below-floor-{kind.name}")
    floor = at_time(2**47)
    inner.create("manifest", Head(buffer_id="b" * 32, gc_floor=floor).to_bytes())
    kind.begin(inner)
    with ValueProducer(inner, clock=ManualClock(now_ms=1_000)) as producer:
        producer.produce([b"a", b"b"])
    (batch,) = read_all(inner)
    assert values_of(batch) == [b"a", b"b"]
    assert (ulid_in(batch.location) or "") > floor


def test_batches_carry_facts_and_a_checksum_in_version_2() -> None:
    inner = MemoryStore("memory://facts")
    clock = ManualClock(now_ms=5_000)
    with ValueProducer(inner, flush_interval=NEVER, clock=clock) as producer:
        producer.produce([b"a", b"bcd"])
        clock.advance(2)
        producer.produce(b"e")
    (batch,) = read_all(inner)
    facts = batch.descriptor.facts
    assert facts is not None
    assert (facts.records, facts.raw_bytes, facts.object_bytes) == (3, 3 * 4 + 5, batch.size)
    assert (facts.first_time_ms, facts.last_time_ms, batch.descriptor.base_record) == (5_000, 7_000, 0)

    damaged = bytearray(inner.get(batch.location).data)
    damaged[0] ^= 1
    inner.put(batch.location, damaged)
    with pytest.raises(Corrupt, match=r"expected \d+ bytes with CRC32C [0-9a-f]{8}, found"):
        read_all(inner)


# Memory and bounds


def test_batch_that_memory_is_too_short_for_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore("memory://short-of-memory")
    with ValueProducer(inner, flush_interval=NEVER, clock=ManualClock()) as producer:
        with monkeypatch.context() as short:
            short.setattr("forebay.buffer.write.accumulator.encode_blocks", refuse_memory)
            lost = producer.produce(b"lost")
            with pytest.raises(Unavailable, match="memory ran short"):
                producer.flush().result()
        with pytest.raises(Unavailable):
            lost.result()
        producer.produce(b"next")
    assert entries_in(inner) == [b"next"]


@pytest.mark.parametrize("flush_size_bytes", [4 << 10, 2**62])
def test_no_batch_is_larger_than_readers_take(monkeypatch: pytest.MonkeyPatch, flush_size_bytes: int) -> None:
    monkeypatch.setattr("forebay.buffer.write.writer._MOST_FLUSHED", 2 << 10)
    inner = MemoryStore(f"memory://large-batches-{flush_size_bytes}")
    settings: dict[str, Any] = {"flush_size_bytes": flush_size_bytes, "flush_interval": NEVER, "clock": ManualClock()}
    with ValueProducer(inner, **settings) as producer:
        for _ in range(8):
            producer.produce(b"x" * 1000).wait(durability=Durability.APPLIED)
    assert [len(batch) for batch in read_all(inner)] == [3, 3, 2]


def test_batch_that_no_reader_would_take_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.buffer.write.upload.DEFAULT_MAX_RAW_BYTES", 100)
    inner = MemoryStore("memory://unreadable")
    with ValueProducer(inner, flush_interval=NEVER, clock=ManualClock()) as producer:
        producer.produce(b"x" * 97)
        with pytest.raises(InvalidInput, match="at most 100"):
            producer.flush().result()
        producer.produce(b"y" * 96)
    assert entries_in(inner) == [b"y" * 96]


# Lasting writers


def numbered(store: Any, **settings: Any) -> Producer:
    return ValueProducer(store, writer_id="orders", flush_interval=NEVER, clock=ManualClock(), **settings)


def test_lasting_writer_that_starts_again_drops_what_is_durable(kind: Kind) -> None:
    inner = new_buffer("lasting", kind)
    with numbered(inner) as producer:
        assert producer.last_number is None
        for number in (1, 2, 3):
            producer.produce(b"%d" % number, number=number)
    with numbered(inner) as producer:
        assert producer.last_number == 3
        handles = [producer.produce(b"%d" % number, number=number) for number in (2, 3, 4)]
        producer.flush()
        for handle in handles:
            handle.result()
    with numbered(inner) as producer:
        producer.produce(b"3", number=3)  # nothing but repeats: nothing is written
        writes = Queue(inner).read()
    assert entries_in(inner) == [b"1", b"2", b"3", b"4"]
    assert Queue(inner).read().next_sequence == writes.next_sequence


def test_numbered_call_that_was_refused_may_be_repeated_with_its_number(kind: Kind) -> None:
    store = FaultyStore(new_buffer("numbered-refused", kind), {0: Fault.STALL}, only={"put"})
    with ValueProducer(
        store, writer_id="orders", flush_interval=0.01, limits=ProducerLimits(buffered_bytes=400), compression="none"
    ) as producer:
        first = producer.produce(b"1" * 300, number=1)
        with pytest.raises(Timeout):
            producer.produce(b"2" * 300, number=2, timeout=0.001)
        with pytest.raises(Backpressure):
            producer.try_produce(b"2" * 300, number=2)
        store.release()
        first.result()
        producer.produce(b"2" * 300, number=2, timeout=PATIENCE)
        with pytest.raises(InvalidInput, match="numbers must grow"):
            producer.produce(b"2" * 300, number=2)
    assert [value[:1] for batch in Consumer(store) for value in values_of(batch)] == [b"1", b"2"]


def test_call_that_could_not_be_stored_keeps_later_numbers_out_too(kind: Kind) -> None:
    """A later number in the manifest would say that everything before it is durable."""
    inner = new_buffer("lasting-gap", kind)
    store = NoUploads(inner)
    producer = numbered(store)
    lost = producer.produce(b"1", number=1)
    with pytest.raises(Unavailable):
        producer.flush().result()
    store.away = False
    later = producer.produce(b"2", number=2)
    with pytest.raises(Closed, match="repeat from that call on"):
        producer.flush().result()
    for handle in (lost, later):
        with pytest.raises((Unavailable, Closed)):
            handle.result()
    producer.close()
    with numbered(inner) as again:
        assert again.last_number is None
        again.produce(b"1", number=1)
        again.produce(b"2", number=2)
    assert entries_in(inner) == [b"1", b"2"]


@pytest.mark.parametrize("alone", [True, False])
def test_call_that_memory_is_too_short_for_keeps_later_numbers_out_too(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    inner = MemoryStore(f"memory://lasting-short-{alone}")
    producer = numbered(inner)
    handles = []
    if not alone:
        handles.append(producer.produce(b"1", number=1))
        handles[0].wait(durability=Durability.APPLIED)
    with monkeypatch.context() as short:
        short.setattr("forebay.buffer.write.accumulator.Blocks.add_small", refuse_memory)
        lost = producer.produce(b"2", number=2)
        with pytest.raises(ApplyFailed):
            lost.wait(durability=Durability.APPLIED)
    handles.append(producer.produce(b"3", number=3))
    with pytest.raises(Unavailable, match="memory ran short"):
        producer.flush().result()
    for handle in handles:
        with pytest.raises(Unavailable):
            handle.result()
    producer.close()
    assert numbered(inner).last_number is None
    assert entries_in(inner) == []


def refuse_memory(*_args: object, **_settings: object) -> None:
    raise MemoryError


def test_numbers_belong_to_a_lasting_writer_and_grow() -> None:
    inner = MemoryStore("memory://lasting-misused")
    with ValueProducer(inner) as producer, pytest.raises(InvalidInput, match="writer_id"):
        producer.produce(b"x", number=1)
    with numbered(inner) as producer:
        with pytest.raises(InvalidInput, match="from 1"):
            producer.produce(b"x")
        producer.produce(b"x", number=5)
        with pytest.raises(InvalidInput, match="must grow"):
            producer.produce(b"x", number=5)
    with pytest.raises(Unsupported, match="version 1"):
        numbered(opendata_buffer("lasting-opendata"))


def test_lasting_writer_is_remembered_however_many_others_come_and_go() -> None:
    inner = MemoryStore("memory://lasting-among-many")
    with numbered(inner) as producer:
        producer.produce(b"1", number=1)
    for number in range(MAX_WRITERS + 10):
        Queue(inner).append([NewBatch(f"data/{number}")])
    with numbered(inner) as producer:
        assert producer.last_number == 1


@pytest.mark.parametrize("number", [1.0, True, "1", 0, -1, 2**70])
def test_number_that_is_no_whole_number_is_refused_before_it_can_spoil_the_manifest(number: Any) -> None:
    inner = MemoryStore("memory://odd-numbers")
    with numbered(inner) as producer, pytest.raises(InvalidInput, match="whole number"):
        producer.produce(b"x", number=number)
    with numbered(inner) as producer:
        producer.produce(b"x", number=1)


@pytest.mark.parametrize("writer_id", [5, "", "a/b", "\ud800", "x" * 101])
def test_writer_id_that_is_no_name_is_refused(writer_id: Any) -> None:
    with pytest.raises(InvalidInput, match="writer_id"):
        Producer(MemoryStore("memory://odd-writers"), writer_id=writer_id)


def test_much_metadata_is_sealed_away_from_the_head(kind: Kind) -> None:
    """Every append writes the head: it must not carry what nobody appends."""
    inner = new_buffer("heavy-metadata", kind)
    with ValueProducer(inner, flush_interval=NEVER) as producer:
        for _ in range(8):
            producer.produce(b"x", b"m" * MAX_METADATA_BYTES).result()
    assert len(inner.get("manifest").data) < 3 * MAX_METADATA_BYTES
    assert len(read_all(inner)) == 8


def test_backlog_over_its_bound_refuses_until_it_is_trimmed(kind: Kind) -> None:
    inner = new_buffer("backlog", kind)
    clock = ManualClock()
    with ValueProducer(inner, limits=ProducerLimits(backlog_bytes=100), compression="none", clock=clock) as producer:
        producer.produce(b"x" * 200)
        producer.flush().result()
        clock.advance(2)
        with pytest.raises(Backpressure, match="let its readers") as refused:
            producer.produce(b"y")
        assert refused.value.write == kind.make(b"y")
        Queue(inner).change_head(lambda head: head.trim(1, {})._next(), lambda _head: False)
        clock.advance(2)
        with pytest.raises(Backpressure):
            producer.try_produce(b"y")  # refused without waiting for the store, and looked at again behind its back
        while True:
            with suppress(Backpressure):
                producer.produce(b"y")
                break
    assert entries_in(inner) == [b"y"]


def test_unreachable_store_fails_the_handles_and_hangs_nobody(inner: MemoryStore, profile: str) -> None:
    reads = 2 if profile == "rows" else 1  # the manifest, and its schema
    store = FaultyStore(inner, dict.fromkeys(range(reads, 10**4), Fault.FAIL))
    producer = ValueProducer(store, clock=ManualClock(), flush_interval=NEVER)
    handle = producer.produce(b"x")
    with pytest.raises(Unavailable):
        producer.flush().result()
    with pytest.raises(Unavailable):
        handle.result()
    producer.close()


def test_lost_append_reports_unknown(inner: MemoryStore) -> None:
    store = FaultyStore(inner, dict.fromkeys(range(10**4), Fault.DROP), only={"replace"})
    producer = ValueProducer(store, clock=ManualClock())
    handle = producer.produce(b"x")
    with pytest.raises(Unknown):
        producer.close()
    with pytest.raises(Unknown):
        handle.result()


# Closing


def test_close_makes_everything_durable_and_may_be_repeated(inner: MemoryStore) -> None:
    producer = ValueProducer(inner, flush_interval=NEVER)
    handle = producer.produce(b"x")
    producer.close()
    producer.close()
    handle.result(timeout=0)
    for call in (lambda: producer.produce(b"y"), lambda: producer.try_produce(b"y"), producer.flush):
        with pytest.raises(Closed):
            call()
    assert entries_in(inner) == [b"x"]


def test_error_in_the_with_block_is_not_hidden_by_a_failing_close(inner: MemoryStore) -> None:
    store = FaultyStore(inner, dict.fromkeys(range(10**4), Fault.FAIL), only={"put"})
    producer = ValueProducer(store, clock=ManualClock())
    producer.produce(b"x")
    with pytest.raises(RuntimeError, match="the block's own"), producer:
        raise RuntimeError("the block's own")


def test_close_raises_what_was_not_stored(inner: MemoryStore) -> None:
    store = FaultyStore(inner, dict.fromkeys(range(10**4), Fault.FAIL), only={"put"})
    producer = ValueProducer(store, clock=ManualClock())
    producer.produce(b"x")
    with pytest.raises(Unavailable):
        producer.close()
    producer.close()


def test_forgotten_close_warns_and_still_stores(inner: MemoryStore) -> None:
    producer = ValueProducer(inner, flush_interval=NEVER)
    handle = producer.produce(b"x")
    with pytest.warns(ResourceWarning, match="was not closed"):
        del producer
        gc.collect()
    handle.result()
    assert entries_in(inner) == [b"x"]


def test_interpreter_exit_stores_what_a_forgotten_close_left(tmp_path: Any) -> None:
    url = f"file://{tmp_path}/buffer"
    program = f"import forebay; kept = forebay.Producer({url!r}, flush_interval=1000); kept.produce(b'x')"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [list(batch.entries) for batch in Consumer(url)] == [[b"x"]]


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_interpreter_exit_stores_what_a_dropped_producer_left(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/buffer"
    program = f"""
import forebay
def send():
    producer = forebay.Producer({url!r}, flush_interval=1000)
    producer.produce(b"x")
send()
"""
    assert run_program(program).returncode == 0
    assert [list(batch.entries) for batch in Consumer(url)] == [[b"x"]]


def test_interpreter_exit_does_not_hang_if_the_entries_cannot_be_stored(tmp_path: Path) -> None:
    program = f"""
import forebay, pathlib
producer = forebay.Producer("file://{tmp_path}/buffer", flush_interval=1000)
pathlib.Path("{tmp_path}/buffer").mkdir()
pathlib.Path("{tmp_path}/buffer/data").write_bytes(b"a file where the folder should be")
producer.produce(b"x")
"""
    done = run_program(program)
    assert done.returncode == 0
    assert "could not be stored" in done.stderr


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_interpreter_exit_stores_on_s3_too(weed: SeaweedServer, client: str) -> None:
    """The client library's own exit handlers must not come first."""
    url, options = f"s3://tests/exit-{client}", {**weed.storage_options, "client": client}
    program = f"""
import forebay
earlier = forebay.Producer("memory://earlier")
kept = forebay.Producer({url!r}, flush_interval=1000, storage_options={options!r})
kept.produce(b"x")
"""
    done = run_program(program)
    assert done.returncode == 0, done.stderr
    assert [list(batch.entries) for batch in Consumer(url, storage_options=options)] == [[b"x"]], done.stderr


def test_forked_child_gets_an_error_and_leaves_the_parents_producer_alone(inner: MemoryStore) -> None:
    with ValueProducer(inner, flush_interval=NEVER) as producer:
        producer.produce(b"parent")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                producer.close()
                producer.produce(b"child")
            except Closed as error:
                status = 0 if "open a producer here" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert entries_in(inner) == [b"parent"]


def test_forked_child_ends_without_a_word_about_its_parents_producers(tmp_path: Path) -> None:
    program = f"""
import os, sys, warnings, forebay
warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, os.fork warns of threads
kept = forebay.Producer("file://{tmp_path}/buffer")
kept.produce(b"x").result()
child = os.fork()
if child:
    os.waitpid(child, 0)
    kept.close()
"""
    done = run_program(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_store_that_cannot_be_read_is_found_out_at_once(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.FAIL})
    with pytest.raises(Unavailable):
        ValueProducer(store)
    assert Queue(inner).read().count == 0


def test_error_that_stops_a_producer_leaves_open_what_became_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("forebay.buffer.write.upload.BatchUploader.flush_storage", break_down)
    producer = Producer("memory://broken-down", flush_interval=0.001)
    with pytest.raises(Unknown) as told:
        producer.produce(b"x").result()
    assert isinstance(told.value, FlushFailed)
    with pytest.raises(FlushFailed):
        producer.close()
