"""Stores that take about one write a second of one object: nothing fails, and producers learn the pace."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from threading import Thread
from typing import Any

import pytest

from forebay.buffer.base.backoff import WriteSpacing
from forebay.buffer.base.errors import Timeout, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head import Head
from forebay.buffer.manifest.head_fields import Writer
from forebay.buffer.manifest.pace import Pace
from forebay.buffer.manifest.register import Limits, Register
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import Applied, NotApplied
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector
from forebay.testing import FaultyStore, ManualClock, ThrottledStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inner(request: pytest.FixtureRequest, clock: ManualClock) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}", clock=clock)


def add(name: str) -> Callable[[Any], Any]:
    return lambda value: {"names": [*(value or {"names": []})["names"], name]}


def holds(name: str) -> Callable[[Any], bool]:
    return lambda value: name in value["names"]


def open_register(store: Any, clock: ManualClock, **settings: Any) -> Register[Any]:
    return Register(
        store,
        "cell",
        decode=lambda data: json.loads(bytes(data)),
        encode=lambda value: json.dumps(value).encode(),
        clock=clock,
        random=Random(1),
        **settings,
    )


# The store


def test_store_takes_the_given_rate_of_writes_of_one_object(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 2.0, retry_after=0.5, clock=clock)
    first = store.create("a", b"1")
    assert isinstance(first, Applied)
    refused = store.replace("a", b"2", first.version)
    assert refused == NotApplied("429 TooManyRequests", condition_failed=False, throttled=True, retry_after=0.5)
    with pytest.raises(Unavailable, match="429"):
        store.put("a", b"2")
    store.put("b", b"other names have limits of their own")
    clock.advance(0.5)
    assert isinstance(store.replace("a", b"2", first.version), Applied)
    assert (store.applied["a"], store.throttled["a"]) == (2, 2)


# The register


def test_throttled_writes_use_up_no_attempts(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 1 / 30, clock=clock)
    register = open_register(store, clock, limits=Limits(max_attempts=1))
    for name in "abc":
        register.update(add(name), holds(name))
    assert store.throttled["cell"] > 2
    assert register.read().value == {"names": ["a", "b", "c"]}


def test_wait_that_the_store_asks_for_is_kept(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 1 / 20, retry_after=20.0, clock=clock)
    register = open_register(store, clock)
    register.update(add("a"), holds("a"))
    register.update(add("b"), holds("b"))
    assert store.throttled["cell"] == 1


def test_update_that_is_throttled_for_ever_ends_as_not_applied(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 1e-9, clock=clock)
    open_register(store, clock).update(add("a"), holds("a"))
    began = clock.monotonic()
    with pytest.raises(Timeout, match="nothing was applied"):
        open_register(store, clock).update(add("b"), holds("b"))
    assert clock.monotonic() - began < 70
    assert open_register(inner, clock).read().value == {"names": ["a"]}


class Rivals(FaultyStore):
    """Before any write from here, another writer has just written."""

    writes = 0

    def replace(self, key: str, data: Any, version: str) -> Any:
        self.writes += 1
        theirs = json.dumps({"names": ["a"], "writes": self.writes}).encode()
        assert isinstance(self.inner.replace(key, theirs, self.inner.get(key).version), Applied)
        return NotApplied("429", condition_failed=False, throttled=True)


def test_update_goes_on_past_its_time_while_any_writer_gets_on_and_ends_all_the_same(
    inner: MemoryStore, clock: ManualClock
) -> None:
    open_register(inner, clock).update(add("a"), holds("a"))
    store = Rivals(inner)
    began = clock.monotonic()
    with pytest.raises(Timeout, match="nothing was applied"):
        open_register(store, clock).update(add("b"), holds("b"))
    assert 500 < clock.monotonic() - began < 700


# The pace


def test_sole_writer_settles_near_what_the_store_takes(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 1.0, clock=clock)
    queue = Queue(store, clock=clock, random=Random(1))
    began = clock.monotonic()
    for number in range(100):
        queue.append([NewBatch(f"data/{number}")])
    assert 100 <= clock.monotonic() - began < 160
    assert store.throttled["manifest"] < 30


def test_spacing_is_forgotten_where_the_store_takes_more() -> None:
    spacing = WriteSpacing()
    spacing.note_throttled(alone=True)
    assert spacing.seconds == 1.0
    for _ in range(100):
        spacing.note_applied(0.0, throttled=False, waited=0.0)
    assert spacing.seconds == 0.0


def test_spacing_has_a_bound() -> None:
    spacing = WriteSpacing()
    for _ in range(100):
        spacing.note_throttled(alone=True)
    assert spacing.seconds == 4.0
    assert max(spacing.pause(Random(1), throttled, 0.0) for throttled in range(1, 1000)) <= 6.0


def test_producers_share_what_the_store_takes(clock: ManualClock) -> None:
    spacing = WriteSpacing()
    pace = Pace("me", spacing=spacing, clock=clock)

    def note(revision: int, **others: int) -> None:
        writers = {name: Writer(1, wrote_at) for name, wrote_at in {"me": revision, **others}.items()}
        pace.note(Head("id", revision, writers=writers), 0.0)

    note(10, a=8, b=9)
    assert pace.seconds() == 0, "nothing is throttled"
    spacing.note_throttled(alone=False)
    note(11, a=8, b=9)
    assert pace.seconds() == 3 * spacing.seconds
    clock.advance(50)
    note(20, a=8, b=19)
    assert pace.seconds() == 3 * spacing.seconds, "a writer that is throttled writes seldom"
    clock.advance(50)
    note(30, a=8, b=29)
    assert pace.seconds() == 2 * spacing.seconds, "the one that left is forgotten after a minute"


# All together


def run_until_done(clock: ManualClock, store: ThrottledStore, threads: list[Thread]) -> None:
    """Move the clock on whenever nobody asks the store for anything."""
    for thread in threads:
        thread.start()
    seen = -1
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.002)
        asked = sum(store.applied.values()) + sum(store.throttled.values())
        if asked == seen:
            clock.advance(0.05)
        seen = asked


def test_four_producers_of_a_throttled_manifest_make_everything_durable(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 1.0, clock=clock)
    failures: list[BaseException] = []

    def produce(who: int) -> None:
        try:
            # A thread that waits for a processor sees the others' back-offs as time that passes: allow for that.
            with Producer(store, retry_timeout=3600.0, clock=clock, random=Random(who)) as producer:
                for number in range(60):
                    handle = producer.produce(b"%d-%d" % (who, number))
                    if number % 6 == 5:
                        handle.result()
        except BaseException as error:  # noqa: BLE001 - the test tells
            failures.append(error)

    run_until_done(clock, store, [Thread(target=produce, args=(who,)) for who in range(4)])
    assert not failures
    found = [entry for batch in Consumer(inner) for entry in batch.entries]
    assert sorted(found) == sorted(b"%d-%d" % (who, number) for who in range(4) for number in range(60))
    for who in range(4):
        mine = [entry for entry in found if entry.startswith(b"%d-" % who)]
        assert mine == [b"%d-%d" % (who, number) for number in range(60)]
    assert store.throttled["manifest"] < 3 * store.applied["manifest"]


def test_flush_and_close_end_though_the_store_throttles(inner: MemoryStore, clock: ManualClock) -> None:
    store = ThrottledStore(inner, 1.0, clock=clock)

    def produce() -> None:
        with Producer(store, clock=clock, random=Random(1)) as producer:
            for number in range(10):
                producer.produce(b"%d" % number)
                producer.flush().result()

    run_until_done(clock, store, [Thread(target=produce)])
    assert len([entry for batch in Consumer(inner) for entry in batch.entries]) == 10


def test_acks_holds_and_collections_outlast_throttling(inner: MemoryStore, clock: ManualClock) -> None:
    with Producer(inner, flush_interval=10_000, clock=clock) as producer:
        for number in range(5):
            producer.produce(b"%d" % number)
            producer.flush().result()
    store = ThrottledStore(inner, 1.0, clock=clock)
    consumer = Consumer(store, group="g", clock=clock, random=Random(1))
    unnamed = Consumer(store, clock=clock, random=Random(2))
    with hold(store, ttl=1000, clock=clock, random=Random(3)):
        for batch in consumer:
            consumer.ack_through(batch.sequence)
        for batch in unnamed:
            unnamed.ack_through(batch.sequence)
        Collector(store, clock=clock, random=Random(4)).collect_once()
    consumer.close()
    unnamed.close()
    assert store.throttled["manifest"] > 0
    assert (consumer.acked, unnamed.acked) == (4, 4)
