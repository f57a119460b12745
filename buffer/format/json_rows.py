"""Rows as JSON documents that a typed producer of the same schema takes back unchanged (`documents.py`).

Arrow and JSON differ in a few types:

    binary         base64 text
    date32         "2026-01-31"
    timestamp      ISO 8601: "2026-01-31T12:00:00.000000Z" in a column with a zone, always in UTC; without the Z in a
                   column without a zone
    decimal128     text, with every digit of the scale
    map            an object; a list of pairs if a key is there twice
    NaN, infinity  the text "NaN", "Infinity" or "-Infinity", since JSON has no such numbers

A producer refuses a map with a key that is there twice, and NaN and infinities as text. Everything else comes back as
it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

_encode: Final = msgspec.json.Encoder().encode
_types: Final = pa.types


def rows_as_json(table: pa.Table) -> list[bytes]:
    """Return a JSON document for each row, without a newline at its end."""
    names = table.column_names
    columns = [_values(column) for column in table.columns]
    if not columns:
        return [b"{}"] * table.num_rows
    return [_encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as what msgspec encodes as documented above."""
    kind = column.type
    if (utc := _replace(kind, _in_utc)) != kind:
        column = column.cast(utc)
    # Python knows only the years 1 to 9999, so Arrow makes the text.
    if (text := _replace(utc, _as_text)) != utc:
        column = column.cast(text)
    values: list[Any] = column.to_pylist()
    finish = _finisher(kind)
    return values if finish is None else [None if value is None else finish(value) for value in values]


def _in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if _types.is_timestamp(kind) and kind.tz is not None else kind


def _as_text(kind: pa.DataType) -> pa.DataType:
    return pa.string() if _types.is_temporal(kind) and not _types.is_duration(kind) else kind


def _replace(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with the types of all values inside changed, and null allowed.

    Arrow casts no null to a type inside which null is not allowed, even where the value around it is null.
    """

    def inside(field: pa.Field) -> pa.Field:
        return pa.field(field.name, _replace(field.type, change))

    if _types.is_struct(kind):
        return pa.struct([inside(field) for field in kind])
    if _types.is_map(kind):
        return pa.map_(inside(kind.key_field).with_nullable(False), inside(kind.item_field))
    if _types.is_list(kind):
        return pa.list_(inside(kind.value_field))
    return change(kind)


def _finisher(kind: pa.DataType) -> Callable[[Any], Any] | None:  # noqa: PLR0911 - a table of types
    """Return what is still to be done to each value of a type in Python; None for nothing."""
    if _types.is_timestamp(kind):
        return _with_t
    if _types.is_floating(kind):
        return _finite_or_text
    if _types.is_struct(kind):
        parts = {field.name: _or_null(finish) for field in kind if (finish := _finisher(field.type)) is not None}
        if not parts:
            return None
        return lambda row: {**row, **{name: finish(row[name]) for name, finish in parts.items()}}
    if _types.is_map(kind):
        finish_item = _or_null(_finisher(kind.item_type))
        return lambda pairs: _as_object([(key, finish_item(item)) for key, item in pairs])
    if _types.is_list(kind) and (found := _finisher(kind.value_type)) is not None:
        finish_each = _or_null(found)
        return lambda values: [finish_each(value) for value in values]
    return None


def _or_null(finish: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if finish is None:
        return lambda value: value
    return lambda value: None if value is None else finish(value)


def _with_t(text: str) -> str:
    return text.replace(" ", "T", 1)


def _finite_or_text(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _as_object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | list[tuple[Any, Any]]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else pairs
