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
    """Where writers wait for room: threads as on any condition, coroutines by a waker each. Hold the lock."""

    def __init__(self, lock: RLock) -> None:
        super().__init__(lock)
        self._wakers: dict[LoopWaker, None] = {}

    def add(self, waker: LoopWaker) -> None:
        """Wake a coroutine at the next `notify_all`."""
        self._wakers[waker] = None

    def discard(self, waker: LoopWaker) -> None:
        """Do not wake it, if that has not happened yet."""
        self._wakers.pop(waker, None)

    def notify_all(self) -> None:
        """Wake everyone who waits here, coroutines in the order in which they came."""
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
        """Wake it; called in the loop's own thread."""
        if not self.future.done():
            self.future.set_result(None)

    def wake_soon(self) -> bool:
        """Wake it, from any thread; returns False, as a task that is done."""
        try:
            self.loop.call_soon_threadsafe(self, None)
        except RuntimeError:
            _log.debug("an event loop was closed while a coroutine of it waited for room")
        return False
