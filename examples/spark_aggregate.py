"""Count a buffer's JSON events by page with Spark.

    python examples/spark_aggregate.py file:///tmp/clicks

Only `pip install ".[spark]"` in a clone is needed, and a Java (or the extra `java`). S3 needs the extra `fast` too, and
credentials go into options: `.option("storage.key", …).option("storage.secret", …)`; they show in no plan and no log.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, from_json

import forebay
from forebay.runtime.spark import ensure_java

PAGES = ("/", "/cart", "/checkout")


def produce(url: str, events: int = 3000) -> None:
    """What web servers would do all day."""
    with forebay.Producer(url) as producer:
        producer.produce(
            [json.dumps({"page": PAGES[i % 3], "user": i % 100, "ms": i % 40}).encode() for i in range(events)]
        ).result(timeout=30)


def aggregate(spark: SparkSession, url: str) -> DataFrame:
    """One row per page: how often it was asked for, and how long that took on average."""
    events = spark.read.format("forebay").load(url)
    parsed = events.select(from_json(col("value").cast("string"), "page string, user bigint, ms int").alias("event"))
    return (
        parsed.select("event.*").groupBy("page").agg(count("*").alias("views"), avg("ms").alias("ms")).orderBy("page")
    )


def main(url: str) -> None:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    spark = SparkSession.builder.master("local[*]").appName("aggregate").getOrCreate()
    produce(url)
    aggregate(spark, url).show()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
