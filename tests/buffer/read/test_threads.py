"""The threads that fetch ahead: few, in order, and gone when nobody needs them."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from forebay.buffer.read.threads import FetchThreads


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
