"""A driver that streams a buffer and stops in the middle of its second micro-batch, to be killed there."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from forebay.runtime.spark import ensure_java


def main(url: str, folder: str) -> None:
    ensure_java()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")
        if batch == 1:
            Path(folder, "reached").touch()
            threading.Event().wait()

    stream = spark.readStream.format("forebay").option("group", "etl").option("maxBatchesPerTrigger", 2).load(url)
    stream.writeStream.foreachBatch(write).option(
        "checkpointLocation", f"{folder}/checkpoint"
    ).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
