"""Write to buffers from Spark: a table as a batch job, and a stream of files, each row once.

    python examples/spark_produce.py file:///tmp/scores /tmp/scores-inbox

A batch job's rows can all be read when it is done, or none of them. A stream has a `writerId`, a lasting name: by it an
epoch that Spark repeats after a crash is known to be written. Run it again: only what is new is streamed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit, struct, to_json

import forebay
from forebay.runtime.spark import ensure_java

PLAYERS = ("ada", "grace", "barbara")


def write_table(spark: SparkSession, url: str) -> None:
    """A column `value` is what is written; `metadata` goes with it; all else becomes a part of value or is dropped."""
    scores = spark.createDataFrame(
        [(name, 10 * place) for place, name in enumerate(PLAYERS)], "player string, score int"
    )
    rows = scores.select(to_json(struct("player", "score")).alias("value"), lit(b"job=nightly").alias("metadata"))
    rows.write.format("forebay").mode("append").save(url)


def write_stream(spark: SparkSession, inbox: Path, url: str) -> None:
    """Every file that appears in a folder, once."""
    lines = spark.readStream.schema("value string").text(str(inbox)).select(col("value"))
    query = (
        lines.writeStream.format("forebay")
        .option("writerId", "inbox")
        .option("checkpointLocation", f"{inbox}-checkpoint")
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination()


def main(url: str, folder: str) -> None:
    inbox = Path(folder)
    inbox.mkdir(parents=True, exist_ok=True)
    (inbox / f"{len(list(inbox.iterdir()))}.jsonl").write_text('{"player": "ada", "score": 42}\n')

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    spark = SparkSession.builder.master("local[*]").appName("produce").getOrCreate()
    write_table(spark, url)
    write_stream(spark, inbox, url)
    spark.stop()

    with forebay.Consumer(url, group="printer") as consumer:
        for batch in consumer:
            for entry in batch.entries:
                print(batch.sequence, entry.decode())
            consumer.ack_through(batch.sequence)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
