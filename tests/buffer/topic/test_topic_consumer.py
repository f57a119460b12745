"""Reading a topic: one group over all partitions, a cursor in each: rfcs/0005, "Topics"."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread

import pytest
from kinds import Kind, ValueProducer, ValueTopicProducer, values_of
from patience import PATIENCE

from forebay.buffer.base.errors import Closed, Fenced, InvalidInput, NotFound, Timeout, Trimmed, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.store import StoredObject
from forebay.buffer.store.base import Data, Outcome
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import (
    PartitionDescriptor,
    Topic,
    TopicConsumer,
    TopicGroups,
    add_partitions,
    create_topic,
)
from forebay.buffer.topic.topic import LOOK_SECONDS
from forebay.testing import Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}/topic")
    create_topic(store, 3, schema=kind.schema)
    return store


def fill(store: MemoryStore, batches: dict[int, int], clock: ManualClock | None = None) -> None:
    """Give each partition this number of batches, each of one entry that names its place."""
    topic = Topic(store)
    for number, count in batches.items():
        with ValueProducer(topic.partition(number), flush_interval=1000, clock=clock) as producer:
            for place in range(count):
                producer.produce(b"%d/%d" % (number, place))
                producer.flush().result()


def places(found: list[PartitionDescriptor]) -> list[tuple[int, int]]:
    return [(item.partition, item.descriptor.sequence) for item in found]


def read_all(consumer: TopicConsumer) -> list[bytes]:
    return [value for _, batch in consumer for value in values_of(batch)]


# Reading


@pytest.mark.parametrize("group", [None, "etl"])
def test_every_partition_is_read_in_order_and_none_starves(store: MemoryStore, group: str | None) -> None:
    fill(store, {0: 5, 1: 2, 2: 5})
    with TopicConsumer(store, group=group) as consumer:
        found = [(partition, batch.sequence) for partition, batch in consumer]
    assert sorted(found) == [(0, n) for n in range(5)] + [(1, n) for n in range(2)] + [(2, n) for n in range(5)]
    for number in range(3):
        of_partition = [sequence for partition, sequence in found if partition == number]
        assert of_partition == sorted(of_partition)
    assert {partition for partition, _ in found[:3]} == {0, 1, 2}, "one of each before a second of any"


def test_batch_comes_with_its_partition_and_entries(store: MemoryStore) -> None:
    fill(store, {1: 1})
    found = TopicConsumer(store).next_batch()
    assert found is not None
    assert (found.partition, found.batch.sequence, values_of(found.batch)) == (1, 0, [b"1/0"])


def test_descriptors_are_shared_out_evenly(store: MemoryStore) -> None:
    fill(store, {0: 9, 1: 9, 2: 1})
    consumer = TopicConsumer(store, group="etl")
    found = places(consumer.next_descriptors(9))
    assert len(found) == 9
    assert [sum(partition == number for partition, _ in found) for number in range(3)] == [4, 4, 1]
    assert len(consumer.next_descriptors(100)) == 10
    assert consumer.next_descriptors(100) == []


def test_fewer_descriptors_than_partitions_are_found_wherever_they_are(store: MemoryStore) -> None:
    fill(store, {2: 3})
    consumer = TopicConsumer(store)
    assert [places(consumer.next_descriptors(1)) for _ in range(4)] == [[(2, 0)], [(2, 1)], [(2, 2)], []]


def test_one_descriptor_at_a_time_goes_round(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    consumer = TopicConsumer(store)
    found = [places(consumer.next_descriptors(1))[0][0] for _ in range(6)]
    assert sorted(found[:3]) == [0, 1, 2]
    assert sorted(found[3:]) == [0, 1, 2]


def test_no_descriptors_read_nothing(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    consumer = TopicConsumer(faulty)
    before = sum(faulty.calls.values())
    assert consumer.next_descriptors(0) == []
    assert sum(faulty.calls.values()) == before
    with pytest.raises(InvalidInput, match="at least 0"):
        consumer.next_descriptors(-1)


def test_descriptor_is_fetched_anywhere(store: MemoryStore) -> None:
    fill(store, {0: 1, 2: 1})
    consumer = TopicConsumer(store)
    fetcher = pickle.loads(pickle.dumps(consumer.fetch_handle()))
    found = pickle.loads(pickle.dumps(consumer.next_descriptors(10)))
    assert sorted((p, values_of(batch)) for p, batch in map(fetcher.fetch, found)) == [(0, [b"0/0"]), (2, [b"2/0"])]
    assert len(fetcher.fetch_raw(found[0])) > 0


def test_look_that_fails_in_one_partition_loses_nothing_of_the_others(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    for call in range(3):
        faulty = FaultyStore(store, {call: Fault.FAIL}, only={"get_if_changed"})
        consumer = TopicConsumer(faulty, retry_timeout=0)
        with pytest.raises(Unavailable):
            consumer.next_descriptors(100)
        faulty.calls.clear()
        found = consumer.next_descriptors(100)
        assert len(found) == 4, "of the other two"
        assert not faulty.calls, "by the look that failed"
        found += consumer.next_descriptors(100)
        assert sorted(places(found)) == [(p, s) for p in range(3) for s in range(2)]


def test_fetch_that_fails_is_repeated_by_the_next_call(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    faulty = FaultyStore(store)
    consumer = TopicConsumer(faulty, retry_timeout=0)
    consumer.next_batch()
    failing = FaultyStore(store, {0: Fault.FAIL, 2: Fault.FAIL}, only={"get"})
    faulty.inner = failing
    with pytest.raises(Unavailable):
        consumer.next_batch()
    found = []
    while True:
        try:
            got = consumer.next_batch()
        except Unavailable:
            continue
        if got is None:
            break
        found.append((got.partition, got.batch.sequence))
    assert len(set(found)) == len(found) == 5


def test_threads_that_share_a_consumer_get_every_batch_once(store: MemoryStore) -> None:
    fill(store, {0: 10, 1: 10, 2: 10})
    consumer = TopicConsumer(store)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: consumer.next_batch(), range(30)))
    assert len({(got.partition, got.batch.sequence) for got in found if got}) == 30
    assert consumer.next_batch() is None


def test_iteration_waits_for_more(store: MemoryStore) -> None:
    consumer = TopicConsumer(store, max_poll_interval=0.05)
    found: list[bytes] = []

    def read() -> None:
        for _, batch in consumer.batches(wait=True):
            found.extend(values_of(batch))
            if len(found) == 2:
                consumer.close()

    reading = Thread(target=read)
    reading.start()
    fill(store, {0: 1, 2: 1})
    reading.join(timeout=PATIENCE)
    assert not reading.is_alive()
    assert sorted(found) == [b"0/0", b"2/0"]


def test_iteration_gives_up_after_the_time_given(store: MemoryStore) -> None:
    clock = ManualClock()
    consumer = TopicConsumer(store, clock=clock)
    found: list[object] = []
    reading = Thread(target=lambda: found.extend(consumer.batches(wait=5.0)))
    reading.start()
    while reading.is_alive():
        clock.advance(0.5)
    assert found == []
    assert clock.monotonic() >= 5.0


def test_topic_can_be_read_by_a_coroutine(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 1})

    async def main() -> list[bytes]:
        return [value async for _, batch in TopicConsumer(store) for value in values_of(batch)]

    assert sorted(asyncio.run(main())) == [b"0/0", b"0/1", b"1/0"]


# Acknowledging


def test_each_partition_is_acknowledged_on_its_own_and_resumed_there(store: MemoryStore) -> None:
    fill(store, {0: 3, 1: 3, 2: 3})
    with TopicConsumer(store, group="etl") as consumer:
        consumer.next_descriptors(9)
        consumer.ack_through(0, 1)
        consumer.ack(2, 0)
        assert (len(consumer), consumer.lag().batches) == (7, 6)  # acks of `ack` are written by flush
        consumer.flush()
        assert {number: lag.batches for number, lag in consumer.lag().partitions.items()} == {0: 1, 1: 3, 2: 2}
    with TopicConsumer(store, group="etl") as consumer:
        assert sorted(places(consumer.next_descriptors(9))) == [(0, 2), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]


def test_close_writes_pending_acknowledgements_of_every_partition(store: MemoryStore) -> None:
    fill(store, {0: 1, 1: 1, 2: 1})
    with TopicConsumer(store, group="etl") as consumer:
        for partition, batch in consumer:
            consumer.ack(partition, batch.sequence)
    assert TopicGroups(store).describe("etl").waiting == 0


def test_acknowledgement_of_a_partition_that_is_not_read_is_refused(store: MemoryStore) -> None:
    consumer = TopicConsumer(store, partitions=[0, 2])
    for partition in (1, 3):
        with pytest.raises(
            InvalidInput, match=rf"partition {partition} of .* is not read by this consumer; name one of \[0, 2\]"
        ):
            consumer.ack_through(partition, 0)
    with pytest.raises(InvalidInput, match="never handed out"):
        consumer.ack(0, 0)


def test_lag_tells_the_oldest_batch_of_all(store: MemoryStore) -> None:
    clock = ManualClock()
    fill(store, {0: 1}, clock)
    clock.advance(30)
    fill(store, {1: 2}, clock)
    clock.advance(10)
    lag = TopicConsumer(store, clock=clock).lag()
    assert (lag.batches, lag.seconds, lag.partitions[1].seconds) == (3, 40.0, 10.0)


# Fences


def test_takeover_fences_the_whole_consumer(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    old = TopicConsumer(store, group="etl")
    old.next_descriptors(6)
    new = TopicConsumer(store, group="etl")
    for act in (
        lambda: old.next_descriptors(1),
        lambda: old.ack_through(0, 0),
        lambda: old.ack(1, 0),
        old.next_batch,
        old.flush,
        old.lag,
    ):
        with pytest.raises(Fenced):
            act()
    old.close()
    assert TopicGroups(store).describe("etl").waiting == 6
    assert len(read_all(new)) == 6


def test_fence_in_one_partition_stops_the_reading_of_all(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    consumer = TopicConsumer(store, group="etl")
    consumer.next_descriptors(3)
    Consumer(Topic(store).partition(1), group="etl")
    with pytest.raises(Fenced):
        consumer.next_descriptors(3)
    with pytest.raises(Fenced):
        consumer.next_descriptors(3)  # though the other partitions had something
    with pytest.raises(Fenced):
        consumer.ack_through(0, 0)
    consumer.close()


def test_fence_met_while_closing_is_told_once(store: MemoryStore) -> None:
    fill(store, {0: 1})
    consumer = TopicConsumer(store, group="etl")
    consumer.next_descriptors(1)
    consumer.ack(0, 0)
    TopicConsumer(store, group="etl")
    with pytest.raises(Fenced):
        consumer.close()
    consumer.close()


def test_groups_do_not_fence_each_other(store: MemoryStore) -> None:
    fill(store, {0: 1, 1: 1})
    with TopicConsumer(store, group="a") as first, TopicConsumer(store, group="b") as second:
        assert sorted(read_all(first)) == sorted(read_all(second)) == [b"0/0", b"1/0"]


def test_closed_consumer_says_so(store: MemoryStore) -> None:
    consumer = TopicConsumer(store)
    consumer.close()
    for act in (consumer.next_batch, lambda: consumer.next_descriptors(0), consumer.flush, consumer.lag):
        with pytest.raises(Closed):
            act()


def test_opening_that_fails_half_way_lets_go_of_what_it_has(store: MemoryStore) -> None:
    TopicConsumer(store, group="etl").close()
    # The second claim fails until the register gives up.
    faulty = FaultyStore(store, dict.fromkeys(range(1, 101), Fault.FAIL), only={"replace"})
    with pytest.raises(Unavailable):
        TopicConsumer(faulty, group="etl", clock=ManualClock())
    assert not TopicGroups(store).describe("etl").alive


# Static assignment


def test_processes_share_a_topic_by_partitions(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    one = TopicConsumer(store, group="etl", partitions=[2, 0])
    other = TopicConsumer(store, group="etl", partitions=[1])
    assert (one.partitions, other.partitions) == ((0, 2), (1,))
    assert sorted(read_all(one)) == [b"0/0", b"0/1", b"2/0", b"2/1"]
    assert sorted(read_all(other)) == [b"1/0", b"1/1"]


def test_group_is_made_in_every_partition_also_in_those_that_others_read(store: MemoryStore) -> None:
    """Else the collector could trim what another process was about to read."""
    fill(store, {0: 1, 1: 1, 2: 1})
    TopicConsumer(store, group="etl", from_="latest", partitions=[0]).close()
    for number in range(3):
        assert Groups(Topic(store).partition(number)).describe("etl").start == 1


@pytest.mark.parametrize("partitions", [[3], [-1], [], [0, 7]])
def test_partition_that_does_not_exist_is_refused(store: MemoryStore, partitions: list[int]) -> None:
    with pytest.raises(InvalidInput, match="partitions must be some of 0 to 2"):
        TopicConsumer(store, partitions=partitions)


# Starts and seeks


def test_group_starts_where_it_was_first_told_to(store: MemoryStore) -> None:
    fill(store, {0: 1, 1: 1})
    TopicConsumer(store, group="new", from_="latest").close()
    fill(store, {0: 1})
    with TopicConsumer(store, group="new", from_="earliest") as consumer:
        assert places(consumer.next_descriptors(9)) == [(0, 1)]


def test_group_starts_at_a_time_in_every_partition(store: MemoryStore) -> None:
    clock = ManualClock(now_ms=1_700_000_000_000)
    fill(store, {0: 1, 1: 1}, clock)
    clock.advance(100)
    middle = datetime.fromtimestamp(1_700_000_050, tz=UTC)
    fill(store, {1: 1, 2: 1}, clock)
    with TopicConsumer(store, group="late", from_=middle) as consumer:
        assert sorted(places(consumer.next_descriptors(9))) == [(1, 1), (2, 0)]
        consumer.seek("earliest")
        assert len(consumer.next_descriptors(9)) == 4
        consumer.seek(middle.isoformat())
        assert len(consumer.next_descriptors(9)) == 2
        consumer.seek("latest")
        assert consumer.next_descriptors(9) == []


def test_sequence_is_no_place_in_a_topic(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="sequence 5 is another batch in each partition"):
        TopicConsumer(store, group="etl", from_=5)  # type: ignore[arg-type]  # what a caller might try
    with pytest.raises(InvalidInput, match="sequence 5 is another batch in each partition"):
        TopicConsumer(store).seek(5)  # type: ignore[arg-type]  # what a caller might try
    assert Topic(store).record.groups == {}


def test_trimmed_batches_are_raised_or_skipped_and_counted(store: MemoryStore) -> None:
    fill(store, {0: 3, 1: 1})
    TopicConsumer(store, group="etl").close()
    queue = Queue(Topic(store).partition(0))
    queue.change_head(lambda head: _trim(head, 2), lambda head: head.first_sequence == 2)
    with TopicConsumer(store, group="etl") as consumer, pytest.raises(Trimmed):
        consumer.next_descriptors(9)
    with TopicConsumer(store, group="etl", on_trimmed="skip") as consumer:
        assert sorted(places(consumer.next_descriptors(9))) == [(0, 2), (1, 0)]
        assert consumer.skipped == 2


def sweep(store: MemoryStore, partition: int, point: int) -> None:
    """Drop a partition's batches before a sequence, and delete their objects, as retention does."""
    buffer = Topic(store).partition(partition)
    queue = Queue(buffer)
    dropped = [found.location for found in queue.descriptors(queue.read().first_sequence, point)]
    queue.change_head(lambda head: _trim(head, point), lambda head: head.first_sequence == point)
    buffer.delete(dropped[:point])


