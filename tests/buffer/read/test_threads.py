"""The threads that fetch ahead: few, in order, and gone when nobody needs them."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from forebay.buffer.read.threads import Coming, FetchThreads


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_tasks_run_on_no_more_threads_than_allowed() -> None:
    threads = FetchThreads(3, "most")
    gate = threading.Event()
    futures = [threads.submit(gate.wait) for _ in range(10)]
    assert len(threads_of("most")) == 3
    gate.set()
    assert all(future.result() for future in futures)


def test_one_task_after_another_needs_one_thread() -> None:
    threads = FetchThreads(3, "one")
    for number in range(20):
        assert threads.submit(lambda number=number: number).result() == number  # type: ignore[misc]
    assert len(threads_of("one")) <= 2, "a thread may not have come back yet when the next task comes"
    threads.close()


def test_error_of_a_task_is_its_own() -> None:
    threads = FetchThreads(1, "error")
    failed = threads.submit(lambda: 1 / 0)
    after = threads.submit(lambda: "after")
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert after.result() == "after"


def test_thread_without_work_ends() -> None:
    threads = FetchThreads(1, "idle")
    threads.submit(lambda: None).result()
    for thread in threads_of("idle"):
        thread.join()
    assert threads.submit(lambda: "again").result() == "again"


def test_close_cancels_what_has_not_begun_and_ends_the_threads() -> None:
    threads = FetchThreads(1, "close")
    begun, gate = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        gate.wait()
        return "done"

    running, queued = threads.submit(work), threads.submit(lambda: "never")
    begun.wait()
    threads.close(0)
    with pytest.raises(CancelledError):
        queued.result()
    with pytest.raises(CancelledError):
        threads.submit(lambda: "never").result()
    gate.set()
    assert running.result() == "done"
    threads.close()
    assert not threads_of("close")


def test_caller_does_the_work_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = FetchThreads(2, "none")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert threads.submit(threading.current_thread).result() is threading.current_thread()


def fail(*_: object) -> Any:
    raise MemoryError


def test_callback_that_raises_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads = FetchThreads(1, "callback")
    gate = threading.Event()
    first: Coming[bool] = Coming()
    first.when_done(fail)
    threads.run(first, gate.wait)
    after = threads.submit(lambda: "after")
    gate.set()
    assert first.result()
    assert after.result() == "after"
    assert "callback: what follows a task failed" in caplog.text


def die_while_it_waits(threads: FetchThreads, monkeypatch: pytest.MonkeyPatch) -> Coming[str]:
    """Let the thread of `threads` die just after it was given a task, and return what comes of that task."""
    given: list[Coming[str]] = []
    dead: list[Any] = []

    def wait(_seconds: float) -> None:
        given.append(threads.submit(lambda: "never"))
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(threading, "excepthook", dead.append)
        patch.setattr(threads._changed, "wait", wait)
        thread = threads.submit(threading.current_thread).result()
        thread.join()
    assert [died.exc_type for died in dead] == [MemoryError]
    return given[0]


def test_thread_that_dies_leaves_its_error_to_the_tasks_that_nobody_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    left = die_while_it_waits(FetchThreads(1, "dead"), monkeypatch)
    assert left.done()
    assert isinstance(left.exception(), MemoryError)


def test_thread_that_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = FetchThreads(1, "replaced")
    die_while_it_waits(threads, monkeypatch)
    assert threads.submit(lambda: "again").result() == "again"


def test_task_for_which_no_thread_could_be_made_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = FetchThreads(1, "forgotten"), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(MemoryError):
            threads.submit(lambda: done.append("refused"))
    threads.submit(lambda: done.append("taken")).result()
    assert done == ["taken"]
