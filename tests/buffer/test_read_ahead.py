"""Iteration reads ahead: what it costs, what it hands over, and when it stops: rfcs/0004, "Reading ahead"."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kinds import Kind, append_all, kind_in

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Closed, Corrupt, Fenced, InvalidInput, NotFound, Trimmed, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.manifest import Queue
from forebay.buffer.read import iteration
from forebay.buffer.read.ahead import ReadAhead
from forebay.buffer.store import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock

DATA = encode_batch([b"0" * 1000], "none")
RAW = 1004


def fill(store: MemoryStore, count: int) -> None:
    """Append batches of one entry, all of one size, to a native buffer."""
    queue = Queue(store)
    first = queue.read().next_sequence
    kind = kind_in(store)
    append_all(queue, [kind.upload(store, f"data/{i:026}", [b"0" * 1000]) for i in range(first, first + count)])


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    kind.begin(store)
    return store


class Traced(FaultyStore):
    """Counts how often each batch is read, and how many at most were read and not handed over."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.reads: Counter[int] = Counter()
        self.handed_over = 0
        self.most_ahead = 0
        self._counting = threading.Lock()

    def get(self, key: str) -> StoredObject:
        if key.startswith("data/"):
            with self._counting:
                self.reads[int(key.removeprefix("data/"))] += 1
                self.most_ahead = max(self.most_ahead, self.reads.total() - self.handed_over)
        return super().get(key)


