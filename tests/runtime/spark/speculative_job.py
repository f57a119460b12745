"""A job on a cluster of two workers, one of whose tasks hangs until Spark has tried it on the other.

See test_batch_writer.py.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from cluster import cluster
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

ROWS = 600


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with cluster(Path(folder)) as url:
        run(url, f"{folder}/buffer")


def run(master: str, buffer: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.01")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "0ms")
        .config("spark.speculation.efficiency.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    def hang(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        # Near the end of the last task, whose first attempt has stored most of its rows by then.
        if value == str(ROWS - 10) and context.attemptNumber() == 0:
            threading.Event().wait()
        return value.ljust(2000)

    frame = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as value")
    frame = frame.select(udf(hang, useArrow=False)("value").alias("value"))
    frame.write.format("forebay").option("flushSizeBytes", 60_000).mode("append").save(f"file://{buffer}")

    found = spark.read.format("forebay").load(f"file://{buffer}").select("sequence", "value").collect()
    assert sorted(int(row.value) for row in found) == list(range(ROWS)), "each row once"
    stored, listed = len(list(Path(buffer, "data").glob("*.batch"))), len({row.sequence for row in found})
    assert stored > listed, f"{stored} stored and {listed} listed: the attempt that hung has stored nothing"
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
