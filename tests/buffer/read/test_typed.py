"""Reading a typed buffer: every batch in the newest schema, only the columns asked for, anywhere."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from forebay.buffer.base.errors import Corrupt, InvalidInput, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.ranges import read_range
from forebay.buffer.manifest.schemas import schema_key
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch, FetchHandle
from forebay.buffer.store import open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore, ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("count", pa.int32())])
WIDER = pa.schema([SCHEMA.field(0), pa.field("count", pa.int64()), pa.field("user", pa.string())])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def fill(store: Any, schema: pa.Schema, *calls: Any, metadata: bytes = b"", now_ms: int = 5000) -> None:
    with Producer(store, schema=schema, evolve=True, clock=ManualClock(now_ms=now_ms)) as producer:
        for rows in calls:
            producer.produce(rows, metadata)


def only(store: MemoryStore, **settings: Any) -> Batch:
    (batch,) = Consumer(store, **settings)
    return batch


def test_batch_of_an_older_version_is_shown_in_the_newest_schema(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1, "count": 7})
    fill(store, WIDER, {"id": 2, "user": "u"})
    first, second = Consumer(store)
    assert first.schema is not None
    assert first.schema.equals(WIDER)
    assert first.table.equals(pa.table([[1], [7], [None]], schema=WIDER))
    assert second.table.equals(pa.table([[2], [None], ["u"]], schema=WIDER))


def test_iteration_makes_small_chunks_and_a_worker_large_ones(store: MemoryStore) -> None:
    schema = pa.schema([pa.field("text", pa.string())])
    fill(store, schema, pa.table({"text": [f"{i:01000}" for i in range(5000)]}))
    ahead = only(store)
    worker = FetchHandle(store).fetch(ahead.descriptor)
    assert ahead.table.equals(worker.table)
    assert len(ahead.table["text"].chunks) == 3
    assert len(worker.table["text"].chunks) == 1


def test_range_is_shown_in_one_schema(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1})
    reading = read_range(store)
    fill(store, WIDER, {"id": 2})
    assert [batch.schema.names for batch in reading if batch.schema is not None] == [["id", "count"]]
    assert [len(batch.table.schema) for batch in read_range(store)] == [3, 3]


def test_descriptor_gives_the_same_table_after_the_schema_has_evolved(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1})
    consumer = Consumer(store)
    (descriptor,) = consumer.next_descriptors(10)
    fill(store, WIDER, {"id": 2})
    assert consumer.fetch_handle().fetch(descriptor).table.schema.equals(SCHEMA)


def test_handle_and_descriptor_that_were_sent_elsewhere_read_the_batch(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    fill(store, SCHEMA, {"id": 1})
    consumer = Consumer(store)
    sent = pickle.dumps((consumer.fetch_handle(), consumer.next_descriptors(1)))
    handle, (descriptor,) = pickle.loads(sent)
    assert handle.fetch(descriptor).table.to_pylist() == [{"id": 1, "count": None}]
    again, _ = pickle.loads(pickle.dumps((handle, descriptor)))
    assert len(again.fetch(descriptor)) == 1


def test_entries_are_dicts_and_records_add_what_the_reader_knows(store: MemoryStore) -> None:
    fill(store, SCHEMA, [{"id": 1, "count": 2}, {"id": 3}], metadata=b"web")
    batch = only(store)
    assert batch.entries == [{"id": 1, "count": 2}, {"id": 3, "count": None}]
    taken = datetime.fromtimestamp(5, UTC)
    assert batch.records().to_pylist() == [
        {"id": 1, "count": 2, "_sequence": 0, "_index": 0, "_ingestion_time": taken, "_call_metadata": b"web"},
        {"id": 3, "count": None, "_sequence": 0, "_index": 1, "_ingestion_time": taken, "_call_metadata": b"web"},
    ]


def test_records_of_a_part_and_of_some_columns(store: MemoryStore) -> None:
    fill(store, SCHEMA, [{"id": number} for number in range(10)])
    batch = only(store)
    assert batch.records(2, 4, columns=["_index", "id"]).to_pylist() == [{"_index": 2, "id": 2}, {"_index": 3, "id": 3}]
    assert batch.records(9, 3).num_rows == 0
    with pytest.raises(InvalidInput, match="no column 'other'"):
        batch.records(columns=["other"])


def test_only_the_columns_asked_for_are_shown_in_their_order(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1, "count": 2})
    fill(store, WIDER, {"id": 2, "user": "u"})
    shown = [batch.table.to_pylist() for batch in Consumer(store, columns=["user", "id"])]
    assert shown == [[{"user": None, "id": 1}], [{"user": "u", "id": 2}]]
    assert [batch.table.column_names for batch in read_range(store, columns=["count"])] == [["count"], ["count"]]


def test_rows_are_shown_in_the_schema_asked_for(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1, "count": 2})
    asked = pa.schema([pa.field("count", pa.float64()), pa.field("new", pa.string())])
    assert only(store, columns=asked).table.equals(pa.table([[2.0], [None]], schema=asked))


@pytest.mark.parametrize("columns", ["id", [1], [], ["id", "id"]])
def test_columns_that_make_no_sense_are_refused(store: MemoryStore, columns: Any) -> None:
    with pytest.raises(InvalidInput, match="columns must"):
        FetchHandle(store, columns=columns)


def test_column_that_is_not_there_is_refused_and_the_others_named(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1})
    with pytest.raises(InvalidInput, match="no column user; the columns are id, count"):
        only(store, columns=["user"])


def test_columns_of_a_buffer_of_bytes_are_refused(store: MemoryStore) -> None:
    with Producer(store) as producer:
        producer.produce(b"x")
    with pytest.raises(InvalidInput, match="holds bytes"):
        only(store, columns=["id"])


def test_batch_of_bytes_has_no_schema_and_no_table(store: MemoryStore) -> None:
    with Producer(store) as producer:
        producer.produce(b"x")
    batch = only(store)
    assert batch.schema is None
    with pytest.raises(Unsupported, match=r"batch\.arrow"):
        _ = batch.table


def test_typed_batch_has_no_array_of_bytes(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1})
    batch = only(store)
    for ask in (lambda: batch.arrow, lambda: batch.chunks):
        with pytest.raises(Unsupported, match=r"batch\.table"):
            ask()


def test_damaged_batch_is_corrupt(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1})
    (found,) = store.list("data/")
    store.put(found.key, bytes(store.get(found.key).data)[:-1] + b"x")
    with pytest.raises(Corrupt, match="CRC32C"):
        list(Consumer(store, clock=ManualClock()))


def test_batch_of_another_schema_with_the_right_checksum_is_corrupt(store: MemoryStore) -> None:
    """What the manifest says is checked against the file, and not the other way round."""
    fill(store, SCHEMA, {"id": 1})
    fill(store, WIDER, {"id": 2})
    (first, second) = Consumer(store).next_descriptors(2)
    assert first.schema is not None
    lying = structs.replace(second, schema=first.schema)
    with pytest.raises(Corrupt, match="its columns are"):
        FetchHandle(store).fetch(lying)


@pytest.mark.parametrize("damage", [None, b"", b"{}", b"other"])
def test_schema_that_is_damaged_or_missing_is_corrupt(store: MemoryStore, damage: bytes | None) -> None:
    fill(store, SCHEMA, {"id": 1})
    (found,) = store.list("schemas/")
    if damage is None:
        store.delete([found.key])
    else:
        store.put(found.key, damage)
    with pytest.raises(Corrupt, match="schemas/"):
        list(Consumer(store, clock=ManualClock()))


def test_other_schema_under_the_name_of_this_one_is_corrupt(store: MemoryStore) -> None:
    fill(store, SCHEMA, {"id": 1})
    fill(store, WIDER, {"id": 1})
    first, second = (descriptor.schema for descriptor in Consumer(store).next_descriptors(2))
    assert first is not None
    assert second is not None
    store.put(schema_key(first.written), bytes(store.get(schema_key(second.written)).data))
    with pytest.raises(Corrupt, match="hash"):
        list(Consumer(store, clock=ManualClock()))


def test_each_schema_is_read_once(store: MemoryStore) -> None:
    for number in range(5):
        fill(store, SCHEMA, {"id": number})
    reads: list[str] = []

    class Watching(FaultyStore):
        def get(self, key: str) -> Any:
            reads.append(key)
            return super().get(key)

    assert len(list(Consumer(Watching(store)))) == 5
    assert sum(key.startswith("schemas/") for key in reads) == 1
