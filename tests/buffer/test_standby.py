"""Standbys of a group: rfcs/0005's story of owners, step by step. A takeover needs an owner that is gone.

The cursor knows nothing of what the buffer holds, so these run on bytes alone.
"""

from __future__ import annotations

from random import Random

import pytest

from forebay.buffer.base.errors import Fenced, ForebayError, Unavailable, Unknown
from forebay.buffer.base.process import Process, this_process
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Cursor, GroupReader, Groups, cursor_key
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.envelope import unpack
from forebay.buffer.manifest.unnamed_reader import UnnamedReader
from forebay.buffer.standby import HEARTBEAT_SECONDS, TAKEOVER_SECONDS, Standby
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import WRITE_FAULTS, Crash, Fault, FaultyStore, ManualClock

PAUSE = 2.0
WEB = Process("web-1", 4711, 1_700_000_000_000)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    Queue(store).append([NewBatch(f"data/{number}") for number in range(1000)])
    return store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def open_owner(store: ObjectStore, clock: ManualClock, seed: int = 1) -> Consumer:
    return Consumer(store, group="etl", clock=clock, random=Random(seed))


def take_over(store: ObjectStore, standby: Standby, clock: ManualClock, seed: int = 2) -> Consumer:
    return Consumer(store, group="etl", check_claim=standby.check_claim, clock=clock, random=Random(seed))


def wait_until_free(standby: Standby, clock: ManualClock) -> float:
    """Look every two seconds, and return after how many of them the group may be taken over."""
    for look in range(1000):
        if standby.look(PAUSE):
            return look * PAUSE
        clock.advance(PAUSE)
    pytest.fail("it never took over")


def cursor_bytes(store: ObjectStore) -> bytes:
    head = Queue(store).read()
    assert isinstance(head, Head)
    return bytes(store.get(cursor_key("etl", head.groups["etl"].generation)).data)


def cursor_of(store: ObjectStore) -> Cursor:
    return unpack(cursor_bytes(store), Cursor, "cursor")


# When a group may be taken over


def test_owner_that_was_killed_is_gone_after_thirty_seconds_without_a_change(
    store: MemoryStore, clock: ManualClock
) -> None:
    open_owner(store, clock)
    assert wait_until_free(Standby(store, "etl", clock), clock) == TAKEOVER_SECONDS


def test_owner_that_closed_is_gone_at_once(store: MemoryStore, clock: ManualClock) -> None:
    owner = open_owner(store, clock)
    standby = Standby(store, "etl", clock)
    assert not standby.look(PAUSE)
    owner.close()
    assert standby.look(PAUSE)


def test_group_that_does_not_exist_or_was_never_opened_is_free_at_once(store: MemoryStore, clock: ManualClock) -> None:
    standby = Standby(store, "etl", clock)
    assert standby.look(PAUSE)
    GroupReader(Queue(store), "etl")
    assert standby.look(PAUSE)


def test_owner_that_is_idle_for_an_hour_keeps_its_group(store: MemoryStore, clock: ManualClock) -> None:
    owner, standby = open_owner(store, clock), Standby(store, "etl", clock)
    for _ in range(1800):
        owner.show_alive(HEARTBEAT_SECONDS)
        assert not standby.look(PAUSE)
        clock.advance(PAUSE)
    owner.next_descriptors(1)


def test_owner_that_only_acknowledges_keeps_its_group_and_writes_no_heartbeat(
    store: MemoryStore, clock: ManualClock
) -> None:
    owner, standby = open_owner(store, clock), Standby(store, "etl", clock)
    for number in range(200):
        owner.ack_through(owner.next_descriptors(1)[0].sequence)
        for _ in range(4):
            owner.show_alive(HEARTBEAT_SECONDS)
            assert not standby.look(PAUSE)
            clock.advance(PAUSE)
        assert cursor_of(store).number == number + 2, "the claim, and one write for each acknowledgement"


def test_time_before_a_sign_of_life_does_not_count(store: MemoryStore, clock: ManualClock) -> None:
    owner, standby = open_owner(store, clock), Standby(store, "etl", clock)
    for _ in range(10):
        assert not standby.look(PAUSE)
        clock.advance(PAUSE)
    owner.show_alive(HEARTBEAT_SECONDS)
    assert wait_until_free(standby, clock) == TAKEOVER_SECONDS


class Outage(FaultyStore):
    """A store that can be cut off."""

    is_out = False

    def next_fault(self, kind: str) -> Fault | None:
        super().next_fault(kind)
        return Fault.FAIL if self.is_out else None


