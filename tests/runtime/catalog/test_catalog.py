"""The catalog over a log: writes that are shown when they return, reads behind their gates, assignment that heals."""

from __future__ import annotations

import asyncio
import inspect
import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest
from catalog_rig import ORDERS, PARTITIONS, TOPIC, FlakyLog, ObedientBackend, Rig, eventually, finish, segment
from eventlog_homes import Background

from forebay.buffer.base.errors import Closed, InvalidInput, NotReady, Timeout, Unknown
from forebay.buffer.eventlog import Event, open_event_log
from forebay.runtime.catalog import CATALOG_TOPIC, Catalog, DeletionState, SegmentState
from forebay.runtime.catalog.follower import MAX_FAILURES
from forebay.testing import ManualClock


class NoPauses(Random):
    """Chance that always draws the shortest pause."""

    def uniform(self, a: float, b: float) -> float:
        return a


# Writing


def test_segment_added_and_finished_is_found_when_the_call_returns(rig: Rig) -> None:
    catalog = rig.open()
    catalog.add(segment())
    assert catalog.find(ORDERS, 0, 42) is None
    catalog.update(finish(segment(), custom=b"\x07"))
    found = catalog.find(ORDERS, 0, 42)
    assert found is not None
    assert (found.segment_id, found.custom, found.state) == ("a", b"\x07", SegmentState.COPY_FINISHED)
    assert found.changed_ms > 0
    assert catalog.highest_offset(ORDERS, 0) == 99


@pytest.mark.parametrize("state", [state for state in SegmentState if state is not SegmentState.COPY_STARTED])
def test_wrong_first_state_is_refused_before_anything_is_appended(rig: Rig, state: SegmentState) -> None:
    catalog = rig.open()
    with pytest.raises(InvalidInput, match="added as copy_started"):
        catalog.add(segment(state=state))
    assert rig.log.high_water_marks(TOPIC) == [0] * PARTITIONS


def test_refusal_by_the_view_reaches_its_writer_and_nobody_else(rig: Rig) -> None:
    one, two = rig.open(), rig.open()
    one.add(segment())
    with pytest.raises(InvalidInput, match="delete_finished cannot follow"):
        two.update(finish(segment(), SegmentState.DELETE_FINISHED))
    with pytest.raises(InvalidInput, match=r"segment b of .* is not in the catalog"):
        one.update(finish(segment("b")))
    with pytest.raises(InvalidInput, match="is in the catalog already"):
        two.add(segment(end=50))
    two.update(finish(segment()))
    assert len(two.segments(ORDERS)) == 1


def test_repeating_a_write_does_no_harm(rig: Rig) -> None:
    catalog = rig.open()
    for _ in range(2):
        catalog.add(segment())
    for _ in range(2):
        catalog.update(finish(segment()))
    assert len(catalog.segments(ORDERS)) == 1


def test_partition_is_deleted_step_by_step(rig: Rig) -> None:
    catalog = rig.open()
    catalog.add(segment())
    seen = []
    for state in DeletionState:
        catalog.delete_partition(ORDERS, state)
        seen.append(catalog.deletion(ORDERS))
    assert seen == [DeletionState.MARKED, DeletionState.STARTED, None]
    assert catalog.segments(ORDERS) == []
    with pytest.raises(InvalidInput, match="not being deleted"):
        catalog.delete_partition(ORDERS, DeletionState.FINISHED)


def test_write_to_a_partition_that_is_not_assigned_is_not_ready_and_appends_nothing(rig: Rig) -> None:
    catalog = rig.open(assign=[])
    with pytest.raises(NotReady, match="not assigned to this catalog"):
        catalog.add(segment())
    assert rig.log.high_water_marks(TOPIC) == [0] * PARTITIONS


def test_write_that_the_view_does_not_show_in_time_says_where_it_is(rig: Rig) -> None:
    clock = ManualClock()
    catalog = rig.open(clock=clock, write_timeout=5.0)
    rig.backend.reading.clear()
    writing = Background(lambda: catalog.add(segment()))
    while writing.is_alive():
        clock.advance(1.0)
        writing.join(0.01)
    with pytest.raises(Timeout, match="recorded at offset 0") as caught:
        writing.result()
    assert caught.value.write == segment()
    rig.backend.reading.set()
    assert eventually(lambda: catalog.segments(ORDERS)) != []


def test_write_whose_partition_is_taken_away_meanwhile_says_that_it_is_recorded(rig: Rig) -> None:
    catalog = rig.open()
    rig.backend.reading.clear()
    writing = Background(lambda: catalog.add(segment()))
    number = catalog.log_partition(ORDERS)
    eventually(lambda: rig.log.high_water_marks(TOPIC)[number])
    catalog.reconcile_assignment([])
    with pytest.raises(NotReady, match="recorded at offset 0"):
        writing.result()


