"""The read side of a stream: a claim on every buffer of it, made where Spark plans and nowhere else (rfcs/0008)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import Corrupt, ForebayError, InvalidInput, NotFound, Trimmed, Unavailable, Unknown
from forebay.buffer.format.model import Reader
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.state import is_unwritten
from forebay.buffer.manifest.topic import IsTopic
from forebay.buffer.topic import Topic
from forebay.buffer.topic.topic import check_place, in_parallel
from forebay.runtime.spark.read.offsets import Position
from forebay.runtime.spark.read.plan import SourceBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.consumer import ReadSide
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import State
    from forebay.buffer.store import ObjectStore
    from forebay.runtime.spark.read.offsets import Offset

_log = logging.getLogger("forebay.spark")

_PIECE = 1000


class ClaimedBuffer:
    """One buffer, claimed for its group; without a group, for the unnamed consumer.

    Args:
        source: the buffer.
        group: the named reader, made if there is none.
        start: where it starts then; where it stands already, this is asked for with `at`.
        fails: whether what was trimmed unread is an error, or is skipped with a warning.
    """

    def __init__(self, source: SourceBuffer, group: str | None, start: str | int, *, fails: bool) -> None:
        self.source = source
        self._fails = fails
        self._queue = Queue(source.store, source.manifest_path, role="spark")
        before = self._queue.read()
        self.is_new = isinstance(before, Head) and group is not None and group not in before.groups
        """Whether the group was made by this."""
        self._side: ReadSide = self._queue if group is None else GroupReader(self._queue, group, start=start)
        self._claim = self._side.claim()
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
            raise InvalidInput(f"{self._url}: there is no batch {sequence} yet; the next one will be {self.end}")
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
                raise Trimmed(f"batch {at} was consumed by another", first=self._state.first_sequence)
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
        while first < end:
            found = self._queue.descriptors(first, min(_PIECE, end - first), state=self._state)
            if not found:
                raise Corrupt(f"{self._url} lists batch {first} no more: somebody deleted or replaced its manifest")
            yield from found
            first += len(found)

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
                f"{self._url}: the checkpoint is of buffer {theirs.source}, and this is {ours.source}: another one "
                "stands here now. Start with a new checkpoint"
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
    """Every buffer of a stream: the one at its URL, or the partitions of a topic, those that are added later too."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        group: str | None,
        start: str | int | None,
        checkpoint: Offset,
        manifest_path: str,
        fails: bool,
    ) -> None:
        for position in checkpoint.values():
            # Before a group is made that nobody would read for, and that would keep everything from the collector.
            if position.reader.group != (group or ""):  # guard: check the group of the checkpoint before creating one
                raise _of_another(store.url, position.reader, Reader(position.reader.source, group or ""))
        self._store = store
        self._group = group
        self._start = "earliest" if start is None else start
        self._manifest_path = manifest_path
        self._fails = fails
        self._topic = self._find_topic()
        self.buffers: dict[int, ClaimedBuffer] = {}
        """By partition; a buffer on its own is partition 0."""
        self.is_new = False
        """Whether the group was made by this, where it was asked to start."""
        if self._topic is not None:
            self._start = check_place(self._start)
            if group is not None:
                self.is_new = group not in self._topic.record.groups
                self._start = self._topic.register_group(group, self._start)
        self.refresh()

    def refresh(self) -> None:
        """Claim partitions that were added meanwhile."""
        count = 1 if self._topic is None else self._topic.refresh().partitions
        new = range(len(self.buffers), count)
        if new and self.buffers:  # guard: check the first claim before claiming new partitions
            # One that was replaced must not take a new partition from its successor.
            self.buffers[0].look(self.buffers[0].end)
        for number, claimed in zip(new, in_parallel(self._claim, new), strict=True):
            self.buffers[number] = claimed

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
                f"{self._store.url}: the checkpoint is of a topic with a partition {number}; here there are "
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

    def _find_topic(self) -> Topic | None:
        try:
            Queue(self._store, self._manifest_path, role="spark").read_existing()
        except InvalidInput:
            return Topic(self._store)
        return None

    def _claim(self, number: int) -> ClaimedBuffer:
        store = self._store if self._topic is None else self._topic.partition(number)
        claimed = ClaimedBuffer(
            SourceBuffer(store, number, self._manifest_path), self._group, self._start, fails=self._fails
        )
        if self._topic is None:
            self.is_new = claimed.is_new
        return claimed


def is_written(store: ObjectStore, manifest_path: str) -> bool:
    """Whether there is a topic, or a buffer that was written to. Creates nothing."""
    try:
        return not is_unwritten(Queue(store, manifest_path, role="spark").read_existing())
    except IsTopic:
        return True
    except NotFound as error:
        if error.bucket:
            raise
        return False


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