def test_outage_of_the_store_is_no_reason_to_take_over(store: MemoryStore, clock: ManualClock) -> None:
    open_owner(store, clock)
    outage = Outage(store)
    standby = Standby(outage, "etl", clock)
    for _ in range(14):
        assert not standby.look(PAUSE)
        clock.advance(PAUSE)
    outage.is_out = True
    for _ in range(100):
        with pytest.raises(Unavailable):
            standby.look(PAUSE)
        clock.advance(PAUSE)
    outage.is_out = False
    assert wait_until_free(standby, clock) == 4.0, "26 seconds were spanned by successful reads before the outage"


def test_owner_that_comes_back_after_an_outage_keeps_its_group(store: MemoryStore, clock: ManualClock) -> None:
    outage = Outage(store)
    owner, standby = open_owner(outage, clock), Standby(outage, "etl", clock)
    for _ in range(14):
        assert not standby.look(PAUSE)
        clock.advance(PAUSE)
    outage.is_out = True
    clock.advance(1000)
    with pytest.raises(Unavailable):
        standby.look(PAUSE)
    outage.is_out = False
    assert not standby.look(PAUSE)
    owner.show_alive(HEARTBEAT_SECONDS)
    assert wait_until_free(standby, clock) == TAKEOVER_SECONDS


def test_standby_that_was_stopped_itself_counts_no_more_than_two_pauses_of_it(
    store: MemoryStore, clock: ManualClock
) -> None:
    open_owner(store, clock)
    standby = Standby(store, "etl", clock)
    assert not standby.look(PAUSE)
    clock.advance(3600)
    assert wait_until_free(standby, clock) == TAKEOVER_SECONDS - 2 * PAUSE


def test_time_that_reads_take_does_not_count(store: MemoryStore, clock: ManualClock) -> None:
    """Nobody knows at which moment of a slow read the store looked."""

    class Slow(FaultyStore):
        def next_fault(self, kind: str) -> Fault | None:
            clock.advance(20)
            return super().next_fault(kind)

    open_owner(store, clock)
    assert wait_until_free(Standby(Slow(store), "etl", clock), clock) == TAKEOVER_SECONDS


# Who has it


def test_owner_is_named(store: MemoryStore, clock: ManualClock) -> None:
    open_owner(store, clock)
    standby = Standby(store, "etl", clock)
    standby.look(PAUSE)
    assert standby.owner == str(this_process(clock))
    assert Groups(store).describe("etl").owner == this_process(clock)


def test_owner_of_an_older_release_is_not_known(store: MemoryStore, clock: ManualClock) -> None:
    GroupReader(Queue(store), "etl").claim()
    standby = Standby(store, "etl", clock)
    standby.look(PAUSE)
    assert standby.owner == "a process that is not known"
    assert Groups(store).describe("etl").alive
    assert Groups(store).describe("etl").owner is None


def test_group_that_was_let_go_has_no_owner(store: MemoryStore, clock: ManualClock) -> None:
    open_owner(store, clock).close()
    standby = Standby(store, "etl", clock)
    standby.look(PAUSE)
    assert standby.owner == ""
    assert Groups(store).describe("etl").owner is None


def test_fence_names_the_process_that_took_over(store: MemoryStore) -> None:
    first = GroupReader(Queue(store), "etl")
    claim = first.claim()
    GroupReader(Queue(store), "etl").claim(WEB)
    with pytest.raises(Fenced, match=r"took over group etl in process web-1/4711 since 2023-11-14T22:13:20\+00:00"):
        first.ack(claim, 3)


def test_fence_of_the_unnamed_consumer_names_the_process_that_took_over(store: MemoryStore) -> None:
    first = UnnamedReader(Queue(store))
    claim = first.claim()
    UnnamedReader(Queue(store)).claim(WEB)
    with pytest.raises(Fenced, match="opened this buffer in process web-1/4711 since 2023"):
        first.ack(claim, 3)


# Taking over


def test_takeover_is_refused_once_the_owner_has_written(store: MemoryStore, clock: ManualClock) -> None:
    owner, standby = open_owner(store, clock), Standby(store, "etl", clock)
    wait_until_free(standby, clock)
    owner.show_alive(HEARTBEAT_SECONDS)
    before = cursor_bytes(store)
    with pytest.raises(Fenced, match="is in use"):
        take_over(store, standby, clock)
    assert cursor_bytes(store) == before
    owner.next_descriptors(1)


