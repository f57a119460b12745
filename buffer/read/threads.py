"""The threads that fetch ahead of a reader: few, started when they are needed, and gone soon after."""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from concurrent.futures import CancelledError
from threading import Condition, Lock, RLock, Thread, current_thread
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakSet

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.waiting import deadline_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LINGER_SECONDS: Final = 1.0
"""Maximum time that a thread without work waits for more before it ends."""
_EXIT_SECONDS: Final = 5.0
"""Maximum time that the interpreter's exit waits for threads, since one in native code may crash it."""

_open: WeakSet[FetchThreads] = WeakSet()


class Coming(Generic[T]):
    """The result of a task that is on its way.

    Unlike a `concurrent.futures.Future`, it takes only locks whose `with` statement is native code. In a condition's
    `with` statement, which is Python, a `KeyboardInterrupt` can leave the lock taken, and the task would wait for ever.
    """

    __slots__ = ("_answer", "_callbacks", "_error", "_latch", "_lock", "_state")

    def __init__(self) -> None:
        self._state: Literal["pending", "running", "done", "cancelled"] = "pending"
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = Lock()
        self._latch = Lock()
        """Taken until there is a result."""
        self._latch.acquire()

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._state in ("done", "cancelled")

    def result(self) -> T:
        """Wait, and return what the task returned, or raise what it raised.

        Raises:
            CancelledError: it was cancelled.
        """
        if (error := self.exception()) is not None:
            raise error
        return self._answer  # type: ignore[return-value]  # None only if the task returned it

    def exception(self) -> BaseException | None:
        """Wait, and return what the task raised; None if it returned something."""
        with self._latch:
            pass
        if self._state == "cancelled":
            raise CancelledError
        return self._error

    def cancel(self) -> bool:
        """Keep the task from being begun, and return whether it will not be. One that is running goes on."""
        return self._settle("cancelled", ("pending",)) or self._state == "cancelled"

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once there is a result: on the thread that has it, or here and now.

        Nobody but a log hears of what a callback raises on a thread of `FetchThreads`.
        """
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback()

    def carry_out(self, do: Callable[[], T]) -> None:
        """Run the task here, unless that was done before or it was cancelled."""
        with self._lock:
            if self._state != "pending":
                return
            self._state = "running"
        try:
            self._answer = do()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._settle("done", ("running",))

    def fail(self, error: BaseException) -> None:
        """Let `result` raise this error, unless there is a result already: nobody can carry the task out."""
        self._settle("done", ("pending", "running"), error)

    def _settle(
        self, state: Literal["done", "cancelled"], before: tuple[str, ...], error: BaseException | None = None
    ) -> bool:
        with self._lock:
            if self._state not in before:
                return False
            if error is not None:
                self._error = error
            self._state = state
            self._latch.release()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True


class FetchThreads:
    """Runs tasks on at most `most` daemon threads, in the order in which they came.

    A thread ends a second after it has run out of work, so nobody has to close this. Safe to use from several threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._tasks: deque[tuple[Coming[Any], Callable[[], Any]]] = deque()
        self._threads: set[Thread] = set()
        self._idle = 0
        self._closed = False
        _open.add(self)
        # Exit handlers run last in, first out: ours must come before those of the client that the store has loaded.
        atexit.unregister(_close_all)
        atexit.register(_close_all)

    def submit(self, do: Callable[[], T]) -> Coming[T]:
        """Run a task soon, and return its result to come. It is cancelled if this was closed."""
        coming: Coming[T] = Coming()
        self.run(coming, do)
        return coming

    def run(self, coming: Coming[T], do: Callable[[], T]) -> None:
        """Run a task soon, as `submit` does."""
        with self._lock:
            if self._closed:
                coming.cancel()
                return
            self._tasks.append((coming, do))
            if self._idle >= len(self._tasks):
                self._changed.notify()
                return
            try:
                if len(self._threads) >= self._most or self._start_thread():
                    return
            except BaseException:
                self._tasks.pop()  # the caller hears of it, and need not expect a result
                raise
            self._tasks.pop()
        coming.carry_out(do)  # the system gives us no thread at all, so the caller does the work

    def close(self, timeout: float | None = None) -> None:
        """Cancel the tasks that have not begun, and let the threads end.

        Waits for the threads for at most `timeout` seconds: 0 does not wait, None waits without a limit.
        """
        clock = SystemClock()
        deadline = deadline_in(clock, timeout)
        with self._lock:
            self._closed = True
            tasks, self._tasks = self._tasks, deque()
            threads = list(self._threads)
            self._changed.notify_all()
        for coming, _do in tasks:
            coming.cancel()
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - clock.monotonic()))

    def _start_thread(self) -> bool:
        """Start another thread, and return whether there is one that will do what is queued."""
        thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            self._threads.add(thread)
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                self._threads.discard(thread)
            if not isinstance(error, RuntimeError):
                raise
            return bool(self._threads)  # the system gives us no more, or the interpreter is about to exit
        return True

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            while (task := self._next_task()) is not None:
                coming, do = task
                try:
                    coming.carry_out(do)
                # guard: a callback that raises ends no thread
                except Exception as failed:  # noqa: BLE001 - what depends on it has the error
                    coming.fail(failed)
                    _log.exception("%s: what follows a task failed", self._name)
                del task, coming, do  # its result must not stay here while the thread waits
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._end_thread(error)

    def _end_thread(self, error: BaseException | None) -> None:
        """Forget this thread. If it was the last one, let this error be raised by the tasks that nobody will do."""
        with self._lock:
            self._threads.discard(current_thread())
            if error is None or self._threads:
                return
            tasks, self._tasks = self._tasks, deque()
        for coming, _do in tasks:
            coming.fail(error)  # guard: leave no task to a thread that has died

    def _next_task(self) -> tuple[Coming[Any], Callable[[], Any]] | None:
        """Wait for a task, and return it; None if this thread must end."""
        with self._lock:
            if not self._tasks and not self._closed:
                self._idle += 1
                try:
                    self._changed.wait(_LINGER_SECONDS)
                finally:
                    self._idle -= 1
            if self._tasks:
                return self._tasks.popleft()
            self._threads.discard(current_thread())
            return None


def _close_all() -> None:
    clock, opened = SystemClock(), list(_open)
    for threads in opened:
        threads.close(0)
    deadline = clock.monotonic() + _EXIT_SECONDS
    for threads in opened:
        threads.close(deadline - clock.monotonic())


# In a forked child there are no such threads, and one of the parent may have held a lock.
os.register_at_fork(after_in_child=_open.clear)
