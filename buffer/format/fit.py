"""Arrow columns in another type, where every value survives exactly.

`fit_column` is stricter than Arrow's cast, which turns text into numbers, takes times without a zone for UTC, and
rounds doubles to floats. It goes into lists, structs and maps, and matches the fields of a struct by name. What already
has the wanted type is not copied.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS: Final = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)


class Misfit(Exception):
    """A value does not fit its column."""

    path: str
    """The column, and inside nested types the way to the field."""
    wanted: str
    """The type that the column has."""
    found: str
    """What was found instead."""

    def __init__(self, path: str, wanted: str, found: str) -> None:
        super().__init__(path, wanted, found)
        self.path, self.wanted, self.found = path, wanted, found

    def __str__(self) -> str:
        column = f"column {self.path}: " if self.path else ""
        return f"{column}expected {self.wanted}, found {self.found}"


class UnknownColumn(Misfit):
    """A row has a column that the schema does not have, or a struct in it a field."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(path, "no column of this name", found)

    def __str__(self) -> str:
        return f"column {self.path}: the schema has no column of this name; found {self.found}"

    def __reduce__(self) -> tuple[type[UnknownColumn], tuple[str, str]]:
        return type(self), (self.path, self.found)


def describe(field: pa.Field) -> str:
    """Return a field's type as text, with `not null` if it is required."""
    return f"{field.type}{'' if field.nullable else ' not null'}"


def is_any_list(kind: pa.DataType) -> bool:
    """Return whether it is a list type of any layout."""
    return any(is_list(kind) for is_list in _LISTS)


def fit_column(column: pa.ChunkedArray, wanted: pa.Field, *, drop: bool = False) -> pa.ChunkedArray:
    """Return the column in the wanted type; the column itself if it has that type.

    Args:
        column: the values.
        wanted: the name and the type of the column to return.
        drop: leave out fields of structs that `wanted` does not have, rather than refuse them. This is for rows that
            were stored, so years are not checked again.

    Raises:
        Misfit: a value does not survive exactly, is null where `wanted` has a required field, or is a time that no
            reader could show.
    """
    if (
        column.type == wanted.type
        and not _look_inside(wanted.type, drop)
        and (wanted.nullable or not column.null_count)
    ):
        return column
    chunks = [_fit(chunk, wanted, wanted.name, drop) for chunk in column.chunks]
    return column if column.type == wanted.type else pa.chunked_array(chunks, wanted.type)


def _fit(array: pa.Array, wanted: pa.Field, path: str, drop: bool) -> pa.Array:
    if array.null_count and not wanted.nullable:  # guard: refuse nulls in required columns
        raise Misfit(path, describe(wanted), "null")
    kind, types = array.type, pa.types
    if kind == wanted.type and not _look_inside(kind, drop):
        return array
    if types.is_null(kind):
        return pa.nulls(len(array), wanted.type)
    if types.is_dictionary(kind):
        return _fit(array.dictionary_decode(), wanted, path, drop)
    if types.is_struct(kind) and types.is_struct(wanted.type):
        fitted = _fit_struct(array, wanted, path, drop)
    elif types.is_map(kind) and types.is_map(wanted.type):
        fitted = _fit_map(array, wanted, path, drop)
    elif is_any_list(kind) and types.is_list(wanted.type):
        fitted = _fit_list(array, wanted, path, drop)
    else:
        fitted = _cast(array, wanted, path)
        if not drop:
            check_years(fitted, wanted, path)
    return fitted


def check_years(array: pa.Array, field: pa.Field, path: str) -> None:
    """Raise `Misfit` if a date or time is outside the years 1 to 9999, in the column's own zone.

    Python has no other years: a reader could not show such a row, nor a dead letter hold it.
    """
    if pa.types.is_temporal(array.type):
        try:
            pc.min_max(array).as_py()
        except (OverflowError, ValueError) as error:  # guard: refuse times that readers cannot show
            raise Misfit(path, describe(field), "a time outside the years 1 to 9999") from error


def _look_inside(kind: pa.DataType, drop: bool) -> bool:
    """Return whether values of a type may be refused that already have the wanted type."""
    return has_required(kind) or (not drop and _has_times(kind))


