"""Show how far a Spark stream is behind its buffer, from inside the query and from outside.

    python examples/spark_lag.py file:///tmp/clicks

Inside: a listener gets each micro-batch's progress, with the offsets that it read to and that the buffer ends at.
Outside: the stream's group stands in the bucket, so `forebay stat URL`, the dashboard and the metrics show its lag
whether or not the query runs. A query that is down is seen from outside only: alert on that.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import forebay
from forebay.buffer import Groups
from forebay.runtime.spark import ensure_java

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

GROUP = "lag-example"


class LagListener(StreamingQueryListener):
    """Collects how many batches a query was behind after each micro-batch. Send them to your monitoring instead."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        for source in event.progress.sources:
            if source.latestOffset and source.endOffset:
                behind = sum_of_positions(source.latestOffset) - sum_of_positions(source.endOffset)
                self.seen.append((event.progress.name, behind))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass


def sum_of_positions(offset: str) -> int:
    """Return the next sequences of all partitions, added up. A buffer has one partition."""
    return sum(position["next"] for position in json.loads(offset)["partitions"].values())


def main(url: str) -> None:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    spark = SparkSession.builder.master("local[*]").appName("lag").getOrCreate()
    listener = LagListener()
    spark.streams.addListener(listener)
    with forebay.Producer(url) as producer:
        producer.produce([b"one", b"two"]).result()
    rows = spark.readStream.format("forebay").option("group", GROUP).load(url)
    query = rows.writeStream.format("noop").queryName("lag").option("checkpointLocation", f"{url}-checkpoint").start()
    query.processAllAvailable()
    query.stop()
    with forebay.Producer(url) as producer:
        producer.produce(b"three").result()
    print("behind, says the query:", listener.seen)
    print("behind, says the bucket:", Groups(url).describe(GROUP).waiting)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
