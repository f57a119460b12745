"""Dying, losing answers and being replaced at every step of a run: rfcs/0007's table, cell by cell."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest
from filled import NoBackoff, NoPauses, acked, fill, new_buffer
from kinds import BYTES, ROWS, Kind
from patience import PATIENCE

from forebay.buffer.base.errors import Fenced, ForebayError
from forebay.buffer.consumer import Consumer
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Combining, Commit, Committed, Runtime, RuntimeConfig, Source
from forebay.runtime.contract import Answer
from forebay.testing import WRITE_FAULTS, Crash, Fault, FaultyStore
from forebay.testing.ledger import LedgerSink
from forebay.testing.watched import WatchedStore

BATCHES = 12
CHANCE = NoPauses(7)  # one for all, or two runs would make the same claim
SINKS: dict[str, dict[str, Any]] = {
    "parallel": {},
    "in-order": {"in_order": True},
    "combining": {"combining": Combining(250)},
}
SMALL = RuntimeConfig(
    fetch_workers=2, commit_workers=2, descriptors_per_look=5, ack_every=2, max_batches=8, drain_seconds=5
)


def run(store: Any, sink: LedgerSink, *, group: str | None = "etl", takeover: bool = True) -> None:
    source = Source(store, group=group, takeover=takeover)
    Runtime([source], sink, SMALL, clock=NoBackoff(), random=CHANCE).run(until_caught_up=True, show_progress=False)


def check_frontier(store: Any, sink: LedgerSink, group: str | None = "etl") -> None:
    """Nothing is acknowledged that is not committed."""
    try:
        through = acked(store, group)
    except ForebayError:
        return  # it died before the group was made
    covered = {number for first, last in sink.ranges for number in range(first, last + 1)}
    assert set(range(-1 if through is None else through + 1)) <= covered


def check_complete(store: Any, sink: LedgerSink, said: list[bytes], group: str | None = "etl") -> None:
    """Everything is committed in ranges that do not overlap, and acknowledged."""
    numbers = [number for first, last in sink.ranges for number in range(first, last + 1)]
    assert numbers == list(range(len(numbers)))
    assert sink.values() == said
    assert acked(store, group) == len(numbers) - 1


class Dying(FaultyStore):
    """A process whose store calls end at one of them, before or after the store has done it."""

    at: int
    after: bool

    def next_fault(self, kind: str) -> Fault | None:
        number = sum(self.calls.values())
        super().next_fault(kind)
        if number < self.at:
            return None
        return Fault.CRASH_AFTER if self.after and number == self.at else Fault.CRASH


@pytest.mark.parametrize("group", ["etl", None])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("how", SINKS)
def test_dying_at_any_store_call_leaves_a_state_that_the_next_run_finishes(
    how: str, after: bool, group: str | None, kind: Kind
) -> None:
    for at in range(200):
        inner = MemoryStore(f"memory://runtime-dying-{how}-{after}-{group}-{at}-{kind.name}")
        watched = WatchedStore(inner)
        kind.begin(watched)
        said = fill(watched, BATCHES, size=50)
        store = Dying(watched)
        store.at, store.after = at, after
        sink = LedgerSink(**SINKS[how])
        try:
            run(store, sink, group=group, takeover=False)
            died = False
        except Crash:
            died = True
        check_frontier(watched, sink, group)
        run(watched, sink, group=group)
        check_complete(watched, sink, said, group)
        if not died:
            return
    pytest.fail("a run has more than 200 calls")


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("how", SINKS)
def test_dying_in_any_call_of_the_sink_leaves_a_state_that_the_next_run_finishes(
    how: str, applied: bool, kind: Kind
) -> None:
    for at in range(BATCHES + 1):
        store = new_buffer(f"dying-sink-{how}-{applied}-{at}", 0, kind=kind)
        said = fill(store, BATCHES, size=50)
        sink = LedgerSink(*[(True, Committed())] * at, (applied, Crash("here")), **SINKS[how])
        try:
            run(store, sink)
        except Crash:
            check_frontier(store, sink)
            run(store, sink)
        check_complete(store, sink, said)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_any_fault_of_any_write_changes_nothing_of_the_outcome(fault: Fault, kind: Kind) -> None:
    for at in range(40):
        inner = new_buffer(f"faulty-{fault.name}-{at}", 0, kind=kind)
        said = fill(inner, BATCHES, size=50)
        store = FaultyStore(inner, {at: fault}, only={"create", "replace", "put"})
        sink = LedgerSink(combining=Combining(250))
        try:
            run(store, sink)
        except ForebayError:
            assert at == 0, "only opening is not tried again"
            run(inner, sink)
        store.land_late_requests()
        check_complete(inner, sink, said)
        assert len(sink.calls) == len(sink.rows), "and nothing was committed twice, not even to be found out"
        if store.calls["replace"] + store.calls["create"] <= at:
            return
    pytest.fail("a run has more than 40 writes")


def test_seeded_troubles_of_store_and_sink_end_with_everything_once() -> None:
    for seed in range(60):
        random = Random(seed)
        watched = WatchedStore(MemoryStore(f"memory://runtime-seeded-{seed}"))
        (BYTES, ROWS)[seed % 2].begin(watched)
        said = fill(watched, BATCHES, size=50)
        how = random.choice(list(SINKS))
        sink = Troubled(random, **SINKS[how])
        for turn in range(20):
            store = FaultyStore.seeded(watched, 1000 * seed + turn, rate=0.15)
            try:
                run(store, sink)
            except (ForebayError, Crash):
                check_frontier(watched, sink)
                continue
            finally:
                store.land_late_requests()
            break
        run(watched, sink.calm())
        check_complete(watched, sink, said)


class Troubled(LedgerSink):
    """Answers as chance has it, and dies now and then."""

    def __init__(self, random: Random, **settings: Any) -> None:
        super().__init__(**settings)
        self._random: Random | None = random

    def calm(self) -> Troubled:
        self._random = None
        return self

    def commit(self, commit: Commit) -> Answer:
        from forebay.runtime import MaybeCommitted, NotCommitted

        chance = 1.0 if self._random is None else self._random.random()
        if chance < 0.05:
            raise Crash("before")
        if chance < 0.2:
            return NotCommitted("busy")
        if chance < 0.25:
            raise ConnectionResetError("before")
        answer = super().commit(commit)
        if chance < 0.3:
            raise Crash("after")
        if chance < 0.4:
            raise ConnectionResetError("after")
        return MaybeCommitted("lost") if chance < 0.5 else answer


# Being replaced


class TakenOver(FaultyStore):
    """Just before one of its calls, another runtime reads everything."""

    at: int
    sink: LedgerSink
    left: dict[str, bytes] | None = None
    was_done = False

    def next_fault(self, kind: str) -> Fault | None:
        if sum(self.calls.values()) == self.at:
            self.at = -1
            self.was_done = bool(list(self.inner.list("cursors/"))) and acked(self.inner) == BATCHES - 1
            run(self.inner, self.sink)
            self.left = {found.key: bytes(self.inner.get(found.key).data) for found in self.inner.list("cursors/")}
        return super().next_fault(kind)


@pytest.mark.parametrize("how", SINKS)
def test_runtime_that_is_replaced_at_any_store_call_stops_and_acknowledges_nothing_more(how: str, kind: Kind) -> None:
    for at in range(200):
        inner = new_buffer(f"replaced-{how}-{at}", 0, kind=kind)
        said = fill(inner, BATCHES, size=50)
        sink = LedgerSink(**SINKS[how])
        store = TakenOver(inner)
        store.at, store.sink = at, sink
        fenced = False
        try:
            run(store, sink)
        except Fenced:
            fenced = True
        if store.left is None:
            return  # a run has no more calls
        now = {found.key: bytes(inner.get(found.key).data) for found in inner.list("cursors/")}
        if fenced:
            assert now == store.left, f"call {at}: the old owner changed a cursor"
        else:
            # The other came before its claim, or after its last ack.
            assert now != store.left or store.was_done, f"call {at}: the old owner did not notice"
        check_complete(inner, sink, said)
    pytest.fail("a run has more than 200 calls")


def test_of_two_runtimes_on_one_group_one_stops_with_fenced_and_nothing_is_lost_or_doubled() -> None:
    store = new_buffer("rivals", 0)
    said = fill(store, 30)
    sink = LedgerSink()
    outcomes: dict[str, Any] = {}
    rivals = {
        name: Runtime(
            [Source(store, group="etl", takeover=name == "second")],
            sink,
            RuntimeConfig(max_poll_interval=0.05, ack_seconds=0.05),
        )
        for name in ("first", "second")
    }

    def go(name: str) -> None:
        try:
            outcomes[name] = rivals[name].run(show_progress=False)
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcomes[name] = error

    threads = {name: threading.Thread(target=go, args=(name,), daemon=True) for name in rivals}
    threads["first"].start()
    assert sink.wait_for_calls(5)
    threads["second"].start()
    threads["first"].join(PATIENCE)
    assert isinstance(outcomes["first"], Fenced)
    said += fill(store, 20)
    assert sink.wait_for_calls(50)
    rivals["second"].stop()
    threads["second"].join(PATIENCE)
    assert outcomes["second"].state == "stopped"
    check_complete(store, sink, said)


def test_fence_in_one_source_stops_all_and_none_acknowledges() -> None:
    taken, other = new_buffer("fence-taken", 5), new_buffer("fence-other", 5)
    sink = LedgerSink()
    runtime = Runtime(
        [Source(taken, group="etl"), Source(other, group="etl")],
        sink,
        RuntimeConfig(ack_seconds=1000, max_poll_interval=0.05),
    )
    outcome: list[BaseException] = []

    def go() -> None:
        try:
            runtime.run(show_progress=False)
        except Fenced as error:
            outcome.append(error)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    assert sink.wait_for_calls(10)
    Consumer(taken, group="etl")
    thread.join(PATIENCE)
    assert outcome
    assert runtime.status().state == "failed"
    assert acked(taken) is None
    assert acked(other) is None
