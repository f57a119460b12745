"""What a task yields, keeps and skips, and how far it reads ahead, without Spark: rfcs/0008."""

from __future__ import annotations

import logging
import pickle
import threading
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from msgspec.structs import replace as change
from patience import PATIENCE
from read_job import (
    batch_reader,
    columns,
    digits,
    head_of,
    read,
    rows_of,
    ten_batches,
    trim,
)

from forebay.buffer.base.errors import Corrupt, Fenced, NotFound, Trimmed
from forebay.buffer.format.model import BatchDescriptor
from forebay.buffer.manifest import Queue
from forebay.buffer.read.fetch import Batch, FetchHandle
from forebay.buffer.store import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.spark.reading.plan import SourceBuffer


@pytest.fixture
def store() -> MemoryStore:
    return ten_batches()


def test_task_of_a_hold_that_expired_fails_before_it_reads_and_says_so(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=60)
    (task,) = reader.partitions()
    expire(store)
    late = pickle.loads(pickle.dumps(task))
    late.sources = tuple(overdue(source) for source in late.sources)
    with pytest.raises(Fenced, match=r"expired and was removed.*run the job again under a new hold"):
        list(reader.read(late))


def test_missing_batch_under_an_expired_hold_is_told_as_the_hold(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=60)
    (task,) = reader.partitions()
    expire(store)
    store.delete(["data/3.batch"])
    with pytest.raises(Fenced):
        list(reader.read(task))


def test_late_task_renews_the_hold_of_every_source(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=60)
    (task,) = reader.partitions()
    late = pickle.loads(pickle.dumps(task))
    late.sources = tuple(overdue(source) for source in late.sources)
    assert len(list(reader.read(late))) == 10
    (after,) = head_of(store).holds.values()
    assert after.renewals == 1


def overdue(source: SourceBuffer) -> SourceBuffer:
    """The same source, planned long ago."""
    assert source.hold is not None
    return replace(source, hold=change(source.hold, renewed_ms=0))


def expire(store: MemoryStore) -> None:
    """What the collector does with a hold that was not renewed in time."""
    (name,) = head_of(store).holds
    Queue(store).change_head(lambda head: head.without_hold(name), lambda head: not head.holds)


# Damage


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_damaged_batch_fails_with_its_location_or_is_skipped_and_counted(
    store: MemoryStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "missing":
        store.delete(["data/4.batch"])
    else:
        store.put("data/4.batch", b"rubbish")
    with pytest.raises((Corrupt, NotFound), match=f"{store.url}/data/4.batch, batch 4"):
        read(store)
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        assert read(store, onCorrupt="skip") == digits("012356789")
    assert f"{store.url}: 1 of 10 batches were skipped" in caplog.text


def test_missing_bucket_is_never_skipped(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = batch_reader(store, onCorrupt="skip")
    tasks = reader.partitions()

    def gone(*_args: object) -> None:
        raise NotFound("no bucket", bucket=True)

    monkeypatch.setattr(MemoryStore, "get", gone)
    with pytest.raises(NotFound, match="no bucket"):
        rows_of(reader, tasks)


def test_batch_that_was_trimmed_meanwhile_is_told_as_trimmed(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=0, onCorrupt="skip")
    tasks = reader.partitions()
    trim(store, 5)
    store.delete([f"data/{number}.batch" for number in range(5)])
    with pytest.raises(Trimmed, match=f"batch 0 of {store.url} was trimmed"):
        rows_of(reader, tasks)


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
def test_task_reads_again_what_arrives_falsified_once(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, on_corrupt: str
) -> None:
    reader = batch_reader(store, columns("value"), minPartitions=1, onCorrupt=on_corrupt)
    (task,) = reader.partitions()
    falsified: set[str] = set()
    get = MemoryStore.get

    def falsify_once(self: MemoryStore, key: str) -> StoredObject:
        found = get(self, key)
        if not key.startswith("data/") or key in falsified:
            return found
        falsified.add(key)
        return StoredObject(bytes([found.data[0] ^ 1]) + bytes(found.data[1:]), found.version)

    monkeypatch.setattr(MemoryStore, "get", falsify_once)
    assert sum(len(rows) for rows in reader.read(task)) == 10
    assert len(falsified) == 10


# Reading ahead


def test_task_decodes_one_batch_ahead_of_what_spark_pulls(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: SimpleQueue[int] = SimpleQueue()
    decode = FetchHandle.decode

    def watch(self: FetchHandle, descriptor: BatchDescriptor, data: bytes | memoryview, **settings: Any) -> Batch:
        decoded.put(descriptor.sequence)
        return decode(self, descriptor, data, **settings)

    monkeypatch.setattr(FetchHandle, "decode", watch)
    reader = batch_reader(store, columns("value"), minPartitions=1)
    (task,) = reader.partitions()
    pulled = reader.read(task)
    for number in range(10):
        next(pulled)
        if number == 0:
            assert decoded.get(timeout=PATIENCE) == 0
        if number < 9:
            assert decoded.get(timeout=PATIENCE) == number + 1, "while Spark has the one before"
        assert decoded.empty(), "and no more than that"
    assert not list(pulled)


def test_task_that_spark_gives_up_reads_and_decodes_no_more(store: MemoryStore) -> None:
    reader = batch_reader(store, columns("value"), minPartitions=1)
    (task,) = reader.partitions()
    pulled = reader.read(task)
    next(pulled)
    pulled.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forebay-spark")]
