"""The interface of an event log's storage. Subscriptions are implemented once, on top of it."""

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
    """The range of offsets that a partition holds."""

    first: int
    """The lowest offset that is retained; `next` if there is none."""
    next: int
    """The offset of the next event to be appended: one more than the latest, and 0 before the first."""


class Changes:
    """Wakes subscribers when the log changes: a condition, and the number of its notifications."""

    def __init__(self) -> None:
        self.condition: Condition = Condition()
        self.count: int = 0

    def notify(self) -> None:
        """Wake all waiting threads. A thread that is reading now finds the change by comparing `count`."""
        with self.condition:
            self.count += 1
            self.condition.notify_all()

    def wait_past(self, count: int, clock: Clock, deadline: float | None) -> bool:
        """Wait until `count` has changed or the deadline is reached, and return whether it has changed."""
        return wait_for(clock, self.condition, lambda: self.count != count, deadline)


class Backend(ABC):
    """Stores topics, partitions and encoded events. Safe to use from many threads.

    The caller has checked names and numbers. Reading never writes: a topic that does not exist reads as empty. The
    caller creates a topic, with its number of partitions, before it appends to it.
    """

    kind: str
    """The name of this kind of storage in `describe`."""
    url: str
    """The log's URL, for messages."""
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
            Unknown: they may have been appended, or may be later.
        """

    @abstractmethod
    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each of these partitions as they are now."""

    @abstractmethod
    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` contiguous events with their offsets, from offset `first` or the first retained on.

        Every event within the `bounds` returned earlier is found, unless it was compacted away since.
        """

    @abstractmethod
    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Remove the events up to and including an offset of a topic that exists."""

    @abstractmethod
    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return a consumer's cursor, the last offset it is done with; None if there is none."""

    @abstractmethod
    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Set a consumer's cursor; None removes it. Unless `back`, an offset before the current one changes nothing."""

    @abstractmethod
    def size_bytes(self) -> int | None:
        """Return the log's size in bytes where it is stored; None in memory."""

    def flush(self) -> None:  # noqa: B027 - not every kind of storage needs it
        """Make everything appended so far survive a power cut, where that is not so already."""

    def close(self) -> None:  # noqa: B027
        """Close files and connections."""