def test_write_that_meets_a_close_says_that_it_is_recorded(rig: Rig) -> None:
    catalog = rig.open()
    rig.backend.reading.clear()
    writing = Background(lambda: catalog.add(segment()))
    eventually(lambda: rig.log.high_water_marks(TOPIC)[catalog.log_partition(ORDERS)])
    closing = Background(catalog.close)
    with pytest.raises(Closed, match="recorded at offset 0"):
        writing.result()
    rig.backend.reading.set()
    closing.result()


def test_append_in_doubt_is_told_as_such(rig: Rig) -> None:
    class Doubtful(FlakyLog):
        def append(self, topic: str, event: Event, *, partition: int = 0) -> int:
            super().append(topic, event, partition=partition)
            raise Unknown("the answer was lost")

    doubtful = Doubtful(ObedientBackend(rig.backend.url))
    catalog = rig.open(log=doubtful)
    with pytest.raises(Unknown):
        catalog.add(segment())
    assert eventually(lambda: catalog.segments(ORDERS)) != []
    rig.open().add(segment())  # as its message says: repeating it does no harm


def test_many_threads_write_and_each_returns_with_its_own(rig: Rig) -> None:
    catalog = rig.open()

    def write(number: int) -> None:
        for start in range(0, 100, 10):
            item = segment(f"{number}-{start}", start, start + 9, partition=f"orders/{number}")
            catalog.add(item)
            catalog.update(finish(item))
            assert catalog.find(f"orders/{number}", 0, start + 3) is not None

    for writer in [Background(lambda n=n: write(n)) for n in range(6)]:
        writer.result()
    assert [len(catalog.segments(f"orders/{n}")) for n in range(6)] == [10] * 6


def test_time_writer_and_latest_record_are_kept_as_the_writer_says(rig: Rig) -> None:
    catalog = rig.open()
    copied = segment(changed_ms=5, max_time_ms=4, writer="broker-1")
    catalog.add(copied)
    assert catalog.segments(ORDERS) == [copied]
    catalog.update(finish(copied, changed_ms=9))
    (finished,) = catalog.segments(ORDERS)
    assert (finished.changed_ms, finished.max_time_ms, finished.writer) == (9, 4, "broker-1")
    catalog.update(finish(copied, SegmentState.DELETE_STARTED))
    assert catalog.segments(ORDERS)[0].changed_ms > 9, "by the log"


# Reading


def test_partition_that_nobody_told_of_has_nothing(rig: Rig) -> None:
    for catalog in (rig.open(), rig.open(assign=[])):
        assert catalog.find("nope", 0, 0) is None
        assert catalog.highest_offset("nope", 0) is None
        assert catalog.segments("nope") == []
        assert catalog.segments("nope", 0) == []
        assert catalog.deletion("nope") is None


def test_every_read_waits_behind_the_mark_and_names_its_partition(rig: Rig) -> None:
    rig.write(segment())
    rig.backend.reading.clear()
    number = Catalog.log_partition(catalog := rig.open(assign=[]), ORDERS)
    catalog.reconcile_assignment([number])
    reads: list[Any] = [
        lambda: catalog.find(ORDERS, 0, 42),
        lambda: catalog.highest_offset(ORDERS, 0),
        lambda: catalog.segments(ORDERS),
        lambda: catalog.segments(ORDERS, 0),
        lambda: catalog.deletion(ORDERS),
    ]
    for read in reads:
        with pytest.raises(NotReady, match=f"partition {number} of {TOPIC} is catching up .at 0 of 2"):
            read()
    rig.backend.reading.set()
    assert eventually(lambda: catalog.find(ORDERS, 0, 42)).segment_id == "a"
    assert [bool(read()) for read in reads] == [True, True, True, True, False]


def test_empty_partition_is_ready_at_once(rig: Rig) -> None:
    rig.backend.reading.clear()
    catalog = rig.open()
    assert catalog.segments(ORDERS) == []


def test_what_comes_after_the_mark_does_not_make_a_reader_wait(rig: Rig) -> None:
    rig.write(segment("a"))
    catalog = rig.open()
    eventually(lambda: catalog.segments(ORDERS))
    rig.backend.reading.clear()
    rig.log.append(TOPIC, Event("noise"), partition=catalog.log_partition(ORDERS))
    assert [item.segment_id for item in catalog.segments(ORDERS)] == ["a"]


