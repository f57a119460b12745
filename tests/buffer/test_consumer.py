"""The consumer's contract, case by case of reference 002: rfcs/0004."""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue as Queued
from typing import Any

import pytest
from kinds import OF_BYTES, append_all, kind_in, values_of
from msgspec import structs
from patience import PATIENCE

from forebay.buffer.base.errors import Closed, Corrupt, Fenced, InvalidInput, NotFound, Unavailable
from forebay.buffer.consumer import Collect, Consumer, Lag
from forebay.buffer.format.model import BatchDescriptor, Metadata
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.acks import ACKS_PER_WRITE
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import CollectionReport, Collector
from forebay.testing import Fault, FaultyStore, ManualClock


def append(
    store: MemoryStore, name: str, entries: list[bytes] | None = None, metadata: tuple[Metadata, ...] = ()
) -> None:
    values = [name.encode()] if entries is None else entries
    times = (metadata[0].ingestion_time_ms, metadata[-1].ingestion_time_ms) if metadata else ()
    batch = kind_in(store).upload(store, f"data/{name}.batch", values, *times)
    append_all(_as_it_is(store), [structs.replace(batch, metadata=metadata)])


def _as_it_is(store: MemoryStore) -> Queue:
    """A writer that keeps the version that is there, though only a reader was there before."""
    return Queue(store, profile="opendata" if isinstance(Queue(store).read(), Manifest) else "native")


def append_many(store: MemoryStore, count: int) -> None:
    kind = kind_in(store)
    append_all(_as_it_is(store), [kind.upload(store, f"data/{i}.batch", [str(i).encode()]) for i in range(count)])


def waiting(store: MemoryStore) -> list[int]:
    queue = Queue(store)
    state = queue.read()
    first = state.next_sequence - state.waiting
    return [found.sequence for found in queue.descriptors(first, 10**6, state=state)]


def sequences(found: list[BatchDescriptor]) -> list[int]:
    return [descriptor.sequence for descriptor in found]


# Reading


def test_batch_is_read_with_its_entries_and_location(inner: MemoryStore) -> None:
    append(inner, "one", [b"data1", b"data2"])
    batch = Consumer(inner).next_batch()
    assert batch is not None
    assert values_of(batch) == [b"data1", b"data2"]
    assert (batch.sequence, batch.location, len(batch)) == (0, "data/one.batch", 2)
    assert batch.size == len(inner.get("data/one.batch").data)


def test_batch_carries_its_metadata(inner: MemoryStore) -> None:
    metadata = (Metadata(0, 1_700_000_000_000, b'{"topic":"events"}'),)
    append(inner, "one", metadata=metadata)
    batch = Consumer(inner).next_batch()
    assert batch is not None
    assert batch.metadata == metadata


def test_empty_buffer_gives_none(inner: MemoryStore) -> None:
    assert Consumer(inner).next_batch() is None


def test_batches_come_in_order_and_then_none(inner: MemoryStore) -> None:
    append_many(inner, 5)
    consumer = Consumer(inner)
    assert [batch.sequence for batch in consumer] == [0, 1, 2, 3, 4]
    assert consumer.next_batch() is None
    append(inner, "later")
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 5


def test_reading_goes_on_after_the_last_ack(inner: MemoryStore) -> None:
    append_many(inner, 3)
    consumer = Consumer(inner)
    consumer.next_batch()
    consumer.ack(0)
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 1


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.OVERLOADED])
def test_failed_fetch_leaves_the_position_where_it_was(inner: MemoryStore, fault: Fault) -> None:
    append_many(inner, 2)
    # get 0 and 1 are the claim's read and the first look at the manifest; get 2 is the batch.
    consumer = Consumer(FaultyStore(inner, {1: fault}, only={"get"}), retry_timeout=0)
    with pytest.raises(Unavailable):
        consumer.next_batch()
    assert [batch.sequence for batch in consumer] == [0, 1]