def test_batches_swept_between_look_and_fetch_are_skipped_and_counted(store: MemoryStore) -> None:
    fill(store, {0: 4, 1: 2, 2: 1})
    with TopicConsumer(store, group="etl", on_trimmed="skip") as consumer:
        first = consumer.next_batch()  # and what the same look found in the other partitions
        assert first is not None
        unread = {0: 4, 1: 2, 2: 1}
        unread[first.partition] -= 1
        for number, count in ((0, 3), (1, 2), (2, 1)):
            sweep(store, number, count)
        assert [(found.partition, found.batch.sequence) for found in consumer] == [(0, 3)]
        assert consumer.skipped == sum(unread.values()) - 1
        consumer.ack_through(0, 3)


def test_next_batch_skips_what_was_swept_since_the_last_look(store: MemoryStore) -> None:
    fill(store, {0: 4, 1: 2, 2: 1})
    with TopicConsumer(store, group="etl", on_trimmed="skip") as consumer:
        assert consumer.next_batch() is not None  # this look finds batches of the other partitions too
        for number, count in ((0, 3), (1, 2), (2, 1)):
            sweep(store, number, count)
        found = consumer.next_batch()
        assert found is not None
        assert (found.partition, found.batch.sequence) == (0, 3)
        assert consumer.next_batch() is None


