"""Reading a range without claiming anything: both versions."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from kinds import BYTES, ROWS, Kind, append_all, kind_in
from patience import PATIENCE

from forebay.buffer.base.errors import Corrupt, InvalidInput, NotFound, Trimmed, Unavailable, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.ranges import read_range
from forebay.buffer.manifest import Queue, UnnamedReader
from forebay.buffer.read.descriptors import PIECE
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock


@pytest.fixture(
    params=[("native", BYTES), ("native", ROWS), ("opendata", BYTES)], ids=["native", "native-rows", "opendata"]
)
def place(request: pytest.FixtureRequest) -> tuple[str, Kind]:
    """A profile, and what the buffer holds."""
    found: tuple[str, Kind] = request.param
    return found


@pytest.fixture
def profile(place: tuple[str, Kind]) -> str:
    return place[0]


@pytest.fixture
def inner(inner: MemoryStore, place: tuple[str, Kind]) -> MemoryStore:
    place[1].begin(inner)
    return inner


def append(store: MemoryStore, count: int) -> None:
    queue = Queue(store)
    first = queue.read().next_sequence
    kind = kind_in(store)
    append_all(
        queue,
        [kind.upload(store, f"data/{i}", [b"%d" % i], 1000 * i, 1000 * i + 999) for i in range(first, first + count)],
    )


def values(batches: Any) -> list[int]:
    found = [batch.entries[0] for batch in batches]
    return [int(entry["value"] if isinstance(entry, dict) else entry) for entry in found]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, range(10)),
        (3, None, range(3, 10)),
        (None, 4, range(5)),
        (3, 3, range(3, 4)),
        (8, 99, range(8, 10)),
        (10, None, ()),
        (7, 5, ()),
        ("earliest", "latest", range(10)),
        ("latest", None, ()),
    ],
)
def test_range_holds_both_ends_and_nothing_is_changed(inner: MemoryStore, first: Any, last: Any, expected: Any) -> None:
    append(inner, 10)
    before = inner.get("manifest").version
    assert values(read_range(inner, first, last)) == list(expected)
    assert inner.get("manifest").version == before


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_range_by_time_holds_every_batch_with_an_entry_in_it(inner: MemoryStore, profile: str) -> None:
    append(inner, 10)
    if profile == "opendata":
        with pytest.raises(Unsupported):
            read_range(inner, moment(3))
    else:
        assert values(read_range(inner, moment(3.5), moment(6.5))) == [3, 4, 5, 6]
        assert values(read_range(inner, moment(3), moment(6))) == [3, 4, 5]
        assert values(read_range(inner, moment(3).isoformat(), 4)) == [3, 4]


def test_range_goes_through_segments_in_order(inner: MemoryStore) -> None:
    for _ in range(6):
        append(inner, PIECE // 4)
    assert values(read_range(inner, 5, PIECE + 100)) == list(range(5, PIECE + 101))


def test_range_is_fixed_by_the_call(inner: MemoryStore) -> None:
    append(inner, 3)
    found = read_range(inner)
    append(inner, 3)
    assert values(found) == [0, 1, 2]


def test_reader_goes_on_beside_a_consumer_and_fences_nobody(inner: MemoryStore) -> None:
    append(inner, 6)
    with Consumer(inner) as consumer:
        assert values(read_range(inner, 1)) == [1, 2, 3, 4, 5]
        assert values(consumer) == [0, 1, 2, 3, 4, 5]
        consumer.ack_through(5)


def test_place_that_is_gone_is_told_at_once(inner: MemoryStore, profile: str) -> None:
    append(inner, 6)
    drop_below(inner, 4, profile)
    with pytest.raises(Trimmed) as caught:
        read_range(inner, 2)
    assert caught.value.first == 4
    assert values(read_range(inner)) == [4, 5]


def drop_below(store: MemoryStore, point: int, profile: str) -> None:
    queue = Queue(store)
    if profile == "opendata":
        reader = UnnamedReader(queue)
        reader.ack(reader.claim(), point - 1)
    else:
        queue.change_head(lambda head: head.trim(point, {}).touch(), lambda _head: False)
    store.delete([f"data/{i}" for i in range(point)])


def test_batches_swept_while_reading_are_trimmed_and_not_missing(inner: MemoryStore, profile: str) -> None:
    append(inner, 20)
    found = read_range(inner, threads=2)
    assert values([next(found), next(found)]) == [0, 1]
    drop_below(inner, 15, profile)
    with pytest.raises(Trimmed) as caught:
        list(found)
    assert caught.value.first == 15


def test_object_that_is_listed_but_not_there_is_missing(inner: MemoryStore) -> None:
    append(inner, 5)
    inner.delete(["data/3"])
    found = read_range(inner)
    assert values([next(found) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(NotFound, match="data/3"):
        next(found)


def test_damaged_object_is_corrupt(inner: MemoryStore) -> None:
    append(inner, 2)
    inner.put("data/1", b"not a batch")
    with pytest.raises(Corrupt, match="data/1"):
        list(read_range(inner))


def test_failed_fetch_is_raised_in_its_turn(inner: MemoryStore, place: tuple[str, Kind]) -> None:
    append(inner, 4)
    needed = 2 if place[1] is BYTES else 3  # a manifest, a batch, and a schema if it holds rows
    away = dict.fromkeys(range(needed, 10**4), Fault.FAIL)
    found = read_range(FaultyStore(inner, away, only={"get"}), threads=1, clock=ManualClock())
    assert values([next(found)]) == [0]
    with pytest.raises(Unavailable):
        next(found)


def test_no_more_is_fetched_ahead_than_threads_allow(inner: MemoryStore) -> None:
    append(inner, 50)
    started = threading.Semaphore(0)

    class Watched(FaultyStore):
        fetched: list[str]

        def get(self, key: str) -> Any:
            if key.startswith("data/"):
                self.fetched.append(key)
                started.release()
            return super().get(key)

    store = Watched(inner)
    store.fetched = []
    found = read_range(store, threads=3)
    assert store.fetched == []
    for taken in range(1, 6):
        assert values([next(found)]) == [taken - 1]
        for _ in range(3 if taken == 1 else 1):
            assert started.acquire(timeout=PATIENCE)
        assert len(store.fetched) == taken + 2
    assert isinstance(found, type(_ for _ in ()))
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forebay-range")]


def test_slow_batch_does_not_change_the_order(inner: MemoryStore) -> None:
    append(inner, 6)
    late = threading.Event()

    class FirstIsSlow(FaultyStore):
        def get(self, key: str) -> Any:
            if key == "data/0":
                assert late.wait(PATIENCE)
            elif key == "data/2":
                late.set()
            return super().get(key)

    batches: list[Batch] = list(read_range(FirstIsSlow(inner), threads=3))
    assert values(batches) == list(range(6))


def test_buffer_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        read_range("memory://no-such-buffer")


def test_at_least_one_thread_reads(inner: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="threads"):
        read_range(inner, threads=0)
