"""The interleavings that the design warns of, each as a short story (rfcs/0005 and 0006).

`Between` lets something happen just before one request of a process: that is where the other process comes in. Every
store here is a `WatchedStore`, so all invariants are checked after every write, besides what each story asserts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from kinds import Kind

from forebay.buffer.base import names
from forebay.buffer.base.errors import Fenced, Trimmed, Unknown
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.holds import HeldRange
from forebay.buffer.manifest import BelowFloor, Queue, head
from forebay.buffer.manifest.register import Limits
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector
from forebay.testing import Fault, FaultyStore, ManualClock
from forebay.testing.watched import WatchedStore

GRACE = 600.0
YEAR_2099_MS = 4_070_908_800_000


class Between(FaultyStore):
    """A store in which something happens just before the n-th request of a kind, which may then fail as well."""

    def __init__(
        self, inner: ObjectStore, kind: str, at: int, happens: Callable[[], object], fault: Fault | None = None
    ) -> None:
        super().__init__(inner)
        self._awaited = kind
        self._left = at
        self._happens = happens
        self._fault = fault

    def next_fault(self, kind: str) -> Fault | None:
        if kind != self._awaited:
            return None
        self._left -= 1
        if self._left != -1:
            return None
        self._happens()
        return self._fault


def nothing() -> None:
    """Only the fault."""


class Story:
    """A buffer of either kind, its clock, and the hands that do things to it."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.clock = ManualClock()
        self.random = Random(name)
        memory = MemoryStore(f"memory://story-{name}", clock=self.clock)
        self.store = WatchedStore(memory)
        self.kind = kind
        kind.begin(self.store)
        self.schemas = self.queue().read().schemas

    @property
    def head(self) -> head.Head:
        assert self.store.head is not None
        return self.store.head

    def queue(self, store: ObjectStore | None = None, **settings: Any) -> Queue:
        return Queue(store or self.store, clock=self.clock, random=self.random, **settings)

    def upload(self, *, clock: ManualClock | None = None, above: str = names.LOWEST) -> NewBatch:
        location = f"data/{names.mint(clock or self.clock, self.random, above=above)}.batch"
        return self.kind.upload(self.store, location, [b"x"])

    def append(self, queue: Queue, *batches: NewBatch, number: int | None = None) -> range:
        return queue.append(batches, number=number, schemas=self.schemas)

    def fill(self, count: int) -> list[NewBatch]:
        batches = [self.upload() for _ in range(count)]
        self.append(self.queue(), *batches)
        return batches

    def consumer(self, group: str | None = None, store: ObjectStore | None = None) -> Consumer:
        return Consumer(store or self.store, group=group, clock=self.clock, random=self.random)

    def collector(self, store: ObjectStore | None = None, clock: ManualClock | None = None) -> Collector:
        return Collector(store or self.store, grace=GRACE, clock=clock or self.clock, random=self.random)

    def read_all(self, group: str | None = None) -> Consumer:
        consumer = self.consumer(group)
        found = consumer.next_descriptors(1000)
        consumer.ack_through(found[-1].sequence)
        return consumer


@pytest.fixture
def story(request: pytest.FixtureRequest, kind: Kind) -> Story:
    return Story(request.node.name, kind)


# Claims


def test_two_equal_claims_at_the_same_instant_leave_one_owner(story: Story) -> None:
    story.fill(2)
    rival: list[Consumer] = []
    late = Between(story.store, "replace", 0, lambda: rival.append(story.consumer()), Fault.OWN_RETRY)

    consumer = story.consumer(store=late)  # both have read epoch 0, and both write epoch 1

    assert story.head.owner is not None
    assert (rival[0].epoch, consumer.epoch, story.head.epoch) == (1, 2, 2)
    assert consumer.next_descriptors(1)[0].sequence == 0
    with pytest.raises(Fenced):
        rival[0].next_descriptors(1)


def test_claim_whose_answer_is_lost_is_not_taken_for_a_rivals_of_the_same_epoch(story: Story) -> None:
    story.fill(2)
    rival: list[Consumer] = []
    dropping = Between(story.store, "replace", 0, lambda: rival.append(story.consumer("etl")), Fault.DROP)
    story.consumer("etl").close()

    consumer = story.consumer("etl", store=dropping)

    assert consumer.epoch == 3
    assert rival[0].epoch == 2
    with pytest.raises(Fenced):
        rival[0].next_descriptors(1)
    assert len(consumer.next_descriptors(5)) == 2


