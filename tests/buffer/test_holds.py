"""Holds: rfcs/0005. What is held stays, whichever answer is lost; a hold that was lost is reported."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import pickle
import threading
import warnings
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from kinds import Kind, append_all
from patience import PATIENCE, wait_for

from forebay.buffer.base import names
from forebay.buffer.base.errors import (
    Closed,
    Corrupt,
    Fenced,
    InvalidInput,
    NotFound,
    Trimmed,
    Unavailable,
    Unsupported,
)
from forebay.buffer.either.holds import hold
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.holds import HeldRange, HeldUploads, keep_hold
from forebay.buffer.manifest import BelowFloor, Head, Manifest, Queue
from forebay.buffer.manifest.head import KEPT_LISTINGS
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.register import Limits
from forebay.buffer.read.descriptors import PIECE
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock

TTL = 300.0


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    kind.begin(store)
    append(store, 10)
    return store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def append(store: MemoryStore, count: int) -> None:
    queue = Queue(store)
    first = queue.read().next_sequence
    append_all(
        queue,
        [NewBatch(f"data/{i}", (), Facts(1, 1, 1, 0, 1000 * i, 1000 * i + 999)) for i in range(first, first + count)],
    )


def head_of(store: MemoryStore) -> Head:
    state = Queue(store).read()
    assert isinstance(state, Head)
    return state


def expire(store: MemoryStore) -> None:
    """What the collector does with holds that were not renewed in time."""
    Queue(store).change_head(
        lambda head: head.collect(point=0, dropped=0, expired=set(head.holds), floor=names.LOWEST, nodes={}),
        lambda _head: False,
    )


def hold_in(store: MemoryStore, hold_id: str) -> Hold:
    return head_of(store).holds[hold_id]


def trim(store: MemoryStore, point: int) -> int:
    """What the collector does with entries: never past a hold."""

    def change(head: Head) -> Head:
        held = [held.first_sequence for held in head.holds.values() if held.first_sequence is not None]
        return head.trim(min([point, *held]), {}).touch()

    return Queue(store).change_head(change, lambda _head: False).first_sequence


def renewing_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "forebay-renewals"}


def sequences(held: HeldRange, **settings: Any) -> list[int]:
    return [batch.sequence for batch in held.descriptors(**settings)]


# Taking and letting go


def test_hold_keeps_what_it_covers_from_being_trimmed_until_it_is_closed(
    store: MemoryStore, clock: ManualClock
) -> None:
    with hold(store, from_=3, purpose="nightly job", clock=clock) as held:
        kept = head_of(store).holds[held.hold_id]
        assert (kept.first_sequence, kept.purpose) == (3, "nightly job")
        assert (kept.ttl_ms, kept.renewals, kept.stamp_ms, kept.expires_ms) == (TTL * 1000, 0, None, 0)
        assert trim(store, 8) == 3
        assert sequences(held) == [3, 4, 5, 6, 7, 8, 9]
    assert head_of(store).holds == {}
    assert trim(store, 8) == 8


def test_plan_is_of_the_head_that_the_hold_made(store: MemoryStore) -> None:
    with hold(store) as held:
        append(store, 5)
        assert (held.first, held.last, len(held)) == (0, 9, 10)
        assert sequences(held) == list(range(10))
        assert sequences(held, first=4, limit=3) == [4, 5, 6]
        assert sequences(held, first=8, limit=30) == [8, 9]
        assert sequences(held, limit=0) == []
        for wrong in ({"first": -1}, {"limit": -1}):
            with pytest.raises(InvalidInput):
                held.descriptors(**wrong)


def test_batches_appended_while_a_hold_is_taken_are_in_its_plan(store: MemoryStore) -> None:
    class AppendedMeanwhile(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if not self.calls["replace"]:
                append(store, 5)
            return super().replace(key, data, version)

    with hold(AppendedMeanwhile(store)) as held:
        assert (held.first, held.last) == (0, 14)
        assert sequences(held) == list(range(15))


def test_plan_is_read_in_pieces(store: MemoryStore) -> None:
    append(store, 2 * PIECE)
    append(store, 2 * PIECE)
    append(store, 1)
    counting = FaultyStore(store)
    with hold(counting) as held:
        plan = held.descriptors()
        before = counting.calls["get"]
        assert next(plan).sequence == 0
        assert counting.calls["get"] == before + 1, "one segment, and not the rest"
        assert [batch.sequence for batch in plan] == list(range(1, 10 + 4 * PIECE + 1))


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize(
    ("from_", "upto", "first", "last"),
    [
        ("earliest", None, 0, 9),
        ("earliest", 4, 0, 4),
        (2, 99, 2, 9),
        ("latest", None, 10, 9),
        (5, 4, 5, 4),
        (moment(3.5), moment(6.5), 3, 6),
        (moment(3), moment(6), 3, 5),
        (moment(99), None, 10, 9),
    ],
)
def test_range_is_given_by_sequence_by_time_or_by_word(
    store: MemoryStore, from_: Any, upto: Any, first: int, last: int
) -> None:
    with hold(store, from_=from_, upto=upto) as held:
        assert (held.first, held.last) == (first, last)
        assert sequences(held) == list(range(first, last + 1))
        assert held, "an empty range is held as well"


@pytest.mark.parametrize(("from_", "upto"), [(11, None), (5, 3), ("latest", 3), (moment(5), moment(2)), (-1, None)])
def test_range_that_cannot_be_is_refused_and_nothing_is_held(store: MemoryStore, from_: Any, upto: Any) -> None:
    with pytest.raises(InvalidInput):
        hold(store, from_=from_, upto=upto)
    assert head_of(store).holds == {}


def test_hold_of_what_is_gone_says_where_to_start(store: MemoryStore) -> None:
    trim(store, 4)
    with pytest.raises(Trimmed) as caught:
        hold(store, from_=3)
    assert caught.value.first == 4
    hold(store, from_=4).close()


def test_hold_on_nothing_is_not_found_and_makes_no_buffer() -> None:
    nothing = MemoryStore("memory://nothing-to-hold")
    with pytest.raises(NotFound, match="its URL is wrong"):
        hold(nothing)
    assert list(nothing.list()) == []


def test_version_1_holds_nothing() -> None:
    store = MemoryStore("memory://hold-version-1")
    store.create("manifest", Manifest.empty("v1").to_bytes())
    with pytest.raises(Unsupported, match="migrate it first"):
        hold(store)


@pytest.mark.parametrize("ttl", [0, -1, math.inf, math.nan, 1e300, True, "300"])
def test_ttl_is_a_positive_finite_number_of_seconds(store: MemoryStore, ttl: Any) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        hold(store, ttl=ttl)
    with pytest.raises(InvalidInput, match="ttl"):
        HeldUploads(Queue(store), "a job", ttl=ttl)
    assert head_of(store).holds == {}


def test_ttl_of_less_than_a_millisecond_is_not_taken_for_a_hold_of_an_older_release(store: MemoryStore) -> None:
    with hold(store, ttl=1e-9, clock=ManualClock()) as held:
        assert hold_in(store, held.hold_id).ttl_ms == 1


def test_hold_that_cannot_be_planned_is_let_go(store: MemoryStore) -> None:
    append(store, 5 * KEPT_LISTINGS)
    append(store, 1)
    (segment,) = store.list("segments/")
    store.put(segment.key, b"damaged")
    # The first look at the times finds the newest entries alone, and the damage comes to light with the plan.

    class Grows(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            raise AssertionError("nothing is written before the range is known to be there")

    with pytest.raises(Corrupt):
        hold(Grows(store), from_=moment(1), upto=moment(2))
    assert head_of(store).holds == {}


def test_closing_again_does_nothing_and_a_closed_hold_plans_nothing(store: MemoryStore) -> None:
    held = hold(store)
    held.close()
    counting = head_of(store).revision
    held.close()
    assert head_of(store).revision == counting
    for use in (held.check, lambda: list(held.descriptors())):
        with pytest.raises(Closed):
            use()


def test_two_holds_of_one_buffer_know_nothing_of_each_other(store: MemoryStore) -> None:
    with hold(store, from_=5) as one:
        with hold(store, from_=2) as other:
            assert one.hold_id != other.hold_id
            assert trim(store, 9) == 2
        assert trim(store, 9) == 5
        one.check()


def test_forgotten_hold_warns_and_is_not_renewed_any_more(store: MemoryStore, clock: ManualClock) -> None:
    before = renewing_threads()
    held = hold(store, clock=clock)
    (thread,) = renewing_threads() - before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del held
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    clock.advance(TTL)  # the thread notices it when the next renewal is due
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [found.renewals for found in head_of(store).holds.values()] == [0]


def test_finalizer_of_a_forgotten_hold_waits_for_no_lock(store: MemoryStore) -> None:
    """A finalizer may run in a thread that holds a lock which the renewing thread needs: both would wait forever."""
    is_locked, released = threading.Event(), threading.Event()

    class KeepsTheLock(ManualClock):
        """The renewing thread calls it under its lock."""

        def wait_until(self, condition: threading.Condition, deadline: float | None) -> bool:
            is_locked.set()
            assert released.wait(PATIENCE)
            return super().wait_until(condition, deadline)

    clock = KeepsTheLock()
    held = [hold(store, clock=clock)]

    def forget() -> None:
        held.clear()
        gc.collect()

    forgetting = threading.Thread(target=forget, daemon=True)
    assert is_locked.wait(PATIENCE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forgetting.start()
        forgetting.join(PATIENCE)
        is_stuck = forgetting.is_alive()
        released.set()
        forgetting.join(PATIENCE)
    clock.advance(TTL)
    assert not is_stuck
    assert [warning for warning in caught if warning.category is ResourceWarning]


def test_child_process_does_not_let_go_of_its_parents_hold(store: MemoryStore) -> None:
    with hold(store) as held:
        child = os.fork()
        if child == 0:
            held.close()
            os._exit(0 if held.hold_id in head_of(store).holds else 1)
        assert os.waitpid(child, 0)[1] == 0
        held.check()


# Renewing


def test_hold_is_renewed_while_it_is_held(store: MemoryStore, clock: ManualClock) -> None:
    with hold(store, clock=clock) as held:
        for count in range(1, 6):
            clock.advance(TTL / 3)
            wait_for(lambda count=count: hold_in(store, held.hold_id).renewals == count)  # type: ignore[misc]
        held.check()


def test_renewal_that_finds_the_hold_gone_tells_at_every_use(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    held = hold(store, clock=clock)
    plan = held.descriptors()
    expire(store)
    clock.advance(TTL / 3)
    with caplog.at_level(logging.ERROR, "forebay.holds"):
        wait_for(lambda: "its job must stop" in caplog.text)
    for use in (held.check, lambda: next(plan), held.close):
        with pytest.raises(Fenced, match="run the job again under a new hold"):
            use()
    held.close()
    assert head_of(store).holds == {}, "a renewal never brings a hold back"


def test_job_that_slept_longer_than_its_hold_finds_out_before_it_goes_on(store: MemoryStore) -> None:
    """The renewing thread may not have run yet when the job wakes up."""

    class SlowThread(ManualClock):
        def wait_until(self, condition: Any, deadline: float | None) -> bool:
            return super().wait_until(condition, 1e9)

    clock = SlowThread()
    with pytest.raises(Fenced), hold(store, clock=clock) as held:
        clock.advance(TTL)
        held.check()  # nobody removed it meanwhile: it is renewed, and holds
        assert hold_in(store, held.hold_id).renewals == 1
        expire(store)
        clock.advance(TTL - 1)
        held.check()  # not due yet: nothing is read for it
        clock.advance(1)
        held.check()
        pytest.fail("the hold was gone")


def test_hold_that_expired_before_it_is_closed_is_told(store: MemoryStore) -> None:
    held = hold(store)
    expire(store)
    with pytest.raises(Fenced):
        held.close()
    held.close()


def test_error_of_the_block_is_not_hidden_by_an_expired_hold(store: MemoryStore) -> None:
    with pytest.raises(ZeroDivisionError), hold(store):
        expire(store)
        raise ZeroDivisionError


@pytest.mark.parametrize("raised", [Unavailable, OSError, SystemExit, asyncio.CancelledError])
def test_renewal_goes_on_after_the_store_was_out_of_reach(
    store: MemoryStore, clock: ManualClock, raised: type[BaseException]
) -> None:
    class Down(FaultyStore):
        down = False
        refused = 0

        def next_fault(self, kind: str) -> Any:
            if self.down:
                self.refused += 1
                raise raised("down")
            return super().next_fault(kind)

    faulty = Down(store)
    with hold(faulty, clock=clock) as held:
        faulty.down = True
        clock.advance(TTL / 3)
        wait_for(lambda: faulty.refused > 0)
        faulty.down = False

        def renewed() -> bool:
            clock.advance(1)
            return hold_in(store, held.hold_id).renewals > 0

        wait_for(renewed)
        held.check()


def test_fifty_holds_of_a_process_need_few_threads_which_end_with_the_last_hold(
    store: MemoryStore, clock: ManualClock
) -> None:
    before = renewing_threads()
    seen: set[threading.Thread] = set()

    class Watching(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            seen.update(renewing_threads() - before)
            return super().replace(key, data, version)

    watched = Watching(store)
    holds = [hold(watched, ttl=TTL, clock=clock) for _ in range(50)]
    for count in (1, 2, 3):
        clock.advance(TTL / 3)
        wait_for(lambda count=count: all(held.renewals == count for held in head_of(store).holds.values()))  # type: ignore[misc]
    for held in holds:
        held.close()
    # One renews and one waits. A thread that ends is still seen, and so is the one that comes after it.
    assert 1 <= len(seen) <= 4
    wait_for(lambda: not seen & renewing_threads())
    with hold(store, clock=clock) as held:  # they start again
        clock.advance(TTL / 3)
        wait_for(lambda: hold_in(store, held.hold_id).renewals == 1)


class Hanging(FaultyStore):
    """Writes wait until the test is over, once that is switched on."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.hangs = False
        self.hanging = threading.Event()
        self.released = threading.Event()

    def replace(self, key: str, data: Any, version: str) -> Any:
        if self.hangs:
            self.hanging.set()
            assert self.released.wait(PATIENCE)
        return super().replace(key, data, version)


