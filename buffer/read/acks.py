"""Acknowledging what a consumer has handed out: in order, with one durable write for many batches (rfcs/0004).

`ack` only counts. Every hundredth call writes. What is not written after an interval is written in the background, on
the threads of `forebay.buffer.base.renewals`, which the process has once.
"""

from __future__ import annotations

import logging
import math
from threading import Lock
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import Fenced, InvalidInput
from forebay.buffer.base.renewals import Renewal

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.manifest import Claim
    from forebay.buffer.read.position import ReadPosition
    from forebay.buffer.read.side import ReadSide

_log = logging.getLogger("forebay.consumer")

ACKS_PER_WRITE = 100
"""Number of calls of `ack` for which there is one durable write."""
ACK_SECONDS = 1.0
"""Default maximum time in seconds until an acknowledgement is written in the background."""


class Acks:
    """What a consumer has acknowledged, and how much of that is not written yet.

    The caller holds a lock for every call, so that two calls never overlap. Writes in the background do without it.
    """

    def __init__(
        self, url: str, side: ReadSide, claim: Claim, position: ReadPosition, *, interval: float, clock: Clock
    ) -> None:
        self.frontier: int | None = None
        """The last sequence acknowledged since the consumer was opened, or since the last seek; None if none was."""
        self.fenced: Fenced | None = None
        """The error of a write in the background that found another consumer in place of this one."""
        self.written_at: float = -math.inf
        """When the last durable write began, by the monotonic clock. It proved that this consumer was not fenced."""
        self._url = url
        self._side = side
        self._claim = claim
        self._position = position
        self._interval = interval
        self._clock = clock
        self._unwritten = 0
        self._counting = Lock()
        """Guards `frontier` with `_unwritten`, and `_background`. No request is made under it."""
        self._writing = Lock()
        """Held during a durable write."""
        self._background: Renewal | None = None
        """Writes what is pending; None if nothing is."""
        self._stopped = False
        self._has_failed = False

    def ack(self, sequence: int) -> None:
        """Acknowledge the next batch in order. What a failed call was given can be given again."""
        first = self._position.check_handed_out(sequence)
        expected = self._position.skip_gaps(first if self.frontier is None else self.frontier + 1)
        if sequence != expected:  # guard: acknowledge in order
            raise InvalidInput(f"{self._url}: batch {expected} must be acknowledged next, not {sequence}")
        if self._unwritten + 1 >= ACKS_PER_WRITE:
            # guard: write the ack before moving the local frontier
            self._write(sequence)
            self.frontier = sequence
        else:
            with self._counting:
                self._unwritten += 1
                self.frontier = sequence
                self._write_soon()
        metrics.acks.add(1, {"buffer": self._url})

    def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch up to and including `sequence`, durably before this returns."""
        first = self._position.check_handed_out(sequence)
        if self.frontier is not None and sequence <= self.frontier:
            raise InvalidInput(
                f"batch {sequence} of {self._url} was acknowledged before; acknowledge only batches after "
                f"{self.frontier}"
            )
        self._write(sequence)  # guard: write ack_through before moving the frontier
        newly = sequence - first + 1 if self.frontier is None else sequence - self.frontier
        self.frontier = sequence
        metrics.acks.add(newly, {"buffer": self._url})

    def plan(self, ends: Collection[int]) -> None:
        """Record durably where ranges end that are about to be worked on."""
        if ends:
            self._position.check_handed_out(max(ends))  # lower ones may be of batches that retention dropped
            self._side.plan(self._claim, ends)

    def flush(self) -> None:
        """Write what is acknowledged and not written yet."""
        with self._writing:
            self._write_pending()

    def forget(self) -> None:
        """Begin anew after a seek: the next batch that is handed out is the next to be acknowledged."""
        with self._counting:
            self.frontier = None
            self._unwritten = 0

    def stop(self) -> None:
        """Write nothing more in the background."""
        with self._counting:
            self._stopped = True
            background, self._background = self._background, None
        if background is not None:
            background.stop()

    def _write(self, through: int) -> None:
        with self._writing:
            self._send(through, self._unwritten)

    def _write_pending(self) -> None:
        with self._counting:
            through, count = self.frontier, self._unwritten
        if count and through is not None:
            self._send(through, count)

    def _send(self, through: int, count: int) -> None:
        """Record durably what is acknowledged up to a sequence, `count` calls of `ack` among it."""
        began = self._clock.monotonic()
        self._side.ack(self._claim, through)
        self.written_at = began
        with self._counting:
            self._unwritten = max(0, self._unwritten - count)

    # In the background

    def _write_soon(self) -> None:
        if self._background is not None or self._stopped:
            return
        background = Renewal(self._clock, self._interval, self._write_in_background)
        try:
            background.start(self._clock.monotonic() + self._interval)
        except RuntimeError:
            return  # no thread can be started: the hundredth call writes, or `flush`, or `close`
        self._background = background

    def _write_in_background(self) -> float | None:
        try:
            with self._writing:
                self._write_pending()
            self._has_failed = False
        except Fenced as error:
            self.fenced = error  # guard: the next call raises the fence that a write in the background met
        except BaseException as error:  # noqa: BLE001 - logged; what is pending stays so
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            _log.log(level, "%s: acknowledgements were not written, and will be tried again: %s", self._url, error)
        with self._counting:
            # guard: keep acknowledgements pending that could not be written
            if self._unwritten and self.fenced is None and not self._stopped:
                return self._clock.monotonic() + self._interval
            self._background = None
            return None
