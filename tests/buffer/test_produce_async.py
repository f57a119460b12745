"""Coroutines await room in a producer: rfcs/0004, "The way in"."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kinds import ONLY_BYTES, Kind, ValueProducer, ValueTopicProducer, values_of

from forebay.buffer.base.errors import Backpressure, Closed, InvalidInput, Timeout
from forebay.buffer.consumer import Consumer
from forebay.buffer.coordinator import Durability
from forebay.buffer.manifest.topic import partition_name
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicConsumer, create_topic, partition_for
from forebay.buffer.topic.topic import LOOK_SECONDS
from forebay.buffer.write.settings import ProducerLimits
from forebay.testing import FaultyStore, ManualClock


class Gated(FaultyStore):
    """Stores no batch until the gate is open."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()

    def put(self, key: str, data: Any) -> str:
        if "data/" in key:
            self.gate.wait()
        return super().put(key, data)


class HeldReads(FaultyStore):
    """Answers no read of what `held` names until the gate is open."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.read: set[str] = set()
        self.held: str | None = None
        self.asked, self.gate = threading.Event(), threading.Event()

    def get(self, key: str) -> StoredObject:
        self._note(key)
        return super().get(key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        self._note(key)
        return super().get_if_changed(key, version)

    def _note(self, key: str) -> None:
        self.read.add(key)
        if key == self.held:
            self.asked.set()
            self.gate.wait()


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    """A folder: of a buffer of each kind, or of a topic that a test creates."""
    store = MemoryStore(f"memory://{request.node.name}/x")
    if "topic" not in request.node.name:
        kind.begin(store)
    return store


ONE_CALL = ProducerLimits(buffered_bytes=1)
"""A call is taken only when the one before is durable."""


def entries(store: MemoryStore) -> list[bytes]:
    return [value for batch in Consumer(store) for value in values_of(batch)]


async def open_later(gated: Gated, *waiting: asyncio.Task[Any]) -> None:
    """Open the gate when every task waits: each had its turn, and none is done."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    gated.gate.set()


def test_entries_are_durable_once_the_handle_says_so(store: MemoryStore) -> None:
    async def main() -> None:
        async with ValueProducer(store) as producer:
            handle = await producer.produce_async([b"a", b"b"], b"svc=web")
            await handle
            assert entries(store) == [b"a", b"b"]
            assert handle.ingestion_time is not None

    asyncio.run(main())


