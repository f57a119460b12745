"""Holds expire by the store's time: the collector stamps a counter of renewals, and removes what was not renewed since.

The pool's clock is the store's. Each holder has a clock of its own, which a test may set wrong. A holder whose clock is
never advanced renews nothing, as one that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import pytest
from patience import wait_for

from forebay.buffer.base.errors import Fenced
from forebay.buffer.either.holds import hold
from forebay.buffer.holds import Held, HeldRange, HeldUploads, keep_hold
from forebay.buffer.manifest.head import COUNTED_HOLDS
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.lease import Ticket
from forebay.gc import Collector
from forebay.testing import Fault, FaultyStore, ManualClock

TTL = 300.0
DAY = 86_400.0


def clock_that_is_wrong_by(pool: Any, seconds: float) -> ManualClock:
    return ManualClock(pool.clock.now_ms() + int(seconds * 1000))


@contextmanager
def held_by(pool: Any, clock: ManualClock, store: Any = None) -> Iterator[HeldRange]:
    """A hold on everything; whether it is lost at the end does not matter."""
    held = hold(store or pool.store, ttl=TTL, clock=clock, random=Random(3))
    try:
        yield held
    finally:
        with suppress(Fenced):
            held.close()


def renew(pool: Any, held: HeldRange, clock: ManualClock) -> None:
    """Time passes for the holder, whose thread renews the hold."""
    before = pool.head.holds[held.hold_id].renewals

    def is_renewed_or_lost() -> bool:
        found = pool.head.holds.get(held.hold_id)
        return found is None or found.renewals > before

    clock.advance(TTL / 3)
    wait_for(is_renewed_or_lost)


def fill(pool: Any) -> None:
    pool.append(4)
    pool.read(3)


# Whatever the holder's clock says


@pytest.mark.parametrize("wrong", [DAY, -DAY, 0.0])
def test_hold_of_a_killed_job_goes_a_time_to_live_after_the_next_collection(pool: Any, wrong: float) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, wrong)):
        pool.age(10)
        assert pool.collect().expired_holds == ()
        pool.age(TTL)
        report = pool.collect()
        assert len(report.expired_holds) == 1
        assert report.trimmed == 4
        assert pool.head.holds == {}


@pytest.mark.parametrize("wrong", [DAY, -DAY, 0.0])
def test_hold_that_is_renewed_stays_in_force(pool: Any, wrong: float) -> None:
    fill(pool)
    clock = clock_that_is_wrong_by(pool, wrong)
    with held_by(pool, clock) as held:
        for _ in range(12):
            pool.age(TTL / 3)
            renew(pool, held, clock)
            assert pool.collect().expired_holds == ()
            held.check()
        assert [batch.sequence for batch in held.descriptors()] == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [DAY, -DAY])
def test_hold_of_uploads_of_a_killed_job_lets_the_floor_go(pool: Any, wrong: float) -> None:
    HeldUploads(pool.queue, "a job", ttl=TTL, clock=clock_that_is_wrong_by(pool, wrong)).floor()
    for _ in range(2):
        pool.age(TTL)
        pool.collect()
    assert pool.head.holds == {}


def test_wall_clock_that_jumps_while_the_hold_is_held_changes_nothing(pool: Any) -> None:
    fill(pool)
    clock = clock_that_is_wrong_by(pool, 0)
    with held_by(pool, clock) as held:
        for jump in (DAY, -3 * DAY, DAY):
            clock.step_wall(jump)
            pool.age(TTL / 3)
            renew(pool, held, clock)
            pool.collect()
            held.check()


# Stamps


def test_hold_is_removed_only_a_time_to_live_after_its_stamp(pool: Any) -> None:
    """However long it was there before a collector came."""
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        pool.age(10 * TTL)
        stamped = pool.clock.now_ms()
        assert pool.collect().expired_holds == ()
        assert pool.head.holds[held.hold_id].stamp_ms == stamped
        pool.age(TTL - 0.001)
        assert pool.collect().expired_holds == ()
        pool.age(0.001)
        assert pool.collect().expired_holds == (held.hold_id,)


def test_hold_that_is_stamped_and_not_due_causes_no_write(pool: Any) -> None:
    pool.append(2)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)):
        pool.collect()
        before = pool.head
        assert pool.collect().expired_holds == ()
        assert pool.head == before


def test_hold_in_a_buffer_that_nobody_writes_does_not_outlive_its_time_to_live_by_the_grace_period(pool: Any) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        pool.collect()
        pool.clock.advance(TTL)  # less than the grace period, and nothing makes the store's time move
        before = pool.head
        assert pool.collector().collect_once(dry_run=True).expired_holds == (held.hold_id,)
        assert pool.head == before
        assert pool.collect().expired_holds == (held.hold_id,)


def test_collector_whose_clock_is_ahead_removes_no_hold_early(pool: Any) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        for _ in range(3):
            assert Collector(pool.store, clock=clock_that_is_wrong_by(pool, DAY)).collect_once().expired_holds == ()
        assert held.hold_id in pool.head.holds


@pytest.mark.parametrize("fault", [None, Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP])
def test_renewal_clears_the_stamp_even_if_its_answer_is_lost(pool: Any, fault: Fault | None) -> None:
    fill(pool)
    clock = clock_that_is_wrong_by(pool, 0)
    # Calls of the holder: it takes the hold, meets the collector's write, and renews.
    store = FaultyStore(pool.store, {} if fault is None else {2: fault}, only={"replace"})
    with held_by(pool, clock, store) as held:
        pool.age(TTL / 3)
        pool.collect()
        assert pool.head.holds[held.hold_id].stamp_ms is not None
        renew(pool, held, clock)
        assert pool.head.holds[held.hold_id].stamp_ms is None
        pool.age(TTL)
        assert pool.collect().expired_holds == (), "the time to live starts anew"
        pool.age(TTL)
        assert pool.collect().expired_holds == (held.hold_id,)


class Between(FaultyStore):
    """Something else happens before one call of a kind."""

    def __init__(self, inner: Any, kind: str, call: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._moment: tuple[str, int] | None = (kind, call)
        self._action = action

    def next_fault(self, kind: str) -> Any:
        if self._moment == (kind, self.calls[kind]):
            self._moment = None
            self._action()
        return super().next_fault(kind)


def test_hold_renewed_while_it_is_being_stamped_gets_no_old_stamp(pool: Any) -> None:
    fill(pool)
    clock = clock_that_is_wrong_by(pool, 0)
    with held_by(pool, clock) as held:

        def stall() -> None:
            pool.clock.step_wall(10 * TTL)  # its own time is not up
            renew(pool, held, clock)

        pool.collect(Between(pool.store, "replace", 0, stall))
        assert pool.head.holds[held.hold_id].stamp_ms is None, "the time that the collector knows is too old"
        assert pool.collect().expired_holds == ()
        assert pool.head.holds[held.hold_id].stamp_ms == pool.clock.now_ms()


def test_hold_taken_right_after_the_stores_time_was_read_gets_no_older_stamp(pool: Any) -> None:
    """In a quiet buffer that time may be minutes old, longer than the hold lives."""
    fill(pool)
    taken: list[HeldRange] = []

    def take() -> None:
        pool.clock.advance(500)
        taken.append(hold(pool.store, ttl=TTL, clock=clock_that_is_wrong_by(pool, 0)))

    pool.collect(Between(pool.store, "get", 0, take))
    (found,) = pool.head.holds.values()
    assert found.stamp_ms == pool.clock.now_ms()
    taken[0].close()


def test_stamp_that_lies_in_the_future_is_set_anew(pool: Any) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        pool.age(DAY)  # the store's clock is wrong
        pool.collect()
        pool.clock.step_wall(-DAY)
        pool.age(1)
        pool.collect()
        assert pool.head.holds[held.hold_id].stamp_ms == pool.clock.now_ms()
        pool.age(TTL)
        assert pool.collect().expired_holds == (held.hold_id,)


@pytest.mark.parametrize("call", range(8))
def test_two_collectors_agree_on_one_stamp(pool: Any, call: int) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        pool.age(1)
        stamps: list[int | None] = []

        def rival() -> None:
            pool.collect()
            stamps.append(pool.head.holds[held.hold_id].stamp_ms)
            pool.clock.advance(1)

        kinds = ("list", "get", "get_if_changed", "replace")
        pool.collect(Between(pool.store, kinds[call % 4], call // 4, rival))
        found = pool.head.holds[held.hold_id]
        assert found.stamp_ms is not None
        assert not stamps or found.stamp_ms == stamps[0], "the first stamp stays"
        pool.age(TTL)
        assert pool.collect().expired_holds == (held.hold_id,)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE])
def test_stamp_whose_answer_is_lost_is_found_or_written_again(pool: Any, fault: Fault) -> None:
    fill(pool)
    pool.collect()  # from now on there is nothing to write but the stamp
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        store = FaultyStore(pool.store, {0: fault}, only={"replace"})
        pool.collect(store)
        store.land_late_requests()
        assert pool.head.holds[held.hold_id].stamp_ms is not None


@pytest.mark.parametrize("call", range(3))
def test_renewal_that_races_with_the_removal_wins_or_is_told(pool: Any, call: int) -> None:
    """Before each write of the holder's last renewals the collector removes the hold: it never comes back."""
    fill(pool)
    clock = clock_that_is_wrong_by(pool, 0)

    def remove() -> None:
        pool.age(TTL)
        pool.collect()
        pool.age(TTL)
        pool.collect()

    store = Between(pool.store, "replace", 1 + call, remove)
    with held_by(pool, clock, store) as held:
        for _ in range(call + 1):
            renew(pool, held, clock)
        wait_for(lambda: held.hold_id not in pool.head.holds)
        with pytest.raises(Fenced):
            held.close()
    assert pool.head.holds == {}