@pytest.mark.parametrize("group", [None, "etl"])
def test_ack_that_was_recorded_before_another_claimed_is_not_told_as_one_that_was_not(
    story: Story, group: str | None
) -> None:
    """Found by the simulation: it was told as fenced, with nothing changed, and had moved the frontier."""
    story.fill(3)
    losing = Between(story.store, "replace", 1, nothing, Fault.LOSE_ANSWER)  # the first one is a claim or the group
    looks = Between(losing, "get", 1 if group is None else 2, lambda: story.consumer(group))
    consumer = story.consumer(group, store=looks)
    consumer.next_descriptors(3)

    with pytest.raises(Unknown):
        consumer.ack_through(1)  # applied, then another consumer claims, then it looks

    assert story.consumer(group).next_descriptors(3)[0].sequence == 2
    with pytest.raises(Fenced):
        consumer.ack_through(1)


# Sealing and uploading


def test_sealer_that_stalls_over_a_sweep_seals_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "KEPT_LISTINGS", 1)
    story.consumer()  # makes the manifest, if rows have not made it
    slow_clock = ManualClock(story.clock.now_ms() - 10_000_000)
    # The segment is stored; then, before the append that would list it, a collector raises the floor over its name.
    stalling = Between(story.store, "replace", 2, lambda: story.collector().collect_once())
    sealer = Queue(stalling, clock=slow_clock, random=story.random)
    story.append(sealer, story.upload(), story.upload())
    stalled = story.upload()

    story.append(sealer, stalled)

    assert story.head.refs == (), "a segment below the floor was listed"
    assert [entry.location for entry in story.head.tail][-1] == stalled.location
    story.append(sealer, story.upload())
    assert len(story.head.refs) == 1
    story.collector().collect_once()
    assert len(story.queue().descriptors(0, 10)) == 4


def test_producer_asleep_between_upload_and_append_over_a_sweep_uploads_again(story: Story) -> None:
    story.fill(1)
    asleep = story.upload()
    story.read_all()
    story.clock.advance(GRACE * 2)
    story.fill(1)  # the store's time goes on
    story.collector().collect_once()
    assert asleep.location in story.store.deleted

    with pytest.raises(BelowFloor) as refused:
        story.append(story.queue(), asleep)
    story.append(story.queue(), story.upload(clock=ManualClock(0), above=refused.value.floor))

    assert story.head.next_sequence == 3


def test_put_that_lands_after_its_time_out_is_only_garbage(story: Story) -> None:
    story.fill(1)
    late = Between(story.store, "put", 0, nothing, Fault.LATE)
    key = f"data/{names.mint(story.clock, story.random)}.batch"
    with pytest.raises(Unknown):
        late.put(key, b"x")
    story.read_all()
    story.clock.advance(GRACE * 2)
    story.fill(1)
    story.collector().collect_once()

    late.land_late_requests()

    assert key in {found.key for found in story.store.list("data/")}
    assert story.store.place_of(key) is None
    story.collector().collect_once()
    assert key not in {found.key for found in story.store.list("data/")}


# Appends in doubt


def test_append_applied_consumed_trimmed_and_then_found_out_is_there_once(story: Story) -> None:
    story.fill(1)
    losing = Between(story.store, "replace", 1, nothing, Fault.LOSE_ANSWER)  # the first one registers the writer
    writer = story.queue(Between(losing, "get", 2, lambda: consume_and_collect(story)))
    batch = story.upload()

    assert story.append(writer, batch) == range(1, 2)

    assert story.head.count == 0, "it was consumed and trimmed before the writer looked"
    assert story.store.listed.count(batch.location) == 1


def consume_and_collect(story: Story) -> None:
    story.read_all()
    story.collector().collect_once()


