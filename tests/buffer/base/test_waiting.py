"""Waiting for something to happen, by an injected clock."""

from __future__ import annotations

from threading import Condition, Thread

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.waiting import wait_for
from forebay.testing import ManualClock


def test_what_is_true_already_is_not_waited_for() -> None:
    assert wait_for(ManualClock(), Condition(), lambda: True, None)


def test_deadline_ends_the_wait_without_it() -> None:
    clock = ManualClock()
    clock.advance(5.0)
    assert not wait_for(clock, Condition(), lambda: False, 5.0)
    assert wait_for(clock, Condition(), lambda: True, 4.0), "what is true counts, however late"


def test_notification_without_the_change_does_not_end_the_wait() -> None:
    condition, happened, returned = Condition(), [False], []
    looks = []

    def is_met() -> bool:
        looks.append(happened[0])
        return happened[0]

    waiter = Thread(target=lambda: returned.append(wait_for(SystemClock(), condition, is_met, None)), daemon=True)
    waiter.start()
    while len(looks) < 3:
        with condition:
            condition.notify_all()
    with condition:
        happened[0] = True
        condition.notify_all()
    waiter.join()
    assert returned == [True]
