"""Stream a buffer's JSON events into Parquet files, each event once, however often this is run or killed.

    python examples/spark_stream.py file:///tmp/clicks file:///tmp/clicks-parquet

Run it from a scheduler: each run reads what has arrived since the last one and stops. The checkpoint says what was
read, the sink's log says what was written, and the group `lake` follows, so that the collector may sweep what is safe.
To run for ever instead, take `trigger(processingTime="10 seconds")`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, to_date

from forebay.runtime.spark import ensure_java

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def stream(spark: SparkSession, url: str, out: str) -> StreamingQuery:
    """Start one run."""
    reader = spark.readStream.format("forebay").option("group", "lake").option("maxBytesPerTrigger", 256 << 20)
    event = from_json(col("value").cast("string"), "page string, user bigint, ms int").alias("event")
    rows = reader.load(url).select(event, "ingestion_time").select("event.*", to_date("ingestion_time").alias("day"))
    return (
        rows.writeStream.format("parquet")
        .partitionBy("day")
        .option("checkpointLocation", f"{out}/_checkpoint")
        .trigger(availableNow=True)
        .start(out)
    )


def main(url: str, out: str) -> None:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    spark = SparkSession.builder.master("local[*]").appName("stream").getOrCreate()
    query = stream(spark, url, out)
    query.awaitTermination()
    print(f"{sum(progress['numInputRows'] for progress in query.recentProgress)} new events in {out}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