@pytest.mark.parametrize("how", ["killed", "closed", "never made"])
def test_of_two_standbys_one_takes_over_and_the_other_watches_it(
    store: MemoryStore, clock: ManualClock, how: str
) -> None:
    if how != "never made":
        owner = open_owner(store, clock)
        if how == "closed":
            owner.close()
    first, second = Standby(store, "etl", clock), Standby(store, "etl", clock)
    while not (first.look(PAUSE) and second.look(PAUSE)):
        clock.advance(PAUSE)
    winner = take_over(store, first, clock)
    before = cursor_bytes(store)
    with pytest.raises(Fenced):
        take_over(store, second, clock, seed=3)
    assert cursor_bytes(store) == before
    second.start_again()
    assert not second.look(PAUSE)
    winner.next_descriptors(1)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_any_fault_of_the_takeovers_write_ends_with_one_owner(
    store: MemoryStore, clock: ManualClock, fault: Fault
) -> None:
    old = open_owner(store, clock)
    faulty = FaultyStore(store, {0: fault}, only={"replace"}, clock=clock)
    standby = Standby(faulty, "etl", clock)
    wait_until_free(standby, clock)
    try:
        new = take_over(faulty, standby, clock)
    except Unavailable:
        assert fault is Fault.FAIL
        new = take_over(faulty, standby, clock)
    faulty.land_late_requests()
    assert cursor_of(store).epoch == old.epoch + 1 == new.epoch
    new.ack_through(new.next_descriptors(1)[0].sequence)
    with pytest.raises(Fenced):
        old.next_descriptors(1)


def test_takeover_whose_answer_was_lost_is_not_made_over_another_one(store: MemoryStore, clock: ManualClock) -> None:
    """The write is lost. Before the standby looks again, the owner gives a sign of life."""

    class Overtaken(FaultyStore):
        def replace(self, key: str, data: bytes, version: str):  # type: ignore[no-untyped-def,override]
            outcome = super().replace(key, data, version)
            owner.show_alive(HEARTBEAT_SECONDS)
            return outcome

    owner = open_owner(store, clock)
    faulty = Overtaken(store, {0: Fault.DROP}, only={"replace"})
    standby = Standby(faulty, "etl", clock)
    wait_until_free(standby, clock)
    with pytest.raises(Fenced):
        take_over(faulty, standby, clock)
    assert cursor_of(store).epoch == owner.epoch
    owner.next_descriptors(1)


@pytest.mark.parametrize("crashes", [False, True], ids=["goes on", "dies"])
def test_owner_that_shows_life_before_any_store_call_of_a_takeover_keeps_its_group_or_is_fenced(
    store: MemoryStore, clock: ManualClock, crashes: bool
) -> None:
    """And if the standby dies there, the group has the same owner, or one that the next standby replaces."""

    class Alive(FaultyStore):
        at = 0
        fenced: bool | None = None

        def next_fault(self, kind: str) -> Fault | None:
            number = sum(self.calls.values())
            super().next_fault(kind)
            if number != self.at:
                return None
            try:
                owner.show_alive(0.0)
            except Fenced:
                self.fenced = True
            else:
                self.fenced = False
            return Fault.CRASH if crashes else None

    for at in range(20):
        if at:
            Groups(store, clock=clock).delete("etl", force=True)
        owner = open_owner(store, clock, seed=100 + at)
        standby = Standby(store, "etl", clock)
        wait_until_free(standby, clock)
        watched = Alive(store)
        watched.at = at
        try:
            new = take_over(watched, standby, clock, seed=200 + at)
        except (Fenced, Crash):
            new = None
        if watched.fenced is None:
            assert new is not None
            assert at > 2, "a takeover makes more calls"
            return
        if watched.fenced:
            assert crashes or new is not None, "the claim came first"
        else:
            assert new is None, f"call {at}: it took over from an owner that had just shown life"
            owner.next_descriptors(1)
    pytest.fail("a takeover has more than 20 calls")


def test_owner_that_was_paused_is_fenced_and_changes_nothing(store: MemoryStore, clock: ManualClock) -> None:
    owner, standby = open_owner(store, clock), Standby(store, "etl", clock)
    found = owner.next_descriptors(5)
    wait_until_free(standby, clock)
    new = take_over(store, standby, clock)
    before = cursor_bytes(store)
    for step in (
        lambda: owner.show_alive(HEARTBEAT_SECONDS),
        lambda: owner.next_descriptors(1),
        lambda: owner.plan([found[-1].sequence]),
        lambda: owner.ack_through(found[-1].sequence),
        owner.check_owned,
    ):
        with pytest.raises(Fenced):
            step()
    owner.close()
    assert cursor_bytes(store) == before
    new.next_descriptors(1)


