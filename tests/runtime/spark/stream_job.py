"""A driver that streams a buffer into a folder for each micro-batch, to be killed in the middle of it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from forebay.runtime.spark import ensure_java


def main(url: str, folder: str, stop_at: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    ensure_java()
    spark = SparkSession.builder.master("local[2]").getOrCreate()

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")
        Path(folder, f"reached-{batch}").touch()
        if str(batch) == stop_at:
            threading.Event().wait()

    stream = spark.readStream.format("forebay").option("group", "etl").option("maxBatchesPerTrigger", 2).load(url)
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
