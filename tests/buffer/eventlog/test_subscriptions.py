"""Following a topic, in each home: rfcs/0009. There is one implementation; these hold it to what it promises."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from eventlog_homes import PATIENCE, Background, Home, fill, offsets, place, take

from forebay.buffer.base.errors import Closed, Corrupt, InvalidInput, Unavailable
from forebay.buffer.eventlog import Event, EventLog, Subscription
from forebay.buffer.eventlog.backend import Bounds
from forebay.buffer.eventlog.memory import MemoryBackend
from forebay.buffer.eventlog.subscription import READ_AHEAD
from forebay.testing import ManualClock

# History and live


def test_history_comes_first_and_then_what_is_appended(log: EventLog) -> None:
    fill(log, 2)
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 2) == [(0, 0), (0, 1)]
    fill(log, 1)
    record = next(records)
    assert (record.topic, record.partition, record.offset, record.event.payload) == ("jobs", 0, 2, 2)


def test_late_subscriber_still_has_the_whole_history(log: EventLog) -> None:
    for number in range(5):
        log.append("jobs", Event("tick", number))
    records, _ = log.subscribe("jobs", {0: 0})
    found = [next(records) for _ in range(5)]
    assert [(record.offset, record.event.payload) for record in found] == [(i, i) for i in range(5)]


def test_history_longer_than_any_depth_is_given_in_full(home: Home) -> None:
    log = home.open(depth=3)
    fill(log, 3 * READ_AHEAD + 1)
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 3 * READ_AHEAD + 1) == [(0, offset) for offset in range(3 * READ_AHEAD + 1)]


def test_two_subscribers_have_the_same_events_each_for_itself(log: EventLog) -> None:
    fill(log, 1)
    one, _ = log.subscribe("jobs", {0: 0})
    two, assignment = log.subscribe("jobs", {0: 0})
    fill(log, 2)
    assert take(one, 2) == [(0, 0), (0, 1)]
    assert take(two, 3) == [(0, 0), (0, 1), (0, 2)]
    assignment.remove(0)
    two.close()
    assert take(one, 1) == [(0, 2)]


def test_subscriber_waits_for_what_comes_and_is_woken(log: EventLog) -> None:
    log.create_topic("jobs", 1)
    records, _ = log.subscribe("jobs", {0: 0})
    waiting = Background(lambda: place(next(records)))
    fill(log, 1)
    assert waiting.result() == (0, 0)


def test_subscriber_sees_what_another_handle_appends(home: Home) -> None:
    fill(home.open(), 1)
    records, _ = home.open().subscribe("jobs", {0: 0})
    assert take(records, 1) == [(0, 0)]
    waiting = Background(lambda: place(next(records)))
    fill(home.open(), 1)
    assert waiting.result() == (0, 1)


def test_topic_may_be_made_after_it_was_subscribed_to(log: EventLog) -> None:
    records, _ = log.subscribe("jobs", {0: 0})
    assert records.poll(0) is None
    fill(log, 2)
    assert take(records, 2) == [(0, 0), (0, 1)]


def test_poll_returns_none_when_nothing_comes_in_time(log: EventLog) -> None:
    fill(log, 1)
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 1) == [(0, 0)]
    assert records.poll(0) is None
    assert records.poll(0.01) is None
    assert not records.ended


# Assignment


def test_only_assigned_partitions_come_each_from_its_start(log: EventLog) -> None:
    log.create_topic("jobs", 3)
    for partition, count in enumerate((3, 2, 1)):
        fill(log, count, partition=partition)
    records, assignment = log.subscribe("jobs", {0: 1, 1: 0})
    assert take(records, 4) == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert records.poll(0) is None
    assert assignment.assigned() == [0, 1]


def test_what_is_appended_to_other_partitions_never_comes(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    records, _ = log.subscribe("jobs", {0: 0})
    log.append("jobs", Event("skip"), partition=1)
    log.append("jobs", Event("keep"), partition=0)
    assert next(records).event.kind == "keep"
    assert records.poll(0) is None


def test_partition_added_gives_its_backlog_before_what_was_appended_after(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    fill(log, 3, partition=1)
    records, assignment = log.subscribe("jobs", {0: 0})
    assignment.add(1, 0)
    log.append("jobs", Event("new"), partition=1)
    assert take(records, 4) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert assignment.assigned() == [0, 1]


def test_partition_added_to_a_waiting_subscriber_is_given_at_once(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    fill(log, 1, partition=1)
    records, assignment = log.subscribe("jobs", {0: 0})
    waiting = Background(lambda: place(next(records)))
    assignment.add(1)
    assert waiting.result() == (1, 0)


def test_partition_removed_stops_coming(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    records, assignment = log.subscribe("jobs", {0: 0, 1: 0})
    assignment.remove(1)
    assert assignment.assigned() == [0]
    log.append("jobs", Event("gone"), partition=1)
    log.append("jobs", Event("here"), partition=0)
    assert next(records).event.kind == "here"
    assert records.poll(0) is None


def test_backlog_read_ahead_for_a_removed_partition_never_comes(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    fill(log, 10, partition=0)
    fill(log, 2, partition=1)
    records, assignment = log.subscribe("jobs", {0: 0, 1: 0})
    assert take(records, 1) == [(0, 0)]  # the other nine are read by now
    assignment.remove(0)
    assert take(records, 2) == [(1, 0), (1, 1)]
    assert records.poll(0) is None


def test_partition_added_again_starts_afresh(log: EventLog) -> None:
    fill(log, 5)
    records, assignment = log.subscribe("jobs", {0: 0})
    assert take(records, 2) == [(0, 0), (0, 1)]
    assignment.remove(0)
    assignment.add(0, 1)
    assert take(records, 4) == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_adding_twice_and_removing_what_is_not_there_change_nothing(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    fill(log, 2)
    records, assignment = log.subscribe("jobs", {0: 0})
    assert take(records, 1) == [(0, 0)]
    assignment.add(0, 0)
    assignment.remove(1)
    assignment.remove(99)
    assert take(records, 1) == [(0, 1)]
    assert records.poll(0) is None


def test_nothing_need_be_assigned_and_partitions_are_listed_in_order(log: EventLog) -> None:
    log.create_topic("jobs", 3)
    records, assignment = log.subscribe("jobs")
    assert (assignment.assigned(), records.poll(0)) == ([], None)
    for partition in (2, 0, 1):
        assignment.add(partition)
    assert assignment.assigned() == [0, 1, 2]


def test_nothing_below_a_start_beyond_the_end_comes(log: EventLog) -> None:
    fill(log, 2)
    records, _ = log.subscribe("jobs", {0: 4})
    fill(log, 2)
    assert records.poll(0) is None
    fill(log, 2)
    assert take(records, 2) == [(0, 4), (0, 5)]


@pytest.mark.parametrize("wrong", [-1, 1.5, "0", None])
def test_start_that_cannot_be_is_refused(log: EventLog, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        log.subscribe("jobs", {0: wrong})


# Ending


def test_closing_wakes_waiting_threads_and_ends_the_iteration(log: EventLog) -> None:
    records, assignment = log.subscribe("jobs", {0: 0})
    waiting = Background(lambda: list(records))
    records.close()
    assert waiting.result() == []
    assert assignment.assigned() == []
    with pytest.raises(Closed):
        assignment.add(0)


def test_closing_drops_what_was_read_ahead(log: EventLog) -> None:
    fill(log, 5)
    with log.subscribe("jobs", {0: 0})[0] as records:
        assert take(records, 1) == [(0, 0)]
    assert list(records) == []


def test_closing_the_log_ends_its_subscriptions(log: EventLog) -> None:
    fill(log, 1)
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 1) == [(0, 0)]
    waiting = Background(lambda: list(records))
    log.close()
    assert waiting.result() == []


def test_dropping_the_handle_does_not_stop_the_events(log: EventLog) -> None:
    """The reference's handle evicts its state when dropped; here there is none to evict."""
    records, assignment = log.subscribe("jobs", {0: 0})
    del assignment
    gc.collect()
    fill(log, 2)
    assert take(records, 2) == [(0, 0), (0, 1)]


