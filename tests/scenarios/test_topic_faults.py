"""Topics under faults: rfcs/0005, "Topics".

A process dies or an answer is lost while a topic is made or grows: the count never falls, every partition below it
exists with every group of the topic, and repeating the call finishes it. Nothing is lost, doubled or put out of order
by producers and readers meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Barrier, Lock, Thread
from typing import Any

import pytest
from kinds import BYTES, KINDS, ROWS, Kind
from patience import PATIENCE

from forebay.buffer.base.errors import ForebayError, InvalidInput, NotFound, Unknown
from forebay.buffer.coordinator import WriteHandle
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import (
    Topic,
    TopicConsumer,
    TopicGroups,
    TopicProducer,
    add_partitions,
    create_topic,
    partition_for,
)
from forebay.buffer.topic.topic import LOOK_SECONDS, open_record
from forebay.testing import Crash, Fault, FaultyStore, ManualClock
from forebay.testing.faults import WRITE_FAULTS
from forebay.testing.servers import SeaweedServer

MOST_CALLS = 200
LONG = 10_000.0


def create(store: ObjectStore, kind: Kind = BYTES) -> None:
    create_topic(store, 3, schema=kind.schema, clock=ManualClock(), random=Random(1))


def create_typed(store: ObjectStore) -> None:
    create(store, ROWS)


def grow(store: ObjectStore) -> None:
    add_partitions(store, 4, clock=ManualClock(), random=Random(2))


def prepare_growth(store: ObjectStore, kind: Kind = BYTES) -> None:
    create_topic(store, 2, schema=kind.schema)
    for name in ("first", "second"):
        TopicConsumer(store, group=name, from_="latest").close()


def check_whole(store: ObjectStore, context: str) -> int:
    """Every partition that counts is there, with every group; return how many count."""
    try:
        record = open_record(store, clock=None, random=None).read().value
    except InvalidInput:
        pytest.fail(f"{context}: there is a buffer at the topic's URL")
    if record is None:
        return 0
    for number in range(record.partitions):
        assert list(store.list(f"p-{number:05}/manifest")), f"{context}: partition {number} counts and is not there"
        head = Queue(Topic(store).partition(number)).read()
        assert isinstance(head, Head)
        assert head.groups.keys() >= record.groups.keys(), f"{context}: partition {number} lacks a group"
        assert head.schemas == record.schemas, f"{context}: partition {number} has another schema"
    return record.partitions


STEPS: list[Any] = [
    pytest.param(lambda store: None, create, 0, 3, id="create"),
    pytest.param(prepare_growth, grow, 2, 4, id="add"),
    pytest.param(lambda store: None, create_typed, 0, 3, id="create typed"),
    pytest.param(lambda store: prepare_growth(store, ROWS), grow, 2, 4, id="add typed"),
]


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER])
@pytest.mark.parametrize(("before", "act", "least", "total"), STEPS)
def test_dying_at_any_store_call_leaves_a_topic_that_the_next_call_finishes(
    request: pytest.FixtureRequest,
    fault: Fault,
    *,
    before: Callable[[ObjectStore], None],
    act: Callable[[ObjectStore], None],
    least: int,
    total: int,
) -> None:
    for call in range(MOST_CALLS):
        inner = MemoryStore(f"memory://{request.node.name}-{call}")
        before(inner)
        store = FaultyStore(inner, {call: fault})
        crashed = False
        try:
            act(store)
        except Crash:
            crashed = True
        context = f"{fault.name} at call {call}"
        assert check_whole(inner, context) in {least, total}, context
        act(inner)
        assert check_whole(inner, context) == total, context
        if not crashed:
            assert call > 10, "the schedule should have more calls than that"
            return
    pytest.fail(f"the schedule has more than {MOST_CALLS} calls")


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize(("before", "act", "least", "total"), STEPS)
def test_trouble_with_any_write_ends_in_a_whole_topic_or_an_honest_error(
    request: pytest.FixtureRequest,
    fault: Fault,
    *,
    before: Callable[[ObjectStore], None],
    act: Callable[[ObjectStore], None],
    least: int,
    total: int,
) -> None:
    for write in range(MOST_CALLS):
        inner = MemoryStore(f"memory://{request.node.name}-{write}")
        before(inner)
        store = FaultyStore(inner, {write: fault}, only={"create", "replace"}, clock=ManualClock())
        finished = True
        try:
            act(store)
        except ForebayError:
            finished = False
        store.land_late_requests()
        context = f"{fault.name} at write {write}"
        assert check_whole(inner, context) in ({total} if finished else {least, total}), context
        act(inner)
        assert check_whole(inner, context) == total, context
        if write > store.calls["create"] + store.calls["replace"]:
            return
    pytest.fail(f"the schedule has more than {MOST_CALLS} writes")


def test_topic_grows_through_any_mixture_of_faults() -> None:
    finished = 0
    for seed in range(150):
        inner = MemoryStore(f"memory://topic-seeded-{seed}")
        store = FaultyStore.seeded(inner, seed, rate=0.3, clock=ManualClock())
        count = 0
        for step in range(4):
            clock, random = ManualClock(), Random(seed * 10 + step)
            with suppress(ForebayError):
                if step == 0:
                    create_topic(store, 2, clock=clock, random=random)
                elif step == 1:
                    TopicConsumer(store, group="etl", clock=clock, random=random)
                else:
                    add_partitions(store, 2 + step, clock=clock, random=random)
                    finished += 1
            record = open_record(inner, clock=None, random=None).read().value
            found = 0 if record is None else record.partitions
            assert found >= count, f"seed {seed}: the count fell"
            count = found
        store.land_late_requests()
        if not count:
            continue
        TopicConsumer(inner, group="etl").close()
        check_whole(inner, f"seed {seed}")
    assert finished > 50, "too few got through for the test to mean anything"


# Two things at once


class Interrupted(FaultyStore):
    """Just before call `at`, something else happens, without faults."""

    at: int
    happen: Callable[[], object]
    happened = False
    _once: Lock

    @classmethod
    def before_call(cls, inner: ObjectStore, at: int, happen: Callable[[], object]) -> Interrupted:
        store = cls(inner)
        store.at, store.happen, store._once = at, happen, Lock()
        return store

    def next_fault(self, kind: str) -> Any:
        with self._once:
            due = sum(self.calls.values()) >= self.at and not self.happened
            self.happened |= due
        if due:
            self.happen()
        return super().next_fault(kind)


def interrupt_everywhere(
    name: str,
    act: Callable[[ObjectStore], object],
    happen: Callable[[ObjectStore], object],
    check: Callable[[ObjectStore, bool, str], None],
) -> None:
    """Let `happen` come before each store call of `act` in turn."""
    for at in range(MOST_CALLS):
        inner = MemoryStore(f"memory://topic-{name}-{at}")
        prepare_growth(inner)
        store = Interrupted.before_call(inner, at, lambda inner=inner: happen(inner))  # type: ignore[misc]  # bound now
        act(store)
        check(inner, store.happened, f"before call {at}")
        if not store.happened:
            assert at > 10, "the schedule should have more calls than that"
            return
    pytest.fail(f"the schedule has more than {MOST_CALLS} calls")


def produce_one(store: ObjectStore, number: int, entry: bytes) -> None:
    with Producer(Topic(store).partition(number), flush_interval=LONG) as producer:
        producer.produce(entry)


def read_group(store: ObjectStore, group: str) -> list[bytes]:
    with TopicConsumer(store, group=group) as consumer:
        return sorted(entry for _, batch in consumer for entry in batch.entries)


@pytest.mark.parametrize("total", [3, 4, 6])
def test_two_who_add_partitions_at_once_end_with_the_higher_count(total: int) -> None:
    def act(store: ObjectStore) -> None:
        with suppress(InvalidInput):  # fewer than the other made
            grow(store)

    def check(inner: ObjectStore, happened: bool, context: str) -> None:
        assert check_whole(inner, context) == (max(4, total) if happened else 4), context

    interrupt_everywhere(f"two-{total}", act, lambda inner: _add_if_more(inner, total), check)


def test_two_who_create_a_topic_with_different_counts_end_with_one_and_a_refusal() -> None:
    for at in range(MOST_CALLS):
        inner = MemoryStore(f"memory://topic-two-creates-{at}")
        refused = []

        def create_other(inner: ObjectStore = inner, refused: list[int] = refused) -> None:
            try:
                create_topic(inner, 5)
            except InvalidInput:
                refused.append(5)

        store = Interrupted.before_call(inner, at, create_other)
        try:
            create(store)
        except InvalidInput:
            refused.append(3)
        count = check_whole(inner, f"before call {at}")
        assert sorted([count, *refused]) == ([3, 5] if store.happened else [3]), f"before call {at}"
        if not store.happened:
            return
    pytest.fail(f"the schedule has more than {MOST_CALLS} calls")


def _add_if_more(store: ObjectStore, total: int) -> None:
    with suppress(InvalidInput):
        add_partitions(store, total)


def test_group_that_is_made_while_partitions_are_added_misses_nothing_in_them() -> None:
    def register(inner: ObjectStore) -> None:
        TopicConsumer(inner, group="third", from_="latest").close()
        for number in range(Topic(inner).partitions):
            produce_one(inner, number, b"during %d" % number)

    def check(inner: ObjectStore, happened: bool, context: str) -> None:
        assert check_whole(inner, context) == 4, context
        if not happened:
            return
        for number in range(4):
            produce_one(inner, number, b"after %d" % number)
        found = read_group(inner, "third")
        assert [entry for entry in found if entry.startswith(b"after")] == [b"after %d" % n for n in range(4)], context
        during = [entry for entry in found if entry.startswith(b"during")]
        assert len(during) in {2, 4}, f"{context}: it was there before these were written"

    interrupt_everywhere("group-during-add", grow, register, check)


def test_partitions_that_are_added_while_a_group_is_made_are_read_by_it() -> None:
    def happen(inner: ObjectStore) -> None:
        grow(inner)
        for number in range(4):
            produce_one(inner, number, b"during %d" % number)

    def check(inner: ObjectStore, happened: bool, context: str) -> None:
        if happened:
            assert read_group(inner, "third") == [b"during %d" % n for n in range(4)], context

    interrupt_everywhere("add-during-group", lambda store: TopicConsumer(store, group="third").close(), happen, check)


def test_group_that_is_deleted_while_partitions_are_added_is_in_none_of_them() -> None:
    def check(inner: ObjectStore, happened: bool, context: str) -> None:
        topic = Topic(inner)
        assert topic.partitions == 4, context
        for number in range(4):
            head = Queue(topic.partition(number)).read()
            assert isinstance(head, Head)
            assert head.groups.keys() == topic.record.groups.keys(), f"{context}: partition {number}"

    interrupt_everywhere("delete-during-add", grow, lambda inner: TopicGroups(inner).delete("first"), check)


def test_buffer_and_topic_never_come_to_stand_at_one_url() -> None:
    for at in range(MOST_CALLS):
        inner = MemoryStore(f"memory://topic-or-buffer-{at}")

        def produce(inner: ObjectStore = inner) -> None:
            with suppress(InvalidInput), Producer(inner) as producer:
                producer.produce(b"x")

        store = Interrupted.before_call(inner, at, produce)
        with suppress(InvalidInput):
            create(store)
        try:
            assert Topic(inner).partitions == 3
        except InvalidInput:
            assert store.happened
            assert not list(inner.list("p-")), f"before call {at}: partitions in a buffer"
        else:
            assert not list(inner.list("data/")), f"before call {at}: batches beside partitions"
        if not store.happened:
            return
    pytest.fail("the schedule has too many calls")


def test_many_who_create_and_add_at_once_agree(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    for turn in range(3):
        store = open_store(f"file://{tmp_path}/{turn}")
        barrier = Barrier(6)

        def act(number: int, store: ObjectStore = store, barrier: Barrier = barrier) -> None:
            barrier.wait(timeout=PATIENCE)
            try:
                create_topic(store, 2)
                with suppress(InvalidInput):
                    add_partitions(store, 2 + number)
            except InvalidInput:
                pass  # somebody had added partitions by then
            except BaseException as error:  # noqa: BLE001 - told by the test
                errors.append(error)

        threads = [Thread(target=act, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=PATIENCE)
        assert errors == []
        assert check_whole(store, f"turn {turn}") >= 2


# Readers and writers meanwhile


class Told:
    """What a producer was told of each entry."""

    def __init__(self) -> None:
        self.handles: dict[bytes, WriteHandle[None]] = {}

    def answer(self, entry: bytes) -> str:
        try:
            self.handles[entry].result()
        except Unknown:
            return "unknown"
        except ForebayError:
            return "failed"
        return "durable"


def run_schedule(seed: int, kind: Kind) -> int:  # noqa: PLR0912 - a step is a branch
    """Produce, add partitions, read and take over in a random order, with faults on the writers' side."""
    random, clock = Random(seed), ManualClock()
    inner = MemoryStore(f"memory://topic-schedule-{seed}-{kind.name}")
    topic = create_topic(inner, 2, schema=kind.schema, random=random)
    store = FaultyStore.seeded(inner, seed, rate=0.1, clock=clock)
    told = Told()
    found: list[tuple[int, bytes]] = []
    consumer = TopicConsumer(inner, group="etl", clock=clock, random=random)
    producers: list[TopicProducer] = []
    for _ in range(2):
        with suppress(ForebayError):
            producers.append(TopicProducer(store, flush_interval=LONG, clock=clock, random=random))

    def read() -> None:
        for partition, batch in consumer:
            found.extend((partition, entry) for entry in kind.read(batch))
            consumer.ack_through(partition, batch.sequence)

    for number in range(40):
        step = random.random()
        if step < 0.6 and producers:
            who = random.randrange(len(producers))
            key = None if step < 0.2 else b"key-%d-%d" % (who, random.randrange(4))
            entry = b"%s %03d" % (key or b"none-%d" % who, number)
            with suppress(ForebayError):
                told.handles[entry] = producers[who].produce(kind.make(entry), key=key)
        elif step < 0.7:
            for producer in producers:
                producer.flush()
        elif step < 0.8:
            with suppress(ForebayError):
                add_partitions(store, topic.refresh().partitions + 1, clock=clock, random=random)
        elif step < 0.9:
            read()
        elif step < 0.95:
            consumer = TopicConsumer(inner, group="etl", clock=clock, random=random)
        else:
            clock.advance(LOOK_SECONDS)
    for producer in producers:
        with suppress(ForebayError):
            producer.close()
    store.land_late_requests()
    clock.advance(LOOK_SECONDS)
    read()
    consumer.close()

    entries = [entry for _, entry in found]
    durable = 0
    for entry in told.handles:
        answer = told.answer(entry)
        durable += answer == "durable"
        times = {"durable": {1}, "failed": {0}, "unknown": {0, 1}}[answer]
        assert entries.count(entry) in times, f"seed {seed}: {entry!r} was {answer} and is there {entries.count(entry)}"
    assert set(entries) <= told.handles.keys()
    for partition in range(topic.refresh().partitions):
        of_partition = [entry for number, entry in found if number == partition]
        for key in {entry.split()[0] for entry in of_partition}:
            of_key = [entry for entry in of_partition if entry.split()[0] == key]
            assert of_key == sorted(of_key), f"seed {seed}: {key!r} is out of order in partition {partition}"
    return durable