def test_batch_swept_between_look_and_fetch_is_trimmed_and_a_seek_reads_on(store: MemoryStore) -> None:
    fill(store, {0: 4, 1: 1})
    with TopicConsumer(store, group="etl", partitions=[0, 1]) as consumer:
        before = places([PartitionDescriptor(p, b.descriptor) for p, b in [consumer.next_batch()]])  # type: ignore[misc]
        sweep(store, 0, 3)
        for _ in range(2):
            with pytest.raises(Trimmed) as caught:
                list(consumer)
        assert caught.value.first == 3
        consumer.seek("earliest")
        after = [(found.partition, found.batch.sequence) for found in consumer]
    assert {*before, *after} >= {(0, 3), (1, 0)}


def test_batch_that_is_missing_though_it_is_listed_is_not_found(store: MemoryStore) -> None:
    fill(store, {1: 2})
    buffer = Topic(store).partition(1)
    buffer.delete([found.location for found in Queue(buffer).descriptors(0, 1)])
    with TopicConsumer(store, group="etl", on_trimmed="skip") as consumer:
        for _ in range(2):
            with pytest.raises(NotFound, match="batch 0"):
                consumer.next_batch()


def test_batch_swept_after_another_took_over_is_fenced(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2})
    consumer = TopicConsumer(store, group="etl", on_trimmed="skip")
    assert consumer.next_batch() is not None
    with TopicConsumer(store, group="etl"):
        sweep(store, 0, 2)
        sweep(store, 1, 2)
        with pytest.raises(Fenced):
            consumer.next_batch()
        with pytest.raises(Fenced):
            consumer.next_descriptors(1)


