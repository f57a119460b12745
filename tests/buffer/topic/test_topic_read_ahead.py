"""Iteration over a topic reads ahead, in all partitions at once: rfcs/0004, "Reading ahead"."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from kinds import BYTES, Kind, append_all, kind_in

from forebay.buffer.base.errors import Closed, Fenced, InvalidInput, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.read.ahead import ReadAhead
from forebay.buffer.store import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicConsumer, TopicGroups, create_topic
from forebay.testing import FaultyStore, ManualClock

PARTITIONS = 4


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}/topic")
    create_topic(store, PARTITIONS, schema=kind.schema)
    return store


def fill(store: MemoryStore, *counts: int) -> None:
    """Append as many batches to each partition as its count says."""
    for number, count in enumerate(counts):
        partition = Topic(store).partition(number)
        queue = Queue(partition)
        first = queue.read().next_sequence
        keys = [f"data/{place:026}" for place in range(first, first + count)]
        if keys:
            kind = kind_in(partition)
            append_all(queue, [kind.upload(partition, key, [b"0" * 1000]) for key in keys])


def gets(store: FaultyStore) -> int:
    return store.calls["get"] + store.calls["get_if_changed"]


def by_partition(found: list[tuple[int, int]]) -> dict[int, list[int]]:
    return {number: [place for partition, place in found if partition == number] for number, _ in sorted(found)}


@pytest.mark.parametrize("acknowledge", ["ack", "ack_through"])
def test_group_with_a_backlog_needs_little_more_than_one_get_a_batch(store: MemoryStore, acknowledge: str) -> None:
    fill(store, *[250] * PARTITIONS)
    counted = FaultyStore(store)
    consumer = TopicConsumer(counted, group="etl", clock=ManualClock())
    counted.calls.clear()
    found = []
    for partition, batch in consumer:
        found.append((partition, batch.sequence))
        getattr(consumer, acknowledge)(partition, batch.sequence)
    assert by_partition(found) == {number: list(range(250)) for number in range(PARTITIONS)}
    assert gets(counted) <= 1.1 * 1000
    consumer.close()
    assert TopicGroups(store).describe("etl").waiting == 0


def test_partition_with_a_long_backlog_keeps_no_other_waiting(store: MemoryStore) -> None:
    fill(store, 90)
    clock = ManualClock()
    consumer = TopicConsumer(store, group="etl", clock=clock, read_ahead=ReadAhead(batches=4))
    batches = iter(consumer)
    assert [next(batches)[0] for _ in range(5)] == [0] * 5
    fill(store, 0, 2, 2, 2)
    clock.advance(2)  # so that the next call looks
    following = Counter(next(batches)[0] for _ in range(4 + 8))
    assert following == {0: 6, 1: 2, 2: 2, 3: 2}


def test_batches_are_held_within_one_budget_for_all_partitions(store: MemoryStore) -> None:
    fill(store, *[20] * PARTITIONS)
    handed_over = most = 0

    class Traced(FaultyStore):
        def get(self, key: str) -> StoredObject:
            nonlocal most
            found = super().get(key)
            if "/data/" in key:
                most = max(most, reads.total() + 1 - handed_over)
                reads[key] += 1
            return found

    reads: Counter[str] = Counter()
    for _ in TopicConsumer(Traced(store), group="etl", read_ahead=ReadAhead(batches=6)):
        handed_over += 1
    assert most <= 6
    assert set(reads.values()) == {1}


def test_other_ways_of_reading_go_on_where_iteration_is(store: MemoryStore) -> None:
    fill(store, *[20] * PARTITIONS)
    consumer = TopicConsumer(store, group="etl")
    batches = iter(consumer)
    found = []
    for _ in range(10):
        for _ in range(2):
            partition, batch = next(batches)
            found.append((partition, batch.sequence))
        one = consumer.next_batch()
        assert one is not None
        found.append((one.partition, one.batch.sequence))
        found += [(number, descriptor.sequence) for number, descriptor in consumer.next_descriptors(3)]
    found += [(partition, batch.sequence) for partition, batch in batches]
    assert by_partition(found) == {number: list(range(20)) for number in range(PARTITIONS)}


def test_descriptors_after_an_iteration_are_found_by_a_look_of_their_own(store: MemoryStore) -> None:
    fill(store, *[20] * PARTITIONS)
    old = TopicConsumer(store, group="etl", clock=ManualClock())
    next(iter(old))
    TopicConsumer(store, group="etl")
    with pytest.raises(Fenced):
        old.next_descriptors(1)


def test_seek_discards_what_was_fetched_ahead(store: MemoryStore) -> None:
    fill(store, *[5] * PARTITIONS)
    consumer = TopicConsumer(store, group="etl")
    batches = iter(consumer)
    for _ in range(7):
        next(batches)
    consumer.seek("earliest")
    found = [(partition, batch.sequence) for partition, batch in batches]
    assert by_partition(found) == {number: list(range(5)) for number in range(PARTITIONS)}


def test_only_what_was_handed_over_can_be_acknowledged(store: MemoryStore) -> None:
    fill(store, *[5] * PARTITIONS)
    consumer = TopicConsumer(store, group="etl")
    partition, batch = next(iter(consumer))
    consumer.ack(partition, batch.sequence)
    for number in range(PARTITIONS):
        with pytest.raises(InvalidInput, match="never handed out"):
            consumer.ack(number, 1)


def test_fence_in_one_partition_stops_the_iteration_within_the_age_of_a_look(store: MemoryStore) -> None:
    fill(store, *[20] * PARTITIONS)
    clock = ManualClock()
    consumer = TopicConsumer(store, group="etl", clock=clock)
    batches = iter(consumer)
    next(batches)
    Consumer(Topic(store).partition(2), group="etl")
    clock.advance(1.001)
    for _ in range(2):
        with pytest.raises(Fenced):
            next(batches)
    with pytest.raises(Fenced):
        consumer.ack(0, 0)


def test_fence_that_a_write_in_the_background_met_stops_the_whole_consumer(store: MemoryStore) -> None:
    fill(store, 5)
    clock = ManualClock()
    consumer = TopicConsumer(store, group="etl", clock=clock)
    batches = iter(consumer)
    partition, batch = next(batches)
    consumer.ack(partition, batch.sequence)
    Consumer(Topic(store).partition(partition), group="etl")
    with pytest.raises(Fenced):
        while True:
            clock.advance(0.1)
            consumer.next_descriptors(0)  # makes no look of its own
    with pytest.raises(Fenced):
        next(batches)


def test_failed_fetch_is_raised_in_its_turn_and_nothing_is_skipped(store: MemoryStore) -> None:
    fill(store, *[5] * PARTITIONS)
    failed: set[str] = set()

    class Failing(FaultyStore):
        def get(self, key: str) -> StoredObject:
            if "/data/" in key and key not in failed and key.endswith("3"):
                failed.add(key)
                raise Unavailable("once")
            return super().get(key)

    batches = iter(TopicConsumer(Failing(store), group="etl", retry_timeout=0))
    found: list[tuple[int, int]] = []
    errors = 0
    while True:
        try:
            partition, batch = next(batches)
        except Unavailable:
            errors += 1
        except StopIteration:
            break
        else:
            found.append((partition, batch.sequence))
    assert errors >= 1
    assert by_partition(found) == {number: list(range(5)) for number in range(PARTITIONS)}


def test_coroutine_reads_ahead_and_closes(store: MemoryStore, kind: Kind) -> None:
    fill(store, *[25] * PARTITIONS)
    counted = FaultyStore(store)

    async def read() -> int:
        async with TopicConsumer(counted, group="etl", clock=ManualClock()) as consumer:
            counted.calls.clear()
            found = [batch.batch.sequence async for batch in consumer]
        with pytest.raises(Closed):
            consumer.next_batch()
        return len(found)

    assert asyncio.run(read()) == 100
    schemas = 0 if kind is BYTES else PARTITIONS
    looks = 2 * 2 * PARTITIONS
    assert gets(counted) <= 100 + looks + schemas, "one look at each partition for the run, and one at the end"
