"""The stop: everything accepted is flushed, nobody hangs, and what failed is said."""

from __future__ import annotations

import threading

import pytest

from forebay.buffer.base.errors import Closed, Timeout, Unavailable
from forebay.buffer.coordinator import DeltaRejected, Durability, FlushFailed
from forebay.testing import ManualClock

APPLIED, WRITTEN, DURABLE = Durability


def test_stop_of_an_idle_coordinator_is_clean(rig):
    before = {thread for thread in threading.enumerate() if thread.name.startswith("forebay-")}
    one = rig()
    one.coordinator.stop()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("forebay-")} <= before


def test_stop_flushes_pending_writes(rig):
    one = rig()
    write = one.put("a")
    one.coordinator.stop()
    assert write.epoch in one.storage.ranges[0]
    assert write.result() == 0


def test_write_after_the_stop_is_closed(rig):
    one = rig()
    one.coordinator.stop()
    with pytest.raises(Closed):
        one.put("a")
    with pytest.raises(Closed):
        one.flush()
    with pytest.raises(Closed):
        one.coordinator.channel().pause()


def test_write_while_stopping_is_closed(rig, parts):
    one = rig()
    gate = one.storage.gate("a")
    one.put("a")
    stopping = parts.Outcome(one.coordinator.stop)
    gate.await_entry()
    with pytest.raises(Closed):
        one.put("b")
    gate.open()
    assert stopping.join().error is None


def test_stop_applies_what_paused_channels_hold(rig):
    one = rig(channels=("x", "y"))
    channel = one.coordinator.channel("x")
    channel.pause()
    handles = [one.put(key, channel=name) for key, name in (("a", "x"), ("b", "y"), ("c", "x"))]
    handles[1].wait(APPLIED)
    one.coordinator.stop()
    assert [handle.result() for handle in handles] == [1, 0, 2]
    assert one.storage.rows == {"b": (0, 0), "a": (1, 0), "c": (2, 0)}
    channel.resume()


def test_stop_applies_what_was_accepted_before_a_start_that_never_came(rig):
    one = rig(start=False)
    write = one.put("a")
    one.coordinator.stop()
    assert write.result() == 0


def test_stop_of_an_unused_coordinator_starts_no_threads(rig):
    one = rig(start=False)
    before = set(threading.enumerate())
    one.coordinator.stop()
    assert set(threading.enumerate()) <= before
    with pytest.raises(Closed):
        one.put("a")


def test_stop_ends_durable_if_flushes_do(rig):
    one = rig(durable_flushes=True)
    write = one.put("a")
    one.coordinator.stop()
    write.wait(DURABLE)
    assert one.watermarks() == (1, 1, 1)


def test_what_never_became_durable_is_closed_after_the_stop(rig, parts):
    one = rig()
    write = one.put("a")
    waiting = parts.Outcome(lambda: write.wait(DURABLE))
    told = []
    write.add_done_callback(told.append, durability=DURABLE)
    one.coordinator.stop()
    assert isinstance(waiting.join().error, Closed)
    assert told == [write]
    write.wait(WRITTEN)


def test_stop_raises_what_rejected_the_last_flush_once(rig):
    one = rig()
    one.storage.gate("a").open(DeltaRejected(Unavailable("the store is away")))
    one.put("a")
    with pytest.raises(Unavailable, match="the store is away"):
        one.coordinator.stop()
    one.coordinator.stop()


def test_stop_raises_what_rejected_a_delta_still_in_flight(rig, parts):
    one = rig(flush_size=10, max_concurrent_flushes=2)
    gate = one.storage.gate("a")
    one.put("a", size=10)
    gate.await_entry()
    one.put("b", size=10)
    stopping = parts.Outcome(one.coordinator.stop)
    parts.eventually(lambda: one.coordinator._state.stopping)
    parts.eventually(lambda: one.coordinator._last_flush.epoch is not None)
    gate.open(DeltaRejected(Unavailable("the store is away")))
    assert isinstance(stopping.join().error, Unavailable)


def test_stop_is_silent_about_a_rejection_that_was_told(rig):
    one = rig()
    one.storage.gate("a").open(DeltaRejected(Unavailable("the store is away")))
    one.put("a")
    with pytest.raises(Unavailable):
        one.flush().wait()
    one.put("b")
    one.coordinator.stop()


def test_stop_raises_a_fatal_error_of_the_last_flush_once(rig):
    one = rig()
    one.storage.gate("a").open(OSError("disk on fire"))
    one.put("a")
    with pytest.raises(FlushFailed, match="disk on fire"):
        one.coordinator.stop()
    one.coordinator.stop()


def test_stop_in_several_threads_at_once_waits_in_each(rig, parts):
    one = rig()
    gate = one.storage.gate("a")
    one.put("a")
    stopping = [parts.Outcome(one.coordinator.stop) for _ in range(4)]
    gate.await_entry()
    assert all(outcome.thread.is_alive() for outcome in stopping)
    gate.open()
    assert [outcome.join().error for outcome in stopping] == [None] * 4


def test_stop_that_times_out_goes_on(rig, parts):
    one = rig(clock=ManualClock())
    gate = one.storage.gate("a")
    write = one.put("a")
    stopping = parts.Outcome(lambda: one.coordinator.stop(timeout=5))
    gate.await_entry()
    parts.eventually(lambda: bool(one.clock._waiters))
    one.clock.advance(5)
    assert isinstance(stopping.join().error, Timeout)
    gate.open()
    one.coordinator.stop()
    assert write.result() == 0


def test_stop_from_a_done_callback_begins_the_stop(rig, parts):
    one = rig()
    write = one.put("a")
    write.add_done_callback(lambda _: one.coordinator.stop(), durability=APPLIED)
    parts.Outcome(one.coordinator.stop).join()
    assert write.result() == 0


def test_with_starts_and_stops(rig, parts):
    one = rig(start=False)
    with one.coordinator as coordinator:
        write = coordinator.channel().write(parts.Put("a"))
    assert write.result() == 0