def test_dropped_subscription_leaves_nothing_behind(log: EventLog) -> None:
    fill(log, 5)
    threads = threading.active_count()
    records, assignment = log.subscribe("jobs", {0: 0})
    assert take(records, 2) == [(0, 0), (0, 1)]
    remains = [weakref.ref(records), weakref.ref(assignment)]
    del records, assignment
    gc.collect()
    assert [remain() for remain in remains] == [None, None]
    assert threading.active_count() <= threads


def parts_of_subscriptions() -> int:
    """How many objects there are in memory that subscriptions are made of."""
    return sum(type(found).__module__ == Subscription.__module__ for found in gc.get_objects())


def test_subscriptions_that_come_and_go_leave_no_state_in_memory(log: EventLog) -> None:
    fill(log, 5)
    gc.collect()
    before = parts_of_subscriptions()
    for _ in range(3):
        records, assignment = log.subscribe("jobs", {0: 0})
        assert take(records, 2) == [(0, 0), (0, 1)]
        del records, assignment
    gc.collect()
    assert parts_of_subscriptions() == before


def test_subscription_that_was_closed_keeps_nothing_of_what_it_read(log: EventLog) -> None:
    fill(log, 5)
    records, assignment = log.subscribe("jobs", {0: 0})
    assert take(records, 1) == [(0, 0)]
    records.close()
    assert assignment.assigned() == []
    assert "partitions []" in repr(records)


# With await


def test_async_for_gives_the_same_and_a_cancelled_wait_takes_nothing(log: EventLog) -> None:
    fill(log, 2)

    async def follow() -> list[int]:
        records, _ = log.subscribe("jobs", {0: 0})
        found = [(await anext(records)).offset for _ in range(2)]
        waiting = asyncio.create_task(anext(records))  # type: ignore[arg-type]  # it is a coroutine
        await asyncio.sleep(0)  # it waits in a thread now
        waiting.cancel()
        await asyncio.to_thread(fill, log, 2)
        async for record in records:
            found.append(record.offset)
            if len(found) == 4:
                records.close()
        return found

    assert asyncio.run(follow()) == [0, 1, 2, 3]


