"""What a batch read plans and what its tasks yield, on one machine and without Spark: rfcs/0008."""

from __future__ import annotations

import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import pytest
from msgspec.structs import replace as change
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
    TYPES,
    batch_reader,
    batch_sizes,
    columns,
    fill,
    head_of,
    new_store,
    read,
    rows_of,
    trim,
    values_of,
)

from forebay.buffer import create_topic
from forebay.buffer.base.errors import Corrupt, Denied, Fenced, InvalidInput, NotFound, Trimmed
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.format.model import BatchDescriptor, Facts, Metadata, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic
from forebay.runtime.spark.options import Options
from forebay.runtime.spark.read.plan import Piece, Sizing, SourceBuffer, stored_size_of
from forebay.runtime.spark.read.rows import Rows, TimeRange
from forebay.runtime.spark.source import ForebaySource


@pytest.fixture
def store() -> MemoryStore:
    """Ten batches of one entry, `0` to `9`, taken in a second apart."""
    store = new_store()
    fill(store, *([b"%d" % number] for number in range(10)))
    return store


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def digits(text: str) -> list[bytes]:
    return [digit.encode() for digit in text]


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


def test_rows_of_a_batch_that_is_partly_in_the_time_range_are_cut_exactly() -> None:
    times = (Metadata(1, 1000, b""), Metadata(2, 2000, b""), Metadata(3, 3000, b""))
    descriptor = BatchDescriptor(0, "data/x", times, Facts(1, 1, 4, 0, 1000, 3000))
    batch = Batch(descriptor, decode_batch(encode_batch([b"untimed", b"one", b"two", b"three"])), 1)

    def values_in(since_ms: int | None, until_ms: int | None) -> list[bytes]:
        rows = Rows(columns("value"), TimeRange(since_ms, until_ms))
        return [row["value"] for found in rows.slices(batch, 0) for row in found.to_pylist()]

    assert values_in(1500, 3000) == [b"two"]
    assert values_in(None, 3000) == [b"one", b"two"]
    assert values_in(1000, None) == [b"one", b"two", b"three"], "an entry without a time is in no range of time"
    assert values_in(None, None) == [b"untimed", b"one", b"two", b"three"]


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
        ({"startingSequence": 1, "startingTime": moment(1)}, "give one of startingSequence, startingTime, group"),
        ({"endingSequence": 1, "endingTime": moment(1)}, "give one of endingSequence, endingTime"),
        ({"startingSequence": "x"}, "option startingSequence must be a whole number"),
        ({"startingSequence": -1}, "startingSequence must be a whole number"),
        ({"startingTime": "yesterday"}, "'yesterday' is neither"),
        ({"startingTime": "2026-01-31T12:00:00"}, "has no zone"),
        ({"startingSequence": 8, "endingSequence": 2}, "there is nothing from 8 up to 2"),
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


# Rows


def test_columns_asked_for_come_in_their_order_and_with_their_nullability(store: MemoryStore) -> None:
    wanted = columns("value", "partition", "sequence")
    wanted["value"].nullable = False
    reader = batch_reader(store, wanted, endingSequence=0)
    (batch,) = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [str(field) for field in batch.schema] == [
        "pyarrow.Field<value: binary not null>",
        "pyarrow.Field<partition: int32>",
        "pyarrow.Field<sequence: int64>",
    ]
    assert batch.to_pylist() == [{"value": b"0", "partition": 0, "sequence": 0}]


def test_all_columns_are_exact(store: MemoryStore) -> None:
    reader = batch_reader(store, startingSequence=2, endingSequence=3)
    assert rows_of(reader, reader.partitions()) == [
        {
            "sequence": number,
            "index": 0,
            "ingestion_time": datetime.fromtimestamp(number, UTC),
            "metadata": b"m",
            "value": b"%d" % number,
        }
        for number in (2, 3)
    ]


def test_column_that_is_not_there_is_refused_with_those_that_are(store: MemoryStore) -> None:
    wrong = columns("value")
    wrong["value"].dataType = TYPES["sequence"]
    for schema in (wrong, columns("value").add("values", TYPES["value"])):
        with pytest.raises(InvalidInput, match="the columns are sequence bigint, index int"):
            batch_reader(store, schema)


def test_slices_are_bounded_in_rows_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    fill(store, [b"x"] * 25_000, [b"y" * 1000] * 10_000, [b"z" * (5 << 20)] * 3)
    reader = batch_reader(store, columns("value"), minPartitions=1)
    (task,) = reader.partitions()
    sizes = batch_sizes(reader.read(task))
    assert sizes[:3] == [10_000, 10_000, 5_000]
    assert sizes[3:6] == [4177, 4177, 1646], "4 MiB of a thousand bytes each, with 4 for the length"
    assert sizes[6:] == [1, 1, 1]


def test_metadata_counts_in_the_size_of_a_slice() -> None:
    store = new_store()
    fill(store, [b"x"] * 1000, metadata=b"p" * (1 << 20))
    reader = batch_reader(store, columns("metadata", "value"))
    (task,) = reader.partitions()
    assert max(batch_sizes(reader.read(task))) == 3
    reader = batch_reader(store, columns("value"))
    (task,) = reader.partitions()
    assert batch_sizes(reader.read(task)) == [1000], "metadata that nobody asked for is not made"


