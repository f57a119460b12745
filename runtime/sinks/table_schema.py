"""Which columns of a table hold which Arrow types, and how a table's schema meets that of the rows.

A table's column holds every value of the Arrow type that it was made for, exactly. `docs/parquet-and-delta.md` has the
list of types, and a test compares it with this module.

Columns, and fields of a struct, are matched by their exact names. A name that differs from a column's only in case is
refused in every format: Delta and Spark do not tell such names apart, and Iceberg does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.fit import Misfit, describe, fit_column
from forebay.buffer.format.schema import normalise, widens
from forebay.runtime.bad_entries import find_bad
from forebay.runtime.contract import SinkPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind: TypeAlias = Literal["added", "widened", "nullable", "converted", "conflict"]
"""How a column of the rows differs from the table's.

    added      the table has no such column; `merge_schema` adds it
    widened    the rows' type is wider; `merge_schema` widens the column where the format can
    nullable   the table requires a value, and the rows may lack it; `merge_schema` allows nulls where the format can
    converted  another type, which every value is converted to if that changes nothing
    conflict   no value of the rows' type can be in the column
"""


class DoesNotFit(Exception):
    """Rows cannot be in a table."""

    def __init__(self, reason: str, *, poison: bool = False, rows: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.poison = poison
        """Whether it is because of these rows, so that others may fit."""
        self.rows: Final = rows or {}
        """Why each row at fault does not fit, by its place; empty for all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How one column of the rows differs from the table's."""

    path: str
    """The column, and inside nested types the way to the field: `order.items.element.price`."""
    kind: Kind
    rows: str
    """The type that the rows have."""
    table: str = ""
    """The type that the table has; empty for an added column."""

    def __str__(self) -> str:
        return f"column {self.path}: {self.kind}, {f'{self.table} to ' * bool(self.table)}{self.rows}"


@dataclass(frozen=True, slots=True)
class TableFormat:
    """What a table format has columns for, and how it can change them."""

    name: str
    stands_for: Mapping[pa.DataType, pa.DataType]
    """Types that the format does not have, and the type that holds their values exactly instead."""
    promotes: frozenset[tuple[pa.DataType, pa.DataType]] = frozenset()
    """Types, and the wider types that a column of a table can change to."""
    promotes_decimals: bool = False
    """Whether a decimal column can change to more digits of the same scale."""
    relaxes: bool = False
    """Whether a required column can become nullable."""
    keeps_fixed_binary: bool = False

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that a table has for rows of a schema.

        Raises:
            InvalidInput: the format has no column for a type. The message names the column, and says what to use.
        """
        return pa.schema([field.with_type(self._column(field.type)) for field in normalise(schema)])

    def _column(self, kind: pa.DataType) -> pa.DataType:
        types = pa.types
        if types.is_timestamp(kind):
            return pa.timestamp("us", None if kind.tz is None else "UTC")
        if types.is_fixed_size_binary(kind):
            return kind if self.keeps_fixed_binary else pa.binary()
        if types.is_struct(kind):
            return pa.struct([field.with_type(self._column(field.type)) for field in kind])
        if types.is_list(kind):
            return pa.list_(kind.value_field.with_type(self._column(kind.value_type)))
        if types.is_map(kind):
            return pa.map_(self._column(kind.key_type), kind.item_field.with_type(self._column(kind.item_type)))
        return self.stands_for.get(kind, kind)

    def widens(self, old: pa.DataType, new: pa.DataType) -> bool:
        """Return whether a column of a table can change from one type to another."""
        if pa.types.is_decimal(old) and pa.types.is_decimal(new):
            return self.promotes_decimals and widens(old, new)
        return (old, new) in self.promotes


_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_UINT64: Final = pa.decimal128(20, 0)
DELTA: Final = TableFormat(
    "Delta",
    {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): _UINT64},
)
"""delta-rs can neither widen a column nor make a required one nullable."""
ICEBERG: Final = TableFormat(
    "Iceberg",
    {
        **dict.fromkeys([pa.int8(), pa.int16(), pa.uint8(), pa.uint16()], pa.int32()),
        pa.uint32(): pa.int64(),
        pa.uint64(): _UINT64,
    },
    promotes=frozenset({(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}),
    promotes_decimals=True,
    relaxes=True,
    keeps_fixed_binary=True,
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a table's schema and that of the rows make together."""

    columns: pa.Schema
    """The table's columns once it was changed."""
    changes: tuple[Difference, ...]
    """What has to change in the table."""
    others: tuple[Difference, ...]
    """Differences that stay."""

    def plan(self, target: str) -> SinkPlan:
        """Return what a sink would do with such rows; `target` says what is there now."""
        return SinkPlan(
            target,
            tuple(map(str, self.changes)),
            tuple(str(found) for found in self.others if found.kind != "conflict"),
            tuple(str(found) for found in self.others if found.kind == "conflict"),
        )

    def fit(self, rows: pa.Table) -> pa.Table:
        """Return rows in the table's columns. Columns that the rows lack are null.

        Raises:
            DoesNotFit: a value would change, or is null in a required column. It is poison, and names every such row.
        """
        conflicts = "; ".join(str(found) for found in self.others if found.kind == "conflict")
        if conflicts:
            raise DoesNotFit(
                f"{conflicts}: let the decoder give what the table has, or write to another table", poison=True
            )
        return fit_rows(rows, self.columns)


