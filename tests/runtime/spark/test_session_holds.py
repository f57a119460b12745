"""Holds of plain reads end: with their session, after their time, and with the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE, wait_for
from read_job import fill, head_of, new_store

from forebay.buffer.either.holds import hold
from forebay.buffer.manifest import Queue
from forebay.buffer.store import open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.spark.session_holds import KeptHolds, let_all_go
from forebay.testing import ManualClock


def keep(seconds: float, is_over: Callable[[], bool] = lambda: False) -> tuple[MemoryStore, ManualClock]:
    store, clock = new_store(), ManualClock()
    fill(store, [b"a"])
    KeptHolds([hold(store, clock=clock)], is_over, seconds, clock=clock)
    return store, clock


def advance_until_gone(store: MemoryStore, clock: ManualClock, step: float) -> None:
    # In steps: the thread may not wait yet when the clock moves for the first time.
    wait_for(lambda: not head_of(store).holds or clock.advance(step))


def test_hold_is_let_go_when_its_session_has_stopped() -> None:
    stopped = []
    store, clock = keep(3600.0, lambda: bool(stopped))
    assert len(head_of(store).holds) == 1
    stopped.append(True)
    advance_until_gone(store, clock, 0.01)
    assert clock.monotonic() < 3600


def test_hold_is_let_go_after_its_time() -> None:
    store, clock = keep(3600.0)
    advance_until_gone(store, clock, 60.0)
    assert clock.monotonic() >= 3600


def test_hold_that_was_lost_meanwhile_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    store, _clock = keep(3600.0)
    (lost,) = head_of(store).holds
    Queue(store).change_head(lambda head: head.without_hold(lost), lambda head: not head.holds)
    let_all_go()
    assert "stays until it expires" in caplog.text


def test_process_that_ends_lets_its_holds_go(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/buffer"
    fill(open_store(url), [b"a"])
    program = (
        "import forebay\n"
        "from forebay.runtime.spark.session_holds import KeptHolds\n"
        f"KeptHolds([forebay.hold({url!r})], lambda: False, 3600.0)\n"
        f"print(len(forebay.buffer.manifest.Queue(forebay.open_store({url!r})).read().holds))"
    )
    shown = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=PATIENCE)
    assert shown.strip() == "1"
    assert head_of(open_store(url)).holds == {}
