"""Bounds on what is held: writes per channel, and cost over all."""

from __future__ import annotations

import pytest

from forebay.buffer.base.errors import Backpressure, Closed, InvalidInput, Timeout, Unavailable
from forebay.buffer.coordinator import DeltaRejected, Durability
from forebay.testing import ManualClock

APPLIED, WRITTEN, DURABLE = Durability


def test_full_queue_refuses_an_immediate_write(rig):
    one = rig(start=False, queue_capacity=2)
    one.put("a")
    one.put("b")
    with pytest.raises(Backpressure, match="it holds 2 writes"):
        one.put("c")


def test_refused_write_is_in_the_backpressure_error(rig, parts):
    one = rig(start=False, queue_capacity=1)
    one.put("a")
    write = parts.Put("retry me", 42)
    with pytest.raises(Backpressure) as caught:
        one.coordinator.channel().try_write(write)
    assert caught.value.write is write


def test_drained_queue_takes_writes_again(rig):
    one = rig(start=False, queue_capacity=2)
    one.put("a")
    second = one.put("b")
    one.coordinator.start()
    second.wait(APPLIED)
    one.put("c").wait(APPLIED)


def test_timed_write_with_space_enters_at_once(rig):
    one = rig()
    one.write("a", timeout=1).wait(APPLIED)


def test_timed_write_on_a_full_queue_times_out(rig, parts):
    one = rig(start=False, queue_capacity=1, clock=ManualClock())
    one.put("a")
    blocked = parts.Outcome(lambda: one.write("b", timeout=5))
    one.await_blocked_writer()
    one.clock.advance(4.5)
    assert blocked.thread.is_alive()
    one.clock.advance(0.5)
    assert isinstance(blocked.join().error, Timeout)


def test_write_that_timed_out_is_in_the_error(rig, parts):
    one = rig(start=False, queue_capacity=1)
    one.put("a")
    write = parts.Put("retry me", 42)
    with pytest.raises(Timeout) as caught:
        one.coordinator.channel().write(write, timeout=0)
    assert caught.value.write is write


def test_timed_write_enters_when_the_queue_drains_in_time(rig, parts):
    one = rig(start=False, queue_capacity=2)
    one.put("a")
    one.put("b")
    blocked = parts.Outcome(lambda: one.write("c", timeout=parts.PATIENCE))
    one.await_blocked_writer()
    one.coordinator.start()
    blocked.join().value.wait(APPLIED)
    assert blocked.value.epoch == 3


def test_timed_write_after_the_stop_is_closed(rig):
    one = rig()
    one.coordinator.stop()
    with pytest.raises(Closed):
        one.write("a", timeout=1)


def test_blocked_writer_is_refused_by_the_stop(rig, parts):
    one = rig(channels=("x",), queue_capacity=1)
    one.coordinator.channel("x").pause()
    accepted = one.put("a", channel="x")
    blocked = parts.Outcome(lambda: one.write("b", channel="x"))
    one.await_blocked_writer()
    one.coordinator.stop()
    assert isinstance(blocked.join().error, Closed)
    assert accepted.result() == 0
    assert one.storage.rows == {"a": (0, 0)}


def test_full_delta_with_no_thread_to_write_it_holds_writes_back(rig, parts):
    one = rig(flush_size=10, max_concurrent_flushes=1, queue_capacity=2)
    gate = one.storage.gate("a")
    one.put("a", size=10)
    gate.await_entry()
    one.put("b", size=10).wait(APPLIED)
    parts.eventually(lambda: len(one.coordinator.view.frozen) == 2)
    one.put("c", size=10).wait(APPLIED)
    queued = [one.put(key, size=10) for key in "de"]
    with pytest.raises(Backpressure):
        one.put("f")
    assert one.watermarks() == (3, 0, 0)
    gate.open()
    for handle in queued:
        handle.wait(WRITTEN)


def test_cost_over_the_bound_is_refused_with_its_write(rig, parts):
    one = rig(start=False, max_cost=100)
    one.put("a", cost=60)
    write = parts.Put("b")
    with pytest.raises(Backpressure, match="60 of 100") as caught:
        one.coordinator.channel().try_write(write, cost=41)
    assert caught.value.write is write
    one.put("c", cost=40)
    assert one.coordinator.held_cost == 100


def test_cost_is_held_until_the_delta_is_durable(rig):
    one = rig(max_cost=100, durable_flushes=True)
    gate = one.storage.gate_storage()
    write = one.put("a", cost=100)
    one.flush()
    gate.await_entry()
    write.wait(WRITTEN)
    assert one.coordinator.held_cost == 100
    with pytest.raises(Backpressure):
        one.put("b", cost=1)
    gate.open()
    write.wait(DURABLE)
    assert one.coordinator.held_cost == 0


