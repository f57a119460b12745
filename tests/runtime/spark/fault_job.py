"""A driver on a bad network, to be killed at any moment: it streams, writes and reads until nothing is left.

See test_faults.py. It tells what it did in files of its folder, which outlive it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.runtime.spark import ensure_java

ROWS = 60
"""Rows of one batch job."""


def main(options: str, folder: str, life: str, last: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    ensure_java()
    spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m").getOrCreate()
    given = json.loads(options)
    url = given["url"]
    to = {name: value for name, value in given.items() if name.startswith("storage.")}

    stream = spark.readStream.format("forebay").options(**given).option("group", "etl")
    copied = stream.option("maxBatchesPerTrigger", 3).load().select("value").writeStream.format("forebay").options(**to)
    copied = copied.option("writerId", "etl").option("checkpointLocation", f"{folder}/checkpoint")
    copied = copied.trigger(availableNow=True) if last == "last" else copied.trigger(processingTime="100 milliseconds")
    query = copied.start(f"{url}-streamed")

    for job in count():
        write(spark, f"{url}-written", to, folder, f"{life}-{job}")
        if read(spark, given, folder) and not query.isActive:
            break
    query.awaitTermination()
    spark.stop()


def write(spark: SparkSession, url: str, options: dict[str, str], folder: str, name: str) -> None:
    """Write the rows of one job, each with the job's name."""
    note(folder, "started", name)
    frame = spark.range(0, ROWS, 1, 3).selectExpr(f"cast(concat('{name}-', id) as binary) as value")
    with network_may_fail(folder):
        frame.write.format("forebay").options(**options).mode("append").save(url)
        note(folder, "written", name)


def read(spark: SparkSession, options: dict[str, str], folder: str) -> bool:
    """Read all numbers, and note how many there were and whether each was there once. False if it could not read."""
    with network_may_fail(folder):
        rows = spark.read.format("forebay").options(**options).option("minPartitions", 3).load().collect()
        found = sorted(int(row.value) for row in rows)
        note(folder, "read", f"{len(found)} {found == list(range(len(found)))}")
        return True
    return False


@contextmanager
def network_may_fail(folder: str) -> Iterator[None]:
    """Take note of an error that a bad network explains, and raise any other."""
    try:
        yield
    except PySparkException as error:
        if not any(name in str(error) for name in ("Unavailable", "Unknown")):
            raise
        note(folder, "failed", str(error).splitlines()[0])


def note(folder: str, what: str, line: str) -> None:
    with Path(folder, what).open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
