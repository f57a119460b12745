"""What a stream claims, acknowledges and refuses, in a buffer and in a topic, without Spark: rfcs/0008."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from read_job import (
    entries,
    fill,
    frontier_of,
    new_store,
    numbers,
    query_on,
    rows_of,
    stream_reader,
    stream_reader_without_group,
    trim,
    values_of,
)

from forebay.buffer import add_partitions, create_topic
from forebay.buffer.base.errors import Corrupt, Fenced, InvalidInput, Trimmed, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicConsumer
from forebay.runtime.spark.reading.offsets import Position, from_json, to_json


@pytest.fixture
def store() -> MemoryStore:
    """Six batches of one entry, `0` to `5`, taken in a second apart."""
    store = new_store()
    fill(store, *entries(0, 6))
    return store


# Fences, and checkpoints that are not ours


def test_fenced_stream_fails_and_changes_nothing(store: MemoryStore) -> None:
    query = query_on(store, maxBatchesPerTrigger=2)
    query.run_batch()
    taking_over = Consumer(store, group="etl")
    before = Groups(store).describe("etl")
    start, end = query.offsets[0], to_json({0: Position(taking_over.reader, 4, 2)})
    for call in (
        lambda: query.reader.latestOffset(start, ReadAllAvailable()),
        lambda: query.reader.commit(start),
        lambda: query.reader.partitions(start, end),
        query.reader.prepareForTriggerAvailableNow,
    ):
        with pytest.raises(Fenced, match="another consumer took over group etl"):
            call()
    query.reader.stop()
    assert Groups(store).describe("etl") == before


def test_second_stream_of_a_group_fences_the_first(store: MemoryStore) -> None:
    first, second = query_on(store, maxBatchesPerTrigger=2), query_on(store)
    first.run_batch()
    assert second.run() == numbers(0, 6)
    with pytest.raises(Fenced):
        first.run_batch()


def test_checkpoint_of_a_group_that_was_reset_is_refused(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    Groups(store).reset("etl", "earliest", force=True)
    query.restart()
    with pytest.raises(InvalidInput, match=r"the checkpoint is of group etl.*Start with a new checkpoint"):
        query.run_batch()
    assert frontier_of(store) == 0, "nothing was acknowledged that was not read in this life of the group"


def test_checkpoint_of_another_group_is_refused(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    query.reader = stream_reader(store, group="other")
    query.reader.prepareForTriggerAvailableNow()  # which comes first, where a run is to end
    with pytest.raises(InvalidInput, match=r"is of group etl .*this stream reads as group other"):
        query.run_batch()
    assert [group.name for group in Groups(store).list()] == ["etl"], "another would keep everything from the collector"


def test_checkpoint_of_another_buffer_is_refused(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    another = new_store()
    fill(another, *entries(0, 9))
    query.reader = stream_reader(another)
    with pytest.raises(Corrupt, match="the buffer at this URL is"):
        query.run_batch()


def test_checkpoint_ahead_of_a_manifest_that_was_set_back_is_refused(store: MemoryStore) -> None:
    stream_reader(store).initialOffset()
    backup = store.get("manifest").data
    fill(store, *entries(6, 8))
    query = query_on(store)
    query.run()
    store.put("manifest", bytes(backup))
    query.restart()
    with pytest.raises(Corrupt, match="is at batch 8, and the next one will be 6: the manifest was set back"):
        query.run_batch()
    with pytest.raises(Corrupt, match="the manifest was set back"):
        query.reader.partitions({}, query.offsets[0])  # what it planned from 0 on


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        ({"version": 2, "partitions": {}}, Unsupported),
        ({"version": 1}, Corrupt),
        ({"version": 1, "partitions": {"0": {"next": 1}}}, Corrupt),
        ({"version": 1, "partitions": {"x": {}}}, Corrupt),
        ({"version": 1, "partitions": []}, Corrupt),
    ],
)
def test_offset_that_is_none_of_ours_is_refused(offset: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="the checkpoint holds"):
        from_json(offset)


# Data loss


def test_batches_trimmed_unread_fail_the_stream_or_are_skipped_as_asked(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    query = query_on(store, maxBatchesPerTrigger=2)
    query.run_batch()
    trim(store, 4)
    with pytest.raises(Trimmed, match=r"2 batches from 2 on were removed.*failOnDataLoss=false"):
        query.run_batch()
    query.make_reader = lambda: stream_reader(store, failOnDataLoss="false")
    query.restart()
    with caplog.at_level(logging.WARNING, "forebay.spark"):
        assert query.run() == [b"0", b"1", b"4", b"5"]
    assert "batches 2 to 3 were removed unread and are skipped" in caplog.text
    assert frontier_of(store) == 6


def test_planned_batches_trimmed_before_they_are_read_are_skipped_as_asked(store: MemoryStore) -> None:
    for fails in ("true", "false"):
        query = query_on(store, group=f"g-{fails}", failOnDataLoss=fails)
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, ReadAllAvailable())
        tasks = query.reader.partitions(start, end)
        if fails == "true":
            trim(store, 2)
            store.delete(["data/0.batch", "data/1.batch"])
            with pytest.raises(Trimmed, match=r"batch 0 of .* was trimmed before it could be read"):
                rows_of(query.reader, tasks)
            with pytest.raises(Trimmed):
                query.reader.partitions(start, end)
        else:
            trim(store, 4)
            store.delete(["data/2.batch", "data/3.batch"])
            assert values_of(query.reader, tasks) == numbers(4, 6)
            assert values_of(query.reader, query.reader.partitions(start, end)) == numbers(4, 6)


def test_everything_trimmed_is_passed_over_and_the_stream_goes_on(store: MemoryStore) -> None:
    query = query_on(store, maxBatchesPerTrigger=1, failOnDataLoss="false")
    query.run_batch()
    trim(store, 6)
    query.run()
    fill(store, *entries(6, 7))
    assert query.run() == [b"0", b"6"]


# Topics


@pytest.fixture
def topic() -> Topic:
    store = new_store()
    create_topic(store, 2)
    return Topic(store)


def test_topic_streams_as_one_with_a_frontier_in_each_partition(topic: Topic) -> None:
    fill(topic.partition(0), [b"a0"], [b"a1"])
    fill(topic.partition(1), [b"b0"])
    query = query_on(topic.store)
    assert sorted(query.run()) == [b"a0", b"a1", b"b0"]
    assert [frontier_of(topic.partition(number)) for number in range(2)] == [2, 1]
    fill(topic.partition(1), [b"b1"])
    query.run()
    assert query.sink[1] == [b"b1"]


def test_oldest_batches_of_a_topic_go_first_whatever_their_partition(topic: Topic) -> None:
    for time in range(3):
        fill(topic.partition(1), [b"b%d" % time], at=10 + time)
    for time in range(3):
        fill(topic.partition(0), [b"a%d" % time], at=time if time < 2 else 99)
    query = query_on(topic.store, maxBatchesPerTrigger=2)
    query.run()
    assert [sorted(query.sink[batch]) for batch in sorted(query.sink)] == [
        [b"a0", b"a1"],
        [b"b0", b"b1"],
        [b"a2", b"b2"],
    ]


def test_partition_added_while_a_stream_runs_is_read_from_its_beginning(topic: Topic) -> None:
    fill(topic.partition(0), [b"a0"])
    query = query_on(topic.store, startingOffsets="latest")
    assert query.run() == []
    add_partitions(topic.store, 3)
    fill(topic.partition(2), [b"c0"])
    assert query.run() == [b"c0"]
    assert frontier_of(topic.partition(2)) == 1


def test_partition_where_nothing_was_read_is_not_acknowledged(topic: Topic) -> None:
    with TopicConsumer(topic.store, group="etl"):
        pass
    fill(topic.partition(0), [b"a0"])
    fill(topic.partition(1), [b"b0"])
    query = query_on(topic.store, startingOffsets="latest")
    assert query.run() == []
    fill(topic.partition(1), [b"b1"])
    assert query.run() == [b"b1"]
    assert [frontier_of(topic.partition(number)) for number in range(2)] == [0, 2]


def test_replaced_stream_does_not_claim_a_partition_added_later(topic: Topic) -> None:
    first, second = query_on(topic.store), query_on(topic.store)
    first.run()
    second.run()
    add_partitions(topic.store, 3)
    second.run()
    with pytest.raises(Fenced):
        first.run_batch()
    fill(topic.partition(2), [b"c0"])
    assert second.run() == [b"c0"], "the new partition was not taken from it"


def test_sequence_is_no_place_to_start_in_a_topic(topic: Topic) -> None:
    for make_reader in (stream_reader, stream_reader_without_group):
        with pytest.raises(InvalidInput, match="in a topic a place is"):
            make_reader(topic.store, startingOffsets="3").initialOffset()


def test_checkpoint_of_a_partition_that_is_not_there_is_refused(store: MemoryStore) -> None:
    query = query_on(store)
    query.run()
    query.offsets[0]["partitions"]["1"] = query.offsets[0]["partitions"]["0"]
    with pytest.raises(Corrupt, match="is of a topic with a partition 1; here there are 1"):
        query.run_batch()


def test_progress_reports_where_the_buffers_end(topic: Topic) -> None:
    fill(topic.partition(0), [b"a0"], [b"a1"])
    query = query_on(topic.store, maxBatchesPerTrigger=1)
    query.run_batch()
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    assert {number: position.next for number, position in from_json(reported).items()} == {0: 2, 1: 0}
