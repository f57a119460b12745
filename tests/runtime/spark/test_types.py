"""Spark's types and Arrow's: what is decoded for a column, and what a frame may give (rfcs/0008)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import CalendarIntervalType, StructField, StructType

from forebay.buffer.base.errors import InvalidInput
from forebay.runtime.spark.types import arrow_schema, decoded_field, spark_schema, written_type

ITEM = pa.struct([pa.field("id", pa.uint64(), nullable=False), pa.field("n", pa.int32())])


def field(kind: pa.DataType) -> pa.Field:
    return pa.field("c", kind)


@pytest.mark.parametrize(
    ("held", "asked", "decoded"),
    [
        (pa.uint64(), pa.decimal128(20, 0), pa.uint64()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int32()),
        (pa.list_(pa.uint8()), pa.list_(pa.int16()), pa.list_(pa.uint8())),
        (ITEM, pa.struct([("n", pa.int64())]), pa.struct([("n", pa.int64())])),
        (ITEM, pa.struct([("id", pa.decimal128(20, 0))]), pa.struct([("id", pa.uint64())])),
        (pa.map_(pa.uint8(), pa.int8()), pa.map_(pa.int16(), pa.int32()), pa.map_(pa.uint8(), pa.int32())),
    ],
)
def test_column_is_decoded_in_the_buffers_type_or_in_a_wider_or_narrower_one_asked_for(
    held: pa.DataType, asked: pa.DataType, decoded: pa.DataType
) -> None:
    assert decoded_field(field(held), field(asked)).type == decoded


@pytest.mark.parametrize(
    ("held", "asked", "message"),
    [
        (pa.int64(), pa.float64(), "column c: expected bigint, and double was asked for"),
        (ITEM, pa.struct([("m", pa.int32())]), "column c has no field m; it has id, n"),
        (pa.list_(ITEM), pa.list_(pa.struct([("n", pa.string())])), r"column c.element.n: expected int, and string"),
    ],
)
def test_column_of_another_type_is_refused_with_the_way_to_it(
    held: pa.DataType, asked: pa.DataType, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        decoded_field(field(held), field(asked))


def test_frame_may_give_a_narrower_type_and_no_wider_one() -> None:
    assert written_type(field(pa.int64()), pa.int32()) == pa.int32()
    with pytest.raises(InvalidInput, match="column c: expected int, and bigint was given"):
        written_type(field(pa.int32()), pa.int64())


def test_columns_of_a_buffer_come_back_as_the_types_that_spark_gives() -> None:
    schema = pa.schema([field(pa.list_(ITEM)), pa.field("at", pa.timestamp("ms", "Europe/Berlin"), nullable=False)])
    shown = pa.struct([("id", pa.decimal128(20, 0)), ("n", pa.int32())])
    expected = pa.schema([field(pa.list_(pa.field("element", shown))), pa.field("at", pa.timestamp("us", "UTC"))])
    assert arrow_schema(spark_schema(schema)) == expected


def test_type_that_no_buffer_has_is_refused_by_column() -> None:
    with pytest.raises(InvalidInput, match="column c: Spark's type interval has no counterpart in a buffer"):
        arrow_schema(StructType([StructField("c", CalendarIntervalType())]))
