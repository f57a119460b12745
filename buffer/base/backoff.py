"""How long to wait before trying again, and between two writes of one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Random

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
    """Minimum time between two writes of one object, learned from the store's answers.

    It is 0 for most stores, which do not limit these writes. Some accept about one write per second (Google Cloud
    Storage, Cloudflare R2) and answer 429 to further ones. The first throttled update sets the time to one second.
    After that, a throttled update raises it by half if no other writer wrote in between, and by a little if one may
    have. An update that is not throttled lowers it a little.
    """

    def __init__(self) -> None:
        self.seconds: float = 0.0
        """Minimum seconds between two writes."""
        self._wrote_at = float("-inf")
        self.last_waited: float = 0.0
        """How long the last update waited because of the store's limit."""

    def left(self, now: float) -> float:
        """Seconds to wait before the next write; `now` is the monotonic clock."""
        return max(0.0, self._wrote_at + self.seconds - now)

    def pause(self, random: Random, throttled: int, asked: float) -> float:
        """Seconds to wait after an update was throttled `throttled` times: longer after the first few.

        The time is random, so that several writers do not come back at the same moment. It is at least `asked`, the
        seconds that the store asked for.
        """
        longer = _LENGTHEN_PAUSE ** min(max(0, throttled - _PATIENT_PAUSES), 20)
        return max(asked, min(_MOST_PAUSE, self.seconds * longer) * random.uniform(0.5, 1.0))

    def note_throttled(self, *, alone: bool) -> None:
        """Learn from a throttled update. Called once per update, even if it was throttled several times.

        `alone` says that this writer also made the previous write.
        """
        widened = self.seconds * (_WIDEN if alone else _WIDEN_AMONG_OTHERS)
        self.seconds = min(_MOST_SPACING, widened) or _FIRST_SPACING

    def note_applied(self, now: float, *, throttled: bool, waited: float) -> None:
        """Learn from an update that was applied at `now` (monotonic clock), after it had waited `waited` seconds."""
        self._wrote_at, self.last_waited = now, waited
        if not throttled:
            narrowed = self.seconds * _NARROW
            self.seconds = narrowed if narrowed >= _LEAST_SPACING else 0.0
