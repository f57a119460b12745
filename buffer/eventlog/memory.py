"""`memory://name`: a log in this process, shared by every handle of that name."""

from __future__ import annotations

import os
from threading import Condition, Lock
from typing import TYPE_CHECKING

from forebay.buffer.eventlog.backend import Backend, Bounds, Changes
from forebay.buffer.eventlog.model import CompactReport

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Partition:
    def __init__(self) -> None:
        self.first = 0
        self.events: list[bytes] = []

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.first, self.first + len(self.events))


class _Shared:
    """The state that all handles of one name share."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.changes = Changes()
        self.topics: dict[str, list[_Partition]] = {}
        self.cursors: dict[tuple[str, int, str], int] = {}


_logs: dict[str, _Shared] = {}


def _renew_locks() -> None:
    """Make new locks in a forked child: a lock that another thread of the parent held would never be released."""
    for shared in _logs.values():
        shared.lock = Lock()
        shared.changes.condition = Condition()


os.register_at_fork(after_in_child=_renew_locks)


class MemoryBackend(Backend):
    """A log in this process. A child process, forked or spawned, has its own log."""

    kind = "memory"
    polls = False

    def __init__(self, url: str) -> None:
        self.url = url
        self._shared = _logs.setdefault(url, _Shared())  # atomic, so it needs no lock
        self.changes: Changes = self._shared.changes

    def create(self, topic: str, partitions: int) -> int:
        """Create a topic unless it exists, and return its number of partitions."""
        with self._shared.lock:
            return len(self._shared.topics.setdefault(topic, [_Partition() for _ in range(partitions)]))

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if there is no such topic."""
        with self._shared.lock:
            found = self._shared.topics.get(topic)
        return None if found is None else len(found)

    def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
        """Append events, and return the first offset."""
        with self._shared.lock:
            found = self._shared.topics[topic][partition]
            offset = found.bounds.next
            found.events.extend(events)
            return offset

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each partition."""
        with self._shared.lock:
            found = self._shared.topics.get(topic)
            return [Bounds(0, 0) if found is None else found[number].bounds for number in partitions]

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return events and their offsets."""
        with self._shared.lock:
            found = self._shared.topics.get(topic)
            if found is None:
                return []
            start = max(0, first - found[partition].first)
            events = found[partition].events[start : start + limit]
            return list(enumerate(events, found[partition].first + start))

    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Drop the events up to an offset."""
        with self._shared.lock:
            found = self._shared.topics[topic][partition]
            removed = max(0, min(through + 1 - found.first, len(found.events)))
            del found.events[:removed]
            found.first += removed
            end = found.bounds.next
            return CompactReport(removed, len(found.events), end - 1 if end else None)

    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return a consumer's cursor; None if there is none."""
        with self._shared.lock:
            return self._shared.cursors.get((topic, partition, consumer))

    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Set or remove a consumer's cursor."""
        key = (topic, partition, consumer)
        with self._shared.lock:
            if to is None:
                self._shared.cursors.pop(key, None)
            elif back or to > self._shared.cursors.get(key, -1):
                self._shared.cursors[key] = to

    def size_bytes(self) -> int | None:
        """Return None: the size in memory is not counted."""
        return None