def test_missing_object_is_not_found_and_says_what_to_check(inner: MemoryStore) -> None:
    append_many(inner, 2)
    inner.delete(["data/0.batch"])
    consumer = Consumer(inner)
    for _ in range(2):
        with pytest.raises(NotFound, match=r"data/0\.batch.*may have been swept"):
            consumer.next_batch()


def test_damaged_object_is_corrupt_and_named(inner: MemoryStore) -> None:
    append_many(inner, 1)
    inner.put("data/0.batch", inner.get("data/0.batch").data[:-1])
    with pytest.raises(Corrupt, match=r"data/0\.batch"):
        Consumer(inner).next_batch()


def test_next_batch_equals_descriptor_and_fetch(inner: MemoryStore) -> None:
    append(inner, "one", [b"a", b"b"], (Metadata(0, 5, b"m"),))
    direct = Consumer(inner).next_batch()
    consumer = Consumer(inner)
    (descriptor,) = consumer.next_descriptors(1)
    fetched = consumer.fetch_descriptor(descriptor)
    assert direct is not None
    assert direct.descriptor == fetched.descriptor == descriptor
    assert list(direct.entries) == list(fetched.entries)


# Descriptors


def test_asking_for_no_descriptor_reads_nothing(inner: MemoryStore) -> None:
    append_many(inner, 2)
    store = FaultyStore(inner)
    consumer = Consumer(store)
    store.calls.clear()
    assert consumer.next_descriptors(0) == []
    assert not store.calls
    with pytest.raises(InvalidInput):
        consumer.next_descriptors(-1)


def test_descriptors_are_a_contiguous_run_from_one_read_of_the_manifest(inner: MemoryStore) -> None:
    append_many(inner, 5)
    store = FaultyStore(inner)
    consumer = Consumer(store)
    store.calls.clear()
    assert sequences(consumer.next_descriptors(3)) == [0, 1, 2]
    assert sequences(consumer.next_descriptors(9)) == [3, 4]
    assert consumer.next_descriptors(9) == []
    assert store.calls == {"get_if_changed": 3}


def test_descriptor_is_handed_out_once_by_one_consumer_and_again_by_the_next(inner: MemoryStore) -> None:
    append_many(inner, 3)
    first = Consumer(inner)
    assert sequences(first.next_descriptors(3)) == [0, 1, 2]
    assert first.next_descriptors(3) == []
    assert first.next_batch() is None
    first.ack_through(0)
    assert sequences(Consumer(inner).next_descriptors(3)) == [1, 2]


def test_next_batch_and_next_descriptors_share_one_position(inner: MemoryStore) -> None:
    append_many(inner, 4)
    consumer = Consumer(inner)
    assert sequences(consumer.next_descriptors(2)) == [0, 1]
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 2
    assert sequences(consumer.next_descriptors(2)) == [3]


def test_fetch_handle_fetches_what_the_consumer_would_even_after_a_pickle(inner: MemoryStore) -> None:
    append(inner, "one", [b"a", b"b"])
    consumer = Consumer(inner)
    (descriptor,) = consumer.next_descriptors(1)
    handle = pickle.loads(pickle.dumps(consumer.fetch_handle()))
    assert values_of(handle.fetch(pickle.loads(pickle.dumps(descriptor)))) == [b"a", b"b"]
    assert bytes(handle.fetch_raw(descriptor)) == inner.get(descriptor.location).data


def test_workers_fetch_while_the_owner_acks(inner: MemoryStore) -> None:
    append_many(inner, 40)
    consumer = Consumer(inner)
    descriptors = consumer.next_descriptors(40)
    with ThreadPoolExecutor(8) as workers:
        fetched = workers.map(consumer.fetch_handle().fetch, descriptors)
        for batch in fetched:
            assert values_of(batch) == [str(batch.sequence).encode()]
            consumer.ack_through(batch.sequence)
    assert waiting(inner) == []


