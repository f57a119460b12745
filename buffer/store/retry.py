"""Repeating what is safe to repeat: reads, lists, deletes and plain puts. Conditional writes never come here.

`Retry` is inside a store: it sends one request a few times, within a second, so that a wrong endpoint is reported soon.
`Patience` wraps the calls of any store: it waits for a store that worked before and now fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.errors import Unavailable, Unknown
from forebay.buffer.store.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.store.failures import Failure

_T = TypeVar("_T")

RETRY_SECONDS = 60.0
"""Default maximum time in seconds to retry while a store is unavailable."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Calls again after failures that may pass, a bounded number of times, waiting longer each time."""

    clock: Clock
    random: Random
    attempts: int
    """How often a request is sent at most."""
    base: float = 0.05
    """Seconds: the longest first wait."""
    cap: float = 5.0
    """Seconds: the longest wait of all."""

    def call(self, request: Callable[[], _T], on_failure: Callable[[Failure], None] | None = None) -> _T:
        """Return what `request` returns, or raise the last `RequestFailed`; `on_failure` sees every one on the way."""
        attempt = 0
        while True:
            try:
                return request()
            except RequestFailed as error:
                asked = error.failure.retry_after
                if on_failure is not None:
                    on_failure(error.failure)
                if not error.failure.transient or attempt + 1 >= self.attempts:
                    raise
            self.wait(attempt, asked)
            attempt += 1

    def wait(self, attempt: int, asked: float = 0.0) -> None:
        """Sleep after the failed `attempt`, counted from 0: the backoff, or longer if the store has asked for it."""
        self.clock.sleep(max(asked, full_jitter(self.random, attempt, self.base, self.cap)))


@dataclass(frozen=True, slots=True)
class Patience:
    """Repeats a call while the store is unavailable, up to a maximum time and number of attempts.

    Only for calls that are safe to repeat after any outcome: reads, and puts to a name that nobody else writes.
    """

    clock: Clock
    random: Random
    seconds: float = RETRY_SECONDS
    """Maximum time from the first attempt to the beginning of the last. With 0 there is one attempt."""
    attempts: int = 1000
    """Maximum number of attempts."""
    base: float = 0.05
    """Maximum first wait in seconds. It doubles with each attempt."""
    cap: float = 2.0
    """Maximum of any wait in seconds."""

    def call(self, request: Callable[[], _T], *, latest: Callable[[], float] | None = None) -> _T:
        """Return what `request` returns, or raise the last `Unavailable` or `Unknown`; other errors come at once.

        `latest` returns a second deadline, by the monotonic clock. It may move closer during the wait.
        """
        deadline = self.clock.monotonic() + self.seconds
        attempt = 0
        while True:
            try:
                return request()
            except (Unavailable, Unknown):
                attempt += 1
                left = min(deadline, deadline if latest is None else latest()) - self.clock.monotonic()
                if left <= 0 or attempt >= self.attempts:
                    raise
            self.clock.sleep(min(left, full_jitter(self.random, attempt - 1, self.base, self.cap)))
