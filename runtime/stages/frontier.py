"""The ack coordinator of one source: how far everything is done, whatever order it ends in (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.runtime.stages.portions import Portion


class Frontier:
    """Portions in the order of their sequences. It moves over those that are done, and stops at the first that is not.

    Whoever calls holds the runtime's lock.
    """

    def __init__(self, every: int, seconds: float) -> None:
        self._every = every
        self._seconds = seconds
        self._waiting: deque[Portion] = deque()
        self._commits = 0
        self._since = 0.0
        self.through: int | None = None
        """The last sequence that it has passed; None if there is none."""
        self.acked: int | None = None
        """The last sequence that was acknowledged here; None if there is none."""

    def add(self, portion: Portion) -> None:
        """Wait for a portion, which follows the ones before."""
        self._waiting.append(portion)

    def advance(self, now: float) -> int:
        """Pass what is done, and return how many batches that were."""
        passed = 0
        while self._waiting and self._waiting[0].done:  # guard: advance the frontier only without gaps
            portion = self._waiting.popleft()
            if self.through == self.acked:
                self._since = now
            passed += len(portion)
            self._commits += 1
            self.through = portion.identity.last
        return passed

    def mark_acked(self, through: int) -> None:
        """Take note that all up to a sequence is acknowledged."""
        self.acked = through
        self._commits = 0

    @property
    def unacked(self) -> bool:
        """Whether it has moved since it was acknowledged."""
        return self.through != self.acked

    @property
    def due(self) -> float | None:
        """When it is to be acknowledged; None if it has not moved."""
        if not self.unacked:
            return None
        return self._since if self._commits >= self._every else self._since + self._seconds

    @property
    def first(self) -> Portion | None:
        """The portion that it stands before."""
        return self._waiting[0] if self._waiting else None

    def __len__(self) -> int:
        """How many portions it has not passed."""
        return len(self._waiting)
