"""DataFrames written to buffers and topics by a real session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from spark_place import Place
from write_job import entries_in, head_of, rows, run_task

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.topic import create_topic, partition_for
from forebay.runtime.spark.writing.commit import EpochCommitter, EpochRecord
from forebay.runtime.spark.writing.writers import BatchWriter, Stored, StreamWriter

VALUE = StructField("value", BinaryType())


def write(frame: DataFrame, place: Place, **options: Any) -> None:
    frame.write.format("forebay").options(**place.options, **options).mode("append").save()


def numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows reach Python by the hundred."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("small_batches")
def test_rows_are_there_in_the_frames_order_on_every_store(spark: SparkSession, any_place: Place) -> None:
    write(numbers(spark, 3000, tasks=3), any_place, flushSizeBytes=3000)
    expected = [str(number).encode() for number in range(3000)]
    assert entries_in(any_place.open()) == [expected]
    head = head_of(any_place.open())
    assert head.count >= 6, "several batches of each task"
    assert head.next_record == 3000
    assert head.holds == {}
    write(numbers(spark, 10, tasks=1), any_place)
    assert entries_in(any_place.open()) == [expected + expected[:10]]


def test_metadata_comes_back_with_its_entries(spark: SparkSession, place: Place) -> None:
    frame = spark.createDataFrame(
        [(bytearray([number]), bytearray(b"even" if number % 2 == 0 else b"odd")) for number in range(10)],
        "value binary, metadata binary",
    )
    write(frame.orderBy("metadata").coalesce(1), place)
    back = spark.read.format("forebay").options(**place.options).load()
    assert {(bytes(row.metadata), row.value[0] % 2) for row in back.collect()} == {(b"even", 0), (b"odd", 1)}


def test_rows_of_a_topic_go_where_their_keys_belong(spark: SparkSession, place: Place) -> None:
    create_topic(place.url, 3)
    frame = spark.range(0, 200, 1, 2).selectExpr("cast(id as string) as value", "concat('k', id % 20) as key")
    write(frame, place)
    expected: list[list[bytes]] = [[], [], []]
    for number in range(200):
        expected[partition_for(f"k{number % 20}".encode(), 3)].append(str(number).encode())
    assert entries_in(place.open()) == expected


def test_frame_without_rows_leaves_everything_as_it_was(spark: SparkSession, place: Place) -> None:
    write(numbers(spark, 10, tasks=2), place)
    before = head_of(place.open())
    write(numbers(spark, 10, tasks=2).where("value = 'none'"), place)
    assert head_of(place.open()) == before


def long_numbers(spark: SparkSession, place: Place, deadly: str) -> DataFrame:
    """Two tasks of 400 rows of 2 kB. The second, at its 300th, waits until something of it is stored, and then ends."""
    data = Path(place.url.removeprefix("file://"), "data")

    def pass_on(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if value == "700" and (deadly == "raise" or context.attemptNumber() == 0):
            for _ in range(3000):
                if data.is_dir() and any(data.iterdir()):
                    break
                threading.Event().wait(0.01)
            if deadly == "raise":
                raise ValueError("this task always fails")
            os.kill(os.getpid(), signal.SIGKILL)
        return value.ljust(2000)

    return numbers(spark, 800, tasks=2).select(udf(pass_on, useArrow=False)("value").alias("value"))


@pytest.mark.usefixtures("small_batches")
def test_task_that_is_killed_and_tried_again_neither_loses_nor_doubles(spark: SparkSession, place: Place) -> None:
    write(long_numbers(spark, place, "kill"), place, flushSizeBytes=100_000)
    (entries,) = entries_in(place.open())
    assert [int(entry) for entry in entries] == list(range(800))
    stored = [found.key for found in place.open().list("data/")]
    assert len(stored) > head_of(place.open()).count, "the first attempt left something for the collector"


@pytest.mark.usefixtures("small_batches")
def test_job_that_fails_leaves_nothing_to_be_read_and_lets_go(spark: SparkSession, place: Place) -> None:
    with pytest.raises(Exception, match="this task always fails"):
        write(long_numbers(spark, place, "raise"), place, flushSizeBytes=100_000)
    assert entries_in(place.open()) == [[]]
    assert [hold.floor for hold in head_of(place.open()).holds.values()] == [None], "a mark that holds nothing"
    assert list(place.open().list("data/")), "nothing is deleted: that is the collector's"


def test_manifest_may_be_elsewhere(place: Place) -> None:
    writer = BatchWriter({**place.options, "manifestpath": "ingest/list"}, StructType([VALUE]), overwrite=False)
    writer.commit([stored_message(writer)])
    assert [found.key for found in place.open().list("ingest/")] == ["ingest/list"]
    assert list(place.open().list("manifest")) == []


# Abort, which Spark calls in a process of its own, after a commit that raised as well


def stored_message(writer: BatchWriter | StreamWriter, query: str = "q") -> Stored:
    return Stored(run_task(writer._job, rows([b"a"])), query)


def test_abort_after_a_commit_whose_answer_was_lost_deletes_nothing(place: Place) -> None:
    writer = BatchWriter(place.options, StructType([VALUE]), overwrite=False)
    message = stored_message(writer)
    writer.commit([message])
    writer.abort([message, None])
    assert entries_in(place.open()) == [[b"a"]]


def test_abort_of_an_epoch_lets_go_unless_a_replay_will_list_it(place: Place) -> None:
    writer = StreamWriter({**place.options, "writerid": "etl"}, StructType([VALUE]), overwrite=False)
    message = stored_message(writer)
    writer.abort([None], 0)
    assert head_of(place.open()).holds == {}

    EpochCommitter(writer._job, "etl")._record(EpochRecord("q", 0, message.batches))
    message = stored_message(writer)
    for messages in ([message], [None]):
        writer.abort(messages, 0)
        assert list(head_of(place.open()).holds) == ["spark.etl"], "recorded, and not listed: a replay will list it"
    writer.abort([stored_message(writer, query="another")], 0)
    assert head_of(place.open()).holds == {}, "another query's epoch is not replayed by this one"


# What cannot be written


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([StructField("body", BinaryType())], "there is no column value"),
        ([VALUE, StructField("at", LongType())], "column at has no place in a buffer"),
        ([StructField("value", LongType())], "column value is bigint; expected binary or string"),
        ([VALUE, StructField("metadata", LongType())], "column metadata is bigint"),
        ([VALUE, StructField("key", StringType())], "is a buffer, and column key chooses a topic's partition"),
    ],
)
def test_columns_that_have_no_place_are_refused(place: Place, fields: list[StructField], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        BatchWriter(place.options, StructType(fields), overwrite=False)


def test_overwriting_is_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match=r'only ever appended to: use mode\("append"\)'):
        BatchWriter(place.options, StructType([VALUE]), overwrite=True)
    with pytest.raises(InvalidInput, match=r'use outputMode\("append"\)'):
        StreamWriter({**place.options, "writerid": "etl"}, StructType([VALUE]), overwrite=True)


def test_error_reaches_the_user_of_spark_as_it_was_written(spark: SparkSession, place: Place) -> None:
    with pytest.raises(Exception, match="column id has no place in a buffer, which takes value, metadata"):
        write(spark.range(3).selectExpr("cast(id as string) as value", "id"), place)
    assert list(place.open().list()) == []


def test_credentials_are_in_no_error(spark: SparkSession, weed: Any) -> None:
    options = {"storage.key": "forebay", "storage.secret": "a-secret-that-is-wrong"}
    place = Place("s3://tests/denied", {**weed.storage_options, "key": "forebay", "secret": "a-secret-that-is-wrong"})
    assert options.items() <= place.options.items()
    with pytest.raises(Exception, match="s3://tests/denied") as caught:
        write(numbers(spark, 3, tasks=1), place)
    assert "a-secret-that-is-wrong" not in str(caught.value)


@pytest.mark.slow
def test_task_tried_twice_at_once_on_two_workers_is_written_once(tmp_path: Path) -> None:
    """The short form is the task that is killed and tried again: of both attempts' objects, one's are listed."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent.with_name("speculative_job.py"), tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
