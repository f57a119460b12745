"""What a group records before it is done, and who reads: rfcs/0007."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from forebay.buffer.base.errors import Fenced, InvalidInput, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Cursor, Groups, cursor_key
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import WRITE_FAULTS, Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://plans-{request.node.name}")
    append(store, 20)
    return store


def append(store: MemoryStore, count: int) -> None:
    queue = Queue(store)
    first = queue.read().next_sequence
    for number in range(first, first + count):
        store.put(f"data/{number}", encode_batch([b"x"]))
    queue.append([NewBatch(f"data/{number}") for number in range(first, first + count)])


RANDOM = Random(3)


def open_group(store: Any, **settings: Any) -> Consumer:
    return Consumer(store, group="etl", clock=ManualClock(), random=RANDOM, **settings)


def planning(store: Any, *ends: int) -> Consumer:
    consumer = open_group(store)
    consumer.next_descriptors(20)
    consumer.plan(ends)
    return consumer


def test_next_consumer_finds_what_was_planned_and_not_acknowledged(store: MemoryStore) -> None:
    first = planning(store, 3, 7, 11)
    first.ack_through(3)
    second = open_group(store)
    assert second.planned == (7, 11)
    second.next_descriptors(20)
    second.plan([15])
    second.ack_through(8)
    assert open_group(store).planned == (11, 15), "a plan is passed by an ack, in whole or in part"
    key = keys(store)[0]
    assert unpack(store.get(key).data, Cursor, key).planned == (11, 15), "and the cursor does not grow"


def test_planning_again_changes_nothing(store: MemoryStore) -> None:
    consumer = planning(store, 3, 7)
    before = [found.version for found in map(store.get, keys(store))]
    consumer.plan([7, 3])
    consumer.plan([])
    assert [found.version for found in map(store.get, keys(store))] == before
    consumer.ack_through(7)
    consumer.plan([3])
    assert consumer.planned == (), "what is acknowledged needs no plan"


def keys(store: MemoryStore) -> list[str]:
    return [found.key for found in store.list("cursors/")]


def test_fenced_consumer_plans_nothing(store: MemoryStore) -> None:
    old = planning(store, 3)
    new = open_group(store)
    with pytest.raises(Fenced):
        old.plan([7])
    assert new.planned == open_group(store).planned == (3,)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_plan_whose_answer_is_lost_is_recorded_once(store: MemoryStore, fault: Fault) -> None:
    planning(store, 3).close()
    faulty = FaultyStore(store, {1: fault, 2: fault}, only={"replace"}, clock=ManualClock())
    consumer = open_group(faulty)
    consumer.next_descriptors(20)
    consumer.plan([7, 9])
    consumer.ack_through(3)
    faulty.land_late_requests()
    assert open_group(store).planned == (7, 9)


def test_reset_forgets_the_plan(store: MemoryStore) -> None:
    planning(store, 3, 7).close()
    Groups(store).reset("etl", "earliest")
    assert open_group(store).planned == ()


def test_only_what_was_handed_out_can_be_planned(store: MemoryStore) -> None:
    consumer = open_group(store)
    consumer.next_descriptors(5)
    with pytest.raises(InvalidInput, match="never handed out"):
        consumer.plan([4, 5])
    assert consumer.planned == ()


def test_unnamed_consumer_has_no_plan(store: MemoryStore) -> None:
    consumer = Consumer(store)
    consumer.next_descriptors(5)
    assert consumer.planned == ()
    with pytest.raises(Unsupported, match="name a group"):
        consumer.plan([3])


def test_cursor_without_a_plan_reads_as_one_with_none(store: MemoryStore) -> None:
    """As earlier releases wrote it."""
    planning(store, 3).close()
    key = keys(store)[0]
    cursor = unpack(store.get(key).data, Cursor, key)
    body = pack(cursor)
    assert unpack(body, Cursor, key).planned == (3,)
    store.put(key, pack(Cursor(cursor.buffer_id, cursor.epoch, "", 2, cursor.number + 1)))
    assert open_group(store).planned == ()


# Who reads


def test_reader_is_the_same_for_the_process_that_goes_on(store: MemoryStore) -> None:
    reader = planning(store, 3).reader
    assert open_group(store).reader == reader
    head = Queue(store).read()
    assert isinstance(head, Head)
    assert (reader.source, reader.group) == (head.buffer_id, "etl")
    assert cursor_key(reader.group, reader.generation) in keys(store)


def test_reader_is_another_after_a_reset_and_after_being_made_again(store: MemoryStore) -> None:
    readers = [open_group(store).reader]
    Groups(store).reset("etl", "earliest", force=True)
    readers.append(open_group(store).reader)
    Groups(store).delete("etl", force=True)
    readers.append(open_group(store).reader)
    assert len(set(readers)) == 3
    assert len({(reader.source, reader.group) for reader in readers}) == 1


def test_unnamed_reader_is_the_buffer_wherever_it_is(store: MemoryStore) -> None:
    moved = MemoryStore(f"{store.url}-moved")
    for found in store.list():
        moved.put(found.key, store.get(found.key).data)
    assert Consumer(moved).reader == Consumer(store).reader
    assert Consumer(store).reader.group == Consumer(store).reader.generation == ""


def test_reader_of_a_version_1_buffer_is_known_by_its_address(store: MemoryStore) -> None:
    old, other = (MemoryStore(f"{store.url}-{name}") for name in ("old", "other"))
    for found in (old, other):
        found.create("manifest", Manifest.empty("new").to_bytes())
    assert Consumer(old).reader == Consumer(old).reader != Consumer(other).reader
    assert len(Consumer(old).reader.source) == 32


def test_end_is_what_the_next_append_gets(store: MemoryStore) -> None:
    consumer = open_group(store)
    append(store, 2)
    assert consumer.end == 20, "as last seen"
    consumer.next_descriptors(1)
    assert consumer.end == 22
