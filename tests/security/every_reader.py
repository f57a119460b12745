"""Everyone who reads a buffer's batches, as functions of its store: what holds for one must hold for all."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.buffer.base.clock import Clock
from forebay.buffer.base.errors import Corrupt
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.ranges import read_range
from forebay.buffer.inspect.verify import verify
from forebay.buffer.store import ObjectStore
from forebay.runtime import Runtime, Source
from forebay.runtime.dead_letter import Halted
from forebay.runtime.spark.source import ForebaySource
from forebay.testing.ledger import LedgerSink


def consume(store: ObjectStore) -> object:
    return Consumer(store).next_batch()


def read_all(store: ObjectStore) -> object:
    return list(read_range(store))


def run_runtime(store: ObjectStore) -> object:
    """A runtime, which halts at a batch that it cannot use."""
    sink = LedgerSink()
    try:
        Runtime([Source(store)], sink).run(until_caught_up=True, show_progress=False)
    except Halted as error:
        raise Corrupt(str(error)) from error
    return sink.values()


def run_spark(store: ObjectStore) -> object:
    """What Spark's driver and its tasks call, in this process."""
    source = ForebaySource({"path": store.url, "holdSeconds": "0"})
    reader = source.reader(StructType([StructField("value", BinaryType())]))
    return [list(reader.read(task)) for task in reader.partitions()]


def verify_all(store: ObjectStore, clock: Clock | None = None) -> object:
    """A verification, which reports what others raise."""
    report = verify(store, clock=clock)
    if report.corrupt:
        raise Corrupt(report.findings[0].what)
    return report


EVERY_READER = pytest.mark.parametrize("read", [consume, read_all, run_runtime, run_spark, verify_all])
