"""Repeating what is safe to repeat: reads, lists, deletes and plain puts. Conditional writes never come here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from forebay.buffer.backoff import full_jitter
from forebay.buffer.store.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.clock import Clock, Random
    from forebay.buffer.store.failures import Failure

_T = TypeVar("_T")


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
                if on_failure is not None:
                    on_failure(error.failure)
                if not error.failure.transient or attempt + 1 >= self.attempts:
                    raise
            self.wait(attempt)
            attempt += 1

    def wait(self, attempt: int) -> None:
        """Sleep as long as is due after the failed `attempt`, counted from 0."""
        self.clock.sleep(full_jitter(self.random, attempt, self.base, self.cap))
