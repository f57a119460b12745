"""What does Spark's planning cost: for a query that reads nearly nothing, for 100,000 batches, and for 10,000 files?

Typed buffers in a folder. A producer wrote the first batch of each. The others are copies of its object, most of them
hard links, so a large buffer takes seconds to make. Each case has run before in the session when it is measured.

- *plan, format*: the plan that the format `forebay` makes, and its tasks pickled for Spark, in this process.
- *count, format*: `schema("_sequence bigint")` and `count()`. It reads no object: the manifest has the numbers.
- *plan, read*: `forebay.runtime.spark.read` and Spark's plan of its frame, which looks up every file.

Times are of the processor, summed over the JVM and every Python process. A promise is a limit divided by the time.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType
from spark_read import events, session, take_turns

from forebay import Producer
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.names import mint
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.store import open_store
from forebay.runtime.spark import hold
from forebay.runtime.spark.reading.batch_reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness import Bench
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema([("user", pa.int64()), ("page", pa.string()), ("ms", pa.int64()), ("rest", pa.string())])
_SMALL = 10
"""Rows of a small batch."""
_LARGE = 1_000
"""Rows of a file that is large enough for Spark's own reader."""
_APPENDED = 1_000
"""Batches of one append."""


def run(bench: Bench) -> None:
    batches, files = (1_000, 200) if bench.quick else (100_000, 10_000)
    folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    try:
        with session(2) as spark:
            one, many = (_fill(folder / str(number), _SMALL, number) for number in (1, batches))
            took = _measure(
                bench,
                f"{batches:,} batches of {_SMALL} rows",
                {
                    "one batch: plan, format": partial(_plan, one),
                    "one batch: count, format": partial(_count, spark, one, 1),
                    "plan, format": partial(_plan, many),
                    "count, format": partial(_count, spark, many, batches),
                },
            )
            bench.require(f"{batches:,} batches: plan, format: 2 s / time", 2 / took["plan, format"], least=1)
            bench.require(f"{batches:,} batches: count, format: 10 s / time", 10 / took["count, format"], least=1)
            first, listed = (_fill(folder / f"files-{number}", _LARGE, number) for number in (2, files))
            took = _measure(
                bench,
                f"{files:,} files of {_LARGE:,} rows",
                {"2 files: plan, read": partial(_list, spark, first), "plan, read": partial(_list, spark, listed)},
            )
            bench.require(f"{files:,} files: plan, read: 5 s / time", 5 / took["plan, read"], least=1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(bench: Bench, group: str, cases: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Measure the cases, and return the least seconds that each took."""
    take_turns(bench, group, 1, cases, next(iter(cases)), unit="queries")
    return {row.case: min(row.seconds) for row in bench.rows if row.group == group}


def _fill(folder: Path, rows: int, batches: int) -> str:
    """Return the URL of a new typed buffer with that number of batches, all with the same rows."""
    url = f"file://{folder}"
    with Producer(url, schema=_SCHEMA) as producer:
        producer.produce([json.loads(event) for event in events(1024)[:rows]])
    queue = Queue(open_store(url))
    schemas: Sequence[str] = queue.read().schemas
    (written,) = queue.descriptors(0, 1)
    random = Random(0)
    for at in range(1, batches, _APPENDED):
        names = [f"data/{mint(SystemClock(), random)}.parquet" for _ in range(min(_APPENDED, batches - at))]
        shutil.copyfile(folder / written.location, folder / names[0])  # a file has 65,000 links at most
        for name in names[1:]:
            os.link(folder / names[0], folder / name)
        new = [NewBatch(name, written.metadata, written.facts, 0) for name in names]
        queue.append(new, version=2, schemas=schemas)
    return url


def _plan(url: str) -> None:
    schema = StructType([StructField("_sequence", LongType())])
    for task in open_reader({"path": url}, schema).partitions():
        pickle.dumps(task)


def _count(spark: SparkSession, url: str, batches: int) -> None:
    frame = spark.read.format("forebay").schema("_sequence bigint").load(url)
    assert frame.count() == batches * _SMALL


def _list(spark: SparkSession, url: str) -> None:
    with hold(spark, url) as held:
        plan = held.read()._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - no action: only the plan
    assert "FileScan parquet" in plan, plan
