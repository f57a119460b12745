"""The columns of a stream while the schema of its buffer changes (rfcs/0008)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from read_job import ALL, head_of, new_store, rows_of, stream_reader

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.runtime.spark.reading.stream_reader import StreamReader

SCHEMA = pa.schema([pa.field("user", pa.int32()), pa.field("page", pa.string())])
ASKED = StructType([StructField("user", IntegerType()), StructField("page", StringType())])
MORE = pa.schema([*SCHEMA, pa.field("referrer", pa.string())])
WIDER = pa.schema([pa.field("user", pa.int64()), pa.field("page", pa.string())])


def produce(store: MemoryStore, row: dict[str, Any], schema: pa.Schema = SCHEMA) -> None:
    with Producer(store, schema=schema, evolve=True) as producer:
        producer.produce(row).result()


@pytest.fixture
def store() -> MemoryStore:
    store = new_store()
    produce(store, {"user": 1, "page": "/"})
    return store


def plan(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The end of the next micro-batch, as it comes back from the checkpoint."""
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    return end


def shown(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return rows_of(reader, reader.partitions(start, end))


def test_query_keeps_its_columns_when_the_buffer_gets_more_and_says_so_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(store, ASKED)
    first = plan(reader, reader.initialOffset())
    assert shown(reader, {}, first) == [{"user": 1, "page": "/"}]
    produce(store, {"user": 2, "page": "/cart", "referrer": "ad"}, MORE)
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        second = plan(reader, first)
        assert shown(reader, first, second) == [{"user": 2, "page": "/cart"}]
        produce(store, {"user": 3}, MORE)
        assert shown(reader, second, plan(reader, second)) == [{"user": 3, "page": None}]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{store.url}: its schema has changed: column referrer: added, string" in warning
    assert "keeps the columns that it started with" in warning


def test_query_of_a_topic_keeps_its_columns_too(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    create_topic(store, 2, schema=SCHEMA)
    with TopicProducer(store) as producer:
        producer.produce({"user": 1}, key=b"1").result()
    reader = stream_reader(store, ASKED)
    first = plan(reader, reader.initialOffset())
    assert shown(reader, {}, first) == [{"user": 1, "page": None}]
    with TopicProducer(store, schema=MORE, evolve=True) as producer:
        producer.produce({"user": 2, "referrer": "ad"}, key=b"1").result()
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        assert shown(reader, first, plan(reader, first)) == [{"user": 2, "page": None}]
    assert "column referrer: added" in caplog.text


def test_query_keeps_a_type_that_became_wider_while_the_values_fit(store: MemoryStore) -> None:
    reader = stream_reader(store, ASKED)
    first = plan(reader, reader.initialOffset())
    shown(reader, {}, first)
    produce(store, {"user": 2, "page": None}, WIDER)
    second = plan(reader, first)
    assert shown(reader, first, second) == [{"user": 2, "page": None}]
    produce(store, {"user": 2**40, "page": None}, WIDER)
    third = plan(reader, second)
    with pytest.raises(InvalidInput, match=r"batch 2: column user: expected int32.*start the stream again"):
        shown(reader, second, third)


def test_micro_batch_that_is_repeated_after_the_schema_has_changed_has_the_same_rows_and_a_warning(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    before = stream_reader(store, ASKED)
    end = plan(before, before.initialOffset())
    rows = shown(before, {}, end)
    produce(store, {"user": 2, "page": "/", "referrer": "ad"}, MORE)
    after = stream_reader(store, ASKED)
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        assert shown(after, {}, end) == rows
    assert "column referrer: added, string" in caplog.text
    assert shown(after, end, plan(after, end)) == [{"user": 2, "page": "/"}]


def test_query_that_starts_again_after_the_schema_has_changed_says_so_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    before = stream_reader(store, ASKED)
    end = plan(before, before.initialOffset())
    produce(store, {"user": 2, "referrer": "ad"}, MORE)
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        after = stream_reader(store, ASKED)
        later = plan(after, end)
        assert caplog.text.count("column referrer: added, string") == 1
        assert plan(stream_reader(store, ASKED), later) == later
    assert caplog.text.count("column referrer: added, string") == 1, "the checkpoint has the new schema"


def test_query_that_starts_again_with_the_new_columns_shows_them_and_warns_of_nothing(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    before = stream_reader(store, ASKED)
    end = plan(before, before.initialOffset())
    produce(store, {"user": 2, "referrer": "ad"}, MORE)
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        after = stream_reader(store, StructType([*ASKED, StructField("referrer", StringType())]))
        assert shown(after, end, plan(after, end)) == [{"user": 2, "page": None, "referrer": "ad"}]
    assert caplog.text == ""


def test_query_with_columns_that_are_not_there_makes_no_group(store: MemoryStore) -> None:
    reader = stream_reader(store, StructType([StructField("users", IntegerType())]))
    with pytest.raises(InvalidInput, match="there is no column users int; the columns are user int, page string"):
        reader.initialOffset()
    assert head_of(store).groups == {}


def test_query_that_waited_for_bytes_and_gets_rows_is_told_to_start_again_and_can_with_its_checkpoint() -> None:
    store = new_store()
    waiting = stream_reader(store, ALL)
    start = waiting.initialOffset()
    produce(store, {"user": 1, "page": "/"})
    with pytest.raises(InvalidInput, match=r"rows of a schema, whose columns are user int, page.*start it again"):
        plan(waiting, start)
    assert head_of(store).groups == {}
    again = stream_reader(store, ASKED)
    assert shown(again, start, plan(again, start)) == [{"user": 1, "page": "/"}]
