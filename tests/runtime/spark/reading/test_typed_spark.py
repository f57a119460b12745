"""Typed buffers in a real session: columns, types, pruning, streams and evolution (rfcs/0008)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark_place import Place

from forebay.buffer.producer import Producer
from forebay.buffer.topic import TopicProducer, create_topic

SCHEMA = pa.schema([pa.field("user", pa.int64(), nullable=False), pa.field("page", pa.string())])
ROWS = [{"user": 7, "page": "/"}, {"user": 8, "page": None}, {"user": 9, "page": "/cart"}]


def produce(place: Place, rows: list[dict[str, Any]], schema: pa.Schema | None = SCHEMA, **options: Any) -> None:
    with Producer(place.url, schema=schema, storage_options=place.storage_options, **options) as producer:
        producer.produce(rows, b"m").result()


def load(spark: SparkSession, place: Place, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("forebay").options(**place.options, **options)
    return (reader if schema is None else reader.schema(schema)).load()


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_typed_buffer_shows_its_columns_and_then_those_that_readers_add(spark: SparkSession, any_place: Place) -> None:
    produce(any_place, ROWS)
    frame = load(spark, any_place)
    assert frame.dtypes == [
        ("user", "bigint"),
        ("page", "string"),
        ("_sequence", "bigint"),
        ("_index", "int"),
        ("_ingestion_time", "timestamp"),
        ("_call_metadata", "binary"),
    ]
    rows = frame.drop("_ingestion_time").collect()
    assert [tuple(row) for row in rows] == [(7, "/", 0, 0, b"m"), (8, None, 0, 1, b"m"), (9, "/cart", 0, 2, b"m")]
    assert frame.groupBy("page").count().count() == 3


KINDS: list[tuple[pa.DataType, str, Any]] = [
    (pa.bool_(), "boolean", True),
    (pa.int8(), "tinyint", -8),
    (pa.int16(), "smallint", -16),
    (pa.int32(), "int", -32),
    (pa.uint8(), "smallint", 255),
    (pa.uint16(), "int", 65_535),
    (pa.uint32(), "bigint", 2**32 - 1),
    (pa.uint64(), "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.float32(), "float", 0.5),
    (pa.float64(), "double", 0.1),
    (pa.large_string(), "string", "ö"),
    (pa.dictionary(pa.int32(), pa.string()), "string", "word"),
    (pa.large_binary(), "binary", b"\x00"),
    (pa.binary(2), "binary", b"ab"),
    (pa.date32(), "date", date(2026, 11, 1)),
    (pa.decimal128(12, 2), "decimal(12,2)", Decimal("1.25")),
    (pa.timestamp("ms", "UTC"), "timestamp", datetime(2026, 1, 2, 3, tzinfo=UTC)),
    (pa.timestamp("us", "Europe/Berlin"), "timestamp", datetime(2026, 1, 2, 3, tzinfo=UTC)),
    (pa.timestamp("ms"), "timestamp_ntz", datetime(2026, 1, 2, 3)),  # noqa: DTZ001 - without a zone, as the column
    (pa.list_(pa.field("element", pa.uint8(), nullable=False)), "array<smallint>", [1, 2]),
    (pa.map_(pa.string(), pa.uint32()), "map<string,bigint>", {"a": 1}),
]


def test_every_type_of_a_buffer_has_a_type_in_spark_and_keeps_its_values(spark: SparkSession, place: Place) -> None:
    inner = pa.struct([pa.field("id", pa.uint64(), nullable=False), pa.field("at", pa.timestamp("ms", "UTC"))])
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    schema = pa.schema(
        [*(pa.field(f"c{i}", kind) for i, (kind, _, _) in enumerate(KINDS)), pa.field("nested", pa.list_(inner))]
    )
    values = {f"c{i}": value for i, (_, _, value) in enumerate(KINDS)}
    values |= {f"c{i}": int(value) for i, (kind, _, value) in enumerate(KINDS) if kind == pa.uint64()}
    rows = [{**values, "nested": [{"id": 1, "at": moment}]}, dict.fromkeys(schema.names)]
    produce(place, rows, schema)
    frame = load(spark, place).drop("_sequence", "_index", "_ingestion_time", "_call_metadata")
    assert frame.dtypes == [
        *((f"c{i}", shown) for i, (_, shown, _) in enumerate(KINDS)),
        ("nested", "array<struct<id:decimal(20,0),at:timestamp>>"),
    ]
    full, empty = frame.collect()
    zoned = {i for i, (_, shown, _) in enumerate(KINDS) if shown == "timestamp"}
    for i, (kind, _, value) in enumerate(KINDS):
        shown = full[i].astimezone(UTC) if i in zoned else full[i]
        assert shown == value, kind
    assert full["nested"][0]["id"] == Decimal(1)
    assert set(empty) == {None}


def test_schema_takes_some_columns_in_another_order_and_a_wider_type(spark: SparkSession, place: Place) -> None:
    schema = pa.schema(
        [pa.field("n", pa.int32()), pa.field("inner", pa.struct([("a", pa.int8()), ("b", pa.string())]))]
    )
    produce(place, [{"n": 1, "inner": {"a": 2, "b": "x"}}], schema)
    assert found(load(spark, place, "_index int, inner struct<a: int>, n bigint")) == [(0, (2,), 1)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            "users bigint",
            "there is no column users bigint; the columns are user bigint, page string, _sequence bigint",
        ),
        ("user string", "column user: expected bigint, and string was asked for"),
        ("sequence bigint", r"there is no column sequence bigint.*correct its name or its type in \.schema"),
        ("value binary", "there is no column value of bytes: there are rows of a schema"),
    ],
)
def test_column_that_the_buffer_does_not_have_is_refused_by_name(
    spark: SparkSession, place: Place, schema: str, message: str
) -> None:
    produce(place, ROWS)
    with pytest.raises(PySparkException, match=message):
        load(spark, place, schema).collect()


def test_topic_shows_its_columns_and_the_partition_if_asked(spark: SparkSession, place: Place) -> None:
    create_topic(place.url, 3, schema=SCHEMA)
    with TopicProducer(place.url) as producer:
        producer.produce(ROWS, key_column="user")
    assert load(spark, place).columns[:2] == ["user", "page"]
    rows = found(load(spark, place, "user bigint, partition int"))
    assert sorted(user for user, _ in rows) == [7, 8, 9]
    assert {partition for _, partition in rows} <= {0, 1, 2}


def test_range_of_time_and_sequence_works_on_rows(spark: SparkSession, place: Place) -> None:
    produce(place, ROWS[:1])
    produce(place, ROWS[1:])
    assert found(load(spark, place, "user bigint", startingSequence=1)) == [(8,), (9,)]
    assert found(load(spark, place, "user bigint", endingTime="2001-01-01T00:00:00Z")) == []


def test_rows_of_every_version_are_shown_in_the_newest(spark: SparkSession, place: Place) -> None:
    produce(place, ROWS[:1])
    wider = pa.schema([*SCHEMA, pa.field("referrer", pa.string())])
    produce(place, [{"user": 10, "referrer": "ad"}], wider, evolve=True)
    assert found(load(spark, place).select("user", "referrer")) == [(7, None), (10, "ad")]


def test_read_of_the_added_columns_alone_fetches_no_object(spark: SparkSession, place: Place) -> None:
    produce(place, ROWS)
    produce(place, ROWS)
    for path in Path(place.url.removeprefix("file://"), "data").iterdir():
        path.unlink()
    expected = [(sequence, index, b"m") for sequence in range(2) for index in range(3)]
    assert found(load(spark, place, "_sequence bigint, _index int, _call_metadata binary")) == expected
    assert load(spark, place, "_sequence bigint").count() == 6
