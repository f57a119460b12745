"""What coordinators share: a lock, threads, and a bound on the cost of what they hold."""

from __future__ import annotations

import logging
import math
from collections import deque
from threading import RLock, current_thread
from typing import TYPE_CHECKING, Final, Protocol

from forebay.buffer.base.errors import Closed
from forebay.buffer.coordinator.room import Room
from forebay.buffer.coordinator.threads import ApplyThread, FlushThreads

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock

_log = logging.getLogger(__name__)


class Member(Protocol):
    """A coordinator, as its group sees it."""

    held_cost: int

    def make_room(self) -> None:
        """Flush soon, so that the held cost is released."""


class CoordinatorGroup:
    """Coordinators that share one lock, one apply thread, one pool of flush threads and one bound on cost.

    The number of threads does not depend on the number of coordinators. The threads end when the last coordinator has
    stopped; after that, no coordinator can join. A coordinator that is given no group makes one for itself.
    """

    def __init__(self, *, flush_threads: int, max_cost: int | None, clock: Clock, name: str) -> None:
        """Make a group without coordinators.

        Args:
            flush_threads: Maximum number of threads that call flushers.
            max_cost: Maximum sum of the costs that all coordinators of the group hold; None for no bound.
            clock: Where time comes from.
            name: Part of the threads' names.
        """
        self.clock = clock
        self.lock: Final = RLock()  # an RLock knows its owner: see `wait_on`
        self.apply_thread: Final = ApplyThread(f"forebay-apply-{name}", self.lock, clock)
        self.flush_threads: Final = FlushThreads(f"forebay-flush-{name}", flush_threads, self.lock, clock)
        self.max_cost: float | int = math.inf if max_cost is None else max_cost
        self.held_cost = 0
        self.cost_line: deque[object] = deque()
        """Writers waiting for the cost bound, first come first served: a big write is not starved by small ones."""
        self.room: Final = Room(self.lock)
        """Writers wait here for the cost bound."""
        self.ended: bool = False
        """Whether the last coordinator has stopped."""
        self._members: dict[Member, None] = {}

    # The lock is held for everything below.

    def join(self, member: Member) -> None:
        """Add a coordinator, and start the threads. Called again, this does nothing.

        Raises:
            Closed: the last coordinator has stopped, and the threads have ended.
        """
        if self.ended:
            raise Closed("every coordinator of this group was stopped: make a new group")
        self._members[member] = None
        self.apply_thread.begin()
        self.flush_threads.begin()
        self.apply_thread.wake(self._start_flush_threads)
        self.room.notify_all()  # writers that waited before the start ask it to make room

    def _start_flush_threads(self) -> bool:
        with self.lock:
            self.flush_threads.grow_to(len(self._members))
        return False

    def leave(self, member: Member) -> None:
        """Remove a coordinator that has stopped."""
        if member not in self._members:
            return
        del self._members[member]
        self.room.notify_all()
        if not self._members:
            self.ended = True
            self.apply_thread.end()
            self.flush_threads.end()

    def run_soon(self, work: Callable[[], None]) -> None:
        """Run a function on a flush thread."""

        def task() -> bool:
            try:
                work()
            except Exception:  # noqa: BLE001 -- logged; the thread has other work
                _log.exception("work beside the flushes failed")
            return False

        def hand_over() -> bool:
            with self.lock:
                self.flush_threads.add(task, work)
            return False

        self.apply_thread.wake(hand_over)

    def make_room(self) -> None:
        """Ask the coordinator with the highest held cost to flush: no flush by size or interval may be due soon."""
        fullest = max(self._members, key=lambda member: member.held_cost, default=None)
        if fullest is not None:
            fullest.make_room()

    def runs_here(self) -> bool:
        """Whether the caller is on one of the group's threads."""
        return current_thread() is self.apply_thread.thread or current_thread() in self.flush_threads.threads

    def join_threads(self, member: Member, deadline: float | None) -> None:
        """Wait until the threads have ended, except those that run work of another coordinator, which may hang.

        Call it without the lock, after the last coordinator has stopped.
        """
        with self.lock:
            owners = self.flush_threads.owners
            threads = [thread for thread in self.flush_threads.threads if owners.get(thread, member) is member]
        for thread in (self.apply_thread.thread, *threads):
            if thread.ident is not None:
                thread.join(None if deadline is None else max(0.0, deadline - self.clock.monotonic()))
