"""A driver of a cluster with executor processes of their own, one of which is killed while its tasks read."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from forebay.runtime.spark import ensure_java


def main(options: str, folder: str) -> None:
    ensure_java()
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.executor.memory", "512m")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    Path(folder, "application").write_text(spark.sparkContext.applicationId)
    rows = spark.read.format("forebay").options(**json.loads(options)).option("minPartitions", 6).load()

    @udf("binary")
    def once_one_was_killed(value: bytes) -> bytes:
        Path(folder, f"executor-{parent_of(os.getppid())}").touch()
        while not Path(folder, "killed").exists():
            threading.Event().wait(0.05)
        return value

    threading.Thread(target=kill_one, args=(Path(folder),), daemon=True).start()
    found = rows.select(once_one_was_killed("value").alias("value")).collect()
    Path(folder, "found").write_text(json.dumps(sorted(row.value.decode() for row in found)))
    rows.explain("formatted")
    spark.stop()


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
