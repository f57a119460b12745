"""Writing to a topic: by key or in turns, one memory bound over all partitions: rfcs/0005, "Topics"."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from kinds import BYTES, ONLY_BYTES, ROWS, Kind, ValueTopicProducer, values_of
from patience import PATIENCE

from forebay.buffer.base.errors import Backpressure, Closed, InvalidInput, Timeout, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.coordinator import Durability, FlushFailed
from forebay.buffer.store.base import Data, StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicConsumer, add_partitions, create_topic, partition_for
from forebay.buffer.topic.topic import LOOK_SECONDS
from forebay.buffer.write.settings import ProducerLimits
from forebay.testing import Fault, FaultyStore, ManualClock

LONG = 10_000.0


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}/topic")
    create_topic(store, 4, schema=kind.schema)
    return store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def entries_by_partition(store: MemoryStore) -> dict[int, list[bytes]]:
    topic = Topic(store)
    return {
        number: [value for batch in Consumer(topic.partition(number)) for value in values_of(batch)]
        for number in range(topic.partitions)
    }


def used(store: MemoryStore) -> list[int]:
    return [number for number, entries in entries_by_partition(store).items() if entries]


def key_for(partition: int, partitions: int = 4) -> bytes:
    return next(key for key in map(str.encode, map(str, range(10_000))) if partition_for(key, partitions) == partition)


# By key


def test_calls_of_one_key_are_read_in_the_order_produced(store: MemoryStore) -> None:
    keys = [f"customer-{number}".encode() for number in range(10)]
    with ValueTopicProducer(store, flush_size_bytes=200) as producer:
        for number in range(300):
            producer.produce(b"%s %03d" % (keys[number % 10], number), key=keys[number % 10])
    found = entries_by_partition(store)
    assert sum(map(len, found.values())) == 300
    for number, entries in found.items():
        for entry in entries:
            assert partition_for(entry.split()[0], 4) == number
        for key in keys:
            of_key = [entry for entry in entries if entry.startswith(key + b" ")]
            assert of_key == sorted(of_key)


PRODUCE = textwrap.dedent("""
    import sys
    from forebay.buffer.topic import TopicProducer

    with TopicProducer(sys.argv[1]) as producer:
        for number in range(50):
            producer.produce(b"%s %03d" % (sys.argv[2].encode(), number), key=b"customer-%d" % (number % 5))
