"""A driver on a cluster of two workers. An executor is killed while the tasks of its job are at work."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import udf

ROWS = 600
"""Rows that are written by Spark."""


def main(master: str, options: str, folder: str, job: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    JOBS[job](spark, json.loads(options), Path(folder))
    spark.stop()


def read(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    rows = spark.read.format("forebay").options(**options).option("minPartitions", 6).load()
    found = rows.select(through_a_kill(folder)("value").alias("value")).collect()
    (folder / "found").write_text(json.dumps(sorted(row.value.decode() for row in found)))
    rows.explain("formatted")


def write(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    numbers = spark.range(0, ROWS, 1, 6).selectExpr("cast(cast(id as string) as binary) as value")
    rows = numbers.select(through_a_kill(folder)("value").alias("value"))
    rows.write.format("forebay").options(**options).mode("append").save()


def stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    to = {**options, "url": options["url"] + "-streamed"}
    rows = (
        spark.readStream.format("forebay").options(**options).option("minPartitions", 6).option("group", "etl").load()
    )
    written = rows.select(through_a_kill(folder)("value").alias("value")).writeStream.format("forebay").options(**to)
    written = written.option("writerId", "etl").option("checkpointLocation", f"{folder}/checkpoint")
    written.trigger(availableNow=True).start().awaitTermination()


JOBS = {"read": read, "write": write, "stream": stream}


def through_a_kill(folder: Path) -> Callable[[str], Column]:
    """A function that returns its value once an executor was killed, which happens when two are at work on the job."""
    threading.Thread(target=kill_one, args=(folder,), daemon=True).start()

    def wait(value: bytes) -> bytes:
        Path(folder, f"executor-{parent_of(os.getppid())}").touch()
        while not Path(folder, "killed").exists():
            threading.Event().wait(0.05)
        return value

    return udf(wait, "binary")


def parent_of(process: int) -> int:
    """The parent of a process: the executor's JVM starts a daemon, which forks the workers."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def kill_one(folder: Path) -> None:
    while len(executors := sorted(folder.glob("executor-*"))) < 2:
        threading.Event().wait(0.05)
    os.kill(int(executors[0].name.partition("-")[2]), signal.SIGKILL)
    Path(folder, "killed").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
