"""Spark's file stream source on Parquet files, against forebay's stream: how soon, and how fast."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from random import Random
from threading import Condition
from typing import TYPE_CHECKING

from rivals import FOREBAY, RIVALS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_PATIENCE = 60.0
_SCHEMA = "value binary"
_numbers = count()


@dataclass(frozen=True, slots=True)
class Streams:
    """Both streams in one session."""

    spark: SparkSession
    folder: Path
    """For files of our own."""

    def open(self, case: str, path: Path) -> DataFrame:
        """The entries that arrive in a buffer, or in a folder of Parquet files."""
        reader = self.spark.readStream
        if case == FOREBAY:
            group = f"bench-{next(_numbers)}"
            return reader.format("forebay").schema(_SCHEMA).option("group", group).load(f"file://{path}")
        return reader.schema(_SCHEMA).parquet(str(path))

    def read(self, case: str, path: Path) -> tuple[int, float]:
        """Read a backlog; return how many entries it had, and the seconds its micro-batches took, by Spark's own count.

        What a query takes to start is not in them: a stream does that once.
        """
        entries: list[int] = []

        def add_up(frame: DataFrame, _batch: int) -> None:
            (row,) = frame.selectExpr("count(*)", "sum(length(value))").collect()
            entries.append(row[0])

        writer = self.open(case, path).writeStream.foreachBatch(add_up).trigger(availableNow=True)
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        query.awaitTermination()
        taken = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
        return sum(entries), sum(taken) / 1e3

    def time_to_visible(self, case: str, samples: int) -> list[float]:
        """Seconds from a durable entry to its row in Spark, several times, in a stream that is up and has caught up."""
        path = self.folder / f"visible-{next(_numbers)}"
        arrived = Arrived()
        random = Random(0)
        rival = RIVALS[case](f"file://{path}", {})
        try:
            rival.append([b"first"])
            writer = self.open(case, path).writeStream.foreachBatch(arrived.take)
            query = writer.option("checkpointLocation", self._checkpoint()).start()
            arrived.wait_for(b"first")
            found = []
            for number in range(samples + 1):
                time.sleep(random.uniform(0.2, 0.5))  # so that its polling is met at any moment
                entry = f"entry {number}".encode()
                rival.append([entry])
                durable = time.perf_counter()
                found.append(arrived.wait_for(entry) - durable)
            query.stop()
        finally:
            rival.close()
        return found[1:]

    def _checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(_numbers)}")


class Arrived:
    """When rows came out of a stream."""

    def __init__(self) -> None:
        self._times: dict[bytes, float] = {}
        self._changed = Condition()

    def take(self, frame: DataFrame, _batch: int) -> None:
        found = [bytes(row.value) for row in frame.collect()]
        with self._changed:
            self._times.update(dict.fromkeys(found, time.perf_counter()))
            self._changed.notify_all()

    def wait_for(self, entry: bytes) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: entry in self._times, _PATIENCE):
                raise TimeoutError(f"the stream has not brought {entry!r} in {_PATIENCE:g} s")
            return self._times[entry]
