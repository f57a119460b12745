"""What a writing job lists, if its driver dies or an answer is lost at any step, and what a replay makes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from write_job import entries_in, head_of, job_on, new_store, rows, run_task

from forebay.buffer import buffers_at
from forebay.buffer.base import names
from forebay.buffer.base.errors import Corrupt, Fenced, ForebayError, InvalidInput, Unavailable, Unknown
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.envelope import unpack
from forebay.buffer.manifest.head import KEPT_LASTING
from forebay.buffer.manifest.lasting_writers import forget_lasting_writer
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import InDoubt
from forebay.buffer.topic import Topic
from forebay.runtime.spark.writing.commit import EpochCommitter, EpochRecord, commit_job
from forebay.testing import Crash, Fault, FaultyStore, ManualClock

LOST = (Fault.FAIL, Fault.LOSE_ANSWER, Fault.DROP, Fault.LATE, Fault.OWN_RETRY, Fault.BUSY)
KEYS = [f"key {number}" for number in range(30)]
VALUES = [f"{number:04}".encode() for number in range(30)]


def write_epoch(store: ObjectStore, epoch: int, *, partitions: int = 0, query: str = "q", values: Any = None) -> None:
    """What Spark does for one epoch: tasks, then the commit."""
    job = job_on(store, partitions, hold_id="spark.etl")
    found = [b"%d:%s" % (epoch, value) for value in VALUES] if values is None else values
    columns = {"key": KEYS} if partitions else {}
    batches = run_task(job, rows(found[:15], **{name: keys[:15] for name, keys in columns.items()}))
    batches += run_task(job, rows(found[15:], **{name: keys[15:] for name, keys in columns.items()}), task=1)
    EpochCommitter(job, "etl").commit(EpochRecord(query, epoch, batches))


def written(store: ObjectStore) -> list[bytes]:
    return sorted(entry for entries in entries_in(store) for entry in entries)


def expected(*epochs: int) -> list[bytes]:
    return sorted(b"%d:%s" % (epoch, value) for epoch in epochs for value in VALUES)


def pass_by(buffer: ObjectStore) -> None:
    """What the collector does once a lease is over, an hour after everything was stored."""
    floor = names.at_time(ManualClock().now_ms() + 3_600_000)
    Queue(buffer).change_head(
        lambda head: head.collect(point=0, dropped=0, expired=set(head.holds), floor=floor, nodes={}),
        lambda _head: False,
    )


def sweep_past_everything(store: ObjectStore) -> None:
    for buffer in buffers_at(store):
        pass_by(buffer)


# Batch jobs


def test_job_is_listed_in_one_write_in_the_order_of_its_tasks() -> None:
    inner = new_store()
    store = FaultyStore(inner)
    job = job_on(store)
    batches = run_task(job, rows([b"a"])) + run_task(job, rows([b"b"]), task=1)
    revision = head_of(inner).revision
    store.calls.clear()
    commit_job(job, batches)
    assert store.calls["replace"] == 2, "one registers the job as a writer, one appends"
    assert entries_in(inner) == [[b"a", b"b"]]
    assert head_of(inner).holds == {}, "let go in the same write"
    assert head_of(inner).revision > revision


def test_append_that_stays_in_doubt_is_unknown_and_its_objects_stay() -> None:
    inner = new_store()
    Queue(inner).register_writer()
    batches = run_task(job_on(inner), rows([b"a"]))

    class GoesAway(FaultyStore):
        """Appends, and is not heard of again."""

        gone = False

        def replace(self, key: str, data: Any, version: str) -> Any:
            outcome = super().replace(key, data, version)
            self.gone = b"data/" in bytes(data)
            return InDoubt("no answer") if self.gone else outcome

        def get(self, key: str) -> Any:
            if self.gone:
                raise Unavailable("it is gone")
            return super().get(key)

    job = job_on(GoesAway(inner))
    with pytest.raises(Unknown, match="may or may not have been appended: read before you run it again"):
        commit_job(job, batches)
    job_on(inner).let_go(0)  # what abort does
    assert entries_in(inner) == [[b"a"]]


def test_job_whose_lease_ran_out_appends_nothing_and_says_what_to_do() -> None:
    store = new_store()
    job = job_on(store)
    batches = run_task(job, rows([b"a"]))
    sweep_past_everything(store)
    with pytest.raises(Fenced, match=r"lease of 3600 s .* longer leaseSeconds"):
        commit_job(job, batches)
    assert entries_in(store) == [[]]


def test_job_that_is_in_doubt_in_one_partition_and_refused_in_another_is_unknown() -> None:
    inner = new_store(partitions=2)
    batches = run_task(job_on(inner, 2), rows([b"a"]), task=0) + run_task(job_on(inner, 2), rows([b"b"]), task=1)
    pass_by(Topic(inner).partition(0))

    class DoubtsEveryAppend(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            return InDoubt("no answer") if b"data/" in bytes(data) else super().replace(key, data, version)

    with pytest.raises(Unknown, match="may or may not have been appended"):
        commit_job(job_on(DoubtsEveryAppend(inner), 2), batches)


def test_job_on_a_topic_that_fails_half_way_says_where_its_entries_are() -> None:
    store = new_store(partitions=2)
    job = job_on(store, 2)
    batches = run_task(job, rows([b"a"]), task=0) + run_task(job, rows([b"b"]), task=1)
    pass_by(Topic(store).partition(1))
    with pytest.raises(Unknown, match=r"in partitions \[0\], and not, or perhaps not, in \[1\]"):
        commit_job(job, batches)
    assert entries_in(store) == [[b"a"], []]


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("fault", LOST)
def test_lost_answer_anywhere_in_a_job_neither_loses_nor_doubles(fault: Fault, partitions: int) -> None:
    for number in range(40):
        inner = new_store(partitions)
        store = FaultyStore(inner, {number: fault}, only={"replace", "create", "put"})
        job = job_on(store, partitions)
        columns = {"key": KEYS} if partitions else {}
        try:
            commit_job(job, run_task(job, rows(VALUES, **columns)))
        except ForebayError:
            store.land_late_requests()
            assert written(inner) == []  # only a put fails here: conditional writes are found out
        else:
            store.land_late_requests()
            assert written(inner) == sorted(VALUES)
        if sum(store.calls[kind] for kind in ("replace", "create", "put")) <= number:
            return
    pytest.fail("there were always more calls")


# Streams


@pytest.mark.parametrize("partitions", [0, 3])
def test_epochs_are_listed_once_each(partitions: int) -> None:
    store = new_store(partitions)
    for epoch in (0, 1, 1, 1, 2, 5, 5):
        write_epoch(store, epoch, partitions=partitions)
    assert written(store) == expected(0, 1, 2, 5)
    assert all(head_of(buffer).holds == {} for buffer in buffers_at(store))


def test_replay_lists_nothing_of_what_its_own_tasks_stored() -> None:
    store = new_store()
    write_epoch(store, 0)
    before = [batch.location for batch in Queue(store).descriptors(0, 100)]
    write_epoch(store, 0, values=[b"of the replay"] * 30)
    assert [batch.location for batch in Queue(store).descriptors(0, 100)] == before


def test_lower_epoch_is_an_error_that_says_what_happened() -> None:
    store = new_store()
    write_epoch(store, 7)
    with pytest.raises(InvalidInput, match=r"has come to epoch 7 .* asked for epoch 6 .* writerId of its own"):
        write_epoch(store, 6)
    assert written(store) == expected(7)


@pytest.mark.parametrize("epoch", [0, 1])
def test_query_with_another_checkpoint_is_an_error_not_a_replay(epoch: int) -> None:
    """Its epoch 0 would else be taken for the one that is written, and be lost."""
    store = new_store()
    write_epoch(store, 0)
    with pytest.raises(InvalidInput, match=r"query q, and is asked for .* of query other"):
        write_epoch(store, epoch, query="other")
    assert written(store) == expected(0)


def test_epoch_without_rows_writes_nothing() -> None:
    inner = new_store()
    write_epoch(inner, 0)
    store = FaultyStore(inner)
    EpochCommitter(job_on(store), "etl").commit(EpochRecord("q", 1, ()))
    assert set(store.calls) == {"get"}
    write_epoch(inner, 1)
    assert written(inner) == expected(0, 1)


def test_replay_that_finds_no_rows_lists_what_was_recorded() -> None:
    store = new_store(partitions=3)
    die_after_recording(store, partitions=3)
    EpochCommitter(job_on(store, 3, hold_id="spark.etl"), "etl").commit(EpochRecord("q", 0, ()))
    assert written(store) == expected(0)


def die_after_recording(store: ObjectStore, partitions: int = 0) -> None:
    """Epoch 0 is recorded, and nothing of it is listed."""

    class DiesAtTheAppend(EpochCommitter):
        def _append(self, record: EpochRecord) -> Any:
            raise Crash("dead")

    job = job_on(store, partitions, hold_id="spark.etl")
    columns = {"key": KEYS} if partitions else {}
    found = [b"0:" + value for value in VALUES]
    with pytest.raises(Crash):
        DiesAtTheAppend(job, "etl").commit(EpochRecord("q", 0, run_task(job, rows(found, **columns))))
    assert written(store) == []


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER, *LOST])
def test_death_or_a_lost_answer_at_any_call_of_an_epoch_is_made_good_by_the_replay(
    fault: Fault, partitions: int
) -> None:
    """Every store call of an epoch is hit, the tasks' and the driver's."""
    for number in range(60):
        inner = new_store(partitions)
        write_epoch(inner, 0, partitions=partitions)
        store = FaultyStore(inner, {number: fault})
        with suppress(Crash, ForebayError):
            write_epoch(store, 1, partitions=partitions)
        store.land_late_requests()
        write_epoch(inner, 1, partitions=partitions)
        store.land_late_requests()
        write_epoch(inner, 2, partitions=partitions)
        assert written(inner) == expected(0, 1, 2), f"{fault.name} at call {number}"
        if sum(store.calls.values()) <= number:
            assert number > 8, "the epoch made fewer calls than it can"
            return
    pytest.fail("there were always more calls")


@pytest.mark.parametrize("partitions", [0, 3])
def test_seeded_faults_through_many_replays_lose_and_double_nothing(partitions: int) -> None:
    for seed in range(10):
        inner = new_store(partitions)
        store = FaultyStore.seeded(inner, seed, rate=0.15, clock=ManualClock())
        for epoch in range(4):
            for _ in range(200):
                with suppress(ForebayError):
                    write_epoch(store, epoch, partitions=partitions)
                    break
            else:
                pytest.fail("it never got through")
        store.land_late_requests()
        assert written(inner) == expected(0, 1, 2, 3), f"seed {seed}"


def test_append_that_lands_after_the_replay_has_looked_is_not_repeated() -> None:
    inner = new_store()
    write_epoch(inner, 0)

    class RivalComesFirst(FaultyStore):
        rival: Callable[[], None] | None = None

        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.rival is not None and key == "manifest" and b"data/" in bytes(data):
                rival, self.rival = self.rival, None
                rival()
            return super().replace(key, data, version)

    store = RivalComesFirst(inner)
    job = job_on(store, hold_id="spark.etl")
    record = EpochRecord("q", 1, run_task(job, rows([b"1:" + value for value in VALUES])))
    store.rival = lambda: EpochCommitter(job_on(inner, hold_id="spark.etl"), "etl").commit(record)
    EpochCommitter(job, "etl").commit(record)
    assert store.rival is None
    assert written(inner) == expected(0, 1)


def test_two_drivers_of_one_stream_list_an_epoch_once() -> None:
    store = new_store(partitions=3)
    first, second = (job_on(store, 3, hold_id="spark.etl") for _ in range(2))
    found = [b"0:" + value for value in VALUES]
    records = [EpochRecord("q", 0, run_task(job, rows(found, key=KEYS))) for job in (first, second)]
    EpochCommitter(first, "etl").commit(records[0])
    EpochCommitter(second, "etl").commit(records[1])
    assert written(store) == expected(0)


# Leases of streams


@pytest.mark.parametrize("partitions", [0, 3])
def test_epoch_recorded_and_swept_before_it_was_listed_is_written_from_the_replay(partitions: int) -> None:
    store = new_store(partitions)
    die_after_recording(store, partitions)
    sweep_past_everything(store)
    write_epoch(store, 0, partitions=partitions)
    assert written(store) == expected(0)


def test_replay_of_a_swept_epoch_may_lie_in_other_partitions() -> None:
    store = new_store(partitions=2)
    job = job_on(store, 2, hold_id="spark.etl")
    EpochCommitter(job, "etl")._record(EpochRecord("q", 0, run_task(job, rows([b"swept"]), task=0)))
    sweep_past_everything(store)
    EpochCommitter(job, "etl").commit(EpochRecord("q", 0, run_task(job, rows([b"again"]), task=1)))
    assert entries_in(store) == [[], [b"again"]]


def test_epoch_of_a_topic_that_was_swept_after_half_of_it_was_listed_is_an_error_that_says_so() -> None:
    store = new_store(partitions=3)
    die_after_recording(store, 3)
    record = unpack(store.get("streams/etl").data, EpochRecord, "streams/etl")
    queue = job_on(store, 3).open_queue(0, "spark.etl")
    queue.resume()
    queue.append([batch for number, batch in record.batches if number == 0], number=1)
    sweep_past_everything(store)
    with pytest.raises(Fenced, match=r"listed in partitions \[0\], and not in \[1, 2\].* new writerId"):
        write_epoch(store, 0, partitions=3)


def test_lease_that_runs_out_during_an_epoch_fails_it_and_the_replay_writes_it() -> None:
    store = new_store()
    job = job_on(store, hold_id="spark.etl")
    batches = run_task(job, rows([b"0:" + value for value in VALUES]))
    sweep_past_everything(store)
    with pytest.raises(Fenced, match="lease"):
        EpochCommitter(job, "etl").commit(EpochRecord("q", 0, batches))
    write_epoch(store, 0)
    assert written(store) == expected(0)


def test_writer_that_the_manifest_has_forgotten_is_told_so_and_repeats_nothing() -> None:
    store = new_store()
    die_after_recording(store)
    assert forget_lasting_writer(Queue(store), "spark.etl")
    with pytest.raises(Unknown, match="does not know the stream writer 'etl' any more"):
        write_epoch(store, 0)
    assert written(store) == []


def test_epoch_of_a_writer_that_was_moved_out_of_the_head_is_listed_once() -> None:
    store = new_store()
    die_after_recording(store)
    for number in range(4 * KEPT_LASTING):
        Queue(store, writer_id=f"lasting-{number}").register_writer()
    write_epoch(store, 0)
    write_epoch(store, 0)
    assert written(store) == expected(0)


def test_damaged_record_is_corrupt_and_nothing_is_appended() -> None:
    store = new_store()
    write_epoch(store, 0)
    store.put("streams/etl", store.get("streams/etl").data[:-1])
    with pytest.raises(Corrupt, match="streams/etl"):
        write_epoch(store, 1)
    assert written(store) == expected(0)


def test_record_is_kept_as_it_was_written() -> None:
    """The layout is RFC 0008's; a golden file could not tell more."""
    batch = NewBatch(f"data/{names.at_time(0)}.batch")
    store = new_store()
    log = EpochCommitter(job_on(store), "etl")
    log._record(EpochRecord("q", 3, ((0, batch),)))
    body = bytes(store.get("streams/etl").data)[:-6]
    location = batch.location.encode()
    assert body == b"\x94\xa5epoch\xa1q\x03\x91\x92\x00\x94" + b"\xd9%c" % len(location) + location + b"\x90\xc0\xc0"
