"""The examples, run in the session of the other tests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from patience import PATIENCE
from pyspark.sql import SparkSession
from spark_place import Place

from forebay import Consumer

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