@pytest.mark.parametrize("count", [1, 5])
def test_hold_whose_store_hangs_does_not_let_another_expire(store: MemoryStore, clock: ManualClock, count: int) -> None:
    before = renewing_threads()
    hanging = []
    for number in range(count):
        other = MemoryStore(f"memory://hangs-{number}-of-{count}")
        append(other, 1)
        hanging.append(Hanging(other))
    stuck = [hold(each, ttl=TTL, clock=clock) for each in hanging]
    healthy = [hold(store, ttl=TTL, clock=clock) for _ in range(20)]
    for each in hanging:
        each.hangs = True
    for _ in range(5):
        renewals = {hold_id: found.renewals for hold_id, found in head_of(store).holds.items()}
        clock.advance(TTL / 3)
        wait_for(hanging[0].hanging.is_set)
        clock.advance(TTL / 12)
        if count > 1:
            clock.advance(TTL / 12)
        wait_for(lambda: all(found.renewals > renewals[name] for name, found in head_of(store).holds.items()))  # noqa: B023
    wait_for(lambda: all(each.hanging.is_set() for each in hanging))
    wait_for(lambda: len(renewing_threads() - before) <= count + 2)
    for each in hanging:
        each.released.set()
    for held in (*healthy, *stuck):
        held.check()
        held.close()
    wait_for(lambda: not renewing_threads() - before)


