"""Stream a buffer's JSON events into a Delta Lake table, each event once, however often this is run or killed.

    python examples/spark_to_delta.py file:///tmp/clicks file:///tmp/clicks-delta

Spark may repeat a micro-batch after a crash. Its rows are the same then, and so is its id. So each append to the table
records the id in the same commit, and an id that the table has already is skipped. The table is written by the package
deltalake, which needs no jar: the rows of a micro-batch pass through the driver, and `maxBytesPerTrigger` bounds them.
On a cluster that has Delta's own jar, write with `rows.write.format("delta")` and its options `txnAppId` and
`txnVersion`, which do the same without the driver.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from forebay.runtime.spark import ensure_java

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

READER = "clicks-to-delta"
"""A lasting name of the query: the table remembers its micro-batches under this name."""


def stream(spark: SparkSession, url: str, table: str) -> StreamingQuery:
    """Start one run: it reads what has arrived since the previous run, and stops."""
    reader = spark.readStream.format("forebay").option("group", READER).option("maxBytesPerTrigger", 64 << 20)
    event = from_json(col("value").cast("string"), "page string, user bigint, ms int").alias("event")
    rows = reader.load(url).select(event, "ingestion_time").select("event.*", "ingestion_time")

    def append(rows: DataFrame, batch: int) -> None:
        if DeltaTable.is_deltatable(table):
            done = DeltaTable(table).transaction_version(READER)
            if done is not None and batch <= done:
                return
        committed = CommitProperties(app_transactions=[Transaction(READER, batch)])
        write_deltalake(table, rows.toArrow(), mode="append", commit_properties=committed)

    return (
        rows.writeStream.foreachBatch(append)
        .option("checkpointLocation", f"{table}-checkpoint")
        .trigger(availableNow=True)  # or processingTime="1 minute", to run until it is stopped
        .start()
    )


def main(url: str, table: str) -> None:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    builder = SparkSession.builder.master("local[*]").appName("to Delta")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()  # Delta keeps times in UTC
    stream(spark, url, table).awaitTermination()
    spark.stop()
    print(f"{DeltaTable(table).count()} events in {table}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
