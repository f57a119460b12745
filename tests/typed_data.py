"""Schemas and rows for tests: values of every type that a typed buffer may have, and strategies that give them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import strategies as st

from forebay.buffer.format.schema import RESERVED

PLAIN = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.binary(16), pa.date32(), pa.decimal128(38, 10)),
    *(pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin")),
]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BERLIN = pa.timestamp("us", "Europe/Berlin")
EVERY_TYPE: list[tuple[str, pa.DataType, list[Any]]] = [
    ("bool", pa.bool_(), [True, None, False]),
    ("int8", pa.int8(), [-128, None, 127]),
    ("uint8", pa.uint8(), [0, None, 255]),
    ("int32", pa.int32(), [-(2**31), None, 2**31 - 1]),
    ("uint32", pa.uint32(), [0, None, 2**32 - 1]),
    ("int64", pa.int64(), [-(2**63), None, 2**63 - 1]),
    ("uint64", pa.uint64(), [0, None, 2**64 - 1]),
    ("float", pa.float32(), [0.5, None, float("inf")]),
    ("double", pa.float64(), [0.1, None, -0.0]),
    ("string", pa.string(), ["", None, "größer 🌊"]),
    ("binary", pa.binary(), [b"", None, b"\0\xff"]),
    ("fixed", pa.binary(2), [b"ab", None, b"\0\0"]),
    ("date", pa.date32(), [date(1900, 1, 1), None, date(2026, 1, 31)]),
    ("decimal", pa.decimal128(38, 10), [Decimal("-1.5"), None, Decimal("9" * 28 + "." + "9" * 10)]),
    ("ms", pa.timestamp("ms"), [datetime(1969, 1, 1), None, datetime(2026, 1, 31, 12)]),  # noqa: DTZ001
    ("utc", pa.timestamp("us", "UTC"), [NOON, None, NOON]),
    ("berlin", BERLIN, [NOON, None, NOON]),
    ("list", pa.list_(pa.int64()), [[], None, [1, None, 3]]),
    ("struct", pa.struct({"a": pa.int64(), "at": BERLIN}), [{"a": 1, "at": NOON}, None, {"a": None, "at": None}]),
    ("map", pa.map_(pa.string(), pa.int64()), [[], None, [("k", 1), ("l", None)]]),
    ("nested", pa.list_(pa.struct({"x": pa.list_(pa.string())})), [[{"x": ["a", None]}], None, [None, {"x": None}]]),
]  # fmt: skip
"""A name, a type and values of it that come back from a batch as they are."""

names = st.text(
    st.characters(exclude_categories=["Cs"], min_codepoint=32, exclude_characters='"\\'), min_size=1, max_size=8
)


def fields_of(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    each = st.builds(lambda name, kind, nullable: pa.field(name, kind, nullable=nullable), names, types, st.booleans())
    return st.lists(each, min_size=1, max_size=4, unique_by=lambda field: field.name.casefold())


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.builds(lambda kind, nullable: pa.list_(pa.field("element", kind, nullable=nullable)), types, st.booleans()),
        st.builds(
            lambda kind, nullable: pa.map_(pa.string(), pa.field("value", kind, nullable=nullable)),
            types,
            st.booleans(),
        ),
        fields_of(types).map(pa.struct),
    )


every_type = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=6)
every_schema = (
    fields_of(every_type).filter(lambda fields: not {f.name.casefold() for f in fields} & set(RESERVED)).map(pa.schema)
)

zones = st.sampled_from(
    [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns"), timezone(timedelta(hours=-7, minutes=3))]
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def values_of(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values that Arrow gives back as they are."""
    values = _values_of_type(field.type)
    return st.none() | values if field.nullable else values


def _values_of_type(kind: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - a table of types
    types = pa.types
    if types.is_integer(kind):
        low = -(2 ** (kind.bit_width - 1)) if types.is_signed_integer(kind) else 0
        return st.integers(low, low + 2**kind.bit_width - 1)
    if types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False, allow_infinity=False)
    if types.is_timestamp(kind):
        moments = st.datetimes(
            datetime.fromisoformat("1970-01-02"),
            datetime.fromisoformat("2200-01-01"),
            timezones=st.none() if kind.tz is None else zones,
            allow_imaginary=False,
        )
        step = 1000 if kind.unit == "ms" else 1
        return moments.map(lambda moment: moment.replace(microsecond=moment.microsecond // step * step))
    if types.is_decimal(kind):
        return st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1).map(
            lambda n: Decimal(f"{n}E-{kind.scale}")
        )
    if types.is_list(kind):
        return st.lists(values_of(kind.value_field), max_size=3)
    if types.is_map(kind):
        return st.dictionaries(texts, values_of(kind.item_field), max_size=3)
    if types.is_struct(kind):
        return rows_of(list(kind))
    if types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    plain: dict[int, st.SearchStrategy[Any]] = {
        pa.bool_().id: st.booleans(),
        pa.string().id: texts,
        pa.binary().id: st.binary(max_size=6),
        pa.date32().id: st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    }
    return plain[kind.id]


def rows_of(fields: list[pa.Field]) -> st.SearchStrategy[dict[str, Any]]:
    """Dicts that fit the fields; nullable ones may be missing."""
    required = {field.name: values_of(field) for field in fields if not field.nullable}
    return st.fixed_dictionaries(
        required, optional={field.name: values_of(field) for field in fields if field.nullable}
    )
