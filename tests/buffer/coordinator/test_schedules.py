"""Many threads, random schedules and random failures, against a model that is a few lines long."""

from __future__ import annotations

import random
import threading

import pytest

from forebay.buffer.base.errors import Backpressure, Closed, Fenced, ForebayError, Unavailable
from forebay.buffer.coordinator import ApplyFailed, DeltaRejected, Durability

APPLIED, WRITTEN, DURABLE = Durability


def assert_contiguous(ranges):
    ends = [1]
    for epochs in sorted(ranges, key=lambda epochs: epochs.start):
        assert epochs.start == ends[-1]
        ends.append(epochs.stop)
    return ends[-1] - 1


def test_eight_threads_keep_the_order_of_each_channel(rig, parts):
    names = tuple(f"c{number}" for number in range(8))
    each = 1_500
    one = rig(
        channels=names,
        queue_capacity=50,
        flush_size=2_000,
        max_concurrent_flushes=3,
        durable_flushes=True,
        max_cost=5_000,
    )
    handles = {name: [] for name in names}

    def produce(name):
        chance = random.Random(name)
        for number in range(each):
            handles[name].append(one.coordinator.channel(name).write(parts.Put(name, number), cost=10))
            if chance.random() < 0.01:
                one.flush(durable=chance.random() < 0.5)
            if chance.random() < 0.002:
                one.coordinator.channel(name).pause()
                one.coordinator.channel(name).resume()

    threads = [parts.Outcome(lambda name=name: produce(name)) for name in names]
    for thread in threads:
        assert thread.join().error is None
    one.coordinator.stop()

    assert assert_contiguous(one.storage.ranges) == each * len(names)
    epochs = sorted(handle.epoch for name in names for handle in handles[name])
    assert epochs == list(range(1, each * len(names) + 1))
    for name in names:
        own = [handle.epoch for handle in handles[name]]
        assert own == sorted(own)
        assert all(handle.done(DURABLE) for handle in handles[name])
    listed = [epochs for group in one.storage.storage_flushes for epochs in group]
    assert listed == sorted(one.storage.ranges, key=lambda epochs: epochs.start)
    for epochs, puts in one.storage.flushed:
        assert len(puts) == len(epochs)
    in_order = [put for _, puts in sorted(one.storage.flushed, key=lambda event: event[0].start) for put in puts]
    assert [number for _, number, _ in in_order] == list(range(each * len(names)))
    for name in names:
        assert [value for key, _, value in in_order if key == name] == list(range(each))
    assert one.coordinator.held_cost == 0
    assert one.watermarks() == (each * 8,) * 3


class Fate:
    """Decides what happens to each delta, and remembers it."""

    def __init__(self, seed, *, fatal):
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.fatal = fatal
        self.rejected_delta = []
        self.rejected_storage = []
        self.died = False

    def on_flush(self, frozen, epochs):
        with self.lock:
            draw = self.chance.random()
            if draw < 0.15:
                self.rejected_delta.append(epochs)
                raise DeltaRejected(Unavailable(f"{epochs}"))
            if self.fatal and draw > 0.9:
                self.died = True
                raise Fenced("fatal")

    def at_storage(self, epochs):
        with self.lock:
            draw = self.chance.random()
            if self.fatal and draw > 0.95:
                self.died = True
                raise Fenced("fatal")
            if draw < 0.1:
                self.rejected_storage.append(epochs)
                return Unavailable(f"{epochs}")
            return None


