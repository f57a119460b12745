"""The interface of an event log's storage; subscriptions are implemented once, above it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Condition
from typing import TYPE_CHECKING, NamedTuple

from forebay.buffer.base.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.eventlog.model import CompactReport


class Bounds(NamedTuple):
    """Which offsets of a partition are there."""

    first: int
    """The lowest that is retained; `next` if none is."""
    next: int
    """That of the next event appended: one more than the latest, and 0 before the first."""


class Changes:
    """Wakes subscribers when something new is there: a condition, and how often it was notified."""

    def __init__(self) -> None:
        self.condition: Condition = Condition()
        self.count: int = 0

    def notify(self) -> None:
        """Wake all waiting threads. A thread that is reading now sees by `count` that something changed."""
        with self.condition:
            self.count += 1
            self.condition.notify_all()

    def wait_past(self, count: int, clock: Clock, deadline: float | None) -> bool:
        """Wait until `count` has changed or the deadline is reached, and return whether it has changed."""
        return wait_for(clock, self.condition, lambda: self.count != count, deadline)


class Backend(ABC):
    """A home of topics, partitions and encoded events. Safe to use from many threads.

    Names and numbers are checked before they get here. Reading never writes: what is not there reads as empty. Topics
    are made, and their number of partitions settled, before anything is appended to them.
    """

    kind: str
    """What `describe` calls it."""
    url: str
    """Where it is, for messages."""
    polls: bool
    """Whether other processes can append without a notification, so that a waiting reader must poll."""

    def __init__(self) -> None:
        self.changes: Changes = Changes()

    @abstractmethod
    def create(self, topic: str, partitions: int) -> int:
        """Create a topic with this number of partitions unless it exists, and return its number of partitions."""

    @abstractmethod
    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if there is no such topic."""

    @abstractmethod
    def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
        """Append events and return the first one's offset; the others follow it.

        Raises:
            Unavailable: none of them was appended.
            Unknown: they may have been, or may yet be.
        """

    @abstractmethod
    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each of these partitions as they are now."""

    @abstractmethod
    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` events, neighbours, from offset `first` on, or from the first retained if that is later.

        What `bounds` said to be there before is found, unless it was compacted away.
        """

    @abstractmethod
    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Remove the events up to and including an offset of a topic that exists."""

    @abstractmethod
    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return where a consumer is; None if it never said."""

    @abstractmethod
    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Remember where a consumer is; unless `back`, a place before the present one changes nothing."""

    @abstractmethod
    def size_bytes(self) -> int | None:
        """Return what the log takes where it is; None in memory."""

    def flush(self) -> None:  # noqa: B027 - not every home has to
        """Let what was appended survive a power cut, where that needs doing."""

    def close(self) -> None:  # noqa: B027
        """Let go of files and connections."""
