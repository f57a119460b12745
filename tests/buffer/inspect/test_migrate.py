"""Migration from version 1 to 2: rfcs/0005. Others append, consume, die or lose an answer meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from forebay.buffer.base import names
from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput, NotFound, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import Metadata, NewBatch
from forebay.buffer.inspect.migrate import MigrationReport, migrate
from forebay.buffer.manifest import Head, Manifest, PlaceConsumed, Queue, UnnamedReader
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS, MAX_SEGMENT_LISTINGS
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Crash, Fault, FaultyStore, ManualClock

NOW = ManualClock().now_ms()
LONG = 3 * KEPT_LISTINGS


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return version_1(f"memory://{request.node.name}")


def version_1(url: str) -> MemoryStore:
    store = MemoryStore(url)
    store.create("manifest", Manifest.empty(url).to_bytes())
    return store


def new_batches(count: int, first: int = 0) -> list[NewBatch]:
    """Stored one after the other within the last 500 seconds."""
    return [
        NewBatch(f"data/{names.at_time(NOW - 500_000 + 10 * i)}.batch", (Metadata(0, i, b"m"),))
        for i in range(first, first + count)
    ]


def append(store: Any, count: int) -> None:
    queue = Queue(store)
    queue.append(new_batches(count, queue.read().next_sequence))


def consume(store: Any, through: int) -> None:
    reader = UnnamedReader(Queue(store))
    reader.ack(reader.claim(), through)


def run(store: Any, **settings: Any) -> MigrationReport:
    return migrate(store, others_stopped=True, clock=ManualClock(), random=Random(1), **settings)


def head_of(store: MemoryStore) -> Head:
    state = Queue(store).read()
    assert isinstance(state, Head)
    return state


def listed(store: MemoryStore) -> list[tuple[int, str, int]]:
    """Sequence, location and the time in the metadata of everything retained."""
    queue = Queue(store)
    state = queue.read()
    found = queue.descriptors(state.first_sequence, 10**6, state=state)
    return [(batch.sequence, batch.location, batch.metadata[0].ingestion_time_ms) for batch in found]


def expected(first: int, end: int) -> list[tuple[int, str, int]]:
    return [(i, batch.location, i) for i, batch in enumerate(new_batches(end - first, first), first)]


def test_batches_keep_their_sequences_and_metadata_and_have_no_facts(store: MemoryStore) -> None:
    append(store, 20)
    consume(store, 4)
    report = run(store)
    assert listed(store) == expected(5, 20)
    head = head_of(store)
    assert (head.first_sequence, head.next_sequence, head.next_record) == (5, 20, 0)
    assert all(entry.facts is None for entry in head.tail)
    assert report == MigrationReport(
        migrated=True,
        buffer_id=head.buffer_id,
        batches=15,
        first_sequence=5,
        epoch=2,
        gc_floor=head.gc_floor,
        segments_stored=0,
    )


def test_migrating_again_changes_nothing(store: MemoryStore) -> None:
    append(store, LONG)
    first = run(store)
    before = store.get("manifest")
    again = migrate(store)
    assert store.get("manifest") == before
    assert (again.migrated, again.segments_stored, again.buffer_id) == (False, 0, first.buffer_id)


def test_it_refuses_until_told_that_the_others_are_stopped_and_says_why(store: MemoryStore) -> None:
    before = store.get("manifest")
    with pytest.raises(InvalidInput, match=r"version 1 collector would sweep.*others_stopped=True"):
        migrate(store)
    with pytest.raises(InvalidInput, match="grace"):
        run(store, grace=-1)
    assert store.get("manifest") == before


def test_missing_buffer_is_not_found_and_none_is_made() -> None:
    store = MemoryStore("memory://nothing-to-migrate")
    with pytest.raises(NotFound):
        run(store)
    assert list(store.list()) == []


def test_empty_buffer_becomes_an_empty_one(store: MemoryStore) -> None:
    report = run(store)
    assert (report.batches, report.epoch, head_of(store).owner) == (0, 0, None)
    append(store, 2)
    assert listed(store) == expected(0, 2)


def test_counts_that_version_2_cannot_take_on_are_refused(store: MemoryStore) -> None:
    store.put("manifest", b"\0" * 12 + b"\xff" * 8 + b"\x01\0")
    with pytest.raises(Unsupported):
        run(store)
    assert isinstance(Queue(store).read(), Manifest)


def test_long_manifest_is_sealed_so_that_the_head_is_small(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["forebay.buffer.inspect.migrate"], "MAX_SEGMENT_LISTINGS", 16)
    count = KEPT_LISTINGS + 16 * (FANOUT * FANOUT + FANOUT + 2) + 5
    append(store, count)
    report = run(store)
    head = head_of(store)
    assert [ref.level for ref in head.refs] == [2, 1, 0, 0, 0]
    assert len(head.tail) == KEPT_LISTINGS
    assert report.segments_stored == (FANOUT * FANOUT + FANOUT + 3) + (FANOUT + 1) + 1
    assert listed(store) == expected(0, count)
    assert MAX_SEGMENT_LISTINGS >= 1024, "what it really is"


def test_floor_is_what_a_version_1_collector_cannot_have_swept(store: MemoryStore) -> None:
    append(store, 3)
    oldest = new_batches(1)[0].location[5:31]
    assert run(store, grace=1).gc_floor == oldest, "the oldest batch is older than the grace period"

    other = version_1("memory://floor-of-an-empty-buffer")
    assert run(other, grace=600).gc_floor == names.at_time(NOW - 600_000)


# Consumers


def test_consumer_of_version_1_is_fenced_and_the_next_one_goes_on_where_it_was(store: MemoryStore) -> None:
    append(store, 10)
    old = Consumer(store)
    old.next_descriptors(6)
    old.ack_through(3)
    run(store)
    with pytest.raises(Fenced):
        old.next_descriptors(1)
    with pytest.raises(Fenced):
        old.ack_through(5)
    assert head_of(store).first_sequence == 4
    with Consumer(store) as new:
        assert new.epoch > old.epoch
        assert [found.sequence for found in new.next_descriptors(10)] == [4, 5, 6, 7, 8, 9]
        assert len(new) == 6


def test_groups_can_be_made_after_it(store: MemoryStore) -> None:
    append(store, LONG)
    run(store)
    with Consumer(store, group="etl") as consumer:
        assert len(consumer.next_descriptors(1000)) == LONG


# Producers that run on


def test_producer_goes_on_as_if_nothing_had_happened(store: MemoryStore) -> None:
    with Producer(store, flush_interval=60) as producer:
        for i in range(LONG + 20):
            producer.produce(b"%d" % i)
            producer.flush().result()
            if i == LONG:
                report = run(store)
                assert report.batches == LONG + 1
    assert isinstance(head_of(store), Head)
    with Consumer(store) as consumer:
        assert [int(entry) for batch in consumer for entry in batch.entries] == list(range(LONG + 20))


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE])
@pytest.mark.parametrize("waiting", [5, LONG])
def test_append_in_doubt_across_the_migration_is_there_once(store: MemoryStore, fault: Fault, waiting: int) -> None:
    append(store, waiting)

    class MigratedMeanwhile(FaultyStore):
        def get(self, key: str) -> Any:
            if key == "manifest" and self.calls["replace"] and not isinstance(Queue(store).read(), Head):
                run(store)
            return super().get(key)

    faulty = MigratedMeanwhile(store, {0: fault}, only={"replace"})
    queue = Queue(faulty, clock=ManualClock(), random=Random(2))
    assert queue.append(new_batches(1, waiting)) == range(waiting, waiting + 1)
    faulty.land_late_requests()
    assert isinstance(Queue(store).read(), Head)
    assert listed(store) == expected(0, waiting + 1)
    assert queue.append(new_batches(1, waiting + 1)) == range(waiting + 1, waiting + 2)


def test_append_in_doubt_that_was_consumed_before_the_migration_cannot_be_found_out(store: MemoryStore) -> None:
    append(store, 3)

    class ConsumedAndMigrated(FaultyStore):
        def get(self, key: str) -> Any:
            if self.calls["replace"] and not isinstance(Queue(store).read(), Head):
                append(store, 1)
                consume(store, 4)
                run(store)
            return super().get(key)

    queue = Queue(ConsumedAndMigrated(store, {0: Fault.LOSE_ANSWER}, only={"replace"}), clock=ManualClock())
    with pytest.raises(PlaceConsumed):
        queue.append([NewBatch("data/in-doubt")])


class Between(FaultyStore):
    """Does something just before one of the migration's own calls."""

    at: int
    act: Callable[[], None]
    acted = False

    def next_fault(self, kind: str) -> Any:
        if sum(self.calls.values()) == self.at:
            self.acted = True
            self.act()
        return super().next_fault(kind)


