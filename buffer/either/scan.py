"""Reading a buffer or topic as one stream of Arrow record batches: the public `forebay.scan`."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import Denied, InvalidInput
from forebay.buffer.base.lifecycle import refuse_pickle
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.holds import hold_range
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.read.ahead import AheadLimits
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.read.listed_range import ListedRange
from forebay.buffer.read.notebook import PREVIEW_ROWS, html_of, with_progress
from forebay.buffer.read.records import ADDED_SCHEMA, RECORDS_SCHEMA
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic.topic import Topic, check_place, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Any, NoReturn

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue
    from forebay.buffer.read.fetch import Batch

_log = logging.getLogger("forebay.scan")

_PARTITION: Final = pa.field("partition", pa.int32(), nullable=False)
"""The first column of a topic of bytes, as in Spark."""
_ROWS_AT_ONCE: Final = 1 << 16
"""Maximum number of rows in a record batch to which columns are added, since those are copied for every row."""
_HOLD_SECONDS: Final = 300.0
_CORES: Final = os.cpu_count() or 1
_LIMITS: Final = AheadLimits(threads=16, batches=32, decoded=_CORES + 1, decoders=_CORES, max_bytes=128 << 20)


def scan(
    url: StoreUrl,
    columns: Sequence[str] | None = None,
    start: str | int | datetime | None = None,
    end: str | int | datetime | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
) -> Scan:
    """Return the batches of a buffer or topic as one Arrow stream, for DuckDB, Polars, pandas and others.

    This call fixes the range. Rows are fetched only when you read them: in parallel, a limited amount ahead, and under
    a hold, so that the collector deletes none of them meanwhile. They have the order of the buffer. A topic is read one
    partition after the other.

    Args:
        url: the buffer or topic, or its store if it is open already.
        columns: names of the columns, in order. Only these are decoded. In a typed buffer, None is all columns of the
            newest schema; you can also name `_sequence`, `_index`, `_ingestion_time` and `_call_metadata`. In a buffer
            of bytes, None is `sequence`, `index`, `ingestion_time`, `metadata` and `value`; a topic of bytes has
            `partition` before them.
        start: the first batch: a sequence, a time, `earliest` or `latest`; None is the oldest batch.
        end: the last batch: a sequence (included), or a time (not included); None is the newest batch. For a topic, use
            times: a sequence belongs to one partition.
        storage_options: credentials, endpoint and client of the store.
        manifest_path: the manifest's key below `url`.
        clock: what retries and renewals of the hold are timed by.

    Raises:
        NotFound: there is no such buffer or topic.
        InvalidInput: there is no such column.
        Trimmed: `start` is gone.
        Unsupported: a time, in a buffer of version 1, which does not store times.
    """
    since, until = "earliest" if start is None else start, "latest" if end is None else end
    found = open_buffer_or_topic(open_store(url, storage_options), manifest_path, must_exist=True, role="scan")
    queues: list[Queue] = [found] if not isinstance(found, Topic) else []
    if isinstance(found, Topic):
        since, until = check_place(since), check_place(until)
        queues = [found.open_queue(number, "scan") for number in range(found.partitions)]
    ranges = in_parallel(lambda queue: ListedRange(queue, since, until), queues)
    # guard: take the topic's schema after the batches, so that none is of a newer version
    ids = found.refresh().schemas if isinstance(found, Topic) else ranges[0].state.schemas
    typed = Schemas(found.store, clock=clock or SystemClock()).load(ids[-1]) if ids else None
    if typed is not None:
        known, default = pa.schema([*typed, *ADDED_SCHEMA]), typed
    else:
        default = pa.schema([_PARTITION, *RECORDS_SCHEMA]) if isinstance(found, Topic) else RECORDS_SCHEMA
        known = default
    return Scan(found.store.url, _choose(known, default, columns), ranges, typed=typed, clock=clock)


def _choose(known: pa.Schema, default: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return default
    if isinstance(columns, str):
        raise InvalidInput(f"columns must be a list of names, not {columns!r}: write [{columns!r}]")
    missing = [name for name in columns if name not in known.names]
    if missing:
        raise InvalidInput(
            f"there is no column {', '.join(map(str, missing))}; the columns are {', '.join(known.names)}"
        )
    if not columns or len(set(columns)) != len(columns):
        raise InvalidInput(f"columns must name at least one column, and none twice; got {list(columns)}")
    return pa.schema([known.field(name) for name in columns])


class Scan:
    """A range of a buffer or topic as an Arrow stream. You can read it several times; each time takes its own hold.

    Libraries that take objects with `__arrow_c_stream__` take a scan: `duckdb.sql("from scan")`,
    `polars.DataFrame(scan)`, `pyarrow.table(scan)`.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        ranges: Sequence[ListedRange],
        *,
        typed: pa.Schema | None,
        clock: Clock | None = None,
    ) -> None:
        self.url = name
        """The buffer or topic."""
        self.schema = schema
        """The columns of every record batch."""
        self._ranges = ranges
        self._typed = typed
        self._clock = clock

    @property
    def batches(self) -> int:
        """How many batches are in the range."""
        return sum(map(len, self._ranges))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches.

        Raises:
            Trimmed: retention dropped a part of the range before it was read.
            Corrupt: an object is not the batch that the manifest describes.
            StoreError: the store could not be read.
        """
        for number, batch in self._fetch(_LIMITS):
            yield from self._rows_of(number, batch)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows. Nothing is fetched before its first batch is asked for."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Return all rows in memory. A notebook with rich installed shows the progress."""
        fetched = with_progress(self._fetch(_LIMITS), self.batches)
        return pa.Table.from_batches([rows for found in fetched for rows in self._rows_of(*found)], self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a new reading of the rows for another library (the Arrow PyCapsule interface)."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self, "pass on its URL, and scan there")

    def __repr__(self) -> str:
        return f"<Scan {self.url}, {counted(self.batches, 'batch')}: {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        """Return the schema and the first rows, for a notebook. Reads the first batch."""
        fetched = self._fetch(AheadLimits(threads=1, batches=1))
        first = next((self._rows_of(*found) for found in fetched), iter(()))
        rows = pa.Table.from_batches([batch.slice(0, PREVIEW_ROWS) for batch in first], self.schema)
        return html_of(repr(self), rows)

    def _fetch(self, limits: AheadLimits) -> Iterator[tuple[int, Batch]]:
        """Yield each batch with the number of its partition."""
        with ExitStack() as holds:
            # All of them first: the last partition is read long after the first one.
            listings = in_parallel(partial(_hold, holds, self._clock), self._ranges)
            for number, (found, listed) in enumerate(zip(self._ranges, listings, strict=True)):
                fetcher = FetchHandle(found.queue.store, columns=self._stored_columns(), clock=self._clock)
                for batch in found.fetch(listed, fetcher, limits, name="forebay-scan"):
                    yield number, batch
                    del batch  # before the next one is waited for

    def _stored_columns(self) -> pa.Schema | None:
        """The columns of a typed buffer to decode; the first one if only added columns are asked for."""
        if self._typed is None:
            return None
        return pa.schema([field for field in self.schema if field.name in self._typed.names] or [self._typed.field(0)])

    def _rows_of(self, number: int, batch: Batch) -> Iterator[pa.RecordBatch]:
        names = self.schema.names
        if batch.schema is not None and batch.schema.names == names:
            yield from batch.table.to_batches()
            return
        at = names.index(_PARTITION.name) if self._typed is None and _PARTITION.name in names else None
        if at is not None:
            names = [*names[:at], *names[at + 1 :]]
        for start in range(0, len(batch), _ROWS_AT_ONCE):
            rows = batch.records(start, start + _ROWS_AT_ONCE, columns=names)
            if at is not None:
                count = min(_ROWS_AT_ONCE, len(batch) - start)
                rows = rows.add_column(at, _PARTITION, pa.repeat(pa.scalar(number, _PARTITION.type), count))
            yield from rows.to_batches()


def _hold(holds: ExitStack, clock: Clock | None, found: ListedRange) -> Iterator[BatchDescriptor]:
    """Hold a range until `holds` is closed, and return the listing of its batches."""
    if found.state.version == 1 or not len(found):
        return found.descriptors()
    try:
        held = hold_range(
            found.queue, found.first, found.end - 1, ttl=_HOLD_SECONDS, purpose="forebay.scan", clock=clock
        )
    except Denied as error:
        # Safe: a batch that is deleted before it is read is an error, never a gap.
        _log.warning("%s is read without a hold, since the manifest cannot be written: %s", found.queue.url, error)
        return found.descriptors()
    holds.enter_context(held)
    return held.descriptors()
