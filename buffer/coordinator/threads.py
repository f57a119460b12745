"""The threads of a group of coordinators: one that applies writes, and a pool that flushes deltas.

Both run tasks: functions that do one step, never raise, and return whether there is more to do. A task with more to do
goes to the end of the line, so that a busy coordinator does not hold up the others of its group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread, current_thread
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from threading import RLock

    from forebay.buffer.base.clock import Clock

Task: TypeAlias = Callable[[], bool]


class ApplyThread:
    """One thread that runs the tasks that were woken, and those whose time has come. Hold the lock for every call."""

    def __init__(self, name: str, lock: RLock, clock: Clock) -> None:
        self.thread: Final = Thread(target=self._run, name=name, daemon=True)
        self._lock = lock
        self._clock = clock
        self._woken = Condition(lock)
        self._ready: deque[Task] = deque()
        self._times: dict[Task, float] = {}
        self._next_time: float | None = None
        """No later than the earliest of `_times`."""
        self._ending = False

    def begin(self) -> None:
        """Start the thread. Called again, this does nothing."""
        _start(self.thread)

    def end(self) -> None:
        """End the thread once no task is ready."""
        self._ending = True
        self._woken.notify_all()

    def wake(self, task: Task) -> None:
        """Run a task soon."""
        self._ready.append(task)
        # Notify all: an interrupted notify() may leave a waiter that has no thread, and the next one might choose it.
        self._woken.notify_all()

    def wake_at(self, task: Task, moment: float | None) -> None:
        """Run a task at this moment, instead of the moment that was set for it before; None for never."""
        if moment is None:
            self._times.pop(task, None)
            return
        self._times[task] = moment
        if self._next_time is None or moment < self._next_time:
            self._next_time = moment
            if current_thread() is not self.thread:
                self._woken.notify_all()

    def _run(self) -> None:
        task: Task | None = None
        while True:
            with self._lock:
                if task is not None:
                    self._ready.append(task)
                while (task := self._next_task()) is None:
                    if self._ending:
                        return
                    self._clock.wait_until(self._woken, self._next_time)
            if not task():
                task = None

    def _next_task(self) -> Task | None:
        if self._next_time is not None and self._next_time <= (now := self._clock.monotonic()):
            for task in [task for task, moment in self._times.items() if moment <= now]:
                del self._times[task]
                self._ready.append(task)
            self._next_time = min(self._times.values(), default=None)
        return self._ready.popleft() if self._ready else None


class FlushThreads:
    """A pool of at most `most` threads, which start when they are needed. Hold the lock for every call."""

    def __init__(self, name: str, most: int, lock: RLock, clock: Clock) -> None:
        self.threads: list[Thread] = []
        self.owners: dict[Thread, object] = {}
        """Whose task each busy thread runs."""
        self._name = name
        self._most = most
        self._lock = lock
        self._clock = clock
        self._ready = Condition(lock)
        self._tasks: deque[tuple[Task, object]] = deque()
        """Tasks that wait for a thread, each with its owner."""
        self._sleeping = 0
        """Number of threads that wait for a task, not counting those that were just woken."""
        self._ending = False

    def begin(self) -> None:
        """Start the first thread; called again, this does nothing.

        At the interpreter's exit it is too late to start a thread.
        """
        if not self.threads:
            self.threads.append(self._new_thread())
        _start(self.threads[0])

    def end(self) -> None:
        """Drop the queued tasks, which nobody needs any more, and end the threads."""
        self._ending = True
        self._tasks.clear()
        self._sleeping = 0
        self._ready.notify_all()

    # Only the group's own threads may call these: Ctrl-C in a caller's thread could leave `_sleeping` wrong.

    def grow_to(self, count: int) -> None:
        """Start threads before they are needed, up to `count`.

        With one thread for each coordinator, a flush that hangs leaves a thread to the others.
        """
        while not self._ending and len(self.threads) < min(count, self._most) and self._start_another():
            pass

    def add(self, task: Task, owner: object, *, first: bool = False) -> None:
        """Run a task as soon as a thread is free; with `first`, before those that wait already."""
        if self._ending:
            return
        if first:
            self._tasks.appendleft((task, owner))
        else:
            self._tasks.append((task, owner))
        if self._sleeping:
            self._sleeping -= 1
            self._ready.notify()
        elif len(self.threads) < self._most:
            self._start_another()

    def _start_another(self) -> bool:
        thread = self._new_thread()
        try:
            thread.start()
        except RuntimeError:
            return False  # the system gives us no more threads: the running ones do the work
        self.threads.append(thread)
        return True

    def _new_thread(self) -> Thread:
        return Thread(target=self._run, name=f"{self._name}-{len(self.threads)}", daemon=True)

    def _run(self) -> None:
        here = current_thread()
        task: Task | None = None
        owner: object = None
        while True:
            with self._lock:
                if task is not None:
                    self._tasks.append((task, owner))
                self.owners.pop(here, None)
                while not self._tasks:
                    if self._ending:
                        return
                    self._sleeping += 1
                    self._clock.wait_until(self._ready, None)
                task, owner = self._tasks.popleft()
                self.owners[here] = owner
            if not task():
                task = owner = None


def _start(thread: Thread) -> None:
    """Start a thread, unless an earlier call started it and was interrupted."""
    try:
        thread.start()
    except RuntimeError:
        if thread.ident is None:
            raise