def test_threads_that_share_a_consumer_never_get_the_same_batch(inner: MemoryStore) -> None:
    append_many(inner, 60)
    consumer = Consumer(inner)

    def drain() -> list[int]:
        found = []
        while (batch := consumer.next_batch()) is not None:
            found.append(batch.sequence)
            found.extend(sequences(consumer.next_descriptors(2)))
        return found

    with ThreadPoolExecutor(4) as threads:
        found = [sequence for future in [threads.submit(drain) for _ in range(4)] for sequence in future.result()]
    assert sorted(found) == list(range(60))


# Acknowledging


def test_first_ack_is_the_first_sequence_handed_out_and_the_next_follow_in_order(inner: MemoryStore) -> None:
    append_many(inner, 4)
    consumer = Consumer(inner)
    with pytest.raises(InvalidInput, match="never handed out"):
        consumer.ack(0)
    consumer.next_descriptors(3)
    with pytest.raises(InvalidInput, match="batch 0 must be acknowledged next"):
        consumer.ack(1)
    consumer.ack(0)
    for wrong in (0, 2):
        with pytest.raises(InvalidInput, match="batch 1 must be acknowledged next"):
            consumer.ack(wrong)
    with pytest.raises(InvalidInput, match="never handed out"):
        consumer.ack(3)


def test_acks_write_the_manifest_once_in_a_hundred(inner: MemoryStore) -> None:
    append_many(inner, 2 * ACKS_PER_WRITE + 50)
    consumer = Consumer(inner)
    consumer.next_descriptors(10**6)
    for sequence in range(ACKS_PER_WRITE - 1):
        consumer.ack(sequence)
    assert waiting(inner)[0] == 0
    consumer.ack(ACKS_PER_WRITE - 1)
    assert waiting(inner)[0] == ACKS_PER_WRITE
    for sequence in range(ACKS_PER_WRITE, 2 * ACKS_PER_WRITE + 10):
        consumer.ack(sequence)
    assert waiting(inner)[0] == 2 * ACKS_PER_WRITE


def test_ack_whose_write_failed_can_be_repeated(inner: MemoryStore) -> None:
    append_many(inner, ACKS_PER_WRITE)
    store = FaultyStore(inner)
    consumer = Consumer(store, clock=ManualClock())
    consumer.next_descriptors(10**6)
    for sequence in range(ACKS_PER_WRITE - 1):
        consumer.ack(sequence)
    store._choose = lambda _number: Fault.FAIL
    with pytest.raises(Unavailable):
        consumer.ack(ACKS_PER_WRITE - 1)
    store._choose = lambda _number: None
    consumer.ack(ACKS_PER_WRITE - 1)
    assert waiting(inner) == []


def test_flush_and_close_write_pending_acks(inner: MemoryStore) -> None:
    append_many(inner, 4)
    consumer = Consumer(inner)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consumer.flush()
    assert waiting(inner) == [1, 2, 3]
    consumer.ack(1)
    consumer.close()
    consumer.close()
    assert waiting(inner) == [2, 3]


def test_closed_consumer_says_so(inner: MemoryStore) -> None:
    append_many(inner, 1)
    with Consumer(inner) as consumer:
        consumer.next_descriptors(1)
    for call in (
        consumer.next_batch,
        lambda: consumer.next_descriptors(1),
        lambda: consumer.next_descriptors(0),
        lambda: consumer.ack(0),
        lambda: consumer.ack_through(0),
        consumer.flush,
        consumer.lag,
        consumer.batches,
    ):
        with pytest.raises(Closed, match="open a new one"):
            call()


def test_ack_through_moves_the_frontier_in_one_durable_call(inner: MemoryStore) -> None:
    append_many(inner, 5)
    consumer = Consumer(inner)
    consumer.next_descriptors(5)
    consumer.ack_through(3)
    assert waiting(inner) == [4]
    for sequence in (2, 3):
        with pytest.raises(InvalidInput, match="acknowledged"):
            consumer.ack_through(sequence)
    consumer.ack(4)