def test_reads_go_on_after_close_and_writes_do_not(rig: Rig) -> None:
    catalog = rig.open()
    catalog.add(segment())
    catalog.close()
    catalog.close()
    assert len(catalog.segments(ORDERS)) == 1
    for call in (
        lambda: catalog.add(segment("b")),
        lambda: catalog.update(finish(segment())),
        lambda: catalog.delete_partition(ORDERS, DeletionState.MARKED),
        lambda: catalog.reconcile_assignment([0]),
    ):
        with pytest.raises(Closed):
            call()
    assert sum(rig.log.high_water_marks(TOPIC)) == 1


# Several catalogs


def test_two_catalogs_on_one_log_converge(rig: Rig) -> None:
    one, two = rig.open(), rig.open()
    one.add(segment())
    one.update(finish(segment()))
    assert eventually(lambda: two.highest_offset(ORDERS, 0)) == 99
    assert two.find(ORDERS, 0, 50) == one.find(ORDERS, 0, 50)


def test_two_catalogs_split_the_partitions(rig: Rig) -> None:
    one, two = rig.open(assign=[]), rig.open(assign=[])
    first = next(name for n in range(100) if one.log_partition(name := f"orders/{n}") == 0)
    second = next(name for n in range(100) if one.log_partition(name := f"orders/{n}") == 3)
    rig.write(segment(partition=first), segment(partition=second))
    one.reconcile_assignment([0])
    two.reconcile_assignment([3])
    assert (one.assigned(), two.assigned()) == ([0], [3])
    assert eventually(lambda: one.find(first, 0, 42)).partition == first
    assert eventually(lambda: two.find(second, 0, 42)).partition == second
    assert one.find(second, 0, 42) is None
    assert two.find(first, 0, 42) is None
    assert (one.segments(second), two.segments(first)) == ([], [])


def test_new_catalog_replays_what_was_told_before_it(rig: Rig) -> None:
    rig.write(segment("a", 0, 99), segment("b", 100, 199), segment("c", 200, 299))
    catalog = rig.open()
    listed = eventually(lambda: catalog.segments(ORDERS))
    assert [(item.start_offset, item.end_offset) for item in listed] == [(0, 99), (100, 199), (200, 299)]
    assert catalog.highest_offset(ORDERS, 0) == 299


def test_key_is_in_the_same_log_partition_in_every_process_and_release() -> None:
    """Numbers that must never change: other processes have written there."""
    with Catalog(open_event_log("memory://catalog-stable"), partitions=16) as catalog:
        found = [catalog.log_partition(name) for name in ("orders/0", "orders/1", "s3://lake/clicks", "")]
    assert found == [4, 14, 7, 6]


def test_topic_with_another_number_of_partitions_is_refused(rig: Rig) -> None:
    rig.open()
    with pytest.raises(InvalidInput, match="must be 4, not 5"):
        Catalog(rig.log, TOPIC, partitions=5)


# Assignment


def test_assignment_and_its_end_decide_what_is_answered(rig: Rig) -> None:
    rig.write(segment())
    catalog = rig.open(assign=[])
    number = catalog.log_partition(ORDERS)
    assert catalog.find(ORDERS, 0, 42) is None
    catalog.reconcile_assignment([number])
    assert catalog.assigned() == [number]
    assert eventually(lambda: catalog.find(ORDERS, 0, 42)).segment_id == "a"
    catalog.reconcile_assignment([])
    assert catalog.assigned() == []
    assert catalog.find(ORDERS, 0, 42) is None


def test_partition_assigned_again_duplicates_nothing_and_misses_nothing(rig: Rig) -> None:
    rig.write(segment("a"))
    catalog = rig.open()
    assert len(eventually(lambda: catalog.segments(ORDERS))) == 1
    catalog.reconcile_assignment([])
    rig.write(segment("b", 100, 199))
    catalog.reconcile_assignment(range(PARTITIONS))
    listed = eventually(lambda: catalog.segments(ORDERS))
    assert [item.segment_id for item in listed] == ["a", "b"]
    assert [item.state for item in listed] == [SegmentState.COPY_FINISHED] * 2
    assert catalog.highest_offset(ORDERS, 0) == 199
    catalog.add(segment("c", 200, 299))
    assert len(catalog.segments(ORDERS)) == 3


