"""Tracks up to which sequence all portions of a source are committed. They may end in any order (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.runtime.stages.portions import Portion


class Frontier:
    """The end of the unbroken run of committed portions of one source: everything up to it may be acknowledged.

    The caller holds the runtime's lock.

    Args:
        every: an ack is due after this number of commits.
        seconds: an ack is due at the latest this many seconds after the frontier moved.
    """

    def __init__(self, every: int, seconds: float) -> None:
        self._every = every
        self._seconds = seconds
        self._waiting: deque[Portion] = deque()
        self._commits = 0
        self._since = 0.0
        self.through: int | None = None
        """The last sequence that may be acknowledged; None if there is none."""
        self.acked: int | None = None
        """The last sequence that was acknowledged by this process; None if there is none."""

    def add(self, portion: Portion) -> None:
        """Add the next portion. The frontier passes it only once it is done."""
        self._waiting.append(portion)

    def advance(self, now: float) -> int:
        """Pass the portions that are done, and return their number of batches."""
        passed = 0
        while self._waiting and self._waiting[0].done:  # guard: advance the frontier only without gaps
            portion = self._waiting.popleft()
            if self.through == self.acked:
                self._since = now
            passed += len(portion.descriptors)
            self._commits += 1
            self.through = portion.identity.last
        return passed

    def mark_acked(self, through: int) -> None:
        """Record that everything up to a sequence is acknowledged."""
        self.acked = through
        self._commits = 0

    @property
    def unacked(self) -> bool:
        """Whether the frontier has moved since the last ack."""
        return self.through != self.acked

    @property
    def due(self) -> float | None:
        """When the next ack is due, by the monotonic clock; None if the frontier has not moved since the last ack."""
        if not self.unacked:
            return None
        return self._since if self._commits >= self._every else self._since + self._seconds

    @property
    def first(self) -> Portion | None:
        """The first portion that the frontier has not passed; None if there is none."""
        return self._waiting[0] if self._waiting else None

    @property
    def unfinished(self) -> Iterable[Portion]:
        """The portions that are not done."""
        return (portion for portion in self._waiting if not portion.done)