class Gated(FaultyStore):
    """Lets no batch through until the gate is open."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)

    def get(self, key: str) -> StoredObject:
        if key.startswith("data/"):
            self.waiting.release()
            self.gate.wait()
        return super().get(key)


class Counted(FaultyStore):
    """Counts requests by kind."""

    @property
    def gets(self) -> int:
        return self.calls["get"] + self.calls["get_if_changed"]


def sequences(batches: Any) -> list[int]:
    return [batch.sequence for batch in batches]


def ahead_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("forebay-ahead")]


# Short of memory


def test_batch_whose_decoding_cannot_be_begun_is_raised_in_its_turn_and_follows(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 5)
    start = threading.Thread.start
    refused: list[str] = []

    def refuse_once(thread: threading.Thread) -> None:
        if "decode" in thread.name and not refused:
            refused.append(thread.name)
            raise MemoryError
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    gated = Gated(store)
    consumer = Consumer(gated, group="etl")
    found: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: found.extend(sequences(consumer)))
        for _ in range(2):
            gated.waiting.acquire()  # the second batch is being read, so a reader will begin to decode the first
        gated.gate.set()
        with pytest.raises(MemoryError):
            first.result()
    assert sequences(consumer) == list(range(5))
    assert refused


def test_batch_whose_arrival_nobody_told_is_noticed(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 1)
    gated = Gated(store)

    class Opening(SystemClock):
        """Opens the gate when the consumer waits, and tells it nothing."""

        def wait_until(self, condition: threading.Condition, deadline: float | None) -> bool:
            assert deadline is not None, "it would wait for ever"
            gated.gate.set()
            return super().wait_until(condition, deadline)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(iteration, "_notify", fail)
    try:
        assert sequences(Consumer(gated, clock=Opening())) == [0]
    finally:
        gated.gate.set()


# What it costs


@pytest.mark.parametrize("acknowledge", ["ack", "ack_through"])
def test_group_with_a_backlog_needs_little_more_than_one_get_a_batch(store: MemoryStore, acknowledge: str) -> None:
    fill(store, 1000)
    counted = Counted(store)
    consumer = Consumer(counted, group="etl", clock=ManualClock())
    counted.calls.clear()
    for batch in consumer:
        getattr(consumer, acknowledge)(batch.sequence)
    assert consumer.acked == 999
    assert counted.gets <= 1.1 * 1000


def test_ack_through_of_a_group_is_one_write_and_no_read(store: MemoryStore) -> None:
    fill(store, 50)
    counted = Counted(store)
    consumer = Consumer(counted, group="etl", clock=ManualClock())
    found = consumer.next_descriptors(50)
    counted.calls.clear()
    for descriptor in found:
        consumer.ack_through(descriptor.sequence)
    assert counted.calls == {"replace": 50}


def test_batches_are_fetched_in_parallel(store: MemoryStore) -> None:
    fill(store, 40)
    gated = Gated(store)
    consumer = Consumer(gated, group="etl")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: sequences(consumer))
        for _ in range(16):
            gated.waiting.acquire()
        gated.gate.set()
        assert reading.result() == list(range(40))


@pytest.mark.parametrize("batches", [1, 4, 32])
def test_no_more_batches_are_held_than_the_budget_allows(store: MemoryStore, batches: int) -> None:
    fill(store, 100)
    traced = Traced(store)
    consumer = Consumer(traced, group="etl", read_ahead=ReadAhead(batches=batches))
    for number, batch in enumerate(consumer):
        assert batch.sequence == number
        traced.handed_over += 1
    assert 1 <= traced.most_ahead <= batches
    assert set(traced.reads.values()) == {1}


@pytest.mark.parametrize(("room", "most"), [(0, 2), (1, 2), (5, 6)])
def test_no_more_bytes_are_held_than_the_budget_allows(store: MemoryStore, room: int, most: int) -> None:
    """One batch as it is decoded, and the others as they are stored; at least one of each."""
    fill(store, 50)
    traced = Traced(store)
    ahead = ReadAhead(max_bytes=RAW + room * len(DATA))
    for _batch in Consumer(traced, group="etl", read_ahead=ahead):
        traced.handed_over += 1
    assert traced.most_ahead <= most


def test_long_backlog_of_a_slow_reader_is_not_listed_further_and_further_ahead(store: MemoryStore) -> None:
    """Each batch is handed over after a look of its own, as the reader takes longer than a look is good for."""
    fill(store, 600)
    clock = ManualClock()
    counted = Counted(store)
    consumer = Consumer(counted, group="etl", clock=clock)
    for _batch in consumer:
        clock.advance(2)
    assert counted.gets <= 600 + 3 * 600
    assert sequences(consumer) == []


def test_reading_ahead_can_be_turned_off(store: MemoryStore) -> None:
    fill(store, 3)
    traced = Traced(store)
    before = ahead_threads()
    batches = iter(Consumer(traced, group="etl", read_ahead=ReadAhead(batches=0)))
    assert next(batches).sequence == 0
    assert dict(traced.reads) == {0: 1}
    assert not set(ahead_threads()) - set(before), "threads of other tests may end meanwhile, and none begins"


@pytest.mark.parametrize(
    "settings", [{"batches": -1}, {"batches": 1.5}, {"max_bytes": 0}, {"max_age": 0}, {"max_age": float("nan")}]
)
def test_budget_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        ReadAhead(**settings)


@pytest.mark.parametrize("settings", [{"read_ahead": 5}, {"ack_interval": 0}, {"ack_interval": -1}])
def test_setting_that_makes_no_sense_is_refused(store: MemoryStore, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        Consumer(store, **settings)


# What it hands over


def test_batch_that_was_only_fetched_cannot_be_acknowledged(store: MemoryStore) -> None:
    fill(store, 3)
    consumer = Consumer(store, group="etl")
    batches = iter(consumer)
    next(batches)
    consumer.ack(0)
    with pytest.raises(InvalidInput, match="never handed out"):
        consumer.ack(1)


@pytest.mark.parametrize("failing", range(6))
def test_failed_fetch_is_raised_in_its_turn_and_the_same_batch_follows(store: MemoryStore, failing: int) -> None:
    fill(store, 6)

    class Failing(Traced):
        def get(self, key: str) -> StoredObject:
            found = super().get(key)
            if key.endswith(f"/{failing:026}") and self.reads[failing] == 1:
                raise Unavailable("once")
            return found

    batches = iter(Consumer(Failing(store), group="etl", retry_timeout=0))
    assert [next(batches).sequence for _ in range(failing)] == list(range(failing))
    with pytest.raises(Unavailable, match="once"):
        next(batches)
    assert sequences(batches) == list(range(failing, 6))


def test_failed_look_is_raised_and_nothing_is_skipped(store: MemoryStore) -> None:
    fill(store, 250)
    faulty = FaultyStore(store, {2: Fault.FAIL}, only={"get_if_changed"})
    batches = iter(Consumer(faulty, group="etl", retry_timeout=0, clock=ManualClock()))
    found: list[int] = []
    with pytest.raises(Unavailable):
        found.extend(batch.sequence for batch in batches)
    assert found + sequences(batches) == list(range(250))


def test_damaged_batch_is_raised_in_its_turn_and_a_seek_passes_it(store: MemoryStore) -> None:
    fill(store, 4)
    store.put(f"data/{1:026}", DATA[:-1])
    consumer = Consumer(store, group="etl", clock=ManualClock())
    batches = iter(consumer)
    assert next(batches).sequence == 0
    for _ in range(2):
        with pytest.raises(Corrupt, match="batch 1"):
            next(batches)
    consumer.seek(2)
    assert sequences(batches) == [2, 3]


def test_other_ways_of_reading_go_on_where_iteration_is_and_discard_what_it_fetched(store: MemoryStore) -> None:
    fill(store, 8)
    traced = Traced(store)
    consumer = Consumer(traced, group="etl")
    batches = iter(consumer)
    assert next(batches).sequence == 0
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 1
    assert next(batches).sequence == 2
    assert [found.sequence for found in consumer.next_descriptors(2)] == [3, 4]
    assert next(batches).sequence == 5
    before = traced.reads[6]
    consumer.seek(6)
    assert next(batches).sequence == 6
    assert traced.reads[6] == before + 1, "a seek discards even what comes next"
    consumer.seek(0)
    assert sequences(batches) == list(range(8))


def test_dropped_iterator_leaves_its_batches_to_the_next(store: MemoryStore) -> None:
    fill(store, 10)
    traced = Traced(store)
    consumer = Consumer(traced, group="etl")
    found = [next(iter(consumer)).sequence for _ in range(10)]
    assert found == list(range(10))
    assert set(traced.reads.values()) == {1}


def test_two_iterators_share_the_batches(store: MemoryStore) -> None:
    fill(store, 6)
    consumer = Consumer(store, group="etl")
    one, other = iter(consumer), iter(consumer)
    assert [next(turn).sequence for turn in (one, other, other, one)] == [0, 1, 2, 3]
    assert sequences(one) == [4, 5]
    assert sequences(other) == []


def test_threads_that_iterate_over_one_consumer_get_each_batch_once(store: MemoryStore) -> None:
    fill(store, 300)
    consumer = Consumer(store, group="etl")
    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(lambda: sequences(consumer)) for _ in range(4)]]
    assert sorted(sequence for mine in found for sequence in mine) == list(range(300))
    assert all(mine == sorted(mine) for mine in found)


def test_nothing_is_skipped_if_threads_read_in_different_ways(store: MemoryStore) -> None:
    """Each finds what the others have listed for themselves, and only the position says what comes next."""
    fill(store, 300)
    consumer = Consumer(store, group="etl")

    def one_by_one() -> list[int]:
        found = []
        while (batch := consumer.next_batch()) is not None:
            found.append(batch.sequence)
        return found

    def by_descriptors() -> list[int]:
        found = []
        while descriptors := consumer.next_descriptors(3):
            found += [descriptor.sequence for descriptor in descriptors]
        return found

    with ThreadPoolExecutor(4) as pool:
        ways = [one_by_one, by_descriptors, lambda: sequences(consumer), lambda: sequences(consumer)]
        found = [future.result() for future in [pool.submit(way) for way in ways]]
    assert sorted(sequence for mine in found for sequence in mine) == list(range(300))


def test_what_is_appended_during_the_iteration_is_read_too(store: MemoryStore) -> None:
    fill(store, 2)
    consumer = Consumer(store, group="etl")
    found = []
    for batch in consumer:
        found.append(batch.sequence)
        if batch.sequence < 5:
            fill(store, 1)
    assert found == list(range(7))


def test_coroutine_reads_ahead_too(store: MemoryStore) -> None:
    fill(store, 100)
    counted = Counted(store)

    async def read() -> list[int]:
        async with Consumer(counted, group="etl", clock=ManualClock()) as consumer:
            counted.calls.clear()
            return [batch.sequence async for batch in consumer]

    assert asyncio.run(read()) == list(range(100))
    assert counted.gets <= 110


def test_cancelled_wait_for_a_batch_that_is_on_its_way_loses_nothing(store: MemoryStore) -> None:
    fill(store, 5)
    gated = Gated(store)

    async def read() -> list[int]:
        consumer = Consumer(gated, group="etl")
        reading = asyncio.ensure_future(anext(consumer.batches()))
        await asyncio.to_thread(gated.waiting.acquire)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        gated.gate.set()
        return [batch.sequence async for batch in consumer]

    assert asyncio.run(read()) == list(range(5))


# Fences


@pytest.mark.parametrize("group", [None, "etl"])
def test_fenced_consumer_stops_within_the_age_of_a_look(store: MemoryStore, group: str | None) -> None:
    fill(store, 50)
    clock = ManualClock()
    batches = iter(Consumer(store, group=group, clock=clock, read_ahead=ReadAhead(max_age=3.0)))
    next(batches)
    Consumer(store, group=group)
    clock.advance(3.0)
    assert next(batches).sequence == 1, "within the age that was asked for, nobody looks"
    clock.advance(0.001)
    for _ in range(2):
        with pytest.raises(Fenced):
            next(batches)


def test_batch_that_arrives_late_is_not_handed_over_by_a_fenced_consumer(store: MemoryStore) -> None:
    fill(store, 3)
    clock, gated = ManualClock(), Gated(store)
    consumer = Consumer(gated, group="etl", clock=clock)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(next, iter(consumer))
        gated.waiting.acquire()
        Consumer(store, group="etl")
        clock.advance(1.5)
        gated.gate.set()
        with pytest.raises(Fenced):
            reading.result()


def test_coroutine_that_is_resumed_late_gets_no_batch_of_a_fenced_consumer(store: MemoryStore) -> None:
    fill(store, 3)

    class Later(ManualClock):
        """Lets time pass between the end of the fetch, on a thread, and the take, in the event loop's thread."""

        loop_thread: threading.Thread | None = None

        def monotonic(self) -> float:
            if threading.current_thread() is self.loop_thread:
                self.loop_thread = None
                self.advance(1.5)
            elif threading.current_thread() is not threading.main_thread():
                may_end.wait()
            return super().monotonic()

    clock, may_end = Later(), threading.Event()
    may_end.set()

    async def read() -> None:
        consumer = Consumer(store, group="etl", clock=clock)
        batches = aiter(consumer)
        await anext(batches)
        Consumer(store, group="etl")
        may_end.clear()  # since Python 3.14, a fetch that has ended already would not make the coroutine wait
        reading = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)  # the iterator has looked at the clock
        clock.loop_thread = threading.current_thread()
        may_end.set()
        with pytest.raises(Fenced):
            await reading

    asyncio.run(read())


