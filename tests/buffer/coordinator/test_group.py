"""Coordinators that share threads and a bound on cost: one that fails or hangs leaves the others alone."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Backpressure, Closed, InvalidInput
from forebay.buffer.coordinator import CoordinatorGroup, Durability, FlushFailed

APPLIED, WRITTEN, DURABLE = Durability


@pytest.fixture
def members(rig):
    """Makes coordinators of one group, with three flush threads."""

    def make(count, *, max_cost=None, clock=None, **config):
        group = CoordinatorGroup(flush_threads=3, max_cost=max_cost, clock=clock or SystemClock(), name="members")
        return [rig(group=group, **config) for _ in range(count)]

    return make


def threads():
    return [thread.name for thread in threading.enumerate() if "members" in thread.name]


def test_many_coordinators_need_no_more_threads_than_one(members):
    many = members(50, durable_flushes=True)
    handles = [one.put("a") for one in many]
    for flush in [one.flush() for one in many]:
        flush.wait(DURABLE)
    assert all(handle.done(DURABLE) for handle in handles)
    assert len(threads()) <= 1 + 3


def test_threads_end_with_the_last_coordinator(members):
    first, last = members(2)
    assert threads()
    first.coordinator.stop()
    assert threads()
    last.put("a")
    last.coordinator.stop()
    assert not threads()


def test_coordinator_whose_flush_hangs_does_not_hold_up_the_others(members):
    stuck, other = members(2, durable_flushes=True)
    gate = stuck.storage.gate("a")
    stuck.put("a")
    stuck.flush()
    gate.await_entry()
    for key in "bcdef":
        stuck.put(key)
        stuck.flush()
        other.put(key).wait(APPLIED)
        other.flush().wait(DURABLE)
    gate.open()


def test_coordinator_takes_no_more_flush_threads_than_it_may(members, parts):
    stuck, other = members(2, max_concurrent_flushes=2)
    gates = [stuck.storage.gate(key) for key in "ab"]
    for key in "abc":
        stuck.put(key)
        stuck.flush()
    for gate in gates:
        gate.await_entry()
    other.put("a")
    other.flush().wait()
    assert stuck.storage.running == 2
    for gate in gates:
        gate.open()


def test_fatal_error_of_one_coordinator_stops_no_other_and_gives_its_room_back(members):
    failing, other = members(2, max_cost=100)
    failing.storage.gate("a").open(OSError("disk on fire"))
    failing.put("a", cost=90)
    with pytest.raises(Backpressure, match="90 of 100"):
        other.put("b", cost=20)
    with pytest.raises(FlushFailed):
        failing.flush().wait()
    other.put("b", cost=20)
    other.flush().wait()
    assert other.storage.rows == {"b": (0, 0)}


def test_writer_without_room_makes_the_coordinator_flush_that_holds_the_most(members):
    small, large = members(2, max_cost=100)
    small.put("a", cost=10)
    large.put("b", cost=80)
    small.write("c", cost=20)
    assert large.storage.rows == {"b": (0, 0)}
    assert small.storage.rows == {}


def test_writers_of_all_coordinators_get_room_in_the_order_they_came(members, parts):
    one, other = members(2, max_cost=100)
    gate = one.storage.gate("a")
    one.put("a", cost=90)
    waiting = parts.Outcome(lambda: one.write("b", cost=90))
    one.await_blocked_writer()
    with pytest.raises(Backpressure):
        other.put("c", cost=5)
    gate.open()
    waiting.join()
    other.put("c", cost=5)


def test_coordinator_stopped_while_a_writer_waits_for_room_refuses_it(members, parts):
    one, other = members(2, max_cost=100)
    gate = one.storage.gate("a")
    one.put("a", cost=90)
    waiting = parts.Outcome(lambda: other.write("b", cost=90))
    other.await_blocked_writer()
    other.coordinator.stop()
    assert "was stopped" in str(waiting.join().error)
    gate.open()


def test_storage_is_flushed_before_deltas_that_wait_for_a_thread(members, parts):
    """Durable writes give their room back; and a caller waits for them."""
    many = members(4, durable_flushes=True)
    gates = [one.storage.gate("a") for one in many[:3]]
    for one in many[:3]:
        one.put("a")
        one.flush()
    for gate in gates:
        gate.await_entry()
    late = many[3].storage.gate("a")
    many[3].put("a")
    many[3].flush().wait(APPLIED)
    storage = many[0].storage.gate_storage()
    gates[0].open()
    storage.await_entry()
    assert not late.entered.is_set()
    for gate in (storage, late, *gates):
        gate.open()


def test_work_beside_the_flushes_runs_and_its_error_is_logged(members, parts, caplog):
    (one,) = members(1)
    done = threading.Event()

    def fail():
        done.set()
        raise ValueError("from the work")

    one.coordinator.run_soon(fail)
    assert done.wait(parts.PATIENCE)
    one.put("a")
    one.flush().wait()
    parts.eventually(lambda: "work beside the flushes failed" in caplog.text)


def new_group():
    return CoordinatorGroup(flush_threads=3, max_cost=100, clock=SystemClock(), name="members")


def test_group_whose_coordinators_have_all_stopped_refuses_another(rig):
    group = new_group()
    rig(group=group).coordinator.stop()
    late = rig(group=group, start=False)
    with pytest.raises(Closed, match="make a new group"):
        late.coordinator.start()


def test_coordinator_can_be_made_while_the_group_looks_for_the_fullest(rig):
    group = new_group()

    class Member(SimpleNamespace):
        __hash__ = object.__hash__

        @property
        def held_cost(self):
            rig(group=group, start=False)
            return 1

    asked = []
    member = Member(make_room=lambda: asked.append(True))
    with group.lock:
        group.join(member)
        group.make_room()
        group.leave(member)
    assert asked


def test_writer_that_waits_for_room_before_the_start_gets_it_afterwards(rig, parts):
    one = rig(group=new_group(), start=False)
    one.put("a", cost=90)
    waiting = parts.Outcome(lambda: one.write("b", cost=90))
    one.await_blocked_writer()
    one.coordinator.start()
    assert waiting.join().error is None


def test_stop_does_not_wait_for_a_flush_that_hangs_in_a_failed_coordinator(members, parts):
    failing, other = members(2, max_concurrent_flushes=2)
    gate = failing.storage.gate("a")
    failing.put("a")
    failing.flush()
    gate.await_entry()
    failing.storage.gate("b").open(OSError("disk on fire"))
    failing.put("b")
    with pytest.raises(FlushFailed):
        failing.flush().wait(timeout=parts.PATIENCE)
    write = other.put("c")
    assert parts.Outcome(other.coordinator.stop).join().error is None
    assert write.done(WRITTEN)
    assert not gate.opened.is_set()


def test_stop_does_not_wait_for_work_beside_the_flushes(members, parts):
    (one,) = members(1)
    gate = parts.Gate()
    one.coordinator.run_soon(gate.pass_through)
    gate.await_entry()
    write = one.put("a")
    assert parts.Outcome(one.coordinator.stop).join().error is None
    assert write.done(WRITTEN)
    gate.open()


def test_stop_waits_for_a_done_callback_no_longer_than_its_timeout(members, parts):
    (one,) = members(1)
    gate = parts.Gate()
    one.put("a").add_done_callback(lambda _: gate.pass_through(), durability=DURABLE)
    stopping = parts.Outcome(lambda: one.coordinator.stop(timeout=0.01))
    gate.await_entry()
    stopping.join()
    gate.open()


def test_coordinators_go_on_beside_one_that_hangs_if_no_thread_can_be_started(members, parts, monkeypatch):
    """As at the interpreter's exit."""
    stuck, *others = members(3)
    parts.eventually(lambda: len(threads()) == 1 + 3)

    def refuse(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        gate = stuck.storage.gate("a")
        stuck.put("a")
        stuck.flush()
        gate.await_entry()
        for other in others:
            other.put("a")
            other.flush().wait(timeout=parts.PATIENCE)
        assert not gate.opened.is_set()


@pytest.mark.parametrize("level", [APPLIED, WRITTEN])
def test_done_callback_that_would_wait_for_room_is_refused(members, parts, level):
    (one,) = members(1, max_cost=100)
    caught = []

    def write_more(_handle):
        one.put("b", cost=90)
        try:
            one.write("c", cost=90)
        except InvalidInput as error:
            caught.append(error)

    one.put("a").add_done_callback(write_more, durability=level)
    one.flush()
    parts.eventually(lambda: bool(caught))
    one.flush().wait(timeout=parts.PATIENCE)
    assert one.storage.rows.keys() == {"a", "b"}
