"""Rejected deltas fail alone; a fatal error reaches everyone."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from forebay.buffer.base.errors import Fenced, ForebayError, Unavailable
from forebay.buffer.coordinator import DeltaRejected, Durability, FlushFailed

APPLIED, WRITTEN, DURABLE = Durability


def test_rejected_delta_fails_its_own_handles_only(rig):
    one = rig(durable_flushes=True, max_concurrent_flushes=3)
    one.storage.gate("b").open(DeltaRejected(Unavailable("the store is away")))
    handles = []
    flushes = []
    for key in "abc":
        handles.append(one.put(key))
        flushes.append(one.flush())
        flushes[-1].wait(APPLIED)
    handles[0].wait(DURABLE)
    handles[2].wait(DURABLE)
    for level in (WRITTEN, DURABLE):
        with pytest.raises(Unavailable, match="the store is away"):
            handles[1].wait(level)
    handles[1].wait(APPLIED)
    assert one.watermarks() == (3, 3, 3)
    assert [epoch for group in one.storage.storage_flushes for epoch in group] == [range(1, 2), range(3, 4)]
    with pytest.raises(Unavailable):
        flushes[1].wait()


def test_rejection_at_storage_leaves_written_as_it_was(rig):
    one = rig(durable_flushes=True)
    one.storage.reject_at_storage = lambda epochs: Unavailable("not listed") if epochs.start == 1 else None
    bad = one.put("a")
    with pytest.raises(Unavailable):
        one.flush().wait()
    good = one.put("b")
    one.flush().wait()
    bad.wait(WRITTEN)
    with pytest.raises(Unavailable, match="not listed"):
        bad.wait(DURABLE)
    good.wait(DURABLE)
    assert one.watermarks() == (2, 2, 2)


def test_storage_flush_may_reject_some_of_a_group(rig, parts):
    one = rig()
    one.storage.reject_at_storage = lambda epochs: Unavailable("not listed") if epochs.start == 2 else None
    handles = []
    for key in "abc":
        handles.append(one.put(key))
        one.flush().wait()
    with pytest.raises(Unavailable):
        one.flush(durable=True).wait()
    assert one.storage.storage_flushes == [[range(1, 2), range(2, 3), range(3, 4)]]
    handles[0].wait(DURABLE)
    handles[2].wait(DURABLE)
    with pytest.raises(Unavailable):
        handles[1].wait(DURABLE)
    assert one.watermarks() == (3, 3, 3)


def test_storage_flush_may_reject_its_whole_group(rig):
    one = rig(durable_flushes=True)
    one.storage.gate_storage().open(DeltaRejected(Unavailable("not now")))
    bad = one.put("a")
    with pytest.raises(Unavailable):
        one.flush().wait()
    one.put("b")
    one.flush().wait()
    with pytest.raises(Unavailable):
        bad.wait(DURABLE)
    assert one.watermarks() == (2, 2, 2)


def test_storage_flush_that_rejects_a_group_of_several_deltas_fails_each_of_them(rig):
    one = rig()
    handles = []
    for key in "abc":
        handles.append(one.put(key))
        one.flush().wait()
    one.storage.gate_storage().open(DeltaRejected(Unavailable("not now")))
    with pytest.raises(Unavailable):
        one.flush(durable=True).wait()
    assert one.storage.storage_flushes == [[range(1, 2), range(2, 3), range(3, 4)]]
    for handle in handles:
        with pytest.raises(Unavailable, match="not now"):
            handle.wait(DURABLE)


def test_rejection_of_a_delta_it_was_not_given_is_fatal(rig):
    one = rig(durable_flushes=True)
    one.storage.flush_storage = lambda written: {range(7, 9): Unavailable("what?")}
    one.put("a")
    with pytest.raises(ForebayError, match="only deltas that it was given"):
        one.flush().wait()
    with pytest.raises(ForebayError):
        one.coordinator.stop()


def test_rejection_for_a_foreign_reason_is_wrapped(rig):
    one = rig()
    one.storage.gate("a").open(DeltaRejected(KeyError("lost")))
    write = one.put("a")
    with pytest.raises(DeltaRejected, match="KeyError: 'lost'") as caught:
        one.flush().wait()
    assert isinstance(caught.value.reason, KeyError)
    with pytest.raises(DeltaRejected):
        write.wait(WRITTEN)


def test_rejected_delta_at_the_head_passes_without_a_storage_flush(rig):
    one = rig()
    one.storage.gate("a").open(DeltaRejected(Unavailable("no")))
    one.put("a")
    with pytest.raises(Unavailable):
        one.flush().wait()
    assert one.watermarks() == (1, 1, 1)
    assert one.storage.storage_flushes == []


@pytest.mark.parametrize("stage", ["delta", "storage"])
def test_fatal_error_reaches_everyone_who_waits(rig, parts, stage):
    one = rig(channels=("x", "y"), queue_capacity=1, durable_flushes=True)
    gate = one.storage.gate("a") if stage == "delta" else one.storage.gate_storage()
    one.coordinator.channel("y").pause()
    queued = one.put("queued", channel="y")
    flying = one.put("a", channel="x")
    flush = one.flush()
    gate.await_entry()
    views = one.coordinator.subscribe()
    current = one.put("b", channel="x")
    current.wait(APPLIED)
    told = []
    for handle in (queued, flying, current, flush):
        handle.add_done_callback(told.append, durability=DURABLE)
    waiting = {
        "blocked writer": parts.Outcome(lambda: one.write("c", channel="y")),
        "not applied": parts.Outcome(lambda: queued.wait(APPLIED)),
        "in flight": parts.Outcome(lambda: flying.wait(DURABLE)),
        "in the current delta": parts.Outcome(lambda: current.wait(WRITTEN)),
        "flush": parts.Outcome(lambda: flush.wait(DURABLE)),
        "subscriber": parts.Outcome(views.receive),
        "coroutine": parts.Outcome(lambda: asyncio.run(await_it(current))),
    }
    one.await_blocked_writer()
    gate.open(Fenced("another process owns it"))
    errors = {who: outcome.join().error for who, outcome in waiting.items()}
    assert {who: type(error) for who, error in errors.items()} == dict.fromkeys(errors, Fenced)
    parts.eventually(lambda: len(told) == 4)


@pytest.mark.parametrize("stage", ["delta", "storage"])
def test_fatal_error_reaches_a_stop_that_waits(rig, parts, stage):
    one = rig(durable_flushes=True)
    gate = one.storage.gate("a") if stage == "delta" else one.storage.gate_storage()
    one.put("a")
    stopping = parts.Outcome(one.coordinator.stop)
    gate.await_entry()
    gate.open(Fenced("another process owns it"))
    assert isinstance(stopping.join().error, Fenced)


def test_fatal_error_reaches_writers_blocked_on_either_bound(rig, parts):
    one = rig(channels=("x", "y"), queue_capacity=1, max_cost=10)
    gate = one.storage.gate("a")
    one.coordinator.channel("y").pause()
    one.put("queued", channel="y")
    one.put("a", channel="x", cost=10)
    one.flush()
    gate.await_entry()
    for_capacity = parts.Outcome(lambda: one.write("c", channel="y"))
    for_cost = parts.Outcome(lambda: one.write("d", channel="x", cost=5))
    parts.eventually(lambda: one.blocked_writers() == 2)
    gate.open(Fenced("another process owns it"))
    assert isinstance(for_capacity.join().error, Fenced)
    assert isinstance(for_cost.join().error, Fenced)


def test_fatal_error_is_what_later_calls_get(rig):
    one = rig()
    one.storage.gate("a").open(Fenced("another process owns it"))
    one.put("a")
    with pytest.raises(Fenced):
        one.flush().wait()
    for call in (lambda: one.put("b"), one.flush, one.coordinator.channel().pause, one.coordinator.start):
        with pytest.raises(Fenced):
            call()


def test_fatal_error_of_another_library_is_wrapped(rig):
    one = rig()
    error = OSError("disk on fire")
    one.storage.gate("a").open(error)
    one.put("a")
    with pytest.raises(FlushFailed, match="OSError: disk on fire") as caught:
        one.flush().wait()
    assert caught.value.__cause__ is error


def test_levels_reached_before_a_fatal_error_stay_reached(rig):
    one = rig()
    first = one.put("a")
    one.flush().wait()
    one.storage.gate("b").open(Fenced("another process owns it"))
    second = one.put("b")
    with pytest.raises(Fenced):
        one.flush().wait()
    assert first.result() == 0
    second.wait(APPLIED)
    with pytest.raises(Fenced):
        first.wait(DURABLE)
    with pytest.raises(Fenced):
        one.coordinator.stop()
    assert one.watermarks() == (2, 1, 0)


def test_stop_does_not_wait_for_a_thread_stuck_in_the_flusher(rig, parts):
    one = rig(max_concurrent_flushes=2)
    stuck = one.storage.gate("a")
    one.put("a")
    one.flush()
    stuck.await_entry()
    one.storage.gate("b").open(Fenced("another process owns it"))
    one.put("b")
    one.flush()
    assert isinstance(parts.Outcome(one.coordinator.stop).join().error, Fenced)
    assert not stuck.opened.is_set()


def test_error_in_the_delta_itself_is_fatal(rig, parts):
    class Broken(parts.KeyValues):
        def size(self):
            raise ZeroDivisionError("size")

    from forebay.buffer.coordinator import WriteCoordinator

    coordinator = WriteCoordinator(Broken(), parts.Storage())
    coordinator.start()
    write = coordinator.channel().write(parts.Put("a"))
    with pytest.raises(FlushFailed, match="ZeroDivisionError"):
        write.wait(APPLIED)
    with pytest.raises(FlushFailed):
        coordinator.stop()


def test_fatal_error_beats_a_pause_that_waits(rig, parts):
    gate = parts.Gate()
    one = rig(before_apply=lambda put: gate.pass_through(), start=False)
    one.put("a")
    one.coordinator.start()
    gate.await_entry()
    channel = one.coordinator.channel()
    pausing = parts.Outcome(channel.pause)
    parts.eventually(lambda: channel.paused)
    gate.open(SystemExit("killed"))
    assert pausing.join().error is None
    with pytest.raises(FlushFailed):
        one.coordinator.stop()


def test_write_in_the_middle_of_its_apply_keeps_the_fatal_error_it_told(rig, parts):
    applying = parts.Gate()
    one = rig(before_apply=lambda put: applying.pass_through() if put.key == "b" else None)
    flushing = one.storage.gate("a")
    one.put("a")
    one.flush()
    flushing.await_entry()
    write = one.put("b")
    applying.await_entry()
    flushing.open(Fenced("another process owns it"))
    with pytest.raises(Fenced):
        write.wait(APPLIED)
    applying.open()
    one.coordinator._group.apply_thread.thread.join(parts.PATIENCE)
    with pytest.raises(Fenced):
        write.wait(APPLIED)
    assert one.watermarks() == (1, 0, 0)


async def await_it(handle):
    return await handle


def test_fatal_error_lets_go_of_every_write_that_waits(rig, parts):
    """The garbage collector does not track handles, so the queue must not keep them."""
    one = rig(channels=("default", "held"))
    gate = one.storage.gate("a")
    one.coordinator.channel("held").pause()
    puts = [parts.Put("parked"), parts.Put("queued")]
    kept = [weakref.ref(put) for put in puts]
    one.put("a")
    flush = one.flush()
    gate.await_entry()
    one.coordinator.channel("held").try_write(puts[0])
    one.put("b").wait(APPLIED)  # and the one before it was put aside
    one.coordinator.channel("default").pause()
    one.coordinator.channel("default").try_write(puts[1])
    del puts
    gate.open(Fenced("stop"))
    with pytest.raises(Fenced):
        flush.wait()
    parts.eventually(lambda: not any(ref() for ref in kept))