def test_ack_through_that_could_not_be_written_moves_nothing_and_can_be_repeated(inner: MemoryStore) -> None:
    class Down(FaultyStore):
        is_down = False

        def next_fault(self, kind: str) -> Fault | None:
            return Fault.FAIL if self.is_down else super().next_fault(kind)

    append_many(inner, 3)
    store = Down(inner)
    consumer = Consumer(store, clock=ManualClock())
    consumer.next_descriptors(3)
    store.is_down = True
    with pytest.raises(Unavailable):
        consumer.ack_through(1)
    assert "acknowledged through None" in repr(consumer)
    store.is_down = False
    assert waiting(inner) == [0, 1, 2]
    consumer.ack_through(1)
    assert waiting(inner) == [2]


def test_ack_through_past_anything_handed_out_is_refused(inner: MemoryStore) -> None:
    append_many(inner, 5)
    consumer = Consumer(inner)
    consumer.next_descriptors(2)
    with pytest.raises(InvalidInput, match="never handed out"):
        consumer.ack_through(2)
    assert waiting(inner) == [0, 1, 2, 3, 4]


# Opening, resuming, fencing


def test_none_starts_at_the_oldest_batch_waiting(inner: MemoryStore) -> None:
    append_many(inner, 3)
    first = Consumer(inner)
    first.next_descriptors(1)
    first.ack_through(0)
    assert sequences(Consumer(inner).next_descriptors(9)) == [1, 2]


def test_last_acked_resumes_after_it_and_drops_what_is_at_or_below(inner: MemoryStore) -> None:
    append_many(inner, 5)
    consumer = Consumer(inner, last_acked=2)
    assert waiting(inner) == [3, 4]
    assert sequences(consumer.next_descriptors(9)) == [3, 4]
    consumer.ack(3)


def test_last_acked_may_lie_beyond_what_exists_yet(inner: MemoryStore) -> None:
    append_many(inner, 2)
    consumer = Consumer(inner, last_acked=2)
    assert consumer.next_batch() is None
    append(inner, "two")
    append(inner, "three")
    assert sequences(consumer.next_descriptors(9)) == [3]
    consumer.ack(3)


def test_last_acked_below_what_is_left_starts_at_the_oldest(inner: MemoryStore) -> None:
    append_many(inner, 5)
    Consumer(inner, last_acked=3)
    consumer = Consumer(inner, last_acked=1)
    assert sequences(consumer.next_descriptors(9)) == [4]
    consumer.ack(4)


def test_opening_fences_the_consumer_before_which_changes_nothing_more(inner: MemoryStore) -> None:
    append_many(inner, 3)
    old = Consumer(inner)
    old.next_descriptors(2)
    old.ack(0)
    new = Consumer(inner)
    before = inner.get("manifest")

    for call in (
        old.next_batch,
        lambda: old.next_descriptors(1),
        lambda: old.ack_through(1),
        old.flush,
        old.close,
    ):
        with pytest.raises(Fenced, match="must stop"):
            call()

    assert inner.get("manifest") == before
    assert sequences(new.next_descriptors(9)) == [0, 1, 2]
    old.close()


def test_fenced_consumer_still_fetches_what_it_was_handed(inner: MemoryStore) -> None:
    append_many(inner, 1)
    old = Consumer(inner)
    (descriptor,) = old.next_descriptors(1)
    Consumer(inner)
    assert values_of(old.fetch_descriptor(descriptor)) == [b"0"]


def test_error_in_the_with_block_is_not_hidden_by_the_fence_at_its_end(inner: MemoryStore) -> None:
    append_many(inner, 1)
    consumer = Consumer(inner)
    consumer.next_descriptors(1)
    consumer.ack(0)
    Consumer(inner)
    with pytest.raises(RuntimeError, match="the block's own"), consumer:
        raise RuntimeError("the block's own")


