"""Read a buffer with a Spark older than 4.0, which knows no data sources in Python.

    python examples/spark_older.py file:///tmp/clicks

The driver lists the batches under a hold, and tasks fetch them: a `FetchHandle` and a descriptor are all that a task
needs. Every machine needs forebay, pyarrow and pandas (Spark wants pandas for `mapInArrow`). From Spark 4.0 on,
`spark.read.format("forebay")` does all of this.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay.buffer import FetchHandle
from forebay.runtime.spark import ensure_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from forebay.buffer.holds import HeldRange

COLUMNS = "sequence long, index int, ingestion_time timestamp, metadata binary, value binary"
SLICE_ROWS = 10_000
"""Maximum rows that a task gives to Spark at once."""


def read(spark: SparkSession, held: HeldRange, fetch: FetchHandle, tasks: int) -> DataFrame:
    """Return the rows of the held batches. Use the frame while the hold is in force."""
    packed = [(pickle.dumps(descriptor),) for descriptor in held.descriptors()]
    plan = spark.createDataFrame(packed, "descriptor binary").repartition(tasks)

    def fetch_rows(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            for descriptor in part.column("descriptor").to_pylist():
                yield from fetch.fetch(pickle.loads(descriptor)).records().to_batches(SLICE_ROWS)

    return plan.mapInArrow(fetch_rows, COLUMNS)


def main(url: str) -> None:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    spark = SparkSession.builder.master("local[*]").appName("older").getOrCreate()
    with forebay.Producer(url) as producer:
        producer.produce([b'{"page": "/"}', b'{"page": "/cart"}', b'{"page": "/"}'])
    with forebay.hold(url, purpose="a Spark job") as held:  # nothing that the job reads is collected before it ends
        rows = read(spark, held, FetchHandle(forebay.open_store(url)), spark.sparkContext.defaultParallelism)
        pages = rows.selectExpr("get_json_object(cast(value AS string), '$.page') AS page")
        pages.groupBy("page").count().orderBy("page").show()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