def test_writer_forgotten_with_an_append_in_doubt_is_told_that_nobody_knows(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_WRITERS", 2)

    def others_come() -> None:
        story.fill(1)
        story.fill(1)

    losing = Between(story.store, "replace", 1, nothing, Fault.LOSE_ANSWER)  # the first one registers the writer
    writer = story.queue(Between(losing, "get", 2, others_come))
    story.fill(1)
    batch = story.upload()

    with pytest.raises(Unknown):
        story.append(writer, batch)

    assert story.store.listed.count(batch.location) == 1, "it was applied, and not again"
    assert story.append(writer, story.upload()) == range(4, 5), "the writer does not go on with other batches"


def test_restarted_producer_whose_predecessors_append_lands_late_repeats_nothing(story: Story) -> None:
    story.fill(1)
    late = Between(story.store, "replace", 1, nothing, Fault.LATE)
    predecessor = story.queue(late, writer_id="loader", limits=Limits(max_attempts=1))
    with pytest.raises(Unknown):
        story.append(predecessor, story.upload(), number=5)
    successor = story.queue(writer_id="loader")
    assert successor.resume() == 0

    late.land_late_requests()  # calls 1 to 5 are durable now, and the successor would repeat them with call 6

    with pytest.raises(Fenced):
        story.append(successor, story.upload(), number=6)
    again = story.queue(writer_id="loader")
    assert again.resume() == 5
    story.append(again, story.upload(), number=6)
    assert story.head.writers[again.writer_id].number == 6


def test_producer_of_a_name_does_not_set_back_the_number_of_a_faster_one(story: Story) -> None:
    faster = story.queue(writer_id="loader")
    # The slower one has read a manifest that does not know the name, and is about to register it.
    slower = story.queue(
        Between(story.store, "get", 1, lambda: story.append(faster, story.upload(), number=7)), writer_id="loader"
    )
    story.fill(1)

    with pytest.raises(Fenced):
        story.append(slower, story.upload(), number=1)

    assert story.head.writers[faster.writer_id].number == 7
    assert Producer(story.store, writer_id="loader", clock=story.clock, random=story.random).last_number == 7


# Holds


def hold_from(sequence: int, store: ObjectStore) -> HeldRange:
    """A hold that no thread renews, because its clock stands still: it is renewed when the story says so."""
    return hold(store, from_=sequence, ttl=100, clock=ManualClock(), random=Random(7))


def test_hold_renewed_while_it_is_being_expired_stays(story: Story) -> None:
    story.fill(3)
    held = hold_from(1, story.store)
    story.collector().collect_once()  # it stamps the hold
    story.clock.advance(200)
    story.fill(1)
    story.read_all()
    renewing = Between(story.store, "replace", 0, held.renew)  # it has decided to remove it

    report = story.collector(renewing).collect_once()

    assert report.expired_holds == ()
    assert story.head.first_sequence == 1
    assert [batch.sequence for batch in held.descriptors()] == [1, 2]
    held.close()


def test_hold_expired_while_it_is_being_renewed_is_lost_and_says_so(story: Story) -> None:
    story.fill(3)
    expiring = Between(story.store, "replace", 1, lambda: story.collector().collect_once())
    held = hold_from(1, expiring)
    story.collector().collect_once()  # it stamps the hold
    story.clock.advance(200)
    story.fill(1)
    story.read_all()

    with pytest.raises(Fenced):
        held.renew()

    assert story.head.first_sequence == 4
    with pytest.raises(Fenced):
        held.close()


def test_hold_taken_while_a_trim_is_decided_stops_the_trim(story: Story) -> None:
    story.fill(4)
    story.read_all()
    kept: list[HeldRange] = []
    taking = Between(
        story.store,
        "replace",
        0,
        lambda: kept.append(hold_from(1, story.store)),
    )

    story.collector(taking).collect_once()

    assert story.head.first_sequence == 1
    assert [batch.sequence for batch in kept[0].descriptors()] == [1, 2, 3]
    kept[0].close()


# Groups


def test_group_deleted_and_made_again_begins_anew_and_fences_its_old_consumer(story: Story) -> None:
    story.fill(2)
    before = story.read_all("etl")
    Groups(story.store, clock=story.clock, random=story.random).delete("etl", force=True)

    again = story.consumer("etl")

    with pytest.raises(Fenced):
        before.next_descriptors(1)
    assert [batch.sequence for batch in again.next_descriptors(5)] == [0, 1]


def test_cursor_of_a_group_made_again_survives_the_sweep_of_the_one_before(story: Story) -> None:
    story.fill(3)
    story.read_all("etl")
    groups = Groups(story.store, clock=story.clock, random=story.random)
    groups.delete("etl", force=True)
    # The collector has trimmed by a head without the group, and is about to list cursors.
    again = Between(story.store, "list", 3, lambda: story.consumer("etl").next_descriptors(1))

    story.collector(again).collect_once()

    assert [found.key for found in story.store.list("cursors/")] == [
        f"cursors/etl/{story.head.groups['etl'].generation}"
    ]


def test_reset_against_a_trim_keeps_what_the_group_goes_back_to(story: Story) -> None:
    story.fill(4)
    story.read_all("etl")
    groups = Groups(story.store, clock=story.clock, random=story.random)
    resetting = Between(story.store, "replace", 0, lambda: groups.reset("etl", 1, force=True))

    story.collector(resetting).collect_once()  # decided to trim all four, before the group went back

    assert story.head.first_sequence == 1
    assert [batch.sequence for batch in story.consumer("etl").next_descriptors(5)] == [1, 2, 3]


def test_trim_against_a_reset_refuses_to_go_back_to_what_is_gone(story: Story) -> None:
    story.fill(4)
    story.read_all("etl")
    trimming = Between(story.store, "replace", 0, lambda: story.collector().collect_once())
    groups = Groups(trimming, clock=story.clock, random=story.random)

    with pytest.raises(Trimmed) as gone:
        groups.reset("etl", 1, force=True)

    assert gone.value.first == 4
    assert story.consumer("etl").next_descriptors(5) == []


def test_group_made_while_a_trim_is_decided_stops_the_trim(story: Story) -> None:
    story.fill(4)
    story.read_all()
    opening = Between(story.store, "replace", 0, lambda: story.consumer("etl"))

    story.collector(opening).collect_once()

    assert story.head.first_sequence == 0
    assert len(story.consumer("etl").next_descriptors(5)) == 4


# Collectors


def test_collector_with_a_clock_in_2099_loses_nothing(story: Story) -> None:
    story.fill(3)
    in_flight = story.upload()
    consumer = story.consumer("etl")
    consumer.next_descriptors(3)
    consumer.ack_through(0)

    story.collector(clock=ManualClock(YEAR_2099_MS)).collect_once()

    assert story.head.first_sequence == 1
    assert [batch.sequence for batch in story.consumer("etl").next_descriptors(5)] == [1, 2]
    story.append(story.queue(), in_flight)  # the store's time decides, and by that it is young


def test_store_with_a_clock_in_2099_only_makes_uploads_in_flight_be_stored_again(story: Story) -> None:
    story.fill(1)
    in_flight = story.upload()
    story.read_all()
    uploader_clock = ManualClock(story.clock.now_ms())
    story.clock.step_wall((YEAR_2099_MS - story.clock.now_ms()) / 1000)
    story.collector().collect_once()  # nothing is listed, so nothing holds the floor back

    with pytest.raises(BelowFloor) as refused:
        story.append(story.queue(), in_flight)
    story.append(story.queue(), story.upload(clock=uploader_clock, above=refused.value.floor))

    assert [batch.sequence for batch in story.consumer().next_descriptors(5)] == [1]


@pytest.mark.parametrize("at", range(12))
def test_two_collectors_at_once_do_no_harm(story: Story, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "KEPT_LISTINGS", 1)
    monkeypatch.setattr(head, "FANOUT", 2)
    for _ in range(4):
        story.fill(2)
    consumer = story.consumer("etl")
    consumer.next_descriptors(8)
    consumer.ack_through(2)

    def other_collects() -> None:
        consumer.ack_through(4)
        story.clock.advance(GRACE * 2)
        story.fill(1)
        story.collector().collect_once()

    store = EveryRequest(story.store, at, other_collects)
    story.collector(store).collect_once()

    assert story.head.first_sequence == (5 if store.reached else 3)
    sequences = [batch.sequence for batch in story.consumer("etl").next_descriptors(20)]
    assert sequences == list(range(5 if store.reached else 3, story.head.next_sequence))


def test_collector_whose_segment_another_has_swept_looks_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "KEPT_LISTINGS", 1)
    monkeypatch.setattr(head, "FANOUT", 2)
    writer = story.queue()  # one that stays seals what it knows of
    for _ in range(12):
        story.append(writer, story.upload())
    consumer = story.consumer("etl")
    consumer.next_descriptors(12)
    consumer.ack_through(0)  # in the middle of what an index node holds, which has to be read for the trim

    class SweptMeanwhile(FaultyStore):
        def get(self, key: str) -> Any:
            if key.startswith("segments/") and not story.store.deleted:
                consumer.ack_through(11)
                story.clock.advance(GRACE * 2)
                story.fill(1)
                story.collector().collect_once()
                assert key in story.store.deleted
            return super().get(key)

    story.collector(SweptMeanwhile(story.store)).collect_once()

    assert story.store.deleted
    assert story.head.first_sequence == 12


class EveryRequest(FaultyStore):
    """A store in which something happens just before the n-th request of any kind."""

    def __init__(self, inner: ObjectStore, at: int, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self.reached = False
        self._left = at
        self._happens = happens

    def next_fault(self, kind: str) -> Fault | None:
        self._left -= 1
        if self._left == -1:
            self.reached = True
            self._happens()
        return None