@KINDS
@pytest.mark.parametrize("block", range(2))
def test_producers_readers_and_growth_lose_double_and_reorder_nothing(block: int, kind: Kind) -> None:
    durable = sum(run_schedule(seed, kind) for seed in range(block * 25, (block + 1) * 25))
    assert durable > 200, "too few got through for the test to mean anything"


PRODUCE = textwrap.dedent("""
    import sys
    from forebay.buffer.topic import TopicProducer

    url, name = sys.argv[1], sys.argv[2].encode()
    with TopicProducer(url, flush_interval=0.02) as producer:
        for number in range(150):
            key = b"%s-%d" % (name, number % 6)
            producer.produce(b"%s %03d" % (key, number), key=key if number % 3 else None)
""")


def test_processes_that_write_to_every_partition_lose_and_double_nothing(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/topic"
    create_topic(url, 4)
    names = ["a", "b", "c"]
    writers = [subprocess.Popen([sys.executable, "-c", PRODUCE, url, name]) for name in names]
    expected = {
        b"%s-%d %03d" % (name.encode(), number % 6, number): number % 3 for name in names for number in range(150)
    }
    found: list[tuple[int, bytes]] = []
    try:
        with TopicConsumer(url, group="etl", max_poll_interval=0.1) as consumer:
            for partition, batch in consumer.batches(wait=60.0):
                found.extend((partition, entry) for entry in batch.entries)
                consumer.ack_through(partition, batch.sequence)
                if len(found) >= len(expected):
                    break
            assert [writer.wait() for writer in writers] == [0, 0, 0]
            found.extend((partition, entry) for partition, batch in consumer for entry in batch.entries)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert sorted(entry for _, entry in found) == sorted(expected)
    keyed = [(partition, entry) for partition, entry in found if expected[entry]]
    for partition, entry in keyed:
        assert partition == partition_for(entry.split()[0], 4)
    for key in {entry.split()[0] for _, entry in keyed}:
        of_key = [entry for _, entry in keyed if entry.split()[0] == key]
        assert of_key == sorted(of_key)
    with pytest.raises(NotFound):
        TopicGroups(url).describe("other")


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_topic_lives_on_a_real_server(weed: SeaweedServer, client: str) -> None:
    url, options = f"{weed.create_bucket(f'topic-{client}')}/topic", {**weed.storage_options, "client": client}
    create_topic(url, 2, storage_options=options)
    with pytest.raises(InvalidInput, match="is a topic"):
        Producer(url, storage_options=options)
    with TopicConsumer(url, group="etl", from_="latest", storage_options=options):
        assert add_partitions(url, 4, storage_options=options).after == 4
    with TopicProducer(url, storage_options=options) as producer:
        for number in range(40):
            producer.produce(b"%02d" % number, key=b"%d" % number)
    with TopicConsumer(url, group="etl", storage_options=options) as consumer:
        found = sorted(entry for _, batch in consumer for entry in batch.entries)
    assert found == [b"%02d" % number for number in range(40)]
