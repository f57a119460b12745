"""Spark's types and Arrow's: which columns a typed buffer has in Spark, and how rows are decoded for them (rfcs/0008).

A buffer's type becomes the one that Spark's own Parquet reader gives the same column: `uint32` is a `bigint`, `uint64`
a `decimal(20,0)`, bytes of a fixed size are `binary`, a timestamp is in microseconds. Every column is nullable, as in
Spark's own sources: a required column may become a nullable one while a query runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.schema import widens

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import DataType

_PLAIN: Final[dict[type[DataType], pa.DataType]] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", "UTC"),
    TimestampNTZType: pa.timestamp("us"),
}
_UNSIGNED: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark takes and gives values of a type.

    Raises:
        InvalidInput: no column of a buffer has such a type.
    """
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, MapType):
        value = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
        return pa.map_(arrow_type(kind.keyType), value)
    if isinstance(kind, StructType):
        return pa.struct(arrow_schema(kind))
    plain = next((arrow for spark, arrow in _PLAIN.items() if isinstance(kind, spark)), None)
    if plain is None:
        raise InvalidInput(f"Spark's type {kind.simpleString()} has no counterpart in a buffer: cast it")
    return plain


def arrow_schema(fields: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes and gives rows of these fields.

    Raises:
        InvalidInput: no buffer has a column of such a type; the message names it.
    """
    found = []
    for field in fields:
        try:
            found.append(pa.field(field.name, arrow_type(field.dataType), field.nullable))
        except InvalidInput as error:
            raise InvalidInput(f"column {field.name}: {error}") from None
    return pa.schema(found)


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for a column of a typed buffer."""
    types = pa.types
    kind = _as_spark_gives_it(kind)
    if types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if types.is_struct(kind):
        return spark_schema(pa.schema(list(kind)))
    return next(spark() for spark, arrow in _PLAIN.items() if arrow == kind)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns of a typed buffer as Spark shows them."""
    return StructType([StructField(field.name, spark_type(field.type)) for field in schema])


def _as_spark_gives_it(kind: pa.DataType) -> pa.DataType:
    """Return the type without fields that Spark has for one of a buffer; types with fields as they are."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else _UNSIGNED.get(kind, kind)


def decoded_field(held: pa.Field, asked: pa.Field) -> pa.Field:
    """Return the field in which a column of a buffer is decoded, to be cast to the type that Spark asked for.

    It is the buffer's own type where Spark shows that as the one asked for, and the type asked for where one of the two
    is wider. So a query keeps its columns if the buffer's become wider; a value that the query's type cannot hold is
    then an error. Fields of structs may be left out.

    Args:
        held: the column in the buffer's newest schema.
        asked: the column as Spark wants it.

    Raises:
        InvalidInput: the column has another type; the message names both.
    """
    return asked.with_type(_meet(held.type, asked.type, held.name, "asked for", _are_related))


def written_type(held: pa.Field, given: pa.DataType) -> pa.DataType:
    """Return the type to which a column that Spark gives is cast before it is fitted into a column of a buffer.

    Raises:
        InvalidInput: the column of the buffer does not hold every value of such a type; the message names both.
    """
    return _meet(held.type, given, held.name, "given", widens)


def _are_related(one: pa.DataType, other: pa.DataType) -> bool:
    return widens(one, other) or widens(other, one)


def _meet(
    held: pa.DataType, other: pa.DataType, path: str, verb: str, fits: Callable[[pa.DataType, pa.DataType], bool]
) -> pa.DataType:
    """Return the type of the buffer where Spark shows it as the other type, and else the other type, if it fits."""
    types = pa.types
    if types.is_struct(held) and types.is_struct(other):
        names = [field.name for field in held]
        unknown = [field.name for field in other if field.name not in names]
        if unknown:
            raise InvalidInput(f"column {path} has no field {unknown[0]}; it has {', '.join(names)}")
        fields = [(field, held.field(field.name).type, f"{path}.{field.name}") for field in other]
        return pa.struct([field.with_type(_meet(kind, field.type, at, verb, fits)) for field, kind, at in fields])
    if types.is_list(held) and types.is_list(other):
        element = _meet(held.value_type, other.value_type, f"{path}.element", verb, fits)
        return pa.list_(other.value_field.with_type(element))
    if types.is_map(held) and types.is_map(other):
        key = _meet(held.key_type, other.key_type, f"{path}.key", verb, fits)
        value = _meet(held.item_type, other.item_type, f"{path}.value", verb, fits)
        return pa.map_(key, other.item_field.with_type(value))
    shown = _as_spark_gives_it(held)
    if shown == other:
        return held
    if fits(other, shown):
        return other
    raise InvalidInput(
        f"column {path}: expected {spark_type(held).simpleString()}, and {spark_type(other).simpleString()} was {verb}"
    )