def test_child_process_renews_its_own_holds(store: MemoryStore, clock: ManualClock) -> None:
    with hold(store, clock=clock):
        child = os.fork()
        if child == 0:
            try:
                own = hold(store, clock=clock)
                clock.advance(TTL / 3)
                wait_for(lambda: hold_in(store, own.hold_id).renewals == 1)
                own.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_renewal_clears_the_stamp_and_raises_the_counter(store: MemoryStore, clock: ManualClock) -> None:
    with hold(store, clock=clock) as held:
        stamp(store, held.hold_id, 5)
        held.renew()
        assert (hold_in(store, held.hold_id).renewals, hold_in(store, held.hold_id).stamp_ms) == (1, None)


def stamp(store: MemoryStore, hold_id: str, stamp_ms: int) -> None:
    """What the collector does with a hold whose counter it sees for the first time."""
    Queue(store).change_head(
        lambda head: head.collect(
            point=0, dropped=0, expired=(), floor=names.LOWEST, nodes={}, stamps={hold_id: stamp_ms}
        ),
        lambda _head: False,
    )


# Lost answers


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE])
@pytest.mark.parametrize("call", [0, 1, 2])
def test_lost_answer_to_taking_renewing_or_releasing_is_found_out(store: MemoryStore, fault: Fault, call: int) -> None:
    faulty = FaultyStore(store, {call: fault}, only={"replace"})
    held = hold(faulty, clock=ManualClock(), random=Random(1))
    held.renew()
    assert hold_in(store, held.hold_id).renewals == 1
    assert sequences(held) == list(range(10))
    held.close()
    faulty.land_late_requests()
    assert head_of(store).holds == {}, "a request that lands late brings nothing back"


