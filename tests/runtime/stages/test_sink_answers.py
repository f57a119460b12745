"""Each answer of a sink, each way to raise one, and when it is asked what is there (rfcs/0007)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from filled import acked, append_data, fill, new_buffer, run
from patience import PATIENCE

from forebay.buffer.base.errors import (
    Backpressure,
    Corrupt,
    Denied,
    Fenced,
    InvalidInput,
    NotReady,
    Timeout,
    Unavailable,
    Unknown,
)
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Queue
from forebay.runtime import (
    Combining,
    CommitIdentity,
    Committed,
    Fatal,
    Halted,
    MaybeCommitted,
    NotCommitted,
    Runtime,
    Source,
)
from forebay.testing.ledger import LedgerSink


def test_not_committed_is_tried_again_and_never_asked() -> None:
    store = new_buffer("not-committed", 3)
    sink = LedgerSink(*[(False, NotCommitted("busy"))] * 30, in_order=True)
    run(store, sink)
    assert len(sink.rows) == 3
    assert len(sink.calls) == 33, "however often it takes"
    assert not sink.asked


def test_maybe_that_is_there_is_not_committed_again() -> None:
    store = new_buffer("maybe-there", 3)
    sink = LedgerSink((True, MaybeCommitted("lost reply")), in_order=True)
    run(store, sink)
    assert [found.first for found in sink.calls] == [0, 1, 2]
    assert [found.first for found in sink.asked] == [0]
    assert acked(store) == 2


def test_maybe_that_is_not_there_is_committed_again() -> None:
    store = new_buffer("maybe-not", 3)
    sink = LedgerSink((False, MaybeCommitted("lost request")), (False, MaybeCommitted("again")), in_order=True)
    run(store, sink)
    assert [found.first for found in sink.calls] == [0, 0, 0, 1, 2]
    assert [found.first for found in sink.asked] == [0, 0]
    assert len(sink.rows) == 3


def test_maybe_then_not_committed_is_not_asked_any_more() -> None:
    store = new_buffer("maybe-then-not", 1)
    sink = LedgerSink((False, MaybeCommitted("?")), (False, NotCommitted("no")))
    run(store, sink)
    assert (len(sink.calls), len(sink.asked)) == (3, 1)


def test_frontier_waits_for_a_maybe_while_others_go_on() -> None:
    store = new_buffer("maybe-holds", 40)

    class Doubtful(LedgerSink):
        def check_committed(self, identity: CommitIdentity) -> bool:
            super().check_committed(identity)
            assert acked(store) in (None, 4), "it must not be passed while nobody knows"
            if len(self.rows) < 30:
                raise ConnectionError("cannot tell yet")
            return identity in self.rows

    sink = Doubtful()
    inner = sink.commit
    doubted = []

    def commit(commit: Any) -> Any:
        answer = inner(commit)
        if commit.identity.first == 5 and not doubted:
            doubted.append(1)
            return MaybeCommitted("lost")
        return answer

    sink.commit = commit  # type: ignore[method-assign]
    run(store, sink, config={"ack_every": 1, "max_failures": 10**6})
    assert len(sink.calls) == 40
    assert acked(store) == 39


def test_fatal_halts_with_everything_before_it_acknowledged() -> None:
    store = new_buffer("fatal", 5)
    sink = LedgerSink((True, Committed()), (True, Committed()), (False, Fatal("disk full")), in_order=True)
    with pytest.raises(Halted, match="disk full"):
        run(store, sink)
    assert sink.ranges == [(0, 0), (1, 1)]
    assert acked(store) == 1
    run(store, LedgerSink(in_order=True))
    assert acked(store) == 4


def test_commits_under_way_at_a_halt_may_end_and_are_acknowledged() -> None:
    store = new_buffer("halt-drains", 2)
    began = threading.Event()

    class Halting(LedgerSink):
        def commit(self, commit: Any) -> Any:
            if commit.identity.first == 1:
                assert began.wait(PATIENCE)
                return Fatal("broken")
            began.set()
            while runtime.status().state != "stopping":
                threading.Event().wait(0.01)
            threading.Event().wait(0.2)  # long enough for run() to end, if it did not wait
            return super().commit(commit)

    runtime = Runtime([Source(store, group="etl")], Halting())
    with pytest.raises(Halted, match="broken"):
        runtime.run(show_progress=False)
    assert acked(store) == 0


@pytest.mark.parametrize("error", [Unavailable("x"), Timeout("x"), Backpressure("x"), NotReady("x")], ids=repr)
def test_error_that_says_nothing_was_applied_is_not_committed(error: Exception) -> None:
    sink = LedgerSink(*[(False, error)] * 15)
    run(new_buffer(f"nothing-{type(error).__name__}", 1), sink)
    assert (len(sink.calls), len(sink.asked)) == (16, 0)


@pytest.mark.parametrize(
    "error", [Unknown("x"), ValueError("x"), ConnectionResetError("x"), TimeoutError("x"), KeyError("x")], ids=repr
)
@pytest.mark.parametrize("applied", [False, True])
def test_error_after_which_nobody_knows_is_asked_about(error: Exception, applied: bool) -> None:
    sink = LedgerSink((applied, error))
    run(new_buffer(f"nobody-{applied}-{type(error).__name__}", 1), sink)
    assert len(sink.asked) == 1
    assert len(sink.calls) == (1 if applied else 2)


@pytest.mark.parametrize("error", [Denied("x"), InvalidInput("x"), Corrupt("x"), Fenced("x")], ids=repr)
def test_error_that_needs_somebody_to_act_is_fatal(error: Exception) -> None:
    store = new_buffer(f"act-{type(error).__name__}", 1)
    sink = LedgerSink((False, error))
    with pytest.raises(Halted, match=type(error).__name__):
        run(store, sink)
    assert len(sink.calls) == 1
    assert acked(store) is None


def test_exception_that_comes_every_time_halts_in_the_end() -> None:
    store = new_buffer("bug", 3)
    sink = LedgerSink(*[(False, KeyError("user"))] * 100, in_order=True)
    told = r"batch 0, group etl: the sink failed 4 times in a row.*KeyError: 'user'.*start the runtime again"
    with pytest.raises(Halted, match=told):
        run(store, sink, config={"max_failures": 4})
    assert len(sink.calls) == 4


def test_exceptions_between_answers_are_counted_anew() -> None:
    store = new_buffer("hiccups", 1)
    hiccup: Any = (False, OSError("hiccup"))
    sink = LedgerSink(*[hiccup, hiccup, (False, NotCommitted("busy"))] * 5)
    run(store, sink, config={"max_failures": 3})
    assert len(sink.rows) == 1


def test_check_that_fails_is_repeated_before_anything_is_committed_again() -> None:
    store = new_buffer("check-fails", 1)

    class Unsure(LedgerSink):
        troubles: list[Exception] = [Unavailable("down"), OSError("reset"), Timeout("late")]  # noqa: RUF012

        def check_committed(self, identity: CommitIdentity) -> bool:
            if self.troubles:
                raise self.troubles.pop()
            return super().check_committed(identity)

    sink = Unsure((True, MaybeCommitted("lost")))
    run(store, sink)
    assert (len(sink.calls), len(sink.rows), Unsure.troubles) == (1, 1, [])


def test_answer_that_is_none_halts() -> None:
    with pytest.raises(Halted, match=r"must return an answer such as Committed\(\), not None"):
        run(new_buffer("forgetful", 1), LedgerSink((True, None)))  # type: ignore[arg-type]


# Replays


def crashed_run(store: Any, sink: LedgerSink, **settings: Any) -> None:
    """Commits everything and acknowledges nothing, as a process that is killed then."""

    class Killed(BaseException):
        pass

    def commit(commit: Any) -> Any:
        answer = inner(commit)
        if commit.identity.last == 9:
            raise Killed
        return answer

    inner = sink.commit
    sink.commit = commit  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run(store, sink, config={"ack_seconds": 1000, "ack_every": 1000}, **settings)
    sink.commit = inner  # type: ignore[method-assign]


@pytest.mark.parametrize("group", ["etl", None])
def test_replay_asks_first_and_commits_only_what_is_not_there(group: str | None) -> None:
    store = new_buffer(f"replay-{group}", 10)
    sink = LedgerSink(in_order=True)
    crashed_run(store, sink, group=group)
    assert acked(store, group) is None
    sink.asked.clear()
    del sink.rows[next(found for found in sink.rows if found.first == 7)]  # as if that one had not made it
    sink.calls.clear()
    run(store, sink, group=group)
    assert [found.first for found in sink.calls] == [7]
    assert [found.first for found in sink.asked] == list(range(10))
    assert acked(store, group) == 9


def test_commit_that_is_replayed_says_so() -> None:
    store = new_buffer("says-replay", 10)
    sink = LedgerSink(in_order=True)
    crashed_run(store, sink)
    fill(store, 2)
    seen = []

    class Looking(LedgerSink):
        def commit(self, commit: Any) -> Any:
            seen.append(commit.replay)
            return super().commit(commit)

    run(store, Looking(in_order=True))
    assert seen == [True] * 10 + [False] * 2


def test_new_batches_are_not_asked_about() -> None:
    store = new_buffer("new", 10)
    sink = LedgerSink()
    run(store, sink)
    fill(store, 5)
    run(store, sink)
    assert len(sink.rows) == 15
    assert not sink.asked, "the cursor says what may have been committed: nothing"


def test_combined_ranges_are_replayed_unchanged_whatever_the_sink_asks_for_now() -> None:
    for name, combining in {"none": None, "small": Combining(1), "large": Combining(10**6)}.items():
        store = new_buffer(f"replay-ranges-{name}", 10, entries=1, size=96)
        sink = LedgerSink(in_order=True, combining=Combining(300))
        crashed_run(store, sink)
        assert sink.ranges == [(0, 2), (3, 5), (6, 8), (9, 9)]
        sink.combining = combining
        sink.calls.clear()
        fill(store, 1)
        run(store, sink)
        assert [found.first for found in sink.calls] == [10]
        assert sink.ranges == [(0, 2), (3, 5), (6, 8), (9, 9), (10, 10)]


def test_single_commits_are_known_to_a_successor_that_combines() -> None:
    store = new_buffer("single-then-combined", 10)
    sink = LedgerSink(in_order=True)
    crashed_run(store, sink)
    sink.combining = Combining(10**6)
    run(store, sink)
    assert sink.ranges == [(number, number) for number in range(10)]


def test_group_that_was_reset_is_not_taken_for_a_replay() -> None:
    store = new_buffer("reset", 5)
    sink = LedgerSink()
    run(store, sink)
    Groups(store).reset("etl", "earliest")
    run(store, sink)
    assert len(sink.rows) == 10
    assert len({found.generation for found in sink.rows}) == 2
    assert not sink.asked


def test_nothing_of_a_group_is_committed_before_it_is_recorded() -> None:
    store = new_buffer("recorded-first", 10)
    recorded: set[int] = set()
    early: list[int] = []
    committed = threading.Event()
    consumer = Consumer(store, group="etl")
    inner = consumer.plan

    def plan(ends: list[int]) -> None:
        committed.wait(0.3)  # the batches are fetched meanwhile, and may not go on
        inner(ends)
        recorded.update(ends)

    consumer.plan = plan  # type: ignore[method-assign,assignment]

    class Checking(LedgerSink):
        def commit(self, commit: Any) -> Any:
            if commit.identity.last not in recorded:
                early.append(commit.identity.last)
                committed.set()
            return super().commit(commit)

    run(consumer, Checking())
    assert recorded == set(range(10))
    assert early == []


def test_empty_batches_in_a_combined_range_change_nothing_of_its_identity() -> None:
    store = new_buffer("empty-in-range", 0)
    held = [[b"0"], [], [b"2"], []]
    Queue(store).append([append_data(store, i, bytes(encode_batch(h, "none")), h) for i, h in enumerate(held)])
    sink = LedgerSink(combining=Combining(10**6))
    run(store, sink)
    assert sink.ranges == [(0, 3)]
    assert sink.values() == [b"0", b"2"]
