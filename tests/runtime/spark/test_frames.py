"""Frames that a driver plans: which way they are read, what they show, and what keeps it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from patience import wait_for
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from read_job import fill, head_of, trim
from spark_place import Place

from forebay import Denied, InvalidInput, NotFound, Producer, Trimmed, Unsupported
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.runtime.spark import count, hold, read
from forebay.testing import ManualClock

SCHEMA = pa.schema([pa.field("user", pa.int32(), nullable=False), pa.field("page", pa.string())])
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def produce(place: Place, *batches: list[dict[str, Any]], schema: pa.Schema = SCHEMA, **options: Any) -> None:
    with Producer(place.url, schema=schema, storage_options=place.storage_options, **options) as producer:
        for rows in batches:
            producer.produce(rows)
            producer.flush().result()


def users(first: int, end: int) -> list[dict[str, Any]]:
    return [{"user": number, "page": f"/{number}"} for number in range(first, end)]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def plan(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    frame.explain(extended=True)
    return capsys.readouterr().out


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "forebay.spark"):
        yield caplog


def test_typed_buffer_is_read_by_sparks_own_reader_and_both_plan_and_log_say_so(
    spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str], told: pytest.LogCaptureFixture
) -> None:
    produce(place, users(0, 3), users(3, 5))
    frame = read(spark, place.url)
    assert frame.dtypes == [("user", "int"), ("page", "string")]
    assert rows(frame) == [(number, f"/{number}") for number in range(5)]
    assert f"{place.url}: 2 batches by Spark's own Parquet reader" in told.messages
    pruned = plan(frame.where("user > 3").select("user"), capsys)
    assert "FileScan parquet [user" in pruned
    assert "PushedFilters: [IsNotNull(user), GreaterThan(user,3)], ReadSchema: struct<user:int>" in pruned


def test_columns_are_those_asked_for_in_their_order(spark: SparkSession, place: Place) -> None:
    produce(place, users(0, 2))
    assert read(spark, place.url, ["page", "user"]).columns == ["page", "user"]
    for wrong in ([], ["user", "user"], "user"):
        with pytest.raises(InvalidInput, match="columns must"):
            read(spark, place.url, wrong)
    with pytest.raises(InvalidInput, match=r"^there is no column pages; the columns are user, page$"):
        read(spark, place.url, ["pages"])


def test_read_that_fails_keeps_no_hold(spark: SparkSession, place: Place) -> None:
    produce(place, users(0, 2))
    with pytest.raises(InvalidInput, match=r"no column _index; the columns are user, page\. records=True adds"):
        read(spark, place.url, ["_index"])
    assert head_of(place.open()).holds == {}


def test_batches_of_older_versions_are_shown_in_the_newest_schema(spark: SparkSession, place: Place) -> None:
    produce(place, users(0, 1))
    wider = pa.schema([("user", pa.int64()), ("page", pa.string()), ("took", pa.float32())])
    produce(place, [{"user": 2**40, "page": "/", "took": 0.5}], schema=wider, evolve=True)
    produce(place, [{"took": 2.0**60}], schema=pa.schema([*list(wider)[:2], ("took", pa.float64())]), evolve=True)
    found = read(spark, place.url).orderBy("took").collect()
    assert [tuple(row) for row in found] == [(0, "/0", None), (2**40, "/", 0.5), (None, None, 2.0**60)]


def test_decimal_that_has_become_wider_can_be_filtered_by_a_number_that_older_files_could_not_hold(
    spark: SparkSession, place: Place, told: pytest.LogCaptureFixture
) -> None:
    """Spark's own reader makes such a number as short as the older file's, and fails."""
    produce(place, [{"cost": Decimal(1)}], schema=pa.schema([("cost", pa.decimal128(5, 2))]))
    large = Decimal(10**15)
    produce(place, [{"cost": large}], schema=pa.schema([("cost", pa.decimal128(20, 2))]), evolve=True)
    frame = read(spark, place.url)
    assert rows(frame.where(f"cost >= {large}.00")) == [(large,)]
    assert rows(frame.where(f"cost < {large}.00")) == [(Decimal(1),)]
    assert "more digits than an older file's decimals" in told.text
    told.clear()
    assert rows(read(spark, place.url, start=1)) == [(large,)]
    assert "by Spark's own Parquet reader" in told.text


def test_records_and_bytes_go_through_the_format(
    spark: SparkSession, place: Place, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    produce(place, users(0, 2))
    frame = read(spark, place.url, ["user"], records=True)
    assert frame.columns == ["user", "_sequence", "_index", "_ingestion_time", "_call_metadata"]
    assert rows(frame.select("user", "_sequence", "_index")) == [(0, 0, 0), (1, 0, 1)]
    other = Place(f"file://{tmp_path}/bytes")
    fill(other.open(), [b"a", b"b"], [b"c"])
    assert rows(read(spark, other.url)) == [(b"a",), (b"b",), (b"c",)]
    assert read(spark, other.url, records=True).columns == ["value", "sequence", "index", "ingestion_time", "metadata"]
    assert "1 batch through the format forebay: only the format adds the columns of records" in told.text
    assert "2 batches through the format forebay: it holds bytes" in told.text


def test_store_that_hadoop_cannot_open_is_read_through_the_format(
    spark: SparkSession, weed: Any, told: pytest.LogCaptureFixture
) -> None:
    place = Place("s3://tests/frames", weed.storage_options)
    produce(place, users(0, 2), users(2, 4))
    with hold(spark, place.url, storage_options=place.storage_options) as held:
        assert rows(held.read(["user"], start=1)) == [(2,), (3,)]
    assert "through the format forebay: the session has no FileSystem for s3a://" in told.text


def test_folder_whose_name_is_a_pattern_or_has_blanks_is_read_as_it_is(
    spark: SparkSession, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    for name, says in (("_a b%20ü", "own Parquet reader"), ("day=3", "own Parquet reader"), ("[ab]", "for a pattern")):
        place = Place((tmp_path / name).as_uri())
        produce(place, users(0, 2))
        told.clear()
        assert rows(read(spark, tmp_path / name)) == [(0, "/0"), (1, "/1")]
        assert says in told.text


def test_topic_is_read_whole_by_either_way(spark: SparkSession, place: Place) -> None:
    create_topic(place.url, 3, schema=SCHEMA)
    with TopicProducer(place.url) as producer:
        producer.produce(users(0, 20), key_column="user").result()
    wanted = [(number, f"/{number}") for number in range(20)]
    assert rows(read(spark, place.url)) == wanted
    assert rows(read(spark, place.url, records=True).select("user", "page")) == wanted
    assert count(place.url) == 20
    with pytest.raises(InvalidInput, match="sequence 1 is another batch in each partition"):
        read(spark, place.url, start=1)
    with pytest.raises(InvalidInput, match="sequence 1 is another batch in each partition"):
        count(place.url, end=1)


def test_range_is_the_same_by_either_way_and_for_count(spark: SparkSession, place: Place) -> None:
    produce(place, *(users(number, number + 1) for number in range(6)))
    for start, end, wanted in ((2, 3, [2, 3]), (4, None, [4, 5]), (None, 0, [0]), (3, 1, [])):
        for records in (False, True):
            frame = read(spark, place.url, start=start, end=end, records=records)
            assert [user for (user,) in rows(frame.select("user"))] == wanted
        assert count(place.url, start=start, end=end) == len(wanted)
    late = datetime(2100, 1, 1, tzinfo=UTC)
    assert read(spark, place.url, start=late).count() == 0 == count(place.url, start=late)


def test_swept_file_is_an_error_even_if_the_session_ignores_missing_files(spark: SparkSession, place: Place) -> None:
    produce(place, users(0, 2), users(2, 4))
    for name in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
        spark.conf.set(name, "true")
    try:
        frame = read(spark, place.url)
        (swept, *_) = sorted(found.key for found in place.open().list("data/"))
        place.open().delete([swept])
        with pytest.raises(Py4JJavaError, match=r"FAILED_READ_FILE\.FILE_NOT_EXIST"):
            frame.collect()
        place.open().put(swept, b"rubbish")
        with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
            read(spark, place.url).collect()
    finally:
        for name in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
            spark.conf.unset(name)


def test_old_dates_are_those_that_were_written_whatever_the_session_says(spark: SparkSession, place: Place) -> None:
    produce(place, [{"day": date(1200, 1, 1)}], schema=pa.schema([("day", pa.date32())]))
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    try:
        assert rows(read(spark, place.url).selectExpr("string(day)")) == [("1200-01-01",)]
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


@pytest.mark.parametrize("before", [None, "777"])
def test_files_are_looked_for_in_few_tasks_and_the_setting_is_put_back(
    spark: SparkSession, place: Place, before: str | None
) -> None:
    produce(place, *([{"user": number}] for number in range(40)))  # above 32 files Spark starts a job
    if before is not None:
        spark.conf.set(LISTING, before)
    try:
        spark.sparkContext.setJobGroup(place.url, "")
        frame = read(spark, place.url)
        tracker = spark.sparkContext.statusTracker()
        (job,) = tracker.getJobIdsForGroup(place.url)
        stages = [tracker.getStageInfo(stage) for stage in tracker.getJobInfo(job).stageIds]
        assert [stage.numTasks for stage in stages] == [2]
        assert spark.conf.get(LISTING, None) == before
    finally:
        spark.conf.unset(LISTING)
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert frame.count() == 40


def test_many_small_files_go_through_the_format(
    spark: SparkSession, place: Place, told: pytest.LogCaptureFixture
) -> None:
    produce(place, *([{"user": number}] for number in range(101)))
    assert read(spark, place.url).count() == 101
    assert "101 batches through the format forebay: the files have" in told.text


def test_hold_shows_the_same_moment_to_all_of_its_reads(spark: SparkSession, place: Place) -> None:
    produce(place, users(0, 2))
    with hold(spark, place.url) as held:
        produce(place, users(2, 4))
        assert len(head_of(place.open()).holds) == 1
        assert rows(held.read(["user"])) == rows(held.read(["user"], records=True).select("user")) == [(0,), (1,)]
        assert rows(held.read(["user"], start=1)) == []
    assert head_of(place.open()).holds == {}


def test_hold_of_a_read_ends_after_its_time(spark: SparkSession, place: Place) -> None:
    produce(place, users(0, 2))
    clock = ManualClock()
    read(spark, place.url, hold_for=60, clock=clock)
    assert len(head_of(place.open()).holds) == 1
    wait_for(lambda: not head_of(place.open()).holds or clock.advance(5))
    assert clock.monotonic() >= 60


def test_read_without_a_hold_needs_no_right_to_write(spark: SparkSession, weed: Any) -> None:
    place = Place("s3://tests/read-only", weed.storage_options)
    produce(place, users(0, 2))
    with pytest.raises(Denied, match=r"If you may only read, use `forebay\.runtime\.spark\.read` with hold_for=0"):
        read(spark, place.url, storage_options=weed.read_only_options)
    frame = read(spark, place.url, storage_options=weed.read_only_options, hold_for=0)
    assert rows(frame) == [(0, "/0"), (1, "/1")]


def test_buffer_of_version_1_is_read_without_a_hold(spark: SparkSession, place: Place) -> None:
    with Producer(place.url, profile="opendata", manifest_path="manifest") as producer:
        producer.produce([b"a", b"b"])
    assert rows(read(spark, place.url)) == [(b"a",), (b"b",)]
    with pytest.raises(Unsupported, match="has no holds"):
        hold(spark, place.url)
    with pytest.raises(Unsupported, match="does not tell how many entries"):
        count(place.url)


def test_what_is_gone_or_was_never_there_is_told(spark: SparkSession, place: Place) -> None:
    with pytest.raises(NotFound):
        read(spark, place.url)
    with pytest.raises(InvalidInput, match="memory of one process, and Spark uses several"):
        read(spark, "memory://here")
    produce(place, users(0, 1), users(1, 2), users(2, 3))
    trim(place.open(), 2)
    for ask in (lambda: read(spark, place.url, start=0), lambda: count(place.url, start=0)):
        with pytest.raises(Trimmed):
            ask()


def test_credentials_show_in_no_plan(
    spark: SparkSession, weed: Any, capsys: pytest.CaptureFixture[str], told: pytest.LogCaptureFixture
) -> None:
    place = Place("s3://tests/secret", weed.storage_options)
    produce(place, users(0, 2))
    frame = read(spark, place.url, storage_options=place.storage_options, hold_for=0)
    assert "BatchScan forebay" in (shown := plan(frame, capsys))
    assert weed.storage_options["secret"] not in shown + told.text
