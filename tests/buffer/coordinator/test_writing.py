"""Entering, ordering and applying writes."""

from __future__ import annotations

import gc
import threading

import pytest

from forebay.buffer.base.errors import Backpressure, Closed, InvalidInput, Timeout
from forebay.buffer.coordinator import ApplyFailed, CoordinatorConfig, Durability, WriteCoordinator

APPLIED, WRITTEN, DURABLE = Durability


def test_epochs_count_up_from_one(rig):
    one = rig()
    handles = [one.put(key) for key in "abc"]
    for handle in handles:
        handle.wait(APPLIED)
    assert [handle.epoch for handle in handles] == [1, 2, 3]


def test_epoch_is_unknown_until_the_write_is_applied(rig):
    one = rig(start=False)
    handle = one.put("a")
    assert handle.epoch is None
    assert not handle.done(APPLIED)


def test_writes_are_applied_in_order(rig):
    one = rig()
    for value in (1, 2, 3):
        last = one.put("a", value)
    one.flush()
    last.wait(WRITTEN)
    assert one.storage.flushed == [(range(1, 4), [("a", 0, 1), ("a", 1, 2), ("a", 2, 3)])]


def test_applied_watermark_follows_each_write(rig):
    one = rig()
    for epoch in (1, 2, 3):
        one.put("a").wait(APPLIED)
        assert one.watermarks() == (epoch, 0, 0)


def test_apply_error_reaches_its_handle_with_its_epoch(rig):
    one = rig()
    handle = one.put("a", refused=True)
    for level in Durability:
        with pytest.raises(ApplyFailed, match="apply error: a") as caught:
            handle.wait(level)
        assert caught.value.epoch == 1
        assert isinstance(caught.value.__cause__, ValueError)


def test_failed_apply_uses_its_epoch_and_leaves_the_others_alone(rig):
    one = rig()
    before, refused, after = one.put("a"), one.put("b", refused=True), one.put("c")
    one.flush().wait()
    assert [handle.epoch for handle in (before, refused, after)] == [1, 2, 3]
    assert one.storage.flushed == [(range(1, 4), [("a", 0, 0), ("c", 1, 0)])]
    assert after.result() == 1


def test_result_is_what_apply_returned(rig):
    one = rig()
    assert [one.put(key).result(durability=APPLIED) for key in "abc"] == [0, 1, 2]


def test_dropping_a_handle_cancels_nothing(rig):
    one = rig(start=False)
    one.put("a")
    gc.collect()
    one.coordinator.start()
    assert one.flush().result() == 1
    assert one.storage.rows == {"a": (0, 0)}


def test_handles_taken_before_the_start_work_after_it(rig):
    one = rig(start=False)
    write, flush = one.put("a"), one.flush()
    one.coordinator.start()
    write.wait(WRITTEN)
    assert flush.result() == 1


def test_starting_again_does_nothing(rig):
    one = rig()
    threads = set(threading.enumerate())
    one.coordinator.start()
    assert set(threading.enumerate()) <= threads
    assert one.put("a").result(durability=APPLIED) == 0


def test_starting_after_the_stop_is_refused(rig):
    one = rig()
    one.coordinator.stop()
    with pytest.raises(Closed):
        one.coordinator.start()


def test_unknown_channel_is_invalid_input(rig):
    with pytest.raises(InvalidInput, match="no channel 'other'; there are 'default'"):
        rig().coordinator.channel("other")


def test_coordinator_without_channels_is_invalid_input(parts):
    with pytest.raises(InvalidInput, match="at least one channel"):
        WriteCoordinator(parts.KeyValues(), parts.Storage(), channels=())


@pytest.mark.parametrize(
    "setting",
    [
        {"queue_capacity": 0},
        {"flush_interval": 0.0},
        {"flush_interval": float("nan")},
        {"flush_size": 0},
        {"max_concurrent_flushes": 0},
        {"max_cost": -1},
        {"view_capacity": 0},
    ],
)
def test_impossible_setting_is_invalid_input(setting):
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        CoordinatorConfig(**setting)


def test_channels_merge_into_one_order_of_arrival(rig):
    one = rig(start=False, channels=("x", "y"))
    handles = [one.put(key, channel=channel) for key, channel in zip("abcde", "xyyxy", strict=True)]
    one.coordinator.start()
    one.flush().wait()
    assert [handle.epoch for handle in handles] == [1, 2, 3, 4, 5]
    assert [key for key, _, _ in one.storage.flushed[0][1]] == list("abcde")


