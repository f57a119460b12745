"""Ends the holds of plain reads: when their session stops, when their time is over, or when the process ends."""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import ForebayError
from forebay.buffer.base.renewals import Renewal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.holds import Held

_log = logging.getLogger("forebay.spark")

_LOOK_SECONDS: Final = 5.0
"""Time between two looks whether a session has stopped. Spark tells Python nothing of it."""

_kept: set[KeptHolds] = set()


class KeptHolds:
    """Holds that are kept until their session has stopped, and no longer than a number of seconds."""

    def __init__(
        self, holds: Iterable[Held], is_over: Callable[[], bool], seconds: float, *, clock: Clock | None = None
    ) -> None:
        self._holds = tuple(holds)
        self._is_over = is_over
        self._clock = clock or SystemClock()
        self._end = self._clock.monotonic() + seconds
        self._renewal = Renewal(self._clock, _LOOK_SECONDS, self._look)
        _kept.add(self)
        self._renewal.start(self._next_look())

    def let_go(self) -> None:
        """Close the holds. A hold that cannot be closed expires."""
        self._renewal.stop()
        _kept.discard(self)
        for held in self._holds:
            try:
                held.close()
            except ForebayError as error:
                _log.warning("%r stays until it expires: %s", held, error)

    def _look(self) -> float | None:
        if self._clock.monotonic() >= self._end or self._is_over():
            self.let_go()
            return None
        return self._next_look()

    def _next_look(self) -> float:
        return min(self._end, self._clock.monotonic() + _LOOK_SECONDS)


def is_stopped(spark: SparkSession) -> bool:
    """Whether a session has stopped."""
    context = getattr(spark, "sparkContext", None)
    if context is None:  # a session of Spark Connect
        return bool(getattr(spark, "is_stopped", False))
    return context._jsc is None  # noqa: SLF001 - what Python's own `stop` sets


@atexit.register
def let_all_go() -> None:
    """Close the holds of every read of this process."""
    for kept in tuple(_kept):
        kept.let_go()