# Trouble


class Troubled(MemoryBackend):
    """A home whose reads fail when told to, and where something can happen right after a look."""

    trouble: Exception | None = None
    after_look: Callable[[], object] | None = None

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        found = super().bounds(topic, partitions)
        then, self.after_look = self.after_look, None
        if then is not None:
            then()
        return found

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        if self.trouble is not None:
            raise self.trouble
        return super().read(topic, partition, first, limit)


def test_error_while_reading_is_raised_and_ends_the_iteration() -> None:
    backend = Troubled("memory://troubled-reading")
    log = EventLog(backend)
    fill(log, 3)
    records, _ = log.subscribe("jobs", {0: 0})
    backend.trouble = Unavailable("the store is away")
    with pytest.raises(Unavailable, match="away"):
        next(records)
    backend.trouble = None
    assert list(records) == []
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 3) == [(0, 0), (0, 1), (0, 2)]


def test_event_that_comes_between_the_look_and_the_wait_is_not_waited_for() -> None:
    class Restless(ManualClock):
        def wait_until(self, condition: threading.Condition, deadline: float | None) -> bool:
            raise AssertionError("it waits for what is there")

    backend = Troubled("memory://between-look-and-wait")
    log = EventLog(backend, clock=Restless())
    log.create_topic("jobs")
    records, _ = log.subscribe("jobs", {0: 0})
    backend.after_look = lambda: fill(log, 1)
    assert take(records, 1) == [(0, 0)]


def test_partition_removed_while_it_is_looked_at_neither_lags_nor_comes() -> None:
    backend = Troubled("memory://removed-while-looked-at")
    log = EventLog(backend, depth=2)
    log.create_topic("jobs", 2)
    records, assignment = log.subscribe("jobs", {0: 0, 1: 0})
    fill(log, 9)
    fill(log, 1, partition=1)
    backend.after_look = lambda: assignment.remove(0)
    assert take(records, 1) == [(1, 0)]
    assert records.poll(0) is None


def test_what_is_no_event_is_corrupt_and_says_where() -> None:
    backend = MemoryBackend("memory://no-event")
    backend.create("jobs", 1)
    backend.append("jobs", 0, [b'{"kind": 3}'])
    log = EventLog(backend)
    with pytest.raises(Corrupt, match="memory://no-event: topic jobs, partition 0, offset 0"):
        next(log.subscribe("jobs", {0: 0})[0])
    with pytest.raises(Corrupt, match="offset 0"):
        log.read_range("jobs")


def test_waiting_looks_less_and_less_often_while_nothing_comes() -> None:
    class Hasty(ManualClock):
        """A thread that waits on it finds that the time is over at once."""

        def wait_until(self, condition: threading.Condition, deadline: float | None) -> bool:
            assert deadline is not None
            self.advance(deadline - self.monotonic())
            return False

    looks: list[float] = []
    clock = Hasty()

    class Counting(MemoryBackend):
        polls = True

        def bounds(self, topic: str, partitions: Any) -> Any:
            looks.append(round(clock.monotonic(), 6))
            return super().bounds(topic, partitions)

    records, _ = EventLog(Counting("memory://counted-looks"), poll_interval=0.3, clock=clock).subscribe("jobs", {0: 0})
    looks.clear()
    assert records.poll(1.0) is None
    assert looks == [0.0, 0.05, 0.15, 0.35, 0.65, 0.95, 1.0]


# Many at once


def test_appends_adds_and_removes_from_many_threads_keep_every_partition_in_order(home: Home) -> None:
    """Whatever the interleaving: each time a partition is assigned its events come without gap or repeat."""
    log = home.open(depth=100_000)
    log.create_topic("jobs", 3)
    count = 30 if home.kind == "objects" else 150
    records, assignment = log.subscribe("jobs", {0: 0})

    def append(partition: int) -> None:
        for number in range(count):
            log.append("jobs", Event("tick", number), partition=partition)

    def reassign() -> None:
        for _ in range(count // 3):
            assignment.add(2, 0)
            assignment.remove(2)
        assignment.add(1, 0)

    workers = [Background(lambda p=p: append(p)) for p in range(3)] + [Background(reassign)]
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while len(found[0]) < count or len(found[1]) < count:
        record = records.poll(PATIENCE)
        assert record is not None
        assert record.event.payload == record.offset
        found[record.partition].append(record.offset)
    for worker in workers:
        worker.result()
    assert found[0] == found[1] == list(range(count))
    for before, after in pairwise(found[2]):
        assert after in (before + 1, 0), "in order, or from the start after it was added again"
    assert offsets(log.read_range("jobs", partition=2)) == list(range(count))


def test_nothing_is_said_where_nothing_was_skipped(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    fill(log, 3)
    with caplog.at_level(logging.WARNING, logger="forebay.eventlog"):
        records, _ = log.subscribe("jobs", {0: 0})
        take(records, 3)
    assert not caplog.records