def test_group_that_was_reset_meanwhile_is_watched_anew(store: MemoryStore, clock: ManualClock) -> None:
    open_owner(store, clock)
    standby = Standby(store, "etl", clock)
    wait_until_free(standby, clock)
    Groups(store, clock=clock).reset("etl", 5, force=True)
    reader = open_owner(store, clock, seed=5)
    with pytest.raises(Fenced):
        take_over(store, standby, clock)
    standby.start_again()
    assert wait_until_free(standby, clock) == TAKEOVER_SECONDS
    reader.next_descriptors(1)


def test_sign_of_life_is_told_from_a_first_look_and_from_an_owner_that_closed(
    store: MemoryStore, clock: ManualClock
) -> None:
    owner, standby = open_owner(store, clock), Standby(store, "etl", clock)
    standby.look(PAUSE)
    assert not standby.saw_life
    clock.advance(HEARTBEAT_SECONDS)
    owner.show_alive(HEARTBEAT_SECONDS)
    standby.look(PAUSE)
    assert standby.saw_life
    owner.close()
    standby.look(PAUSE)
    assert not standby.saw_life


# The heartbeat


def test_heartbeat_is_due_ten_seconds_after_the_last_write(store: MemoryStore, clock: ManualClock) -> None:
    owner = open_owner(store, clock)
    clock.advance(4)
    owner.ack_through(owner.next_descriptors(1)[0].sequence)
    before = cursor_of(store)
    clock.advance(9)
    assert owner.show_alive(HEARTBEAT_SECONDS) == 14.0
    assert cursor_of(store) == before
    clock.advance(1)
    assert owner.show_alive(HEARTBEAT_SECONDS) == 24.0
    after = cursor_of(store)
    assert after.number == before.number + 1
    assert (after.epoch, after.claim_id, after.acked, after.owner) == (1, before.claim_id, 0, before.owner)


def test_closed_or_unnamed_consumer_has_no_heartbeat(store: MemoryStore, clock: ManualClock) -> None:
    owner = open_owner(store, clock)
    owner.close()
    before = cursor_bytes(store)
    assert owner.show_alive(HEARTBEAT_SECONDS) is None
    assert cursor_bytes(store) == before
    assert Consumer(store, clock=clock).show_alive(HEARTBEAT_SECONDS) is None


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_any_fault_of_a_heartbeat_leaves_an_owner_that_was_seen(
    store: MemoryStore, clock: ManualClock, fault: Fault
) -> None:
    GroupReader(Queue(store), "etl")
    faulty = FaultyStore(store, {0: fault}, only={"replace"}, clock=clock)
    owner, standby = open_owner(faulty, clock), Standby(store, "etl", clock)
    assert faulty.calls["replace"] == 0, "its claim creates the cursor"
    standby.look(PAUSE)
    clock.advance(HEARTBEAT_SECONDS)
    try:
        owner.show_alive(HEARTBEAT_SECONDS)
    except Unavailable:
        assert fault is Fault.FAIL
        owner.show_alive(HEARTBEAT_SECONDS)
    faulty.land_late_requests()
    standby.look(PAUSE)
    assert standby.saw_life
    owner.ack_through(owner.next_descriptors(1)[0].sequence)


def test_heartbeat_whose_answer_was_lost_before_a_takeover_is_fenced(store: MemoryStore, clock: ManualClock) -> None:
    class Overtaken(FaultyStore):
        def replace(self, key: str, data: bytes, version: str):  # type: ignore[no-untyped-def,override]
            outcome = super().replace(key, data, version)
            open_owner(self.inner, clock, seed=9)
            return outcome

    GroupReader(Queue(store), "etl")
    owner = open_owner(Overtaken(store, {0: Fault.LOSE_ANSWER}, only={"replace"}), clock)
    clock.advance(HEARTBEAT_SECONDS)
    with pytest.raises(Fenced):
        owner.show_alive(HEARTBEAT_SECONDS)


# A claim that may be refused


def test_refusal_ends_a_claim_and_changes_nothing(store: MemoryStore, clock: ManualClock) -> None:
    class Refused(ForebayError):
        pass

    def refuse(_found: object) -> None:
        raise Refused

    open_owner(store, clock)
    before = cursor_bytes(store)
    with pytest.raises(Refused):
        Consumer(store, group="etl", check_claim=refuse)
    assert cursor_bytes(store) == before


def test_claim_in_doubt_that_is_then_refused_is_unknown_only_while_it_may_land(
    store: MemoryStore, clock: ManualClock
) -> None:
    """The check fails for another reason while the first write may still arrive."""

    class Refused(ForebayError):
        pass

    calls = 0

    def refuse_later(_found: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Refused

    open_owner(store, clock)
    faulty = FaultyStore(store, {0: Fault.DROP}, only={"replace"})
    with pytest.raises(Unknown):
        Consumer(faulty, group="etl", check_claim=refuse_later, clock=clock)
