"""Rows for Spark: batches as Arrow record batches of a bounded size, in exactly the schema asked for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.format.parquet import DecodedRows
from forebay.buffer.format.schema import RESERVED
from forebay.buffer.read.records import RECORDS_SCHEMA, record_columns
from forebay.runtime.spark.types import arrow_schema, decoded_field, spark_schema, spark_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.read.records import Span
    from forebay.runtime.spark.reading.times import TimeRange

_VALUE: Final = "value"
_PARTITION: Final = "partition"
_ADDED: Final = tuple(name for name in RECORDS_SCHEMA.names if name != _VALUE)
"""What readers add to an entry. In a typed buffer these columns have other names, which no column of a user has."""

_MAX_ROWS: Final = 10_000
_MAX_BYTES: Final = 4 << 20
"""Maximum rows and bytes of a slice, except that it has at least one row. Large enough to make Spark's cost per slice
small, small enough for the JVM, which holds several of them."""
_LISTED_ROW_BYTES: Final = 32
"""About what a row takes whose columns are all known from the manifest, without metadata."""


def columns_of(schema: pa.Schema | None) -> StructType:
    """Return the columns of a typed buffer, or, without a schema, of a buffer of bytes, as Spark shows them."""
    if schema is None:
        return spark_schema(RECORDS_SCHEMA)
    added = [RECORDS_SCHEMA.field(name).with_name(shown) for name, shown in zip(_ADDED, RESERVED, strict=True)]
    return spark_schema(pa.schema([*schema, *added]))


def _list_columns(schema: pa.Schema | None, *, is_topic: bool) -> str:
    shown = [f"{field.name} {field.dataType.simpleString()}" for field in columns_of(schema)]
    return ", ".join([*shown, f"{_PARTITION} int"] if is_topic else shown)


def _is_of_bytes(asked: pa.Schema) -> bool:
    """Whether these are columns of a buffer of bytes, as a stream has that started before anything was written."""
    return _VALUE in asked.names and set(asked.names) <= {*RECORDS_SCHEMA.names, _PARTITION}


class Rows:
    """Makes rows of the columns asked for. Pickles: each task gets one.

    Args:
        asked: the columns that Spark wants, in order.
        times: the rows that belong to it.
        schema: the newest schema of a typed buffer; None for a buffer of bytes.
        is_topic: whether it is a topic, for the error that lists the columns.

    Raises:
        InvalidInput: a column that is asked for is not there, or has another type.
    """

    def __init__(
        self,
        asked: StructType,
        times: TimeRange,
        schema: pa.Schema | None = None,
        *,
        is_topic: bool = False,
        max_rows: int = _MAX_ROWS,
    ) -> None:
        self._shown = dict(zip(_ADDED, _ADDED if schema is None else RESERVED, strict=True))
        self._schema = arrow_schema(asked)
        self._times = times
        self._max_rows = max_rows
        kept = pa.schema([RECORDS_SCHEMA.field(_VALUE)]) if schema is None else schema
        added = {self._shown[name]: RECORDS_SCHEMA.field(name).type for name in _ADDED}
        added.setdefault(_PARTITION, pa.int32())
        if schema is not None and _is_of_bytes(self._schema):
            raise InvalidInput(
                f"there is no column {_VALUE} of bytes: there are rows of a schema, whose columns are "
                f"{_list_columns(schema, is_topic=is_topic)}. If this stream started before the first row was written, "
                "start it again and select from these columns; if you use .schema(…), name some of them there"
            )
        decoded = []
        for field in self._schema:
            if field.name in kept.names:
                try:
                    decoded.append(decoded_field(kept.field(field.name), field))
                except InvalidInput as error:
                    raise InvalidInput(f"{error}: ask for it as it is, and cast in a select") from None
            elif added.get(field.name) != field.type:
                raise InvalidInput(
                    f"there is no column {field.name} {spark_type(field.type).simpleString()}; the columns are "
                    f"{_list_columns(schema, is_topic=is_topic)}: correct its name or its type in .schema(…)"
                )
        self._decoded = pa.schema(decoded)
        self._is_typed = schema is not None

    @property
    def decoded(self) -> pa.Schema | None:
        """What is decoded of a typed batch; None for batches of bytes."""
        return self._decoded if self._is_typed else None

    @property
    def needs_objects(self) -> bool:
        """Whether a column that is asked for is in the objects. If not, the facts in a manifest of version 2 do."""
        return len(self._decoded) > 0

    def listed(self, batches: Iterable[BatchDescriptor], partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of batches that need not be fetched, in order."""
        for spans in self._gather(batches):
            makers = {self._shown[name]: maker for name, maker in record_columns(spans).items()}
            rows = sum(stop - start for _batch, start, stop in spans)
            makers[_PARTITION] = partial(pa.repeat, pa.scalar(partition, pa.int32()), rows)
            table = pa.Table.from_arrays([makers[name]() for name in self._schema.names], schema=self._schema)
            if not all(self._times.covers(batch) for batch, _start, _stop in spans):
                table = table.filter(self._times.mask(makers[self._shown["ingestion_time"]]()))
            yield from (made for made in table.to_batches() if made.num_rows)

    def _gather(self, batches: Iterable[BatchDescriptor]) -> Iterator[list[Span]]:
        """Yield parts of batches whose rows fit into one slice together."""
        spans: list[Span] = []
        rows = size = 0
        for batch in batches:
            row, start, stop = self._listed_bytes(batch), 0, 0 if batch.facts is None else batch.facts.records
            while start < stop:
                step = min(stop - start, self._max_rows - rows, max(1, (_MAX_BYTES - size) // row))
                spans.append((batch, start, start + step))
                start, rows, size = start + step, rows + step, size + step * row
                if rows >= self._max_rows or size >= _MAX_BYTES:
                    yield spans
                    spans, rows, size = [], 0, 0
        if spans:
            yield spans

    def _listed_bytes(self, batch: BatchDescriptor) -> int:
        if self._shown["metadata"] not in self._schema.names:
            return _LISTED_ROW_BYTES
        return _LISTED_ROW_BYTES + max((len(item.payload) for item in batch.metadata), default=0)

    def slices(self, batch: Batch, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch that was fetched, in order.

        Raises:
            Unsupported: it is a typed batch, and the buffer was none when the read was planned.
            InvalidInput: a column asked for cannot hold a value.
        """
        if batch.schema is not None and not self._is_typed:  # guard: refuse to show rows of a schema as bytes in Spark
            raise Unsupported(
                f"batch {batch.location} holds rows of a schema, and there was none when this was planned: read again"
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
            arrays = [_cast(columns[field.name], field) for field in self._schema]
            table = pa.Table.from_arrays(arrays, schema=self._schema)
            if not covered:
                times = batch.records(start, start + rows, columns=[self._shown["ingestion_time"]])
                table = table.filter(self._times.mask(times.column(0)))
            yield from (made for made in table.to_batches() if made.num_rows)

    def _repeated(self, batch: Batch, partition: int, rows: int) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Columns that are the same in every row: made once, and Arrow hands out parts of them without copying."""
        same = {self._shown["sequence"]}
        if [item.start_index for item in batch.metadata] == [0]:  # nearly always
            same |= {self._shown["ingestion_time"], self._shown["metadata"]}
        names = [name for name in self._schema.names if name in same]
        columns = dict(zip(names, batch.records(0, rows, columns=names).columns, strict=True))
        if _PARTITION in self._schema.names and _PARTITION not in self._decoded.names:
            columns[_PARTITION] = pa.repeat(pa.scalar(partition, pa.int32()), rows)
        return columns

    def _rows_at_once(self, batch: Batch) -> int:
        decoded = batch.decoded
        size = decoded.table.nbytes if isinstance(decoded, DecodedRows) else decoded.raw_bytes
        row = size / max(1, len(batch))
        if self._shown["metadata"] in self._schema.names:
            row += max((len(item.payload) for item in batch.metadata), default=0)
        return max(1, min(self._max_rows, int(_MAX_BYTES / max(1.0, row))))


def _cast(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return a column in the type that Spark takes.

    Raises:
        InvalidInput: that type cannot hold a value of it.
    """
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"column {field.name}: Spark cannot hold a value of it: {error}"
            "; read it with forebay.scan, or leave the column out"
        ) from error