# Holds of older releases, and dry runs


def test_hold_of_an_older_release_still_expires_by_its_own_clock(pool: Any) -> None:
    fill(pool)
    old = Hold(1, None, pool.clock.now_ms() + 60_000, "older")
    pool.queue.change_head(lambda head: head.with_hold("old", old), lambda head: "old" in head.holds)
    assert COUNTED_HOLDS not in pool.head.required_features, "older releases know it"
    pool.age(59)
    assert pool.collect().expired_holds == ()
    assert pool.head.holds == {"old": old}, "it needs no stamp"
    pool.age(1)
    assert pool.collect().expired_holds == ("old",)


def test_required_feature_stays_when_the_hold_is_gone(pool: Any) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)):
        assert COUNTED_HOLDS in pool.head.required_features
    pool.age()
    pool.collect()
    assert COUNTED_HOLDS in pool.head.required_features


def test_dry_run_stamps_nothing_and_says_which_holds_would_go(pool: Any) -> None:
    fill(pool)
    with held_by(pool, clock_that_is_wrong_by(pool, 0)) as held:
        pool.age(10 * TTL)
        before = pool.head
        assert pool.collector().collect_once(dry_run=True).expired_holds == ()
        assert pool.head == before
        pool.collect()
        pool.age(TTL)
        before = pool.head
        assert pool.collector().collect_once(dry_run=True).expired_holds == (held.hold_id,)
        assert pool.head == before


