"""What a stream plans and repeats, driven in Spark's order but without Spark: rfcs/0008."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles
from read_job import (
    ALL,
    Query,
    entries,
    fill,
    frontier_of,
    head_of,
    new_store,
    numbers,
    query_on,
    stream_reader,
    stream_reader_without_group,
)

from forebay.buffer.base.errors import InvalidInput, NotFound, Trimmed, Unavailable, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.spark.reading.stream_reader import StreamReader
from forebay.testing import Crash, ManualClock


@pytest.fixture
def store() -> MemoryStore:
    """Six batches of one entry, `0` to `5`, taken in a second apart."""
    store = new_store()
    fill(store, *entries(0, 6))
    return store


# Progress and the frontier


def test_stream_reads_everything_once_and_the_group_follows_what_is_durable(store: MemoryStore) -> None:
    query = query_on(store, maxBatchesPerTrigger=2)
    assert query.run_batch()
    assert frontier_of(store) == 0, "committed, but nobody has said so to the source yet"
    assert query.run_batch()
    assert frontier_of(store) == 2
    assert query.run() == numbers(0, 6)
    assert frontier_of(store) == 6, "the last call of a run says so of its last micro-batch"
    fill(store, *entries(6, 8))
    assert query.run() == numbers(0, 8)
    assert query.sink[3] == numbers(6, 8)
    assert frontier_of(store) == 8


@pytest.mark.parametrize("batch", range(3))
@pytest.mark.parametrize("step", Query.STEPS)
def test_process_that_dies_at_any_step_repeats_exactly_what_was_planned(
    store: MemoryStore, step: str, batch: int
) -> None:
    """Nothing lost or doubled in a sink that takes each micro-batch once, and the frontier never ahead of it."""
    query = query_on(store, maxBatchesPerTrigger=2)
    for _ in range(batch):
        query.run_batch()
    with pytest.raises(Crash):
        query.run_batch(die_before=step)
    was_planned = len(query.offsets) > batch
    assert frontier_of(store) <= 2 * query.commits
    fill(store, *entries(6, 9))
    query.make_reader = lambda: stream_reader(store)
    query.restart()
    query.run_batch()
    assert frontier_of(store) <= 2 * query.commits
    assert query.sink[batch] == numbers(2 * batch, 2 * batch + 2 if was_planned else 9), (
        "a planned range stays as it is"
    )
    assert query.run() == numbers(0, 9)
    assert frontier_of(store) == 9


def test_first_micro_batch_is_repeated_though_latest_is_elsewhere_by_then(store: MemoryStore) -> None:
    Consumer(store, group="etl").close()  # so `latest` is asked for, and is not where the group stands
    query = query_on(store, startingOffsets="latest")
    start = query.reader.initialOffset()
    fill(store, *entries(6, 8))
    query.offsets.append(query.reader.latestOffset(start, ReadAllAvailable()))
    fill(store, *entries(8, 9))
    query.restart()
    assert query.run() == numbers(6, 9)


def test_acknowledgement_lost_by_a_crash_is_made_up_for_by_the_next_run(store: MemoryStore) -> None:
    query = query_on(store)
    query.run_batch()
    query.restart()
    assert frontier_of(store) == 0
    assert not query.run_batch()
    assert frontier_of(store) == 6


def test_nothing_is_claimed_or_made_before_offsets_are_asked_for(store: MemoryStore) -> None:
    before = store.get("manifest").data
    reader = stream_reader(store)
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    assert reader.reportLatestOffset() is None
    reader.stop()
    assert store.get("manifest").data == before


def test_idle_stream_writes_nothing(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    cursor = Groups(store).describe("etl")
    key = f"cursors/etl/{cursor.generation}"
    before = store.get(key).version, store.get("manifest").version
    for _ in range(3):
        assert not query.run_batch()
    assert (store.get(key).version, store.get("manifest").version) == before


def test_append_is_in_the_first_micro_batch_planned_after_it(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    for number in range(6, 10):
        fill(store, [b"%d" % number])
        assert query.run_batch()
        assert query.sink[query.commits - 1] == [b"%d" % number]


def test_batches_are_counted_as_acknowledged_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr("forebay.buffer.base.metrics.acks.add", lambda count, _attributes: counted.append(count))
    with Consumer(store, group="etl") as consumer:
        consumer.next_descriptors(4)
        consumer.ack_through(3)
    query = query_on(store, startingOffsets="earliest", maxBatchesPerTrigger=3)
    query.run()
    assert counted == [4, 2], "what is read again is acknowledged already"


def test_stopped_stream_lets_the_group_go(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    assert Groups(store).describe("etl").alive
    query.reader.stop()
    assert not Groups(store).describe("etl").alive


def test_store_out_of_reach_does_not_stop_an_acknowledgement_for_good(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = query_on(store, maxBatchesPerTrigger=2)
    query.run_batch()

    def down(*_args: object) -> None:
        raise Unavailable("down")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "forebay.spark"):
        patched.setattr("forebay.buffer.groups.GroupReader.ack", down)
        assert query.run_batch()
    assert "acknowledging batch 1 failed" in caplog.text
    assert frontier_of(store) == 0
    query.run_batch()
    assert frontier_of(store) == 4


# Where it starts


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        (None, "012345"),
        ("earliest", "012345"),
        ("LATEST", ""),
        ("4", "45"),
        (datetime.fromtimestamp(2, UTC).isoformat(), "2345"),
    ],
)
def test_new_group_starts_where_it_is_asked_to(store: MemoryStore, starting: str | None, expected: str) -> None:
    options = {} if starting is None else {"startingOffsets": starting}
    query = query_on(store, **options)
    assert query.run() == [digit.encode() for digit in expected]


@pytest.mark.parametrize(("starting", "expected"), [(None, "345"), ("earliest", "012345"), ("5", "5"), ("latest", "")])
def test_group_that_stands_somewhere_is_left_only_if_asked_to(
    store: MemoryStore, starting: str | None, expected: str
) -> None:
    with Consumer(store, group="etl") as consumer:
        consumer.next_descriptors(3)
        consumer.ack_through(2)
    options = {} if starting is None else {"startingOffsets": starting}
    query = query_on(store, **options)
    assert query.run() == [digit.encode() for digit in expected]
    assert frontier_of(store) == (3 if starting == "latest" else 6), "what no micro-batch has read is not acknowledged"


def test_unnamed_consumer_streams_without_a_group(store: MemoryStore) -> None:
    query = Query(lambda: stream_reader_without_group(store))
    assert query.run() == numbers(0, 6)
    owner = head_of(store).owner
    assert owner is not None
    assert owner.acked == 5
    assert head_of(store).groups == {}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingOffsets": "7"}, InvalidInput, "start must be a sequence from 0 to 6, not 7"),
        ({"startingOffsets": "soon"}, InvalidInput, "'soon' is not a position"),
        (
            {"startingTime": "2026-01-31"},
            InvalidInput,
            "option startingTime cannot be used here.*use startingOffsets",
        ),
        ({"startingoffset": "1"}, InvalidInput, "did you mean 'startingOffsets'"),
        ({"failOnDataLoss": "maybe"}, InvalidInput, "option failOnDataLoss must be one of true, false"),
        ({"maxBatchesPerTrigger": "0"}, InvalidInput, "maxBatchesPerTrigger must be a whole number of at least 1"),
        ({"group": "a/b"}, InvalidInput, "a group's name must be"),
    ],
)
def test_wrong_option_is_named(
    store: MemoryStore, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        stream_reader(store, **options).initialOffset()


def test_existing_group_cannot_start_beyond_the_end(store: MemoryStore) -> None:
    Consumer(store, group="etl").close()
    with pytest.raises(InvalidInput, match="there is no batch 7 yet; the next one will be 6"):
        stream_reader(store, startingOffsets="7").initialOffset()


# Limits


def test_limit_of_bytes_admits_what_fits_and_one_batch_at_least(store: MemoryStore) -> None:
    fill(store, [b"x" * 96], [b"y" * 996], [b"z" * 96])
    query = query_on(store, maxBytesPerTrigger=100)
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(100)
    query.run()
    assert [len(query.sink[batch]) for batch in sorted(query.sink)] == [6, 1, 1, 1]


def test_both_limits_hold_together(store: MemoryStore) -> None:
    query = query_on(store, maxBytesPerTrigger=10, maxBatchesPerTrigger=3)
    query.run()
    assert [len(query.sink[batch]) for batch in sorted(query.sink)] == [2, 2, 2], "5 bytes each"
    query = query_on(store, group="other", maxBytesPerTrigger=10**6, maxBatchesPerTrigger=4)
    query.run()
    assert [len(query.sink[batch]) for batch in sorted(query.sink)] == [4, 2]
    assert stream_reader(store, maxBatchesPerTrigger=4).getDefaultReadLimit() == ReadMaxFiles(4)


def test_trigger_that_wants_all_gets_all(store: MemoryStore) -> None:
    query = query_on(store, maxBatchesPerTrigger=2)
    assert query.run_batch(limit=ReadAllAvailable())
    assert query.sink[0] == numbers(0, 6)


def test_available_now_stops_at_what_was_there_and_limits_still_hold(store: MemoryStore) -> None:
    query = query_on(store, maxBatchesPerTrigger=4)
    query.reader.prepareForTriggerAvailableNow()
    assert query.run_batch()
    fill(store, *entries(6, 9))
    assert query.run() == numbers(0, 6)
    assert frontier_of(store) == 6
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.run() == numbers(0, 9)


# Version 1


@pytest.fixture
def old_store() -> MemoryStore:
    """A version 1 buffer of four batches."""
    store, other = new_store(), new_store()
    store.create("manifest", Manifest.empty("new").to_bytes())
    fill(other, *entries(0, 4))
    for batch in Queue(other).descriptors(0, 4):
        store.put(batch.location, other.get(batch.location).data)
        Queue(store).append([NewBatch(batch.location, batch.metadata)])
    return store


def test_version_1_streams_as_the_unnamed_consumer_and_groups_are_refused(old_store: MemoryStore) -> None:
    query = Query(lambda: stream_reader_without_group(old_store, maxBatchesPerTrigger="3"))
    query.run_batch()
    query.restart()
    assert query.run() == numbers(0, 4)
    assert Queue(old_store).read().first_sequence == 4, "consumed"
    with pytest.raises(Unsupported, match="is of version 1"):
        stream_reader(old_store).initialOffset()


def test_batches_that_another_consumer_took_from_version_1_are_lost_data(old_store: MemoryStore) -> None:
    query = Query(lambda: stream_reader_without_group(old_store))
    with pytest.raises(Crash):
        query.run_batch(die_before="read")
    with Consumer(old_store) as consumer:
        consumer.next_descriptors(3)
        consumer.ack_through(2)
    query.restart()
    with pytest.raises(Trimmed, match="batch 0 was consumed by another"):
        query.run_batch()


# A buffer that does not exist yet


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "earliest"}, {"startingOffsets": "latest"}])
def test_stream_waits_for_a_buffer_that_does_not_exist_and_creates_nothing(options: dict[str, str]) -> None:
    store = new_store()
    query = query_on(store, **options)
    assert not query.run_batch()
    assert not query.run_batch()
    assert list(store.list()) == []
    fill(store, *entries(0, 3))
    assert query.run() == numbers(0, 3)
    assert frontier_of(store) == 3


def test_stream_waits_where_only_an_unnamed_consumer_was() -> None:
    """The checkpoint names the buffer, and the first write gives it its id."""
    store = new_store()
    Consumer(store)
    query = Query(lambda: stream_reader_without_group(store))
    assert not query.run_batch()
    fill(store, *entries(0, 3))
    assert query.run() == numbers(0, 3)


def test_stream_that_waits_says_so_and_again_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    clock = ManualClock()
    reader = StreamReader({"path": store.url, "group": "etl"}, ALL, clock=clock)
    with caplog.at_level(logging.WARNING):
        start = reader.initialOffset()
        reader.latestOffset(start, ReadAllAvailable())
        assert [store.url in message for message in caplog.messages] == [True]
        clock.advance(60)
        reader.latestOffset(start, ReadAllAvailable())
    assert len(caplog.messages) == 2


def test_query_for_what_is_available_now_refuses_a_buffer_that_does_not_exist() -> None:
    store = new_store()
    reader = stream_reader(store)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(NotFound, match=store.url):
        reader.initialOffset()
    assert list(store.list()) == []
