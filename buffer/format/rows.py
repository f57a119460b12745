"""The calls of a typed producer as one Arrow table. No value is dropped, and only floats are rounded (rfcs/0010).

A call is a `pyarrow.Table` or `RecordBatch`, a dict or a list of dicts, or a JSON document as `bytes` or a list of
them. A dict or a document is one row. Conversion is per batch: calls of one kind that follow each other are converted
together, a few thousand rows at a time. If that fails, the rows are halved until the calls at fault are found: a call
at fault costs at most a dozen more conversions of those few thousand rows. The other calls are not affected.

`columns.py` says which Python and JSON values fit which type. Arrow columns are matched by name; their values are
converted where every one survives exactly (`fit.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.columns import Fields, plain_dicts, show
from forebay.buffer.format.documents import Documents
from forebay.buffer.format.fit import Misfit, UnknownColumn, describe, fit_column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A call that was converted already. A converter of the same schema does not check its rows again."""

    table: pa.Table
    """Its rows."""


Call: TypeAlias = pa.Table | pa.RecordBatch | dict[str, Any] | bytes | list[dict[str, Any]] | list[bytes] | Fitted
"""What `produce` of a typed producer takes, or what became of it. It must not change until it is converted."""

_Kind: TypeAlias = Literal["arrow", "dicts", "documents", "fitted"]
_Rows: TypeAlias = list[Any] | pa.Table
_Build: TypeAlias = "Callable[[Any], pa.Table]"

_ROWS_AT_ONCE: Final = 2048
"""Number of rows that are converted together: few enough for the processor's cache."""
_MIN_CHUNK_BYTES: Final = 16 << 10
"""Chunks that are smaller than this on average are combined: Parquet's writer takes longer for each than to copy it."""


@dataclass(frozen=True, slots=True, eq=False)
class Converted:
    """What became of a number of calls."""

    table: pa.Table
    """The rows of all calls that fit, in order, in the converter's schema."""
    rows: list[int]
    """Number of rows of each call; 0 for a call that failed."""
    failures: dict[int, InvalidInput]
    """Why a call failed, by its index. The error names the row in the call, the column, the type and what was found."""


class RowConverter:
    """Converts calls to tables of one schema. It keeps no state between calls, so threads may share it."""

    def __init__(self, schema: pa.Schema) -> None:
        """Prepare for a schema in normal form (`check_schema`)."""
        self.schema = schema
        self._fields, self._documents = _prepare(schema)
        self._names = set(schema.names)

    def convert(self, calls: Sequence[Call]) -> Converted:
        """Return the rows of the calls as one table; calls that do not fit are left out and named."""
        tables: list[pa.Table] = []
        rows = [0] * len(calls)
        failures: dict[int, InvalidInput] = {}
        kinds = list(map(_kind_of, calls))
        for kind, group in groupby(range(len(calls)), kinds.__getitem__):
            indexes = list(group)
            if kind is None:
                failures.update((i, _refusal(calls[i])) for i in indexes)
            elif kind in {"arrow", "fitted"}:
                given = [_as_table(calls[i]) for i in indexes]
                for i, table in zip(indexes, given, strict=True):
                    rows[i] = table.num_rows
                # guard: check again what was converted to another schema
                if kind == "fitted" and all(table.schema.equals(self.schema) for table in given):
                    tables += given
                    continue
                ends = list(range(1, len(given) + 1))
                tables += _Search(self._fit, given, indexes, ends, failures).run()
            else:
                flat: list[Any] = []
                ends = []
                for i in indexes:
                    call = calls[i]
                    if isinstance(call, list):
                        flat += call
                    else:
                        flat.append(call)
                    ends.append(len(flat))
                    rows[i] = len(call) if isinstance(call, list) else 1
                build = self._build_dicts if kind == "dicts" else self._build_documents
                tables += _Search(build, flat, indexes, ends, failures).run()
        for i in failures:
            rows[i] = 0
        return Converted(_join(tables, self.schema), rows, failures)

    def _build_dicts(self, rows: list[Any]) -> pa.Table:
        return pa.Table.from_arrays(self._fields.build(plain_dicts(rows)), schema=self.schema)

    def _build_documents(self, rows: list[Any]) -> pa.Table:
        if not set(map(type, rows)) <= {bytes}:
            raise Misfit("", "a JSON document as bytes", show(next(row for row in rows if type(row) is not bytes)))
        return pa.Table.from_arrays(self._documents.build(rows), schema=self.schema)

    def _fit(self, tables: list[pa.Table] | pa.Table) -> pa.Table:
        if isinstance(tables, list):
            first = tables[0].schema
            # guard: join tables without columns only after the missing columns are added
            if not len(first) or not all(first.equals(table.schema) for table in tables[1:]):
                return pa.concat_tables([self._fit(table) for table in tables])
            tables = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
        return self._fit_table(tables)

    def _fit_table(self, table: pa.Table) -> pa.Table:
        names = table.column_names
        for name in names:
            if name not in self._names:
                raise UnknownColumn(name, str(table.schema.field(names.index(name)).type))
        if len(set(names)) != len(names):
            raise Misfit(next(name for name in names if names.count(name) > 1), "one column", "several of this name")
        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Misfit("", "valid Arrow data", str(error)) from error
        columns = []
        for field in self.schema:
            if field.name in names:
                columns.append(fit_column(table.column(field.name), field))
            elif field.nullable:
                columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            else:
                raise Misfit(field.name, describe(field), "no column of this name")
        return pa.Table.from_arrays(columns, schema=self.schema)


