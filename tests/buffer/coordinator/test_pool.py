"""Several deltas flushed at once, group commit, and watermarks that still move in order."""

from __future__ import annotations

import pytest

from forebay.buffer.base.errors import Unavailable
from forebay.buffer.coordinator import DeltaRejected, Durability
from forebay.testing import ManualClock

APPLIED, WRITTEN, DURABLE = Durability


def start_flushes(one, keys):
    """One delta for each key, each held at its gate."""
    gates = {key: one.storage.gate(key) for key in keys}
    handles = {}
    for key in keys:
        handles[key] = one.put(key)
        one.flush(durable=False)
        gates[key].await_entry()
    return gates, handles


def test_deltas_are_flushed_at_once_and_watermarks_move_in_order(rig, parts):
    one = rig(max_concurrent_flushes=3)
    gates, handles = start_flushes(one, "abc")
    assert one.storage.running == 3
    gates["c"].open()
    parts.eventually(lambda: len(one.storage.flushed) == 1)
    gates["b"].open()
    parts.eventually(lambda: len(one.storage.flushed) == 2)
    assert one.watermarks() == (3, 0, 0)
    assert not handles["b"].done(WRITTEN)
    gates["a"].open()
    handles["a"].wait(WRITTEN)
    assert one.watermarks() == (3, 3, 0)
    assert one.storage.ranges == [range(3, 4), range(2, 3), range(1, 2)]


def test_no_more_deltas_are_flushed_at_once_than_allowed(rig):
    one = rig(max_concurrent_flushes=2, flush_size=1)
    for number in range(50):
        one.put(f"{number}", size=1)
    one.flush().wait()
    assert one.storage.most_running <= 2
    assert sorted(epochs.start for epochs in one.storage.ranges) == list(range(1, 51))


def test_flush_waits_its_turn_without_holding_up_writes(rig):
    one = rig(max_concurrent_flushes=1)
    gate = one.storage.gate("a")
    one.put("a")
    one.flush()
    gate.await_entry()
    handles = []
    for key in "bcd":
        handles.append(one.put(key))
        one.flush().wait(APPLIED)
    assert [handle.epoch for handle in handles] == [2, 3, 4]
    gate.open()
    for handle in handles:
        handle.wait(WRITTEN)
    # The thread was busy with "a"; one delta waited for it, and the rest gathered in the next.
    assert one.storage.ranges == [range(1, 2), range(2, 3), range(3, 5)]


def test_rejection_is_told_before_slower_deltas_finish(rig):
    one = rig(max_concurrent_flushes=2)
    gates, handles = start_flushes(one, "ab")
    gates["b"].open(DeltaRejected(Unavailable("no")))
    with pytest.raises(Unavailable):
        handles["b"].wait(WRITTEN)
    assert one.watermarks() == (2, 0, 0)
    gates["a"].open()
    handles["a"].wait(WRITTEN)
    assert one.watermarks() == (2, 2, 0)


def test_one_storage_flush_takes_everything_written_in_order(rig, parts):
    one = rig(max_concurrent_flushes=4, durable_flushes=True)
    storage_gate = one.storage.gate_storage()
    gates, handles = start_flushes(one, "abcd")
    gates["a"].open()
    storage_gate.await_entry()
    for key in "dcb":
        gates[key].open()
    handles["d"].wait(WRITTEN)
    assert one.watermarks() == (4, 4, 0)
    assert len(one.storage.storage_flushes) == 1, "one storage flush at a time"
    storage_gate.open()
    handles["d"].wait(DURABLE)
    assert one.storage.storage_flushes == [[range(1, 2)], [range(2, 3), range(3, 4), range(4, 5)]]
    assert one.watermarks() == (4, 4, 4)


def test_storage_flush_never_takes_a_delta_past_a_gap(rig, parts):
    one = rig(max_concurrent_flushes=2, durable_flushes=True)
    gates, handles = start_flushes(one, "ab")
    gates["b"].open()
    parts.eventually(lambda: len(one.storage.flushed) == 1)
    assert one.storage.storage_flushes == []
    gates["a"].open()
    handles["b"].wait(DURABLE)
    assert one.storage.storage_flushes == [[range(1, 2), range(2, 3)]]


def test_durable_flush_waits_for_the_deltas_before_it(rig):
    one = rig(max_concurrent_flushes=2)
    gates, handles = start_flushes(one, "ab")
    flush = one.flush(durable=True)
    gates["b"].open()
    handles["b"].wait(APPLIED)
    assert one.storage.storage_flushes == []
    gates["a"].open()
    flush.wait(DURABLE)
    assert one.storage.storage_flushes == [[range(1, 2), range(2, 3)]]


def test_receipts_are_the_ones_flush_delta_returned(rig):
    one = rig(durable_flushes=True)
    received = []
    one.storage.flush_storage = lambda written: received.extend(written) or {}
    one.put("a", 7)
    one.flush().wait()
    assert [(stamped.epochs, stamped.value) for stamped in received] == [(range(1, 2), {"a": (0, 7)})]


def paced(rig, **config):
    """A coordinator of which every put is a delta, and a first one that is durable."""
    one = rig(clock=ManualClock(), durable_flushes=True, flush_size=10, storage_pace=lambda: 10.0, **config)
    one.put("a").wait(DURABLE)
    return one


def test_storage_flush_keeps_its_pace_and_takes_all_that_was_written_meanwhile(rig):
    one = paced(rig)
    handles = [one.put(key) for key in "bc"]
    one.clock.advance(9.9)
    handles.append(one.put("d"))
    handles[-1].wait(WRITTEN)
    assert not any(handle.done(DURABLE) for handle in handles)
    one.clock.advance(0.1)
    handles[-1].wait(DURABLE)
    assert one.storage.storage_flushes == [[range(1, 2)], [range(2, 3), range(3, 4), range(4, 5)]]


def test_flush_on_command_does_not_wait_for_the_pace(rig):
    one = paced(rig)
    late = one.put("b")
    late.wait(WRITTEN)
    one.flush().wait()
    assert late.done(DURABLE)


def test_stop_does_not_wait_for_the_pace(rig, parts):
    one = paced(rig)
    late = one.put("b")
    late.wait(WRITTEN)
    assert parts.Outcome(one.coordinator.stop).join().error is None
    late.wait(DURABLE)


def test_writer_that_waits_for_room_does_not_wait_for_the_pace(rig, parts):
    one = paced(rig, max_cost=10)
    one.put("b", cost=10).wait(WRITTEN)
    assert parts.Outcome(lambda: one.write("c", cost=10)).join().error is None
