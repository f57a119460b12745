"""A stream: offsets are sequences, and what Spark has made durable is acknowledged for the group (rfcs/0008)."""

from __future__ import annotations

import heapq
import logging
from itertools import repeat
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, SupportsTriggerAvailableNow

from forebay.buffer.base.checks import parse_time
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import NotFound
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.read.ahead import size_of
from forebay.buffer.topic import Topic
from forebay.buffer.topic.topic import in_parallel
from forebay.runtime.spark.options import Options, naming_credentials
from forebay.runtime.spark.reading.claimed_buffers import ClaimedBuffers
from forebay.runtime.spark.reading.offsets import Position, from_json, to_json
from forebay.runtime.spark.reading.plan import SIZING_OPTIONS, Piece, Sizing, Task
from forebay.runtime.spark.reading.stream_rows import StreamRows
from forebay.runtime.spark.reading.task_reader import TaskReader
from forebay.runtime.spark.shipping import Shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue, State
    from forebay.runtime.spark.reading.claimed_buffers import ClaimedBuffer
    from forebay.runtime.spark.reading.offsets import Offset

_log = logging.getLogger("forebay.spark")

_TELL_SECONDS = 60.0
"""Time between two warnings that a buffer is waited for."""

_LIMITS = ("maxBatchesPerTrigger", "maxBytesPerTrigger")
_KNOWN = (*SIZING_OPTIONS, *_LIMITS, "failOnDataLoss", "group", "manifestPath", "onCorrupt", "startingOffsets")
_INSTEAD = dict.fromkeys(
    ("startingSequence", "startingTime"), "it is for batch reads. In a stream, use startingOffsets"
)


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what arrives in a buffer or a topic, as one group.

    Spark makes one of these in each of several processes. Only the one that it plans with, and asks for offsets, claims
    the group; the others are pickled into tasks and do no more than `read`.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, clock: Clock | None = None) -> None:
        options = Options(given, _KNOWN, instead=_INSTEAD)
        self._clock = clock or SystemClock()
        self._store = options.open_store()
        self._manifest_path = options.manifest_path
        self._group = options.text("group")
        self._start = _place(options.text("startingOffsets"))
        self._fails = options.flag("failOnDataLoss", default=True)
        self._max_batches = options.whole("maxBatchesPerTrigger", least=1)
        self._max_bytes = options.whole("maxBytesPerTrigger", least=1)
        self._sizing = Sizing.of(options)
        skips = options.choice("onCorrupt", ("fail", "skip"), "fail") == "skip"
        self._task_reader = TaskReader(skip_corrupt=skips, skip_trimmed=not self._fails)
        self._rows = StreamRows(schema)
        self._source: Queue | Topic | None = None
        self._claims: ClaimedBuffers | None = None
        self._waited = False
        self._told_at: float | None = None
        self._available_now = False
        self._targets: dict[int, int] | None = None

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts: where the group stands, or where the options say.

        If nothing was ever written to the buffer, it is an offset without positions.
        """
        if self._is_awaited():
            return to_json({})
        claims = self._claim()
        begins = {number: self._beginning(claims, found) for number, found in claims.buffers.items()}
        return to_json(begins, self._rows.schema_id)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` itself if there is nothing new.

        What is in front of `start` is in the checkpoint by now, so this is where the group moves on. Spark says so by
        `commit` too, but not of the last micro-batch of a run.
        """
        before = from_json(start)
        self._rows.resume(start.get("schema"))
        if not before and self._is_awaited():
            return start
        claims = self._claim(before)
        claims.add_new_partitions()
        claims.acknowledge(before)
        stands = {
            # A partition added later starts at its beginning; a buffer that was waited for, where the query asked.
            number: before.get(number) or (found.frontier() if before else self._beginning(claims, found))
            for number, found in claims.buffers.items()
        }
        looks = in_parallel(lambda number: claims.buffers[number].look(stands[number].next), stands)
        begins = dict(zip(stands, looks, strict=True))
        ends = self._admit(claims, begins, limit)
        if all(number in before and before[number].next == end for number, end in ends.items()):
            return start
        self._rows.look(claims.source)
        advanced = {number: _advance(stands[number], begins[number], end) for number, end in ends.items()}
        return to_json(advanced, self._rows.schema_id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Say whether there is a limit; what it is, the options say."""
        if self._max_bytes is not None:
            return ReadMaxBytes(self._max_bytes)
        return ReadAllAvailable() if self._max_batches is None else ReadMaxFiles(self._max_batches)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now and no more. Nothing is claimed for it: Spark has not shown the checkpoint yet."""
        self._available_now = True
        if self._claims is not None:
            self._end_here(self._claims)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the buffer ends, as last seen: the query's progress shows how far behind it is."""
        if self._claims is None:
            return None
        return to_json({number: Position(found.reader, found.end) for number, found in self._claims.buffers.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """Plan the tasks of a micro-batch: exactly the range that its end was written down with."""
        if start == end:
            return []
        planned = from_json(end)
        self._rows.resume(end.get("schema"))
        claims = self._claim(planned)
        buffers = [(claims.at(number, position), position) for number, position in planned.items()]

        def plan(found: ClaimedBuffer, began: int, end: int) -> Piece:
            return Piece(found.source, tuple(found.batches(found.look(began), end)))

        read = [(found, at.began, at.next) for found, at in buffers if at.began is not None and at.began < at.next]
        return self._sizing.pack(in_parallel(lambda each: plan(*each), read), self._rows.look(claims.source))

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what a micro-batch read: Spark has made it durable."""
        durable = from_json(end)
        self._claim(durable).acknowledge(durable)

    def stop(self) -> None:
        """Let the group go."""
        if self._claims is not None:
            self._claims.release()

    # In tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, Task):
            yield from self._task_reader.read(partition)

    # Inside

    def _is_awaited(self) -> bool:
        """Whether nothing was ever written to the buffer. Then nothing is created, and a warning is logged.

        Raises:
            NotFound: the trigger is AvailableNow, which does not wait.
        """
        if self._claims is not None:
            return False
        found = self._open_source(must_exist=False)
        if isinstance(found, Topic) or _is_written(found.last_seen()):
            self._source = found
            return False
        if self._available_now:
            raise NotFound(
                f"nothing was ever written to {self._store.url}, or its URL is wrong"
                "; check the URL, or start the stream after the first write"
            )
        self._waited = True
        now = self._clock.monotonic()
        if self._told_at is None or now >= self._told_at + _TELL_SECONDS:
            self._told_at = now
            _log.warning("nothing was ever written to %s; waiting for it. Is the URL right?", self._store.url)
        return True

    def _open_source(self, *, must_exist: bool) -> Queue | Topic:
        with naming_credentials():
            return open_buffer_or_topic(self._store, self._manifest_path, must_exist=must_exist, role="spark")

    @property
    def _starts_at(self) -> str | int | None:
        """Where the stream starts. If it waited for the buffer, everything in it is newer than the query's `latest`."""
        return "earliest" if self._waited and self._start == "latest" else self._start

    def _beginning(self, claims: ClaimedBuffers, found: ClaimedBuffer) -> Position:
        """Where a new query starts in one buffer."""
        place = None if claims.is_new else self._starts_at
        return found.frontier() if place is None else found.at(place)

    def _claim(self, checkpoint: Offset | None = None) -> ClaimedBuffers:
        """The claims, made by the first call: Spark plans in one process, and makes readers in others too."""
        if self._claims is None:
            source = self._source or self._open_source(must_exist=True)
            self._rows.look(source)  # before a group is made for a query that cannot run
            self._claims = ClaimedBuffers(
                source,
                group=self._group,
                start=self._starts_at,
                checkpoint=checkpoint or {},
                fails=self._fails,
            )
            if self._available_now:
                self._end_here(self._claims)
        return self._claims

    def _end_here(self, claims: ClaimedBuffers) -> None:
        in_parallel(lambda found: found.look(found.end), claims.buffers.values())
        self._targets = {number: found.end for number, found in claims.buffers.items()}

    def _admit(self, claims: ClaimedBuffers, begins: dict[int, int], limit: ReadLimit) -> dict[int, int]:
        """How far the next micro-batch goes in each buffer: within the limits the oldest first, one batch at least."""
        ends = {}
        for number, begin in begins.items():
            end = claims.buffers[number].end
            ends[number] = max(begin, end if self._targets is None else min(end, self._targets.get(number, 0)))
        if isinstance(limit, ReadAllAvailable):
            return ends
        waiting = [zip(repeat(n), claims.buffers[n].batches(begins[n], end), strict=False) for n, end in ends.items()]
        admitted = dict(begins)
        batches = total = 0
        for number, batch in heapq.merge(*waiting, key=lambda found: _age(found[1])):
            batches, total = batches + 1, total + size_of(batch)
            too_large = self._max_bytes is not None and total > self._max_bytes and batches > 1
            if too_large or (self._max_batches is not None and batches > self._max_batches):
                break
            admitted[number] = batch.sequence + 1
        return admitted


def _advance(stands: Position, begin: int, end: int) -> Position:
    """The position after a micro-batch; one that has read nothing yet stays without a beginning."""
    # guard: store in the offset where the micro-batch began
    return Position(stands.reader, end, None if begin == end and stands.began is None else begin)


def _age(batch: BatchDescriptor) -> int:
    return 0 if batch.facts is None else batch.facts.first_time_ms


def _is_written(state: State | None) -> bool:
    return state is not None and not state.is_unwritten


def _place(text: str | None) -> str | int | None:
    """A place as the manifest takes it."""
    if text is None or text.lower() in ("earliest", "latest"):
        return text and text.lower()
    if text.isdecimal():
        return int(text)
    parse_time(text)
    return text