def run_schedule(rig, parts, seed, *, fatal):
    chance = random.Random(seed)
    names = ("x", "y", "z")
    one = rig(
        channels=names,
        start=chance.random() < 0.7,
        queue_capacity=chance.choice((3, 10, 200)),
        flush_size=chance.choice((None, 25, 60)),
        max_concurrent_flushes=chance.choice((1, 2, 4)),
        durable_flushes=chance.random() < 0.6,
        max_cost=chance.choice((None, 70)),
    )
    fate = Fate(seed, fatal=fatal)
    one.storage.on_flush = fate.on_flush
    one.storage.reject_at_storage = fate.at_storage
    accepted, flushes = [], []
    for number in range(150):
        name = chance.choice(names)
        draw = chance.random()
        try:
            if draw < 0.75:
                put = parts.Put(name, number, refused=chance.random() < 0.1)
                accepted.append(
                    (name, put, one.coordinator.channel(name).try_write(put, cost=chance.choice((0, 5, 10))))
                )
            elif draw < 0.85:
                flushes.append(one.flush(durable=chance.choice((None, True))))
            elif draw < 0.90:
                one.coordinator.channel(name).pause()
            elif draw < 0.96:
                one.coordinator.channel(name).resume()
            else:
                one.coordinator.start()
        except Fenced:
            assert fate.died
            break
        except Backpressure:
            pass
    stopping = parts.Outcome(one.coordinator.stop).join()
    return one, fate, accepted, flushes, stopping.error


def outcome(handle, level):
    try:
        handle.wait(level, timeout=0)
    except ForebayError as error:
        return type(error)
    return None


@pytest.mark.parametrize("seed", range(60))
def test_random_schedule_ends_as_the_model_says(rig, parts, seed):
    one, fate, accepted, flushes, error = run_schedule(rig, parts, seed, fatal=False)
    assert error is None or isinstance(error, Unavailable)

    # Every accepted write has an epoch of its own, in the order of its channel, and none is missing.
    assert sorted(handle.epoch for _, _, handle in accepted) == list(range(1, len(accepted) + 1))
    for channel in ("x", "y", "z"):
        own = [handle.epoch for name, _, handle in accepted if name == channel]
        assert own == sorted(own)

    # Each delta that was written or rejected holds exactly the writes of its epochs that were not refused.
    by_epoch = {handle.epoch: put for _, put, handle in accepted}
    for epochs, puts in one.storage.flushed:
        expected = [(by_epoch[epoch].key, by_epoch[epoch].value) for epoch in epochs if not by_epoch[epoch].refused]
        assert [(key, value) for key, _, value in puts] == expected

    # Storage hears of every written delta at most once, in order.
    listed = [epochs for group in one.storage.storage_flushes for epochs in group]
    assert listed == sorted(listed, key=lambda epochs: epochs.start)
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(one.storage.ranges)

    in_delta = {epoch for epochs in fate.rejected_delta for epoch in epochs}
    in_storage = {epoch for epochs in fate.rejected_storage for epoch in epochs}
    durable = one.coordinator.watermark(DURABLE)
    for _, put, handle in accepted:
        epoch = handle.epoch
        if put.refused:
            expected = [ApplyFailed] * 3
        elif epoch in in_delta:
            expected = [None, Unavailable, Unavailable]
        elif epoch in in_storage:
            expected = [None, None, Unavailable]
        else:
            expected = [None, None, None if epoch <= durable else Closed]
        assert [outcome(handle, level) for level in Durability] == expected
    assert one.watermarks()[:2] == (len(accepted), len(accepted))
    if one.coordinator._config.durable_flushes:
        assert durable == len(accepted)
    assert one.coordinator.held_cost == 0
    assert one.coordinator.view.frozen == ()
    assert all(flush.done() for flush in flushes)


@pytest.mark.parametrize("seed", range(60))
def test_random_schedule_with_fatal_errors_leaves_nobody_waiting(rig, parts, seed):
    one, fate, accepted, flushes, error = run_schedule(rig, parts, seed, fatal=True)
    if fate.died:
        assert isinstance(error, Fenced)
    written = {epoch for epochs in one.storage.ranges for epoch in epochs}
    listed = {epoch for group in one.storage.storage_flushes for epochs in group for epoch in epochs}
    for _, put, handle in accepted:
        ends = [outcome(handle, level) for level in Durability]
        if put.refused:
            assert set(ends) <= {ApplyFailed, Fenced}
        elif ends[2] is None:
            assert ends == [None, None, None]
            assert handle.epoch in listed
        elif ends[1] is None:
            assert handle.epoch in written
    assert all(flush.done() for flush in flushes)
    applied, written_to, durable = one.watermarks()
    assert durable <= written_to <= applied
