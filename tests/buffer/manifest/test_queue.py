"""Queue operations over the manifest, and what faults may not do to them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kinds import OF_BYTES

from forebay.buffer.base.errors import Corrupt, Fenced, InvalidInput, Timeout, Unavailable, Unknown
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Head, Manifest, PlaceConsumed, Queue, UnnamedReader
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.register import Limits
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock


def open_queue(store: Any, **settings: Any) -> Queue:
    return Queue(store, clock=ManualClock(), random=Random(1), **settings)


def append(queue: Queue, *names: str, **settings: Any) -> range:
    """Append batches of the kind that the buffer holds. What they hold is read by nobody."""
    schemas = Queue(MemoryStore(queue.store.url)).read().schemas
    facts, version = (Facts(1, 1, 1, 0, 0, 0), 0) if schemas else (None, None)
    return queue.append([NewBatch(f"data/{name}", (), facts, version) for name in names], schemas=schemas, **settings)


def waiting(store: MemoryStore) -> list[str]:
    queue = Queue(store)
    state = queue.read()
    first = state.next_sequence - state.waiting
    return [found.location for found in queue.descriptors(first, 10**6, state=state)]


@OF_BYTES
def test_missing_manifest_is_an_empty_queue_of_the_profile_asked_for(profile: Any) -> None:
    store = MemoryStore(f"memory://missing-{profile}")
    queue = open_queue(store, profile=profile)
    assert queue.read().count == 0
    append(queue, "a")
    assert isinstance(Queue(store).read(), Head if profile == "native" else Manifest)


def test_head_beside_cursors_and_segments_is_appended_to() -> None:
    """Only a missing one is suspicious."""
    store = MemoryStore("memory://head-and-cursors")
    append(Queue(store), "a")
    store.put("segments/any.segment", b"x")
    store.put("cursors/etl/1", b"x")
    assert append(Queue(store), "b") == range(1, 2)


def test_missing_head_beside_what_it_left_is_corrupt_and_not_empty() -> None:
    store = MemoryStore("memory://lost-head")
    store.put("segments/any.segment", b"x")
    for call in (lambda: append(open_queue(store), "a"), lambda: open_queue(store).read()):
        with pytest.raises(Corrupt, match="was deleted"):
            call()


def test_many_batches_are_appended_in_one_write(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue = open_queue(store)
    assert append(queue, "a", "b", "c") == range(3)
    store.calls.clear()
    assert append(queue, "d") == range(3, 4)
    assert store.calls == {"replace": 1}
    assert waiting(inner) == ["data/a", "data/b", "data/c", "data/d"]
    assert queue.read().waiting == 4


def test_append_lets_go_of_a_hold_in_the_same_write() -> None:
    inner = MemoryStore("memory://append-lets-go")
    store = FaultyStore(inner)
    queue = open_queue(store)
    append(queue, "a")
    for name in ("ours", "theirs"):
        queue.change_head(
            lambda head, name=name: head.with_hold(name, Hold(None, "0" * 26, 0, "")), lambda _head: False
        )
    store.calls.clear()
    append(queue, "b", let_go="ours")
    assert store.calls == {"replace": 1}
    state = Queue(inner).read()
    assert isinstance(state, Head)
    assert list(state.holds) == ["theirs"]
    append(queue, "c", let_go="ours")  # gone already: nothing to let go of
    assert waiting(inner) == ["data/a", "data/b", "data/c"]


def test_append_of_nothing_is_refused(inner: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="no batches to append"):
        open_queue(inner).append([])


@OF_BYTES
def test_manifest_path_can_be_set(inner: MemoryStore) -> None:
    append(Queue(inner, "ingest/manifest"), "a")
    assert [i.key for i in inner.list("ingest")] == ["ingest/manifest"]


def test_reading_an_unchanged_manifest_is_a_conditional_read(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue = open_queue(store)
    append(queue, "a")
    store.calls.clear()
    assert queue.read() is queue.read()
    assert store.calls == {"get_if_changed": 2}


def test_claim_fences_the_owner_before(inner: MemoryStore) -> None:
    append(open_queue(inner), "a", "b")
    old, new = UnnamedReader(open_queue(inner)), UnnamedReader(open_queue(inner))
    ours, theirs = old.claim(), new.claim()
    assert theirs.epoch > ours.epoch

    with pytest.raises(Fenced, match="must stop"):
        old.ack(ours, 0)
    with pytest.raises(Fenced):
        old.look(ours, None, 5)

    assert waiting(inner) == ["data/a", "data/b"]
    new.ack(theirs, 0)
    assert waiting(inner) == ["data/b"]


def test_ack_of_what_is_acknowledged_writes_nothing(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    queue = open_queue(store)
    append(queue, "a", "b")
    reader = UnnamedReader(queue)
    claim = reader.claim()
    reader.ack(claim, 0)
    writes = store.calls["replace"]
    reader.ack(claim, 0)
    assert store.calls["replace"] == writes


def test_two_rivals_that_claim_at_the_same_instant_get_different_epochs(inner: MemoryStore) -> None:
    """Both read epoch e and write e + 1: the bytes are the same, so seeing e + 1 proves nothing."""
    append(open_queue(inner), "a")

    class RivalFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                rival_epochs.append(UnnamedReader(Queue(inner)).claim().epoch)
            return super().replace(key, data, version)

    for fault in (None, Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP):
        rival_epochs: list[int] = []
        store = RivalFirst(inner, {} if fault is None else {0: fault}, only={"replace"})
        reader = UnnamedReader(open_queue(store))
        mine = reader.claim()
        assert mine.epoch > rival_epochs[0]
        reader.look(mine, None, 1)


def test_claim_whose_answer_was_lost_is_ours_in_the_end(inner: MemoryStore) -> None:
    for fault in (Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE):
        reader = UnnamedReader(open_queue(FaultyStore(inner, {0: fault}, only={"replace"})))
        claim = reader.claim()
        reader.look(claim, None, 1)
        assert Queue(inner).read().epoch == claim.epoch


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.LATE, Fault.DROP])
def test_append_with_a_lost_answer_is_there_once(inner: MemoryStore, fault: Fault) -> None:
    append(open_queue(inner), "earlier")
    for call in range(2):  # in version 2 the first write registers the writer
        store = FaultyStore(inner, {call: fault}, only={"replace"})
        assert append(Queue(store, clock=ManualClock()), "ab"[call]) == range(1 + call, 2 + call)
        store.land_late_requests()
    assert waiting(inner) == ["data/earlier", "data/a", "data/b"]


class ConsumedAtOnce(FaultyStore):
    """Whatever was appended is consumed before the producer looks again."""

    def get(self, key: str) -> Any:
        if self.calls["replace"]:
            consumer = UnnamedReader(Queue(self.inner))
            consumer.ack(consumer.claim(), 10)
        return super().get(key)


def test_append_in_doubt_whose_place_was_consumed_is_found_out_by_the_writers_number(
    inner: MemoryStore, profile: str
) -> None:
    """Version 1 keeps no trace of what was consumed: there only a new name is safe, and may be read twice."""
    queue = open_queue(inner)
    append(queue, "a")
    store = ConsumedAtOnce(inner, {0: Fault.LOSE_ANSWER}, only={"replace"})
    queue.store = queue._register.store = store
    if profile != "opendata":
        assert append(queue, "b") == range(1, 2)
    else:
        with pytest.raises(PlaceConsumed, match="consumed meanwhile"):
            append(queue, "b")
    assert waiting(inner) == []


def test_plain_conflict_whose_place_was_consumed_is_simply_tried_again(inner: MemoryStore) -> None:
    """An idle producer with an old manifest in hand must not take a busy buffer for a lost answer."""
    idle = open_queue(inner)
    append(idle, "a")
    other = Queue(inner)
    append(other, "b")
    reader = UnnamedReader(other)
    reader.ack(reader.claim(), 10)

    assert append(idle, "c") == range(2, 3)
    assert Queue(inner).read().next_sequence == 3


def test_writer_that_met_a_conflict_looks_before_it_writes(inner: MemoryStore, profile: str) -> None:
    store = FaultyStore(inner)
    queue, other = open_queue(store), Queue(inner)
    append(queue, "a")
    append(other, "b")
    store.calls.clear()
    before = queue._register.conflicts
    for turn in range(20):
        append(other, f"other-{turn}")
        append(queue, f"mine-{turn}")
    assert store.calls["replace"] == 21
    assert queue._register.conflicts - before == 1, "only the first turn wrote on an old manifest"

    store.calls.clear()
    # Version 1 names no writers, so it takes more looks to know that the others are gone.
    looks = 32 if profile == "opendata" else 1
    for turn in range(looks + 1):
        append(queue, f"quiet-{turn}")
    assert store.calls == {"get_if_changed": looks, "replace": looks + 1}


def test_look_before_a_write_is_tried_again_where_the_store_does_not_answer(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.FAIL}, only={"get_if_changed"})
    queue, other = open_queue(store), Queue(inner)
    append(queue, "a")
    append(other, "b")
    append(queue, "c")  # meets a conflict
    assert not store.calls["get_if_changed"]
    append(queue, "d")
    assert store.calls["get_if_changed"] == 1
    assert waiting(inner)[-1] == "data/d"


def test_conflict_is_reported_as_not_applied_when_the_limits_are_reached(inner: MemoryStore) -> None:
    class AlwaysFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            append(other, f"other-{self.calls['replace']}")
            return super().replace(key, data, version)

    other = Queue(inner)
    append(other, "first")
    with pytest.raises(Timeout, match="nothing was applied"):
        append(open_queue(AlwaysFirst(inner), limits=Limits(max_attempts=5)), "a")
    assert "data/a" not in waiting(inner)


def test_lost_append_is_unknown_when_the_limits_are_reached(inner: MemoryStore) -> None:
    store = FaultyStore(inner, dict.fromkeys(range(9), Fault.DROP), only={"replace"})
    with pytest.raises(Unknown) as caught:
        append(open_queue(store, limits=Limits(max_attempts=3)), "a")
    assert not isinstance(caught.value, PlaceConsumed)


def test_append_in_doubt_is_not_taken_for_consumed_because_of_an_earlier_conflict(inner: MemoryStore) -> None:
    """What was consumed is the place that the first attempt had in mind; the one in doubt may yet land behind it."""

    class DownOnceInDoubt(FaultyStore):
        armed = False

        def get(self, key: str) -> Any:
            if self.armed and self.calls["replace"] == 2:
                raise Unavailable("down")
            return super().get(key)

    store = DownOnceInDoubt(inner)
    idle = open_queue(store, limits=Limits(max_attempts=3))
    append(idle, "a")
    other = Queue(inner)
    append(other, "b")
    reader = UnnamedReader(other)
    reader.ack(reader.claim(), 10)
    store.calls.clear()
    store._choose = {store._numbered + 2: Fault.DROP}.get  # after a conflict and a read
    store.armed = True
    with pytest.raises(Unknown) as caught:
        append(idle, "c")
    assert store.calls["replace"] == 2
    assert not isinstance(caught.value, PlaceConsumed)


@OF_BYTES
def test_manifest_deleted_while_in_use_is_corrupt_and_not_empty(profile: Any) -> None:
    """A new one would start again at 0, and orphan everything before."""
    store = MemoryStore(f"memory://deleted-{profile}")
    queue = open_queue(store, profile=profile)
    append(queue, "a")
    store.delete(["manifest"])
    for call in (lambda: append(queue, "b"), queue.read):
        with pytest.raises(Corrupt, match="was there and is not there any more"):
            call()
    assert list(store.list()) == []


def test_manifest_deleted_before_an_idle_producer_writes_is_not_made_anew() -> None:
    """It has never seen the manifest, and found nothing left of one when it was opened."""
    store = MemoryStore("memory://deleted-before-idle")
    idle = open_queue(store)
    idle.read()
    other = open_queue(store)
    GroupReader(other, "etl").claim()
    append(other, "a")
    store.delete(["manifest"])
    with pytest.raises(Corrupt, match="the manifest was deleted"):
        append(idle, "b")
    with pytest.raises(Corrupt, match="the manifest was deleted"):
        UnnamedReader(idle).claim()
    assert [found.key for found in store.list("manifest")] == []
