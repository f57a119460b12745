"""The clock that obeys."""

from __future__ import annotations

import threading

from patience import PATIENCE

from forebay.buffer.base.clock import SystemClock
from forebay.testing import ManualClock


def test_time_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1_000)
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2_500, 1.5)
    clock.sleep(0.5)
    assert (clock.now_ms(), clock.monotonic()) == (3_000, 2.0)


def test_wall_clock_steps_either_way_without_the_monotonic_one() -> None:
    clock = ManualClock(now_ms=10_000)
    clock.step_wall(-5)
    assert (clock.now_ms(), clock.monotonic()) == (5_000, 0.0)


def test_waiter_wakes_when_its_deadline_is_reached_and_not_before() -> None:
    clock = ManualClock()
    condition = threading.Condition()
    woken: list[bool] = []

    def wait() -> None:
        with condition:
            while clock.monotonic() < 5:
                woken.append(clock.wait_until(condition, 5.0))

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(4):
        clock.advance(1)
    assert woken == []
    clock.advance(1)
    thread.join(timeout=PATIENCE)
    assert woken in ([False], [])  # empty if it started late enough to see the time itself


def test_waiter_wakes_when_notified() -> None:
    for clock in (ManualClock(), SystemClock()):
        condition = threading.Condition()
        entered = threading.Event()
        left: list[bool] = []

        def wait(
            clock: ManualClock | SystemClock = clock,
            condition: threading.Condition = condition,
            entered: threading.Event = entered,
            left: list[bool] = left,
        ) -> None:
            with condition:
                entered.set()
                left.append(clock.wait_until(condition, clock.monotonic() + 1000))

        thread = threading.Thread(target=wait)
        thread.start()
        entered.wait()
        with condition:
            condition.notify_all()
        thread.join(timeout=PATIENCE)
        assert left == [True]


def test_deadline_in_the_past_does_not_wait() -> None:
    for clock in (ManualClock(), SystemClock()):
        condition = threading.Condition()
        with condition:
            assert clock.wait_until(condition, clock.monotonic() - 1) is False
