"""A runtime whose source does not exist yet: it waits, creates nothing, and says so (rfcs/0007)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from filled import NoPauses, fill
from patience import PATIENCE, wait_for

from forebay.buffer.base.errors import InvalidInput, NotFound
from forebay.buffer.consumer import Consumer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.runtime import Runtime, RuntimeConfig, Source
from forebay.testing import ManualClock
from forebay.testing.ledger import LedgerSink

QUICK = RuntimeConfig(max_poll_interval=0.05)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


@contextmanager
def running(runtime: Runtime) -> Iterator[list[Any]]:
    """Run it in a thread, stop it at the end; gives what `run` returned or raised."""
    outcome: list[Any] = []

    def go() -> None:
        try:
            outcome.append(runtime.run(show_progress=False))
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


def awaits(runtime: Runtime) -> bool:
    return [source.waits_for for source in runtime.status().sources] == ["nothing was ever written to it"]


def objects(store: MemoryStore) -> list[str]:
    return [found.key for found in store.list()]


@pytest.mark.parametrize("group", [None, "etl"])
def test_missing_source_is_waited_for_and_nothing_is_created(store: MemoryStore, group: str | None) -> None:
    runtime = Runtime([Source(store, group=group)], LedgerSink(), QUICK)
    with running(runtime) as outcome:
        wait_for(lambda: awaits(runtime))
        assert objects(store) == []
    assert outcome[0].state == "stopped"
    assert objects(store) == []


@pytest.mark.parametrize("group", [None, "etl"])
def test_source_that_comes_later_is_read_from_its_beginning(store: MemoryStore, group: str | None) -> None:
    sink = LedgerSink()
    runtime = Runtime([Source(store, group=group)], sink, QUICK, random=NoPauses())
    with running(runtime):
        wait_for(lambda: awaits(runtime))
        said = fill(store, 3)
        wait_for(lambda: len(sink.rows) == 3)
    assert sink.values() == said


def test_group_that_starts_at_the_latest_gets_all_that_is_written_after_the_runtime_began(store: MemoryStore) -> None:
    sink = LedgerSink()
    runtime = Runtime([Source(store, group="etl", from_="latest")], sink, QUICK, random=NoPauses())
    with running(runtime):
        wait_for(lambda: awaits(runtime))
        said = fill(store, 3)
        wait_for(lambda: len(sink.rows) == 3)
    assert sink.values() == said


def test_manifest_that_only_a_consumer_made_is_waited_for(store: MemoryStore) -> None:
    """The reader's identity, which sinks keep positions by, is settled by the first write."""
    Consumer(store)
    sink = LedgerSink()
    runtime = Runtime([store], sink, QUICK, random=NoPauses())
    with running(runtime):
        wait_for(lambda: awaits(runtime))
        fill(store, 2)
        wait_for(lambda: len(sink.rows) == 2)


def test_consumer_of_an_unwritten_buffer_is_waited_for(store: MemoryStore) -> None:
    sink = LedgerSink()
    consumer = Consumer(store)
    runtime = Runtime([consumer], sink, QUICK, random=NoPauses())
    with running(runtime):
        wait_for(lambda: awaits(runtime))
        fill(store, 2)
        wait_for(lambda: len(sink.rows) == 2)
    assert {identity.reader for identity in sink.calls} == {consumer.reader.source}


def test_other_sources_are_read_meanwhile(store: MemoryStore) -> None:
    there = MemoryStore(f"{store.url}-there")
    fill(there, 3)
    sink = LedgerSink()
    with running(Runtime([store, there], sink, QUICK, random=NoPauses())):
        wait_for(lambda: len(sink.rows) == 3)


def test_topic_that_is_created_later_is_read(store: MemoryStore) -> None:
    sink = LedgerSink()
    runtime = Runtime([Source(store, group="etl")], sink, QUICK, random=NoPauses())
    with running(runtime):
        wait_for(lambda: awaits(runtime))
        create_topic(store, 2)
        with TopicProducer(store) as producer:
            producer.produce(b"a").result(PATIENCE)
        wait_for(lambda: len(sink.rows) == 1)


def test_awaited_source_can_be_removed_and_given_again(store: MemoryStore) -> None:
    runtime = Runtime([], LedgerSink(), QUICK)
    with running(runtime):
        wait_for(lambda: runtime.status().state == "running")
        runtime.add(store)
        with pytest.raises(InvalidInput, match="already"):
            runtime.add(store)
        runtime.remove(store)
        assert runtime.status().sources == ()
        runtime.add(store)


def test_warning_names_the_url_and_comes_again_every_minute(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    runtime = Runtime([store], LedgerSink(), QUICK, clock=clock)

    def warnings() -> int:
        return sum(f"nothing was ever written to {store.url}" in text for text in caplog.messages)

    with caplog.at_level(logging.WARNING), running(runtime):
        wait_for(lambda: awaits(runtime))
        assert warnings() == 1
        for _ in range(10):
            clock.advance(1)
        assert warnings() == 1
        wait_for(lambda: bool(clock.advance(1)) or warnings() == 2)


def test_run_until_caught_up_refuses_a_source_that_does_not_exist(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match=store.url):
        Runtime([Source(store, group="etl")], LedgerSink()).run(until_caught_up=True, show_progress=False)
    assert objects(store) == []
