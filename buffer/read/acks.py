"""Acknowledging what a consumer has handed out: in order, with one durable write for many batches (rfcs/0004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.buffer.manifest import Claim
    from forebay.buffer.read.position import ReadPosition
    from forebay.buffer.read.side import ReadSide

ACKS_PER_WRITE = 100
"""Number of calls of `ack` for which there is one durable write."""


class Acks:
    """What a consumer has acknowledged, and how much of that is not written yet. The caller holds a lock."""

    def __init__(self, url: str, side: ReadSide, claim: Claim, position: ReadPosition) -> None:
        self.frontier: int | None = None
        """The last sequence acknowledged since the consumer was opened, or since the last seek; None if none was."""
        self._url = url
        self._side = side
        self._claim = claim
        self._position = position
        self._unwritten = 0

    def ack(self, sequence: int) -> None:
        """Acknowledge the next batch in order. What a failed call was given can be given again."""
        first = self._position.check_handed_out(sequence)
        expected = self._position.skip_gaps(first if self.frontier is None else self.frontier + 1)
        if sequence != expected:  # guard: acknowledge in order
            raise InvalidInput(f"{self._url}: batch {expected} must be acknowledged next, not {sequence}")
        if self._unwritten + 1 >= ACKS_PER_WRITE:
            # guard: write the ack before moving the local frontier
            self._write(sequence)
        else:
            self._unwritten += 1
        self.frontier = sequence
        metrics.acks.add(1, {"buffer": self._url})

    def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch up to and including `sequence`, durably before this returns."""
        first = self._position.check_handed_out(sequence)
        if self.frontier is not None and sequence <= self.frontier:
            raise InvalidInput(f"{self._url}: batch {sequence} was acknowledged before; the last is {self.frontier}")
        self._write(sequence)  # guard: write ack_through before moving the frontier
        newly = sequence - first + 1 if self.frontier is None else sequence - self.frontier
        self.frontier = sequence
        metrics.acks.add(newly, {"buffer": self._url})

    def plan(self, ends: Collection[int]) -> None:
        """Record durably where ranges end that are about to be worked on."""
        for end in ends:
            self._position.check_handed_out(end)
        if ends:
            self._side.plan(self._claim, ends)

    def flush(self) -> None:
        """Write what is acknowledged and not written yet."""
        if self._unwritten and self.frontier is not None:
            self._write(self.frontier)

    def _write(self, through: int) -> None:
        self._side.ack(self._claim, through)
        self._unwritten = 0
