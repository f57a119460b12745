"""When deltas are flushed, and with which epochs."""

from __future__ import annotations

import pytest

from forebay.buffer.base.errors import Timeout
from forebay.buffer.coordinator import ApplyFailed, CoordinatorConfig, Durability
from forebay.testing import ManualClock

APPLIED, WRITTEN, DURABLE = Durability


def test_flush_on_command(rig):
    one = rig()
    write = one.put("a", 1)
    one.flush()
    write.wait(WRITTEN)
    assert one.storage.rows == {"a": (0, 1)}


def test_flush_handle_can_be_waited_on(rig):
    one = rig()
    one.put("a")
    one.flush().wait(WRITTEN)
    assert len(one.storage.flushed) == 1


def test_flush_handle_has_the_epoch_of_the_last_write(rig):
    one = rig()
    one.put("a")
    last = one.put("b")
    flush = one.flush()
    assert flush.result() == flush.epoch == last.epoch == 2


def test_flush_handle_before_any_write_has_epoch_zero(rig):
    assert rig().flush().result() == 0


def test_flush_includes_all_pending_writes(rig):
    one = rig()
    for value, key in enumerate("abc"):
        one.put(key, value)
    one.flush().wait()
    assert one.storage.rows == {"a": (0, 0), "b": (1, 1), "c": (2, 2)}
    assert len(one.storage.flushed) == 1


def test_flush_with_nothing_new_does_nothing(rig):
    one = rig()
    one.put("a")
    one.flush().wait()
    views = one.coordinator.subscribe()
    assert one.flush().result() == 1
    with pytest.raises(Timeout):
        views.receive(timeout=0)
    assert len(one.storage.flushed) == 1
    assert one.storage.storage_flushes == []


def test_written_watermark_moves_after_the_flush(rig):
    one = rig()
    gate = one.storage.gate("a")
    write = one.put("a")
    one.flush()
    gate.await_entry()
    assert one.watermarks() == (1, 0, 0)
    gate.open()
    write.wait(WRITTEN)
    assert one.watermarks() == (1, 1, 0)


def test_flush_by_interval(rig):
    one = rig(clock=ManualClock(), flush_interval=0.1)
    write = one.put("a", 1)
    write.wait(APPLIED)
    one.clock.advance(0.09)
    one.put("b", 2).wait(APPLIED)
    assert one.coordinator.view.frozen == ()
    one.clock.advance(0.06)
    write.wait(WRITTEN)
    assert one.storage.flushed == [(range(1, 3), [("a", 0, 1), ("b", 1, 2)])]


def test_flush_by_command_starts_the_interval_again(rig):
    one = rig(clock=ManualClock(), flush_interval=10)
    one.put("a").wait(APPLIED)
    one.clock.advance(6)
    one.flush().wait(WRITTEN)
    second = one.put("b")
    second.wait(APPLIED)
    one.clock.advance(5)
    one.put("c").wait(APPLIED)
    assert one.storage.ranges == [range(1, 2)]
    assert one.coordinator.view.frozen == ()
    one.clock.advance(5)
    second.wait(WRITTEN)
    assert one.storage.ranges == [range(1, 2), range(2, 4)]


def test_interval_that_passed_with_nothing_new_is_not_owed(rig):
    one = rig(clock=ManualClock(), flush_interval=10)
    one.put("a").wait(APPLIED)
    one.flush().wait()
    one.clock.advance(25)
    late = one.put("b")
    late.wait(APPLIED)
    one.put("c").wait(APPLIED)
    assert one.coordinator.view.frozen == ()
    one.clock.advance(5)
    late.wait(WRITTEN)


def test_flush_when_the_size_is_reached(rig):
    one = rig(flush_size=100)
    one.put("a", size=150).wait(WRITTEN)
    assert len(one.storage.flushed) == 1


def test_sizes_accumulate_until_the_threshold(rig):
    one = rig(flush_size=100)
    for number in range(5):
        one.put(f"{number}", size=15).wait(APPLIED)
    assert one.coordinator.view.frozen == ()
    assert one.coordinator.view.last_written is None
    one.put("last", size=30).wait(WRITTEN)
    assert one.storage.ranges == [range(1, 7)]


def test_size_cuts_a_batch_of_queued_writes_exactly(rig):
    one = rig(start=False, flush_size=30, max_concurrent_flushes=1)
    for number in range(10):
        last = one.put(f"{number}", size=10)
    one.coordinator.start()
    one.flush()
    last.wait(WRITTEN)
    assert one.storage.ranges == [range(1, 4), range(4, 7), range(7, 10), range(10, 11)]


def test_writes_are_accepted_during_a_flush(rig):
    one = rig()
    gate = one.storage.gate("a")
    first = one.put("a")
    one.flush()
    gate.await_entry()
    second = one.put("b")
    second.wait(APPLIED)
    assert first.epoch < second.epoch
    assert not first.done(WRITTEN)


