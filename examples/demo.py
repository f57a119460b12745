"""The main job, end to end, on local files: produce, land in Parquet, die and take over, aggregate by Spark, sweep.

    python examples/demo.py                       # files in a temporary folder
    python examples/demo.py --keep                # the same, and the folder stays, to look around in
    python examples/demo.py --no-spark            # without Spark, which takes half a minute

Three processes produce a clickstream. A runtime lands it in Parquet, is killed without warning, and another one takes
over. Spark reads the buffer straight from the store. The collector sweeps what has been read. The table at the end
proves that every event arrived, none was lost and none came twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import forebay
from forebay.gc import Collector
from forebay.runtime import Combining, ParquetSink, Runtime, Source
from forebay.runtime.decoders import JsonLines

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

PRODUCERS = 3
CALLS = 400
EVENTS_PER_CALL = 50
PAGES = ("/", "/search", "/product", "/cart", "/checkout")
COLUMNS = pa.schema([("service", pa.int64()), ("number", pa.int64()), ("page", pa.string())])
WAIT_SECONDS = 60


def produce_clicks(url: str, name: int, done: Queue[int]) -> None:
    """One service: sends its clicks and reports how many were durable."""
    handles = []
    with forebay.Producer(url, flush_interval=0.05) as producer:
        for call in range(CALLS):
            first = call * EVENTS_PER_CALL
            events = [
                json.dumps({"service": name, "number": n, "page": PAGES[n % len(PAGES)]}).encode()
                for n in range(first, first + EVENTS_PER_CALL)
            ]
            handles.append(producer.produce(events, metadata=f"service={name}".encode()))
            time.sleep(0.005)  # a service has other things to do
    for handle in handles:
        handle.result(timeout=WAIT_SECONDS)
    done.put(len(handles) * EVENTS_PER_CALL)


def land(url: str, lake: str, *, until_caught_up: bool) -> int:
    """Copy the clicks into Parquet files, and return how many this process has copied."""
    with ParquetSink(f"file://{lake}", combining=Combining(target_bytes=1 << 20, max_seconds=0.5)) as sink:
        runtime = Runtime([Source(url, group="lake")], sink, decoder=JsonLines(COLUMNS))
        return runtime.run(until_caught_up=until_caught_up).rows


def land_until_killed(url: str, lake: str) -> None:
    land(url, lake, until_caught_up=False)


@dataclass(frozen=True)
class Count:
    """What arrived somewhere."""

    where: str
    rows: int
    distinct: int

    def missing(self, produced: int) -> int:
        return produced - self.distinct

    def doubled(self) -> int:
        return self.rows - self.distinct


def count_parquet(lake: str) -> Count:
    clicks = pq.read_table(lake, columns=["service", "number"])
    return Count("in Parquet", clicks.num_rows, clicks.group_by(["service", "number"]).aggregate([]).num_rows)


def count_by_spark(url: str) -> Count:
    """Aggregate the clicks where they are: no copy, no jar, no listing."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (the other parts run without Spark)
    from pyspark.sql.functions import col, count, countDistinct, from_json  # noqa: PLC0415

    from forebay.runtime.spark import ensure_java  # noqa: PLC0415

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    builder = SparkSession.builder.master("local[2]").appName("forebay demo").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        # A hold would keep what Spark reads from being swept, and for minutes after; here nobody sweeps meanwhile.
        values = spark.read.format("forebay").option("holdSeconds", 0).load(url)
        fields = "service int, number int, page string"
        clicks = values.select(from_json(col("value").cast("string"), fields).alias("click")).select("click.*").cache()
        views = clicks.groupBy("page").agg(count("*").alias("views")).orderBy("page").collect()
        print("Spark       " + ", ".join(f"{row['page']} {row['views']:,}" for row in views), flush=True)
        found = clicks.agg(count("*").alias("rows"), countDistinct("service", "number").alias("distinct")).first()
        assert found is not None
        return Count("seen by Spark", found["rows"], found["distinct"])
    finally:
        spark.stop()


def run(folder: str, *, with_spark: bool) -> bool:
    url, lake = f"file://{folder}/clicks", f"{folder}/lake"
    say("buffer", url)
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    done: Queue[int] = context.Queue()
    services = [context.Process(target=produce_clicks, args=(url, name, done)) for name in range(PRODUCERS)]
    first = context.Process(target=land_until_killed, args=(url, lake))
    for process in (*services, first):
        process.start()
    try:
        landed = wait_for_files(lake, first)
        first.kill()
        first.join()
        say("killed", f"the first runtime, in the middle of its work: {landed} files written")
        for service in services:
            service.join()
    finally:
        for process in (*services, first):
            process.kill()
            process.join()
    if any(service.exitcode for service in services):
        print("failed     a producer did not get through; its error is above", file=sys.stderr)
        return False
    produced = sum(done.get(timeout=WAIT_SECONDS) for _ in services)
    seconds = time.perf_counter() - began
    say("produced", f"{produced:,} events, durable, by {PRODUCERS} processes in {seconds:.1f} s")

    rows = land(url, lake, until_caught_up=True)
    say("took over", f"a second runtime landed the other {rows:,} rows; what the first had begun, it wrote again")
    counts = [count_parquet(lake)]
    if with_spark:
        say("Spark", "starts …")
        counts.append(count_by_spark(url))
    report = Collector(url, grace=0.1).collect_once()
    say("collected", f"{report.deleted} objects that everyone has read, {report.kept} batches left")

    print(f"\n{'':14} {'events':>8} {'lost':>6} {'doubled':>8}")
    print(f"{'produced':14} {produced:>8,}")
    for found in counts:
        print(f"{found.where:14} {found.rows:>8,} {found.missing(produced):>6} {found.doubled():>8}")
    return all(found.rows == found.distinct == produced for found in counts)


def wait_for_files(lake: str, runtime: multiprocessing.process.BaseProcess) -> int:
    """Return how many files there are once there are some."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and runtime.is_alive():
        if files := len(list(Path(lake).glob("*.parquet"))):
            return files
        time.sleep(0.05)
    raise SystemExit("failed     the first runtime wrote nothing; its error is above")


def say(what: str, how: str) -> None:
    print(f"{what:11} {how}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the folder, and say how to look around in it")
    parser.add_argument("--no-spark", action="store_true", help="leave out Spark")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="forebay-demo-")
    try:
        proven = run(folder, with_spark=not options.no_spark)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"\nkept in {folder}; try:\n  forebay verify file://{folder}/clicks")
            print(f"  forebay gc --dry-run file://{folder}/clicks")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("\nproven: every event arrived once" if proven else "\nFAILED: see the table")
    return 0 if proven else 1


if __name__ == "__main__":
    sys.exit(main())
