"""Batch reads by a real session: what Spark makes of the plan, the rows and the errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from read_job import fill, head_of
from spark_place import Place
from spark_versions import from_4_1

from forebay.buffer import create_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.topic import Topic

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    return spark.read.format("forebay").options(**place.options).options(**options).load()


def values(rows: DataFrame) -> list[str]:
    return sorted(row.text for row in rows.selectExpr("string(value) as text").collect())


def numbered(first: int, end: int) -> list[list[bytes]]:
    return [[b"%d-%d" % (number, entry) for entry in range(100)] for number in range(first, end)]


def flat(batches: list[list[bytes]]) -> list[str]:
    return sorted(entry.decode() for batch in batches for entry in batch)


def test_every_row_comes_once_with_exact_values_from_any_store(spark: SparkSession, any_place: Place) -> None:
    fill(any_place.open(), *numbered(0, 8))
    rows = load(spark, any_place, minPartitions=4)
    assert rows.schema.simpleString() == (
        "struct<sequence:bigint,index:int,ingestion_time:timestamp,metadata:binary,value:binary>"
    )
    assert rows.rdd.getNumPartitions() == 4
    assert sorted(tuple(row) for row in rows.collect()) == sorted(
        (number, entry, datetime.fromtimestamp(number, UTC).replace(tzinfo=None), b"m", b"%d-%d" % (number, entry))
        for number in range(8)
        for entry in range(100)
    )


def test_columns_of_a_given_schema_are_the_only_ones_read(spark: SparkSession, place: Place) -> None:
    store = place.open()
    create_topic(store, 2)
    topic = Topic(store)
    fill(topic.partition(0), [b"a"])
    fill(topic.partition(1), [b"b"], [b"c"])
    reader = spark.read.format("forebay").options(**place.options)
    rows = reader.schema("partition int, sequence bigint, value binary NOT NULL").load()
    assert sorted(tuple(row) for row in rows.collect()) == [(0, 0, b"a"), (1, 0, b"b"), (1, 1, b"c")]
    with pytest.raises(
        PySparkException, match=r"InvalidInput.*column value: expected binary, and string was asked for"
    ):
        reader.schema("value string").load().collect()


def test_empty_range_is_an_empty_frame(spark: SparkSession, place: Place) -> None:
    fill(place.open(), *numbered(0, 2))
    late = datetime.fromtimestamp(99, UTC).isoformat()
    assert load(spark, place, startingTime=late).count() == 0


def test_sql_reads_a_buffer_too(spark: SparkSession, place: Place) -> None:
    fill(place.open(), *numbered(0, 3))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING forebay OPTIONS (url '{place.url}', startingSequence 1)")
    assert spark.sql("SELECT count(*), max(sequence) FROM events").first() == (200, 2)


def test_damaged_object_fails_the_job_with_its_location_or_is_skipped(spark: SparkSession, place: Place) -> None:
    store = place.open()
    fill(store, *numbered(0, 3))
    store.put("data/1.batch", b"rubbish")
    with pytest.raises(PySparkException, match=r"Corrupt: .*/data/1.batch, batch 1, is damaged"):
        load(spark, place).collect()
    assert values(load(spark, place, onCorrupt="skip")) == flat([*numbered(0, 1), *numbered(2, 3)])


@from_4_1
def test_frame_is_planned_once_and_an_expired_hold_fails_it_clearly(spark: SparkSession, place: Place) -> None:
    """Spark keeps the plan of a frame: it shows the same rows until it is loaded again."""
    store = place.open()
    fill(store, *numbered(0, 2))
    rows = load(spark, place, holdSeconds=1)
    assert rows.count() == 200
    fill(store, *numbered(2, 3))
    assert rows.count() == 200
    (held,) = head_of(store).holds
    Queue(store).change_head(lambda head: head.without_hold(held), lambda head: not head.holds)
    store.delete(["data/0.batch"])
    with pytest.raises(PySparkException, match=r"Fenced: hold .* expired and was removed"):
        rows.collect()
    assert values(load(spark, place, startingSequence=1)) == flat(numbered(1, 3))


@from_4_1
def test_filters_are_pushed_where_the_session_and_the_option_allow_it(spark: SparkSession, place: Place) -> None:
    store = place.open()
    fill(store, *numbered(0, 6))
    wanted = "sequence >= 4 AND ingestion_time < timestamp'1970-01-01 00:00:05'"
    with pytest.raises(AnalysisException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(spark, place, pushFilters="true").where(wanted).collect()
    store.delete([f"data/{number}.batch" for number in range(4)])
    spark.conf.set(PUSHDOWN, "true")
    try:
        assert values(load(spark, place, pushFilters="true").where(wanted)) == flat(numbered(4, 5))
    finally:
        spark.conf.unset(PUSHDOWN)


@from_4_1
def test_spark_still_reuses_a_filtered_plan_for_the_whole_frame(spark: SparkSession, place: Place) -> None:
    """Why filters are not pushed unless asked for. When this fails, Spark has learnt it: ask no more."""
    fill(place.open(), *numbered(0, 3))
    spark.conf.set(PUSHDOWN, "true")
    try:
        asked = load(spark, place, pushFilters="true")
        assert asked.where("sequence = 1").count() == 100
        assert asked.count() == 100, "of 300"
        safe = load(spark, place)
        assert safe.where("sequence = 1").count() == 100
        assert safe.count() == 300
    finally:
        spark.conf.unset(PUSHDOWN)


def test_wrong_credentials_are_told_without_being_shown(spark: SparkSession, weed: Any) -> None:
    place = Place("s3://tests/never", {**weed.storage_options, "secret": "hush-hush"})
    with pytest.raises(PySparkException, match="Denied") as raised:
        load(spark, place).collect()
    assert "hush-hush" not in str(raised.value)


def test_plans_show_no_options(spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    fill(place.open(), *numbered(0, 1))
    rows = spark.read.format("forebay").option("storage.secret", "hush-hush").schema("sequence bigint").load(place.url)
    for mode in ("simple", "extended", "codegen", "formatted"):
        rows.explain(mode)
    shown = capsys.readouterr().out
    assert "BatchScan forebay" in shown
    assert "hush-hush" not in shown
    assert head_of(place.open()).holds == {}, "a plan that is only looked at holds nothing"
