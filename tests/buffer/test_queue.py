"""Queue operations over the manifest, and what faults may not do to them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from forebay.buffer.errors import Fenced, InvalidInput, Timeout, Unknown
from forebay.buffer.manifest import PlaceConsumed, Queue
from forebay.buffer.model import NewBatch
from forebay.buffer.register import Limits
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock


@pytest.fixture
def inner(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def open_queue(store: Any, **settings: Any) -> Queue:
    return Queue(store, clock=ManualClock(), random=Random(1), **settings)


def batches(*names: str) -> list[NewBatch]:
    return [NewBatch(f"data/{name}") for name in names]


def waiting(store: MemoryStore) -> list[str]:
    return [entry.location for entry in Queue(store).read().entries_after(None, 10**6)]


def test_missing_manifest_is_an_empty_queue(inner: MemoryStore) -> None:
    queue = open_queue(inner)
    assert queue.read().count == 0
    assert len(queue) == 0
    assert queue


def test_many_batches_are_appended_in_one_write(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue = open_queue(store)
    assert queue.append(batches("a", "b", "c")) == range(3)
    assert queue.append(batches("d")) == range(3, 4)
    assert store.calls == {"get": 1, "create": 1, "replace": 1}
    assert waiting(inner) == ["data/a", "data/b", "data/c", "data/d"]
    assert len(queue) == 4


def test_append_of_nothing_is_refused(inner: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="nothing to append"):
        open_queue(inner).append([])


def test_manifest_path_can_be_set(inner: MemoryStore) -> None:
    Queue(inner, "ingest/manifest").append(batches("a"))
    assert [i.key for i in inner.list()] == ["ingest/manifest"]


def test_reading_an_unchanged_manifest_is_a_conditional_read(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue = open_queue(store)
    queue.append(batches("a"))
    store.calls.clear()
    assert queue.read() is queue.read()
    assert store.calls == {"get_if_changed": 2}


def test_claim_fences_the_owner_before(inner: MemoryStore) -> None:
    open_queue(inner).append(batches("a", "b"))
    old, new = open_queue(inner), open_queue(inner)
    old_epoch = old.claim_epoch()
    new_epoch = new.claim_epoch()
    assert new_epoch > old_epoch

    with pytest.raises(Fenced, match="must stop"):
        old.dequeue(0, epoch=old_epoch)
    with pytest.raises(Fenced):
        old.entries_after(None, 5, epoch=old_epoch)

    assert waiting(inner) == ["data/a", "data/b"]
    new.dequeue(0, epoch=new_epoch)
    assert waiting(inner) == ["data/b"]


def test_dequeue_of_what_is_gone_writes_nothing(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue = open_queue(store)
    queue.append(batches("a", "b"))
    epoch = queue.claim_epoch()
    queue.dequeue(0, epoch=epoch)
    writes = store.calls["replace"]
    queue.dequeue(0, epoch=epoch)
    assert store.calls["replace"] == writes


def test_two_rivals_that_claim_at_the_same_instant_get_different_epochs(inner: MemoryStore) -> None:
    """Both read epoch e and write e + 1: the bytes are the same, so seeing e + 1 proves nothing."""
    open_queue(inner).append(batches("a"))

    class RivalFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                rival_epochs.append(open_queue(inner).claim_epoch())
            return super().replace(key, data, version)

    for fault in (None, Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP):
        rival_epochs: list[int] = []
        store = RivalFirst(inner, {} if fault is None else {0: fault}, only={"replace"})
        mine = open_queue(store).claim_epoch()
        assert mine > rival_epochs[0]
        assert Queue(inner).read().epoch == mine


def test_claim_whose_answer_was_lost_claims_again_above(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.LOSE_ANSWER}, only={"create"})
    queue = open_queue(store)
    assert queue.claim_epoch() == 2
    assert queue.read().epoch == 2


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.LATE, Fault.DROP])
def test_append_with_a_lost_answer_is_there_once(inner: MemoryStore, fault: Fault) -> None:
    open_queue(inner).append(batches("earlier"))
    store = FaultyStore(inner, {0: fault}, only={"replace"})
    assert open_queue(store).append(batches("a", "b")) == range(1, 3)
    store.land_late_requests()
    assert waiting(inner) == ["data/earlier", "data/a", "data/b"]


def test_append_in_doubt_whose_place_was_consumed_is_unknown_for_ever(inner: MemoryStore) -> None:
    """Version 1 keeps no trace of what was consumed: only a new name is safe, and may be read twice."""

    class ConsumedAtOnce(FaultyStore):
        def get(self, key: str) -> Any:
            if self.calls["create"]:
                consumer = open_queue(inner)
                consumer.dequeue(10, epoch=consumer.claim_epoch())
            return super().get(key)

    store = ConsumedAtOnce(inner, {0: Fault.LOSE_ANSWER}, only={"create"})
    with pytest.raises(PlaceConsumed, match="consumed meanwhile"):
        open_queue(store).append(batches("a"))
    assert waiting(inner) == []


def test_plain_conflict_whose_place_was_consumed_is_simply_tried_again(inner: MemoryStore) -> None:
    """An idle producer with an old manifest in hand must not take a busy buffer for a lost answer."""
    idle = open_queue(inner)
    idle.append(batches("a"))
    other = open_queue(inner)
    other.append(batches("b"))
    other.dequeue(10, epoch=other.claim_epoch())

    assert idle.append(batches("c")) == range(2, 3)
    assert waiting(inner) == ["data/c"]


def test_writer_that_met_a_conflict_looks_before_it_writes(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue, other = open_queue(store), open_queue(inner)
    queue.append(batches("a"))
    for turn in range(20):
        other.append(batches(f"other-{turn}"))
        queue.append(batches(f"mine-{turn}"))
    # Only the first turn wrote on an old manifest.
    assert store.calls["replace"] == 21
    assert queue.conflict_rate == 1 / 22

    store.calls.clear()
    queue.append(batches("quiet-1"))
    queue.append(batches("quiet-2"))
    assert store.calls == {"get_if_changed": 1, "replace": 2}


def test_conflict_is_reported_as_not_applied_when_the_limits_are_reached(inner: MemoryStore) -> None:
    class AlwaysFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            open_queue(inner).append(batches(f"other-{self.calls['replace']}"))
            return super().replace(key, data, version)

    open_queue(inner).append(batches("first"))
    with pytest.raises(Timeout, match="nothing was applied"):
        open_queue(AlwaysFirst(inner), limits=Limits(max_attempts=5)).append(batches("a"))
    assert "data/a" not in waiting(inner)


def test_lost_append_is_unknown_when_the_limits_are_reached(inner: MemoryStore) -> None:
    store = FaultyStore(inner, dict.fromkeys(range(9), Fault.DROP), only={"create"})
    with pytest.raises(Unknown) as caught:
        open_queue(store, limits=Limits(max_attempts=3)).append(batches("a"))
    assert not isinstance(caught.value, PlaceConsumed)
