"""Tracks up to which sequence all portions of a source are committed, in whatever order they end (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.runtime.stages.portions import Portion


class Frontier:
    """The end of the longest run of committed portions of one source: all up to it may be acknowledged.

    The caller holds the runtime's lock.

    Args:
        every: it is due for an ack after this number of commits.
        seconds: it is due for an ack this long after it moved.
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
        """Add the next portion, which must be done before the frontier can pass it."""
        self._waiting.append(portion)

    def advance(self, now: float) -> int:
        """Pass the portions that are done, and return how many batches they have."""
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
        """Note that everything up to a sequence is acknowledged."""
        self.acked = through
        self._commits = 0

    @property
    def unacked(self) -> bool:
        """Whether it has moved since the last ack."""
        return self.through != self.acked

    @property
    def due(self) -> float | None:
        """When it is to be acknowledged; None if it has not moved."""
        if not self.unacked:
            return None
        return self._since if self._commits >= self._every else self._since + self._seconds

    @property
    def first(self) -> Portion | None:
        """The first portion that it has not passed."""
        return self._waiting[0] if self._waiting else None

    @property
    def unfinished(self) -> Iterable[Portion]:
        """The portions that are not done."""
        return (portion for portion in self._waiting if not portion.done)
