"""What a writing task does: store its rows as batches. Nobody can read them until the driver commits the job.

A task holds in memory: gathered rows of up to `flush_size_bytes` for all partitions together, the batch that is being
stored, and one of Spark's record batches.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.batch import DEFAULT_LEVEL
from forebay.buffer.format.parquet import DEFAULT_ROWS_LEVEL
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.topic.keys import partition_for
from forebay.buffer.write.accumulator import Accumulator, check_call
from forebay.buffer.write.rows import FilledRows, RowAccumulator, check_rows
from forebay.buffer.write.upload import BatchStorage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from forebay.buffer.format.model import NewBatch
    from forebay.buffer.holds import HeldUploads
    from forebay.buffer.write.accumulator import FilledBatch
    from forebay.runtime.spark.writing.write_job import WriteJob

_TIME_STEP_MS: Final = 1000
"""Rows that come in within this of each other share one time, and so one item of metadata in the manifest."""
_KNOWN_KEYS: Final = 1 << 16
"""Keys whose partition a task remembers: hashing one costs as much as all else that is done for some twenty rows."""


class TaskWriter:
    """Stores the rows of one attempt at a task. If the attempt dies, the collector removes what it stored.

    Args:
        job: the job of the task.
        turn: the partition of a topic that gets the first rows without a key; the same for every attempt.
    """

    def __init__(self, job: WriteJob, turn: int) -> None:
        self._job = job
        self._turn = turn % max(job.partitions, 1)
        self._random = system_random()
        self._taken_ms = -_TIME_STEP_MS
        self._frame = job.frame
        self._converter = None if job.frame.rows is None else RowConverter(job.frame.rows.schema)
        self._accumulators: dict[int, Accumulator | RowAccumulator] = {}
        self._places: dict[int, tuple[HeldUploads, BatchStorage]] = {}
        self._uploads: list[Future[tuple[int, NewBatch]]] = []
        self._pool = ThreadPoolExecutor(1)
        self._home = lru_cache(_KNOWN_KEYS)(partial(partition_for, partitions=job.partitions))

    def store(self, rows: Iterable[pa.RecordBatch]) -> tuple[tuple[int, NewBatch], ...]:
        """Store all rows, and return the batches that hold them, each with its partition, in the rows' order."""
        with self._pool:
            for batch in rows:
                if batch.num_rows:
                    self._add(batch)
            while self._accumulators:
                self._store_fullest()
            return tuple(upload.result() for upload in self._uploads)

    def _add(self, batch: pa.RecordBatch) -> None:
        time_ms = self._take_time()
        for number, rows in self._split(batch):
            for metadata, run in self._runs(rows):
                self._gather(number, run, metadata, time_ms)
                if sum(accumulator.size() for accumulator in self._accumulators.values()) >= self._job.flush_size_bytes:
                    self._store_fullest()

    def _gather(self, number: int, rows: pa.RecordBatch, metadata: bytes, time_ms: int) -> None:
        """Add rows with equal metadata to what is gathered for a partition."""
        size, frame = self._job.flush_size_bytes, self._frame
        accumulator: Any
        if frame.rows is None or self._converter is None:
            accumulator = self._accumulators.setdefault(number, Accumulator(size))
            accumulator.apply(check_call(_entries(rows), metadata, time_ms))
        else:
            accumulator = self._accumulators.setdefault(number, RowAccumulator(size, frame.rows))
            accumulator.apply(check_rows(_cast(rows, frame.casts), metadata, time_ms, converter=self._converter))

    def _take_time(self) -> int:
        now = self._job.clock.now_ms()
        if not 0 <= now - self._taken_ms < _TIME_STEP_MS:
            self._taken_ms = now
        return self._taken_ms

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each partition's rows, in order; those without a key go to the one whose turn it is."""
        if self._frame.key not in batch.schema.names:
            yield self._turn, batch
            return
        keys = _as_binary(batch.column(self._frame.key)).dictionary_encode()
        homes = pa.array(map(self._home, keys.dictionary.to_pylist()), pa.int32())
        numbers = homes.take(keys.indices).fill_null(self._turn)
        for number in numbers.unique().to_pylist():
            yield number, batch.filter(pc.equal(numbers, number))

    def _runs(self, rows: pa.RecordBatch) -> Iterator[tuple[bytes, pa.RecordBatch]]:
        """Yield each run of rows with equal metadata, without the metadata."""
        at = rows.schema.get_field_index(self._frame.metadata)
        if at < 0:
            yield b"", rows
            return
        encoded = pc.run_end_encode(_as_binary(rows.column(at)))
        rows, start = rows.remove_column(at), 0
        for metadata, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            yield metadata or b"", rows.slice(start, end - start)
            start = end

    def _store_fullest(self) -> None:
        number = max(self._accumulators, key=lambda found: self._accumulators[found].size())
        filled, _ = self._accumulators.pop(number).freeze()
        if number == self._turn:
            self._turn = (self._turn + 1) % max(self._job.partitions, 1)
        if self._uploads:
            # guard: store one batch at a time
            self._uploads[-1].result()  # one at a time, and an error ends the task
        self._uploads.append(self._pool.submit(self._upload, number, filled))

    def _upload(self, number: int, filled: FilledBatch | FilledRows) -> tuple[int, NewBatch]:
        if number not in self._places:
            storage = BatchStorage(
                self._job.open_buffer(number),
                compression_level=DEFAULT_LEVEL if self._converter is None else DEFAULT_ROWS_LEVEL,
                clock=self._job.clock,
                random=self._random,
            )
            self._places[number] = self._job.hold_uploads(number), storage
        uploads, storage = self._places[number]
        _prepare(filled, storage)
        # guard: name uploads above the floor of the job hold
        return number, storage.put(filled, above=uploads.floor()).batch


def _prepare(filled: FilledBatch | FilledRows, storage: BatchStorage) -> None:
    """Convert what was gathered. Raises `InvalidInput` if any of it does not fit: a job is stored as a whole."""
    calls = list(filled.calls) if isinstance(filled, FilledRows) else []
    storage.prepare(filled)
    for call in calls:
        if call.error is not None:  # guard: a row that does not fit fails the whole job
            raise call.error


def _entries(rows: pa.RecordBatch) -> pa.Array:
    values = rows.column("value")
    if values.null_count:
        raise InvalidInput(f"column value is null in {values.null_count} of {rows.num_rows} rows: filter them out")
    return _as_binary(values)


def _cast(rows: pa.RecordBatch, casts: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    for name, kind in casts.items():
        at = rows.schema.get_field_index(name)
        try:
            column = rows.column(at).cast(kind)
        except pa.ArrowInvalid as error:
            raise InvalidInput(f"column {name}: expected {kind}, found {rows.column(at).type}: {error}") from error
        rows = rows.set_column(at, name, column)
    return rows


def _as_binary(column: pa.Array) -> pa.Array:
    """The same bytes, without a copy; of an integer, its decimal digits."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column
