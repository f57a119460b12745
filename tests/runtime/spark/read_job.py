"""Reading jobs without Spark: the same readers, driven in the order in which Spark drives them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.spark.reading.batch_reader import BatchReader, open_reader
from forebay.runtime.spark.reading.plan import Task
from forebay.testing import Crash

if TYPE_CHECKING:  # needs Spark 4.2, and batch reads are tested with 4.0 too
    from pyspark.sql.streaming.datasource import ReadLimit

    from forebay.runtime.spark.reading.stream_reader import StreamReader

_names = count()
TYPES: dict[str, DataType] = {
    "sequence": LongType(),
    "index": IntegerType(),
    "ingestion_time": TimestampType(),
    "metadata": BinaryType(),
    "value": BinaryType(),
    "partition": IntegerType(),
}


def new_store() -> MemoryStore:
    return MemoryStore(f"memory://spark-read-{next(_names)}")


def columns(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


ALL = columns("sequence", "index", "ingestion_time", "metadata", "value")


def fill(store: ObjectStore, *batches: Sequence[bytes], at: int | None = None, metadata: bytes = b"m") -> None:
    """Append batches taken in at `at` milliseconds, or at a thousand times their sequence."""
    queue = Queue(store)
    sequence = queue.read().next_sequence
    listed = []
    for entries in batches:
        time = 1000 * sequence if at is None else at
        data = encode_batch(list(entries))
        location = f"data/{sequence}.batch"
        store.put(location, data)
        raw = decode_batch(data).raw_bytes
        facts = Facts(len(data), raw, len(entries), crc32c(data), time, time)
        listed.append(NewBatch(location, (Metadata(0, time, metadata),), facts))
        sequence += 1
    queue.append(listed)


def ten_batches() -> MemoryStore:
    """A store of ten batches of one entry, `0` to `9`, taken in a second apart."""
    store = new_store()
    fill(store, *entries(0, 10))
    return store


def entries(first: int, end: int) -> list[list[bytes]]:
    """Batches of one entry each: the numbers from `first` to before `end`."""
    return [[b"%d" % number] for number in range(first, end)]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def digits(text: str) -> list[bytes]:
    return [digit.encode() for digit in text]


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def head_of(store: ObjectStore) -> Head:
    state = Queue(store).read()
    assert isinstance(state, Head)
    return state


def trim(store: ObjectStore, point: int) -> None:
    """What retention does."""
    Queue(store).change_head(lambda head: head.trim(point, {}).touch(), lambda _head: False)


def batch_reader(store: ObjectStore, schema: StructType = ALL, **options: Any) -> BatchReader:
    given = {name: str(value) for name, value in options.items()}
    return open_reader({"path": store.url, **given}, schema)


def stream_reader(store: ObjectStore, schema: StructType = ALL, **options: Any) -> StreamReader:
    from forebay.runtime.spark.reading.stream_reader import StreamReader

    given = {"path": store.url, "group": "etl", **{name: str(value) for name, value in options.items()}}
    return StreamReader(given, schema)


def stream_reader_without_group(store: ObjectStore, **options: str) -> StreamReader:
    from forebay.runtime.spark.reading.stream_reader import StreamReader

    return StreamReader({"path": store.url, **options}, ALL)


def rows_of(reader: BatchReader | StreamReader, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """What the tasks yield, each in a process of its own as far as pickling goes."""
    worker = pickle.loads(pickle.dumps(reader)) if isinstance(reader, BatchReader) else reader
    batches = [batch for task in pickle.loads(pickle.dumps(list(tasks))) for batch in worker.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def values_of(reader: BatchReader | StreamReader, tasks: Sequence[Task]) -> list[bytes]:
    return [row["value"] for row in rows_of(reader, tasks)]


def read(store: ObjectStore, **options: Any) -> list[bytes]:
    reader = batch_reader(store, **options)
    return values_of(reader, reader.partitions())


def batch_sizes(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [batch.num_rows for batch in batches]


def frontier_of(store: ObjectStore, group: str = "etl") -> int:
    """The first sequence that is not acknowledged."""
    state = Groups(store).describe(group)
    return state.start if state.acked is None else state.acked + 1


class Query:
    """A streaming query: its checkpoint and its sink, which survive the process that Spark plans in.

    One micro-batch takes the steps that Spark 4.3 takes, in its order; `die_before` names the one where all is lost
    but what was durable by then.
    """

    STEPS = ("latestOffset", "offsets", "commit", "partitions", "read", "sink", "commits")

    def __init__(self, make_reader: Callable[[], StreamReader]) -> None:
        self.make_reader = make_reader
        self.offsets: list[dict[str, Any]] = []
        self.commits = 0
        self.sink: dict[int, list[bytes]] = {}
        self.reader = make_reader()

    def restart(self) -> None:
        self.reader = self.make_reader()

    def run_batch(self, *, die_before: str = "", limit: ReadLimit | None = None) -> bool:
        """Run one micro-batch, or repeat the one that was planned last; return whether there was anything to do."""

        def step(name: str) -> None:
            if name == die_before:
                raise Crash(name)

        replays = len(self.offsets) > self.commits
        at = self.commits
        start = self.offsets[at - 1] if at else _stored(self.reader.initialOffset())
        if not replays:
            step("latestOffset")
            end = _stored(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
            if end == start:
                return False
            step("offsets")
            self.offsets.append(end)
            step("commit")
            if at:
                self.reader.commit(self.offsets[at - 1])
        step("partitions")
        tasks = self.reader.partitions(start, self.offsets[at])
        step("read")
        rows = values_of(self.reader, tasks)
        step("sink")
        self.sink[at] = rows
        step("commits")
        self.commits += 1
        return True

    def run(self) -> list[bytes]:
        """Run micro-batches until there is nothing new, and return all that the sink has."""
        while self.run_batch():
            pass
        return self.written()

    def written(self) -> list[bytes]:
        return [row for at in sorted(self.sink) for row in self.sink[at]]


def query_on(store: ObjectStore, **options: Any) -> Query:
    return Query(lambda: stream_reader(store, **options))


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