@pytest.mark.parametrize(
    "settings", [{"last_acked": -1}, {"max_poll_interval": 0}, {"max_poll_interval": float("nan")}]
)
def test_settings_that_make_no_sense_are_refused(inner: MemoryStore, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Consumer(inner, **settings)


@pytest.mark.parametrize("value", [1.0, True, "1", None, -1, 2**70])
def test_sequence_that_is_no_whole_number_is_refused_before_it_can_spoil_the_manifest(
    inner: MemoryStore, value: Any
) -> None:
    append_many(inner, 3)
    consumer = Consumer(inner)
    consumer.next_descriptors(3)
    for call in (consumer.ack, consumer.ack_through, consumer.next_descriptors):
        with pytest.raises(InvalidInput):
            call(value)
    if value is not None:
        with pytest.raises(InvalidInput):
            Consumer(inner, last_acked=value)
    consumer.ack_through(1)
    assert sequences(Consumer(inner).next_descriptors(9)) == [2]


@pytest.mark.parametrize(
    "settings",
    [{"from_": "latest"}, {"on_trimmed": "Skip"}, {"group": 1}, {"group": "a/b"}, {"group": "g", "from_": 1.5}],
)
def test_setting_that_would_be_ignored_or_misread_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Consumer(MemoryStore("memory://misread-settings"), **settings)


@pytest.mark.parametrize("wait", ["yes", -1, math.nan])
def test_wait_that_is_no_time_is_refused(inner: MemoryStore, wait: Any) -> None:
    with pytest.raises(InvalidInput, match="wait"):
        Consumer(inner).batches(wait=wait)


# Looking


def test_length_is_as_of_the_last_look_and_an_empty_consumer_is_truthy(inner: MemoryStore) -> None:
    consumer = Consumer(inner)
    assert len(consumer) == 0
    assert consumer
    append_many(inner, 3)
    assert len(consumer) == 0
    consumer.next_descriptors(1)
    assert len(consumer) == 3
    assert consumer.conflict_rate == 0.0
    consumer.ack_through(0)
    assert len(consumer) == 2


def test_lag_counts_what_is_not_acknowledged_and_how_old_it_is(inner: MemoryStore) -> None:
    clock = ManualClock(now_ms=100_000)
    consumer = Consumer(inner, clock=clock)
    assert consumer.lag() == Lag(0, 0.0)
    append(inner, "a", metadata=(Metadata(0, 40_000, b""),))
    append(inner, "b", metadata=(Metadata(0, 90_000, b""),))
    assert consumer.lag() == Lag(2, 60.0)
    consumer.next_descriptors(2)
    consumer.ack(0)
    assert consumer.lag() == Lag(1, 10.0)
    consumer.ack(1)
    assert consumer.lag() == Lag(0, 0.0)


def test_lag_does_not_grow_when_old_batches_are_read_again() -> None:
    store = MemoryStore("memory://lag-after-seek")
    append_many(store, 10)
    consumer = Consumer(store)
    consumer.next_descriptors(10)
    consumer.ack_through(9)
    consumer.seek(0)
    consumer.next_batch()
    consumer.ack_through(0)
    assert consumer.lag() == Lag(0, 0.0)
    assert len(consumer) == 0


# Waiting


def test_waiting_reader_polls_by_conditional_reads_and_wakes_within_an_interval(inner: MemoryStore) -> None:
    clock = ManualClock()
    store = FaultyStore(inner)
    append(inner, "first")
    consumer = Consumer(store, clock=clock, max_poll_interval=2.0)
    reader = iter(consumer.batches(wait=True))
    next(reader)
    store.calls.clear()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(next(reader).sequence))
    thread.start()

    while store.calls["get_if_changed"] < 20:  # an idle minute or so, in the test's time
        clock.advance(0.05)
    assert store.calls["get"] == 0, "an unchanged manifest is not read again"
    # Intervals double from the floor to the bound: 20 looks take much longer than 20 times the floor.
    assert clock.monotonic() > 20
    append(inner, "second")
    looks = store.calls["get_if_changed"]
    while thread.is_alive():  # not one step: the reader may still be on its way to its next wait
        clock.advance(0.05)
        thread.join(timeout=0.001)
    assert got == [1]
    assert store.calls["get_if_changed"] <= looks + 2, "the look under way, if any, and the next one"


