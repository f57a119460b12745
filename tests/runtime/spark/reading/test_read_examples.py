"""The examples, run in the session of the other tests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from deltalake import DeltaTable
from patience import PATIENCE, wait_for
from pyspark.sql import SparkSession
from spark_place import Place

from forebay import Consumer, Producer, hold
from forebay.buffer import FetchHandle, Groups

pytestmark = pytest.mark.matrix

EXAMPLES = Path(__file__).parents[4] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_events_are_aggregated_and_streamed_to_parquet_exactly_once(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    batch, stream = example("spark_aggregate"), example("spark_stream")
    out = f"file://{tmp_path}/out"
    for run in (1, 2):
        batch.produce(place.url)
        assert [tuple(row) for row in batch.aggregate(spark, place.url).collect()] == [
            ("/", 1000 * run, 19.5),
            ("/cart", 1000 * run, 19.5),
            ("/checkout", 1000 * run, 19.5),
        ]
        assert stream.stream(spark, place.url, out).awaitTermination(PATIENCE)
        written = spark.read.parquet(out)
        assert written.columns == ["page", "user", "ms", "day"]
        assert written.count() == 3000 * run


def test_table_and_stream_are_written_and_nothing_new_is_streamed_twice(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    produce = example("spark_produce")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for run in (1, 2):
        (inbox / f"{run}.jsonl").write_text(f"line {run}\n")
        produce.write_table(spark, place.url)
        produce.write_stream(spark, inbox, place.url)
    with Consumer(place.url) as consumer:
        found = [entry.decode() for batch in consumer for entry in batch.entries]
    assert [entry for entry in found if entry.startswith("line")] == ["line 1", "line 2"]
    assert [json.loads(entry)["player"] for entry in found if entry.startswith("{")] == list(produce.PLAYERS) * 2


def test_events_are_streamed_to_delta_once_though_spark_repeats_a_micro_batch(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    produce, to_delta = example("spark_aggregate").produce, example("spark_to_delta")
    table = f"file://{tmp_path}/table"
    for run in range(3):
        produce(place.url)
        assert to_delta.stream(spark, place.url, table).awaitTermination(PATIENCE)
        assert DeltaTable(table).count() == 3000 * (run + 1)
        # As if it had been killed after the append to the table, before Spark has taken note of it.
        for name in (f"{run}", f".{run}.crc"):
            (tmp_path / "table-checkpoint" / "commits" / name).unlink()
    assert DeltaTable(table).version() == 2, "a commit for each micro-batch"


def test_listener_and_group_tell_how_far_a_stream_is_behind(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    lag = example("spark_lag")
    listener = lag.LagListener()
    spark.streams.addListener(listener)
    try:
        with Producer(place.url) as producer:
            for _ in range(3):
                producer.produce(b"one").result()
        rows = (
            spark.readStream.format("forebay").option("group", "etl").option("maxBatchesPerTrigger", 2).load(place.url)
        )
        written = (
            rows.writeStream.format("noop").queryName("lag").option("checkpointLocation", f"{tmp_path}/checkpoint")
        )
        assert written.trigger(availableNow=True).start().awaitTermination(PATIENCE)
        wait_for(lambda: len(listener.seen) >= 2)
    finally:
        spark.streams.removeListener(listener)
    assert listener.seen[:2] == [("lag", 1), ("lag", 0)]
    with Producer(place.url) as producer:
        producer.produce(b"four").result()
    assert Groups(place.url).describe("etl").waiting == 1


def test_older_spark_reads_every_entry_with_a_fetch_handle_in_its_tasks(spark: SparkSession, place: Place) -> None:
    older = example("spark_older")
    with Producer(place.url) as producer:
        for number in range(4):
            producer.produce([b"%d" % number] * 10).result()
    with hold(place.url) as held:
        rows = older.read(spark, held, FetchHandle(place.open()), tasks=2)
        found = sorted((row["sequence"], row["index"], bytes(row["value"])) for row in rows.collect())
    assert found == [(number, index, b"%d" % number) for number in range(4) for index in range(10)]
