"""A function of the user's as a sink."""

from __future__ import annotations

import asyncio
import inspect
import logging
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeAlias

from forebay.buffer.base.checks import check_seconds
from forebay.runtime.contract import Answer, Combining, Commit, CommitIdentity, Committed, Sink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Function: TypeAlias = Callable[[Commit], Awaitable[Answer | None] | Answer | None]

_log = logging.getLogger("forebay.runtime")


class CallableSink(Sink):
    """Passes each commit to a function **at least once**: again after an exception, and after a crash before the ack.

    A function that keeps `commit.identity` together with what it does can be exactly once.

    Args:
        function: takes a `Commit`. If it returns None, the commit is done. It can also return another answer
            (`NotCommitted`, `Fatal`, …). An async function runs in one event loop, in a thread of the sink.
        in_order: whether to call the function for one commit of a source at a time, in the order of its sequences.
            Otherwise several calls run at once.
        combining: how batches of a group are combined into one commit; None for one batch each.
        close_timeout: maximum number of seconds that `close` waits for async calls to be cancelled.
    """

    def __init__(
        self,
        function: Function,
        *,
        in_order: bool = False,
        combining: Combining | None = None,
        close_timeout: float = 10.0,
    ) -> None:
        self._function = function
        self.in_order = in_order
        self.combining = combining
        self._close_timeout = check_seconds(close_timeout, "close_timeout")
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def commit(self, commit: Commit) -> Answer:
        """Call the function."""
        result = self._function(commit)
        answer = self._run(result) if inspect.isawaitable(result) else result
        return Committed() if answer is None else answer

    def check_committed(self, identity: CommitIdentity) -> bool:  # noqa: ARG002
        """Return False: nobody but the function could tell."""
        return False

    def close(self) -> None:
        """End the event loop, if there is one. Calls that still run in it are cancelled."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(self._close_timeout)

    def _run(self, result: Awaitable[Answer | None]) -> Answer | None:
        async def wait() -> tuple[Answer | None, BaseException | None]:
            try:
                return await result, None
            except BaseException as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # by `close`
                # As a value: a raised `SystemExit` would end asyncio's loop, and the waiting caller would never get it.
                return None, error  # guard: keep the event loop alive whatever the function raises

        answer, error = asyncio.run_coroutine_threadsafe(wait(), self._open_loop()).result()
        if error is not None:
            raise error
        return answer

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        # One loop for all commits: clients that a user opens in one call can be used in the next.
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=_run_loop, args=(self._loop,), name="forebay-callable-sink", daemon=True)
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        _run_until_stopped(loop)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except BaseException:  # noqa: BLE001 - a task of the user's raised `SystemExit`; other commits need the loop
            _log.exception("a task in the event loop of a callable sink failed; the loop goes on")
        else:
            return
