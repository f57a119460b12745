"""What only object storage brings: batches, heads, collectors, lost answers and processes that die between requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from eventlog_homes import fill, offsets, take

from forebay.buffer.base.errors import ForebayError, InvalidInput, NotFound, Unavailable, Unknown
from forebay.buffer.consumer import Consumer
from forebay.buffer.eventlog import Event, EventLog
from forebay.buffer.eventlog.objects import ObjectsBackend
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.store.base import Data, InDoubt, ObjectStore, Outcome, StoredObject
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, create_topic
from forebay.gc import Collector
from forebay.testing import Crash, Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore("memory://eventlog-objects-" + re.sub(r"\W+", "-", request.node.name))


def open_log(store: ObjectStore, seed: int = 7, **settings: Any) -> EventLog:
    clock = settings.pop("clock", None) or ManualClock()
    return EventLog(ObjectsBackend(store, clock=clock, random=Random(seed)), clock=clock, **settings)


def partition(store: ObjectStore, number: int = 0) -> FolderStore:
    return FolderStore(store, f"jobs/p-{number:05}")


def head_of(store: ObjectStore) -> Head:
    head = Queue(partition(store)).read()
    assert isinstance(head, Head)
    return head


def collect(store: ObjectStore, clock: ManualClock) -> Any:
    """What a collector does that comes long after."""
    clock.advance(10_000)
    return Collector(partition(store), grace=1.0, clock=clock, random=Random(1)).collect_once()


# Offsets are records, not batches


def test_offsets_count_events_and_not_the_batches_that_hold_them(store: MemoryStore) -> None:
    log = open_log(store)
    assert log.append_many("jobs", [Event("a")] * 5) == range(5)
    assert log.append_many("jobs", [Event("a")] * 3) == range(5, 8)
    assert log.append("jobs", Event("a")) == 8
    assert (head_of(store).next_sequence, head_of(store).next_record) == (3, 9)
    assert offsets(log.read_range("jobs", after=3, limit=3)) == [4, 5, 6]


def test_topic_is_a_forebay_topic_whose_partitions_anything_can_read(store: MemoryStore) -> None:
    log = open_log(store)
    log.create_topic("jobs", 2)
    log.append("jobs", Event("a", {"n": 1}, time_ms=5), partition=1)
    assert Topic(FolderStore(store, "jobs")).partitions == 2
    with Consumer(partition(store, 1)) as consumer:
        batch = consumer.next_batch()
        assert batch is not None
        assert list(batch.entries) == [b'{"kind":"a","time_ms":5,"payload":{"n":1}}']


def test_events_are_found_through_sealed_segments_from_anywhere(store: MemoryStore) -> None:
    log = open_log(store, depth=100_000)
    random = Random(3)
    total = 0
    while total < 3000:
        total += len(log.append_many("jobs", [Event("tick")] * random.randrange(1, 8)))
    assert any(ref.level for ref in head_of(store).refs), "not deep enough to prove anything"
    fresh = open_log(store, depth=100_000)
    for after in [-1, 0, total - 2, total - 1, *(random.randrange(total) for _ in range(30))]:
        wanted = list(range(after + 1, min(after + 6, total)))
        assert offsets(fresh.read_range("jobs", after=after, limit=5)) == wanted
    records, _ = fresh.subscribe("jobs", {0: total - 700})
    assert take(records, 700) == [(0, offset) for offset in range(total - 700, total)]


def test_looking_where_nothing_is_new_costs_one_conditional_read_a_partition(store: MemoryStore) -> None:
    open_log(store).create_topic("jobs", 2)
    counted = FaultyStore(store)
    log = open_log(counted)
    records, _ = log.subscribe("jobs", {0: 0, 1: 0})
    assert records.poll(0) is None
    counted.calls.clear()
    assert records.poll(0) is None
    assert counted.calls == {"get_if_changed": 2}


def test_append_costs_one_upload_and_one_write_of_the_head(store: MemoryStore) -> None:
    counted = FaultyStore(store)
    log = open_log(counted)
    fill(log, 1)
    counted.calls.clear()
    log.append_many("jobs", [Event("a")] * 100)
    assert counted.calls == {"put": 1, "replace": 1}


def test_large_batch_is_fetched_once_for_all_pieces_read_of_it(store: MemoryStore) -> None:
    open_log(store).append_many("jobs", [Event("a")] * 2000)
    counted = FaultyStore(store)
    log = open_log(counted)
    records, _ = log.subscribe("jobs", {0: 0})
    counted.calls.clear()
    take(records, 2000)
    assert counted.calls["get"] == 1


# Compaction and the collector


def test_collector_frees_what_was_compacted_and_nothing_else(store: MemoryStore) -> None:
    clock = ManualClock()
    timed = MemoryStore(store.url, clock=clock)
    log = open_log(timed, clock=clock)
    for _ in range(4):
        log.append_many("jobs", [Event("a")] * 3)
        clock.advance(1)
    log.compact("jobs", 7)  # two batches, and two of the third's three events
    assert collect(timed, clock).trimmed == 2
    assert len(list(partition(timed).list("data/"))) == 2
    assert offsets(log.read_range("jobs")) == [8, 9, 10, 11]
    log.compact("jobs", 11)
    assert collect(timed, clock).trimmed == 2
    assert list(partition(timed).list("data/")) == []
    assert log.append("jobs", Event("a")) == 12
    assert offsets(open_log(timed).read_range("jobs")) == [12]


def test_collector_touches_nothing_of_a_log_that_was_never_compacted(store: MemoryStore) -> None:
    clock = ManualClock()
    timed = MemoryStore(store.url, clock=clock)
    log = open_log(timed, clock=clock)
    fill(log, 3)
    assert collect(timed, clock).trimmed == 0
    assert offsets(log.read_range("jobs")) == [0, 1, 2]


def test_another_reader_of_the_buffer_keeps_what_it_needs_and_the_log_hides_it(store: MemoryStore) -> None:
    clock = ManualClock()
    timed = MemoryStore(store.url, clock=clock)
    log = open_log(timed, clock=clock)
    fill(log, 3)
    GroupReader(Queue(partition(timed)), "etl")
    log.compact("jobs", 1)
    assert collect(timed, clock).trimmed == 0
    assert offsets(log.read_range("jobs")) == [2]


def test_other_readers_acknowledgements_let_nothing_go_that_the_log_retains(store: MemoryStore) -> None:
    clock = ManualClock()
    timed = MemoryStore(store.url, clock=clock)
    log = open_log(timed, clock=clock)
    fill(log, 3)
    with Consumer(partition(timed), group="etl", clock=clock) as consumer:
        consumer.ack_through(consumer.next_descriptors(10)[-1].sequence)
    assert collect(timed, clock).trimmed == 0
    assert offsets(log.read_range("jobs")) == [0, 1, 2]


def test_compacting_keeps_one_group_however_often(store: MemoryStore) -> None:
    log = open_log(store)
    fill(log, 5)
    for through in range(5):
        log.compact("jobs", through)
    assert list(head_of(store).groups) == ["eventlog.from-5"]


class Overtaken(MemoryStore):
    """A store where something happens right before the next batch is fetched."""

    before_fetch: Callable[[], object] | None = None

    def get(self, key: str) -> StoredObject:
        if "/data/" in key and self.before_fetch is not None:
            then, self.before_fetch = self.before_fetch, None
            then()
        return super().get(key)


def test_reader_with_an_old_head_finds_its_way_past_what_was_swept(store: MemoryStore) -> None:
    clock = ManualClock()
    overtaken = Overtaken(store.url, clock=clock)
    log, other = open_log(overtaken, clock=clock), open_log(overtaken, seed=8, clock=clock)
    for _ in range(6):
        log.append("jobs", Event("a"))
        clock.advance(1)

    def sweep() -> None:
        other.compact("jobs", 3)
        assert collect(overtaken, clock).deleted == 4

    overtaken.before_fetch = sweep
    assert offsets(log.read_range("jobs")) == [4, 5]
    records, _ = log.subscribe("jobs", {0: 1})
    assert take(records, 2) == [(0, 4), (0, 5)]
    assert records.skipped == {0: 3}


def test_batch_that_is_really_missing_is_said_so_also_while_others_append(store: MemoryStore) -> None:
    overtaken = Overtaken(store.url)
    log, other = open_log(overtaken), open_log(overtaken, seed=8)
    fill(log, 1)
    partition(store).delete([found.key for found in partition(store).list("data/")])

    def append_again() -> None:
        other.append("jobs", Event("a"))
        overtaken.before_fetch = append_again

    overtaken.before_fetch = append_again
    with pytest.raises(NotFound, match="batch 0"):
        log.read_range("jobs")


def test_batch_that_the_collector_passed_by_while_it_was_uploaded_is_uploaded_again(store: MemoryStore) -> None:
    clock = ManualClock()
    timed = MemoryStore(store.url, clock=clock)
    log = open_log(timed, clock=clock)
    fill(log, 2)
    log.compact("jobs", 1)
    collect(timed, clock)
    clock.step_wall(-9_000)  # this machine's clock is behind, so the batch is named below the floor
    assert log.append("jobs", Event("a")) == 2
    assert offsets(open_log(timed).read_range("jobs")) == [2]


def test_append_that_the_collector_passes_by_is_named_further_ahead_and_appended_once(store: MemoryStore) -> None:
    clock = ManualClock()
    timed = MemoryStore(store.url, clock=clock)
    uploads = []

    class Chased(FaultyStore):
        def put(self, key: str, data: Data) -> str:
            version = super().put(key, data)
            uploads.append(key)
            collect(timed, clock)  # right after it, and much later by the clock
            return version

    log = open_log(timed, clock=clock)
    fill(log, 2)
    log.compact("jobs", 1)  # nothing that is listed keeps the floor down
    assert open_log(Chased(timed), seed=8, clock=clock).append("jobs", Event("a")) == 2
    assert len(uploads) == 2
    assert open_log(timed).high_water_marks("jobs") == [3]


# What can go wrong with a request


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP, Fault.LATE, Fault.OWN_RETRY, Fault.BUSY])
@pytest.mark.parametrize("call", ["create", "replace"])
def test_lost_answer_of_a_conditional_write_neither_loses_nor_doubles_an_event(
    store: MemoryStore, call: str, fault: Fault
) -> None:
    for number in range(4):
        faulty = FaultyStore(MemoryStore(f"{store.url}-{number}"), {number: fault}, only={call})
        log = open_log(faulty)
        given = [log.append("jobs", Event("a", n)) for n in range(3)]
        faulty.land_late_requests()
        assert given == [0, 1, 2]
        assert [record.event.payload for record in open_log(faulty.inner).read_range("jobs")] == [0, 1, 2]


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER, Fault.DROP])
def test_upload_that_fails_or_is_in_doubt_appends_nothing(store: MemoryStore, fault: Fault) -> None:
    fill(open_log(store), 1)
    way = FaultyStore(FaultyStore(store, dict.fromkeys(range(10**4), fault), only={"put"}))
    log = open_log(way, seed=8)
    with pytest.raises(Unavailable, match="nothing of this batch was stored"):
        log.append("jobs", Event("a"))
    assert open_log(store).high_water_marks("jobs") == [1]
    way.inner = store
    assert log.append("jobs", Event("a")) == 1


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER])
def test_process_that_dies_at_any_request_leaves_the_event_there_whole_or_not_at_all(
    store: MemoryStore, fault: Fault
) -> None:
    for number in range(80):
        inner = MemoryStore(f"{store.url}-{number}")
        crashed = False
        acknowledged = []
        try:
            log = open_log(FaultyStore(inner, {number: fault}))
            log.create_topic("jobs", 2)
            for count in (1, 3):
                acknowledged += list(log.append_many("jobs", [Event("a")] * count, partition=1))
            log.ack("jobs", "etl", 2, partition=1)
            log.compact("jobs", 1, partition=1)
        except Crash:
            crashed = True
        after = open_log(inner, seed=8)
        after.create_topic("jobs", 2)
        found = offsets(after.read_range("jobs", partition=1))
        end = after.high_water_marks("jobs")[1]
        assert end in (0, 1, 4), "an append is there whole or not at all"
        assert end >= len(acknowledged)
        assert found in (list(range(end)), list(range(2, end)))
        assert after.cursor("jobs", "etl", partition=1) in (None, 2)
        assert after.append("jobs", Event("b"), partition=1) == end
        if not crashed:
            return
    raise AssertionError("there are more requests than were tried")


def test_seeded_faults_lose_and_double_nothing_that_was_acknowledged(store: MemoryStore) -> None:
    for seed in range(6):
        inner = MemoryStore(f"{store.url}-{seed}")
        open_log(inner).create_topic("jobs")
        faulty = FaultyStore.seeded(inner, seed, rate=0.3, clock=ManualClock())
        log = open_log(faulty, seed)
        acknowledged: dict[int, int] = {}
        unsure = set()
        for number in range(40):
            try:
                acknowledged[log.append("jobs", Event("a", number))] = number
            except Unknown:
                unsure.add(number)
            except ForebayError:
                continue
        faulty.land_late_requests()
        records = open_log(inner).read_range("jobs")
        assert offsets(records) == list(range(len(records)))
        found = {record.offset: record.event.payload for record in records}
        assert acknowledged.items() <= found.items()
        assert len(set(found.values())) == len(found), "an event is there twice"
        assert set(found.values()) - set(acknowledged.values()) <= unsure


class Mute(FaultyStore):
    """A store that applies or drops the next write of a head, and sends no answer until the test releases it."""

    applies: bool | None = None
    is_mute = False

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        if self.applies is None:
            return super().replace(key, data, version)
        if self.applies and not self.is_mute:
            super().replace(key, data, version)
        self.is_mute = True
        return InDoubt("no answer")

    def get(self, key: str) -> StoredObject:
        self._answer()
        return super().get(key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        self._answer()
        return super().get_if_changed(key, version)

    def _answer(self) -> None:
        if self.is_mute:
            raise Unavailable("no answer")


@pytest.mark.parametrize("applies", [True, False])
def test_append_in_doubt_is_not_repeated_by_the_log_and_may_be_by_its_caller(store: MemoryStore, applies: bool) -> None:
    mute = Mute(store)
    log = open_log(mute)
    assert log.append("jobs", Event("a", "before")) == 0
    mute.applies = applies
    with pytest.raises(Unknown):
        log.append("jobs", Event("a", "in doubt"))
    mute.applies, mute.is_mute = None, False
    there = ["before", "in doubt"] if applies else ["before"]
    assert [record.event.payload for record in open_log(store).read_range("jobs")] == there
    assert log.append("jobs", Event("a", "in doubt")) == len(there)
    assert log.append("jobs", Event("a", "after")) == len(there) + 1
    assert [record.event.payload for record in log.read_range("jobs")] == [*there, "in doubt", "after"]


# What else may stand at a URL


def test_topic_whose_creation_was_broken_off_reads_as_none_and_is_finished_by_the_next(store: MemoryStore) -> None:
    with pytest.raises(Crash):
        create_topic(FolderStore(FaultyStore(store, {1: Fault.CRASH}, only={"create"}), "jobs"), 3)
    log = open_log(store)
    assert log.high_water_marks("jobs") == [0]
    log.create_topic("jobs", 3)
    assert log.partitions("jobs") == 3


def test_buffer_at_a_topics_place_is_refused(store: MemoryStore) -> None:
    FolderStore(store, "jobs").create("manifest", Head(buffer_id="b" * 32).to_bytes())
    with pytest.raises(InvalidInput, match="is a buffer"):
        open_log(store).append("jobs", Event("a"))


def test_partition_of_version_1_is_refused(store: MemoryStore) -> None:
    log = open_log(store)
    log.create_topic("jobs")
    partition(store).put("manifest", Manifest.empty("old").to_bytes())
    with pytest.raises(InvalidInput, match="version 1"):
        open_log(store).read_range("jobs")


def test_group_that_merely_looks_like_ours_hides_at_most_everything(store: MemoryStore) -> None:
    log = open_log(store)
    fill(log, 2)
    GroupReader(Queue(partition(store)), "eventlog.from-99")
    assert log.read_range("jobs") == []
    assert log.append("jobs", Event("a")) == 2
