"""A fixed number of threads that do one kind of work, with a queue whose items may be delayed."""

from __future__ import annotations

import heapq
from itertools import count
from threading import Condition, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from forebay.buffer.base import metrics
from forebay.buffer.base.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock

    from forebay.buffer.base.clock import Clock

T = TypeVar("T")


class WorkerPool(Generic[T]):
    """A fixed-size thread pool with a delay queue. Admission bounds the length of the queue.

    The threads are daemons: one that hangs in a sink must not keep the process alive.

    Args:
        name: name of the stage, for threads and metrics.
        threads: number of threads.
        work: called with each item.
        failed: called with any exception that `work` raises.
        lock: the runtime's lock.
        clock: measures the delays.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        work: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        lock: RLock,
        clock: Clock,
    ) -> None:
        self.name = name
        self.threads = threads
        self.busy: int = 0
        """Number of threads at work."""
        self._work = work
        self._failed = failed
        self._clock = clock
        self._wake = Condition(lock)
        self._idle = Condition(lock)
        self._order = count()
        self._waiting: list[tuple[float, int, T]] = []
        self._stopped = False

    def start(self) -> None:
        """Start the threads."""
        for number in range(self.threads):
            Thread(target=self._run, name=f"forebay-{self.name}-{number}", daemon=True).start()

    def put(self, item: T, *, after: float = 0.0) -> None:
        """Queue an item. A thread takes it after `after` seconds at the earliest."""
        with self._wake:
            heapq.heappush(self._waiting, (self._clock.monotonic() + after, next(self._order), item))
            self._wake.notify()

    def stop(self) -> None:
        """Drop the queue and start nothing more. Items being worked on are finished."""
        with self._wake:
            self._stopped = True
            self._waiting.clear()
            self._wake.notify_all()

    def wait_until_idle(self, deadline: float) -> None:
        """Wait until no item is being worked on, or until the deadline."""
        wait_for(self._clock, self._idle, lambda: not self.busy, deadline)

    def __len__(self) -> int:
        """Number of items in the queue."""
        return len(self._waiting)

    def _run(self) -> None:
        try:
            self._work_until_stopped()
        except BaseException as error:  # noqa: BLE001 - a stage without threads would leave `run` waiting
            self._failed(error)

    def _work_until_stopped(self) -> None:
        while True:
            with self._wake:
                while not self._stopped and not (self._waiting and self._waiting[0][0] <= self._clock.monotonic()):
                    self._clock.wait_until(self._wake, self._waiting[0][0] if self._waiting else None)
                if self._stopped:
                    return
                item = heapq.heappop(self._waiting)[2]
                self.busy += 1
                self._measure()
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 - it is raised by run()
                self._failed(error)
            finally:
                del item  # otherwise its data would stay in memory until the next item comes
                with self._wake:
                    self.busy -= 1
                    self._measure()
                    if not self.busy:
                        self._idle.notify_all()

    def _measure(self) -> None:
        metrics.runtime_stage_depth.set(len(self._waiting) + self.busy, {"stage": self.name})
