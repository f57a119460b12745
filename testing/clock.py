"""A clock that only a test moves."""

from __future__ import annotations

from threading import Condition, Lock

from forebay.buffer.base.clock import wait_on


class ManualClock:
    """A clock under a test's control: `advance` moves it, and wakes the threads whose deadline is reached.

    `sleep` moves it too, so code that backs off runs at full speed and still sees time pass.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = Lock()
        self._wall_ms = float(now_ms)
        self._monotonic = 0.0
        self._waiters: list[tuple[float, Condition]] = []

    def now_ms(self) -> int:
        """Return the wall clock's time, in milliseconds since 1970."""
        with self._lock:
            return int(self._wall_ms)

    def monotonic(self) -> float:
        """Return the number of seconds by which the clock was advanced so far."""
        with self._lock:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward, and wake the threads whose deadline is reached."""
        with self._lock:
            self._monotonic += seconds
            self._wall_ms += seconds * 1000
            due = [condition for deadline, condition in self._waiters if deadline <= self._monotonic]
        for condition in due:
            with condition:
                condition.notify_all()

    def step_wall(self, seconds: float) -> None:
        """Move only the wall clock, in either direction, as an operator or NTP does."""
        with self._lock:
            self._wall_ms += seconds * 1000

    def sleep(self, seconds: float) -> None:
        """Advance by `seconds` at once."""
        self.advance(seconds)

    def wait_until(self, condition: Condition, deadline: float | None) -> bool:
        """Wait until notified, or until `advance` reaches `deadline`."""
        if deadline is None:
            wait_on(condition)
            return True
        waiter = (deadline, condition)
        with self._lock:
            if self._monotonic >= deadline:
                return False
            self._waiters.append(waiter)
        try:
            # advance() notifies under the condition's lock, which we hold until wait() releases it: no wake-up is lost.
            wait_on(condition)
        finally:
            with self._lock:
                self._waiters.remove(waiter)
        return self.monotonic() < deadline
