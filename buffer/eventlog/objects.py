"""`s3://bucket/log` and similar URLs: a log in object storage, shared by all processes that use it (rfcs/0009).

A topic of the log is a forebay topic, a partition is one of its buffers, and an append is one batch. An event's offset
is the number that the buffer gives its record.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from threading import Lock
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Corrupt, InvalidInput, NotFound, NotReady, Trimmed, Unknown
from forebay.buffer.eventlog.backend import Bounds
from forebay.buffer.eventlog.cursors import StoredCursors
from forebay.buffer.eventlog.model import CompactReport
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.topic import partition_name
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.topic.growth import create_topic
from forebay.buffer.topic.topic import Topic, in_parallel
from forebay.buffer.write.accumulator import MAX_CALL_BYTES, Accumulator, check_call
from forebay.buffer.write.upload import BatchStorage, floor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.store.base import ObjectStore
    from forebay.buffer.write.upload import Uploaded

_COMPACTED: Final = re.compile(r"eventlog\.from-(\d{1,19})")
"""Matches the name of the log's own group, which contains the first retained offset.

The group's start is the first batch that is still needed. The group exists from the first append on, so that the
collector trims only what was compacted.
"""

_MAX_ATTEMPTS: Final = 10
"""Maximum number of attempts to read, if the collector deletes batches meanwhile."""


class _Partition:
    """One partition: a buffer, read and written by event offsets."""

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        self._store = store
        self._clock = clock
        self._writing = Lock()
        self._storage = BatchStorage(store, clock=clock, random=random)
        self._writer = Queue(store, role="producer", clock=clock, random=random)
        self._reader = Queue(store, role="reader", clock=clock, random=random)
        self._fetcher = FetchHandle(store, clock=clock)
        self._is_held = False
        self._last_batch: tuple[int, Sequence[bytes]] = (-1, ())

    def append(self, events: Sequence[bytes]) -> int:
        """Store a batch, list it, and return the first event's offset."""
        accumulator = Accumulator(MAX_CALL_BYTES)
        accumulator.apply(check_call(list(events), b"", self._clock.now_ms()))
        uploaded = self._storage.put(accumulator.freeze()[0], above=floor_of(self._writer))
        offset = 0

        def append(batches: Sequence[Uploaded]) -> None:
            nonlocal offset
            with self._writing:
                self._hold_what_is_retained()  # guard: hold retained events with a group of the log
                offset = self._offset_of(self._writer.append([uploaded.batch for uploaded in batches]).start)

        self._storage.append([uploaded], append)
        return offset

    def _hold_what_is_retained(self) -> None:
        """Create the log's group unless it exists: else acks of other readers would let the collector trim events."""
        if self._is_held:
            return

        def is_held(head: Head) -> bool:
            return any(_COMPACTED.fullmatch(name) for name in head.groups)

        def hold(head: Head) -> Head | None:
            name = f"eventlog.from-{self._first(head)}"
            return None if is_held(head) else head.with_group(name, self._writer.new_id(), head.first_sequence)

        self._writer.change_head(hold, is_held)
        self._is_held = True

    def _offset_of(self, sequence: int) -> int:
        """Return the offset of a batch that was just appended, from the head that lists it. This needs no request."""
        try:
            (found,) = self._writer.descriptors(sequence, 1, state=self._writer.last_seen())
        except Trimmed as error:
            raise Unknown(
                f"{self._store.url}: an event was appended, but compacted away before its offset was known ({error})"
                "; read the topic before you append it again"
            ) from error
        return _base(found, self._store.url)

    def bounds(self) -> Bounds:
        """Return the range of offsets that the partition holds now."""
        head = self._fresh_head()
        return Bounds(self._first(head), head.next_record)

    def read(self, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` events with their offsets, from offset `first` or the first retained on."""
        head = self._reader.last_head()
        if head is None or first >= head.next_record:
            head = self._fresh_head()
        at = max(first, self._first(head))
        for attempt in range(_MAX_ATTEMPTS):
            plan = self._plan(head, at, limit)
            try:
                batches = in_parallel(self._fetch, plan)
                break
            except NotFound:
                # Either it was compacted and deleted since that head was read, or it is really missing.
                head = self._fresh_head()
                before, at = at, max(first, self._first(head))
                if at == before or attempt == _MAX_ATTEMPTS - 1:  # guard: retry a missing batch with a fresh head
                    raise
        found: list[tuple[int, bytes]] = []
        for descriptor, entries in zip(plan, batches, strict=True):
            base = _base(descriptor, self._store.url)
            skip = max(0, at - base)
            found += enumerate(entries[skip : skip + limit - len(found)], base + skip)
        return found

    def compact(self, through: int) -> CompactReport:
        """Hide the events up to an offset, and let the collector delete batches that hold no other events."""
        generation = self._writer.new_id()
        first = end = removed = 0

        def change(head: Head) -> Head | None:
            nonlocal first, end, removed
            before, end = self._first(head), head.next_record
            first = max(before, min(through + 1, end))
            removed = first - before
            if not removed:
                return None
            start = self._sequence_of(head, first) if first < end else head.next_sequence
            for name in list(head.groups):
                if _COMPACTED.fullmatch(name):
                    head = head.without_group(name)
            return head.with_group(f"eventlog.from-{first}", generation, start)

        with self._writing:
            self._writer.change_head(change, lambda head: _floor(head) >= first)
        return CompactReport(removed, end - first, end - 1 if end else None)

    def _plan(self, head: Head, at: int, limit: int) -> list[BatchDescriptor]:
        """Return the batches that hold up to `limit` events from an offset on."""
        if at >= head.next_record:
            return []
        plan: list[BatchDescriptor] = []
        for descriptor in self._reader.descriptors(self._sequence_of(head, at), limit, state=head):
            if plan and _base(descriptor, self._store.url) >= at + limit:
                break
            plan.append(descriptor)
        return plan

    def _fetch(self, descriptor: BatchDescriptor) -> Sequence[bytes]:
        """Return the events of a batch. The last batch is kept, since a large batch is read in several calls."""
        sequence, entries = self._last_batch
        if sequence != descriptor.sequence:
            entries = self._fetcher.fetch(descriptor).entries
            self._last_batch = (descriptor.sequence, entries)
        return entries

    def _fresh_head(self) -> Head:
        head = self._reader.read()
        if not isinstance(head, Head):
            raise InvalidInput(
                f"{self._store.url} is a buffer of version 1, which does not number its entries; use "
                "another buffer for the event log"
            )
        return head

    def _first(self, head: Head) -> int:
        """Return the first retained offset."""
        if head.first_sequence == head.next_sequence:
            return head.next_record
        if head.first_sequence == 0:
            return min(_floor(head), head.next_record)
        (found,) = self._reader.descriptors(head.first_sequence, 1, state=head)
        return max(_base(found, self._store.url), min(_floor(head), head.next_record))

    def _sequence_of(self, head: Head, offset: int) -> int:
        """Return the sequence of the batch that holds an offset, which must exist."""
        low, high = head.first_sequence, head.next_sequence
        ref = bisect_right(head.refs, offset, key=lambda known: known.first_record or 0) - 1
        if ref >= 0:
            low, high = max(low, head.refs[ref].first_sequence), head.refs[ref].end
            if ref == len(head.refs) - 1:
                high = head.next_sequence  # batches after the last reference are listed in the head itself
        while high - low > 1:
            middle = (low + high) // 2
            (found,) = self._reader.descriptors(middle, 1, state=head)
            low, high = (middle, high) if _base(found, self._store.url) <= offset else (low, middle)
        return low


class ObjectsBackend(StoredCursors):
    """A log in a store. Its topics are forebay topics; their partitions `<url>/<topic>/p-00000` etc. are buffers."""

    kind = "objects"
    polls = True

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        super().__init__(store, clock=clock, random=random)
        # This URL must open the same kind of log again: a folder's URL without the prefix means files of lines.
        self.url: str = f"objects+{store.url}" if store.url.startswith(("file:", "memory:")) else store.url
        self._opening = Lock()
        self._open: dict[tuple[str, int], _Partition] = {}

    def create(self, topic: str, partitions: int) -> int:
        """Create a topic unless it exists, and return its number of partitions."""
        folder = FolderStore(self._store, topic)
        try:
            return create_topic(folder, partitions, clock=self._clock, random=self._random).partitions
        except InvalidInput:
            return Topic(folder).partitions  # it has another number; if it is no topic, this raises again

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if there is no such topic."""
        try:
            return Topic(FolderStore(self._store, topic)).partitions
        except NotReady:
            return None
        except NotFound as error:
            if error.bucket:
                raise
            return None

    def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
        """Store a batch, and return the first offset."""
        return self._partition(topic, partition).append(events)

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each partition. Each costs a conditional read; a few run at a time."""
        return in_parallel(lambda number: self._partition(topic, number).bounds(), partitions)

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return events and their offsets."""
        return self._partition(topic, partition).read(first, limit)

    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Compact a partition, by moving the group that holds the retained events."""
        return self._partition(topic, partition).compact(through)

    def size_bytes(self) -> int | None:
        """Return the total size of all objects, in bytes. This lists the store."""
        return sum(found.size for found in self._store.list())

    def _partition(self, topic: str, number: int) -> _Partition:
        key = (topic, number)
        with self._opening:
            if key not in self._open:
                store = FolderStore(self._store, f"{topic}/{partition_name(number)}")
                self._open[key] = _Partition(store, clock=self._clock, random=self._random)
            return self._open[key]


def _floor(head: Head) -> int:
    """Return the first offset that was not compacted away."""
    found = (_COMPACTED.fullmatch(name) for name in head.groups)
    # guard: read the first offset from the group name
    return max((int(match.group(1)) for match in found if match), default=0)


def _base(descriptor: BatchDescriptor, url: str) -> int:
    if descriptor.base_record is None:
        raise Corrupt(
            f"batch {descriptor.sequence} of {url} came from version 1 and does not say which events "
            "it holds; use another buffer for the event log"
        )
    return descriptor.base_record
