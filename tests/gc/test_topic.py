"""Collecting a topic: each partition as the buffer that it is, and none because of another (rfcs/0006)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from patience import PATIENCE, wait_for

from forebay.buffer.base.errors import Corrupt, Denied, NotReady, Unavailable
from forebay.buffer.eventlog import AuditTrail, open_event_log
from forebay.buffer.manifest.topic import TopicRecord
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import create_topic
from forebay.gc import Collector, Retention
from forebay.testing import Crash, FaultyStore


class Hindered(FaultyStore):
    """Calls `hinder` with the kind of each call and its key before it goes through."""

    def __init__(self, inner: Any, hinder: Callable[[str, str], None]) -> None:
        super().__init__(inner)
        self.hinder = hinder

    def get(self, key: str) -> Any:
        self.hinder("get", key)
        return super().get(key)

    def delete(self, keys: Any) -> Any:
        keys = list(keys)
        self.hinder("delete", keys[0])
        return super().delete(keys)


def read_all(topic: Any) -> list[list[str]]:
    """Batches that everyone has read in every partition: one more in each than in the one before."""
    appended = []
    for number, pool in enumerate(topic.partitions):
        appended.append(pool.append(number + 2, every=1.0))
        pool.read(number)
    topic.age()
    return appended


# Once


def test_every_partition_is_collected_and_the_report_sums_them_up(topic: Any) -> None:
    appended = read_all(topic)
    report = topic.collector().collect_once()
    assert (report.url, report.trimmed, report.deleted, report.kept) == (topic.store.url, 6, 6, 3)
    assert [(part.url, part.trimmed, part.deleted, part.kept) for part in report.partitions] == [
        (pool.store.url, number + 1, number + 1, 1) for number, pool in enumerate(topic.partitions)
    ]
    assert [pool.objects() for pool in topic.partitions] == [keys[-1:] for keys in appended]
    assert report.floor == min(pool.head.gc_floor for pool in topic.partitions)
    assert str(report) == f"{topic.store.url}: deleted 6 objects, trimmed 6 batches, kept 3"
    assert [part["deleted"] for part in report.as_json()["partitions"]] == [1, 2, 3]


def test_dry_run_of_a_topic_says_what_it_would_do_and_changes_nothing(topic: Any) -> None:
    read_all(topic)
    before = [(found.key, topic.store.get(found.key).version) for found in topic.store.list()]
    report = topic.collector().collect_once(dry_run=True)
    assert (report.dry_run, report.deleted, [part.deleted for part in report.partitions]) == (True, 6, [1, 2, 3])
    assert [(found.key, topic.store.get(found.key).version) for found in topic.store.list()] == before


def test_partition_that_fails_keeps_no_other_from_being_collected(topic: Any, caplog: pytest.LogCaptureFixture) -> None:
    appended = read_all(topic)
    topic.partitions[0].store.put("manifest", b"nonsense")
    with caplog.at_level(logging.WARNING, logger="forebay.gc"):
        report = topic.collector().collect_once()
    assert [type(part.error) for part in report.partitions] == [Corrupt, type(None), type(None)]
    assert report.deleted == 5
    assert topic.partitions[0].objects() == appended[0]
    assert "COULD NOT COLLECT 1 OF 3 PARTITIONS" in str(report)
    assert f"{topic.partitions[0].store.url}: COULD NOT BE COLLECTED: " in str(report.partitions[0])
    assert "nonsense" not in caplog.text
    assert f"{topic.partitions[0].store.url} could not be collected, and is tried again next time" in caplog.text
    assert report.as_json()["partitions"][0]["error"] == str(report.partitions[0].error)


def test_error_that_nobody_foresaw_in_a_partition_keeps_no_other_from_being_collected(topic: Any) -> None:
    read_all(topic)

    def hinder(kind: str, key: str) -> None:
        if key.startswith("p-00001"):
            raise ZeroDivisionError

    report = topic.collector(Hindered(topic.store, hinder)).collect_once()
    assert isinstance(report.partitions[1].error, ZeroDivisionError)
    assert [part.deleted for part in report.partitions] == [1, 0, 3]


def test_partition_that_failed_is_collected_the_next_time(topic: Any) -> None:
    read_all(topic)
    away = {"p-00002/manifest"}

    def hinder(kind: str, key: str) -> None:
        if key in away:
            raise Unavailable("the store is away")

    collector = topic.collector(Hindered(topic.store, hinder))
    assert collector.collect_once().deleted == 3
    away.clear()
    report = collector.collect_once()
    assert [part.deleted for part in report.partitions] == [0, 0, 3]
    assert all(part.error is None for part in report.partitions)


def test_objects_that_cannot_be_deleted_are_named_from_the_topics_url_on(topic: Any) -> None:
    appended = read_all(topic)

    def hinder(kind: str, key: str) -> None:
        if kind == "delete" and key.startswith("p-00000"):
            raise Denied("it is locked")

    report = topic.collector(Hindered(topic.store, hinder)).collect_once()
    assert list(report.failed) == [f"p-00000/{appended[0][0]}"]
    assert report.failed_count == 1
    assert list(report.partitions[0].failed) == appended[0][:1]


def test_retention_limits_each_partition_separately(topic: Any) -> None:
    for pool in topic.partitions:
        pool.append(4, every=100.0)
    topic.age(0)
    report = topic.collector(retention=Retention(max_age=250.0 + 2 * 400.0)).collect_once()
    assert [part.dropped_unread for part in report.partitions] == [2, 0, 0]
    assert report.dropped_unread == 2


def test_topic_that_is_made_after_its_collector_is_collected(topic: Any) -> None:
    store = MemoryStore(f"{topic.store.url}-later", clock=topic.clock)
    collector = Collector(store, clock=topic.clock)
    assert collector.collect_once().partitions == ()
    create_topic(store, 2)
    assert len(collector.collect_once().partitions) == 2


def test_topic_without_partitions_yet_is_not_ready(topic: Any) -> None:
    store = MemoryStore(f"{topic.store.url}-begun")
    store.create("manifest", TopicRecord("t" * 32).to_bytes())
    with pytest.raises(NotReady, match="no partitions yet"):
        Collector(store).collect_once()


def test_deletions_are_told_to_the_audit_trail_by_partition(topic: Any) -> None:
    read_all(topic)
    with open_event_log(f"memory://{topic.store.url.removeprefix('memory://')}-events") as log:
        topic.collector(events=AuditTrail(log)).collect_once()
        told = [record.event for record in log.read_range("forebay.audit")]
    finished = {event.payload["buffer"]: len(event.payload["objects"]) for event in told if "finished" in event.kind}
    assert finished == {pool.store.url: number + 1 for number, pool in enumerate(topic.partitions)}


def test_interrupted_collection_ends_every_partition_after_the_request_under_way(topic: Any) -> None:
    for _ in range(2_500):
        topic.partitions[1].upload()
    topic.partitions[0].upload()
    topic.age()
    sweeping = threading.Event()

    def hinder(kind: str, key: str) -> None:
        if kind == "delete" and key.startswith("p-00001"):
            sweeping.set()
            wait_for(lambda: collector._interrupted)
        elif kind == "delete":
            assert sweeping.wait(PATIENCE)
            raise Crash

    collector = topic.collector(Hindered(topic.store, hinder))
    with pytest.raises(Crash):
        collector.collect_once()
    assert len(topic.partitions[1].objects()) == 1_500
    collector = topic.collector()
    assert collector.collect_once().deleted == 1_501


# In the background


def test_partition_added_while_it_runs_is_collected_from_the_next_time_on(topic: Any) -> None:
    with topic.collector().start(interval=300.0):
        added = topic.add_partition()
        appended = added.append(3, every=1.0)
        added.read(1)

        def swept() -> bool:
            topic.clock.advance(300.0)
            return bool(added.objects() == appended[2:])

        wait_for(swept)


def test_failing_partition_counts_as_one_failed_run_and_the_others_go_on(topic: Any) -> None:
    topic.partitions[0].store.put("manifest", b"nonsense")
    topic.partitions[1].store.put("manifest", b"nonsense")
    read = topic.partitions[2]
    read.append(2, every=1.0)
    read.read(0)
    read.age()
    with topic.collector().start(interval=300.0) as collector:
        wait_for(lambda: collector.failed_runs == 1)
        assert len(read.objects()) == 1
        topic.clock.advance(300.0)
        wait_for(lambda: collector.failed_runs == 2)


def test_stop_begins_no_further_partition(topic: Any) -> None:
    while len(topic.partitions) < 12:
        topic.add_partition()
    for pool in topic.partitions:
        pool.upload()
    topic.age()
    begun, go_on = threading.Semaphore(0), threading.Event()
    touched = set()

    def hinder(kind: str, key: str) -> None:
        touched.add(key.partition("/")[0])
        if kind == "delete":
            begun.release()
            assert go_on.wait(PATIENCE)

    collector = topic.collector(Hindered(topic.store, hinder)).start()
    for _ in range(8):
        assert begun.acquire(timeout=PATIENCE)
    stopper = threading.Thread(target=collector.stop)
    stopper.start()
    wait_for(lambda: collector._stopping)
    go_on.set()
    stopper.join(PATIENCE)
    assert touched == {"manifest", *(f"p-0000{number}" for number in range(8))}
