"""A writing job without Spark: the same tasks and the same driver, on a store that fails on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from forebay.buffer import buffers_at
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import create_topic
from forebay.runtime.spark.writing.task_writer import TaskWriter
from forebay.runtime.spark.writing.write_job import WriteJob
from forebay.testing import ManualClock

_names = count()

Batches = tuple[tuple[int, NewBatch], ...]


def new_store(partitions: int = 0) -> MemoryStore:
    """An empty buffer's store, or that of a topic."""
    store = MemoryStore(f"memory://spark-write-{next(_names)}")
    if partitions:
        create_topic(store, partitions)
    return store


def job_on(store: ObjectStore, partitions: int = 0, **changes: Any) -> WriteJob:
    settings: dict[str, Any] = {"hold_id": "the-job", "lease": 3600.0, "flush_size_bytes": 1 << 20, **changes}
    return WriteJob(store, partitions, clock=settings.pop("clock", None) or ManualClock(), **settings)


def rows(values: Sequence[bytes | str | None], **columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column) for column in (values, *columns.values())], names=["value", *columns])


def run_task(job: WriteJob, *batches: pa.RecordBatch, task: int = 0) -> Batches:
    return TaskWriter(job, task).store(batches)


def head_of(store: ObjectStore) -> Head:
    state = Queue(store).read()
    assert isinstance(state, Head)
    return state


def entries_in(store: ObjectStore) -> list[list[bytes]]:
    """What can be read, by partition."""
    found = []
    for buffer in buffers_at(store):
        handle = FetchHandle(buffer)
        found.append([entry for batch in Queue(buffer).descriptors(0, 10**6) for entry in handle.fetch(batch).entries])
    return found