def meet(table: pa.Schema, rows: pa.Schema, table_format: TableFormat, *, merge: bool) -> Meeting:
    """Return how rows of a schema differ from a table.

    Args:
        table: its columns.
        rows: theirs.
        table_format: says how the table can change.
        merge: whether it may change.

    Raises:
        InvalidInput: a name differs from a column's only in case; or the format has no column for a type.
        DoesNotFit: the rows lack a column that the table requires, or have one that it lacks and may not get.
    """
    meeting = _Meeting(table_format, merge=merge)
    known = frozenset(table.names)
    theirs = [_column_for(field, table_format, is_known=field.name in known) for field in rows]
    columns = pa.schema(meeting.meet_fields([_normal_field(field) for field in table], theirs, ""))
    unknown = ", ".join(found.path for found in meeting.others if found.kind == "added")
    if unknown:  # guard: add no column unless asked
        raise DoesNotFit(
            f"the table has no column {unknown}: add it with merge_schema=True (in a job file, merge_schema = "
            "true), or leave it out of the decoder's columns"
        )
    return Meeting(columns, tuple(meeting.changes), tuple(meeting.others))


def _column_for(field: pa.Field, table_format: TableFormat, *, is_known: bool) -> pa.Field:
    try:
        return table_format.columns(pa.schema([field])).field(0)
    except InvalidInput:
        if not is_known:
            raise
        return field  # its values may still be converted to the table's column


def _normal_field(field: pa.Field) -> pa.Field:
    try:
        return normalise(pa.schema([field])).field(0)
    except InvalidInput:
        return field  # the table has a type that no typed buffer has


class _Meeting:
    def __init__(self, table_format: TableFormat, *, merge: bool) -> None:
        self._format = table_format
        self._merge = merge
        self.changes: list[Difference] = []
        self.others: list[Difference] = []

    def meet_fields(self, table: list[pa.Field], rows: list[pa.Field], prefix: str) -> list[pa.Field]:
        """The table's fields as they can become, and after them what the rows add."""
        theirs = {field.name: field for field in rows}
        _check_names(table, rows, prefix)
        fields = []
        for field in table:
            path, other = prefix + field.name, theirs.pop(field.name, None)
            if other is not None:
                fields.append(self._meet(field, other, path))
                continue
            if not field.nullable:
                raise DoesNotFit(f"the table's column {path} must not be null, and the rows have no such column")
            fields.append(field)
        for field in theirs.values():
            self._differ(Difference(prefix + field.name, "added", str(field.type)), can_change=True)
            fields.append(field.with_nullable(True))  # older rows do not have it
        return fields

    def _meet(self, table: pa.Field, rows: pa.Field, path: str) -> pa.Field:
        nullable = table.nullable
        if rows.nullable and not table.nullable:
            nullable = self._differ(
                Difference(path, "nullable", describe(rows), describe(table)), can_change=self._format.relaxes
            )
        return pa.field(table.name, self._meet_types(table.type, rows.type, path), nullable=nullable)

    def _meet_types(self, table: pa.DataType, rows: pa.DataType, path: str) -> pa.DataType:
        types = pa.types
        if types.is_struct(table) and types.is_struct(rows):
            return pa.struct(self.meet_fields(list(table), list(rows), f"{path}."))
        if types.is_list(table) and types.is_list(rows):
            return pa.list_(self._meet(table.value_field, rows.value_field, f"{path}.element"))
        if types.is_map(table) and types.is_map(rows):
            key = self._meet_types(table.key_type, rows.key_type, f"{path}.key")
            return pa.map_(key, self._meet(table.item_field, rows.item_field, f"{path}.value"))
        if table == rows or widens(rows, table):
            return table
        kind: Kind = "widened" if widens(table, rows) else "converted" if _casts(rows, table) else "conflict"
        difference = Difference(path, kind, str(rows), str(table))
        return rows if self._differ(difference, can_change=self._format.widens(table, rows)) else table

    def _differ(self, difference: Difference, *, can_change: bool) -> bool:
        """Note a difference, and return whether the table changes because of it."""
        changes = can_change and self._merge
        (self.changes if changes else self.others).append(difference)
        return changes


