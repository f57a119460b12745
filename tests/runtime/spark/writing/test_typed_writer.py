"""DataFrames and streams written to typed buffers and topics by a real session (rfcs/0008)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_place import Place
from write_job import entries_in, head_of

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.either.schemas import evolve_schema
from forebay.buffer.producer import Producer
from forebay.buffer.topic import Topic, create_topic, partition_for
from forebay.runtime.spark.writing.writers import BatchWriter

SCHEMA = pa.schema([pa.field("user", pa.int64(), nullable=False), pa.field("page", pa.string())])


def make(place: Place, schema: pa.Schema = SCHEMA) -> None:
    with Producer(place.url, schema=schema, storage_options=place.storage_options):
        pass


def write(frame: DataFrame, place: Place, **options: Any) -> None:
    frame.write.format("forebay").options(**place.options, **options).mode("append").save()


def test_frame_becomes_parquet_batches_in_its_order_on_every_store(spark: SparkSession, any_place: Place) -> None:
    make(any_place)
    frame = spark.range(0, 3000, 1, 3).selectExpr("id as user", "concat('/', id) as page")
    write(frame, any_place, flushSizeBytes=10_000)
    store = any_place.open()
    assert entries_in(store) == [[{"user": i, "page": f"/{i}"} for i in range(3000)]]
    assert head_of(store).holds == {}
    assert {found.key.rpartition(".")[2] for found in store.list("data/")} == {"parquet"}


def test_narrower_types_are_cast_and_missing_columns_are_null(spark: SparkSession, place: Place) -> None:
    schema = pa.schema(
        [
            *SCHEMA,
            pa.field("ratio", pa.float64()),
            pa.field("big", pa.uint64()),
            pa.field("at", pa.timestamp("ms", "UTC")),
            pa.field("tags", pa.list_(pa.struct([("id", pa.int64()), ("note", pa.string())]))),
        ]
    )
    make(place, schema)
    columns = [
        "cast(1 as int) as user",
        "cast(0.5 as float) as ratio",
        "cast(18446744073709551615 as decimal(20,0)) as big",
        "timestamp'2026-01-02 03:04:05.678' as at",
        "array(named_struct('id', cast(2 as smallint))) as tags",
    ]
    write(spark.range(1).selectExpr(*columns), place)
    ((row,),) = entries_in(place.open())
    assert (row["user"], row["page"], row["ratio"], row["big"]) == (1, None, 0.5, 2**64 - 1)
    assert row["at"].isoformat() == "2026-01-02T03:04:05.678000+00:00"
    assert row["tags"] == [{"id": 2, "note": None}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("cast(id as string) as user", "column user: expected bigint, and string was given"),
        ("cast(id as double) as user", "column user: expected bigint, and double was given"),
        ("id as user, id as users", "there is no column users; the columns are user, page, and _call_metadata"),
        ("cast(id as string) as page", "the frame has no column user, which is required"),
        ("id as user, id as _call_metadata", "column _call_metadata is bigint; expected binary or string"),
    ],
)
def test_frame_that_does_not_fit_is_refused_by_column_before_a_task_runs(
    spark: SparkSession, place: Place, columns: str, message: str
) -> None:
    make(place)
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(*columns.split(", ")), place)
    assert head_of(place.open()).holds == {}


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.field("v", pa.int64(), nullable=False), "cast(null as bigint)", "column v: expected int64 not null"),
        (pa.field("v", pa.uint8()), "cast(300 as smallint)", "column v: expected uint8, found int16"),
        (
            pa.field("v", pa.timestamp("ms")),
            "timestamp_ntz'2026-01-01 00:00:00.000001'",
            "column v: expected timestamp",
        ),
    ],
)
def test_value_that_does_not_fit_fails_the_job_and_nothing_of_it_is_there(
    spark: SparkSession, place: Place, kind: pa.Field, value: str, message: str
) -> None:
    make(place, pa.schema([kind]))
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(f"{value} as v"), place)
    assert entries_in(place.open()) == [[]]


def test_column_call_metadata_is_the_metadata_of_its_rows(spark: SparkSession, place: Place) -> None:
    make(place)
    write(spark.range(4).coalesce(1).selectExpr("id as user", "string(id div 2) as _call_metadata"), place)
    rows = spark.read.format("forebay").load(place.url).select("user", "_call_metadata").collect()
    assert [tuple(row) for row in rows] == [(0, b"0"), (1, b"0"), (2, b"1"), (3, b"1")]


def test_key_column_chooses_the_partition_as_a_producer_does(spark: SparkSession, place: Place) -> None:
    create_topic(place.url, 3, schema=SCHEMA)
    wider = pa.schema([*SCHEMA, pa.field("more", pa.string())])
    evolve_schema(place.url, wider)
    write(spark.range(20).selectExpr("id as user", "'x' as more"), place, keyColumn="user")
    found = entries_in(place.open())
    for number, rows in enumerate(found):
        assert all(partition_for(b"%d" % row["user"], 3) == number for row in rows)
        assert len(head_of(Topic(place.url).partition(number)).schemas) == 2, "the partition has followed"
    assert sorted(row["user"] for rows in found for row in rows) == list(range(20))
    assert spark.read.format("forebay").load(place.url).where("more = 'x'").count() == 20


def test_key_column_is_refused_where_it_means_nothing(place: Place) -> None:
    make(place)
    schema = StructType([StructField("user", LongType())])
    with pytest.raises(InvalidInput, match="the option keyColumn is for topics with a schema; this is a buffer"):
        BatchWriter({**place.options, "keyColumn": "user"}, schema, overwrite=False)


def test_frame_of_columns_for_a_buffer_that_does_not_exist_is_told_to_make_a_typed_one(place: Place) -> None:
    schema = StructType([StructField("page", StringType())])
    with pytest.raises(InvalidInput, match=r"first make a typed buffer: Producer\(url, schema=…\)"):
        BatchWriter(place.options, schema, overwrite=False)


@pytest.mark.matrix
def test_stream_of_rows_is_written_once_also_if_an_epoch_is_repeated(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    target = Place(f"{place.url}-copy")
    for each in (place, target):
        make(each)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        frame = spark.readStream.format("forebay").options(**place.options, group="copy").load()
        query = (
            frame.select("user", "page")
            .writeStream.format("forebay")
            .options(**target.options, writerId="copy", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    write(spark.range(5).coalesce(1).selectExpr("id as user"), place)
    run()
    write(spark.range(5, 8).coalesce(1).selectExpr("id as user"), place)
    run()
    for commit in (checkpoint / "commits").iterdir():
        if commit.name.lstrip(".").startswith("1"):
            commit.unlink()
    run()
    assert [row["user"] for row in entries_in(target.open())[0]] == list(range(8))


def test_decimal_of_spark_goes_into_a_wider_decimal(spark: SparkSession, place: Place) -> None:
    make(place, pa.schema([pa.field("price", pa.decimal128(12, 2))]))
    write(spark.range(1).selectExpr("cast(1.25 as decimal(10,2)) as price"), place)
    assert entries_in(place.open()) == [[{"price": Decimal("1.25")}]]
