"""Streams run by a real session: restarts, kills and fences, with the checkpoint and the sink that Spark keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from patience import PATIENCE, wait_for
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from read_job import fill, frontier_of
from spark_place import Place

from forebay.buffer import create_topic
from forebay.buffer.consumer import Consumer
from forebay.buffer.producer import Producer
from forebay.buffer.topic import Topic
from forebay.testing.servers import SeaweedServer

pytestmark = pytest.mark.matrix


def stream(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    given = {"group": "etl", **options}
    return spark.readStream.format("forebay").options(**place.options).options(**given).load()


def run_to_end(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Write what is there now as Parquet, by one run of the query that the folder belongs to."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/out")
    )
    assert query.awaitTermination(PATIENCE)
    return query


def written(spark: SparkSession, folder: Path) -> list[str]:
    rows = spark.read.parquet(f"{folder}/out").selectExpr("string(value) as text")
    return sorted(row.text for row in rows.collect())


def numbered(first: int, end: int) -> list[list[bytes]]:
    return [[b"%03d" % number] for number in range(first, end)]


def texts(first: int, end: int) -> list[str]:
    return [f"{number:03}" for number in range(first, end)]


def test_runs_of_available_now_follow_each_other_exactly_once(
    spark: SparkSession, weed: SeaweedServer, tmp_path: Path
) -> None:
    place = Place(f"s3://tests/stream-{os.getpid()}", weed.storage_options)
    store = place.open()
    fill(store, *numbered(0, 5))
    query = run_to_end(stream(spark, place, maxBatchesPerTrigger=2), tmp_path)
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [2, 2, 1]
    assert frontier_of(store) == 5, "the last micro-batch of the run included"
    fill(store, *numbered(5, 8))
    run_to_end(stream(spark, place), tmp_path)
    assert written(spark, tmp_path) == texts(0, 8)
    assert frontier_of(store) == 8


def test_append_is_in_the_first_micro_batch_after_it(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    store = place.open()
    create_topic(store, 2)
    topic = Topic(store)
    fill(topic.partition(0), *numbered(0, 1))
    rows = stream(spark, place)
    query = rows.writeStream.format("memory").queryName("arrivals").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        fill(topic.partition(1), *numbered(1, 3))
        query.processAllAvailable()
        assert spark.table("arrivals").count() == 3
        assert [frontier_of(topic.partition(number)) for number in range(2)] == [1, 2]
        progress = query.lastProgress
        assert progress is not None
        assert '"next": 2' in progress["sources"][0]["latestOffset"]
    finally:
        query.stop()


def test_fenced_stream_fails_and_says_so(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    fill(place.open(), *numbered(0, 2))
    query = (
        stream(spark, place)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    query.processAllAvailable()
    with Consumer(place.url, group="etl") as consumer:
        with pytest.raises(StreamingQueryException, match=r"Fenced: .*another consumer took over group etl"):
            query.awaitTermination(PATIENCE)
        assert consumer.lag().batches == 0


@contextmanager
def driver(place: Place, folder: Path, stop_at: int) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with a session of its own, killed at the end with all that it started."""
    job = Path(__file__).parent.with_name("stream_job.py")
    started = subprocess.Popen([sys.executable, str(job), place.url, str(folder), str(stop_at)], start_new_session=True)
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def finish(spark: SparkSession, place: Place, folder: Path) -> list[int]:
    """Go on with the killed driver's checkpoint to the end of what is there, and return the micro-batches it took."""
    seen: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        seen.append(batch)
        rows.write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")

    query = (
        stream(spark, place)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    return seen


def test_driver_killed_in_the_middle_of_a_micro_batch_repeats_it_and_goes_on(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    store = place.open()
    fill(store, *numbered(0, 6))
    with driver(place, tmp_path, stop_at=1) as running:
        wait_for((tmp_path / "reached-1").exists, running)
    assert frontier_of(store) == 2, "the first micro-batch, and not the one that was in the sink but not committed"
    fill(store, *numbered(6, 7))
    assert finish(spark, place, tmp_path) == [1, 2]
    rows = spark.read.parquet(f"{tmp_path}/out").selectExpr("batch", "string(value) as text")
    found = sorted((row.batch, row.text) for row in rows.collect())
    assert found == [(0, "000"), (0, "001"), (1, "002"), (1, "003"), (2, "004"), (2, "005"), (2, "006")]
    assert frontier_of(store) == 7


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_driver_killed_again_and_again_at_any_moment_loses_and_doubles_nothing(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    store, random, done = place.open(), Random(8), 0
    for kill in range(6):
        fill(store, *numbered(20 * kill, 20 * kill + 20))
        with driver(place, tmp_path, stop_at=-1) as running:
            wait_for((tmp_path / f"reached-{done}").exists, running)
            threading.Event().wait(random.uniform(0, 3))
        done = len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")))
        assert frontier_of(store) <= 20 * kill + 20
    finish(spark, place, tmp_path)
    assert written(spark, tmp_path) == texts(0, 120)
    assert frontier_of(store) == 120


def test_stream_of_a_buffer_that_does_not_exist_waits_for_it_and_creates_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/later"
    stream = spark.readStream.format("forebay").option("group", "etl").load(url)
    query = (
        stream.writeStream.format("memory")
        .queryName("later")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert not (tmp_path / "later").exists()
        with Producer(url) as producer:
            producer.produce([b"a", b"b"]).result()
        query.processAllAvailable()
    finally:
        query.stop()
    assert spark.table("later").count() == 2