@pytest.mark.parametrize("starts", [(), (0,), (3,), (0, 5), (0, 4, 5, 11)])
def test_slices_together_are_the_rows_of_the_batch(starts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tuple(Metadata(start, 1000 * start, b"from %d" % start) for start in starts)
    decoded = decode_batch(encode_batch([b"%d" % number for number in range(12)]))
    batch = Batch(BatchDescriptor(7, "data/x.batch", metadata), decoded, 1)
    monkeypatch.setattr("forebay.runtime.spark.read.rows._MOST_ROWS", 5)
    found = [row for made in Rows(ALL, TimeRange()).slices(batch, 0) for row in made.to_pylist()]
    assert found == batch.records().to_pylist()


# Packing


def pieces_of(sizes: list[int], partition: int = 0) -> list[Piece]:
    source = SourceBuffer(new_store(), partition, "manifest")
    batches = [BatchDescriptor(i, f"data/{i}", (), Facts(1, size, 1, 0, 0, 0)) for i, size in enumerate(sizes)]
    return [Piece(source, tuple(batches))]


def packed(sizing: Sizing, pieces: list[Piece]) -> list[list[int]]:
    tasks = sizing.pack(pieces)
    return [
        [batch.facts.raw_bytes for piece in task.pieces for batch in piece.batches if batch.facts] for task in tasks
    ]


MiB = 1 << 20


def test_tasks_have_about_the_same_bytes_and_at_most_what_was_asked_for() -> None:
    assert packed(Sizing(100, 1), pieces_of([40, 10, 50, 60, 40, 100])) == [[40, 10, 50], [60, 40], [100]]
    assert packed(Sizing(1000, 3), pieces_of([10] * 9)) == [[10] * 3] * 3
    assert packed(Sizing(1000, 99), pieces_of([10] * 3)) == [[10]] * 3, "a batch is not cut"
    assert packed(Sizing(10, None), pieces_of([500, 1])) == [[500], [1]]
    assert packed(Sizing(10, None), []) == []


def test_small_reads_get_few_tasks_and_large_ones_two_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    sizing = Sizing(256 * MiB, None)
    assert len(sizing.pack(pieces_of([MiB] * 20))) == 1, "32 MiB are worth a task"
    assert len(sizing.pack(pieces_of([MiB] * 100))) == 4
    assert len(sizing.pack(pieces_of([MiB] * 500))) == 8
    assert len(sizing.pack(pieces_of([64 * MiB] * 100))) == 25, "256 MiB at most"


def test_every_task_knows_all_sources_so_that_it_keeps_their_holds() -> None:
    tasks = Sizing(10, None).pack([*pieces_of([10, 10], 0), *pieces_of([10], 1)])
    assert [[piece.source.partition for piece in task.pieces] for task in tasks] == [[0], [0], [1]]
    assert all([source.partition for source in task.sources] == [0, 1] for task in tasks)


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


def test_task_of_a_hold_that_expired_fails_before_it_reads_and_says_so(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=60)
    (task,) = reader.partitions()
    expire(store)
    late = pickle.loads(pickle.dumps(task))
    late.sources = tuple(overdue(source) for source in late.sources)
    with pytest.raises(Fenced, match=r"expired and was removed.*run the job again under a new hold"):
        list(reader.read(late))


def test_missing_batch_under_an_expired_hold_is_told_as_the_hold(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=60)
    (task,) = reader.partitions()
    expire(store)
    store.delete(["data/3.batch"])
    with pytest.raises(Fenced):
        list(reader.read(task))


def test_late_task_renews_the_hold_of_every_source(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=60)
    (task,) = reader.partitions()
    late = pickle.loads(pickle.dumps(task))
    late.sources = tuple(overdue(source) for source in late.sources)
    assert len(list(reader.read(late))) == 10
    (after,) = head_of(store).holds.values()
    assert after.renewals == 1


def overdue(source: SourceBuffer) -> SourceBuffer:
    """The same source, planned long ago."""
    assert source.hold is not None
    return replace(source, hold=change(source.hold, renewed_ms=0))


def expire(store: MemoryStore) -> None:
    """What the collector does with a hold that was not renewed in time."""
    (name,) = head_of(store).holds
    Queue(store).change_head(lambda head: head.without_hold(name), lambda head: not head.holds)


def test_reader_without_rights_to_write_is_told_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    fill(store, [b"a"])

    def refuse(*_args: object, **_settings: object) -> None:
        raise Denied("403")

    monkeypatch.setattr(MemoryStore, "replace", refuse)
    with pytest.raises(Denied, match="holdSeconds=0"):
        read(store)
    assert read(store, holdSeconds=0) == [b"a"]


# Damage


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_damaged_batch_fails_with_its_location_or_is_skipped_and_counted(
    store: MemoryStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "missing":
        store.delete(["data/4.batch"])
    else:
        store.put("data/4.batch", b"rubbish")
    with pytest.raises((Corrupt, NotFound), match=f"{store.url}/data/4.batch, batch 4"):
        read(store)
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        assert read(store, onCorrupt="skip") == digits("012356789")
    assert f"{store.url}: 1 of 10 batches were skipped" in caplog.text


def test_missing_bucket_is_never_skipped(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = batch_reader(store, onCorrupt="skip")
    tasks = reader.partitions()

    def gone(*_args: object) -> None:
        raise NotFound("no bucket", bucket=True)

    monkeypatch.setattr("forebay.buffer.read.fetch.FetchHandle.fetch_raw", gone)
    with pytest.raises(NotFound, match="no bucket"):
        rows_of(reader, tasks)


def test_batch_that_was_trimmed_meanwhile_is_told_as_trimmed(store: MemoryStore) -> None:
    reader = batch_reader(store, holdSeconds=0, onCorrupt="skip")
    tasks = reader.partitions()
    trim(store, 5)
    store.delete([f"data/{number}.batch" for number in range(5)])
    with pytest.raises(Trimmed, match=f"{store.url}: batch 0 was trimmed"):
        rows_of(reader, tasks)


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
def test_task_reads_again_what_arrives_falsified_once(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, on_corrupt: str
) -> None:
    reader = batch_reader(store, columns("value"), minPartitions=1, onCorrupt=on_corrupt)
    (task,) = reader.partitions()
    falsified: set[str] = set()
    get = MemoryStore.get

    def falsify_once(self: MemoryStore, key: str) -> StoredObject:
        found = get(self, key)
        if not key.startswith("data/") or key in falsified:
            return found
        falsified.add(key)
        return StoredObject(bytes([found.data[0] ^ 1]) + bytes(found.data[1:]), found.version)

    monkeypatch.setattr(MemoryStore, "get", falsify_once)
    assert sum(len(rows) for rows in reader.read(task)) == 10
    assert len(falsified) == 10


# Memory


@pytest.mark.parametrize(("room", "objects", "ahead"), [(0, 16, 1), (1, 16, 1), (3, 16, 3), (9, 2, 2)])
def test_task_fetches_ahead_within_its_bounds(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, room: int, objects: int, ahead: int
) -> None:
    asked: list[int] = []

    class Watched(ThreadPoolExecutor):
        def submit(self, act: Any, descriptor: Any, *rest: Any) -> Any:  # type: ignore[override] # what is called here
            if not rest:
                asked.append(descriptor.sequence)
            return super().submit(act, descriptor, *rest)

    fill(store, *([b"x" * 1000] for _ in range(20)))
    reader = batch_reader(store, columns("value"), startingSequence=10, minPartitions=1)
    (task,) = reader.partitions()
    stored = stored_size_of(task.pieces[0].batches[0])
    monkeypatch.setattr("forebay.runtime.spark.read.task_reader.ThreadPoolExecutor", Watched)
    monkeypatch.setattr("forebay.runtime.spark.read.task_reader._AHEAD_BYTES", 2 * 1004 + room * stored)
    monkeypatch.setattr("forebay.runtime.spark.read.task_reader._AHEAD_OBJECTS", objects)
    pulled = reader.read(task)
    for first in range(10, 15):
        next(pulled)
        assert asked == list(range(10, first + 2 + ahead)), "two decoded, and what there is room for"
    assert len(list(pulled)) == 15
    assert asked == list(range(10, 30))


def test_task_decodes_one_batch_ahead_of_what_spark_pulls(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: SimpleQueue[str] = SimpleQueue()

    def watched(data: Any, *, location: str, max_raw_bytes: int) -> Any:
        decoded.put(location)
        return decode_batch(data, location=location, max_raw_bytes=max_raw_bytes)

    monkeypatch.setattr("forebay.buffer.read.fetch.decode_batch", watched)
    reader = batch_reader(store, columns("value"), minPartitions=1)
    (task,) = reader.partitions()
    pulled = reader.read(task)
    for number in range(10):
        next(pulled)
        if number == 0:
            assert decoded.get(timeout=30) == f"{store.url}/data/0.batch"
        if number < 9:
            assert decoded.get(timeout=30) == f"{store.url}/data/{number + 1}.batch", "while Spark has the one before"
        assert decoded.empty(), "and no more than that"
    assert not list(pulled)


def test_task_that_spark_gives_up_reads_and_decodes_no_more(store: MemoryStore) -> None:
    reader = batch_reader(store, columns("value"), minPartitions=1)
    (task,) = reader.partitions()
    pulled = reader.read(task)
    next(pulled)
    pulled.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forebay-spark")]


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
    task = Sizing(1, 1).pack([Piece(SourceBuffer(reader._store, 0, "manifest"), (BatchDescriptor(0, "data/x"),))])[0]
    for kept in (source, reader, stream, task):
        shown = pickle.dumps(kept) + repr(kept).encode()
        if kept is not source:
            shown += repr(vars(kept)).encode()
        for secret in secrets.values():
            assert secret.encode() not in shown, kept
    assert dict(pickle.loads(pickle.dumps(source)).options) == source.options
    assert pickle.loads(pickle.dumps(reader))._store._options.secret == "hush-hush", "and yet it is there"