def test_wait_in_seconds_ends_after_so_long_without_a_batch(inner: MemoryStore) -> None:
    clock = ManualClock()
    consumer = Consumer(inner, clock=clock)
    append(inner, "a")
    done = threading.Event()
    found: list[int] = []

    def read() -> None:
        found.extend(batch.sequence for batch in consumer.batches(wait=5.0))
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not done.is_set():
        clock.advance(0.01)
    thread.join()
    assert found == [0]
    assert clock.monotonic() >= 5.0


def collectors() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "forebay-collector"}


def test_consumer_runs_no_collector_unless_asked(inner: MemoryStore) -> None:
    before = collectors()
    with Consumer(inner):
        assert collectors() == before


def test_consumer_that_is_asked_to_collect_does_so_where_its_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore("memory://collects-beside")
    with Producer(inner, manifest_path="m", data_prefix="d") as producer:
        producer.produce(b"x")
    inner.put("d/00000000000000000000000000.batch", b"an orphan, older than everything")
    reports: Queued[CollectionReport] = Queued()
    collect_once = Collector.collect_once

    def told(collector: Collector, dry_run: bool = False) -> CollectionReport:
        report = collect_once(collector, dry_run)
        reports.put(report)
        return report

    monkeypatch.setattr(Collector, "collect_once", told)
    before = collectors()
    with Consumer(inner, manifest_path="m", data_prefix="d", collect=True) as consumer:
        assert reports.get(timeout=PATIENCE).deleted == 1, "the orphan"
        assert consumer.next_batch() is not None
    assert collectors() == before


