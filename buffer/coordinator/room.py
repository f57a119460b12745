"""Waiting for room: writers on threads and in coroutines, woken by the same notification."""

from __future__ import annotations

import logging
from threading import Condition
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from threading import RLock

_log = logging.getLogger(__name__)


class Room(Condition):
    """A condition on which writers wait for room: threads directly, coroutines with a waker each. Hold the lock."""

    def __init__(self, lock: RLock) -> None:
        super().__init__(lock)
        self._wakers: dict[LoopWaker, None] = {}

    def add(self, waker: LoopWaker) -> None:
        """Wake a coroutine at the next `notify_all`."""
        self._wakers[waker] = None

    def discard(self, waker: LoopWaker) -> None:
        """Remove a coroutine's waker. If it was woken already, this does nothing."""
        self._wakers.pop(waker, None)

    def notify_all(self) -> None:
        """Wake all waiting threads and coroutines, the coroutines in the order of their arrival."""
        super().notify_all()
        if self._wakers:
            wakers, self._wakers = self._wakers, {}
            for waker in wakers:
                waker.wake_soon()


class LoopWaker:
    """A done callback that wakes one coroutine."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def __call__(self, _: object) -> None:
        """Wake the coroutine. Call this in the event loop's thread."""
        if not self.future.done():
            self.future.set_result(None)

    def wake_soon(self) -> bool:
        """Wake the coroutine, from any thread. Return False: as a task, this has nothing more to do."""
        try:
            self.loop.call_soon_threadsafe(self, None)
        except RuntimeError:
            _log.debug("an event loop was closed while one of its coroutines waited for room")
        return False
