"""How long to wait before trying again, and between two writes of one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.buffer.clock import Random

# Past this many doublings any base has reached any cap; without the bound a long loop would overflow a float.
_MAX_DOUBLINGS = 64


def full_jitter(random: Random, attempt: int, base: float, cap: float) -> float:
    """Seconds to wait after the failed `attempt` (from 0): evenly drawn between 0 and min(cap, base * 2**attempt).

    Drawing from the whole range spreads contending clients out; adding a little noise to a fixed delay would leave them
    in step.
    """
    return random.uniform(0.0, min(cap, base * 2.0 ** min(attempt, _MAX_DOUBLINGS)))


_FIRST_SPACING = 1.0
_MOST_SPACING = 4.0
_WIDEN = 1.5
_WIDEN_AMONG_OTHERS = 1.08
_NARROW = 0.95
_LEAST_SPACING = 0.05
_PATIENT_PAUSES = 2
_LENGTHEN_PAUSE = 1.5
_MOST_PAUSE = 6.0


class WriteSpacing:
    """How far apart the writes of one object have to be, learned from the store's answers.

    Most stores take writes of one object as fast as they come: then it is 0. Some take about one a second (Google Cloud
    Storage, Cloudflare R2) and throttle what is more (429). The first throttled update sets it to a second. After that,
    an update that is throttled although nobody else wrote widens it by half. One that may have met another writer's
    write widens it a little. One that is not throttled narrows it a little.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._wrote_at = float("-inf")
        self.last_waited = 0.0
        """How long the last update waited because of the store's limit."""

    @property
    def seconds(self) -> float:
        """What to leave between two writes."""
        return self._seconds

    def left(self, now: float) -> float:
        """How long to wait before the next write, at a moment of the monotonic clock."""
        return max(0.0, self._wrote_at + self._seconds - now)

    def pause(self, random: Random, throttled: int, asked: float) -> float:
        """How long to wait after an update's write was throttled so many times: longer after the first few.

        The waits of several writers differ, so that they do not come back at the same moment. `asked` is what the
        store has asked for.
        """
        longer = _LENGTHEN_PAUSE ** min(max(0, throttled - _PATIENT_PAUSES), 20)
        return max(asked, min(_MOST_PAUSE, self._seconds * longer) * random.uniform(0.5, 1.0))

    def note_throttled(self, *, alone: bool) -> None:
        """Learn from an update that was throttled; once for each, however often it was.

        `alone` says that the write before was this writer's own.
        """
        widened = self._seconds * (_WIDEN if alone else _WIDEN_AMONG_OTHERS)
        self._seconds = min(_MOST_SPACING, widened) or _FIRST_SPACING

    def note_applied(self, now: float, *, throttled: bool, waited: float) -> None:
        """Learn from an update that was applied at a moment of the monotonic clock, after it had waited so long."""
        self._wrote_at, self.last_waited = now, waited
        if not throttled:
            narrowed = self._seconds * _NARROW
            self._seconds = narrowed if narrowed >= _LEAST_SPACING else 0.0
