"""The batch of a typed buffer: rows as a Parquet file (rfcs/0010).

The file has exactly the user's columns, so that any tool can read the object as it is. This module writes and reads it,
and refuses everything that bytes from a stranger could get wrong. The manifest says which version of the schema a file
is in, how many rows it has, and how large they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Final, overload

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.buffer.base.errors import Corrupt, InvalidInput, damaged
from forebay.buffer.format.fit import has_required
from forebay.buffer.format.parquet_pages import Claims, check_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.format.batch import Compression
    from forebay.buffer.store.base import Data

DEFAULT_ROWS_LEVEL: Final = 1
"""The zstd level for rows: level 3 takes more time, and its objects are hardly smaller."""
_ROW_GROUP_ROWS: Final = 1 << 20
_STEP_ROWS: Final = 1 << 16
"""Number of rows that are decoded before their size is compared with what the manifest allows."""
_MIN_STEP_ROWS: Final = 2048
"""Minimum number of rows that are decoded together, whatever their size: each step costs time in every column."""
_PAGE_SETTINGS: Final[dict[str, int]] = (
    {"max_rows_per_page": _ROW_GROUP_ROWS} if "max_rows_per_page" in signature(pq.ParquetWriter).parameters else {}
)
"""A page ends at 1 MiB. Newer releases of pyarrow also end it at 20,000 rows, and a reader here checks every page."""
_MIN_GROUP_ROWS: Final = 1024
"""Average number of rows that a row group has at least: each one costs time, however small it is."""
_ROWS_AT_ONCE: Final = 4096
_SAMPLE_ROWS: Final = 4096
_DISTINCT_SHARE: Final = 0.95
"""A column is written without a dictionary if more of the first rows than this differ from each other."""
_SLACK_BYTES: Final = 1 << 20
_SPARE_SHARE: Final = 0.25
"""A file is copied into memory of its own size if more than this share of that size would be held beside it."""


class RowEntries(Sequence[dict[str, Any]]):
    """The rows as dicts, each made when it is asked for."""

    __slots__ = ("table",)

    def __init__(self, table: pa.Table) -> None:
        self.table: Final = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Sequence[dict[str, Any]]:
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"row {index} of {len(self)}")
            row: dict[str, Any] = self.table.slice(index % len(self), 1).to_pylist()[0]
            return row
        start, stop, step = index.indices(len(self))
        if step == 1:
            return RowEntries(self.table.slice(start, max(0, stop - start)))
        return [self[i] for i in range(start, stop, step)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), _ROWS_AT_ONCE):
            yield from self.table.slice(start, _ROWS_AT_ONCE).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowEntries):
            return bool(self.table.equals(other.table))
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as for a list

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRows:
    """What a typed batch holds, in the schema that its reader shows it in."""

    table: pa.Table
    """The rows."""
    raw_bytes: int
    """The size of the rows as an Arrow table, as the manifest has it."""

    @property
    def entries(self) -> RowEntries:
        """The rows as a sequence of dicts, each made when it is asked for."""
        return RowEntries(self.table)

    @property
    def chunks(self) -> tuple[pa.Array, ...]:
        """The Arrow arrays that hold the rows, of every column."""
        return tuple(chunk for column in self.table.columns for chunk in column.chunks)

    def __len__(self) -> int:
        return int(self.table.num_rows)


def encode_rows(table: pa.Table, compression: Compression = "zstd", level: int = DEFAULT_ROWS_LEVEL) -> memoryview:
    """Return the Parquet file of the rows.

    Raises:
        InvalidInput: Parquet cannot hold them.
    """
    sink = pa.BufferOutputStream()
    if any(has_required(field.type) for field in table.schema):
        table = _without_hidden_nulls(table)
    try:
        pq.write_table(
            table,
            sink,
            row_group_size=_ROW_GROUP_ROWS,
            use_dictionary=dictionary_columns(table),
            compression=compression,
            compression_level=level if compression == "zstd" else None,
            write_page_checksum=True,
            **_PAGE_SETTINGS,
            store_schema=False,  # readers know it from the manifest, and other tools do not look at it
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"rows cannot be stored as Parquet: {error}; drop or cast that column") from error
    return _without_spare(memoryview(sink.getvalue()).cast("B"))


def _without_spare(data: memoryview) -> memoryview:
    """Return the same bytes in memory of about that size, since a producer may hold them for as long as a store hangs.

    Arrow's stream doubles its memory while it grows, and keeps what it does not need. Copying a file takes 1 to 3 % of
    the time of making it.
    """
    held = 1 << (len(data) - 1).bit_length()
    if held - len(data) <= _SPARE_SHARE * len(data):
        return data
    exact = memoryview(pa.allocate_buffer(len(data))).cast("B")
    exact[:] = data
    return exact.toreadonly()


def dictionary_columns(table: pa.Table) -> bool | list[str]:
    """Return `use_dictionary` for pyarrow's Parquet writer: True, or the columns whose values repeat.

    Parquet would fill a dictionary with the values of the other columns, and then give it up.
    """
    if table.num_rows < _SAMPLE_ROWS:
        return True
    sample = table.slice(0, _SAMPLE_ROWS)
    distinct = {field.name for field, column in zip(table.schema, sample.columns, strict=True) if _is_distinct(column)}
    return [path for path in _leaf_paths(table.schema) if path not in distinct] if distinct else True


def _is_distinct(column: pa.ChunkedArray) -> bool:
    try:
        return bool(pc.count_distinct(column).as_py() > _DISTINCT_SHARE * _SAMPLE_ROWS)
    except pa.ArrowNotImplementedError:  # a nested type, for example
        return False


@lru_cache(maxsize=32)
def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Return Parquet's names of the columns: a list is one of its elements, a struct one for each field."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    found = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [found.column(i).path for i in range(len(found))]


def decode_rows(
    data: Data,
    schema: pa.Schema,
    *,
    records: int,
    raw_bytes: int,
    columns: Sequence[str] | None = None,
    step_bytes: int | None = None,
    location: str = "",
) -> pa.Table:
    """Return the rows of a Parquet file.

    Args:
        data: the file.
        schema: the version that it was written in.
        records: how many rows the manifest says it has.
        raw_bytes: the size of the rows as an Arrow table, as the manifest has it.
        columns: names of columns of `schema` to decode; None for all. If it is empty, the first one is decoded.
        step_bytes: about how many bytes of rows become a chunk of the table. Smaller chunks take less memory while
            they are made. None makes chunks of 65,536 rows.
        location: for messages.

    Raises:
        Corrupt: the bytes are no Parquet file, or not the one that the manifest describes.
    """
    step_rows = _STEP_ROWS
    if step_bytes is not None:
        step_rows = min(step_rows, max(_MIN_STEP_ROWS, step_bytes * records // max(1, raw_bytes)))
    return _Decoder(schema, records, raw_bytes, step_rows, location).decode(memoryview(data).cast("B"), columns)


@dataclass(frozen=True, slots=True)
class _Decoder:
    schema: pa.Schema
    records: int
    raw_bytes: int
    step_rows: int
    location: str

    def decode(self, data: memoryview, columns: Sequence[str] | None) -> pa.Table:
        names = self.schema.names
        wanted = names if columns is None else [name for name in names if name in columns] or names[:1]
        try:
            file = self._open(data)
            self._check_footer(file)
            rows = check_pages(data, wanted, Claims(self.records, self.raw_bytes), self.step_rows)
            steps = file.iter_batches(rows, columns=wanted, use_threads=False)
            # The name of a column may also read as the way to a field of another one: then both were decoded.
            table = self._collect(steps).select(wanted)
            return table.cast(pa.schema([self.schema.field(name) for name in wanted]))
        except (pa.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:
            if isinstance(error, MemoryError):
                raise
            raise self._corrupt(str(error)) from error

    def _open(self, data: memoryview) -> pq.ParquetFile:
        size = len(data)
        return pq.ParquetFile(
            pa.BufferReader(pa.py_buffer(data)),
            pre_buffer=False,
            # A footer has no text and no list that is longer than the file.
            thrift_string_size_limit=size,
            thrift_container_size_limit=size,
        )

    def _check_footer(self, file: pq.ParquetFile) -> None:
        # Nothing else is asked of the footer. Asked for a row group or a column that contradicts the schema, pyarrow
        # 26.0.1 ends the process: its binding does not catch the exception. Its reader checks them, and raises.
        footer = file.metadata
        # guard: a typed batch has as many rows as the manifest says
        if footer.num_rows != self.records:
            raise self._corrupt(f"{footer.num_rows} rows; the manifest says {self.records}")
        # guard: bound the row groups of a typed batch
        if footer.num_row_groups > 1 + self.records // _MIN_GROUP_ROWS:
            raise self._corrupt(f"{footer.num_row_groups} row groups for {self.records} rows")
        # guard: a typed batch has the schema of its version
        if not file.schema_arrow.equals(stored := _as_stored(self.schema)):
            raise self._corrupt(f"its columns are {_describe(file.schema_arrow)}; expected {_describe(stored)}")

    def _collect(self, steps: Iterator[pa.RecordBatch]) -> pa.Table:
        found: list[pa.RecordBatch] = []
        # Arrow may add a bit for each value that can be null.
        most = 2 * self.raw_bytes + _SLACK_BYTES
        size = rows = 0
        for batch in steps:
            size += batch.nbytes
            rows += batch.num_rows
            # guard: stop decoding a typed batch that is larger than the manifest says
            if size > most:
                raise self._corrupt(f"its rows take more than {most} bytes; the manifest says {self.raw_bytes}")
            for column in batch.columns:
                _validate(column)
            found.append(batch)
        if rows != self.records:
            raise self._corrupt(f"{rows} rows could be read; the manifest says {self.records}")
        return pa.Table.from_batches(found)

    def _corrupt(self, found: str) -> Corrupt:
        return damaged(f"batch {self.location or '(no location given)'} is corrupt: {found}")


def _validate(array: pa.Array) -> None:
    """Raise `ArrowInvalid` if the array is not what its type says: text in a file may be anything, and not UTF-8."""
    if pa.types.is_string(array.type) and _is_ascii(array):
        array = array.view(pa.binary())  # leaves the offsets to check
    array.validate(full=True)  # guard: text in a typed batch is UTF-8


def _is_ascii(text: pa.StringArray) -> bool:
    """Return whether all bytes of all values are ASCII, which is faster to find out than that each value is UTF-8."""
    text.validate()  # the first and the last offset
    _validity, offsets, data = text.buffers()
    if not len(text) or data is None:
        return True
    ends = memoryview(offsets).cast("i")
    start, end = ends[text.offset], ends[text.offset + len(text)]
    lowest = pc.min(pa.Array.from_buffers(pa.int8(), end - start, [None, data], offset=start)).as_py()
    return lowest is None or lowest >= 0  # as a signed number, every byte of a longer character is negative


def _as_stored(schema: pa.Schema) -> pa.Schema:
    """The schema as Parquet gives it back: it knows no zone but UTC."""
    return pa.schema([field.with_type(_type_as_stored(field.type)) for field in schema])


def _type_as_stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_as_stored(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_as_stored(kind.value_type)))
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_type_as_stored(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(_type_as_stored(kind.item_type)))
    return kind


def _fields_of(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _without_hidden_nulls(table: pa.Table) -> pa.Table:
    """Return the same rows without nulls of required fields inside null structs.

    Such a null is no value of the row. But pyarrow's Parquet writer refuses the whole table because of it.
    """
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if has_required(field.type):
            column = pa.chunked_array([_show(chunk, field, None) for chunk in column.chunks], field.type)  # noqa: PLW2901
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _show(array: pa.Array, field: pa.Field, visible: pa.Array | None) -> pa.Array:
    """Return the array without its nulls, if it is required and they all are where `visible` is false."""
    kind = field.type
    if pa.types.is_struct(kind):
        inside = array.is_valid() if visible is None else pc.and_(visible, array.is_valid())
        children = [_show(array.field(i), kind.field(i), inside) for i in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=_fields_of(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        if not has_required(kind):
            return array
        inner = kind.field(0) if pa.types.is_map(kind) else kind.value_field
        values = _show(array.values, inner, None)
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [values])
    # guard: hide only nulls that are inside a null struct
    if field.nullable or not array.null_count or visible is None or array.filter(visible).null_count:
        return array
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], 0, array.offset)


def _describe(schema: pa.Schema) -> str:
    shown = ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return shown if len(shown) <= 500 else f"{shown[:500]}…"
