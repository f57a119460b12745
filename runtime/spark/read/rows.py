"""Rows for Spark: a fetched batch as Arrow record batches of a bounded size, in exactly the schema asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.read.records import RECORDS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.fetch import Batch

SCHEMA = "sequence bigint, index int, ingestion_time timestamp, metadata binary, value binary"
"""One row per entry: `RECORDS_SCHEMA` in Spark's words."""
_PARTITION = "partition"
_SPARK_TYPES = {**dict(column.split() for column in SCHEMA.split(", ")), _PARTITION: "int"}
_ARROW_TYPES = {**{field.name: field.type for field in RECORDS_SCHEMA}, _PARTITION: pa.int32()}

_MAX_ROWS = 10_000
_MAX_BYTES = 4 << 20
"""Maximum rows and bytes of a slice, except that it has at least one row. Large enough to make Spark's cost per slice
small, small enough for the JVM, which holds several of them."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Ingestion times, in milliseconds since 1970."""

    since_ms: int | None = None
    """The first that belongs to it; None if it has no beginning."""
    until_ms: int | None = None
    """The first behind it; None if it has no end."""

    def meets(self, batch: BatchDescriptor) -> bool:
        """Whether an entry of the batch may be in the range."""
        span = time_span(batch)
        return span is None or (
            (self.since_ms is None or span[1] >= self.since_ms) and (self.until_ms is None or span[0] < self.until_ms)
        )

    def covers(self, batch: BatchDescriptor) -> bool:
        """Whether every entry of the batch is known to be in the range."""
        if self.since_ms is None and self.until_ms is None:
            return True
        # Entries in front of the first metadata have no time, which facts do not tell.
        span = time_span(batch) if batch.metadata and batch.metadata[0].start_index == 0 else None
        return (
            span is not None
            and (self.since_ms is None or span[0] >= self.since_ms)
            and (self.until_ms is None or span[1] < self.until_ms)
        )

    def mask(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which of the times are in the range; null for one that is not known, which Arrow's filter takes for no."""
        bounds = ((pc.greater_equal, self.since_ms), (pc.less, self.until_ms))
        tests = [compare(times, pa.scalar(ms * 1000, times.type)) for compare, ms in bounds if ms is not None]
        return reduce(pc.and_, tests)


def time_span(batch: BatchDescriptor) -> tuple[int, int] | None:
    """The earliest and the latest ingestion time in a batch; None if it tells none."""
    if batch.facts is not None:
        return batch.facts.first_time_ms, batch.facts.last_time_ms
    times = [item.ingestion_time_ms for item in batch.metadata]
    return (min(times), max(times)) if times else None


class Rows:
    """Makes rows of the columns asked for. Pickles: tasks get it with their reader."""

    def __init__(self, schema: StructType, times: TimeRange, *, max_rows: int = _MAX_ROWS) -> None:
        for field in schema:
            wanted = _SPARK_TYPES.get(field.name)
            if wanted != field.dataType.simpleString():
                raise InvalidInput(
                    f"column {field.name} {field.dataType.simpleString()} is not there; the columns are {SCHEMA}, and "
                    f"{_PARTITION} int: leave some out, and cast in a select"
                )
        self._schema = pa.schema([pa.field(field.name, _ARROW_TYPES[field.name], field.nullable) for field in schema])
        self._times = times
        self._max_rows = max_rows

    def slices(self, batch: Batch, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the batch's rows in order.

        Raises:
            Unsupported: it is a typed batch.
        """
        if batch.schema is not None:  # guard: refuse to show rows of a schema as bytes in Spark
            raise Unsupported(
                f"batch {batch.location} holds rows of a schema, which this source cannot show yet: read the buffer "
                "with forebay.Consumer"
            )
        step = self._rows_at_once(batch)
        repeated = self._repeated(batch, partition, step)
        varying = [name for name in self._schema.names if name not in repeated]
        covered = self._times.covers(batch.descriptor)
        for start in range(0, len(batch), step):
            rows = min(step, len(batch) - start)
            others = batch.records(start, start + rows, columns=varying)
            columns = {name: column.slice(0, rows) for name, column in repeated.items()}
            columns |= zip(varying, others.columns, strict=True)
            table = pa.Table.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
            if not covered:
                times = batch.records(start, start + rows, columns=["ingestion_time"])
                table = table.filter(self._times.mask(times["ingestion_time"]))
            yield from (made for made in table.to_batches() if made.num_rows)

    def _repeated(self, batch: Batch, partition: int, rows: int) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Columns that are the same in every row: made once, and Arrow hands out parts of them without copying."""
        same = {"sequence"}
        if [item.start_index for item in batch.metadata] == [0]:  # nearly always
            same |= {"ingestion_time", "metadata"}
        names = [name for name in self._schema.names if name in same]
        columns = dict(zip(names, batch.records(0, rows, columns=names).columns, strict=True))
        if _PARTITION in self._schema.names:
            columns[_PARTITION] = pa.repeat(pa.scalar(partition, pa.int32()), rows)
        return columns

    def _rows_at_once(self, batch: Batch) -> int:
        row = batch.decoded.raw_bytes / max(1, len(batch))
        if "metadata" in self._schema.names:
            row += max((len(item.payload) for item in batch.metadata), default=0)
        return max(1, min(self._max_rows, int(_MAX_BYTES / max(1.0, row))))
