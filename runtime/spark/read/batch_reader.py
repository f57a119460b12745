"""A batch read: planned once, on one state of each manifest, under a hold that the tasks keep (rfcs/0008)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from forebay.buffer.base.checks import parse_time
from forebay.buffer.base.errors import Denied, InvalidInput, Trimmed
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.groups import describe_group
from forebay.buffer.holds import hold_range
from forebay.buffer.topic import Topic
from forebay.buffer.topic.topic import in_parallel
from forebay.runtime.spark.options import Options
from forebay.runtime.spark.read.filters import may_match
from forebay.runtime.spark.read.plan import SIZING_OPTIONS, Piece, Sizing, SourceBuffer, Task
from forebay.runtime.spark.read.rows import Rows, TimeRange
from forebay.runtime.spark.read.task_reader import TaskReader
from forebay.runtime.spark.versions import check_filters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue, State
    from forebay.buffer.manifest.lease import Ticket

_STARTS = ("startingSequence", "startingTime", "group")
_ENDS = ("endingSequence", "endingTime")
_KNOWN = (*_STARTS, *_ENDS, *SIZING_OPTIONS, "holdSeconds", "manifestPath", "onCorrupt", "pushFilters")
_HOLD_SECONDS = 1800


def open_reader(given: Mapping[str, str], schema: StructType) -> BatchReader:
    """Return a reader that takes filters only if asked to: Spark refuses one where the session does not allow it."""
    options = Options(given, _KNOWN)
    if not options.flag("pushFilters", default=False):
        return BatchReader(options, schema)
    check_filters()
    return FilteringReader(options, schema)


class BatchReader(DataSourceReader):
    """Reads what a buffer or a topic holds when the read is planned, or a range of it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._store = options.open_store()
        self._manifest_path = options.text("manifestPath") or "manifest"
        for names in (_STARTS, _ENDS):
            if sum(options.text(name) is not None for name in names) > 1:
                raise InvalidInput(f"give one of {', '.join(names)}, not several")
        self._first = options.whole("startingSequence")
        self._last = options.whole("endingSequence")
        self._since = options.text("startingTime")
        self._until = options.text("endingTime")
        self._upto = next((found for found in (self._last, self._until) if found is not None), "latest")
        self._group = options.text("group")
        hold_seconds = options.whole("holdSeconds")
        self._hold_seconds = _HOLD_SECONDS if hold_seconds is None else hold_seconds
        self._sizing = Sizing.of(options)
        self._filters: list[Filter] = []
        self._times = TimeRange(_time_ms(self._since), _time_ms(self._until))
        skips = options.choice("onCorrupt", ("fail", "skip"), "fail") == "skip"
        self._task_reader = TaskReader(Rows(schema, self._times), skip_corrupt=skips)

    def partitions(self) -> list[Task]:
        """Plan the tasks: which batches are there, and a hold on them."""
        found = open_buffer_or_topic(self._store, self._manifest_path, must_exist=True, role="spark")
        if not isinstance(found, Topic):
            return self._sizing.pack([self._plan(0, found)])
        if self._first is not None or self._last is not None:
            raise InvalidInput(
                f"{self._store.url} is a topic, where a sequence is another batch in each partition: "
                "use startingTime and endingTime, or the URL of one partition"
            )
        return self._sizing.pack(
            in_parallel(lambda number: self._plan(number, found.open_queue(number, "spark")), range(found.partitions))
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, Task):  # where nothing was planned, Spark asks for one all the same
            yield from self._task_reader.read(partition)

    def _plan(self, number: int, queue: Queue) -> Piece:
        try:
            batches, ticket = self._look(queue)
        except Trimmed as error:
            raise Trimmed(f"{queue.store.url}: {error}", first=error.first) from error
        source = SourceBuffer(queue.store, number, queue.manifest_path, ticket)
        return Piece(source, tuple(batch for batch in batches if self._wants(batch)))

    def _look(self, queue: Queue) -> tuple[list[BatchDescriptor], Ticket | None]:
        """Return the batches of the range, and the ticket of the hold that keeps them, if there is one."""
        state = queue.last_seen() or queue.read_existing()
        from_ = self._from(queue, state)
        if state.version == 1 or self._hold_seconds == 0:
            first, end = self._bounds(queue, state, from_)
            return queue.descriptors(first, max(0, end - first), state=state), None
        try:
            held = hold_range(queue, from_, self._upto, ttl=self._hold_seconds, purpose="a batch read by Spark")
        except Denied as error:
            raise Denied(
                f"{error}. A batch read writes a hold into the manifest, so that nothing it reads is swept meanwhile; "
                "with the option holdSeconds=0 it does without, and with rights to read alone"
            ) from error
        with held:
            return list(held.descriptors()), held.hand_over()

    def _from(self, queue: Queue, state: State) -> str | int:
        if self._group is not None:
            group = describe_group(queue.store, queue.as_head(state), self._group)
            return group.start if group.acked is None else group.acked + 1
        if self._first is not None:
            return self._first
        return "earliest" if self._since is None else self._since

    def _bounds(self, queue: Queue, state: State, from_: str | int) -> tuple[int, int]:
        """Return the first sequence, and the one after the last."""
        upto = self._upto
        knows_times = state.version == 2  # else all of it, and what its metadata tells decides
        if self._since is not None and not knows_times:
            from_ = "earliest"
        if self._until is not None and not knows_times:
            upto = "latest"
        return queue.sequence_of(from_, state=state), queue.end_of(upto, state=state)

    def _wants(self, batch: BatchDescriptor) -> bool:
        is_empty = batch.facts is not None and batch.facts.records == 0
        return not is_empty and self._times.meets(batch) and all(may_match(found, batch) for found in self._filters)


class FilteringReader(BatchReader):
    """A reader that leaves out batches by filters on `sequence` and `ingestion_time`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take note of the filters, and leave all of them to Spark as well."""
        self._filters = list(filters)
        return self._filters


def _time_ms(text: str | None) -> int | None:
    return None if text is None else parse_time(text)
