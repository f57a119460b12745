"""Time and chance, the only module that asks the machine for either.

Everything else is handed a `Clock` and a `Random`, so that a run can be repeated from a seed
(`forebay.testing.ManualClock`); a lint rule keeps it so.
"""

from __future__ import annotations

import random
import time
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from threading import Condition

__all__ = ["Clock", "Random", "SystemClock", "system_random"]


class Clock(Protocol):
    """What a component may know of time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as the wall clock has it: it may jump either way."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment: it never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""

    def wait_until(self, condition: Condition, deadline: float | None) -> bool:
        """Wait on a condition whose lock is held, until notified or until `monotonic()` reaches `deadline`.

        Returns whether there is still time left. As with `Condition.wait`, look at your predicate again.
        """


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """The machine's wall clock, in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """The machine's monotonic clock, in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for real."""
        time.sleep(seconds)

    def wait_until(self, condition: Condition, deadline: float | None) -> bool:
        """Wait for real."""
        if deadline is None:
            wait_on(condition)
            return True
        return wait_on(condition, max(0.0, deadline - self.monotonic())) or self.monotonic() < deadline


def wait_on(condition: Condition, timeout: float | None = None) -> bool:
    """Wait on a condition as `Condition.wait` does. Its lock is held again afterwards, even after an interrupt.

    A `KeyboardInterrupt` right after `Condition.wait` has released the lock leaves it free. The caller's `with`
    statement would then release a lock that another thread holds. Needs a condition on an `RLock`, which knows its
    owner.
    """
    try:
        return condition.wait(timeout)
    except BaseException:
        while True:
            try:
                # guard: reacquire the lock after an interrupt
                while not condition._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
                    condition.acquire()
                break
            except KeyboardInterrupt:
                continue  # one is on its way already
        raise


def system_random() -> Random:
    """A generator seeded by the machine: for jitter and for names, not for secrets."""
    return random.SystemRandom()