# Shared holds


@contextmanager
def kept_by(pool: Any, tickets: list[Ticket], clock: ManualClock) -> Iterator[list[tuple[Held, FaultyStore]]]:
    stores = [FaultyStore(pool.store) for _ in tickets]
    random = Random(5)
    kept = [keep_hold(store, ticket, clock=clock, random=random) for store, ticket in zip(stores, tickets, strict=True)]
    try:
        yield list(zip(kept, stores, strict=True))
    finally:
        for each in kept:
            each.close()


def looks(stores: list[FaultyStore]) -> list[int]:
    return [store.calls["get"] + store.calls["get_if_changed"] for store in stores]


def test_hundred_keepers_of_one_hold_write_hardly_more_than_one(pool: Any) -> None:
    fill(pool)
    clock = clock_that_is_wrong_by(pool, DAY)
    ticket = hold(pool.store, ttl=TTL, clock=clock).hand_over()
    with kept_by(pool, [ticket] * 100, clock) as keepers:
        for count in range(1, 7):
            for _ in range(4):  # the jitter spreads the looks over the last quarter of each third
                clock.advance(TTL / 12)
                pool.age(TTL / 12)
            wait_for(lambda count=count: min(looks([store for _, store in keepers])) >= count)  # type: ignore[misc]
            assert pool.collect().expired_holds == ()
        for held, _ in keepers:
            held.check()
        renewals = pool.head.holds[ticket.hold_id].renewals
        assert 3 <= renewals <= 9, "in twice its time to live; one alone makes 6"


def test_keepers_go_on_when_the_one_that_renewed_is_gone(pool: Any) -> None:
    fill(pool)
    clock = clock_that_is_wrong_by(pool, 0)
    ticket = hold(pool.store, ttl=TTL, clock=clock).hand_over()
    other = clock_that_is_wrong_by(pool, -DAY)
    with kept_by(pool, [ticket], other) as [(late, _)], kept_by(pool, [ticket], clock) as [(first, _)]:
        clock.advance(TTL / 3)
        wait_for(lambda: pool.head.holds[ticket.hold_id].renewals >= 1)
        first.close()
        before = pool.head.holds[ticket.hold_id].renewals
        for _ in range(2):
            late.check()
            other.advance(TTL / 3)
        wait_for(lambda: pool.head.holds[ticket.hold_id].renewals > before)
        late.check()


@pytest.mark.parametrize("wrong", [DAY, -DAY])
def test_keeper_whose_clock_disagrees_with_the_tickets_looks_before_it_goes_on(pool: Any, wrong: float) -> None:
    fill(pool)
    ticket = hold(pool.store, ttl=TTL, clock=clock_that_is_wrong_by(pool, 0)).hand_over()
    pool.queue.change_head(lambda head: head.without_hold(ticket.hold_id), lambda head: not head.holds)
    with kept_by(pool, [ticket], clock_that_is_wrong_by(pool, wrong)) as [(kept, _)], pytest.raises(Fenced):
        kept.check()


@pytest.mark.parametrize("wrong", [0.0, DAY, -DAY])
def test_job_of_short_tasks_keeps_its_hold_longer_than_its_time_to_live(pool: Any, wrong: float) -> None:
    """None of them waits long enough to see the counter stand still: they renew what the collector has stamped."""
    fill(pool)
    ticket = hold(pool.store, ttl=TTL, clock=clock_that_is_wrong_by(pool, 0)).hand_over()
    writes = pool.head.revision
    for _ in range(20):
        pool.age(TTL / 4)
        assert pool.collect().expired_holds == ()
        for _ in range(3):
            with kept_by(pool, [ticket], clock_that_is_wrong_by(pool, wrong)) as [(kept, _)]:
                kept.check()
    assert pool.head.holds[ticket.hold_id].renewals <= 20, "one for each collection at most, not for each task"
    assert pool.head.revision - writes <= 3 * 20 + 2