def test_store_whose_looks_take_longer_than_their_age_is_read_all_the_same(store: MemoryStore) -> None:
    fill(store, 30)
    clock = ManualClock()

    class Slow(Counted):
        def get_if_changed(self, key: str, version: str) -> StoredObject | None:
            clock.advance(5)
            return super().get_if_changed(key, version)

    slow = Slow(store)
    assert sequences(Consumer(slow, group="etl", clock=clock)) == list(range(30))
    assert slow.calls["get_if_changed"] <= 2 * (30 + 5), "one look for each batch"


def test_durable_ack_counts_as_a_look(store: MemoryStore) -> None:
    fill(store, 50)
    clock, counted = ManualClock(), Counted(store)
    consumer = Consumer(counted, group="etl", clock=clock)
    counted.calls.clear()
    for batch in consumer:
        clock.advance(0.9)
        consumer.ack_through(batch.sequence)
    assert counted.calls["get_if_changed"] == 4, "one look for the run, and one at its end"


# What is gone


def trim(store: MemoryStore, first: int) -> None:
    """Drop the batches before a sequence, and delete their objects, as retention does."""
    from msgspec.structs import replace

    queue = Queue(store)
    gone = [found.location for found in queue.descriptors(queue.read().first_sequence, first)]
    queue.change_head(
        lambda head: replace(head.trim(first, {}), revision=head.revision + 1),
        lambda head: head.first_sequence == first,
    )
    store.delete(gone[:first])


