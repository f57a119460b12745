"""Views, their order, and subscribers that fall behind."""

from __future__ import annotations

import gc

import pytest

from forebay.buffer.base.errors import Closed, Timeout, Unavailable
from forebay.buffer.coordinator import DeltaRejected, Durability, MessagesLost
from forebay.testing import ManualClock

APPLIED, WRITTEN, DURABLE = Durability


def ranges(view):
    return [stamped.epochs for stamped in view.frozen]


def test_applied_write_is_in_the_view(rig):
    one = rig()
    one.put("a", 42).wait(APPLIED)
    assert one.coordinator.view.current.get("a") == 42


def test_subscriber_starts_from_the_view_of_now(rig):
    one = rig()
    one.put("a", 1).wait(APPLIED)
    views = one.coordinator.subscribe()
    assert views.view == one.coordinator.view
    assert views.view.current.get("a") == 1
    one.flush()
    assert views.receive().current.get("a") is None


def test_frozen_delta_is_shown_on_freeze(rig):
    one = rig()
    views = one.coordinator.subscribe()
    one.put("a", 1)
    one.flush()
    view = views.receive()
    assert ranges(view) == [range(1, 2)]
    assert view.frozen[0].value.get("a") == 1
    assert view.last_written is None


def test_view_after_the_flush_has_the_snapshot(rig):
    one = rig()
    views = one.coordinator.subscribe()
    one.put("a", 1)
    one.flush()
    assert views.receive().snapshot == {}
    assert views.receive().snapshot == {"a": (0, 1)}


def test_view_after_the_flush_has_the_delta(rig):
    one = rig()
    one.put("a", 42)
    one.flush().wait()
    assert one.coordinator.view.last_written.value.get("a") == 42


def test_view_after_the_flush_has_the_epoch_range(rig):
    one = rig()
    handles = [one.put(key) for key in "ab"]
    one.flush().wait()
    assert list(one.coordinator.view.last_written.epochs) == [handle.epoch for handle in handles]


def test_frozen_delta_is_gone_after_the_flush(rig):
    one = rig()
    views = one.coordinator.subscribe()
    one.put("a")
    one.flush()
    views.receive()
    view = views.receive()
    assert view.frozen == ()
    assert view.last_written is not None


def test_frozen_deltas_are_shown_newest_first(rig, parts):
    one = rig(max_concurrent_flushes=3)
    for key in "abc":
        one.storage.gate(key)
        one.put(key)
        one.flush().wait(APPLIED)
    parts.eventually(lambda: len(one.coordinator.view.frozen) == 3)
    assert ranges(one.coordinator.view) == [range(3, 4), range(2, 3), range(1, 2)]


def test_each_flush_publishes_two_views_in_epoch_order_when_flushes_overlap(rig):
    one = rig(max_concurrent_flushes=2)
    views = one.coordinator.subscribe()
    gates = [one.storage.gate(key) for key in "ab"]
    handles = []
    for key, gate in zip("ab", gates, strict=True):
        handles.append(one.put(key))
        one.flush()
        gate.await_entry()
    gates[1].open()
    gates[0].open()
    handles[1].wait(WRITTEN)
    seen = [views.receive() for _ in range(4)]
    assert [ranges(view) for view in seen] == [[range(1, 2)], [range(2, 3), range(1, 2)], [range(2, 3)], []]
    assert [view.last_written and view.last_written.epochs for view in seen] == [None, None, range(1, 2), range(2, 3)]
    with pytest.raises(Timeout):
        views.receive(timeout=0)


def test_rejected_delta_leaves_the_view_and_is_not_last_written(rig):
    one = rig()
    one.put("a")
    one.flush().wait()
    one.storage.gate("b").open(DeltaRejected(Unavailable("no")))
    one.put("b")
    with pytest.raises(Unavailable):
        one.flush().wait()
    view = one.coordinator.view
    assert view.frozen == ()
    assert view.last_written.epochs == range(1, 2)
    assert view.snapshot == {"a": (0, 0)}


def test_written_watermark_moves_after_the_view_that_includes_it(rig, monkeypatch):
    one = rig()
    views, seen = one.coordinator.subscribe(), []
    offer = views.offer
    monkeypatch.setattr(views, "offer", lambda view: (seen.append(one.watermarks()), offer(view)))
    write = one.put("a")
    one.flush().wait()
    write.wait(WRITTEN)
    assert seen == [(1, 0, 0), (1, 0, 0)]
    assert one.watermarks() == (1, 1, 0)


def test_subscriber_that_fell_behind_is_told_and_can_start_again(rig):
    one = rig(view_capacity=16)
    views = one.coordinator.subscribe()
    for number in range(20):
        one.put(f"{number}")
        one.flush().wait()
    for _ in range(2):
        with pytest.raises(MessagesLost):
            views.receive()
    fresh = views.restart()
    assert len(fresh.snapshot) == 20
    one.put("after")
    one.flush().wait()
    assert ranges(views.receive()) == [range(21, 22)]
    assert "after" in views.receive().snapshot


def test_subscriber_that_is_exactly_full_has_lost_nothing(rig):
    one = rig(view_capacity=4)
    views = one.coordinator.subscribe()
    for key in "ab":
        one.put(key)
        one.flush().wait()
    assert [len(views.receive().frozen) for _ in range(4)] == [1, 0, 1, 0]


def test_slow_subscriber_costs_the_others_nothing(rig):
    one = rig(view_capacity=2)
    slow, quick = one.coordinator.subscribe(), one.coordinator.subscribe()
    for key in "abc":
        one.put(key)
        one.flush().wait()
        assert [len(quick.receive().frozen) for _ in range(2)] == [1, 0]
    with pytest.raises(MessagesLost):
        slow.receive()


def test_forgotten_subscription_is_not_kept(rig):
    one = rig()
    views = one.coordinator.subscribe()
    assert len(one.coordinator._board.subscriptions) == 1
    del views
    gc.collect()
    assert len(one.coordinator._board.subscriptions) == 0


def test_receive_times_out(rig, parts):
    one = rig(clock=ManualClock())
    views = one.coordinator.subscribe()
    waiting = parts.Outcome(lambda: views.receive(timeout=3))
    parts.eventually(lambda: bool(one.clock._waiters))
    one.clock.advance(3)
    assert isinstance(waiting.join().error, Timeout)


def test_subscription_ends_with_the_coordinator(rig, parts):
    one = rig()
    views = one.coordinator.subscribe()
    iterating = parts.Outcome(lambda: [len(view.frozen) for view in views])
    one.put("a")
    one.coordinator.stop()
    assert iterating.join().value == [1, 0]
    with pytest.raises(Closed):
        views.receive()