def test_writes_during_a_flush_get_new_epochs(rig):
    one = rig()
    gate = one.storage.gate("a")
    one.put("a")
    one.flush()
    gate.await_entry()
    during = [one.put(key) for key in "bc"]
    for handle in during:
        handle.wait(APPLIED)
    assert [handle.epoch for handle in during] == [2, 3]


def test_flush_knows_its_epoch_range(rig):
    one = rig()
    for key in "abc":
        one.put(key)
    one.flush().wait()
    assert one.storage.ranges == [range(1, 4)]


def test_epoch_ranges_are_contiguous(rig):
    one = rig()
    one.put("a")
    one.put("b")
    one.flush().wait()
    one.put("c")
    one.flush().wait()
    assert one.storage.ranges == [range(1, 3), range(3, 4)]


def test_epoch_range_holds_exactly_the_epochs_of_its_writes(rig):
    one = rig()
    handles = [one.put(key) for key in "ab"]
    one.flush().wait()
    assert list(one.storage.ranges[0]) == [handle.epoch for handle in handles]


def test_state_is_carried_from_one_delta_to_the_next(rig):
    one = rig()
    for value in (1, 2):
        one.put("a", value)
        one.flush().wait()
    assert [puts for _, puts in one.storage.flushed] == [[("a", 0, 1)], [("a", 1, 2)]]


def test_storage_is_flushed_on_demand_with_no_writes(rig):
    one = rig()
    gate = one.storage.gate_storage()
    flush = one.flush(durable=True)
    gate.await_entry()
    assert not flush.done(DURABLE), "the handle waits for the storage flush itself"
    gate.open()
    assert flush.result() == 0
    assert one.storage.storage_flushes == [[]]
    assert one.storage.flushed == []


def test_storage_is_flushed_on_demand_with_nothing_new(rig):
    one = rig()
    one.put("a")
    one.flush(durable=True).wait()
    one.flush(durable=True).wait()
    assert one.storage.storage_flushes == [[range(1, 2)], []]
    assert one.watermarks() == (1, 1, 1)


def test_durable_watermark_moves_to_the_last_flushed_epoch(rig):
    one = rig()
    write = one.put("a")
    one.flush().wait(WRITTEN)
    assert one.watermarks() == (1, 1, 0)
    assert not write.done(DURABLE)
    assert one.flush(durable=True).result() == 1
    write.wait(DURABLE)
    assert one.watermarks() == (1, 1, 1)
    assert one.storage.ranges == [range(1, 2)]


def test_plain_flush_leaves_storage_alone(rig):
    one = rig()
    one.put("a")
    one.flush().wait()
    assert one.storage.storage_flushes == []


def test_every_flush_ends_durable_if_configured(rig):
    one = rig(durable_flushes=True, flush_size=10, default_durability=DURABLE)
    assert one.put("a", size=10).result() == 0
    assert one.storage.storage_flushes == [[range(1, 2)]]
    assert one.watermarks() == (1, 1, 1)


def test_delta_of_refused_writes_uploads_nothing_and_its_epochs_pass(rig):
    one = rig(durable_flushes=True)
    views = one.coordinator.subscribe()
    refused = [one.put(key, refused=True) for key in "ab"]
    assert one.flush(durable=False).result() == 2
    assert one.storage.flushed == []
    assert one.storage.storage_flushes == []
    assert one.watermarks() == (2, 2, 2)
    with pytest.raises(Timeout):
        views.receive(timeout=0)
    for handle in refused:
        with pytest.raises(ApplyFailed):
            handle.result()
    one.put("c")
    one.flush().wait()
    assert one.storage.flushed == [(range(3, 4), [("c", 0, 0)])]


def test_flush_handle_waits_for_deltas_frozen_before_it(rig):
    one = rig(flush_size=10)
    gate = one.storage.gate("a")
    one.put("a", size=10)
    gate.await_entry()
    flush = one.flush()
    flush.wait(APPLIED)
    assert flush.epoch == 1
    assert not flush.done(WRITTEN)
    gate.open()
    flush.wait(WRITTEN)


def test_flush_does_not_wait_for_a_paused_channel(rig):
    one = rig(channels=("x", "y"))
    one.coordinator.channel("x").pause()
    one.put("a", channel="x")
    one.put("b", channel="y")
    assert one.flush().result() == 1
    assert one.storage.rows == {"b": (0, 0)}


def test_defaults_are_as_documented():
    config = CoordinatorConfig()
    assert (config.queue_capacity, config.flush_interval, config.flush_size) == (10_000, 10.0, 64 * 1024 * 1024)
    assert (config.max_concurrent_flushes, config.max_cost, config.view_capacity) == (1, None, 16)
    assert (config.durable_flushes, config.default_durability) == (False, Durability.WRITTEN)
