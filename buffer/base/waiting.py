"""Waiting: until a condition holds, and between two looks at something that may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Condition

    from forebay.buffer.base.clock import Clock

POLL_FLOOR = 0.05
"""Seconds until the first look after one that found nothing."""


def deadline_in(clock: Clock, timeout: float | None) -> float | None:
    """Return the time on the monotonic clock at which a checked `timeout` ends; None to wait without a limit."""
    seconds = check_timeout(timeout)
    return None if seconds is None else clock.monotonic() + seconds


def wait_for(clock: Clock, condition: Condition, is_met: Callable[[], object], deadline: float | None) -> bool:
    """Wait until `is_met` is true or `clock.monotonic()` reaches `deadline`, and return whether it is true.

    As `Condition.wait_for`, but takes the condition's lock itself, and the time from `clock`. `is_met` is called under
    the lock; the code that makes it true notifies the condition. None means no limit.
    """
    # The lock itself: in the condition's own `with`, which is Python, an interrupt could leave the lock taken.
    with condition._lock:  # type: ignore[attr-defined]  # noqa: SLF001
        while not is_met() and clock.wait_until(condition, deadline):
            pass
        return bool(is_met())
