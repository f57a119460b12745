"""A topic's URL in the place of a buffer's: rfcs/0005, "Where a buffer's URL is asked for"."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from kinds import Kind, append_all, kind_in, values_of

import forebay
import forebay.buffer
import forebay.gc
from forebay.buffer.base.errors import Closed, Corrupt, Denied, Fenced, ForebayError, InvalidInput, Trimmed
from forebay.buffer.either.holds import hold
from forebay.buffer.either.ranges import read_range
from forebay.buffer.holds import HeldRange
from forebay.buffer.inspect.migrate import migrate
from forebay.buffer.inspect.verify import Severity, verify
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import HeldTopic, Topic, add_partitions, create_topic
from forebay.buffer.topic.batches import TopicFetchHandle
from forebay.cli import main
from forebay.testing import Crash, Fault, FaultyStore, ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    """A topic of three partitions, with 3, 4 and 5 batches, each a second after the one before in its partition."""
    store = MemoryStore(f"memory://{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.name)}/urls")
    create_topic(store, 3, schema=kind.schema)
    for number in range(3):
        append(Topic(store).partition(number), number + 3)
    return store


def append(buffer: ObjectStore, count: int) -> None:
    kind = kind_in(buffer)
    batches = [
        kind.upload(buffer, f"data/{i}", [f"{buffer.url[-5:]} {i}".encode()], 1000 * i, 1000 * i + 999)
        for i in range(count)
    ]
    append_all(Queue(buffer), batches)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def places(found: Any) -> list[tuple[int, int]]:
    """Partition and sequence of batches, or of descriptors."""
    return [(partition, what.sequence) for partition, what in found]


def everything() -> list[tuple[int, int]]:
    return [(number, sequence) for number in range(3) for sequence in range(number + 3)]


def held_in(store: ObjectStore) -> list[int]:
    """How many holds there are in each partition."""
    heads = [Queue(Topic(store).partition(number)).read() for number in range(Topic(store).partitions)]
    return [len(head.holds) for head in heads if isinstance(head, Head)]


def trim(buffer: ObjectStore, point: int) -> None:
    Queue(buffer).change_head(lambda head: head.trim(point, {}).touch(), lambda _head: False)


# All that take a URL

TAKING: dict[str, Callable[[MemoryStore], Any]] = {
    "TopicConsumer": lambda store: forebay.buffer.TopicConsumer(store).close(),
    "TopicProducer": lambda store: forebay.buffer.TopicProducer(store).close(),
    "add_partitions": lambda store: forebay.buffer.add_partitions(store, 3),
    "buffers_at": forebay.buffer.buffers_at,
    "create_topic": lambda store: forebay.buffer.create_topic(
        store, 3, schema=kind_in(Topic(store).partition(0)).schema
    ),
    "describe_topic": forebay.buffer.describe_topic,
    "hold": lambda store: forebay.hold(store).close(),
    "scan": lambda store: forebay.scan(store).to_table(),
    "read_range": lambda store: list(forebay.buffer.read_range(store)),
    "Collector": lambda store: forebay.gc.Collector(store).collect_once(),
    "open_store": lambda store: forebay.open_store(store.url),
}
REFUSING: dict[str, tuple[Callable[[MemoryStore], Any], str]] = {
    "Consumer": (forebay.Consumer, "TopicConsumer"),
    "Producer": (forebay.Producer, "TopicProducer"),
    "Groups": (lambda store: forebay.buffer.Groups(store).list(), "TopicGroups"),
    "migrate": (forebay.buffer.migrate, "is a topic: its partitions are of version 2"),
}


def test_everything_public_that_takes_a_url_is_known_to_take_a_topics_or_to_name_what_does() -> None:
    public = {
        name
        for module in (forebay, forebay.buffer, forebay.gc)
        for name in module.__all__
        if callable(getattr(module, name)) and takes_url(getattr(module, name))
    }
    assert public == TAKING.keys() | REFUSING.keys()


def takes_url(call: Any) -> bool:
    """Whether it opens something there; a report only says of what it is."""
    if is_dataclass(call) or (isinstance(call, type) and issubclass(call, Exception)):
        return False
    return "url" in inspect.signature(call).parameters


@pytest.mark.parametrize("name", TAKING)
def test_topic_is_taken(store: MemoryStore, name: str) -> None:
    TAKING[name](store)


@pytest.mark.parametrize("name", REFUSING)
def test_topic_is_refused_by_what_knows_one_sequence_and_it_says_what_to_use(store: MemoryStore, name: str) -> None:
    call, named = REFUSING[name]
    before = {found.key: store.get(found.key).version for found in store.list()}
    with pytest.raises(InvalidInput, match=named):
        call(store)
    assert {found.key: store.get(found.key).version for found in store.list()} == before


# Reading a range


def test_range_of_a_topic_comes_with_partitions_each_in_order(store: MemoryStore) -> None:
    found = list(read_range(Topic(store)))
    assert places(found) == everything()
    assert [values_of(batch) for partition, batch in found if partition == 1] == [
        [f"00001 {i}".encode()] for i in range(4)
    ]
    assert places(read_range(store.url)) == everything()


def test_range_of_a_topic_is_bounded_by_times(store: MemoryStore) -> None:
    assert places(read_range(Topic(store), moment(1), moment(3))) == [(n, i) for n in range(3) for i in (1, 2)]
    assert places(read_range(Topic(store), moment(3).isoformat(), "latest")) == [(1, 3), (2, 3), (2, 4)]
    assert places(read_range(Topic(store), "latest")) == []


def test_range_of_a_topic_is_fixed_by_the_call(store: MemoryStore) -> None:
    topic = Topic(store)
    found = read_range(topic)
    append_more(topic)
    add_partitions(store, 4)
    append(Topic(store).partition(3), 1)
    assert places(found) == everything()
    assert len(list(read_range(topic))) == 12 + 3 + 1, "a topic is looked at anew by every call"


def append_more(topic: Topic) -> None:
    for number in range(3):
        buffer = topic.partition(number)
        sequence = Queue(buffer).read().next_sequence
        append_all(Queue(buffer), [kind_in(buffer).upload(buffer, f"data/{sequence}", [b"more"])])


@pytest.mark.parametrize("settings", [{"first": 1}, {"last": 1}, {"first": "earliest", "last": 0}])
def test_range_by_sequence_has_to_name_a_partition(store: MemoryStore, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"another batch in each partition; name the partition.*p-00000"):
        read_range(store, **settings)
    assert [batch.sequence for batch in read_range(Topic(store).partition(2), 1, 3)] == [1, 2, 3]


def test_range_that_is_trimmed_meanwhile_says_in_which_partition(store: MemoryStore) -> None:
    found = read_range(Topic(store), threads=1)
    assert places([next(found)]) == [(0, 0)]
    buffer = Topic(store).partition(1)
    trim(buffer, 2)
    buffer.delete(["data/0", "data/1"])
    with pytest.raises(Trimmed, match=r"^partition 1: ") as caught:
        list(found)
    assert caught.value.first == 2


# Holding


def test_hold_on_a_topic_holds_every_partition_and_lets_go_of_all(store: MemoryStore) -> None:
    with hold(Topic(store), purpose="a test") as held:
        assert held_in(store) == [1, 1, 1]
        assert len(held) == 12
        assert [(part.first, part.last) for part in held.partitions] == [(0, 2), (0, 3), (0, 4)]
        held.check()
    assert held_in(store) == [0, 0, 0]
    held.close()
    with pytest.raises(Closed):
        held.check()


def test_hold_on_a_topics_url_is_the_same(store: MemoryStore) -> None:
    held = hold(store.url)
    assert isinstance(held, HeldTopic)  # type: ignore[unreachable]  # what stands at a URL is known only when it is read
    assert held_in(store) == [1, 1, 1]  # type: ignore[unreachable]
    held.close()


def test_partition_added_since_the_topic_was_opened_is_held_too(store: MemoryStore) -> None:
    topic = Topic(store)
    add_partitions(store, 4)
    with hold(topic):
        assert held_in(store) == [1, 1, 1, 1]


def test_held_batches_come_with_partitions_and_can_be_fetched_anywhere(store: MemoryStore) -> None:
    with hold(Topic(store), from_=moment(1), upto=moment(2)) as held:
        found = list(held.descriptors())
        assert places(found) == [(0, 1), (1, 1), (2, 1)]
        assert [values_of(TopicFetchHandle(store).fetch(one).batch) for one in found] == [
            [b"00000 1"],
            [b"00001 1"],
            [b"00002 1"],
        ]


def test_hold_keeps_the_collector_back_in_every_partition(store: MemoryStore) -> None:
    clock = ManualClock()
    retention = forebay.gc.Retention(max_bytes=1)
    with hold(Topic(store, clock=clock), ttl=10**9) as held:
        assert forebay.gc.Collector(store, retention=retention, clock=clock).collect_once().trimmed == 0
        assert places(held.descriptors()) == everything()
    assert forebay.gc.Collector(store, retention=retention, clock=clock).collect_once().trimmed == 12


@pytest.mark.parametrize("settings", [{"from_": 1}, {"upto": 1}])
def test_hold_by_sequence_has_to_name_a_partition(store: MemoryStore, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"another batch in each partition; name the partition.*p-00000"):
        hold(store, **settings)
    assert held_in(store) == [0, 0, 0]


@pytest.mark.parametrize("error", [Denied("it may not be written"), Crash()])
def test_hold_that_one_partition_refuses_is_let_go_of_in_the_others(store: MemoryStore, error: BaseException) -> None:
    class Refusing(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if key == "p-00002/manifest":
                raise error
            return super().replace(key, data, version)

    with pytest.raises(type(error)):
        hold(Refusing(store))
    assert held_in(store) == [0, 0, 0]


def test_hold_that_was_lost_in_one_partition_is_told_and_the_others_are_let_go_of(store: MemoryStore) -> None:
    held = hold(Topic(store))
    lost = held.partitions[1].hold_id
    Queue(Topic(store).partition(1)).change_head(lambda head: head.without_hold(lost), lambda _head: False)
    with pytest.raises(Fenced, match="p-00001"):
        held.close()
    assert held_in(store) == [0, 0, 0]
    held.close()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER, Fault.DROP, Fault.OWN_RETRY, Fault.BUSY])
def test_fault_at_any_call_leaves_a_whole_hold_or_none(store: MemoryStore, fault: Fault) -> None:
    for call in count():
        faulty = FaultyStore(store, {call: fault}, clock=ManualClock())
        try:
            held = hold(Topic(faulty, clock=ManualClock()))
        except ForebayError:
            assert held_in(store) == [0, 0, 0], f"{fault} at call {call} left a part of a hold"
            continue
        assert held_in(store) == [1, 1, 1], f"{fault} at call {call}"
        met = faulty.calls.total() > call
        if not met:
            break  # it has taken fewer calls than that
        held.close()
        assert held_in(store) == [0, 0, 0]
    assert call > 6, "a topic and three partitions take more calls than that"


def test_hold_of_a_partition_is_that_of_a_buffer(store: MemoryStore) -> None:
    with hold(Topic(store).partition(2), from_=1, upto=3) as held:
        assert isinstance(held, HeldRange)
        assert held_in(store) == [0, 0, 1]


# Migrating and verifying


def test_topic_has_nothing_to_migrate_and_says_so(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match=f"{store.url} is a topic: its partitions are of version 2"):
        migrate(store, others_stopped=True)


def test_every_partition_is_verified_and_the_report_sums_them_up(store: MemoryStore) -> None:
    report = verify(store)
    assert (report.url, report.severity, report.batches, report.entries) == (store.url, Severity.OK, 12, 12)
    assert [part.batches for part in report.partitions] == [3, 4, 5]
    damage(store)
    report = verify(store)
    assert (report.severity, report.missing, report.corrupt) == (Severity.DAMAGE, 1, 1)
    assert {(found.kind, found.key) for found in report.findings} == {
        ("corrupt", "p-00000/data/1"),
        ("missing", "p-00002/data/0"),
    }
    assert [part.severity for part in report.partitions] == [Severity.DAMAGE, Severity.OK, Severity.DAMAGE]


def damage(store: MemoryStore) -> None:
    store.put("p-00000/data/1", b"garbage")
    store.delete(["p-00002/data/0"])


def test_partition_that_cannot_be_read_keeps_no_other_from_being_verified(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(store)
    store.delete(["p-00001/manifest"])
    report = verify(store)
    assert report.severity is Severity.UNREADABLE
    assert [part.severity for part in report.partitions] == [Severity.DAMAGE, Severity.UNREADABLE, Severity.DAMAGE]
    assert (report.missing, report.corrupt) == (1, 1)
    assert "NOT ALL COULD BE READ" in str(report)
    assert "p-00001: COULD NOT BE READ: " in str(report.partitions[1])
    assert main(["verify", store.url]) == 2
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines() if "checked" in line] == [
        f"{store.url}/p-00000",
        f"{store.url}/p-00002",
    ]
    assert err.startswith("error: ")
    assert f"{store.url}/p-00001" in err


def test_damaged_record_is_damage_of_what_stands_there(store: MemoryStore) -> None:
    store.put("manifest", b"nonsense")
    assert verify(store).severity is Severity.DAMAGE
    with pytest.raises(Corrupt):
        forebay.gc.Collector(store).collect_once()
