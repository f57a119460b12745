"""Two runtimes of one group: the second waits as a standby, and takes over when the first is gone (rfcs/0007)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from filled import NoPauses, acked, fill
from kinds import Kind
from patience import PATIENCE

from forebay.buffer.base.errors import Fenced, InvalidInput
from forebay.buffer.base.process import this_process
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import Data, Outcome
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicGroups, TopicProducer, add_partitions, create_topic
from forebay.runtime import Runtime, RuntimeConfig, Source
from forebay.testing import Fault, FaultyStore, ManualClock
from forebay.testing.ledger import LedgerSink

QUICK = RuntimeConfig(ack_seconds=0.05)
CHANCE = NoPauses(7)  # one for all, or two runtimes would make the same claim


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    kind.begin(store)
    fill(store, 5)
    return store


def wait_for(condition: Callable[[], bool]) -> None:
    """A bounded wait on a condition that other threads bring about."""
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    pytest.fail("it did not happen in time")


def pass_time(clock: ManualClock, until: Callable[[], bool]) -> None:
    """Let time pass, a second at once, until something has happened."""
    wait_for(lambda: bool(until() or clock.advance(1.0)) or until())


@contextmanager
def running(runtime: Runtime, **settings: Any) -> Iterator[list[Any]]:
    """Run it in a thread, stop it at the end; gives what `run` returned or raised."""
    outcome: list[Any] = []

    def go() -> None:
        try:
            outcome.append(runtime.run(show_progress=False, **settings))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        runtime.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "run() did not return"


def make(store: ObjectStore, clock: ManualClock, sink: LedgerSink | None = None, **settings: Any) -> Runtime:
    return Runtime([Source(store, group="etl", **settings)], sink or LedgerSink(), QUICK, clock=clock, random=CHANCE)


def is_standby(runtime: Runtime) -> bool:
    return [one.waits_for.partition(":")[0] for one in runtime.status().sources] == ["standby"]


def is_reading(runtime: Runtime) -> bool:
    sources = runtime.status().sources
    return bool(sources) and not any(one.waits_for.startswith("standby") for one in sources)


def objects(store: ObjectStore) -> dict[str, bytes]:
    return {found.key: bytes(store.get(found.key).data) for found in store.list()}


def epoch(store: ObjectStore) -> int:
    return Groups(store).describe("etl").epoch


def test_second_runtime_of_a_group_waits_and_changes_nothing(store: MemoryStore) -> None:
    clock = ManualClock()
    owner = Consumer(store, group="etl", clock=clock)
    before = objects(store)
    runtime = make(store, clock)
    with running(runtime) as outcome:
        wait_for(lambda: is_standby(runtime))
        assert runtime.status().sources[0].waits_for == f"standby: group etl is owned by {this_process(clock)}"
    assert outcome[0].state == "stopped"
    assert objects(store) == before
    owner.next_descriptors(1)


def test_runtime_takes_over_at_once_when_the_first_has_stopped(store: MemoryStore) -> None:
    clock, sink = ManualClock(), LedgerSink()
    first, second = make(store, clock, sink), make(store, clock, sink)
    with running(first) as outcome:
        wait_for(lambda: len(sink.rows) == 5)
        with running(second):
            wait_for(lambda: is_standby(second))
            first.stop()
            wait_for(lambda: bool(outcome))
            clock.advance(QUICK.max_poll_interval)
            wait_for(lambda: is_reading(second))
            fill(store, 3)
            pass_time(clock, lambda: len(sink.rows) == 8)
            assert len(sink.calls) == 8, "nothing was committed twice"


def test_runtime_takes_over_from_an_owner_that_was_killed(store: MemoryStore) -> None:
    clock, sink = ManualClock(), LedgerSink()
    Consumer(store, group="etl", clock=clock)
    runtime = make(store, clock, sink)
    with running(runtime):
        wait_for(lambda: is_standby(runtime))
        assert not sink.calls
        pass_time(clock, lambda: len(sink.rows) == 5)
        assert clock.monotonic() >= 30
        assert epoch(store) == 2


def test_runtimes_that_both_live_do_not_fence_each_other(store: MemoryStore) -> None:
    """Idle, for five minutes: the first one's heartbeat keeps the second one waiting."""
    clock, sink = ManualClock(), LedgerSink()
    first, second = make(store, clock, sink), make(store, clock, sink)
    with running(first):
        wait_for(lambda: len(sink.rows) == 5)
        pass_time(clock, lambda: acked(store) == 4)
        (cursor,) = [key for key in objects(store) if key.startswith("cursors/")]
        with running(second) as outcome:
            wait_for(lambda: is_standby(second))
            for _ in range(30):
                before = store.get(cursor).version
                clock.advance(10)
                wait_for(lambda before=before: store.get(cursor).version != before)
            assert is_standby(second)
            assert is_reading(first)
        assert outcome[0].state == "stopped"
        assert epoch(store) == 1


