"""Fetching ahead: in order, within its limits, and no further than it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.buffer.base.errors import NotFound
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import BatchDescriptor, Facts, NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.read.ahead import AheadLimits, FetchWindow, fetch_ahead
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore

BATCHES = 20
STORED = len(encode_batch([b"0" * 1000], "none"))
RAW = 1004


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    data = encode_batch([b"0" * 1000], "none")
    for number in range(BATCHES):
        store.put(f"data/{number}", data)
    facts = Facts(STORED, RAW, 1, crc32c(data), 0, 0)
    Queue(store).append([NewBatch(f"data/{number}", (), facts) for number in range(BATCHES)])
    return store


class Listed:
    """The descriptors of a buffer, and how many of them were asked for."""

    def __init__(self, store: MemoryStore) -> None:
        self._descriptors = Queue(store).descriptors(0, BATCHES)
        self.asked = 0

    def __iter__(self) -> Iterator[BatchDescriptor]:
        for descriptor in self._descriptors:
            self.asked += 1
            yield descriptor


def fetched(store: MemoryStore, listed: Listed, limits: AheadLimits) -> Any:
    return fetch_ahead(FetchHandle(store), listed, limits, name="forebay-test")


@pytest.mark.parametrize(("room", "batches", "ahead"), [(0, 18, 1), (1, 18, 1), (3, 18, 3), (9, 4, 2)])
def test_batches_are_fetched_ahead_within_the_limits(store: MemoryStore, room: int, batches: int, ahead: int) -> None:
    listed = Listed(store)
    limits = AheadLimits(threads=4, batches=batches, decoded=2, max_bytes=2 * RAW + room * STORED)
    found = fetched(store, listed, limits)
    assert listed.asked == 0
    for taken in range(1, 6):
        descriptor, coming = next(found)
        assert descriptor.sequence == coming.result().sequence == taken - 1
        started = listed.asked - 1  # the next one waits until there is room for it
        assert started == taken + 1 + ahead, "the one handed over, one decoded, and what there is room for"
    assert len(list(found)) == BATCHES - 5
    assert listed.asked == BATCHES


def test_limit_of_one_batch_fetches_nothing_ahead(store: MemoryStore) -> None:
    listed = Listed(store)
    for taken, (_, coming) in enumerate(fetched(store, listed, AheadLimits(threads=1, batches=1)), 1):
        assert coming.result().sequence == taken - 1
        assert listed.asked == min(taken + 1, BATCHES)


def test_missing_batch_raises_in_its_place_and_the_others_come(store: MemoryStore) -> None:
    store.delete(["data/3"])
    found = {}
    for descriptor, coming in fetched(store, Listed(store), AheadLimits(threads=4, batches=8)):
        found[descriptor.sequence] = type(coming.exception())
    assert list(found) == list(range(BATCHES))
    assert [sequence for sequence, error in found.items() if error is NotFound] == [3]


def test_reader_that_stops_ends_the_threads(store: MemoryStore) -> None:
    found = fetched(store, Listed(store), AheadLimits(threads=4, batches=8))
    next(found)
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forebay-test")]


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


def test_reads_that_cannot_be_stopped_count_until_they_have_ended(store: MemoryStore) -> None:
    gated = Gated(store)
    limits = AheadLimits(threads=8, batches=8, decoded=1, max_bytes=RAW + 3 * STORED)
    window: FetchWindow[int] = FetchWindow(limits, name="forebay-test")
    descriptors = Queue(store).descriptors(0, BATCHES)

    def add() -> int:
        """Add as many as there is room for, and return how many are on their way."""
        for descriptor in descriptors[len(window) :]:
            if not window.has_room(descriptor):
                break
            window.add(descriptor.sequence, FetchHandle(gated), descriptor)
        return len(window)

    assert add() == 4
    for _ in range(4):
        gated.waiting.acquire()
    window.clear()
    assert add() == 1, "one at least, whatever is left behind"
    gated.gate.set()
    while not window.has_room(descriptors[1]):
        pass  # until the reads that were left behind have ended
    while add() < 4:
        pass
    assert window.first is not None
    assert window.first.batch.result().sequence == 0
    window.close()


def test_batch_whose_decoding_cannot_be_begun_raises_why(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = Gated(store)
    window: FetchWindow[int] = FetchWindow(AheadLimits(threads=1, batches=1), name="forebay-test")
    window.add(0, FetchHandle(gated), Queue(store).descriptors(0, 1)[0])
    reader = next(thread for thread in threading.enumerate() if thread.name.startswith("forebay-test-read"))

    def refuse(_thread: threading.Thread) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        gated.gate.set()
        reader.join()
    assert window.first is not None
    assert window.first.batch.done()
    assert isinstance(window.first.batch.exception(), MemoryError)
