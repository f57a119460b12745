"""How many requests Spark's readers and writers send: each one takes a round trip and costs money."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from read_job import batch_reader, entries, fill, new_store, stream_reader
from write_job import job_on, rows, run_task

from forebay.buffer import create_topic
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Manifest
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic
from forebay.runtime.spark.writing.commit import EpochCommitter, EpochRecord, commit_job

PARTITIONS = 4


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the requests to stores in memory, by method and kind of object: `get manifest`, `replace cursors`.

    A conditional read counts as `get`. In a topic, `manifest` is its record, and `p/manifest` that of a partition.
    """
    sent: Counter[str] = Counter()
    inside = threading.local()

    def counted(method: str) -> Any:
        original = getattr(MemoryStore, method)

        def call(self: MemoryStore, key: str, *rest: Any) -> Any:
            if getattr(inside, "one", False):  # get_if_changed calls get
                return original(self, key, *rest)
            sent[f"{method.removesuffix('_if_changed')} {kind_of(key)}"] += 1
            inside.one = True
            try:
                return original(self, key, *rest)
            finally:
                inside.one = False

        return call

    for method in ("get", "get_if_changed", "put", "create", "replace"):
        monkeypatch.setattr(MemoryStore, method, counted(method))
    return sent


def kind_of(key: str) -> str:
    folders = ["p" if part.startswith("p-") else part for part in key.split("/")]
    return "/".join(part for part in folders if part in ("p", "manifest", "cursors", "streams", "data"))


def taken(requests: Counter[str]) -> dict[str, int]:
    """The requests since the last call."""
    found = dict(requests)
    requests.clear()
    return found


@pytest.fixture
def store() -> MemoryStore:
    """A buffer of three batches, of which group `etl` has acknowledged one."""
    store = new_store()
    fill(store, *entries(0, 3))
    with Consumer(store, group="etl") as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)
    return store


@pytest.fixture
def topic() -> Topic:
    store = new_store()
    create_topic(store, PARTITIONS)
    topic = Topic(store)
    for number in range(PARTITIONS):
        fill(topic.partition(number), [b"a"])
    return topic


# Batch reads


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"get manifest": 1, "replace manifest": 1}),
        ({"holdSeconds": 0}, {"get manifest": 1}),
        ({"startingSequence": 1, "endingSequence": 1}, {"get manifest": 1, "replace manifest": 1}),
        ({"group": "etl"}, {"get manifest": 1, "get cursors": 1, "replace manifest": 1}),
        ({"group": "etl", "holdSeconds": 0}, {"get manifest": 1, "get cursors": 1}),
    ],
)
def test_batch_read_is_planned_by_one_read_of_the_manifest(
    store: MemoryStore, requests: Counter[str], options: dict[str, Any], expected: dict[str, int]
) -> None:
    assert batch_reader(store, **options).partitions()
    assert taken(requests) == expected


@pytest.mark.parametrize("hold_seconds", [1800, 0])
def test_batch_read_of_a_topic_reads_its_record_and_every_manifest_once(
    topic: Topic, requests: Counter[str], hold_seconds: int
) -> None:
    assert batch_reader(topic.store, holdSeconds=hold_seconds).partitions()
    holds = {"replace p/manifest": PARTITIONS} if hold_seconds else {}
    assert taken(requests) == {"get manifest": 1, "get p/manifest": PARTITIONS, **holds}


def test_batch_read_of_version_1_is_planned_by_one_read_of_the_manifest(requests: Counter[str]) -> None:
    store = new_store()
    store.create("manifest", Manifest.empty("new").to_bytes())
    taken(requests)
    assert batch_reader(store).partitions() == []
    assert taken(requests) == {"get manifest": 1}


# Streams


def test_new_group_of_a_stream_is_made_by_one_read_and_one_write_of_the_manifest(
    store: MemoryStore, requests: Counter[str]
) -> None:
    stream_reader(store, group="new").initialOffset()
    assert taken(requests) == {"get manifest": 1, "replace manifest": 1, "get cursors": 1, "create cursors": 1}


def test_stream_that_starts_again_reads_the_manifest_to_find_the_group_and_then_under_its_claim(
    store: MemoryStore, requests: Counter[str]
) -> None:
    first = stream_reader(store)
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    taken(requests)
    stream_reader(store).partitions({}, end)
    claim = {"get manifest": 2, "get cursors": 1, "replace cursors": 1}
    look = {"get manifest": 1, "get cursors": 1}
    assert taken(requests) == Counter(claim) + Counter(look)


def test_micro_batch_looks_when_its_end_is_planned_and_when_its_tasks_are(
    store: MemoryStore, requests: Counter[str]
) -> None:
    reader = stream_reader(store)
    start = reader.initialOffset()
    taken(requests)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert taken(requests) == {"get manifest": 1, "get cursors": 1}
    reader.partitions(start, end)
    assert taken(requests) == {"get manifest": 1, "get cursors": 1}
    reader.commit(end)
    assert taken(requests) == {"replace cursors": 1}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert taken(requests) == {"get manifest": 1, "get cursors": 1}


def test_micro_batch_of_a_topic_looks_for_new_partitions_once(topic: Topic, requests: Counter[str]) -> None:
    reader = stream_reader(topic.store)
    start = reader.initialOffset()
    taken(requests)
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    reader.commit(end)
    assert taken(requests) == {
        "get manifest": 1,
        "get p/manifest": 2 * PARTITIONS,
        "get p/cursors": 2 * PARTITIONS,
        "replace p/cursors": PARTITIONS,
    }


def test_stream_of_a_topic_reads_each_manifest_once_to_find_its_group(topic: Topic, requests: Counter[str]) -> None:
    stream_reader(topic.store).initialOffset()
    assert taken(requests) == {
        "get manifest": 2,
        "replace manifest": 1,
        "get p/manifest": PARTITIONS,
        "replace p/manifest": PARTITIONS,
        "get p/cursors": PARTITIONS,
        "create p/cursors": PARTITIONS,
    }


# Writes


def test_job_is_committed_by_one_read_of_the_manifest(store: MemoryStore, requests: Counter[str]) -> None:
    job = job_on(store)
    batches = run_task(job, rows([b"a"]))
    taken(requests)
    commit_job(job, batches)
    assert taken(requests) == {"get manifest": 1, "replace manifest": 2}, "registered, and appended"


def test_epoch_is_committed_by_one_read_of_the_manifest_before_its_record_and_one_after(
    store: MemoryStore, requests: Counter[str]
) -> None:
    job = job_on(store, hold_id="spark.etl")
    expected = {"get streams": 1, "get manifest": 2, "replace manifest": 1}
    for epoch, written in enumerate(["create streams", "replace streams", "replace streams"]):
        batches = run_task(job, rows([b"a"]))
        taken(requests)
        EpochCommitter(job, "etl").commit(EpochRecord("q", epoch, batches))
        registered = {"get manifest": 3, "replace manifest": 2} if epoch == 0 else {}
        assert taken(requests) == expected | registered | {written: 1}
