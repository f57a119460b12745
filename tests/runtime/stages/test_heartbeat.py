"""The heartbeat of a runtime's group, on the threads that renew everything in the process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from filled import fill
from patience import PATIENCE

from forebay.buffer.base.errors import Denied, Fenced
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Cursor, cursor_key
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.envelope import unpack
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import Data, Outcome
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.stages.heartbeat import Heartbeat
from forebay.testing import FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    fill(store, 3)
    return store


def wait_for(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    pytest.fail("it did not happen in time")


def number(store: ObjectStore) -> int:
    head = Queue(store).read()
    assert isinstance(head, Head)
    return unpack(store.get(cursor_key("etl", head.groups["etl"].generation)).data, Cursor, "cursor").number


def fail(error: Fenced) -> None:
    raise AssertionError(error)


def test_idle_owner_writes_its_cursor_every_ten_seconds(store: MemoryStore) -> None:
    clock = ManualClock()
    heartbeat = Heartbeat(clock, fail)
    heartbeat.start(Consumer(store, group="etl", clock=clock))
    for beats in range(1, 6):
        clock.advance(10)
        wait_for(lambda beats=beats: number(store) == 1 + beats)
    heartbeat.stop()
    clock.advance(100)
    assert number(store) == 6


def test_heartbeat_that_fails_is_tried_again_within_the_interval(store: MemoryStore) -> None:
    class Denying(FaultyStore):
        refused = False

        def replace(self, key: str, data: Data, version: str) -> Outcome:
            if key.startswith("cursors/") and not self.refused:
                self.refused = True
                raise Denied("for the test")
            return super().replace(key, data, version)

    clock = ManualClock()
    denying = Denying(store)
    heartbeat = Heartbeat(clock, fail)
    heartbeat.start(Consumer(denying, group="etl", clock=clock))
    clock.advance(10)
    wait_for(lambda: denying.refused)
    wait_for(lambda: bool(clock.advance(0.5)) or number(store) == 2)
    assert clock.monotonic() < 20
    heartbeat.stop()


def test_fence_is_reported_once_and_ends_the_heartbeat(store: MemoryStore) -> None:
    clock = ManualClock()
    told: list[Fenced] = []
    heartbeat = Heartbeat(clock, told.append)
    heartbeat.start(Consumer(store, group="etl", clock=clock))
    Consumer(store, group="etl")
    before = number(store)
    clock.advance(10)
    wait_for(lambda: len(told) == 1)
    clock.advance(100)
    assert len(told) == 1
    assert number(store) == before


def test_unnamed_consumer_has_no_heartbeat(store: MemoryStore) -> None:
    clock = ManualClock()
    heartbeat = Heartbeat(clock, fail)
    heartbeat.start(Consumer(store, clock=clock))
    before = store.get("manifest").version
    clock.advance(100)
    heartbeat.stop()
    assert store.get("manifest").version == before


def test_heartbeat_that_was_never_started_can_be_stopped() -> None:
    Heartbeat(ManualClock(), fail).stop()