""")


def test_key_goes_to_the_same_partition_from_every_process(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/topic"
    topic = create_topic(url, 4)
    processes = [
        subprocess.Popen([sys.executable, "-c", PRODUCE, url, name], env={"PYTHONHASHSEED": seed})
        for name, seed in (("first", "1"), ("second", "2"))
    ]
    assert [process.wait() for process in processes] == [0, 0]
    total = 0
    for number in range(4):
        entries = [entry for batch in Consumer(topic.partition(number)) for entry in batch.entries]
        total += len(entries)
        for name in (b"first", b"second"):
            of_name = [entry for entry in entries if entry.startswith(name)]
            assert of_name == sorted(of_name)
        for entry in entries:
            assert partition_for(b"customer-%d" % (int(entry.split()[1]) % 5), 4) == number
    assert total == 100


@pytest.mark.parametrize("key", ["text", 7])
def test_key_that_is_not_bytes_is_refused(store: MemoryStore, key: object) -> None:
    with ValueTopicProducer(store) as producer, pytest.raises(InvalidInput, match="a key must be bytes"):
        producer.produce(b"x", key=key)  # type: ignore[arg-type]  # what a caller might try
    assert used(store) == []


# In turns


@ONLY_BYTES
def test_calls_without_a_key_stay_in_one_partition_until_a_batch_is_due(store: MemoryStore, clock: ManualClock) -> None:
    with ValueTopicProducer(store, flush_interval=LONG, flush_size_bytes=1000, clock=clock) as producer:
        for _ in range(10):
            producer.produce(bytes(96))  # a hundred bytes in a batch
        first = producer.flush()
        first.result()
        assert len(used(store)) == 1, "all ten fit into one batch"
    batches = [len(list(Consumer(Topic(store).partition(number)))) for number in range(4)]
    assert sorted(batches) == [0, 0, 0, 1]


@ONLY_BYTES
def test_next_partition_takes_its_turn_when_a_batch_is_full(store: MemoryStore, clock: ManualClock) -> None:
    with ValueTopicProducer(store, flush_interval=LONG, flush_size_bytes=1000, clock=clock) as producer:
        for _ in range(40):
            producer.produce(bytes(96))
    assert {len(entries) for entries in entries_by_partition(store).values()} == {10}


def test_next_partition_takes_its_turn_with_every_flush_interval(store: MemoryStore, clock: ManualClock) -> None:
    with ValueTopicProducer(store, flush_interval=1.0, clock=clock) as producer:
        for _ in range(4):
            producer.produce(b"a")
            producer.produce(b"b")
            clock.advance(1.0)
    assert entries_by_partition(store) == {number: [b"a", b"b"] for number in range(4)}


def test_next_partition_takes_its_turn_after_a_flush(store: MemoryStore, clock: ManualClock) -> None:
    with ValueTopicProducer(store, flush_interval=LONG, clock=clock) as producer:
        for _ in range(4):
            producer.produce(b"a")
            producer.flush()
    assert entries_by_partition(store) == {number: [b"a"] for number in range(4)}


def test_producers_begin_at_different_partitions(store: MemoryStore) -> None:
    for seed in range(20):
        with ValueTopicProducer(store, random=Random(seed)) as producer:
            producer.produce(b"a")
    assert len(used(store)) == 4


# Handles, flush, close


def test_handle_is_done_once_the_entries_are_durable(store: MemoryStore) -> None:
    with ValueTopicProducer(store) as producer:
        producer.produce([b"a", b"b"], b"svc", key=b"k").result()
        found = [(values_of(b), b.metadata[0].payload) for _, b in TopicConsumer(store)]
        assert found == [([b"a", b"b"], b"svc")]


def test_flush_makes_every_partition_durable(store: MemoryStore, clock: ManualClock) -> None:
    with ValueTopicProducer(store, flush_interval=LONG, clock=clock) as producer:
        handles = [producer.produce(b"x", key=key_for(number)) for number in range(4)]
        flush = producer.flush()
        flush.wait(Durability.DURABLE, timeout=PATIENCE)
        assert flush.done()
        assert all(handle.done() for handle in handles)
        assert producer.buffered_bytes == 0


def test_flush_and_handles_can_be_awaited(store: MemoryStore) -> None:
    async def main() -> None:
        async with ValueTopicProducer(store, flush_interval=LONG) as producer:
            handles = [producer.produce(b"x", key=key_for(number)) for number in range(4)]
            await producer.flush()
            for handle in handles:
                await handle

    asyncio.run(main())
    assert used(store) == [0, 1, 2, 3]


def test_flush_that_is_not_done_in_time_times_out(store: MemoryStore) -> None:
    faulty = FaultyStore(store, {0: Fault.STALL}, only={"put"})
    producer = ValueTopicProducer(faulty, flush_interval=LONG)
    producer.produce(b"x")
    with pytest.raises(Timeout):
        producer.flush().result(timeout=0)
    faulty.release()
    producer.close()


def test_close_makes_all_durable_and_refuses_what_comes_after(store: MemoryStore, clock: ManualClock) -> None:
    producer = ValueTopicProducer(store, flush_interval=LONG, clock=clock)
    for number in range(3):
        producer.produce(b"x", key=key_for(number))
    producer.close()
    producer.close()
    assert used(store) == [0, 1, 2]
    for number in range(4):  # those that were open, and the one that was not
        with pytest.raises(Closed):
            producer.produce(b"x", key=key_for(number))
    with pytest.raises(Closed):
        producer.flush()


def test_batch_that_fails_fails_its_own_handles_and_the_close(store: MemoryStore, clock: ManualClock) -> None:
    faulty = FaultyStore(store, dict.fromkeys(range(10**4), Fault.FAIL), only={"put"})
    way = FaultyStore(faulty)
    producer = ValueTopicProducer(way, flush_interval=LONG, clock=clock)
    lost = producer.produce(b"x", key=key_for(0))
    with pytest.raises(Unavailable):
        producer.flush().wait()
    with pytest.raises(Unavailable):
        lost.result()
    way.inner = store
    kept = producer.produce(b"x", key=key_for(1))
    producer.close()
    kept.result()
    assert used(store) == [1]


def test_close_tells_what_could_not_be_stored(store: MemoryStore, clock: ManualClock) -> None:
    failed = Event()

    class Troubled(MemoryStore):
        """Partition 1 stores nothing, and partition 0 only after that was noticed."""

        def put(self, key: str, data: Data) -> str:
            if key.startswith("p-00001/"):
                raise Unavailable("partition 1 is out of order")
            assert failed.wait(timeout=PATIENCE)
            return super().put(key, data)

    producer = ValueTopicProducer(Troubled(store.url), flush_interval=LONG, clock=clock)
    producer.produce(b"x", key=key_for(0))
    producer.produce(b"x", key=key_for(1)).add_done_callback(lambda _: failed.set())
    with pytest.raises(Unavailable, match="out of order"):
        producer.close()
    producer.close()
    assert used(store) == [0]


# One bound on memory


Full = tuple[ValueTopicProducer, FaultyStore]
OVERHEAD = {BYTES: 45, ROWS: 464}
"""Bytes that a call of one entry counts for, beyond the length of its value."""


@pytest.fixture
def full(store: MemoryStore, clock: ManualClock, kind: Kind) -> Iterator[Full]:
    """A producer whose partition 0 holds 9,000 of 10,000 bytes and cannot get rid of them."""
    faulty = FaultyStore(store, {0: Fault.STALL}, only={"put"})
    producer = ValueTopicProducer(
        faulty, flush_interval=LONG, limits=ProducerLimits(buffered_bytes=10_000), compression="none", clock=clock
    )
    producer.produce(bytes(9_000 - OVERHEAD[kind]), key=key_for(0))
    yield producer, faulty
    faulty.release()
    producer.close()


def test_bytes_of_all_partitions_count_together(full: Full, kind: Kind) -> None:
    producer, _ = full
    assert producer.buffered_bytes == 9_000
    producer.try_produce(bytes(500 - OVERHEAD[kind]), key=key_for(1))
    with pytest.raises(Backpressure, match="9500 of 10000 bytes are held") as refused:
        producer.try_produce(bytes(501 - OVERHEAD[kind]), key=key_for(2))
    assert refused.value.write == kind.make(bytes(501 - OVERHEAD[kind]))


def test_produce_waits_for_room_no_longer_than_asked(full: Full, kind: Kind) -> None:
    producer, _ = full
    with pytest.raises(Timeout) as refused:
        producer.produce(bytes(1000), key=key_for(1), timeout=0)
    assert refused.value.write == kind.make(bytes(1000))


def test_produce_goes_on_when_another_partition_has_stored_its_batch(full: Full, kind: Kind) -> None:
    producer, faulty = full
    waiting = Thread(target=producer.produce, args=(bytes(5_000 - OVERHEAD[kind]),), kwargs={"key": key_for(1)})
    waiting.start()
    faulty.release()
    waiting.join(timeout=PATIENCE)
    assert not waiting.is_alive()
    assert producer.buffered_bytes == 5_000, "the first batch was flushed to make room, although no interval was over"


def test_call_larger_than_the_bound_goes_in_alone(store: MemoryStore) -> None:
    with ValueTopicProducer(store, limits=ProducerLimits(buffered_bytes=100)) as producer:
        producer.produce(bytes(1000), key=key_for(0)).result()
        producer.produce(bytes(1000), key=key_for(1)).result()
    assert used(store) == [0, 1]


def test_many_threads_never_hold_more_than_the_bound(store: MemoryStore) -> None:
    highest = 0
    producer = ValueTopicProducer(store, limits=ProducerLimits(buffered_bytes=2000), flush_interval=0.01)

    def produce(thread: int) -> None:
        nonlocal highest
        for number in range(50):
            producer.produce(bytes(300), key=b"%d" % (thread * 50 + number))
            highest = max(highest, producer.buffered_bytes)

    threads = [Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    producer.close()
    assert 0 < highest <= 2000
    assert sum(map(len, entries_by_partition(store).values())) == 200


def test_partition_with_too_long_a_backlog_refuses_entries(store: MemoryStore) -> None:
    with ValueTopicProducer(store, limits=ProducerLimits(backlog_bytes=1)) as producer:
        producer.produce(b"x", key=key_for(0)).result()
    with ValueTopicProducer(store, limits=ProducerLimits(backlog_bytes=1)) as producer:
        with pytest.raises(Backpressure, match=r"p-00000.*retains"):
            producer.produce(b"x", key=key_for(0))
        producer.produce(b"x", key=key_for(1)).result()


# Threads


def test_many_partitions_need_few_threads_and_leave_none_behind(kind: Kind) -> None:
    store = MemoryStore(f"memory://many-partitions-{kind.name}")
    create_topic(store, 64, schema=kind.schema)
    before = set(threading.enumerate())
    with ValueTopicProducer(store, flush_interval=0.01) as producer:
        for _ in range(3):
            for number in range(64):
                producer.produce(b"x", key=key_for(number, 64))
            producer.flush().result()
        assert len(set(threading.enumerate()) - before) < 32
    assert set(threading.enumerate()) <= before
    assert set(map(len, entries_by_partition(store).values())) == {3}


class Partial(MemoryStore):
    """A store that fails or holds up the uploads of partition 0."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.entered, self.go_on = Event(), Event()
        self.error: Exception | None = None

    def put(self, key: str, data: Data) -> str:
        if key.startswith("p-00000/"):
            self.entered.set()
            assert self.go_on.wait(timeout=PATIENCE)
            if self.error is not None:
                raise self.error
        return super().put(key, data)