def test_delta_that_has_become_smaller_costs_less_until_it_is_durable(rig):
    one = rig(max_cost=100, durable_flushes=True)
    one.storage.smaller_cost = 30
    gate = one.storage.gate("a")
    one.put("a", cost=100)
    one.flush()
    gate.await_entry()
    assert one.coordinator.held_cost == 30
    one.put("b", cost=20).wait(APPLIED)
    gate.open()
    one.flush().wait(DURABLE)
    assert one.coordinator.held_cost == 0


def test_delta_never_comes_to_cost_more(rig):
    one = rig(max_cost=100)
    one.storage.smaller_cost = 200
    gate = one.storage.gate("a")
    one.put("a", cost=100)
    one.flush()
    gate.await_entry()
    assert one.coordinator.held_cost == 100
    gate.open()


def test_cost_is_held_until_written_if_flushes_end_there(rig):
    one = rig(max_cost=100)
    one.put("a", cost=100)
    one.flush().wait(WRITTEN)
    assert one.coordinator.held_cost == 0


def test_cost_of_a_refused_write_is_given_back(rig):
    one = rig(max_cost=100)
    one.put("a", cost=100, refused=True)
    one.flush().wait(APPLIED)
    assert one.coordinator.held_cost == 0


@pytest.mark.parametrize("level", [WRITTEN, DURABLE])
def test_cost_of_a_rejected_delta_is_given_back(rig, level):
    one = rig(max_cost=100, durable_flushes=True)
    if level == WRITTEN:
        one.storage.gate("a").open(DeltaRejected(Unavailable("no")))
    else:
        one.storage.reject_at_storage = lambda epochs: Unavailable("no")
    write = one.put("a", cost=100)
    one.flush()
    with pytest.raises(Unavailable):
        write.wait(DURABLE)
    assert one.coordinator.held_cost == 0


def test_write_over_the_whole_bound_goes_in_alone(rig, parts):
    one = rig(max_cost=100)
    one.put("big", cost=1_000)
    with pytest.raises(Backpressure):
        one.put("small", cost=1)
    blocked = parts.Outcome(lambda: one.write("big again", cost=1_000))
    assert blocked.join().error is None, "waiting for room flushes what is held"
    one.flush().wait()
    assert one.storage.ranges == [range(1, 2), range(2, 3)]


def test_waiting_for_room_flushes_what_nothing_else_would(rig, parts):
    one = rig(max_cost=100, flush_interval=None, flush_size=None)
    one.put("a", cost=100).wait(APPLIED)
    blocked = parts.Outcome(lambda: one.write("b", cost=100))
    assert blocked.join().error is None
    assert one.storage.ranges == [range(1, 2)]


def test_refusal_for_cost_flushes_what_nothing_else_would(rig, parts):
    one = rig(max_cost=100)
    first = one.put("a", cost=100)
    first.wait(APPLIED)
    with pytest.raises(Backpressure):
        one.put("b", cost=1)
    first.wait(WRITTEN)
    one.put("b", cost=1)


def test_big_write_is_not_starved_by_small_ones(rig, parts):
    one = rig(max_cost=100, queue_capacity=10)
    gate = one.storage.gate("a")
    one.put("a", cost=50)
    one.flush()
    gate.await_entry()
    big = parts.Outcome(lambda: one.write("big", cost=100))
    one.await_blocked_writer()
    with pytest.raises(Backpressure):
        one.put("small", cost=1)
    small = parts.Outcome(lambda: one.write("small", cost=1))
    parts.eventually(lambda: one.blocked_writers() == 2)
    gate.open()
    assert big.join().error is None
    assert small.join().error is None
    one.flush().wait()
    assert big.value.epoch == 2
    assert small.value.epoch == 3


def test_timeout_for_cost_gives_up_its_place(rig, parts):
    one = rig(start=False, max_cost=100, queue_capacity=2)
    one.put("a", cost=60)
    write = parts.Put("b")
    with pytest.raises(Timeout) as caught:
        one.coordinator.channel().write(write, timeout=0, cost=60)
    assert caught.value.write is write
    one.put("c", cost=40)
    channel = one.coordinator.channel()
    assert channel.accepted - channel.applied == 2


def test_negative_cost_is_invalid_input(rig):
    with pytest.raises(InvalidInput):
        rig(max_cost=1).put("a", cost=-1)