def test_batches_trimmed_during_the_iteration_are_skipped_and_counted(store: MemoryStore) -> None:
    fill(store, 20)
    consumer = Consumer(store, group="etl", on_trimmed="skip", read_ahead=ReadAhead(batches=2), clock=ManualClock())
    batches = iter(consumer)
    assert next(batches).sequence == 0
    trim(store, 15)
    found = sequences(batches)
    assert found[-5:] == list(range(15, 20))
    assert consumer.skipped + len(found) + 1 == 20
    assert found == sorted(found)
    consumer.ack(0)
    for sequence in found:
        consumer.ack(sequence)


def test_batch_trimmed_during_the_iteration_is_raised_until_a_seek(store: MemoryStore) -> None:
    fill(store, 20)
    consumer = Consumer(store, group="etl", read_ahead=ReadAhead(batches=2), clock=ManualClock())
    batches = iter(consumer)
    assert next(batches).sequence == 0
    trim(store, 15)
    for _ in range(2):
        with pytest.raises(Trimmed) as caught:
            sequences(batches)
    consumer.seek(caught.value.first)
    assert sequences(batches) == list(range(15, 20))


def test_batch_that_somebody_deleted_is_not_found_again_and_again(store: MemoryStore) -> None:
    fill(store, 4)
    store.delete([f"data/{2:026}"])
    batches = iter(Consumer(store, group="etl", on_trimmed="skip"))
    assert [next(batches).sequence for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(NotFound, match="batch 2"):
            next(batches)


# Ends


def test_close_ends_an_iteration_that_waits_for_a_batch(store: MemoryStore) -> None:
    fill(store, 5)
    gated = Gated(store)
    consumer = Consumer(gated, group="etl")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: sequences(consumer))
        gated.waiting.acquire()
        consumer.close()
        assert reading.result() == []
        gated.gate.set()