def test_renewal_in_doubt_of_a_hold_that_was_expired_meanwhile_is_lost(store: MemoryStore) -> None:
    class ExpiredMeanwhile(FaultyStore):
        armed = False

        def get(self, key: str) -> Any:
            if self.armed:
                self.armed = False
                expire(store)
            return super().get(key)

    for fault in (Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP):
        faulty = ExpiredMeanwhile(store, {1: fault}, only={"replace"})
        held = hold(faulty, clock=ManualClock(), random=Random(1))
        faulty.armed = True
        with pytest.raises(Fenced):
            held.renew()
        assert head_of(store).holds == {}
        with pytest.raises(Fenced):
            held.close()


def test_renewal_and_expiry_at_the_same_instant_have_one_winner(store: MemoryStore) -> None:
    """The collector decided on what it read: a renewal in between makes its write fail, and the hold stays."""

    class RenewedFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                held.renew()
            return super().replace(key, data, version)

    held = hold(store, clock=ManualClock())
    stamp(store, held.hold_id, 5)

    def expire_if_due(head: Head) -> Head | None:
        due = {name for name, found in head.holds.items() if found.is_expired(10**15)}
        return head.collect(point=0, dropped=0, expired=due, floor=names.LOWEST, nodes={})

    Queue(RenewedFirst(store)).change_head(expire_if_due, lambda _head: False)
    held.check()
    assert set(head_of(store).holds) == {held.hold_id}
    held.close()