@pytest.mark.parametrize("consumed", [0, 5, 70, LONG - 10, LONG, LONG + 5])
@pytest.mark.parametrize("appended", [0, 7, 2 * KEPT_LISTINGS])
def test_others_append_and_consume_between_any_two_of_its_calls(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, consumed: int, appended: int
) -> None:
    """What was sealed stays good, and what was consumed meanwhile is not brought back."""
    monkeypatch.setattr(sys.modules["forebay.buffer.inspect.migrate"], "MAX_SEGMENT_LISTINGS", 8)
    consumed = min(consumed, LONG + appended)
    for at in range(100):
        inner = version_1(f"memory://{request.node.name}-{at}")
        append(inner, LONG)

        def act(inner: MemoryStore = inner) -> None:
            if appended:
                append(inner, appended)
            if consumed:
                consume(inner, consumed - 1)

        store = Between(inner)
        store.at, store.act = at, act
        report = run(store)
        if not store.acted:
            assert at > FANOUT
            return
        assert report.migrated
        assert listed(inner) == expected(consumed, LONG + appended)
        head = head_of(inner)
        assert all(ref.end > consumed for ref in head.refs), "nothing is referred to that is wholly consumed"
        assert head.owner is None or head.owner.acked == consumed - 1
        append(inner, 1)
        assert listed(inner) == expected(consumed, LONG + appended + 1)
    raise AssertionError("it takes no more than 100 calls")