def test_partition_whose_uploads_hang_does_not_hold_up_the_others(store: MemoryStore) -> None:
    partial = Partial(store.url)
    with ValueTopicProducer(partial, flush_interval=0.001, flush_size_bytes=1) as producer:
        stuck = [producer.produce(b"x", key=key_for(0)) for _ in range(50)]
        assert partial.entered.wait(timeout=PATIENCE)
        for number in range(1, 4):
            for _ in range(10):
                producer.produce(b"x", key=key_for(number)).result()
        assert not any(handle.done() for handle in stuck)
        partial.go_on.set()
    assert {number: len(entries) for number, entries in entries_by_partition(store).items()} == {
        0: 50,
        1: 10,
        2: 10,
        3: 10,
    }


def test_partition_that_fails_for_good_leaves_the_others_to_go_on(store: MemoryStore) -> None:
    partial = Partial(store.url)
    partial.error = ValueError("none of forebay's errors")
    partial.go_on.set()
    seed = next(seed for seed in range(100) if Random(seed).randrange(4) == 0)
    producer = ValueTopicProducer(partial, random=Random(seed))  # which opens partition 0 alone
    with pytest.raises(FlushFailed, match="none of forebay's errors"):
        producer.produce(bytes(100), key=key_for(0)).result()
    assert producer.buffered_bytes == 0
    producer.produce(b"x", key=key_for(1)).result()
    with pytest.raises(FlushFailed):
        producer.produce(b"x", key=key_for(0))
    with pytest.raises(FlushFailed):
        producer.close()
    assert used(store) == [1]


