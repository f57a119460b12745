"""A collector that dies, loses answers or meets a rival at any step harms nothing, and the next one finishes."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from kinds import append_all

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import BelowFloor
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS
from forebay.gc import Retention
from forebay.testing import Crash, Fault, FaultyStore

READ = KEPT_LISTINGS * 2 + 7
COUNT = KEPT_LISTINGS * (FANOUT + 3)


def prepare(pool: Any) -> list[str]:
    """A buffer in which every step of a collection has something to do."""
    pool.upload()
    pool.clock.advance(1.0)
    appended: list[str] = pool.append(COUNT, every=1.0)
    pool.group("etl", through=READ - 1)
    pool.group("old", through=3)
    Groups(pool.store, clock=pool.clock, random=pool.random).delete("old", force=True)
    pool.hold("job", first=1, ttl=1.0)
    pool.age()
    return appended


def assert_finished(pool: Any, appended: list[str]) -> None:
    assert pool.listed() == appended[READ:]
    assert pool.head.holds == {}
    assert pool.head.dropped == 0
    # A segment that is read in part stays whole, with the batches in it.
    assert pool.objects() == appended[KEPT_LISTINGS * 2 :]
    assert len(pool.objects("cursors")) == 1


def count_calls(pool: Any) -> int:
    store = FaultyStore(pool.store)
    pool.collector(store).collect_once(dry_run=True)
    # A dry run makes every call but the write and the three deletes.
    return sum(store.calls.values()) + 4


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER])
def test_collector_that_dies_at_any_call_leaves_the_rest_to_the_next_one(pool: Any, fault: Fault) -> None:
    appended = prepare(pool)
    died = 0
    for call in range(count_calls(pool) + 1):
        try:
            pool.collect(FaultyStore(pool.store, {call: fault}))
        except Crash:
            died += 1
        assert set(pool.listed()) >= set(appended[READ:])
    assert died > 5
    pool.collect()
    assert_finished(pool, appended)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER, Fault.DROP, Fault.LATE, Fault.OWN_RETRY, Fault.BUSY])
def test_fault_at_any_call_leaves_at_most_work_for_the_next_one(pool: Any, fault: Fault) -> None:
    appended = prepare(pool)
    before = [(found.key, pool.store.get(found.key).data) for found in pool.store.list()]
    for call in range(count_calls(pool)):
        restore(pool, before)
        store = FaultyStore(pool.store, {call: fault}, clock=pool.clock)
        try:
            report = pool.collect(store)
        except ForebayError:
            assert len(pool.objects()) == COUNT + 1, "nothing was deleted"
        else:
            assert report.trimmed == READ
        assert set(pool.listed()) >= set(appended[READ:])
        store.land_late_requests()
        pool.collect()
        assert_finished(pool, appended)


def restore(pool: Any, objects: list[tuple[str, Any]]) -> None:
    pool.store.delete([found.key for found in pool.store.list()])
    for key, data in objects:
        pool.store.put(key, data)


def test_write_whose_answer_was_lost_is_reported_and_counted_once(pool: Any) -> None:
    pool.append(8, every=100.0)
    pool.group("slow", through=1)
    pool.age(0)
    store = FaultyStore(pool.store, {0: Fault.LOSE_ANSWER}, only={"replace"}, clock=pool.clock)
    report = pool.collect(store, retention=Retention(max_age=350.0), grace=1000.0)
    assert store.calls["replace"] == 1
    assert (report.trimmed, report.dropped_unread) == (5, 3)
    assert pool.head.dropped == 3


def test_two_collectors_at_once_do_each_step_between_any_two_of_the_other(pool: Any) -> None:
    appended = prepare(pool)

    class RivalAt(FaultyStore):
        def __init__(self, at: int) -> None:
            super().__init__(pool.store)
            self._at = at

        def next_fault(self, kind: str) -> Any:
            if sum(self.calls.values()) == self._at:
                pool.collect()
            return super().next_fault(kind)

    before = [(found.key, pool.store.get(found.key).data) for found in pool.store.list()]
    for at in range(count_calls(pool)):
        restore(pool, before)
        pool.collect(RivalAt(at))
        assert_finished(pool, appended)


@pytest.mark.parametrize("seed", range(30))
def test_appends_acks_groups_and_collections_under_faults_never_lose_what_is_listed(pool: Any, seed: int) -> None:
    """A short random walk; the state machine in tests/scenarios goes further."""
    random = Random(seed)
    asleep: list[Any] = []
    for _ in range(40):
        match random.randrange(6):
            case 0 | 1:
                pool.append(random.randrange(1, 40), every=1.0)
            case 2:
                pool.group(f"g{random.randrange(3)}", through=random.randrange(pool.head.next_sequence + 1))
            case 3:
                asleep.append(pool.upload())
            case 4:
                pool.age(random.choice([1, 700, 5000]))
                store = FaultyStore.seeded(pool.store, random.randrange(10**9), rate=0.2, clock=pool.clock)
                try:
                    pool.collect(store)
                except ForebayError:
                    store.land_late_requests()
            case 5 if asleep:
                with suppress(BelowFloor):
                    append_all(pool.open_queue(), [asleep.pop(0)])
        pool.listed()
        head = pool.head
        assert head.lowest is None or head.lowest >= head.gc_floor