# Handing over


def test_hold_handed_over_stays_and_is_renewed_by_the_holder_of_its_ticket(
    store: MemoryStore, clock: ManualClock
) -> None:
    with hold(store, from_=3, clock=clock) as held:
        ticket = pickle.loads(pickle.dumps(held.hand_over()))
        with pytest.raises(Closed, match="was handed over"):
            held.check()
    counting = FaultyStore(store)
    with keep_hold(counting, ticket, clock=clock) as kept:
        kept.check()
        assert not counting.calls, "nothing is due yet"
        clock.advance(TTL / 3)
        wait_for(lambda: hold_in(store, ticket.hold_id).renewals == 1)
        kept.check()
    assert head_of(store).holds[ticket.hold_id].first_sequence == 3, "others may still keep it"


def test_many_who_keep_a_hold_write_no_more_than_one(store: MemoryStore, clock: ManualClock) -> None:
    ticket = hold(store, clock=clock).hand_over()
    stores = [FaultyStore(store) for _ in range(5)]
    keepers = [keep_hold(each, ticket, clock=clock) for each in stores]
    revision = head_of(store).revision
    clock.advance(TTL / 3)
    wait_for(lambda: all(each.calls["get"] for each in stores))
    for kept in keepers:
        kept.renew()
        kept.close()
    assert head_of(store).revision == revision + 1