def test_threads_end_after_a_close(store: MemoryStore) -> None:
    fill(store, 50)
    before = set(ahead_threads())
    with Consumer(store, group="etl") as consumer:
        next(iter(consumer))
        mine = set(ahead_threads()) - before
    assert mine
    for thread in mine:
        thread.join()


def test_threads_end_after_a_consumer_was_dropped(store: MemoryStore) -> None:
    fill(store, 50)
    before = set(ahead_threads())
    next(iter(Consumer(store, group="etl")))
    mine = set(ahead_threads()) - before
    gc.collect()
    for thread in mine:
        thread.join()


def test_interrupt_of_the_wait_for_a_batch_loses_nothing(store: MemoryStore) -> None:
    fill(store, 3)
    interrupted = threading.Event()

    def interrupt(_signal: int, _frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def press() -> None:
        # Again and again: CPython notices a signal late that comes just before the thread begins to wait.
        while not interrupted.wait(0.1):
            os.kill(os.getpid(), signal.SIGINT)

    class Interrupting(Traced):
        def get(self, key: str) -> StoredObject:
            found = super().get(key)
            if key == f"data/{0:026}" and self.reads[0] == 1:
                press()
            return found

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        batches = iter(Consumer(Interrupting(store), group="etl"))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert sequences(batches) == [0, 1, 2]
    finally:
        signal.signal(signal.SIGINT, before)


def test_process_that_forgets_its_consumer_in_the_middle_of_a_fetch_ends(store: MemoryStore) -> None:
    program = """
import os, threading
from forebay import Consumer, Producer
from forebay.buffer.store.memory import MemoryStore

class Hanging(MemoryStore):
    def get(self, key):
        if key.startswith("data/"):
            fetching.set()
            threading.Event().wait()
        return super().get(key)

fetching = threading.Event()
store = Hanging("memory://hanging")
with Producer(store) as producer:
    producer.produce(b"x")
consumer = Consumer(store)
threading.Thread(target=lambda: next(iter(consumer)), daemon=True).start()
fetching.wait()
print("at the end")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "at the end\n"), ended.stderr


def test_forked_child_is_refused_and_the_parent_goes_on(store: MemoryStore) -> None:
    fill(store, 40)
    consumer = Consumer(store, group="etl")
    batches = iter(consumer)
    next(batches)
    child = os.fork()
    if child == 0:  # pragma: no cover - in another process
        status = 1
        try:
            for read in (
                lambda: next(batches),
                lambda: next(iter(consumer)),
                consumer.next_batch,
                lambda: consumer.next_descriptors(1),
                lambda: consumer.ack(0),
                lambda: consumer.ack_through(0),
                consumer.flush,
                lambda: consumer.seek(0),
            ):
                with pytest.raises(Closed, match="before a fork"):
                    read()
            consumer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert sequences(batches) == list(range(1, 40))
    consumer.ack(0)
