"""Code of the user's that a coordinator calls: whatever it raises, no thread dies in silence and everyone hears."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from forebay.buffer.coordinator import Durability, FlushFailed

APPLIED, WRITTEN, DURABLE = Durability

NO_ERRORS = [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit]
"""What `except Exception` does not catch."""


@pytest.mark.parametrize("raised", NO_ERRORS)
@pytest.mark.parametrize("level", list(Durability))
def test_callback_that_raises_no_error_is_logged_and_later_handles_settle(rig, parts, caplog, level, raised):
    one = rig(start=False, durable_flushes=True)

    def fail(_handle):
        raise raised("from a callback")

    first, second, told = one.put("a"), one.put("b"), []
    first.add_done_callback(fail, durability=level)
    second.add_done_callback(told.append, durability=level)
    with caplog.at_level(logging.ERROR):
        one.coordinator.start()
        one.flush()
        parts.eventually(lambda: told == [second])
    assert "a done callback failed" in caplog.text
    later = one.put("c")
    one.flush()
    later.wait(DURABLE, timeout=parts.PATIENCE)
    one.coordinator.stop(timeout=parts.PATIENCE)


def test_callback_that_is_called_at_once_raises_an_interrupt_to_its_owner(rig):
    one = rig()
    handle = one.put("a")
    handle.wait(APPLIED)

    def interrupt(_handle):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handle.add_done_callback(interrupt, durability=APPLIED)


@pytest.mark.parametrize("raised", [*NO_ERRORS, ValueError])
@pytest.mark.parametrize("part", ["size", "freeze", "reader", "flush_delta", "flush_storage", "storage_pace"])
def test_part_that_raises_ends_the_coordinator_and_everyone_hears_of_it(rig, parts, part, raised):
    def fail(*_):
        raise raised("from a part of the user's")

    class Failing(parts.KeyValues):
        def freeze(self):
            frozen, _ = super().freeze()
            successor = parts.KeyValues(self.next_number)
            if part == "reader":
                successor.reader = fail
            return frozen, successor

    one = rig(start=False, durable_flushes=True, storage_pace=fail if part == "storage_pace" else lambda: 0.0)
    delta = Failing()
    if part in ("size", "freeze"):
        setattr(delta, part, fail)
    if part in ("flush_delta", "flush_storage"):
        setattr(one.storage, part, fail)
    coordinator = type(one.coordinator)(
        delta,
        one.storage,
        one.coordinator._config,
        storage_pace=fail if part == "storage_pace" else lambda: 0.0,
        name="failing",
    )
    coordinator.start()
    handle = coordinator.channel().try_write(parts.Put("a"))
    with pytest.raises(FlushFailed, match=f"{raised.__name__}: from a part of the user's"):
        coordinator.flush().wait(timeout=parts.PATIENCE)
    with pytest.raises(FlushFailed):
        handle.wait(DURABLE, timeout=parts.PATIENCE)
    with pytest.raises(FlushFailed):
        coordinator.stop(timeout=parts.PATIENCE)
    parts.eventually(lambda: not [thread for thread in threading.enumerate() if "failing" in thread.name])


@pytest.mark.parametrize("raised", NO_ERRORS)
def test_apply_that_raises_no_error_ends_the_coordinator_and_everyone_hears_of_it(rig, parts, raised):
    def fail(_put):
        raise raised("from apply")

    one = rig(before_apply=fail)
    with pytest.raises(FlushFailed, match="from apply"):
        one.put("a").wait(APPLIED, timeout=parts.PATIENCE)
    with pytest.raises(FlushFailed):
        one.coordinator.stop(timeout=parts.PATIENCE)


def test_rejection_that_is_no_exception_ends_the_coordinator_and_everyone_hears_of_it(rig, parts):
    one = rig(durable_flushes=True)
    one.storage.flush_storage = lambda written: {stamped.epochs: "no" for stamped in written}
    handle = one.put("a")
    one.flush()
    with pytest.raises(FlushFailed):
        handle.wait(DURABLE, timeout=parts.PATIENCE)
    with pytest.raises(FlushFailed):
        one.coordinator.stop(timeout=parts.PATIENCE)