def test_mark_that_cannot_be_had_is_not_ready_until_the_next_reconcile(rig: Rig) -> None:
    rig.write(segment())
    catalog = rig.open(assign=[])
    number = catalog.log_partition(ORDERS)
    rig.log.fails_marks = True
    catalog.reconcile_assignment([number])
    assert catalog.assigned() == [number]
    applied = catalog._follower.applied
    eventually(lambda: applied[number] == 1)  # it has read everything, and still does not know that
    for _ in range(3):
        for read in (lambda: catalog.find(ORDERS, 0, 42), lambda: catalog.segments(ORDERS)):
            with pytest.raises(NotReady, match="mark is not known yet"):
                read()
        catalog.reconcile_assignment([number])
    rig.log.fails_marks = False
    catalog.reconcile_assignment([number])
    assert catalog.find(ORDERS, 0, 42) is not None
    assert catalog.highest_offset(ORDERS, 0) == 99


def test_mark_that_is_missing_from_the_answer_is_unknown(rig: Rig) -> None:
    rig.log.marks = [0] * (PARTITIONS - 1)
    catalog = rig.open()
    last = next(name for n in range(100) if catalog.log_partition(name := f"orders/{n}") == PARTITIONS - 1)
    with pytest.raises(NotReady, match="not known yet"):
        catalog.segments(last)


def test_log_that_is_away_while_assigning_heals_with_the_next_call(rig: Rig) -> None:
    rig.write(segment())
    catalog = rig.open(assign=[])
    number = catalog.log_partition(ORDERS)
    rig.backend.failures = 2  # the marks, and the place to follow from
    catalog.reconcile_assignment([number])
    assert catalog.assigned() == [number]
    with pytest.raises(NotReady):
        catalog.segments(ORDERS)
    catalog.reconcile_assignment([number])
    assert len(eventually(lambda: catalog.segments(ORDERS))) == 1


def test_partition_that_cannot_be_followed_is_not_taken_for_an_empty_one(rig: Rig) -> None:
    catalog = rig.open(assign=[])
    number = catalog.log_partition(ORDERS)
    rig.log.marks = [0] * PARTITIONS
    rig.backend.failures = 1
    catalog.reconcile_assignment([number])
    with pytest.raises(NotReady):
        catalog.segments(ORDERS)
    catalog.reconcile_assignment([number])
    assert catalog.segments(ORDERS) == []
    catalog.add(segment())


def test_mark_once_known_is_not_asked_for_again(rig: Rig) -> None:
    catalog = rig.open()
    rig.log.fails_marks = True
    catalog.reconcile_assignment(range(PARTITIONS))
    assert catalog.segments(ORDERS) == []


@pytest.mark.parametrize("wrong", [[PARTITIONS], [-1], ["0"], [True], [1.0]])
def test_log_partition_that_is_not_there_is_refused(rig: Rig, wrong: list[Any]) -> None:
    catalog = rig.open(assign=[1])
    with pytest.raises(InvalidInput, match="a log partition"):
        catalog.reconcile_assignment(wrong)
    assert catalog.assigned() == [1]


# Following