def test_batch_that_was_looked_up_and_not_returned_cannot_be_acknowledged(store: MemoryStore) -> None:
    fill(store, {0: 2, 1: 2, 2: 2})
    consumer = TopicConsumer(store, group="etl")
    first = consumer.next_batch()
    assert first is not None
    for number in {0, 1, 2} - {first.partition}:
        with pytest.raises(InvalidInput, match="never handed out"):
            consumer.ack_through(number, 0)
    consumer.ack_through(first.partition, 0)


def test_reading_gives_up_when_retention_is_always_faster(store: MemoryStore) -> None:
    fill(store, {0: 1})

    class Sweeping(FolderStore):
        """A store in which each batch is dropped just before it is fetched, and another is there instead."""

        def get(self, key: str) -> StoredObject:
            if "/data/" in key:
                fill(store, {0: 1})
                sweep(store, 0, Queue(Topic(store).partition(0)).read().next_sequence - 1)
            return super().get(key)

    consumer = TopicConsumer(Sweeping(MemoryStore(store.url.rpartition("/")[0]), "topic"), on_trimmed="skip")
    with pytest.raises(Timeout, match="retention dropped"):
        consumer.next_batch()


def _trim(head: Head, point: int) -> Head | None:
    from msgspec.structs import replace

    return None if head.first_sequence >= point else replace(head.trim(point, {}), revision=head.revision + 1)


