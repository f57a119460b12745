"""The buffers that a stream reads, each claimed for its group, in the process where Spark plans (rfcs/0008)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Corrupt, ForebayError, InvalidInput, Trimmed, Unavailable, Unknown
from forebay.buffer.base.process import this_process
from forebay.buffer.format.model import Reader
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Queue, UnnamedReader
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.topic import Topic
from forebay.buffer.topic.topic import check_place, in_parallel
from forebay.runtime.spark.reading.offsets import Position
from forebay.runtime.spark.reading.plan import SourceBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue, State
    from forebay.buffer.read.side import ReadSide
    from forebay.runtime.spark.reading.offsets import Offset

_log = logging.getLogger("forebay.spark")


class ClaimedBuffer:
    """One buffer, claimed for a group; without a group, for the unnamed consumer.

    Args:
        queue: a view of the buffer's manifest.
        number: the partition; 0 for a buffer on its own.
        group: created if it does not exist.
        start: where a new group starts.
        fails: whether batches that were trimmed unread are an error. If not, they are skipped with a warning.
    """

    def __init__(self, queue: Queue, number: int, group: str | None, start: str | int, *, fails: bool) -> None:
        self.source: Final = SourceBuffer(queue.store, number, queue.manifest_path)
        self._fails = fails
        self._queue = queue
        self._side: ReadSide = UnnamedReader(queue) if group is None else GroupReader(queue, group, start=start)
        self.is_new: bool = isinstance(self._side, GroupReader) and self._side.is_new
        """Whether this created the group."""
        self._claim = self._side.claim(this_process(SystemClock()))
        self._acked = self.frontier().next - 1

    @property
    def reader(self) -> Reader:
        """Who reads."""
        return self._side.reader

    @property
    def end(self) -> int:
        """The sequence behind the last batch, as last seen."""
        return self._state.next_sequence

    def frontier(self) -> Position:
        """Where the group stands: behind what is acknowledged."""
        acked = self._side.acked()
        if acked is None:
            return Position(self.reader, 0 if self.reader.group else self._state.first_sequence)
        return Position(self.reader, acked + 1)

    def at(self, place: str | int) -> Position:
        """The position that `earliest`, `latest`, a sequence or a time stands for."""
        sequence = self._queue.sequence_of(place, state=self._state)
        if sequence > self._state.next_sequence:
            raise InvalidInput(
                f"{self._url}: there is no batch {sequence} yet; the next one will be {self.end}"
                "; start at that one, or at an earlier one"
            )
        return Position(self.reader, sequence)

    def look(self, at: int) -> int:
        """Look at the manifest, and return the first sequence from `at` on that is there to be read.

        Raises:
            Fenced: another consumer has taken over.
            Trimmed: `at` is gone, and that is an error.
        """
        try:
            self._side.look(self._claim, at - 1, 0)
            if at < self._state.first_sequence:  # version 1 does not mind
                raise Trimmed(
                    f"batch {at} was consumed by another consumer before it was read; read from the first one left",
                    first=self._state.first_sequence,
                )
        except Trimmed as error:
            if self._fails:
                raise Trimmed(
                    f"{self._url}: {error}. {error.first - at} batches from {at} on were removed before this stream "
                    "read them. Set failOnDataLoss=false to go on without them",
                    first=error.first,
                ) from error
            metrics.batches_skipped.add(error.first - at, {"buffer": self._url})
            _log.warning("%s: batches %d to %d were removed unread and are skipped", self._url, at, error.first - 1)
            at = error.first
        self._check_end(at)
        return at

    def batches(self, first: int, end: int) -> Iterator[BatchDescriptor]:
        """Yield batches of the manifest as last seen, read piece by piece."""
        self._check_end(end)
        return descriptors_between(self._queue, first, end, state=self._state)

    def acknowledge(self, position: Position) -> None:
        """Record that all in front of a position is durable where it went. What is recorded already costs nothing.

        A store out of reach is no reason to stop: the next call says the same and more.

        Raises:
            Fenced: another consumer has taken over, and nothing was changed.
        """
        through = position.next - 1
        if through <= self._acked:
            return
        try:
            self._side.ack(self._claim, through)
        except (Unavailable, Unknown):
            _log.warning("%s: acknowledging batch %d failed; trying again later", self._url, through, exc_info=True)
            return
        metrics.acks.add(through - self._acked, {"buffer": self._url})
        self._acked = through

    def check(self, position: Position) -> None:
        """Return if a position of the checkpoint is one of ours.

        Raises:
            Corrupt: it is of another buffer.
            InvalidInput: it is of another group, or of an earlier life of this one.
        """
        theirs, ours = position.reader, self.reader
        if theirs.source != ours.source:  # guard: refuse a checkpoint of another buffer
            raise Corrupt(
                f"{self._url}: the checkpoint is of buffer {theirs.source}, and the buffer at this URL is "
                f"{ours.source}. Start with a new checkpoint"
            )
        if theirs != ours:  # guard: refuse a checkpoint of another group or generation
            raise _of_another(self._url, theirs, ours)

    def release(self) -> None:
        """Let the group go, so that it can be reset without force."""
        self._side.release(self._claim)

    def _check_end(self, sequence: int) -> None:
        if sequence > self.end:  # guard: refuse a checkpoint ahead of the manifest
            raise Corrupt(
                f"{self._url}: the checkpoint is at batch {sequence}, and the next one will be {self.end}: the "
                "manifest was set back. Restore it, or start with a new checkpoint"
            )

    @property
    def _url(self) -> str:
        return self.source.store.url

    @property
    def _state(self) -> State:
        return self._queue.last_seen() or self._queue.read()


class ClaimedBuffers:
    """Every buffer of a stream, claimed: one buffer, or all partitions of a topic, including those added later."""

    def __init__(
        self, source: Queue | Topic, *, group: str | None, start: str | int | None, checkpoint: Offset, fails: bool
    ) -> None:
        for position in checkpoint.values():
            # Before a group is made that nobody would read for, and that would keep everything from the collector.
            if position.reader.group != (group or ""):  # guard: check the group of the checkpoint before creating one
                raise _of_another(source.store.url, position.reader, Reader(position.reader.source, group or ""))
        self.source = source
        """The buffer or the topic."""
        self._group = group
        self._start = "earliest" if start is None else start
        self._fails = fails
        self.buffers: dict[int, ClaimedBuffer] = {}
        """By partition; a buffer on its own is partition 0."""
        self.is_new: bool = False
        """Whether this created the group, at the start that was asked for."""
        if isinstance(source, Topic):
            self._start = check_place(self._start)
            if group is not None:
                self.is_new = group not in source.record.groups
                self._start = source.register_group(group, self._start, apart_from=range(source.partitions))
            self._claim(source.partitions)
        else:
            self._claim(1)
            self.is_new = self.buffers[0].is_new

    def add_new_partitions(self) -> None:
        """Claim the partitions that were added to the topic since the last look."""
        if isinstance(self.source, Topic) and self.source.refresh().partitions > len(self.buffers):
            # guard: check the first claim before claiming new partitions
            self.buffers[0].look(self.buffers[0].end)  # if we were replaced, the new partitions are not ours
            self._claim(self.source.partitions)

    def acknowledge(self, offset: Offset) -> None:
        """Record that all in front of an offset is durable where it went, but for what no micro-batch has read."""
        for number, position in offset.items():
            self.at(number, position)
        # guard: acknowledge only where something was read
        planned = [(n, position) for n, position in offset.items() if position.began is not None]
        in_parallel(lambda found: self.buffers[found[0]].acknowledge(found[1]), planned)

    def at(self, number: int, position: Position) -> ClaimedBuffer:
        """Return the buffer that a position of the checkpoint is in, if it is one of ours."""
        found = self.buffers.get(number)
        if found is None:
            raise Corrupt(
                f"{self.source.store.url}: the checkpoint is of a topic with a partition {number}; here there are "
                f"{len(self.buffers)}. Another one stands here now: start with a new checkpoint"
            )
        found.check(position)
        return found

    def release(self) -> None:
        """Let all go, as far as the store can be reached."""
        for claimed in self.buffers.values():
            try:
                claimed.release()
            except ForebayError:
                _log.warning("%s: letting go failed", claimed.source.store.url, exc_info=True)

    def _claim(self, count: int) -> None:
        """Claim the first `count` partitions, but for those that are claimed already."""
        source = self.source

        def claim(number: int) -> ClaimedBuffer:
            queue = source.open_queue(number, "spark") if isinstance(source, Topic) else source
            return ClaimedBuffer(queue, number, self._group, self._start, fails=self._fails)

        new = range(len(self.buffers), count)
        self.buffers.update(zip(new, in_parallel(claim, new), strict=True))


def _of_another(url: str, theirs: Reader, ours: Reader) -> InvalidInput:
    return InvalidInput(
        f"{url}: the checkpoint is of {_describe(theirs)}, and this stream reads as {_describe(ours)}. "
        "Start with a new checkpoint, and with startingOffsets to start elsewhere than where the group stands"
    )


def _describe(reader: Reader) -> str:
    if not reader.group:
        return "the unnamed consumer"
    life = f" (generation {reader.generation[:8]})" if reader.generation else ""
    return f"group {reader.group}{life}"