@lru_cache(maxsize=32)
def _prepare(schema: pa.Schema) -> tuple[Fields, Documents]:
    """Return what builds columns of a schema. It takes milliseconds to make, so that of the last schemas is kept."""
    return Fields(list(schema), "", "dicts"), Documents(schema)


class _Search:
    """Converts the rows of calls of one kind, a few thousand at a time, and finds the calls that do not fit."""

    def __init__(
        self, build: _Build, rows: _Rows, calls: list[int], ends: list[int], failures: dict[int, InvalidInput]
    ) -> None:
        self._build, self._rows, self._calls, self._ends, self._failures = build, rows, calls, ends, failures

    def run(self) -> list[pa.Table]:
        """Return the tables of the calls that fit, in order."""
        tables: list[pa.Table] = []
        first = start = 0
        for last, end in enumerate(self._ends, 1):
            if end - start >= _ROWS_AT_ONCE or last == len(self._ends):
                self._convert(first, last, tables)
                first, start = last, end
        return tables

    def _convert(self, first: int, last: int, tables: list[pa.Table]) -> None:
        """Convert the calls from `first` up to `last`, in halves if they do not convert together."""
        start = self._ends[first - 1] if first else 0
        rows = self._rows[start : self._ends[last - 1]]
        try:
            tables += [self._build(rows[at : at + _ROWS_AT_ONCE]) for at in range(0, len(rows), _ROWS_AT_ONCE)]
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a caller's own classes may raise anything
            if last - first == 1:
                # A call of Arrow data is one item here; inside it, rows are what is searched.
                found = rows[0] if isinstance(rows[0], pa.Table) else rows
                self._failures[self._calls[first]] = _explain(self._build, found, error)
                return
            middle = (first + last) // 2
            self._convert(first, middle, tables)
            self._convert(middle, last, tables)


def _explain(build: _Build, rows: _Rows, error: Exception) -> InvalidInput:
    """Return the error of a call that does not fit: that of its first row at fault."""
    try:
        if isinstance(rows, pa.Table):
            build(rows.slice(0, 0))
    except Misfit as structural:  # whatever its rows hold
        return InvalidInput(str(structural))
    first, length = 0, len(rows)
    while length > 1:
        half = (length + 1) // 2
        try:
            build(rows[first : first + half])
        except Exception as found:  # noqa: BLE001 - as above
            error, length = found, half
        else:
            first, length = first + half, length - half
    if len(rows) > 1:
        try:
            build(rows[first : first + 1])
        except Exception as found:  # noqa: BLE001
            error = found
    said = str(error) if isinstance(error, Misfit) else f"{type(error).__name__}: {error}"
    failure = InvalidInput(f"row {first}, {said}")
    failure.__cause__ = error
    return failure


def _kind_of(call: Any) -> _Kind | None:
    first = call[0] if type(call) is list and call else call
    if isinstance(first, dict):
        return "dicts"
    if isinstance(first, bytes):
        return "documents"
    if first is not call:
        return None
    if isinstance(call, pa.Table | pa.RecordBatch):
        return "arrow"
    if isinstance(call, Fitted):
        return "fitted"
    return "dicts" if type(call) is list else None


def _refusal(call: Any) -> InvalidInput:
    shown = f"a list of {type(call[0]).__name__}" if isinstance(call, list) and call else type(call).__name__
    return InvalidInput(
        "rows must be a pyarrow Table or RecordBatch, a dict, a JSON document as bytes, or a "
        f"list of dicts or of bytes, not {shown}"
    )


def _as_table(call: Any) -> pa.Table:
    if isinstance(call, Fitted):
        return call.table
    return call if isinstance(call, pa.Table) else pa.Table.from_batches([call])


def _join(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return one table, in few chunks."""
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    chunks = max(column.num_chunks for column in table.columns)
    are_small = table.get_total_buffer_size() < chunks * table.num_columns * _MIN_CHUNK_BYTES
    return table.combine_chunks() if chunks > 1 and are_small else table