def test_collector_of_a_consumer_has_the_interval_and_the_grace_that_were_asked_for(
    inner: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    init, start = Collector.__init__, Collector.start

    def told(collector: Collector, *args: Any, grace: float, **settings: Any) -> None:
        seen.append(grace)
        init(collector, *args, grace=grace, **settings)

    def started(collector: Collector, interval: float = 0.0) -> Collector:
        seen.append(interval)
        return start(collector, interval)

    monkeypatch.setattr(Collector, "__init__", told)
    monkeypatch.setattr(Collector, "start", started)
    with Consumer(inner, collect=Collect(interval=7.0, grace=3.0)):
        pass
    with Consumer(inner, collect=True):
        pass
    assert seen == [3.0, 7.0, 600.0, 300.0]


@pytest.mark.parametrize("settings", [{"interval": 0}, {"grace": -1}, {"interval": math.nan}, {"grace": math.inf}])
def test_collector_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        Collect(**settings)


def test_collect_that_is_neither_a_yes_nor_settings_is_refused_before_the_claim(inner: MemoryStore) -> None:
    with Consumer(inner) as consumer:
        with pytest.raises(InvalidInput, match="Collect"):
            Consumer(inner, collect=60)  # type: ignore[arg-type]
        consumer.next_batch()  # it was not fenced


def test_collector_ends_with_its_consumer_though_the_last_write_fails(inner: MemoryStore) -> None:
    append_many(inner, 1)
    before = collectors()
    consumer = Consumer(inner, collect=True)
    assert len(collectors() - before) == 1
    assert consumer.next_batch() is not None
    consumer.ack(0)
    Consumer(inner)
    with pytest.raises(Fenced):
        consumer.close()
    assert collectors() == before


def test_close_ends_a_waiting_reader(inner: MemoryStore) -> None:
    consumer = Consumer(inner, clock=ManualClock())
    ended = threading.Event()

    def read() -> None:
        assert list(consumer.batches(wait=True)) == []
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    consumer.close()
    assert ended.wait(PATIENCE)
    thread.join()


def test_async_reader_sees_the_same_batches(inner: MemoryStore) -> None:
    append_many(inner, 5)
    consumer = Consumer(inner)

    async def read() -> list[int]:
        found = [batch.sequence async for batch in consumer.batches()]
        append(inner, "more")
        return found + [batch.sequence async for batch in consumer]

    assert asyncio.run(read()) == [0, 1, 2, 3, 4, 5]


def test_cancelled_async_read_leaves_the_batch_to_the_next(inner: MemoryStore) -> None:
    append_many(inner, 2)
    store = FaultyStore(inner, {1: Fault.STALL}, only={"get"})
    consumer = Consumer(store)

    async def read() -> list[int]:
        reading = asyncio.ensure_future(anext(consumer.batches()))
        while store.calls["get"] < 2:  # noqa: ASYNC110 - the store is not asyncio's to wait on
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        store.release()
        return [batch.sequence async for batch in consumer]

    assert asyncio.run(read()) == [0, 1]


# Records


@OF_BYTES
def test_records_expand_metadata_over_the_entries_it_covers(inner: MemoryStore) -> None:
    covered = [(1, 1_000, b"web"), (3, 2_000, b"none"), (3, 3_000, b"app"), (4, 2**62, b"far"), (9, 1, b"beyond")]
    metadata = tuple(Metadata(*item) for item in covered)
    append(inner, "one", [b"a", b"b", b"c", b"d", b"e"], metadata)
    batch = Consumer(inner).next_batch()
    assert batch is not None
    table = batch.records()
    assert table["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"e"]
    assert table["sequence"].to_pylist() == [0] * 5
    assert table["index"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["metadata"].to_pylist() == [None, b"web", b"web", b"app", b"far"]
    assert [t and int(t.timestamp()) for t in table["ingestion_time"].to_pylist()] == [None, 1, 1, 3, None]


@OF_BYTES
@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("stop", range(7))
def test_records_of_a_part_are_a_part_of_the_records(inner: MemoryStore, start: int, stop: int) -> None:
    covered = [(1, 1_000, b"web"), (3, 2_000, b"none"), (3, 3_000, b"app"), (9, 1, b"beyond")]
    append(inner, "one", [b"a", b"b", b"c", b"d", b"e"], tuple(Metadata(*item) for item in covered))
    batch = Consumer(inner).next_batch()
    assert batch is not None
    assert batch.records(start, stop).to_pylist() == batch.records().to_pylist()[start:stop]
    columns = ("value", "sequence")
    assert batch.records(start, stop, columns=columns) == batch.records().slice(start, stop - start).select(columns)


@OF_BYTES
@pytest.mark.parametrize("entries", [[], [b"only"]])
def test_records_of_small_batches_have_the_same_schema(inner: MemoryStore, entries: list[bytes]) -> None:
    append(inner, "one", entries)
    batch = Consumer(inner).next_batch()
    assert batch is not None
    table = batch.records()
    assert [f"{field.name} {field.type}" for field in table.schema] == [
        "sequence int64",
        "index int32",
        "ingestion_time timestamp[us, tz=UTC]",
        "metadata binary",
        "value binary",
    ]
    assert table["value"].to_pylist() == entries
    assert batch


def test_missing_object_whose_location_repeats_the_urls_folder_says_how_to_open_the_buffer() -> None:
    """OpenData Buffer's locations begin at the bucket's root."""
    bucket = MemoryStore("memory://bucket")
    with Producer(bucket, profile="opendata") as producer:
        producer.produce(b"a").result()
    with pytest.raises(NotFound, match=r"repeats the URL's own folder ingest/.*manifest_path"):
        Consumer(FolderStore(bucket, "ingest")).next_batch()
