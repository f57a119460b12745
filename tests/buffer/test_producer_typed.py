"""The producer of a typed buffer: rows in, durable Parquet batches out; what does not fit fails alone."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.buffer.base.errors import Backpressure, Closed, InvalidInput, Unavailable, Unsupported
from forebay.buffer.base.names import at_time
from forebay.buffer.consumer import Consumer
from forebay.buffer.coordinator import Durability
from forebay.buffer.format.json_rows import rows_as_json
from forebay.buffer.format.model import Metadata
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.write.settings import ProducerLimits
from forebay.testing import FaultyStore, ManualClock

NEVER = 10_000.0
ID = pa.field("id", pa.int64(), nullable=False)
SCHEMA = pa.schema([ID, pa.field("page", pa.string())])
WIDER = pa.schema([*SCHEMA, pa.field("user", pa.string())])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def rows_in(store: MemoryStore) -> list[dict[str, Any]]:
    return [row for batch in Consumer(store) for row in batch.entries]


def ids_in(store: MemoryStore) -> list[int]:
    return [row["id"] for row in rows_in(store)]


@pytest.mark.parametrize(
    "rows",
    [
        {"id": 1, "page": "/a"},
        [{"id": 1, "page": "/a"}],
        b'{"id": 1, "page": "/a"}',
        [b'{"id": 1, "page": "/a"}'],
        pa.table({"id": [1], "page": ["/a"]}),
        pa.record_batch({"page": ["/a"], "id": pa.array([1], pa.int32())}),
    ],
    ids=["dict", "dicts", "document", "documents", "table", "record batch"],
)
def test_rows_of_any_form_are_read_back(store: MemoryStore, rows: Any) -> None:
    with Producer(store, schema=SCHEMA) as producer:
        producer.produce(rows)
    assert rows_in(store) == [{"id": 1, "page": "/a"}]


def test_mixed_calls_keep_their_order_within_a_batch(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, flush_interval=NEVER) as producer:
        producer.produce([{"id": 1}, {"id": 2}])
        producer.produce(b'{"id": 3}')
        producer.produce(pa.table({"id": [4, 5]}))
        producer.produce({"id": 6})
    (batch,) = Consumer(store)
    assert [row["id"] for row in batch.entries] == [1, 2, 3, 4, 5, 6]


def test_object_is_a_parquet_file_with_the_users_columns_alone(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA) as producer:
        producer.produce({"id": 1, "page": "/a"}, b"metadata")
    (found,) = store.list("data/")
    assert found.key.endswith(".parquet")
    assert pq.read_table(pa.BufferReader(bytes(store.get(found.key).data))).to_pydict() == {"id": [1], "page": ["/a"]}


def test_facts_tell_rows_sizes_and_times(store: MemoryStore) -> None:
    clock = ManualClock(now_ms=1000)
    with Producer(store, schema=SCHEMA, flush_interval=NEVER, clock=clock) as producer:
        producer.produce([{"id": 1}, {"id": 2}])
        clock.advance(1)
        producer.produce({"id": 3})
    (batch,) = Consumer(store)
    facts = batch.descriptor.facts
    assert facts is not None
    assert (facts.records, facts.first_time_ms, facts.last_time_ms) == (3, 1000, 2000)
    assert facts.object_bytes == batch.size
    assert facts.raw_bytes >= 3 * 8
    assert Queue(store).read().next_sequence == 1


def test_call_that_does_not_fit_fails_alone(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, flush_interval=NEVER) as producer:
        before = producer.produce({"id": 1})
        wrong = producer.produce([{"id": 2}, {"id": "three"}])
        after = producer.produce({"id": 4})
        producer.flush().result()
        before.result()
        after.result()
        with pytest.raises(InvalidInput, match="row 1, column id: expected int64 not null, found str 'three'"):
            wrong.result()
    assert ids_in(store) == [1, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 1, "extra": 1},
        {"page": "/a"},
        {"id": None},
        {"id": 1.5},
        b'{"id": 1}{"id": 2}',
        b"[1]",
        b"not json",
        pa.table({"id": ["text"]}),
        pa.table({"id": [1], "extra": [1]}),
    ],
)
def test_nothing_is_dropped_or_changed_to_make_it_fit(store: MemoryStore, wrong: Any) -> None:
    with Producer(store, schema=SCHEMA) as producer:
        handle = producer.produce(wrong)
        with pytest.raises(InvalidInput, match=r"expected|the schema has no column of this name"):
            handle.result()
    assert rows_in(store) == []


def test_batch_of_calls_that_do_not_fit_stores_nothing(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, flush_interval=NEVER) as producer:
        wrong = [producer.produce({"id": "x"}) for _ in range(3)]
        producer.flush().result()
        assert all(handle.done() for handle in wrong)
    assert not list(store.list("data/"))
    assert Queue(store).read().next_sequence == 0


def test_calls_that_do_not_fit_are_logged(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """The log tells a caller who does not look at handles."""
    with caplog.at_level(logging.WARNING, "forebay.producer"), Producer(store, schema=SCHEMA) as producer:
        producer.produce({"id": 1})
        producer.produce({"id": "x"})
    assert "1 of 2 calls do not fit the schema" in caplog.text


def test_done_callback_and_await_hear_of_a_call_that_does_not_fit(store: MemoryStore) -> None:
    async def wait(producer: Producer) -> None:
        await producer.produce({"id": "x"})

    told: list[bool] = []
    with Producer(store, schema=SCHEMA, flush_interval=0.01) as producer:
        with pytest.raises(InvalidInput, match="row 0"):
            asyncio.run(wait(producer))
        handle = producer.produce({"id": "y"})
        handle.add_done_callback(lambda handle: told.append(handle.done()))
        producer.flush().result()
    assert told == [True]


def test_call_that_does_not_fit_says_so_even_if_its_batch_cannot_be_stored(store: MemoryStore) -> None:
    class NoUploads(FaultyStore):
        def put(self, key: str, data: Any) -> str:
            if key.startswith("data/"):
                raise Unavailable("away")
            return super().put(key, data)

    producer = Producer(NoUploads(store), schema=SCHEMA, flush_interval=NEVER, retry_timeout=0.01)
    good, wrong = producer.produce({"id": 1}), producer.produce({"id": "x"})
    with pytest.raises(Unavailable):
        producer.flush().result()
    with pytest.raises(Unavailable):
        good.result()
    with pytest.raises(InvalidInput):
        wrong.result()
    producer.close()


def test_ingestion_time_is_the_calls_and_none_for_what_does_not_fit(store: MemoryStore) -> None:
    clock = ManualClock(now_ms=5000)
    with Producer(store, schema=SCHEMA, flush_interval=NEVER, clock=clock) as producer:
        good, wrong = producer.produce({"id": 1}), producer.produce({"id": "x"})
        good.wait(Durability.APPLIED)
        producer.flush().result()
        assert good.ingestion_time == datetime.fromtimestamp(5, UTC)
        assert wrong.ingestion_time is None


def test_metadata_covers_its_calls_rows(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, flush_interval=NEVER, clock=ManualClock(now_ms=7)) as producer:
        producer.produce([{"id": 1}, {"id": 2}], b"web")
        producer.produce([{"id": "x"}], b"lost")
        producer.produce({"id": 3}, b"app")
    (batch,) = Consumer(store)
    assert batch.metadata == (Metadata(0, 7, b"web"), Metadata(2, 7, b"app"))


def test_default_flush_interval_is_one_second(store: MemoryStore) -> None:
    clock = ManualClock()
    with Producer(store, schema=SCHEMA, clock=clock) as producer:
        handle = producer.produce({"id": 1})
        handle.wait(Durability.APPLIED)
        clock.advance(0.9)
        assert not handle.done()
        clock.advance(0.2)
        handle.result()


def test_memory_bound_holds_for_rows(store: MemoryStore) -> None:
    limits = ProducerLimits(buffered_bytes=10_000)
    with Producer(store, schema=SCHEMA, flush_interval=NEVER, limits=limits) as producer:
        held = producer.produce({"id": 1, "page": "x" * 9_000})
        held.wait(Durability.APPLIED)
        assert producer.buffered_bytes >= 9_000
        row = {"id": 2, "page": "y" * 9_000}
        with pytest.raises(Backpressure) as refused:
            producer.try_produce(row)
        assert refused.value.write is row
        held.result()
        producer.produce(row)
    assert ids_in(store) == [1, 2]


def test_rows_are_flushed_by_size(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, flush_interval=NEVER, flush_size_bytes=5_000) as producer:
        for number in range(4):
            producer.produce({"id": number, "page": "x" * 3_000})
    assert [len(batch) for batch in Consumer(store)] == [2, 2]


# Lasting writers


def test_repeated_call_of_a_lasting_writer_is_not_written_twice(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, writer_id="pod") as producer:
        producer.produce({"id": 1}, number=1)
    with Producer(store, schema=SCHEMA, writer_id="pod") as producer:
        assert producer.last_number == 1
        assert producer.produce({"id": 1}, number=1).result() is None
        producer.produce({"id": 2}, number=2)
    assert ids_in(store) == [1, 2]


def test_number_of_a_call_that_does_not_fit_may_be_used_again_if_it_was_the_last(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA, writer_id="pod", flush_interval=NEVER) as producer:
        producer.produce({"id": 1}, number=1)
        producer.produce({"id": "x"}, number=2)
    with Producer(store, schema=SCHEMA, writer_id="pod") as producer:
        assert producer.last_number == 1
        producer.produce({"id": 2}, number=2)
    assert ids_in(store) == [1, 2]


@pytest.mark.parametrize("flushes", [False, True], ids=["one batch", "a batch for each call"])
def test_corrected_repeat_of_a_call_that_did_not_fit_is_stored_once(store: MemoryStore, flushes: bool) -> None:
    handles = []
    with suppress(Closed), Producer(store, schema=SCHEMA, writer_id="pod", flush_interval=NEVER) as producer:
        for number, row in enumerate([{"id": 1}, {"id": "x"}, {"id": 3}], 1):
            handles.append(producer.produce(row, number=number))
            if flushes:
                producer.flush().wait(Durability.WRITTEN)
    first, wrong, later = handles
    with pytest.raises(InvalidInput):
        wrong.result()
    with pytest.raises(Closed, match="open a new producer"):
        later.result()
    with Producer(store, schema=SCHEMA, writer_id="pod") as producer:
        for number in range((producer.last_number or 0) + 1, 4):
            producer.produce({"id": number}, number=number).result()
    assert ids_in(store) == [1, 2, 3]
    if not flushes:
        assert first.result() is None


# Bytes and rows


def test_producer_without_a_schema_writes_rows_to_a_typed_buffer(store: MemoryStore) -> None:
    Producer(store, schema=SCHEMA).close()
    with Producer(store) as producer:
        assert producer.schema is not None
        assert producer.schema.equals(SCHEMA)
        producer.produce({"id": 1})
    assert ids_in(store) == [1]


def test_producer_of_bytes_has_no_schema(store: MemoryStore) -> None:
    with Producer(store) as producer:
        assert producer.schema is None
        with pytest.raises(InvalidInput, match="entries must be bytes"):
            producer.produce({"id": 1})


def test_producer_of_bytes_that_was_opened_before_the_schema_is_refused(store: MemoryStore) -> None:
    with Producer(store) as early:
        with Producer(store, schema=SCHEMA) as producer:
            producer.produce({"id": 1})
        lost = early.produce(b"bytes")
        with pytest.raises(Unsupported, match="holds rows of a schema"):
            lost.result()
    assert ids_in(store) == [1]


def test_schema_for_a_buffer_of_bytes_is_refused(store: MemoryStore) -> None:
    with Producer(store) as producer:
        producer.produce(b"bytes")
    with pytest.raises(Unsupported, match="holds entries of bytes"):
        Producer(store, schema=SCHEMA)


def test_schema_for_the_opendata_profile_is_refused(store: MemoryStore) -> None:
    with pytest.raises(Unsupported, match="version 1"):
        Producer(store, schema=SCHEMA, profile="opendata")


# Evolution


def test_old_and_new_producers_write_at_once_and_all_rows_are_read_in_the_newest_schema(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA) as old:
        old.produce({"id": 1}).result()
        with Producer(store, schema=WIDER, evolve=True) as new:
            new.produce({"id": 2, "user": "u"}).result()
            old.produce({"id": 3}).result()
    batches = list(Consumer(store))
    assert [batch.table.to_pylist() for batch in batches] == [
        [{"id": 1, "page": None, "user": None}],
        [{"id": 2, "page": None, "user": "u"}],
        [{"id": 3, "page": None, "user": None}],
    ]
    assert [listing.schema for listing in _head(store).tail] == [0, 1, 0]


def test_column_that_was_added_by_mistake_is_refused(store: MemoryStore) -> None:
    Producer(store, schema=SCHEMA).close()
    with pytest.raises(InvalidInput, match="column user: added"):
        Producer(store, schema=WIDER)


# What the collector and a slow upload do


def test_typed_batch_that_the_floor_has_passed_is_uploaded_again_as_what_it_is(store: MemoryStore) -> None:
    floor = at_time(1 << 40)
    with Producer(store, schema=SCHEMA, flush_interval=NEVER, clock=ManualClock(now_ms=5)) as producer:
        producer.produce({"id": 1}).wait(Durability.APPLIED)
        _raise_floor(store, floor)
        producer.flush().result()
    (batch,) = Consumer(store)
    assert batch.location > f"data/{floor}"
    assert batch.location.endswith(".parquet")
    assert list(batch.entries) == [{"id": 1, "page": None}]


def _head(store: MemoryStore) -> Head:
    head = Queue(store).read()
    assert isinstance(head, Head)
    return head


def _raise_floor(store: MemoryStore, floor: str) -> None:
    def change(head: Head) -> Head | None:
        return head.collect(point=0, dropped=0, expired=(), floor=floor, nodes={})

    Queue(store).change_head(change, lambda head: head.gc_floor >= floor)


@pytest.mark.parametrize(
    "rows",
    [
        {"item": None},
        b'{"item": null}',
        pa.table({"item": pa.array([None], pa.struct({"id": pa.int64()}))}),
        pa.table({"item": pa.nulls(1)}),
    ],
    ids=["dict", "document", "table", "nulls"],
)
def test_null_struct_with_a_required_field_fails_no_call(store: MemoryStore, rows: Any) -> None:
    item = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    with Producer(store, schema=pa.schema([pa.field("item", item)]), flush_interval=NEVER) as producer:
        handles = [producer.produce(each) for each in ({"item": {"id": 1}}, rows)]
        producer.flush().result()
        for handle in handles:
            handle.result()
    assert rows_in(store) == [{"item": {"id": 1}}, {"item": None}]


def test_slice_of_a_table_with_text_views_is_stored(store: MemoryStore) -> None:
    """Arrow cannot copy a slice of every type."""
    texts = pa.array([f"{i} is longer than a view holds itself" for i in range(100)], pa.string_view())
    table = pa.table({"id": pa.array(range(100)), "page": texts}).slice(7, 1)
    with Producer(store, schema=SCHEMA) as producer:
        producer.produce(table).result()
    assert rows_in(store) == [{"id": 7, "page": "7 is longer than a view holds itself"}]


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
KINDS_OF_COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "nested": (pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.int64()))])), [[{"a": [("k", 1)]}, None], [], None]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-1234567890.0123456789"), Decimal("0E-10"), None]),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), [NOON.astimezone(ZoneInfo("Europe/Berlin")), None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    "large string": (pa.large_string(), ["x" * 1_000_000, "", None]),
    "empty text": (pa.struct([("s", pa.string())]), [{"s": ""}, {"s": None}, None]),
    "unicode \u00fc\U0001f600 name": (pa.string(), ["\u2028", "\x00", "\U0001f600"]),
}


@pytest.mark.parametrize("name", KINDS_OF_COLUMNS)
def test_values_of_a_type_come_back_from_a_buffer_from_records_and_from_json(name: str, store: MemoryStore) -> None:
    kind, values = KINDS_OF_COLUMNS[name]
    with Producer(store, schema=pa.schema([pa.field(name, kind)]), flush_interval=0.01) as producer:
        producer.produce(pa.table({name: pa.array(values, kind)})).result()
        (batch,) = Consumer(store)
        producer.produce(rows_as_json(batch.table)).result()
    stored, again = Consumer(store)
    assert [row[name] for row in stored.entries] == values
    assert stored.records().column(name).to_pylist() == values
    assert again.table.equals(stored.table)


def test_thousand_columns_come_back_in_every_form(store: MemoryStore) -> None:
    row = {f"column {i}": i for i in range(1000)}
    with Producer(store, schema=pa.schema([(name, pa.int64()) for name in row]), flush_interval=NEVER) as producer:
        producer.produce(row)
        producer.produce(json.dumps(row).encode())
        producer.produce(pa.table({name: [value] for name, value in row.items()}))
    assert [found for batch in Consumer(store) for found in batch.entries] == [row] * 3


@pytest.mark.parametrize("fields", [["a", "A"], ["stra\u00dfe", "STRASSE"]])
def test_names_that_differ_only_in_case_are_refused(fields: list[str], store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="differ only in case"):
        Producer(store, schema=pa.schema([(name, pa.int64()) for name in fields]))


def test_struct_without_fields_is_refused(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="it has no fields"):
        Producer(store, schema=pa.schema([("a", pa.struct([]))]))
