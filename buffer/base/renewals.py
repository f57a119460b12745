"""Renews everything in the process that would expire otherwise, on a few threads (rfcs/0005).

One thread makes the renewals that are due, one after the other. A second thread waits, and takes over if the first
hangs. So there are two threads, plus one for each renewal that hangs: at most one thread more than there are renewals.
The first thread starts with the first renewal, and all threads end when no renewal is left.
"""

from __future__ import annotations

import logging
import math
import os
from operator import itemgetter
from threading import Condition, Thread
from typing import TYPE_CHECKING

from forebay.buffer.base.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock

_log = logging.getLogger("forebay.renewals")

_MAX_WAITING = 2
"""Maximum number of threads that wait: one for what is due next, and one in case the first hangs."""

_changed = Condition()
"""Guards the fields of all renewers."""
_renewers: dict[object, _Renewer] = {}


def _start_afresh() -> None:
    """In a forked child: the threads stayed with the parent, and one of them may have held the lock."""
    global _changed  # noqa: PLW0603 - the lock is the module's
    _changed = Condition()
    _renewers.clear()


os.register_at_fork(after_in_child=_start_afresh)


class Renewal:
    """Something that is renewed again and again until it is stopped.

    Args:
        clock: decides when a renewal is due.
        patience: how long it waits, when it is due, for another renewal to end, in seconds. It waits twice as long at
            most, for however many.
        renew: renews it, and returns when the next renewal is due, or None to end. Must not raise.
    """

    def __init__(self, clock: Clock, patience: float, renew: Callable[[], float | None]) -> None:
        self.clock = clock
        self.patience = patience
        self.renew = renew
        self.due: float = 0.0
        """When to renew it next, by the clock's monotonic time."""
        self.is_stopped: bool = False

    def start(self, due: float) -> None:
        """Renew it from now on, first at `due`."""
        # All system clocks tell the same time.
        key = SystemClock if type(self.clock) is SystemClock else id(self.clock)
        with _changed:
            self.due = due
            _renewers.setdefault(key, _Renewer(key, self.clock)).add(self)

    def stop(self) -> bool:
        """Stop renewing it; return whether this is the first call."""
        with _changed:
            is_first = self.abandon()
            _changed.notify_all()
        return is_first

    def abandon(self) -> bool:
        """As `stop`, for a finalizer: it waits for no lock, so a thread notices only when a renewal is due."""
        # A finalizer runs between any two steps of any thread, which may hold a lock that a thread here waits for.
        before, self.is_stopped = self.is_stopped, True  # only a mark: a thread removes it from its list
        return not before


class _Renewer:
    """The threads that renew by one clock. A program has one clock, the system's; tests have others."""

    def __init__(self, key: object, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self._pending: list[Renewal] = []
        """What no thread is renewing now."""
        self._began: dict[Renewal, float] = {}
        """When a thread began each renewal that is under way."""
        self._waiting = 0
        """Number of threads that wait until something is due."""

    def add(self, renewal: Renewal) -> None:
        self._pending.append(renewal)
        self._ensure_one_waits()
        _changed.notify_all()

    def _ensure_one_waits(self) -> None:
        if self._pending and not self._waiting:
            Thread(target=self._run, name="forebay-renewals", daemon=True).start()
            self._waiting = 1  # it waits for the lock, which is held here

    def _run(self) -> None:
        while (renewal := self._take()) is not None:
            due = renewal.renew()
            with _changed:
                del self._began[renewal]
                self._waiting += 1
                if due is not None:
                    renewal.due = due
                    self._pending.append(renewal)
                _changed.notify_all()

    def _take(self) -> Renewal | None:
        """Wait until something is due, and return it; None if this thread is not needed any more."""
        with _changed:
            while self._waiting <= _MAX_WAITING and (found := self._find_next()) is not None:
                at, renewal = found
                if self._clock.wait_until(_changed, at) or found != self._find_next():
                    continue  # something changed during the wait
                self._pending.remove(renewal)
                self._began[renewal] = self._clock.monotonic()
                self._waiting -= 1
                try:
                    self._ensure_one_waits()
                except RuntimeError:  # no more threads: what is late waits until this renewal is done
                    _log.warning("no thread can be started to renew what is late", exc_info=True)
                _changed.notify_all()
                return renewal
            self._waiting -= 1
            if not self._pending and not self._began and _renewers.get(self._key) is self:
                del _renewers[self._key]
            return None

    def _find_next(self) -> tuple[float, Renewal] | None:
        """Return what a waiting thread has to renew next, and when."""
        self._pending = [renewal for renewal in self._pending if not renewal.is_stopped]
        latest = max(self._began.values(), default=-math.inf)

        def starts(renewal: Renewal) -> float:
            # guard: do not wait for a renewal that hangs
            late = min(latest + renewal.patience, renewal.due + 2 * renewal.patience)
            return max(renewal.due, late)

        return min(((starts(renewal), renewal) for renewal in self._pending), key=itemgetter(0), default=None)