def _check_names(table: Iterable[pa.Field], rows: Iterable[pa.Field], prefix: str) -> None:
    columns = {field.name.casefold(): field.name for field in table}
    for field in rows:
        same = columns.get(field.name.casefold(), field.name)
        if same != field.name:  # guard: refuse a column that differs from the table's only in case
            raise InvalidInput(
                f"column {prefix}{field.name} differs from the table's column {prefix}{same} only in case: rename one "
                "of them"
            )


def _casts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast converts values of a type, or refuses them one by one."""
    types = pa.types
    if types.is_nested(found) or types.is_nested(wanted):
        return False
    # guard: refuse a cast that takes a number for a truth value or for a time
    if _is_number(found) and (types.is_boolean(wanted) or types.is_temporal(wanted)):
        return False  # 5 would be true, and milliseconds would be counted as microseconds
    if types.is_temporal(found) and _is_number(wanted):
        return False  # the number would depend on the unit
    if types.is_timestamp(found) and types.is_timestamp(wanted) and (found.tz is None) != (wanted.tz is None):
        return False  # the cast takes times without a zone for UTC
    try:
        pa.array([], found).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the columns of a table. Columns that the rows lack are null.

    Raises:
        DoesNotFit: a value would change, or is null in a required column. It is poison, and names every such row.
    """
    try:
        return _fit_rows(rows, schema)
    except Misfit as misfit:
        reason = f"the table's {misfit}"
    bad = find_bad(lambda part: _try_rows(rows.slice(part.start, len(part)), schema), rows.num_rows, reason)
    raise DoesNotFit(next(iter(bad.values())), poison=True, rows=bad)


def _try_rows(rows: pa.Table, schema: pa.Schema) -> str | None:
    try:
        _fit_rows(rows, schema)
    except Misfit as misfit:
        return f"the table's {misfit}"
    return None


def _fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        _fit(rows[field.name], field) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _fit(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return fit_column(column, field)
    except Misfit:
        if column.null_count and not field.nullable:
            raise
        if column.type == field.type or not _casts(column.type, field.type):
            raise
    try:
        fitted = column.cast(field.type)
        changed = _changed(column, fitted)
    except pa.ArrowInvalid as error:
        raise Misfit(field.name, describe(field), f"{column.type}: {error}") from None
    if changed:  # guard: refuse a conversion that changes a value
        raise Misfit(field.name, describe(field), f"{column.type} {changed}")
    return fitted


def _changed(column: pa.ChunkedArray, fitted: pa.ChunkedArray) -> str:
    """The first value that a cast changed, as text: it rounds a double to a float, and a time to a date."""
    if pa.types.is_floating(fitted.type) and any(is_text(column.type) for is_text in _TEXT):
        # Text becomes the nearest number, and a number that is too large infinity.
        column = column.filter(pc.and_(pc.is_inf(fitted), pc.match_substring_regex(column, "[0-9]")))
        return str(column[0].as_py()) if len(column) else ""
    if not (pa.types.is_floating(column.type) or pa.types.is_decimal(column.type) or pa.types.is_temporal(column.type)):
        return ""  # text is parsed, or refused
    back = fitted.cast(column.type, safe=False)
    differs = pc.not_equal(back, column)
    if pa.types.is_floating(column.type):
        differs = pc.and_(differs, pc.invert(pc.and_(pc.is_nan(back), pc.is_nan(column))))
    changed = column.filter(differs)
    return str(changed[0].as_py()) if len(changed) else ""
