"""The collector's thread: it waits by the clock, outlives errors and stops when told."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import Any

import pytest
from patience import PATIENCE

from forebay.buffer.base.errors import InvalidInput, Unavailable
from forebay.gc import Collector
from forebay.testing import FaultyStore


class Watched(FaultyStore):
    """Says when a collection has begun, and fails a given number of them."""

    def __init__(self, inner: Any, *, failing: int = 0, error: BaseException | None = None) -> None:
        super().__init__(inner)
        self.begun = threading.Semaphore(0)
        self.failing = failing
        self.error = error or Unavailable("the store is away")

    def list(self, prefix: str = "", *, start_after: str = "") -> Any:
        if prefix == "manifest":
            self.begun.release()
            if self.failing:
                self.failing -= 1
                raise self.error
        return super().list(prefix, start_after=start_after)

    def wait(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE), "no collection began"


def advance_until_begun(pool: Any, store: Watched, seconds: float) -> None:
    """The thread may not be waiting yet when the clock moves: move it until the next collection begins."""
    for _ in range(2_000):
        pool.clock.advance(seconds)
        if store.begun.acquire(timeout=0.01):
            return
    pytest.fail("no collection began")


def test_it_collects_at_once_and_after_every_interval_until_stopped(pool: Any) -> None:
    store = Watched(pool.store)
    collector = pool.collector(store).start(interval=300.0)
    store.wait()
    advance_until_begun(pool, store, 300.0)
    collector.stop()
    before = store.begun._value
    pool.clock.advance(10_000)
    assert store.begun._value == before
    assert "forebay-collector" not in {thread.name for thread in threading.enumerate()}


def test_it_survives_errors_which_are_logged_and_counted(pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool.append(2)
    pool.read(1)
    pool.age()
    store = Watched(pool.store, failing=2)
    with caplog.at_level(logging.ERROR, logger="forebay.gc"), pool.collector(store).start(interval=5.0) as collector:
        store.wait()
        advance_until_begun(pool, store, 5.0)
        advance_until_begun(pool, store, 5.0)
        advance_until_begun(pool, store, 5.0)
    assert collector.failed_runs == 2
    assert "the store is away" in caplog.text
    assert pool.objects() == []


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_it_survives_what_is_no_error_and_counts_it(
    pool: Any, caplog: pytest.LogCaptureFixture, raised: type[BaseException]
) -> None:
    store = Watched(pool.store, failing=1, error=raised("from the store"))
    with caplog.at_level(logging.ERROR, logger="forebay.gc"), pool.collector(store).start(interval=5.0) as collector:
        store.wait()
        advance_until_begun(pool, store, 5.0)
    assert collector.failed_runs == 1
    assert "from the store" in caplog.text


def test_stop_ends_a_long_sweep_after_the_request_under_way(pool: Any) -> None:
    for _ in range(2_500):
        pool.upload()
    pool.age()
    deleting, go_on = threading.Event(), threading.Event()

    class Slow(FaultyStore):
        def delete(self, keys: Any) -> Any:
            deleting.set()
            assert go_on.wait(PATIENCE)
            return super().delete(keys)

    collector = pool.collector(Slow(pool.store)).start()
    assert deleting.wait(PATIENCE)
    stopper = threading.Thread(target=collector.stop)
    stopper.start()
    while not collector._stopping:
        pass
    go_on.set()
    stopper.join(PATIENCE)
    assert not stopper.is_alive()
    assert len(pool.objects()) == 1_500


def test_it_runs_once_at_a_time_and_can_be_started_again(pool: Any) -> None:
    store = Watched(pool.store)
    collector = pool.collector(store)
    collector.stop()
    with collector.start(), pytest.raises(InvalidInput, match="running already"):
        collector.start()
    store.wait()
    with collector.start():
        store.wait()


@pytest.mark.parametrize("interval", [0, -1.0, float("nan")])
def test_interval_must_be_a_time(pool: Any, interval: float) -> None:
    with pytest.raises(InvalidInput, match="interval"):
        pool.collector().start(interval)


def test_defaults_are_as_documented() -> None:
    assert inspect.signature(Collector).parameters["grace"].default == 600.0
    assert inspect.signature(Collector.start).parameters["interval"].default == 300.0
