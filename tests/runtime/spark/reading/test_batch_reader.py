"""What a batch read plans, on one machine and without Spark: rfcs/0008."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from read_job import (
    ALL,
    batch_reader,
    columns,
    digits,
    fill,
    head_of,
    moment,
    new_store,
    read,
    rows_of,
    ten_batches,
    trim,
    values_of,
)

from forebay.buffer import create_topic
from forebay.buffer.base.errors import Denied, InvalidInput, NotFound, Trimmed
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import BatchDescriptor, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic
from forebay.runtime.spark.options import Options
from forebay.runtime.spark.reading.plan import Piece, Sizing, SourceBuffer
from forebay.runtime.spark.reading.rows import Rows
from forebay.runtime.spark.reading.times import TimeRange
from forebay.runtime.spark.source import ForebaySource


@pytest.fixture
def store() -> MemoryStore:
    return ten_batches()


# What is read


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "0123456789"),
        ({"startingSequence": 7}, "789"),
        ({"endingSequence": 2}, "012"),
        ({"startingSequence": 3, "endingSequence": 4}, "34"),
        ({"startingSequence": 3, "endingSequence": 99}, "3456789"),
        ({"startingTime": moment(7)}, "789"),
        ({"endingTime": moment(3)}, "012"),
        ({"startingTime": moment(2.5), "endingTime": moment(5)}, "34"),
        ({"startingTime": moment(99)}, ""),
    ],
)
@pytest.mark.parametrize("hold_seconds", [1800, 0])
def test_range_is_read_by_sequence_and_by_time(
    store: MemoryStore, options: dict[str, Any], expected: str, hold_seconds: int
) -> None:
    assert read(store, holdSeconds=hold_seconds, **options) == digits(expected)


def test_batches_out_of_the_time_range_are_not_planned() -> None:
    store = new_store()
    for time in (9000, 1000, 8000, 2000, 9000):  # clocks that disagree
        fill(store, [b"x"], at=time)
    (task,) = batch_reader(store, startingTime=moment(5), endingTime=moment(8.5)).partitions()
    assert [batch.sequence for piece in task.pieces for batch in piece.batches] == [2]


def test_group_is_a_place_to_start_at_and_is_not_moved_or_claimed(store: MemoryStore) -> None:
    with Consumer(store, group="etl") as consumer:
        consumer.next_descriptors(6)
        consumer.ack_through(5)
        before = Groups(store).describe("etl")
        assert read(store, group="etl") == digits("6789")
        assert Groups(store).describe("etl") == before
    with pytest.raises(NotFound, match="has no group 'elt'"):
        read(store, group="elt")


def test_group_that_has_not_acknowledged_anything_is_read_from_its_start(store: MemoryStore) -> None:
    Consumer(store, group="late", from_=8).close()
    assert read(store, group="late") == digits("89")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingSequence": 1, "startingTime": moment(1)},
            "startingSequence, startingTime and group exclude each other",
        ),
        ({"endingSequence": 1, "endingTime": moment(1)}, "endingSequence and endingTime exclude each other"),
        ({"startingSequence": "x"}, "option startingSequence must be a whole number"),
        ({"startingSequence": -1}, "startingSequence must be a whole number"),
        ({"startingTime": "yesterday"}, "'yesterday' is not a position"),
        ({"startingTime": "2026-01-31T12:00:00"}, "has no zone"),
        (
            {"startingSequence": 8, "endingSequence": 2},
            "there is nothing from 8 up to 2; .* 0 to 9: choose another",
        ),
        ({"startingOffsets": 1}, "option startingOffsets cannot be used here: .*use startingSequence or startingTime"),
        ({"endingOffsets": 1}, "option endingOffsets cannot be used here: use endingSequence or endingTime"),
        ({"onCorrupt": "ignore"}, "option onCorrupt must be one of fail, skip"),
        ({"pushFilters": "yes"}, "option pushFilters must be one of true, false"),
        ({"maxPartitionBytes": 0}, "maxPartitionBytes must be a whole number of at least 1"),
        ({"startingSequnce": 1}, "unknown option 'startingSequnce'; did you mean 'startingSequence'"),
        ({"topic": 1}, "unknown option 'topic'; expected one of"),
        ({"url": "memory://another"}, "options url and path differ"),
    ],
)
def test_wrong_option_is_named(store: MemoryStore, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(store, **options)


def test_missing_url_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="there is no URL"):
        Options({}, ()).open_store()


@pytest.mark.parametrize("hold_seconds", [1800, 0])
def test_buffer_that_is_not_there_is_not_taken_for_an_empty_one(hold_seconds: int) -> None:
    store = new_store()
    with pytest.raises(NotFound, match="its URL is wrong"):
        read(store, holdSeconds=hold_seconds)
    assert list(store.list()) == []


def test_empty_buffer_gives_no_rows() -> None:
    store = new_store()
    Consumer(store, group="first").close()
    assert read(store) == []


def test_what_was_trimmed_is_told_with_the_buffer(store: MemoryStore) -> None:
    trim(store, 4)
    assert read(store) == digits("456789")
    for options in ({"startingSequence": 2}, {"startingSequence": 2, "holdSeconds": 0}):
        with pytest.raises(Trimmed, match=f"{store.url}.*batch 2 was trimmed"):
            read(store, **options)


# Version 1


@pytest.fixture
def old_store() -> MemoryStore:
    """A version 1 buffer of six batches, which tell their times in their metadata alone."""
    store = new_store()
    store.create("manifest", Manifest.empty("new").to_bytes())
    other = new_store()
    fill(other, *([b"%d" % number] for number in range(6)))
    for batch in Queue(other).descriptors(0, 6):
        store.put(batch.location, other.get(batch.location).data)
        Queue(store).append([NewBatch(batch.location, batch.metadata)])
    return store


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "012345"),
        ({"startingSequence": 4}, "45"),
        ({"startingTime": moment(2), "endingTime": moment(4)}, "23"),
        ({"endingSequence": 1}, "01"),
    ],
)
def test_version_1_is_read_without_a_hold(old_store: MemoryStore, options: dict[str, Any], expected: str) -> None:
    before = old_store.get("manifest").data
    assert read(old_store, **options) == digits(expected)
    assert old_store.get("manifest").data == before


def test_batches_without_entries_are_not_fetched() -> None:
    store = new_store()
    fill(store, [b"a"], [], [b"b"])
    store.delete(["data/1.batch"])
    assert read(store) == [b"a", b"b"]


# Filters


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("sequence",), 3)], "3"),
        ([GreaterThan(("sequence",), 7)], "789"),
        ([GreaterThanOrEqual(("sequence",), 8)], "89"),
        ([LessThan(("sequence",), 1)], "01"),
        ([LessThanOrEqual(("sequence",), 1), GreaterThan(("sequence",), 0)], "01"),
        ([In(("sequence",), (2, 5, 99))], "25"),
        ([In(("sequence",), (2, None))], "2"),
        ([GreaterThan(("sequence",), 10**6)], ""),
        ([EqualTo(("ingestion_time",), datetime.fromtimestamp(4, UTC))], "4"),
        ([GreaterThanOrEqual(("ingestion_time",), datetime.fromtimestamp(8, UTC))], "89"),
        ([LessThan(("ingestion_time",), datetime.fromtimestamp(1, UTC))], "01"),
        ([EqualTo(("value",), b"1"), IsNotNull(("sequence",))], "0123456789"),
    ],
)
def test_filters_leave_out_batches_and_are_all_left_to_spark(
    store: MemoryStore, filters: list[Filter], expected: str
) -> None:
    reader = batch_reader(store, pushFilters="true")
    push = getattr(reader, "pushFilters")  # noqa: B009 - only this kind of reader takes them
    assert list(push(filters)) == filters
    assert values_of(reader, reader.partitions()) == digits(expected)


def test_reader_takes_filters_only_if_asked_to(store: MemoryStore) -> None:
    from pyspark.sql.datasource import DataSourceReader

    assert type(batch_reader(store)).pushFilters is DataSourceReader.pushFilters


# Holds


def test_plan_holds_what_it_reads_and_nothing_lets_it_go(store: MemoryStore) -> None:
    reader = batch_reader(store, startingSequence=3, holdSeconds=60)
    tasks = reader.partitions()
    (held,) = head_of(store).holds.values()
    assert held.first_sequence == 3
    assert rows_of(reader, tasks)
    assert list(head_of(store).holds.values()) == [held], (
        "there was no need to renew it, and nobody knows the last task"
    )


def test_reader_without_rights_to_write_is_told_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    fill(store, [b"a"])

    def refuse(*_args: object, **_settings: object) -> None:
        raise Denied("403")

    monkeypatch.setattr(MemoryStore, "replace", refuse)
    with pytest.raises(Denied, match="holdSeconds=0"):
        read(store)
    assert read(store, holdSeconds=0) == [b"a"]


# Topics


def test_topic_is_read_as_one_with_a_hold_in_each_partition() -> None:
    store = new_store()
    create_topic(store, 3)
    topic = Topic(store)
    for number in range(3):
        fill(topic.partition(number), *([b"%d-%d" % (number, at)] for at in range(2)))
    reader = batch_reader(store, columns("partition", "sequence", "value"), minPartitions=2)
    tasks = reader.partitions()
    assert len(tasks) == 2
    found = [tuple(row.values()) for row in rows_of(reader, tasks)]
    assert found == [(number, at, b"%d-%d" % (number, at)) for number in range(3) for at in range(2)]
    assert all(len(head_of(topic.partition(number)).holds) == 1 for number in range(3))
    assert read(store, startingTime=moment(1)) == [b"0-1", b"1-1", b"2-1"]
    with pytest.raises(InvalidInput, match="is a topic, where a sequence is another batch in each partition"):
        read(store, startingSequence=1)


# Secrets


def test_nothing_that_spark_keeps_shows_a_secret() -> None:
    secrets = {"storage.key": "AKIAKEY", "storage.secret": "hush-hush", "storage.token": "psst-psst"}
    source = ForebaySource({"path": "s3://lake/clicks", **secrets})
    reader, stream = source.reader(ALL), source.streamReader(ALL)
    piece = Piece(SourceBuffer(reader._store, 0, "manifest"), (BatchDescriptor(0, "data/x"),))
    (task,) = Sizing(1, 1).pack([piece], Rows(ALL, TimeRange()))
    for kept in (source, reader, stream, task):
        shown = pickle.dumps(kept) + repr(kept).encode()
        if kept is not source:
            shown += repr(vars(kept)).encode()
        for secret in secrets.values():
            assert secret.encode() not in shown, kept
    assert dict(pickle.loads(pickle.dumps(source)).options) == source.options
    assert pickle.loads(pickle.dumps(reader))._store._options.secret == "hush-hush", "and yet it is there"
