"""What a look at a buffer tells, and that looking changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import Corrupt, NotFound
from forebay.buffer.base.names import at_time
from forebay.buffer.base.process import this_process
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.either.schemas import evolve_schema, schema_versions
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.inspect.describe import Observer, describe, describe_all, describe_topic
from forebay.buffer.inspect.stats import BufferStats, GroupStats, total
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.topic import IsTopic
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, create_topic
from forebay.testing import FaultyStore, ManualClock

NOW_MS = 1_700_000_000_000


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://stats-{request.node.name}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def append(store: ObjectStore, count: int, *, age: float = 0.0, apart: float = 1.0, facts: bool = True) -> None:
    """Batches of 10 entries, 100 bytes stored and 400 raw, taken in `apart` seconds; the newest `age` seconds ago."""
    queue = Queue(store)
    first = queue.read().next_sequence
    batches = []
    for i in range(count):
        time_ms = NOW_MS - int(1000 * (age + apart * (count - 1 - i)))
        known = Facts(100, 400, 10, 0, time_ms, time_ms) if facts else None
        batches.append(NewBatch(f"data/{first + i}", (Metadata(0, time_ms, b""),), known))
    for at in range(0, count, 50):  # as a producer would: so that older entries are sealed
        queue.append(batches[at : at + 50])


def read(store: ObjectStore, count: int, group: str | None) -> None:
    with Consumer(store, group=group) as consumer:
        (*_, last) = consumer.next_descriptors(count)
        consumer.ack_through(last.sequence)


def group_of(stats: BufferStats, name: str) -> GroupStats:
    return {group.name: group for group in stats.groups}[name]


def test_depth_sizes_and_ages_are_those_of_the_retained_batches(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 20, age=2.0)
    Queue(store).change_head(lambda head: head.trim(5, {}).touch(), lambda _head: False)
    stats = describe(store, clock=clock)
    assert (stats.version, stats.first_sequence, stats.next_sequence, stats.batches) == (2, 5, 20, 15)
    assert (stats.entries, stats.stored_bytes, stats.raw_bytes, stats.taken_in) == (150, 1500, 6000, 200)
    assert (stats.oldest_ms, stats.newest_ms, stats.age_seconds) == (NOW_MS - 16_000, NOW_MS - 2_000, 16.0)


def test_empty_buffer_has_no_ages_and_no_lag(store: MemoryStore, clock: ManualClock) -> None:
    Consumer(store, group="etl").close()
    stats = describe(store, clock=clock)
    assert (stats.batches, stats.entries, stats.stored_bytes, stats.raw_bytes) == (0, 0, 0, 0)
    assert (stats.oldest_ms, stats.newest_ms, stats.age_seconds, stats.unnamed) == (None, None, None, None)
    assert (stats.entries_per_second, stats.bytes_per_second) == (0.0, 0.0)
    assert group_of(stats, "etl") == GroupStats("etl", None, 1, False, 0, 0, 0, 0.0)


def test_lag_is_what_a_group_has_not_acknowledged(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 20)
    read(store, 5, "etl")
    read(store, 20, "audit")
    stats = describe(store, clock=clock)
    assert group_of(stats, "etl") == GroupStats("etl", 4, 1, False, 15, 150, 1500, 14.0)
    assert group_of(stats, "audit") == GroupStats("audit", 19, 1, False, 0, 0, 0, 0.0)
    assert stats.groups == stats.readers


def test_group_that_never_read_lags_from_its_start(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 20)
    consumer = Consumer(store, group="late", from_=12, clock=clock)
    owner = this_process(clock)
    assert group_of(describe(store, clock=clock), "late") == GroupStats("late", None, 1, True, 8, 80, 800, 7.0, owner)
    consumer.close()


def test_lag_is_exact_where_the_place_is_inside_a_sealed_segment(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 1000)
    head = Queue(store).read()
    assert isinstance(head, Head)
    assert head.refs
    for place in (head.refs[0].first_sequence + 7, head.refs[1].first_sequence, head.tail_start, 999):
        Consumer(store, group=f"g{place}", from_=place).close()
        behind = group_of(describe(store, clock=clock), f"g{place}")
        left = 1000 - place
        assert (behind.lag_batches, behind.lag_entries, behind.lag_bytes) == (left, 10 * left, 100 * left)
        assert behind.lag_seconds == left - 1
    assert describe(store, clock=clock).raw_bytes is None


def test_segments_are_read_only_for_who_is_behind_them(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 1000)
    Consumer(store, group="near", from_=990).close()
    Queue(store).change_head(lambda head: head.trim(head.tail_start, {}).touch(), lambda _head: False)
    watched = FaultyStore(store)
    observer = Observer(watched, clock=clock)
    observer.look()
    assert watched.calls == {"get": 2}, "the head and the cursor"
    observer.look()
    assert watched.calls == {"get": 3, "get_if_changed": 1}, "and the cursor again"
    observer.newest(10)
    assert watched.calls == {"get": 3, "get_if_changed": 1}


def test_looking_claims_and_changes_nothing(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 300)
    group, unnamed = Consumer(store, group="etl"), Consumer(store, clock=clock)
    before = {found.key: store.get(found.key).data for found in store.list()}
    stats = describe(store, clock=clock)
    assert {found.key: store.get(found.key).data for found in store.list()} == before
    assert stats.unnamed == GroupStats("", None, 1, None, 300, 3000, 30_000, 299.0, this_process(clock))
    assert stats.readers == (stats.unnamed, *stats.groups)
    for consumer in (group, unnamed):
        assert consumer.next_descriptors(1), "nobody is fenced"
        consumer.close()


def test_version_1_tells_depth_ages_and_the_frontier(store: MemoryStore, clock: ManualClock) -> None:
    store.create("manifest", Manifest.empty("new").to_bytes())
    append(store, 20, facts=False)
    read(store, 5, None)
    stats = describe(store, clock=clock)
    assert (stats.version, stats.buffer_id, stats.writes, stats.floor) == (1, None, None, None)
    assert (stats.first_sequence, stats.next_sequence, stats.batches) == (5, 20, 15)
    assert (stats.oldest_ms, stats.newest_ms, stats.age_seconds) == (NOW_MS - 14_000, NOW_MS, 14.0)
    assert (stats.entries, stats.stored_bytes, stats.entries_per_second, stats.bytes_per_second) == (None,) * 4
    assert stats.unnamed == GroupStats("", 4, 1, None, 15, None, None, 14.0)
    assert (stats.groups, stats.holds) == ((), ())


def test_batches_that_come_from_version_1_leave_sizes_unknown_until_they_are_trimmed(
    store: MemoryStore, clock: ManualClock
) -> None:
    append(store, 3, age=10.0, facts=False)
    append(store, 2)
    assert (describe(store, clock=clock).entries, describe(store, clock=clock).stored_bytes) == (None, None)
    Queue(store).change_head(lambda head: head.trim(3, {}).touch(), lambda _head: False)
    assert (describe(store, clock=clock).entries, describe(store, clock=clock).stored_bytes) == (20, 200)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param({"count": 20}, 200 / 19, id="all of the batches are of the last minute"),
        pytest.param({"count": 100, "apart": 2.0}, 31 * 10 / 60, id="some are older"),
        pytest.param({"count": 5, "age": 3600.0}, 0.0, id="all are older"),
        pytest.param({"count": 1}, 10.0, id="one that has just come"),
        pytest.param({"count": 20, "age": -5.0}, 200 / 19, id="the producer's clock is ahead"),
        pytest.param({"count": 1000, "apart": 0.1}, 601 * 10 / 60, id="most are sealed, and some are older"),
        pytest.param({"count": 1000, "apart": 0.05}, 1000 * 10 / 49.95, id="most are sealed, and none is older"),
    ],
)
def test_rates_are_means_over_the_last_minute(
    store: MemoryStore, clock: ManualClock, shape: dict[str, Any], expected: float
) -> None:
    append(store, **shape)
    stats = describe(store, clock=clock)
    assert stats.entries_per_second == pytest.approx(expected)
    assert stats.bytes_per_second == pytest.approx(10 * expected)


def test_writes_grow_with_every_write_of_the_head(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 1)
    before = describe(store, clock=clock).writes
    assert before is not None
    append(store, 1)
    assert describe(store, clock=clock).writes == before + 2, "a writer was registered, and appended"


def test_holds_and_the_floor_are_shown(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 10)
    floor = at_time(NOW_MS - 5000)
    Queue(store).change_head(
        lambda head: head.collect(point=0, dropped=3, expired=(), floor=floor, nodes={}), lambda _head: False
    )
    with hold(store, from_=4, ttl=60.0, purpose="backfill", clock=clock) as held:
        stats = describe(store, clock=clock)
        (found,) = stats.holds
        assert (found.hold_id, found.purpose, found.first_sequence) == (held.hold_id, "backfill", 4)
        assert (found.ttl_seconds, found.renewals) == (60.0, 0)
        assert (found.expires_ms, found.expired) == (None, False), "no collector has seen it"
        Queue(store).change_head(
            lambda head: head.collect(
                point=0, dropped=0, expired=(), floor=floor, nodes={}, stamps={held.hold_id: NOW_MS}
            ),
            lambda _head: False,
        )
        (found,) = describe(store, clock=clock).holds
        assert (found.expires_ms, found.expired) == (NOW_MS + 60_000, False)
        later = ManualClock(NOW_MS + 60_000)
        assert describe(store, clock=later).holds[0].expired
    assert (stats.floor, stats.floor_ms, stats.dropped) == (floor, NOW_MS - 5000, 3)


def test_missing_buffer_is_not_found_with_advice(store: MemoryStore) -> None:
    for look in (describe, describe_all):
        with pytest.raises(NotFound, match=r"stats-.*nothing was ever written to this buffer, or its URL is wrong"):
            look(store)
    assert not list(store.list())


def test_topic_is_described_by_its_partitions_and_their_sum(store: MemoryStore, clock: ManualClock) -> None:
    create_topic(store.url, 3)
    topic = Topic(store)
    topic.register_group("etl", "earliest")
    for number, count in enumerate((4, 0, 6)):
        if count:
            append(topic.partition(number), count)
    read(topic.partition(2), 2, "etl")
    with pytest.raises(IsTopic):
        describe(store, clock=clock)
    parts = describe_all(store, clock=clock)
    assert [part.url for part in parts] == topic.partition_urls()
    assert [part.batches for part in parts] == [4, 0, 6]
    together = total(parts)
    assert (together.batches, together.entries, together.stored_bytes, together.age_seconds) == (10, 100, 1000, 5.0)
    assert together.groups == (GroupStats("etl", None, 1, False, 8, 80, 800, 3.0),)


def test_schemas_of_a_typed_buffer_and_topic_are_described_by_id(store: MemoryStore, clock: ManualClock) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    create_topic(store, 1, schema=schema)
    evolve_schema(store, pa.schema([*schema, pa.field("page", pa.string())]))
    found = describe_topic(store, clock=clock)
    (part,) = found.partitions
    assert found.schemas == tuple(version.schema_id for version in schema_versions(store))
    assert part.schemas == found.schemas[:1], "it follows with its next append"


def test_buffer_of_bytes_has_no_schemas(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 1)
    assert describe(store, clock=clock).schemas == ()


def test_topic_is_described_with_its_id_and_where_its_groups_started(store: MemoryStore, clock: ManualClock) -> None:
    create_topic(store, 2)
    topic = Topic(store)
    topic.register_group("etl", "latest")
    append(topic.partition(1), 3)
    state = describe_topic(store, clock=clock)
    assert (state.url, state.topic_id, state.groups) == (store.url, topic.record.topic_id, {"etl": "latest"})
    assert list(state.partitions) == describe_all(store, clock=clock)


def test_missing_topic_is_not_found_and_says_what_to_do(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match=r"no topic at memory://.*create_topic"):
        describe_topic(store)


def test_total_of_one_buffer_is_itself(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 20)
    read(store, 5, "etl")
    (stats,) = describe_all(store, clock=clock)
    assert total([stats]).groups == stats.readers
    assert total([stats]).entries == stats.entries


def test_stats_are_plain_values_as_json(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 2)
    read(store, 1, "etl")
    stats = describe(store, clock=clock)
    assert json.loads(json.dumps(stats.as_json()))["groups"][0]["lag_entries"] == 10
    assert json.loads(json.dumps(total([stats]).as_json()))["batches"] == 2


def test_newest_batches_come_oldest_first_and_from_segments_if_need_be(store: MemoryStore, clock: ManualClock) -> None:
    observer = Observer(store, clock=clock)
    assert observer.newest(3) == []
    append(store, 200)
    observer.look()
    assert [batch.sequence for batch in observer.newest(3)] == [197, 198, 199]
    assert [batch.sequence for batch in observer.newest(500)] == list(range(200))


class Sweeping(FaultyStore):
    """A store whose collector is just then at work: what a look needs is swept before the look comes to it."""

    def get(self, key: str) -> StoredObject:
        if key.startswith("segments/") and not self.calls["delete"]:
            Queue(self.inner).change_head(lambda head: head.trim(head.tail_start, {}).touch(), lambda _head: False)
            self.delete([found.key for found in self.inner.list("segments/")])
        return super().get(key)


def test_segment_swept_during_a_look_is_not_missed(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 1000)
    Consumer(store, group="etl").close()
    stats = describe(Sweeping(store), clock=clock)
    assert 0 < stats.first_sequence < 1000
    assert stats.batches == 1000 - stats.first_sequence == group_of(stats, "etl").lag_batches
    assert stats.stored_bytes == 100 * stats.batches


def test_segment_that_is_really_missing_is_corrupt(store: MemoryStore, clock: ManualClock) -> None:
    append(store, 1000)
    store.delete([found.key for found in store.list("segments/")])
    with pytest.raises(Corrupt, match="refers to a segment that is not there"):
        describe(store, clock=clock)
