"""Typed topics: the record has the schema first, and each partition follows with its next append."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import Any

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import ForebayError, InvalidInput, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.coordinator import Durability
from forebay.buffer.either.ranges import read_range
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicConsumer, TopicProducer, add_partitions, create_topic, partition_for
from forebay.testing import FaultyStore, ManualClock

FIRST = pa.schema([pa.field("id", pa.int64(), nullable=False)])
SECOND = pa.schema([*FIRST, pa.field("page", pa.string())])
THIRD = pa.schema([*SECOND, pa.field("user", pa.string())])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}/topic")


def key_of(partition: int, partitions: int = 2) -> bytes:
    return next(key for key in (b"%d" % i for i in range(1000)) if partition_for(key, partitions) == partition)


def history(store: MemoryStore, partition: int) -> tuple[str, ...]:
    return tuple(Queue(Topic(store).partition(partition)).read().schemas)


def produce(store: MemoryStore, partition: int, rows: Any, schema: pa.Schema, *, evolve: bool = False) -> None:
    with TopicProducer(store, schema=schema, evolve=evolve) as producer:
        producer.produce(rows, key=key_of(partition))


def rows_in(store: MemoryStore, **settings: Any) -> list[dict[str, Any]]:
    return [row for found in TopicConsumer(store, **settings) for row in found.batch.entries]


def test_rows_of_a_typed_topic_are_read_back(store: MemoryStore) -> None:
    create_topic(store, 2, schema=SECOND)
    with TopicProducer(store) as producer:
        assert producer.schema is not None
        producer.produce({"id": 1, "page": "/a"}, key=key_of(0))
        producer.produce(b'{"id": 2}', key=key_of(1))
        producer.produce(pa.table({"id": [3]}))
    assert sorted(row["id"] for row in rows_in(store)) == [1, 2, 3]


def test_every_partition_has_the_schema_before_it_counts(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    add_partitions(store, 3)
    ids = Topic(store).record.schemas
    assert [history(store, number) for number in range(3)] == [ids] * 3
    assert all(list(Topic(store).partition(number).list("schemas/")) for number in range(3))


def test_call_that_does_not_fit_fails_alone(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    with TopicProducer(store) as producer:
        good = producer.produce({"id": 1}, key=key_of(0))
        wrong = producer.produce({"id": "x"}, key=key_of(0))
        producer.flush().result()
        good.result()
        with pytest.raises(InvalidInput, match="column id"):
            wrong.result()
    assert rows_in(store) == [{"id": 1}]


def test_partition_follows_the_record_with_its_next_append(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    produce(store, 0, {"id": 1}, SECOND, evolve=True)
    assert (len(Topic(store).record.schemas), len(history(store, 0)), len(history(store, 1))) == (2, 2, 1)
    produce(store, 1, {"id": 2}, SECOND)
    assert history(store, 1) == Topic(store).record.schemas


def test_partition_that_lags_by_two_versions_takes_both_at_once(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    produce(store, 0, {"id": 1}, SECOND, evolve=True)
    produce(store, 0, {"id": 2}, THIRD, evolve=True)
    assert len(history(store, 1)) == 1
    produce(store, 1, {"id": 3}, THIRD)
    assert history(store, 1) == Topic(store).record.schemas
    assert {row["id"] for row in rows_in(store)} == {1, 2, 3}


def test_older_producer_goes_on_in_a_partition_that_has_followed(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    with TopicProducer(store, schema=FIRST, flush_interval=0.01) as old:
        old.produce({"id": 1}, key=key_of(0)).result()
        produce(store, 0, {"id": 2, "page": "/b"}, SECOND, evolve=True)
        old.produce({"id": 3}, key=key_of(0)).result()
    assert rows_in(store) == [{"id": 1, "page": None}, {"id": 2, "page": "/b"}, {"id": 3, "page": None}]


def test_partition_that_is_added_while_the_schema_evolves_follows_like_the_others(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    with TopicProducer(store, schema=SECOND, evolve=True):
        add_partitions(store, 3)
    assert history(store, 2) == Topic(store).record.schemas


def test_partition_can_be_read_and_written_as_a_buffer(store: MemoryStore) -> None:
    create_topic(store, 2, schema=FIRST)
    produce(store, 0, {"id": 1, "page": "/a"}, SECOND, evolve=True)
    partition = Topic(store).partition(0)
    with Producer(partition) as producer:
        producer.produce({"id": 2})
    assert [batch.entries for batch in Consumer(partition)] == [[{"id": 1, "page": "/a"}], [{"id": 2, "page": None}]]
    with pytest.raises(Unsupported, match="gets its schema from the topic"):
        Producer(partition, schema=THIRD, evolve=True)


def test_schema_that_differs_is_refused_without_evolve(store: MemoryStore) -> None:
    create_topic(store, 1, schema=FIRST)
    with pytest.raises(InvalidInput, match="column page: added"):
        TopicProducer(store, schema=SECOND)


def test_schema_for_a_topic_of_bytes_is_refused(store: MemoryStore) -> None:
    create_topic(store, 1)
    with pytest.raises(Unsupported, match="cannot get a schema later"):
        TopicProducer(store, schema=FIRST)
    with pytest.raises(Unsupported, match="cannot get a schema later"):
        create_topic(store, 1, schema=FIRST)


def test_topic_that_is_there_is_returned_if_the_schema_fits(store: MemoryStore) -> None:
    create_topic(store, 1, schema=FIRST)
    assert create_topic(store, 1, schema=FIRST).record == Topic(store).record
    with pytest.raises(InvalidInput, match="column page: added"):
        create_topic(store, 1, schema=SECOND)


def test_only_the_columns_asked_for_are_read(store: MemoryStore) -> None:
    create_topic(store, 2, schema=SECOND)
    produce(store, 0, {"id": 1, "page": "/a"}, SECOND)
    assert rows_in(store, columns=["page"]) == [{"page": "/a"}]
    consumer = TopicConsumer(store, group="etl", columns=["id"])
    (found,) = consumer.next_descriptors(1)
    assert consumer.fetch_handle().fetch(found).batch.table.column_names == ["id"]
    assert [batch.table.column_names for _, batch in read_range(Topic(store), columns=["id"])] == [["id"]]


def test_default_flush_interval_of_a_typed_topic_is_one_second(store: MemoryStore) -> None:
    create_topic(store, 1, schema=FIRST)
    clock = ManualClock()
    with TopicProducer(store, clock=clock) as producer:
        handle = producer.produce({"id": 1})
        handle.wait(Durability.APPLIED)
        clock.advance(0.9)
        assert not handle.done()
        clock.advance(0.2)
        handle.result()


def test_two_that_evolve_a_topic_at_once_have_both_changes(store: MemoryStore) -> None:
    create_topic(store, 1, schema=FIRST)

    class Interrupted(FaultyStore):
        """Lets somebody else evolve the topic after the schema of this one is stored."""

        came = False

        def put(self, key: str, data: Any) -> str:
            version = super().put(key, data)
            if key.startswith("schemas/") and not self.came:
                self.came = True
                TopicProducer(store, schema=SECOND, evolve=True).close()
            return version

    other = pa.schema([*FIRST, pa.field("user", pa.string())])
    with TopicProducer(Interrupted(store), schema=other, evolve=True) as producer:
        producer.produce({"id": 1, "user": "u"})
    assert len(Topic(store).record.schemas) == 3
    assert rows_in(store) == [{"id": 1, "page": None, "user": "u"}]


# Splitting rows by a column

PAGES = pa.schema([pa.field("id", pa.int64()), pa.field("page", pa.string())])


@pytest.mark.parametrize("form", ["table", "record batch", "dicts", "documents"])
def test_rows_are_split_by_their_key_and_keep_their_order(store: MemoryStore, form: str) -> None:
    create_topic(store, 4, schema=PAGES)
    rows = [{"id": number, "page": f"/{number % 13}"} for number in range(100)]
    given: Any = rows
    if form == "documents":
        given = [json.dumps(row).encode() for row in rows]
    elif form != "dicts":
        given = pa.Table.from_pylist(rows, PAGES)
        given = given if form == "table" else given.to_batches()[0]
    with TopicProducer(store, flush_interval=0.01) as producer:
        producer.produce(given, key_column="page").result()
    for partition, buffer in enumerate(Topic(store).stores()):
        found = [row for batch in Consumer(buffer) for row in batch.entries]
        assert found == [row for row in rows if partition_for(str(row["page"]).encode(), 4) == partition]


def test_integer_key_is_the_same_in_every_form(store: MemoryStore) -> None:
    create_topic(store, 4, schema=PAGES)
    with TopicProducer(store) as producer:
        for rows in (pa.table({"id": [7]}), {"id": 7}, b'{"id": 7}'):
            handle = producer.produce(rows, key_column="id")
            assert list(handle.parts) == [partition_for(b"7", 4)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(4)], ids=str)
def test_binary_key_is_the_same_in_every_form(store: MemoryStore, kind: pa.DataType) -> None:
    """A JSON document has base64 text for bytes."""
    create_topic(store, 64, schema=pa.schema([("id", kind)]))
    with TopicProducer(store) as producer:
        for rows in (pa.table({"id": pa.array([b"\x00key"], kind)}), {"id": b"\x00key"}, b'{"id": "AGtleQ=="}'):
            handle = producer.produce(rows, key_column="id")
            assert list(handle.parts) == [partition_for(b"\x00key", 64)]
        with pytest.raises(InvalidInput, match="row 0: the text in column id must be base64"):
            producer.produce(b'{"id": "no base64!"}', key_column="id")


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "page": "/a"}, {"id": 2}],
        [{"id": 1, "page": None}],
        {"page": 1.5},
        b"[1]",
        b"not json",
        pa.table({"id": [1]}),
        pa.table({"page": pa.array([None, "x"])}),
        pa.table({"page": [1.5]}),
        [],
        pa.table({"page": pa.array([], pa.string())}),
        {"page": "\ud800"},
        pa.table({"page": [["a list"]]}),
    ],
)
def test_row_without_a_key_is_refused_and_nothing_is_queued(store: MemoryStore, rows: Any) -> None:
    create_topic(store, 2, schema=PAGES)
    with TopicProducer(store) as producer, pytest.raises(InvalidInput):
        producer.produce(rows, key_column="page")
    assert rows_in(store) == []


@pytest.mark.parametrize("rows", [{"id": 1}, b'{"id": 1}', pa.table({"id": [1]})])
def test_key_column_that_the_topic_lacks_is_refused_and_its_columns_named(store: MemoryStore, rows: Any) -> None:
    create_topic(store, 2, schema=PAGES)
    with (
        TopicProducer(store) as producer,
        pytest.raises(InvalidInput, match=r"no column user.*there are id, page"),
    ):
        producer.produce(rows, key_column="user")


def test_rows_with_wrong_offsets_are_not_split(store: MemoryStore) -> None:
    offsets = array("i", [0, 1 << 30, 10])
    page = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(b"x" * 10))
    create_topic(store, 2, schema=SECOND)
    with TopicProducer(store) as producer, pytest.raises(InvalidInput, match=r"cannot be split by column page.*offset"):
        producer.produce(pa.table({"id": [1, 2], "page": page}), key_column="page")
    assert rows_in(store) == []


def test_rows_of_other_partitions_are_durable_if_one_fails(store: MemoryStore) -> None:
    create_topic(store, 2, schema=PAGES)
    good, bad = key_of(0).decode(), key_of(1).decode()
    with TopicProducer(store, flush_interval=0.01) as producer:
        handle = producer.produce([{"id": 1, "page": good}, {"id": "x", "page": bad}], key_column="page")
        with pytest.raises(InvalidInput, match="column id"):
            handle.result()
        assert handle.done()
        part = handle.parts[0]
        assert not isinstance(part, ForebayError)
        assert part.result() is None
    assert rows_in(store) == [{"id": 1, "page": good}]


def test_split_rows_can_be_awaited(store: MemoryStore) -> None:
    create_topic(store, 2, schema=PAGES)

    async def send(producer: TopicProducer) -> None:
        await producer.produce([{"page": "/a"}, {"page": "/b"}, {"page": "/c"}], key_column="page")

    with TopicProducer(store, flush_interval=0.01) as producer:
        asyncio.run(send(producer))
        assert len(rows_in(store)) == 3


def test_key_column_is_for_rows_and_not_beside_a_key(store: MemoryStore) -> None:
    create_topic(store, 2)
    with TopicProducer(store, flush_interval=0.01) as producer:
        with pytest.raises(InvalidInput, match="topic of bytes"):
            producer.produce(b"{}", key_column="page")
        with pytest.raises(InvalidInput, match="key and key_column exclude each other"):
            producer.produce(b"{}", key=b"k", key_column="page")  # type: ignore[call-overload]