def test_manifest_that_was_deleted_and_begun_again_is_not_mixed_with_what_was_sealed(store: MemoryStore) -> None:
    append(store, LONG)
    others = [NewBatch(f"data/other-{i}", (Metadata(0, i, b""),)) for i in range(LONG)]

    def begin_again() -> None:
        store.put("manifest", Manifest.empty("again").to_bytes())
        Queue(store).append(others)

    between = Between(store)
    between.at, between.act = 2, begin_again  # after the read and the segment
    run(between)
    assert [location for _, location, _ in listed(store)] == [batch.location for batch in others]


def test_of_two_migrations_at_once_one_counts(store: MemoryStore) -> None:
    append(store, LONG)
    reports: list[MigrationReport] = []
    between = Between(store)
    between.at, between.act = 2, lambda: reports.append(migrate(store, others_stopped=True))
    late = run(between)
    assert (reports[0].migrated, late.migrated, late.segments_stored) == (True, False, 0)
    assert late.buffer_id == reports[0].buffer_id == head_of(store).buffer_id
    assert listed(store) == expected(0, LONG)


# Crashes and lost answers


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER])
def test_dying_at_any_call_leaves_a_buffer_that_can_be_migrated(fault: Fault) -> None:
    for at in range(20):
        inner = version_1(f"memory://dying-{fault.name}-{at}")
        append(inner, LONG)
        store = FaultyStore(inner, {at: fault})
        try:
            run(store)
        except Crash:
            assert listed(inner) == expected(0, LONG)
            run(inner)
            again = True
        else:
            again = False
        assert listed(inner) == expected(0, LONG)
        append(inner, 1)
        assert head_of(inner).count == LONG + 1
        if not again:
            assert at > 2
            return


def test_any_schedule_of_faults_ends_in_one_migration_and_nothing_lost() -> None:
    finished = 0
    for seed in range(150):
        inner = version_1(f"memory://migrate-seed-{seed}")
        append(inner, LONG)
        random = Random(seed)
        producer = Queue(FaultyStore.seeded(inner, seed, clock=ManualClock()), clock=ManualClock(), random=Random(seed))
        between = Between(FaultyStore.seeded(inner, seed + 1, clock=ManualClock()))
        unknown: list[str] = []
        added: list[str] = []

        def produce(
            producer: Queue = producer, unknown: list[str] = unknown, added: list[str] = added, seed: int = seed
        ) -> None:
            location = f"data/more-{seed}-{len(added) + len(unknown)}"
            try:
                producer.append([NewBatch(location, (Metadata(0, 0, b""),))])
                added.append(location)
            except ForebayError:
                unknown.append(location)

        produce()
        between.at, between.act = random.randrange(4), produce
        try:
            run(between)
            finished += 1
        except ForebayError:
            run(inner)
        produce()
        found = [location for _, location, _ in listed(inner)]
        assert found[:LONG] == [batch.location for batch in new_batches(LONG)]
        assert len(found) == len(set(found))
        more = [location for location in found[LONG:] if location not in unknown]
        assert more == added
        assert isinstance(Queue(inner).read(), Head)
    assert finished > 50


def test_typed_buffer_is_refused_with_the_reason(request: pytest.FixtureRequest) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    Producer(store, schema=pa.schema([pa.field("id", pa.int64())])).close()
    before = store.get("manifest").version
    with pytest.raises(Unsupported, match="is a typed buffer: it holds rows of a schema"):
        run(store)
    assert store.get("manifest").version == before