def test_wait_is_logged_once_and_names_the_owner(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    owner = Consumer(store, group="etl", clock=clock)
    name = str(this_process(clock))
    runtime = make(store, clock)
    with caplog.at_level(logging.INFO, "forebay.runtime"), running(runtime):
        wait_for(lambda: is_standby(runtime))
        for _ in range(5):
            clock.advance(2)
        owner.close()
        pass_time(clock, lambda: is_reading(runtime))
    lines = [text for text in caplog.messages if name in text]
    assert lines == [
        f"standby: group etl is owned by {name} ({store.url}); waiting until that process is gone",
        f"{store.url}: group etl is taken over from {name}",
    ]


def test_outage_while_a_standby_waits_is_no_takeover(store: MemoryStore) -> None:
    class Outage(FaultyStore):
        is_out = False

        def next_fault(self, kind: str) -> Fault | None:
            super().next_fault(kind)
            return Fault.FAIL if self.is_out else None

    clock = ManualClock()
    Consumer(store, group="etl", clock=clock)
    outage = Outage(store)
    runtime = make(outage, clock)
    with running(runtime):
        wait_for(lambda: is_standby(runtime))
        outage.is_out = True
        for _ in range(100):
            looks = outage.calls["get_if_changed"]
            pass_time(clock, lambda looks=looks: outage.calls["get_if_changed"] > looks)
        assert clock.monotonic() > 60
        outage.is_out = False
        looks = outage.calls["get_if_changed"]
        pass_time(clock, lambda: outage.calls["get_if_changed"] > looks + 1)
        assert is_standby(runtime)
        assert epoch(store) == 1


def test_other_sources_are_read_while_one_waits(store: MemoryStore) -> None:
    other = MemoryStore(f"{store.url}-other")
    fill(other, 3)
    Consumer(store, group="etl")
    sink = LedgerSink()
    sources = [Source(store, group="etl"), Source(other, group="etl")]
    with running(Runtime(sources, sink, QUICK, clock=ManualClock(), random=CHANCE)):
        wait_for(lambda: len(sink.rows) == 3)


def test_source_that_is_added_waits_and_can_be_removed(store: MemoryStore) -> None:
    clock = ManualClock()
    owner = Consumer(store, group="etl", clock=clock)
    runtime = Runtime([], LedgerSink(), QUICK, clock=clock, random=CHANCE)
    source = Source(store, group="etl")
    with running(runtime):
        wait_for(lambda: runtime.status().state == "running")
        runtime.add(source)
        assert is_standby(runtime)
        with pytest.raises(InvalidInput, match="already"):
            runtime.add(source)
        runtime.remove(source)
        assert runtime.status().sources == ()
        clock.advance(100)
    owner.next_descriptors(1)


def test_takeover_fences_the_owner_at_once_and_tells_it_who(store: MemoryStore) -> None:
    clock, sink = ManualClock(), LedgerSink()
    first, second = make(store, clock, sink), make(store, clock, sink, takeover=True)
    with running(first) as outcome:
        wait_for(lambda: len(sink.rows) == 5)
        with running(second):
            wait_for(lambda: is_reading(second))
            pass_time(clock, lambda: bool(outcome))
    assert isinstance(outcome[0], Fenced)
    assert f"in process {this_process(ManualClock()).host}/" in str(outcome[0])


def test_owner_whose_sink_hangs_hears_of_the_fence_from_its_heartbeat(store: MemoryStore) -> None:
    """It has nothing to look for, to record or to acknowledge."""
    clock, sink = ManualClock(), LedgerSink()
    sink.hold()
    config = RuntimeConfig(max_batches=2, fetch_workers=1, drain_seconds=0.5)
    runtime = Runtime([Source(store, group="etl")], sink, config, clock=clock, random=CHANCE)
    with running(runtime) as outcome:
        assert sink.wait_for_calls(1)
        Consumer(store, group="etl")
        pass_time(clock, lambda: bool(outcome))
        sink.release()
    assert isinstance(outcome[0], Fenced)


def test_stop_while_it_takes_over_lets_the_group_go_again(store: MemoryStore) -> None:
    class Stopping(FaultyStore):
        def replace(self, key: str, data: Data, version: str) -> Outcome:
            runtime.stop()
            return super().replace(key, data, version)

    clock = ManualClock()
    owner = Consumer(store, group="etl", clock=clock)
    runtime = make(Stopping(store), clock)
    with running(runtime) as outcome:
        wait_for(lambda: is_standby(runtime))
        owner.close()
        clock.advance(QUICK.max_poll_interval)
        wait_for(lambda: bool(outcome))
        assert outcome[0].state == "stopped"
        assert epoch(store) == 2
        assert not Groups(store).describe("etl").alive


def test_consumer_that_is_given_to_a_runtime_gets_its_heartbeat(store: MemoryStore) -> None:
    clock = ManualClock()
    runtime = Runtime([Consumer(store, group="etl", clock=clock)], LedgerSink(), QUICK, clock=clock, random=CHANCE)
    with running(runtime):
        pass_time(clock, lambda: acked(store) == 4)
        (cursor,) = [key for key in objects(store) if key.startswith("cursors/")]
        before = store.get(cursor).version
        clock.advance(10)
        wait_for(lambda: store.get(cursor).version != before)


# Runs that end


def test_run_until_caught_up_refuses_a_group_whose_owner_lives(store: MemoryStore) -> None:
    clock = ManualClock()
    owner = Consumer(store, group="etl", clock=clock)
    runtime = make(store, clock)
    with running(runtime, until_caught_up=True) as outcome:
        wait_for(lambda: is_standby(runtime))
        clock.advance(10)
        owner.show_alive(10)
        pass_time(clock, lambda: bool(outcome))
    assert isinstance(outcome[0], Fenced)
    assert f"group etl is owned by {this_process(ManualClock())}, which is alive" in str(outcome[0])
    owner.next_descriptors(1)


def test_run_until_caught_up_takes_over_from_an_owner_that_was_killed(store: MemoryStore) -> None:
    clock, sink = ManualClock(), LedgerSink()
    Consumer(store, group="etl", clock=clock)
    runtime = make(store, clock, sink)
    with running(runtime, until_caught_up=True) as outcome:
        wait_for(lambda: is_standby(runtime))
        pass_time(clock, lambda: bool(outcome))
    assert outcome[0].state == "stopped"
    assert len(sink.rows) == 5
    assert acked(store) == 4


def test_group_that_was_claimed_between_look_and_claim_is_waited_for(store: MemoryStore) -> None:
    class Overtaken(FaultyStore):
        rival: Consumer | None = None

        def create(self, key: str, data: Data) -> Outcome:
            if key.startswith("cursors/") and self.rival is None:
                self.rival = Consumer(self.inner, group="etl")
            return super().create(key, data)

    overtaken = Overtaken(store)
    runtime = make(overtaken, ManualClock())
    with running(runtime):
        wait_for(lambda: is_standby(runtime))
    assert overtaken.rival is not None
    overtaken.rival.next_descriptors(1)


# Topics


def topic_of(store: MemoryStore, partitions: int) -> MemoryStore:
    topic = MemoryStore(f"{store.url}-topic")
    create_topic(topic, partitions)
    return topic


def say(topic: MemoryStore, key: str) -> None:
    with TopicProducer(topic) as producer:
        producer.produce([key.encode()], key=key.encode()).result()


def test_one_lease_serves_all_partitions_of_a_topic(store: MemoryStore) -> None:
    """An idle owner writes the cursor of the first partition, and no other."""
    topic, clock = topic_of(store, 3), ManualClock()
    first, second = make(topic, clock), make(topic, clock)
    with running(first):
        wait_for(lambda: is_reading(first))
        cursors = [key for key in objects(topic) if "/cursors/" in key]
        before = {key: topic.get(key).version for key in cursors}
        with running(second):
            wait_for(lambda: is_standby(second))
            for _ in range(10):
                lease = topic.get(cursors[0]).version
                clock.advance(10)
                wait_for(lambda lease=lease: topic.get(cursors[0]).version != lease)
            assert is_standby(second)
            assert [key for key in cursors if topic.get(key).version != before[key]] == cursors[:1]


def test_standby_claims_the_partitions_that_were_added_while_it_waited(store: MemoryStore) -> None:
    topic, clock, sink = topic_of(store, 2), ManualClock(), LedgerSink()
    first, second = make(topic, clock), make(topic, clock, sink)
    with running(first):
        wait_for(lambda: is_reading(first))
        with running(second):
            wait_for(lambda: is_standby(second))
            add_partitions(topic, 4)
            first.stop()
            pass_time(clock, lambda: is_reading(second))
            assert len(second.status().sources) == 4
            assert all(state is not None and state.alive for state in TopicGroups(topic).describe("etl").partitions)


def test_runtime_does_not_wait_for_itself(store: MemoryStore) -> None:
    topic = topic_of(store, 2)
    runtime = make(topic, ManualClock())
    with running(runtime):
        wait_for(lambda: is_reading(runtime))
        with pytest.raises(InvalidInput, match="already"):
            runtime.add(Source(topic, group="etl"))
        with pytest.raises(InvalidInput, match="already"):
            runtime.add(Source(Topic(topic).partition(1), group="etl"))


def test_lease_of_a_topic_is_released_last(store: MemoryStore) -> None:
    """A standby must not claim a partition whose last acknowledgement is under way."""
    written: list[str] = []

    class Noted(FaultyStore):
        def replace(self, key: str, data: Data, version: str) -> Outcome:
            written.append(key)
            return super().replace(key, data, version)

    topic = topic_of(store, 3)
    for key in "abcdefgh":
        say(topic, key)
    make(Noted(topic), ManualClock()).run(until_caught_up=True, show_progress=False)
    cursors = [key.partition("/cursors/")[0] for key in written if "/cursors/" in key]
    assert cursors[-3:] == ["p-00002", "p-00001", "p-00000"]