def test_keeper_that_comes_late_renews_first_or_is_told_that_the_hold_is_gone(
    store: MemoryStore, clock: ManualClock
) -> None:
    ticket = hold(store, clock=clock).hand_over()
    clock.advance(2 * TTL)
    with keep_hold(store, ticket, clock=clock) as kept:
        kept.check()  # nobody had removed it: it is in force again
    assert hold_in(store, ticket.hold_id).renewals == 1
    expire(store)
    with keep_hold(store, ticket, clock=clock) as kept, pytest.raises(Fenced, match="run the job again"):
        kept.check()


def test_keeper_can_make_sure_of_a_hold_that_should_be_in_force(store: MemoryStore, clock: ManualClock) -> None:
    ticket = hold(store, clock=clock).hand_over()
    with keep_hold(store, ticket, clock=clock) as kept:
        kept.renew()
        expire(store)
        kept.check()  # by the ticket there is no need to look yet
        for look in (kept.renew, kept.check):
            with pytest.raises(Fenced):
                look()


def test_lost_hold_cannot_be_handed_over(store: MemoryStore, clock: ManualClock) -> None:
    held = hold(store, clock=clock)
    expire(store)
    with pytest.raises(Fenced):
        held.renew()
    with pytest.raises(Fenced):
        held.hand_over()
    with pytest.raises(Fenced):
        held.close()


# Uploads


def test_uploads_above_the_floor_may_be_listed_however_far_the_collector_would_go(store: MemoryStore) -> None:
    clock = ManualClock()
    uploads = HeldUploads(Queue(store), "a job", ttl=TTL, purpose="a job that writes", clock=clock)
    behind = ManualClock(0)
    location = f"data/{names.mint(behind, Random(1), above=uploads.floor())}.batch"
    late = names.at_time(clock.now_ms() + 10**9)
    Queue(store).change_head(
        lambda head: head.collect(point=0, dropped=0, expired=(), floor=late, nodes={}), lambda _head: False
    )
    assert head_of(store).gc_floor == uploads.floor()
    append_all(Queue(store), [NewBatch(location)])
    assert hold_in(store, "a job").purpose == "a job that writes"
    uploads.let_go()
    uploads.let_go()
    assert head_of(store).holds == {}


def test_floor_of_uploads_is_never_below_the_collectors(store: MemoryStore) -> None:
    floor = names.at_time(ManualClock().now_ms() + 10**6)
    Queue(store).change_head(
        lambda head: head.collect(point=10, dropped=0, expired=(), floor=floor, nodes={}), lambda _head: False
    )
    assert HeldUploads(Queue(store), "a job", ttl=TTL, clock=ManualClock()).floor() == floor
    with pytest.raises(BelowFloor):
        append_all(Queue(store), [NewBatch(f"data/{names.mint(ManualClock(), Random(1))}.batch")])


def test_floor_of_uploads_is_asked_for_again_after_a_look_that_failed(store: MemoryStore) -> None:
    failing = FaultyStore(store, {0: Fault.FAIL}, only={"get"})
    uploads = HeldUploads(Queue(failing, limits=Limits(max_attempts=1)), "a job", ttl=TTL, clock=ManualClock())
    with pytest.raises(Unavailable):
        uploads.floor()
    assert uploads.floor() > names.LOWEST
    assert hold_in(store, "a job").floor == uploads.floor()


def test_hold_for_uploads_makes_the_buffer_if_need_be() -> None:
    store = MemoryStore("memory://uploads-come-first")
    HeldUploads(Queue(store), "a job", ttl=TTL).floor()
    append_all(Queue(store), [NewBatch("data/a")])
    assert head_of(store).count == 1