def test_capacity_is_counted_per_channel(rig):
    one = rig(start=False, channels=("x", "y"), queue_capacity=1)
    one.put("a", channel="x")
    one.put("b", channel="y")
    with pytest.raises(Backpressure):
        one.put("c", channel="x")


def test_paused_channel_waits_while_others_go_on(rig):
    one = rig(channels=("x", "y"))
    paused = one.coordinator.channel("x")
    paused.pause()
    held = one.put("a", channel="x")
    for number in range(50):
        one.put(f"b{number}", channel="y").wait(APPLIED)
    assert set(one.coordinator.view.current.data) == {f"b{number}" for number in range(50)}
    assert held.epoch is None
    paused.resume()
    held.wait(APPLIED)
    assert held.epoch == 51
    assert "a" in one.coordinator.view.current.data


def test_nothing_of_a_channel_is_applied_after_pause_returns(rig, parts):
    gate, applied = parts.Gate(), []

    def before_apply(put):
        if put.key == "a0":
            gate.pass_through()
        applied.append(put.key)

    one = rig(channels=("x", "y"), before_apply=before_apply, start=False)
    for number in range(5):
        one.put(f"a{number}", channel="x")
        one.put(f"b{number}", channel="y")
    one.coordinator.start()
    gate.await_entry()
    pausing = parts.Outcome(one.coordinator.channel("x").pause)
    parts.eventually(lambda: one.coordinator._state.interrupt)
    assert pausing.thread.is_alive(), "a write of the channel is being applied: pause must wait for it"
    gate.open()
    assert pausing.join().error is None
    applied_at_pause = [key for key in applied if key.startswith("a")]
    assert applied_at_pause == ["a0"]
    one.put("end", channel="y").wait(APPLIED)
    assert applied == ["a0", "b0", "b1", "b2", "b3", "b4", "end"]
    one.coordinator.channel("x").resume()
    one.coordinator.stop()
    assert [key for key in applied if key.startswith("a")] == ["a0", "a1", "a2", "a3", "a4"]


def test_pause_from_inside_an_apply_holds_back_the_next_write(rig):
    applied, channels = [], []

    def before_apply(put):
        applied.append(put.key)
        if put.key == "a":
            channels[0].pause()

    one = rig(start=False, before_apply=before_apply, channels=("x", "y"))
    channels.append(one.coordinator.channel("x"))
    one.put("a", channel="x")
    held = one.put("b", channel="x")
    one.coordinator.start()
    one.put("c", channel="y").wait(APPLIED)
    assert applied == ["a", "c"]
    channels[0].resume()
    held.wait(APPLIED)
    assert applied == ["a", "c", "b"]


def test_order_within_a_channel_survives_pauses(rig):
    one = rig(channels=("x", "y"), queue_capacity=10_000)
    channel = one.coordinator.channel("x")
    for number in range(2_000):
        one.put(f"{number}", number, channel="x")
        if number % 50 == 0:
            channel.pause()
        if number % 50 == 30:
            channel.resume()
    channel.resume()
    one.flush().wait()
    values = [value for _, puts in one.storage.flushed for _, _, value in puts]
    assert values == list(range(2_000))


def test_paused_writes_fill_the_capacity_of_their_channel(rig):
    one = rig(channels=("x", "y"), queue_capacity=2)
    channel = one.coordinator.channel("x")
    channel.pause()
    one.put("a", channel="x")
    one.put("b", channel="x")
    one.put("c", channel="y").wait(APPLIED)
    assert channel.accepted - channel.applied == 2
    with pytest.raises(Backpressure):
        one.put("d", channel="x")


@pytest.mark.parametrize("level", list(Durability))
def test_epoch_can_be_waited_for_without_a_handle_and_before_it_is_given(rig, parts, level):
    one = rig()
    waiting = parts.Outcome(lambda: one.coordinator.wait_for_epoch(2, level))
    one.put("a")
    one.put("b")
    one.flush(durable=True)
    assert waiting.join().error is None
    assert one.coordinator.watermark(level) == 2
    one.coordinator.wait_for_epoch(1, level, timeout=0)


def test_epoch_that_does_not_come_in_time_is_a_timeout(rig):
    with pytest.raises(Timeout, match="epoch 1 not written in 0 seconds"):
        rig().coordinator.wait_for_epoch(1, Durability.WRITTEN, timeout=0)


def test_stop_ends_the_wait_for_an_epoch_that_never_came(rig, parts):
    one = rig()
    waiting = parts.Outcome(lambda: one.coordinator.wait_for_epoch(2, Durability.APPLIED))
    one.put("a")
    one.coordinator.stop()
    assert isinstance(waiting.join().error, Closed)
