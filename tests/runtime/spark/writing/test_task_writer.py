"""What a task of a writing job stores, and how it keeps the collector from it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from patience import PATIENCE, wait_for
from write_job import Batches, entries_in, head_of, job_on, new_store, rows, run_task

from forebay.buffer.base import names
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Fenced, InvalidInput, Unavailable, Unsupported
from forebay.buffer.format.model import BatchDescriptor
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, partition_for
from forebay.gc import Collector
from forebay.runtime.spark.writing.commit import commit_job
from forebay.runtime.spark.writing.task_writer import TaskWriter
from forebay.runtime.spark.writing.write_job import PURPOSE
from forebay.testing import Fault, FaultyStore, ManualClock


def stored(store: ObjectStore, batches: Batches) -> list[bytes]:
    handle = FetchHandle(store)
    return [
        entry
        for number, (_, batch) in enumerate(batches)
        for entry in handle.fetch(BatchDescriptor(number, batch.location, batch.metadata, batch.facts)).entries
    ]


def test_rows_are_stored_in_order_and_are_not_seen_until_they_are_listed() -> None:
    store = new_store()
    job = job_on(store)
    batches = run_task(job, rows([b"a", b""]), rows([b"c"]))
    assert stored(store, batches) == [b"a", b"", b"c"]
    assert entries_in(store) == [[]]
    commit_job(job, batches)
    assert entries_in(store) == [[b"a", b"", b"c"]]


def test_task_without_rows_stores_nothing_and_makes_no_buffer() -> None:
    store = new_store()
    assert run_task(job_on(store), rows([]).slice(0, 0)) == ()
    assert list(store.list()) == []


def test_text_is_stored_as_utf8_and_large_types_as_well() -> None:
    store = new_store()
    large = pa.record_batch([pa.array(["ü", "b"], pa.large_string())], names=["value"])
    assert stored(store, run_task(job_on(store), rows(["ä", "z"]), large)) == ["ä".encode(), b"z", "ü".encode(), b"b"]


def test_null_value_is_refused_and_says_which_column() -> None:
    with pytest.raises(InvalidInput, match="column value is null in 1 of 2 rows"):
        run_task(job_on(new_store()), rows([b"a", None]))


def test_runs_of_equal_metadata_share_an_item_and_null_is_none() -> None:
    store = new_store()
    clock = ManualClock()
    job = job_on(store, clock=clock)
    ((_, batch),) = run_task(job, rows([b"1", b"2", b"3", b"4", b"5"], metadata=[b"x", b"x", None, None, b"y"]))
    assert [(item.start_index, item.payload) for item in batch.metadata] == [(0, b"x"), (2, b""), (4, b"y")]
    assert {item.ingestion_time_ms for item in batch.metadata} == {clock.now_ms()}


def test_time_is_when_the_task_took_the_rows_in_to_the_second() -> None:
    clock = ManualClock()
    started = clock.now_ms()

    def arriving() -> Iterator[pa.RecordBatch]:
        for _ in range(4):
            yield rows([b"x"])
            clock.advance(0.6)

    ((_, batch),) = TaskWriter(job_on(new_store(), clock=clock), 0).store(arriving())
    assert [(item.start_index, item.ingestion_time_ms - started) for item in batch.metadata] == [(0, 0), (2, 1200)]
    assert batch.facts is not None
    assert (batch.facts.first_time_ms, batch.facts.last_time_ms) == (started, started + 1200)


def test_batches_are_stored_at_the_flush_size_and_say_what_they_hold() -> None:
    store = new_store()
    batches = run_task(job_on(store, flush_size_bytes=100), *(rows([b"x" * 46, b"y" * 46]) for _ in range(4)))
    assert [batch.facts.records for _, batch in batches if batch.facts] == [2, 2, 2, 2]
    assert len(stored(store, batches)) == 8


def test_one_batch_is_gathered_while_one_is_stored_and_no_more_rows_are_taken() -> None:
    taken: list[int] = []
    seen: list[int] = []
    another = threading.Condition()

    class SlowStore(MemoryStore):
        def put(self, key: str, data: Any) -> str:
            with another:
                assert another.wait_for(lambda: len(taken) >= min(len(seen) + 2, 6), timeout=PATIENCE), (
                    "nothing is gathered"
                )
                another.wait_for(lambda: len(taken) > len(seen) + 2, timeout=0.02)  # which must not happen
                seen.append(len(taken))
            return super().put(key, data)

    def arriving() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            with another:
                taken.append(number)
                another.notify_all()
            yield rows([b"x" * 96])

    job = job_on(SlowStore("memory://spark-task-slow-store"), flush_size_bytes=100)
    assert len(TaskWriter(job, 0).store(arriving())) == 6
    assert seen == [2, 3, 4, 5, 6, 6]


def test_store_that_fails_fails_the_task() -> None:
    store = FaultyStore(new_store(), dict.fromkeys(range(1000), Fault.FAIL), only={"put"})
    with pytest.raises(Unavailable):
        run_task(job_on(store, flush_size_bytes=1), rows([b"a"]), rows([b"b"]), rows([b"c"]))


# Topics


def test_keys_choose_the_partition_that_a_producer_would_choose() -> None:
    store = new_store(partitions=4)
    keys = [None if number % 7 == 0 else f"key {number}" for number in range(200)]
    values = [str(number).encode() for number in range(200)]
    batches = run_task(job_on(store, 4), rows(values, key=keys), task=6)
    commit_job(job_on(store, 4), batches)
    expected: list[list[bytes]] = [[], [], [], []]
    for key, value in zip(keys, values, strict=True):
        expected[6 % 4 if key is None else partition_for(key.encode(), 4)].append(value)
    assert entries_in(store) == expected


def test_rows_without_keys_go_to_the_next_partition_after_each_batch() -> None:
    store = new_store(partitions=3)
    job = job_on(store, 3, flush_size_bytes=10)
    batches = run_task(job, *(rows([b"entry %d" % number]) for number in range(4)), task=2)
    assert [number for number, _ in batches] == [2, 0, 1, 2]
    assert [number for number, _ in run_task(job, rows([b"an entry"]), task=2)] == [2], "as every attempt at the task"


def test_rows_of_all_partitions_together_are_held_to_the_flush_size() -> None:
    store = new_store(partitions=8)
    job = job_on(store, 8, flush_size_bytes=1000)
    batches = run_task(job, *(rows([b"x" * 96], key=[f"k{number}"]) for number in range(100)))
    assert len(batches) >= 10
    commit_job(job, batches)
    assert sum(map(len, entries_in(store))) == 100


# The hold


def test_nothing_that_tasks_stored_is_swept_before_it_is_listed_not_even_by_a_clock_in_2099() -> None:
    store = new_store()
    Queue(store).register_writer()
    job = job_on(store, clock=SystemClock())
    batches = run_task(job, rows([b"a"]), task=0) + run_task(job_on(store, clock=ManualClock(0)), rows([b"b"]), task=1)
    for _ in range(2):
        Collector(store, grace=0.0, clock=ManualClock(4_000_000_000_000)).collect_once()
    assert {found.key for found in store.list("data/")} == {batch.location for _, batch in batches}
    commit_job(job, batches)
    assert entries_in(store) == [[b"a", b"b"]]
    assert head_of(store).holds == {}


def test_without_a_hold_the_collector_takes_what_a_dead_job_left() -> None:
    store = new_store()
    job = job_on(store)
    run_task(job, rows([b"old"]))
    job.let_go(0)
    Collector(store, grace=0.0).collect_once()
    assert list(store.list("data/")) == []


def test_all_tasks_of_a_job_share_one_hold_that_only_the_first_writes() -> None:
    store = new_store()
    run_task(job_on(store), rows([b"a"]))
    before = head_of(store)
    run_task(job_on(store), rows([b"b"]), task=1)
    assert list(before.holds) == ["the-job"]
    assert head_of(store) == before


def test_job_pickles_for_tasks_that_are_other_processes() -> None:
    job = job_on(new_store(), clock=SystemClock())
    assert pickle.loads(pickle.dumps(job)).hold_id == job.hold_id


def test_attempt_that_has_not_heard_of_its_jobs_failure_does_not_make_the_hold_again() -> None:
    store = new_store()
    job = job_on(store, clock=SystemClock())
    run_task(job, rows([b"a"]))
    job.end(0)
    with pytest.raises(Fenced, match="has failed meanwhile"):
        run_task(job, rows([b"b"]), task=1)
    job.end(0)
    (mark,) = head_of(store).holds.values()
    assert (mark.first_sequence, mark.floor) == (None, None), "it holds nothing"
    stored_ms = max(found.modified_ms for found in store.list("data/"))
    wait_for(lambda: SystemClock().now_ms() > stored_ms)  # what was stored in this millisecond is not yet old enough
    Collector(store, grace=0.0).collect_once()
    assert list(store.list("data/")) == []


def test_failed_job_makes_no_buffer() -> None:
    store = new_store()
    job_on(store).end(0)
    assert list(store.list()) == []


def renewals_of(store: MemoryStore) -> int:
    return head_of(store).holds["the-job"].renewals


def test_task_that_finds_the_same_counter_after_a_quarter_of_the_lease_renews_the_hold() -> None:
    store = new_store()
    clock = ManualClock()
    job = job_on(store, clock=clock)
    uploads = job.hold_uploads(0)
    floor = uploads.floor()
    clock.advance(800)
    assert uploads.floor() == floor
    assert job.hold_uploads(0).floor() == floor
    assert renewals_of(store) == 0
    clock.advance(100)
    assert uploads.floor() == floor
    assert renewals_of(store) == 1
    clock.advance(900)
    job.hold_uploads(0).floor()
    assert renewals_of(store) == 1, "a task that sees a counter for the first time does not know how old it is"


@pytest.mark.parametrize("wrong", [86_400, -86_400])
def test_short_tasks_renew_the_hold_once_after_the_collector_stamped_it_whatever_their_clocks_say(wrong: int) -> None:
    clock = ManualClock()
    store = MemoryStore(f"memory://short-tasks-{wrong}", clock=clock)
    job = job_on(store, clock=ManualClock(clock.now_ms() + 1000 * wrong))
    for count in range(10):
        for _ in range(3):
            job.hold_uploads(0).floor()
        assert renewals_of(store) == count
        clock.advance(3000)  # of a lease of 3600 s
        assert Collector(store, clock=clock).collect_once().expired_holds == ()


def test_hold_of_a_killed_job_expires_by_the_stores_time_though_its_clock_is_a_day_ahead() -> None:
    clock = ManualClock()
    store = MemoryStore("memory://killed-job", clock=clock)
    job_on(store, clock=ManualClock(clock.now_ms() + 86_400_000)).hold_uploads(0).floor()
    for _ in range(2):
        clock.advance(3700)
        Collector(store, clock=clock).collect_once()
    assert head_of(store).holds == {}


def test_hold_of_a_stream_that_an_older_release_left_is_made_one_that_counts() -> None:
    store = new_store()
    old = Hold(None, names.LOWEST, 1, PURPOSE)
    Queue(store).change_head(lambda head: head.with_hold("the-job", old), lambda _head: False)
    job_on(store, clock=ManualClock()).hold_uploads(0).floor()
    found = head_of(store).holds["the-job"]
    assert (found.expires_ms, found.ttl_ms, found.renewals, found.stamp_ms) == (0, 3_600_000, 1, None)


def test_names_are_above_the_floor_of_the_hold_by_whatever_clock() -> None:
    store = new_store()
    first = job_on(store, clock=ManualClock())
    run_task(first, rows([b"a"]))
    ((_, behind),) = run_task(job_on(store, clock=ManualClock(0)), rows([b"b"]))
    floor = head_of(store).holds["the-job"].floor
    found = names.ulid_in(behind.location)
    assert found is not None
    assert floor is not None
    assert found > floor


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.OWN_RETRY, Fault.DROP, Fault.LATE, Fault.FAIL])
def test_lost_answer_to_the_hold_is_found_out_before_anything_is_stored(fault: Fault) -> None:
    inner = new_store()
    Queue(inner).register_writer()
    store = FaultyStore(inner, {0: fault}, only={"replace"})
    run_task(job_on(store), rows([b"a"]))
    store.land_late_requests()
    assert list(head_of(inner).holds) == ["the-job"]


def test_topic_is_held_in_the_partitions_that_are_written_to() -> None:
    store = new_store(partitions=3)
    run_task(job_on(store, 3), rows([b"a"]), task=1)
    topic = Topic(store)
    assert [list(head_of(topic.partition(number)).holds) for number in range(3)] == [[], ["the-job"], []]


def test_buffer_of_version_1_is_refused() -> None:
    store = new_store()
    with Producer(store, profile="opendata", manifest_path="manifest") as producer:
        producer.produce(b"x").result()
    with pytest.raises(Unsupported, match="migrate"):
        run_task(job_on(store), rows([b"a"]))
