"""A batch read: planned once, on one state of each manifest, under a hold that the tasks keep (rfcs/0008)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from forebay.buffer.topic import Topic
from forebay.runtime.spark.options import Options
from forebay.runtime.spark.reading.filters import may_match
from forebay.runtime.spark.reading.listing import ReadRange, list_batches, list_parts, open_source
from forebay.runtime.spark.reading.plan import SIZING_OPTIONS, Sizing, Task
from forebay.runtime.spark.reading.rows import Rows
from forebay.runtime.spark.reading.task_reader import TaskReader
from forebay.runtime.spark.shipping import Shipped
from forebay.runtime.spark.versions import check_filters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

_RANGE = ("startingSequence", "startingTime", "group", "endingSequence", "endingTime")
_KNOWN = (*_RANGE, *SIZING_OPTIONS, "holdSeconds", "manifestPath", "onCorrupt", "pushFilters")
_INTERNAL = ("plannedParts",)
_INSTEAD = {
    "startingOffsets": "it is for streams. In a batch read, use startingSequence or startingTime",
    "endingOffsets": "use endingSequence or endingTime instead",
}
_HOLD_SECONDS = 1800


def open_reader(given: Mapping[str, str], schema: StructType) -> BatchReader:
    """Return a reader that takes filters only if asked to: Spark refuses one where the session does not allow it."""
    options = Options(given, _KNOWN, internal=_INTERNAL, instead=_INSTEAD)
    if not options.flag("pushFilters", default=False):
        return BatchReader(options, schema)
    check_filters()
    return FilteringReader(options, schema)


class BatchReader(Shipped, DataSourceReader):
    """Reads what a buffer or a topic holds when the read is planned, or a range of it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._store = options.open_store()
        self._schema = schema
        self._manifest_path = options.manifest_path
        self._range = ReadRange(
            first=options.whole("startingSequence"),
            last=options.whole("endingSequence"),
            since=options.text("startingTime"),
            until=options.text("endingTime"),
            group=options.text("group"),
        )
        parts = options.text("plannedParts")
        self._parts = None if parts is None else json.loads(parts)
        hold_seconds = options.whole("holdSeconds")
        self._hold_seconds = _HOLD_SECONDS if hold_seconds is None else hold_seconds
        self._sizing = Sizing.of(options)
        self._filters: list[Filter] = []
        skips = options.choice("onCorrupt", ("fail", "skip"), "fail") == "skip"
        self._task_reader = TaskReader(skip_corrupt=skips)

    def partitions(self) -> list[Task]:
        """Plan the tasks: which batches are there, and a hold on them."""
        source = open_source(self._store, self._manifest_path, must_exist=True)
        is_topic = isinstance(source.found, Topic)
        # before there is a hold that would stay
        rows = Rows(self._schema, self._range.times, source.schema, is_topic=is_topic)
        if self._parts is None:
            pieces = list_batches(source, self._range, hold_seconds=self._hold_seconds)
        else:
            pieces = list_parts(source, self._parts)
        if self._filters:
            matches = lambda batch: all(may_match(found, batch) for found in self._filters)  # noqa: E731
            pieces = [replace(piece, batches=tuple(filter(matches, piece.batches))) for piece in pieces]
        return self._sizing.pack(pieces, rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, Task):  # where nothing was planned, Spark asks for one all the same
            yield from self._task_reader.read(partition)


class FilteringReader(BatchReader):
    """A reader that leaves out batches by filters on the sequence and the ingestion time."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take note of the filters, and leave all of them to Spark as well."""
        self._filters = list(filters)
        return self._filters
