"""A user's function as a sink: called at least once, sync or async."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress

import pytest
from patience import PATIENCE

from forebay.runtime.contract import Combining, Commit, Committed, Fatal, NotCommitted
from forebay.runtime.sinks import CallableSink
from forebay.testing.commits import make_batch, make_commit

COMMIT = make_commit(make_batch([b"x"]))


def test_function_gets_the_commit_and_returning_means_committed() -> None:
    seen: list[Commit] = []
    with CallableSink(seen.append) as sink:
        assert sink.commit(COMMIT) == Committed()
    assert seen == [COMMIT]


def test_answer_of_the_function_is_the_answer() -> None:
    for answer in (NotCommitted("later"), Fatal("never", poison=True), Committed()):
        with CallableSink(lambda _commit, answer=answer: answer) as sink:  # type: ignore[misc]
            assert sink.commit(COMMIT) == answer


def test_exception_of_the_function_reaches_the_runtime() -> None:
    def fail(_commit: Commit) -> None:
        raise ValueError("no")

    async def fail_later(commit: Commit) -> None:
        fail(commit)

    for function in (fail, fail_later):
        with CallableSink(function) as sink, pytest.raises(ValueError, match="no"):
            sink.commit(COMMIT)


def test_async_functions_run_beside_each_other_in_one_loop() -> None:
    both_there = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def function(_commit: Commit) -> None:
        loops.append(asyncio.get_running_loop())
        if len(loops) == 2:
            both_there.set()
        await asyncio.wait_for(both_there.wait(), PATIENCE)

    with CallableSink(function) as sink, ThreadPoolExecutor(2) as workers:
        assert list(workers.map(sink.commit, [COMMIT, COMMIT])) == [Committed(), Committed()]
    assert loops[0] is loops[1]
    assert loops[0].is_closed()


def test_closing_cancels_what_still_runs_and_may_be_repeated() -> None:
    started, ended = threading.Event(), threading.Event()

    async def hang(_commit: Commit) -> None:
        started.set()
        await asyncio.Event().wait()

    def commit() -> None:
        with suppress(CancelledError):
            sink.commit(COMMIT)
        ended.set()

    sink = CallableSink(hang)
    threading.Thread(target=commit, daemon=True).start()
    assert started.wait(PATIENCE)
    assert not ended.is_set()
    sink.close()
    assert ended.wait(PATIENCE)
    sink.close()


def test_closing_leaves_behind_what_will_not_be_cancelled() -> None:
    started, released = threading.Event(), threading.Event()

    async def block_the_loop(_commit: Commit) -> None:
        started.set()
        released.wait(PATIENCE)

    sink = CallableSink(block_the_loop, close_timeout=0.01)
    committing = threading.Thread(target=sink.commit, args=[COMMIT], daemon=True)
    committing.start()
    assert started.wait(PATIENCE)
    sink.close()
    assert committing.is_alive()
    released.set()
    committing.join(PATIENCE)


def test_sink_never_says_that_something_is_there() -> None:
    assert CallableSink(lambda _commit: None).check_committed(COMMIT.identity) is False


def test_order_and_combining_are_as_asked_for() -> None:
    sink = CallableSink(lambda _commit: None, in_order=True, combining=Combining(target_bytes=5))
    assert (sink.in_order, sink.combining) == (True, Combining(target_bytes=5))