# New partitions


@pytest.mark.parametrize("group", [None, "etl"])
def test_new_partitions_are_noticed_and_read_from_their_start(store: MemoryStore, group: str | None) -> None:
    clock = ManualClock()
    with TopicConsumer(store, group=group, from_="latest", clock=clock) as consumer:
        add_partitions(store, 5)
        fill(store, {0: 1, 3: 1, 4: 2})
        assert places(consumer.next_descriptors(9)) == [(0, 0)]
        clock.advance(LOOK_SECONDS)
        assert sorted(places(consumer.next_descriptors(9))) == [(3, 0), (4, 0), (4, 1)]
        assert consumer.partitions == (0, 1, 2, 3, 4)


def test_new_partitions_are_left_alone_by_who_reads_certain_ones(store: MemoryStore) -> None:
    clock = ManualClock()
    consumer = TopicConsumer(store, group="etl", partitions=[0, 1, 2], clock=clock)
    add_partitions(store, 4)
    fill(store, {3: 1})
    clock.advance(LOOK_SECONDS)
    assert consumer.next_descriptors(9) == []
    with TopicConsumer(store, group="etl", partitions=[3]) as other:
        assert places(other.next_descriptors(9)) == [(3, 0)]


def test_fenced_consumer_does_not_take_a_new_partition_from_its_successor(store: MemoryStore) -> None:
    clock = ManualClock()
    old = TopicConsumer(store, group="etl", clock=clock)
    add_partitions(store, 4)
    new = TopicConsumer(store, group="etl")
    clock.advance(LOOK_SECONDS)
    with pytest.raises(Fenced):
        old.next_descriptors(9)
    fill(store, {3: 1})
    assert places(new.next_descriptors(9)) == [(3, 0)]


def test_partition_that_is_claimed_while_the_consumer_closes_is_let_go(store: MemoryStore) -> None:
    clock = ManualClock()
    consumer = TopicConsumer(store, group="etl", clock=clock)
    add_partitions(store, 4)
    clock.advance(LOOK_SECONDS)
    claims = store.create

    def close_before_the_claim(key: str, data: Data) -> Outcome:
        if key.startswith("p-00003/cursors/"):
            consumer.close()
        return claims(key, data)

    store.create = close_before_the_claim  # type: ignore[method-assign]
    with suppress(Closed):
        consumer.next_descriptors(9)
    assert not TopicGroups(store).describe("etl").alive


def test_entries_come_through_a_topic_from_end_to_end(store: MemoryStore) -> None:
    with ValueTopicProducer(store, flush_size_bytes=100) as producer:
        for number in range(200):
            producer.produce(b"%03d" % number, key=b"%d" % (number % 7))
    with TopicConsumer(store, group="etl") as consumer:
        found = []
        for partition, batch in consumer:
            found += values_of(batch)
            consumer.ack_through(partition, batch.sequence)
        assert consumer.lag().batches == 0
    assert sorted(found) == [b"%03d" % number for number in range(200)]
