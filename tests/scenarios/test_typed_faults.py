"""Typed buffers and topics under faults: dying at, and every write fault of, any store call (rfcs/0010)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.schemas import schema_key
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicProducer, create_topic, partition_for
from forebay.buffer.write.formats import open_format
from forebay.testing import Crash, Fault, FaultyStore

FIRST = pa.schema([pa.field("id", pa.int64(), nullable=False)])
WIDER = pa.schema([*FIRST, pa.field("page", pa.string())])
FAULTS = [
    *(Fault.CRASH, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_ANSWER, Fault.DROP),
    *(Fault.LATE, Fault.OWN_RETRY, Fault.BUSY, Fault.OVERLOADED),
]
CALLS = 8
"""More store calls than any of the operations below makes; a fault beyond the last one has no effect."""


def open_rows(store: ObjectStore, schema: pa.Schema, *, evolve: bool = False) -> Any:
    queue = Queue(store)
    return open_format(queue, queue.read(), schema=schema, evolve=evolve)


def check_history(store: ObjectStore, ids: tuple[str, ...], most: int) -> None:
    """Every id that is named has its schema, and no version is there twice."""
    assert len(ids) == len(set(ids)) <= most
    stored = {found.key for found in store.list("schemas/")}
    assert {schema_key(each) for each in ids} <= stored


@pytest.mark.parametrize("call", range(CALLS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_while_a_typed_buffer_is_made_leaves_what_the_next_attempt_finishes(fault: Fault, call: int) -> None:
    store = MemoryStore(f"memory://made-{fault.name}-{call}")
    try:
        open_rows(FaultyStore(store, {call: fault}), FIRST)
    except (Crash, ForebayError):
        check_history(store, tuple(Queue(store).read().schemas), 1)
    with Producer(store, schema=FIRST, flush_interval=0.01) as producer:
        producer.produce({"id": 1})
    check_history(store, tuple(Queue(store).read().schemas), 1)
    assert [batch.entries for batch in Consumer(store)] == [[{"id": 1}]]


@pytest.mark.parametrize("call", range(CALLS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_while_a_schema_evolves_leaves_one_history_and_every_row(fault: Fault, call: int) -> None:
    store = MemoryStore(f"memory://evolved-{fault.name}-{call}")
    with Producer(store, schema=FIRST, flush_interval=0.01) as old:
        old.produce({"id": 1}).result()
        try:
            open_rows(FaultyStore(store, {call: fault}), WIDER, evolve=True)
        except (Crash, ForebayError):
            check_history(store, tuple(Queue(store).read().schemas), 2)
        old.produce({"id": 2}).result()
        with Producer(store, schema=WIDER, evolve=True, flush_interval=0.01) as new:
            new.produce({"id": 3, "page": "/c"}).result()
            old.produce({"id": 4}).result()
    ids = tuple(Queue(store).read().schemas)
    check_history(store, ids, 2)
    assert len(ids) == 2
    batches = list(Consumer(store))
    assert [row["id"] for batch in batches for row in batch.entries] == [1, 2, 3, 4]
    assert all(batch.table.schema.equals(WIDER) for batch in batches)


@pytest.mark.parametrize("fault", FAULTS[2:], ids=lambda fault: fault.name)
@pytest.mark.parametrize("kind", ["put", "replace"])
def test_write_fault_of_an_append_of_rows_stores_them_once(kind: str, fault: Fault) -> None:
    store = MemoryStore(f"memory://appended-{fault.name}-{kind}")
    open_rows(store, FIRST)
    with Producer(FaultyStore(store, {0: fault}, only={kind}), schema=FIRST, flush_interval=0.01) as producer:
        producer.produce({"id": 1})
        producer.flush().result()
        producer.produce({"id": 2})
    assert [row["id"] for batch in Consumer(store) for row in batch.entries] == [1, 2]


def key_of(partition: int) -> bytes:
    return next(key for key in (b"%d" % i for i in range(1000)) if partition_for(key, 2) == partition)


def rows_of_topic(store: MemoryStore) -> list[list[int]]:
    return [
        [row["id"] for batch in Consumer(partition) for row in batch.entries] for partition in Topic(store).stores()
    ]


@pytest.mark.parametrize("call", range(16))
@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER, Fault.LOSE_ANSWER, Fault.DROP], ids=lambda f: f.name)
def test_fault_while_a_typed_topic_is_created_leaves_what_the_next_attempt_finishes(fault: Fault, call: int) -> None:
    store = MemoryStore(f"memory://created-{fault.name}-{call}/topic")
    with suppress(Crash, ForebayError):
        create_topic(FaultyStore(store, {call: fault}), 2, schema=FIRST)
    topic = create_topic(store, 2, schema=FIRST)
    for partition in topic.stores():
        check_history(partition, tuple(Queue(partition).read().schemas), 1)
        assert tuple(Queue(partition).read().schemas) == topic.record.schemas
    with TopicProducer(store, flush_interval=0.01) as producer:
        producer.produce({"id": 1}, key=key_of(0))
        producer.produce({"id": 2}, key=key_of(1))
    assert rows_of_topic(store) == [[1], [2]]


@pytest.mark.parametrize("call", range(12))
@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER, Fault.LOSE_ANSWER, Fault.DROP], ids=lambda f: f.name)
def test_fault_while_a_topics_schema_evolves_leaves_partitions_that_follow(fault: Fault, call: int) -> None:
    store = MemoryStore(f"memory://topic-evolved-{fault.name}-{call}/topic")
    create_topic(store, 2, schema=FIRST)
    with TopicProducer(store, flush_interval=0.01) as old:
        old.produce({"id": 1}, key=key_of(0)).result()
        with suppress(Crash, ForebayError):
            TopicProducer(FaultyStore(store, {call: fault}), schema=WIDER, evolve=True).close()
        old.produce({"id": 2}, key=key_of(1)).result()
        with TopicProducer(store, schema=WIDER, evolve=True, flush_interval=0.01) as new:
            new.produce({"id": 3, "page": "/c"}, key=key_of(0)).result()
            old.produce({"id": 4}, key=key_of(0)).result()
    assert len(Topic(store).record.schemas) == 2
    for partition in Topic(store).stores():
        known = tuple(Queue(partition).read().schemas)
        check_history(partition, known, 2)
        assert Topic(store).record.schemas[: len(known)] == known
    assert rows_of_topic(store) == [[1, 3, 4], [2]]