def test_event_that_is_no_change_is_passed_over_and_the_rest_goes_on(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = rig.open()
    number = catalog.log_partition(ORDERS)
    for event in (
        Event("noise", [1]),
        Event("segment.added", {"partition": ORDERS}),
        Event("segment.updated", b"\x00"),
    ):
        rig.log.append(TOPIC, event, partition=number)
    with caplog.at_level(logging.WARNING, logger="forebay.catalog"):
        catalog.add(segment())
    assert len(catalog.segments(ORDERS)) == 1
    assert caplog.text.count("is passed over") == 3


def test_catalog_that_lags_goes_on_from_what_it_has_applied(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="forebay.catalog")
    slow = ObedientBackend(rig.backend.url)
    catalog = rig.open(log=FlakyLog(slow, depth=2))
    catalog.add(segment("a"))
    slow.reading.clear()
    rig.write(segment("b", 100, 199))  # it reads these, one by one, and finds too many waiting
    rig.write(segment("c", 200, 299), segment("d", 300, 399))
    slow.reading.set()
    assert eventually(lambda: catalog.highest_offset(ORDERS, 0) == 399)
    assert [item.segment_id for item in catalog.segments(ORDERS)] == ["a", "b", "c", "d"]
    assert "going on from there" in caplog.text


def test_log_that_is_away_for_a_while_is_followed_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    catalog = rig.open(clock=clock)
    catalog.add(segment("a"))
    rig.backend.failures = 3
    rig.backend.changes.notify()  # it looks, and fails
    eventually(lambda: "trying again" in caplog.text)
    while rig.backend.failures:
        clock.advance(20.0)
    writing = Background(lambda: catalog.add(segment("b", 100, 199)))
    while writing.is_alive():
        clock.advance(0.5)  # it may still pause, for ten seconds at most
        writing.join(0.01)
    writing.result()
    assert len(catalog.segments(ORDERS)) == 2


@pytest.mark.parametrize("raised", [OSError, SystemExit, asyncio.CancelledError])
def test_error_that_ends_the_following_reaches_writers_and_readers_until_the_next_reconcile(
    rig: Rig, raised: type[BaseException]
) -> None:
    catalog = rig.open()
    catalog.add(segment("a"))
    rig.backend.reading.clear()
    rig.backend.error = raised("from the log")
    writing = Background(lambda: catalog.add(segment("b", 100, 199)))
    number = catalog.log_partition(ORDERS)
    eventually(lambda: rig.log.high_water_marks(TOPIC)[number] == 2)
    rig.backend.failures = 1
    rig.backend.reading.set()
    for call in (writing.result, lambda: catalog.segments(ORDERS), lambda: catalog.add(segment("c", 200, 299))):
        with pytest.raises(NotReady, match=f"stopped following the log.*{raised.__name__}: from the log"):
            call()
    catalog.reconcile_assignment(range(PARTITIONS))
    assert [found.segment_id for found in eventually(lambda: catalog.segments(ORDERS))] == ["a", "b"]
    catalog.add(segment("c", 200, 299))


def test_log_that_stays_away_is_given_up_after_a_bounded_number_of_attempts(rig: Rig) -> None:
    clock = ManualClock()
    catalog = rig.open(clock=clock)
    catalog.add(segment("a"))
    rig.backend.failures = 10 * MAX_FAILURES
    rig.backend.changes.notify()  # it looks, and fails

    def is_given_up() -> bool:
        clock.advance(5.0)
        try:
            catalog.segments(ORDERS)
        except NotReady as error:
            return "the log is away" in str(error)
        return False

    eventually(is_given_up)
    assert rig.backend.failures == 9 * MAX_FAILURES
    rig.backend.failures = 0
    catalog.reconcile_assignment(range(PARTITIONS))
    assert len(eventually(lambda: catalog.segments(ORDERS))) == 1


def test_log_that_fails_now_and_then_is_never_given_up(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    catalog = rig.open(random=NoPauses())
    for number in range(MAX_FAILURES + 5):
        rig.backend.failures = 1
        rig.backend.changes.notify()  # it looks, and fails
        eventually(lambda: not rig.backend.failures)
        catalog.add(segment(f"{number}", number, number))
    assert "stopped following" not in caplog.text


def test_log_closed_under_a_catalog_leaves_it_readable_and_closable(rig: Rig) -> None:
    catalog = rig.open()
    catalog.add(segment())
    rig.log.close()
    assert len(catalog.segments(ORDERS)) == 1
    with pytest.raises(Closed):
        catalog.add(segment("b"))
    catalog.close()


def test_stopping_beats_what_is_still_to_be_applied(rig: Rig) -> None:
    rig.write(*(segment(f"{n}", 10 * n, 10 * n + 9) for n in range(20)))
    rig.backend.reading.clear()
    catalog = rig.open(snapshots=rig.snapshots)
    closing = Background(catalog.close)
    eventually(lambda: catalog._follower.is_stopping)
    rig.backend.reading.set()
    closing.result()
    assert catalog._follower.applied == [-1] * PARTITIONS
    assert not rig.has_snapshot()
    number = catalog.log_partition(ORDERS)
    catalog._follower._apply(rig.log.read_range(TOPIC, partition=number)[0], catalog._follower._life)
    assert catalog._follower.applied == [-1] * PARTITIONS, "what the pump held when it was stopped"


@pytest.mark.parametrize("settings", [{"write_timeout": 0}, {"snapshot_interval": -1}])
def test_setting_that_cannot_be_is_refused(rig: Rig, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        Catalog(rig.log, TOPIC, partitions=PARTITIONS, **settings)


def test_catalogs_of_two_handles_share_a_database(tmp_path: Path) -> None:
    with open_event_log(tmp_path / "events.db") as mine, open_event_log(tmp_path / "events.db") as theirs:
        one, two = Catalog(mine, partitions=2), Catalog(theirs, partitions=2)
        with one, two:
            one.reconcile_assignment([0, 1])
            two.reconcile_assignment([0, 1])
            one.add(segment())
            assert eventually(lambda: two.segments(ORDERS)) == one.segments(ORDERS)


def test_defaults_are_as_documented() -> None:
    settings = inspect.signature(Catalog).parameters
    assert CATALOG_TOPIC == settings["topic"].default == "forebay.segments"
    assert settings["partitions"].default == 8
    assert settings["snapshots"].default is None
    assert settings["snapshot_interval"].default == settings["write_timeout"].default == 60.0
