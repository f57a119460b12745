"""Opening the sources of a runtime: one lease for a group of a topic, claimed first and checked before every other."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from forebay.buffer.base.errors import Fenced
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.standby import Standby
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import Data, Outcome
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import add_partitions, create_topic
from forebay.runtime import Source
from forebay.runtime.source import Opening
from forebay.testing import Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    create_topic(store, 3)
    return store


def cursors(store: ObjectStore) -> dict[str, bytes]:
    return {found.key: bytes(store.get(found.key).data) for found in store.list() if "/cursors/" in found.key}


def open_all(store: ObjectStore, seed: int, *, standby: Standby | None = None) -> list[Consumer]:
    opening = Opening(Source(store, group="etl"))
    check = None if standby is None else standby.check_claim
    return opening.open(lambda _lease: None, check, clock=ManualClock(), random=Random(seed))


class Interrupted(FaultyStore):
    """Just before one of its calls, another process claims the whole group."""

    at: int
    left: dict[str, bytes] | None = None

    def next_fault(self, kind: str) -> Fault | None:
        if sum(self.calls.values()) == self.at:
            self.at = -1
            open_all(self.inner, 2)
            self.left = cursors(self.inner)
        return super().next_fault(kind)


def test_process_that_paused_while_it_claimed_partitions_takes_none_back() -> None:
    """At every store call of the opening, another process takes over: it keeps all that it claimed, or comes first."""
    refused = 0
    for at in range(200):
        store = MemoryStore(f"memory://paused-opening-{at}")
        create_topic(store, 3)
        for consumer in open_all(store, 1):
            consumer.close()
        paused = Interrupted(store)
        paused.at = at
        standby = Standby(Opening(Source(store, group="etl")).lease, "etl", ManualClock())
        assert standby.look(2.0)
        try:
            consumers = open_all(paused, 3, standby=standby)
        except Fenced:
            refused += 1
        else:
            if paused.left is None:
                assert refused > 3
                return
            for consumer in consumers:
                with pytest.raises(Fenced):
                    consumer.next_descriptors(1)
        assert cursors(store) == paused.left, f"call {at}: it took a partition back"
    pytest.fail("an opening has more than 200 calls")


def test_lease_is_claimed_before_all_others_and_reported_at_once(store: MemoryStore) -> None:
    claimed: list[str] = []
    seen: list[int] = []

    def note(lease: Consumer) -> None:
        claimed.append(lease.url)
        seen.append(len(cursors(store)))

    Opening(Source(store, group="etl")).open(note, None, clock=ManualClock(), random=Random(1))
    assert claimed == [f"{store.url}/p-00000"]
    assert seen == [1]
    assert len(cursors(store)) == 3


def test_lease_is_the_first_of_the_partitions_that_are_read(store: MemoryStore) -> None:
    assert Opening(Source(store, group="etl", partitions=[2, 1])).lease.url == f"{store.url}/p-00001"


def test_failed_opening_lets_go_of_the_lease_last(store: MemoryStore) -> None:
    written: list[str] = []

    class Failing(FaultyStore):
        def replace(self, key: str, data: Data, version: str) -> Outcome:
            written.append(key)
            return super().replace(key, data, version)

        def create(self, key: str, data: Data) -> Outcome:
            if key.startswith("p-00002/cursors/"):
                raise Fenced("for the test")
            return super().create(key, data)

    with pytest.raises(Fenced):
        open_all(Failing(store), 1)
    assert [key[:15] for key in written if "/cursors/" in key] == ["p-00001/cursors", "p-00000/cursors"]


def test_looking_which_buffers_a_source_stands_for_writes_nothing(store: MemoryStore) -> None:
    opening = Opening(Source(store, group="etl"))
    assert len(opening.readers) == 3
    head = Queue(opening.lease).read()
    assert isinstance(head, Head)
    assert head.groups == {}


def test_partitions_that_were_added_are_found_by_the_next_opening(store: MemoryStore) -> None:
    assert len(Opening(Source(store, group="etl")).readers) == 3
    add_partitions(store, 5)
    assert len(Opening(Source(store, group="etl")).readers) == 5


def test_source_that_takes_over_is_pickled_as_such() -> None:
    source = Source("memory://x", "etl", takeover=True, storage_options={"key": "secret"})
    assert pickle.loads(pickle.dumps(source)) == source