def test_event_loop_goes_on_while_a_call_awaits_room(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        async with ValueProducer(gated, flush_interval=0.01, limits=ONE_CALL) as producer:
            await producer.produce_async(b"first")
            second = asyncio.create_task(producer.produce_async(b"second"))
            await open_later(gated, second)
            await (await second)

    asyncio.run(main())
    assert entries(store) == [b"first", b"second"]


def test_room_in_the_queue_of_calls_is_awaited_too(store: MemoryStore) -> None:
    async def main() -> None:
        async with ValueProducer(store, flush_interval=0.01, limits=ProducerLimits(buffered_calls=1)) as producer:
            await asyncio.gather(*[producer.produce_async(b"%d" % number) for number in range(100)])

    asyncio.run(main())
    assert sorted(entries(store)) == sorted(b"%d" % number for number in range(100))


def test_calls_of_one_task_are_queued_in_their_order(store: MemoryStore) -> None:
    async def write(producer: Producer, name: int) -> None:
        for number in range(30):
            await producer.produce_async(b"%d/%02d" % (name, number))

    async def main() -> None:
        async with ValueProducer(store, flush_interval=0.01, limits=ProducerLimits(buffered_bytes=2000)) as producer:
            await asyncio.gather(*[write(producer, name) for name in range(5)])

    asyncio.run(main())
    found = entries(store)
    assert len(found) == 150
    for name in range(5):
        mine = [entry for entry in found if entry.startswith(b"%d/" % name)]
        assert mine == sorted(mine)


def test_calls_wait_first_come_first_served_with_those_of_threads(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        async with ValueProducer(gated, flush_interval=0.01, limits=ONE_CALL) as producer:
            await producer.produce_async(b"0")
            first = asyncio.create_task(producer.produce_async(b"1"))
            await asyncio.sleep(0)
            with pytest.raises(Backpressure):
                producer.try_produce(b"too early")
            second = asyncio.create_task(producer.produce_async(b"2"))
            await open_later(gated, first, second)
            await (await first)
            await (await second)

    asyncio.run(main())
    assert entries(store) == [b"0", b"1", b"2"]


def test_blocking_call_behind_a_coroutine_of_its_own_thread_is_refused(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        async with ValueProducer(gated, flush_interval=0.01, limits=ONE_CALL) as producer:
            await producer.produce_async(b"first")
            waiting = asyncio.create_task(producer.produce_async(b"second"))
            await asyncio.sleep(0)
            with pytest.raises(InvalidInput, match="await write_async or produce_async"):
                producer.produce(b"refused", timeout=0)
            await open_later(gated, waiting)
            await (await waiting)
            await asyncio.to_thread(producer.produce, b"third")

    asyncio.run(main())
    assert entries(store) == [b"first", b"second", b"third"]


def test_blocking_call_behind_a_coroutine_whose_loop_stands_still_is_refused(store: MemoryStore) -> None:
    gated = Gated(store)

    async def fill(producer: Producer) -> asyncio.Task[Any]:
        await producer.produce_async(b"first")
        waiting = asyncio.create_task(producer.produce_async(b"second"))
        await asyncio.sleep(0)
        return waiting

    with asyncio.Runner() as runner, ValueProducer(gated, flush_interval=0.01, limits=ONE_CALL) as producer:
        waiting = runner.run(fill(producer))
        with pytest.raises(InvalidInput, match="await write_async or produce_async"):
            producer.produce(b"refused", timeout=0)
        gated.gate.set()
        runner.run(asyncio.wait_for(waiting, None))
    assert entries(store) == [b"first", b"second"]


def test_blocking_call_waits_behind_a_coroutine_of_another_thread(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        async with ValueProducer(gated, flush_interval=0.01, limits=ONE_CALL) as producer:
            await producer.produce_async(b"first")
            waiting = asyncio.create_task(producer.produce_async(b"second"))
            await asyncio.sleep(0)
            blocking = asyncio.create_task(asyncio.to_thread(producer.produce, b"third"))
            await open_later(gated, waiting, blocking)
            await (await waiting)
            await (await blocking)

    asyncio.run(main())
    assert entries(store) == [b"first", b"second", b"third"]


def test_cancelled_call_has_queued_nothing_and_gives_up_its_place(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        async with ValueProducer(gated, flush_interval=0.01, limits=ONE_CALL) as producer:
            await producer.produce_async(b"first")
            cancelled = asyncio.create_task(producer.produce_async(b"cancelled"))
            following = asyncio.create_task(producer.produce_async(b"following"))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await open_later(gated, following)
            await (await following)

    asyncio.run(main())
    assert entries(store) == [b"first", b"following"]


def test_call_without_room_in_time_gives_the_entries_back(store: MemoryStore, kind: Kind) -> None:
    gated, clock = Gated(store), ManualClock()

    async def main() -> None:
        async with ValueProducer(gated, limits=ONE_CALL, clock=clock) as producer:
            await producer.produce_async(b"first")
            late = asyncio.create_task(producer.produce_async(b"late", timeout=5.0))
            await asyncio.sleep(0)
            clock.advance(4.9)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not late.done()
            clock.advance(0.2)
            with pytest.raises(Timeout, match=r"5\.0 seconds") as caught:
                await late
            assert caught.value.write == kind.make(b"late")
            gated.gate.set()

    asyncio.run(main())
    assert entries(store) == [b"first"]


def test_close_ends_the_calls_that_await_room(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        producer = ValueProducer(gated, limits=ONE_CALL)
        await producer.produce_async(b"first")
        waiting = asyncio.create_task(producer.produce_async(b"second"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(producer.close))
        with pytest.raises(Closed):
            await waiting
        gated.gate.set()
        await closing
        with pytest.raises(Closed):
            await producer.produce_async(b"third")

    asyncio.run(main())
    assert entries(store) == [b"first"]


@ONLY_BYTES
def test_call_that_can_never_be_stored_is_refused_at_once(store: MemoryStore) -> None:
    async def main() -> None:
        async with ValueProducer(store) as producer:
            with pytest.raises(InvalidInput):
                await producer.produce_async("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="number must be given"):
                await producer.produce_async(b"x", number=1)

    asyncio.run(main())


def test_number_of_a_cancelled_call_can_be_used_again(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        async with ValueProducer(gated, writer_id="outbox", flush_interval=0.01, limits=ONE_CALL) as producer:
            await producer.produce_async(b"1", number=1)
            cancelled = asyncio.create_task(producer.produce_async(b"2", number=2))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            again = asyncio.create_task(producer.produce_async(b"2", number=2))
            await open_later(gated, again)
            await (await again)

    asyncio.run(main())
    assert entries(store) == [b"1", b"2"]


def test_topic_takes_calls_of_coroutines_by_key_and_in_turn(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 3, schema=kind.schema)

    async def main() -> None:
        async with ValueTopicProducer(store, flush_interval=0.01) as producer:
            for number in range(30):
                await producer.produce_async(b"%02d" % number, key=b"%d" % (number % 5))
            await (await producer.produce_async(b"without a key"))
            with pytest.raises(InvalidInput, match="key must be bytes"):
                await producer.produce_async(b"x", key="text")  # type: ignore[arg-type]

    asyncio.run(main())
    found = [(partition, entry) for partition, batch in TopicConsumer(store) for entry in values_of(batch)]
    assert len(found) == 31
    for key in range(5):
        mine = [(partition, entry) for partition, entry in found if entry[:1].isdigit() and int(entry) % 5 == key]
        assert len({partition for partition, _ in mine}) == 1
        assert mine == sorted(mine)


def test_topic_opens_a_partition_without_blocking_the_event_loop(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 8, schema=kind.schema)
    loop_thread = threading.current_thread()

    class Watched(FaultyStore):
        asked_in_the_loop = 0

        def next_fault(self, kind: str) -> Any:
            self.asked_in_the_loop += threading.current_thread() is loop_thread
            return super().next_fault(kind)

    watched = Watched(store)

    async def main() -> None:
        async with ValueTopicProducer(watched, flush_interval=0.01) as producer:
            watched.asked_in_the_loop = 0  # opening it asks there
            for number in range(100):
                await producer.produce_async(b"x", key=b"%d" % number)

    asyncio.run(main())
    assert watched.asked_in_the_loop == 0


def hold_an_unopened_partition(held: HeldReads) -> bytes:
    """Hold the opening of a partition of two that a new producer has not opened, and return a key that goes to it."""
    unopened = 1 if f"{partition_name(0)}/manifest" in held.read else 0
    held.held = f"{partition_name(unopened)}/manifest"
    return next(key for key in (b"%d" % number for number in range(100)) if partition_for(key, 2) == unopened)


def in_order_of_reading(store: MemoryStore) -> list[bytes]:
    return [value for _, batch in TopicConsumer(store) for value in values_of(batch)]


def test_topic_queues_no_call_before_the_one_that_opened_its_partition(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    held = HeldReads(store)

    async def main() -> None:
        thread = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(thread)
        async with ValueTopicProducer(held) as producer:
            key = hold_an_unopened_partition(held)
            first = asyncio.create_task(producer.produce_async(b"1", key=key))
            await asyncio.sleep(0)
            held.gate.set()
            # The loop does not run meanwhile: the partition is open, and the first call has not noticed.
            thread.submit(lambda: None).result()
            await producer.produce_async(b"2", key=key)
            await first

    asyncio.run(main())
    assert in_order_of_reading(store) == [b"1", b"2"]


def test_topic_queues_calls_that_wait_for_a_partition_in_their_order(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    held = HeldReads(store)

    async def main() -> None:
        async with ValueTopicProducer(held) as producer:
            key = hold_an_unopened_partition(held)
            calls = [asyncio.create_task(producer.produce_async(b"%02d" % number, key=key)) for number in range(50)]
            await asyncio.to_thread(held.asked.wait)
            held.gate.set()
            await asyncio.gather(*calls)

    asyncio.run(main())
    assert in_order_of_reading(store) == [b"%02d" % number for number in range(50)]


def test_topic_queues_no_call_before_the_one_that_looks_for_partitions(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 1, schema=kind.schema)
    held, clock = HeldReads(store), ManualClock()

    async def main() -> None:
        async with ValueTopicProducer(held, clock=clock) as producer:
            held.held = "manifest"
            clock.advance(LOOK_SECONDS)
            first = asyncio.create_task(producer.produce_async(b"1", key=b"k"))
            await asyncio.to_thread(held.asked.wait)
            second = asyncio.create_task(producer.produce_async(b"2", key=b"k"))
            for _ in range(10):
                await asyncio.sleep(0)
            held.gate.set()
            await asyncio.gather(first, second)

    asyncio.run(main())
    assert in_order_of_reading(store) == [b"1", b"2"]


def test_topic_takes_the_calls_behind_a_cancelled_one(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    held = HeldReads(store)

    async def main() -> None:
        async with ValueTopicProducer(held) as producer:
            key = hold_an_unopened_partition(held)
            calls = [asyncio.create_task(producer.produce_async(b"%d" % number, key=key)) for number in range(4)]
            await asyncio.to_thread(held.asked.wait)
            calls[0].cancel()  # it opens the partition
            calls[2].cancel()  # it waits for that
            held.gate.set()
            await asyncio.gather(*calls, return_exceptions=True)
            assert [call.cancelled() for call in calls] == [True, False, True, False]

    asyncio.run(main())
    assert in_order_of_reading(store) == [b"1", b"3"]


def test_topic_takes_calls_for_an_open_partition_while_another_is_opened(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    held = HeldReads(store)

    async def main() -> None:
        async with ValueTopicProducer(held) as producer:
            key = hold_an_unopened_partition(held)
            other = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, 2) != partition_for(key, 2))
            waiting = asyncio.create_task(producer.produce_async(b"1", key=key))
            await asyncio.to_thread(held.asked.wait)
            await (await producer.produce_async(b"2", key=other))
            assert not waiting.done()
            held.gate.set()
            await waiting

    asyncio.run(main())


def test_topic_awaits_room_and_gives_the_entries_back_in_time(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 1, schema=kind.schema)
    gated, clock = Gated(store), ManualClock()

    async def main() -> None:
        async with ValueTopicProducer(gated, limits=ONE_CALL, clock=clock) as producer:
            await producer.produce_async(b"first")
            late = asyncio.create_task(producer.produce_async(b"late", timeout=1.0))
            await asyncio.sleep(0)
            clock.advance(1.0)
            with pytest.raises(Timeout) as caught:
                await late
            assert caught.value.write == kind.make(b"late")
            gated.gate.set()

    asyncio.run(main())


@ONLY_BYTES
def test_coroutine_that_comes_while_others_wait_for_the_queue_enters_after_them(store: MemoryStore) -> None:
    async def main() -> None:
        limits = ProducerLimits(buffered_calls=10)
        async with ValueProducer(store, writer_id="outbox", flush_interval=0.01, limits=limits) as producer:
            calls = [producer.produce_async(b"%03d" % number, number=number) for number in range(1, 201)]
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0)
            entered = [task.result() for task in tasks if task.done()]
            assert 0 < len(entered) < len(tasks)
            # The event loop stands still: there is room again, but no coroutine that waits for it can see that.
            entered[-1].wait(durability=Durability.APPLIED)
            last = await producer.produce_async(b"201", number=201)
            for handle in [*(await asyncio.gather(*tasks)), last]:
                await handle

    asyncio.run(main())
    assert entries(store) == [b"%03d" % number for number in range(1, 202)]


@ONLY_BYTES
def test_coroutine_that_is_cancelled_at_the_head_of_the_line_lets_the_next_one_in(store: MemoryStore) -> None:
    gated = Gated(store)

    async def main() -> None:
        limits = ProducerLimits(buffered_calls=1)
        async with ValueProducer(gated, flush_interval=0.001, limits=limits) as producer:
            first = await producer.produce_async(b"1")
            waiting = [asyncio.create_task(producer.produce_async(b"%d" % number)) for number in range(2, 6)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            gated.gate.set()
            handles = [first, *(await asyncio.gather(*waiting[1:]))]
            for handle in handles:
                await handle

    asyncio.run(main())
    assert entries(store)[0] == b"1"
    assert entries(store)[-3:] == [b"3", b"4", b"5"]
