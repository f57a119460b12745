"""Handles for threads, for callbacks and for coroutines."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
import weakref

import pytest

from forebay.buffer.base.errors import Timeout, Unavailable
from forebay.buffer.coordinator import DeltaRejected, Durability, WriteHandle
from forebay.testing import ManualClock

APPLIED, WRITTEN, DURABLE = Durability


def test_levels_are_ordered():
    assert APPLIED < WRITTEN < DURABLE


def test_wait_times_out_and_can_be_repeated(rig, parts):
    one = rig(clock=ManualClock())
    write = one.put("a")
    write.wait(APPLIED)
    waiting = parts.Outcome(lambda: write.wait(WRITTEN, timeout=2))
    parts.eventually(lambda: bool(one.clock._waiters))
    one.clock.advance(2)
    assert isinstance(waiting.join().error, Timeout)
    one.flush()
    write.wait(WRITTEN)


def test_wait_for_a_write_not_applied_times_out(rig):
    one = rig(start=False)
    with pytest.raises(Timeout, match="not applied in 0 seconds"):
        one.put("a").wait(APPLIED, timeout=0)


def test_default_level_is_configured(rig):
    one = rig(default_durability=APPLIED)
    assert one.put("a").result() == 0


def test_handle_can_be_awaited(rig):
    one = rig(default_durability=WRITTEN)

    async def produce():
        handles = [one.put(key) for key in "abc"]
        one.flush()
        return await asyncio.gather(*handles), await one.flush()

    assert asyncio.run(produce()) == ([0, 1, 2], 3)


def test_many_coroutines_are_woken_together(rig):
    one = rig(start=False, queue_capacity=2_000)

    async def produce():
        loop = asyncio.get_running_loop()
        wakes = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(*args, **kwargs):
            nonlocal wakes
            wakes += 1
            return call_soon_threadsafe(*args, **kwargs)

        loop.call_soon_threadsafe = counted
        tasks = [asyncio.ensure_future(wrapped(one.put(f"{number}"))) for number in range(1_000)]
        await asyncio.gather(*(asyncio.ensure_future(asyncio.sleep(0)) for _ in range(3)))
        one.coordinator.start()
        one.flush()
        return await asyncio.gather(*tasks), wakes

    results, wakes = asyncio.run(produce())
    assert results == list(range(1_000))
    assert wakes == 1


def test_cancelled_await_cancels_nothing(rig, parts):
    one = rig()

    async def produce():
        handle = one.put("a")
        task = asyncio.ensure_future(wrapped(handle))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        one.flush()
        return await handle

    assert asyncio.run(produce()) == 0


def test_loop_closed_while_a_handle_was_awaited_harms_nothing(rig):
    one = rig()
    handle = one.put("a")

    async def give_up():
        task = asyncio.ensure_future(wrapped(handle))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    one.flush().wait()
    assert handle.result() == 0


def test_awaiting_a_failed_write_raises(rig):
    one = rig()
    one.storage.gate("a").open(DeltaRejected(Unavailable("no")))

    async def produce():
        handle = one.put("a")
        one.flush()
        await handle

    with pytest.raises(Unavailable):
        asyncio.run(produce())


@pytest.mark.parametrize("level", list(Durability))
def test_callback_is_called_once_at_its_level(rig, parts, level):
    one = rig(start=False)
    handle, told = one.put("a"), []
    handle.add_done_callback(lambda done: told.append((done, done.done(level))), durability=level)
    assert told == []
    one.coordinator.start()
    one.flush(durable=True).wait()
    parts.eventually(lambda: bool(told))
    assert told == [(handle, True)]
    one.coordinator.stop()
    assert len(told) == 1


def test_callback_on_a_finished_handle_is_called_at_once(rig):
    one = rig()
    handle, told = one.put("a"), []
    handle.wait(APPLIED)
    handle.add_done_callback(told.append, durability=APPLIED)
    assert told == [handle]


def test_callback_is_told_of_a_refused_write(rig, parts):
    one = rig(start=False)
    handle, told = one.put("a", refused=True), []
    handle.add_done_callback(told.append, durability=DURABLE)
    one.coordinator.start()
    parts.eventually(lambda: told == [handle])


def test_callback_that_fails_is_logged_and_harms_nothing(rig, parts, caplog):
    one = rig(start=False)
    first, second, told = one.put("a"), one.put("b"), []
    first.add_done_callback(lambda _: 1 / 0, durability=APPLIED)
    second.add_done_callback(told.append, durability=APPLIED)
    with caplog.at_level(logging.ERROR):
        one.coordinator.start()
        parts.eventually(lambda: told == [second])
    assert "a done callback failed" in caplog.text
    one.flush().wait()


def test_callback_may_write(rig, parts):
    one = rig()
    more = []
    one.put("a").add_done_callback(lambda _: more.append(one.put("b")), durability=APPLIED)
    parts.eventually(lambda: bool(more))
    more[0].wait(APPLIED)


def test_each_waiter_gets_an_error_of_its_own(rig):
    one = rig()
    one.storage.gate("a").open(DeltaRejected(Unavailable("no")))
    handles = [one.put("a") for _ in range(3)]
    one.flush()
    depths = []
    for handle in handles * 3:
        with pytest.raises(Unavailable) as caught:
            handle.wait(WRITTEN)
        depths.append(sum(len(list(traceback.walk_tb(e.__traceback__))) for e in chain(caught.value)))
    assert len(set(depths)) == 1
    assert any("pass_through" in line for line in traceback.format_exception(caught.value)), "it says where it arose"


def test_kept_error_keeps_no_delta_in_memory(rig):
    class Payload(list):
        pass

    kept = []

    def reject(frozen, epochs):
        payload = Payload(frozen)
        kept.append(weakref.ref(payload))
        try:
            raise OSError("inner")
        except OSError as error:
            raise DeltaRejected(Unavailable("no")) from error

    one = rig()
    one.storage.on_flush = reject
    handle = one.put("a")
    one.flush()
    with pytest.raises(Unavailable):
        handle.wait(WRITTEN)
    gc.collect()
    assert kept[0]() is None


def test_handle_is_small():
    assert "__dict__" not in dir(WriteHandle)
    assert len([slot for kind in WriteHandle.__mro__ for slot in getattr(kind, "__slots__", ())]) <= 6


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__


async def wrapped(handle):
    return await handle