def _has_times(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) or any(_has_times(kind.field(i).type) for i in range(kind.num_fields))


def has_required(kind: pa.DataType) -> bool:
    """Return whether a type has required fields inside, where Arrow itself does not look for nulls."""
    fields = [kind.item_field] if pa.types.is_map(kind) else [kind.field(i) for i in range(kind.num_fields)]
    return any(not field.nullable or has_required(field.type) for field in fields)


def _cast(array: pa.Array, wanted: pa.Field, path: str) -> pa.Array:
    if not _converts(array.type, wanted.type):  # guard: refuse a cast that changes values
        raise Misfit(path, describe(wanted), str(array.type))
    try:
        return array.cast(wanted.type)
    except pa.ArrowInvalid as error:
        raise Misfit(path, describe(wanted), f"{array.type}: {error}") from error


def _fit_struct(array: pa.StructArray, wanted: pa.Field, path: str, drop: bool) -> pa.Array:
    unknown = {field.name for field in array.type} - {field.name for field in wanted.type}
    if unknown and not drop:
        raise UnknownColumn(f"{path}.{min(unknown)}", str(array.type.field(min(unknown)).type))
    children = []
    for field in wanted.type:
        at, inside = array.type.get_field_index(field.name), f"{path}.{field.name}"
        child = array.field(at) if at >= 0 else pa.nulls(len(array), field.type)
        if not field.nullable and child.null_count and array.null_count:
            # A value below a null struct does not exist, so it may be null.
            _fit(child.filter(array.is_valid()), field, inside, drop)
            field = field.with_nullable(True)  # noqa: PLW2901
        children.append(_fit(child, field, inside, drop))
    return pa.StructArray.from_arrays(children, fields=list(wanted.type), mask=_nulls(array))


def _fit_list(array: pa.Array, wanted: pa.Field, path: str, drop: bool) -> pa.Array:
    values = _fit(array.flatten(), wanted.type.value_field, f"{path}.element", drop)
    offsets = _offsets(pc.list_value_length(array))
    return pa.ListArray.from_arrays(offsets, values, type=wanted.type, mask=_nulls(array))


def _fit_map(array: pa.MapArray, wanted: pa.Field, path: str, drop: bool) -> pa.Array:
    there = array.drop_null() if array.null_count else array
    first, last = there.offsets[0].as_py(), there.offsets[-1].as_py()
    keys = _fit(there.keys.slice(first, last - first), wanted.type.key_field, f"{path}.key", drop)
    values = _fit(there.items.slice(first, last - first), wanted.type.item_field, f"{path}.value", drop)
    lengths = pc.subtract(array.offsets[1:], array.offsets[:-1])
    offsets = _offsets(pc.if_else(array.is_valid(), lengths, None))
    return pa.MapArray.from_arrays(offsets, keys, values, type=wanted.type, mask=_nulls(array))


def _offsets(lengths: pa.Array) -> pa.Array:
    """Return where each list begins among the values of all lists that are not null."""
    ends = pc.cumulative_sum(pc.fill_null(lengths, 0)).cast(pa.int32())
    joined = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    # Without a bitmap of nulls: pyarrow 21 refuses offsets that have one, even if none is null.
    return pa.Array.from_buffers(pa.int32(), len(joined), [None, joined.buffers()[1]], offset=joined.offset)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _converts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Arrow's checked cast keeps every value, or raises."""
    types = pa.types
    if types.is_integer(found):
        return bool(types.is_integer(wanted) or types.is_floating(wanted) or types.is_decimal(wanted))
    if types.is_float16(found) or types.is_float32(found):
        return bool(types.is_floating(wanted) and found.bit_width < wanted.bit_width)
    if types.is_timestamp(found):
        return bool(types.is_timestamp(wanted) and (found.tz is None) == (wanted.tz is None))
    families = (_TEXT, _BYTES, (types.is_date,), (types.is_decimal,))
    return any(any(is_one(found) for is_one in kinds) and any(is_one(wanted) for is_one in kinds) for kinds in families)