class FailsWhileOpening(MemoryStore):
    """A store that breaks the uploads of partition 0 once partition 1 is being opened, which waits for that."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opening, self.failed = Event(), Event()

    def get(self, key: str) -> StoredObject:
        if key.startswith("p-00001/"):
            self.opening.set()
            assert self.failed.wait(timeout=PATIENCE)
        return super().get(key)

    def put(self, key: str, data: Data) -> str:
        if key.startswith("p-00000/"):
            assert self.opening.wait(timeout=PATIENCE)
            raise ValueError("none of forebay's errors")
        return super().put(key, data)


def test_partition_being_opened_while_the_only_other_one_fails_can_be_written(store: MemoryStore) -> None:
    failing = FailsWhileOpening(store.url)
    seed = next(seed for seed in range(100) if Random(seed).randrange(4) == 0)
    producer = ValueTopicProducer(failing, random=Random(seed))  # which opens partition 0 alone
    first = producer.produce(b"x", key=key_for(0))
    handles = []
    opener = Thread(target=lambda: handles.append(producer.produce(b"x", key=key_for(1))), daemon=True)
    opener.start()
    with pytest.raises(FlushFailed):
        first.result()
    failing.failed.set()
    opener.join(timeout=PATIENCE)
    handles[0].result()
    with pytest.raises(FlushFailed):
        producer.close(timeout=PATIENCE)
    assert used(store) == [1]


@pytest.mark.parametrize("durability", list(Durability))
def test_close_from_a_done_callback_begins_the_close(store: MemoryStore, durability: Durability) -> None:
    producer = ValueTopicProducer(store)
    for number in range(4):
        producer.produce(b"x", key=key_for(number))
    closed = Event()

    def close(_handle: object) -> None:
        producer.close()
        closed.set()

    producer.produce(b"x", key=key_for(0)).add_done_callback(close, durability=durability)
    assert closed.wait(timeout=PATIENCE)
    producer.close(timeout=PATIENCE)
    assert sum(map(len, entries_by_partition(store).values())) == 5


def test_interpreter_exit_stores_what_a_forgotten_close_left(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/topic"
    create_topic(url, 4)
    program = textwrap.dedent(f"""
        from forebay.buffer.topic import TopicProducer

        kept = TopicProducer({url!r}, flush_interval=1000)
        for number in range(100):
            kept.produce(b"x", key=b"%d" % number)
    """)
    subprocess.run([sys.executable, "-c", program], check=True)
    assert sum(len(batch.entries) for _, batch in TopicConsumer(url)) == 100


def test_forked_child_gets_an_error_and_leaves_the_parents_producer_alone(store: MemoryStore) -> None:
    with ValueTopicProducer(store, flush_interval=LONG) as producer:
        producer.produce(b"parent", key=key_for(0))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                producer.close()
                producer.produce(b"child", key=key_for(1))
            except Closed as error:
                status = 0 if "open a producer here" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert used(store) == [0]


# New partitions


def test_new_partitions_are_noticed(store: MemoryStore, clock: ManualClock) -> None:
    with ValueTopicProducer(store, flush_interval=LONG, clock=clock) as producer:
        add_partitions(store, 6)
        key = key_for(5, 6)
        producer.produce(b"before", key=key)
        assert producer.partitions == 4
        clock.advance(LOOK_SECONDS)
        producer.produce(b"after", key=key)
        assert producer.partitions == 6
    found = entries_by_partition(store)
    assert found[partition_for(key, 4)] == [b"before"]
    assert found[5] == [b"after"]


def test_look_for_new_partitions_that_fails_stops_nothing(store: MemoryStore, clock: ManualClock) -> None:
    faulty = FaultyStore(store, {0: Fault.FAIL}, only={"get_if_changed"})
    with ValueTopicProducer(faulty, flush_interval=LONG, clock=clock) as producer:
        clock.advance(LOOK_SECONDS)
        producer.produce(b"x", key=key_for(2))
    assert used(store) == [2]
