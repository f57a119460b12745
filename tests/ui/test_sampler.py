"""What the page is told, in every state that a buffer and its store can be in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from threading import Thread
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from shown import OnePartitionDown, list_batches, read_batches

from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.either.schemas import evolve_schema
from forebay.buffer.eventlog import AuditTrail, open_event_log
from forebay.buffer.format.model import Metadata, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store.base import StoredObject
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, add_partitions, create_topic
from forebay.runtime.dead_letter import DeadLetter
from forebay.testing import Fault, FaultyStore, ManualClock
from forebay.ui.letters import Letters
from forebay.ui.rates import WINDOW_SECONDS
from forebay.ui.sampler import KEPT_POINTS, KEPT_READERS, NEWEST_BATCHES, SHOWN_COLUMNS, Sampler
from forebay.ui.subject import Subject
from forebay.ui.trail import KEPT_EVENTS, LOOKED_BACK, READ_AT_ONCE, Trail


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://ui-{request.node.name}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def sampler_of(store: ObjectStore, clock: ManualClock, **beside: Any) -> Sampler:
    beside = {"trail": None, "letters": None, **beside}
    return Sampler(Subject(store, clock=clock), interval=2.0, clock=clock, **beside)


def sampled(sampler: Sampler) -> dict[str, Any]:
    sampler.sample()
    return sampler.state()


class Switched(FaultyStore):
    """A store that can be switched off and on again."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.off: Fault | None = None
        self._choose = lambda _number: self.off


def test_before_the_first_look_there_is_nothing_to_show(store: MemoryStore, clock: ManualClock) -> None:
    state = sampler_of(store, clock).state()
    assert (state["condition"], state["seen"], state["error"], state["points"]) == ("starting", None, None, [])


def test_missing_buffer_is_reported_with_advice_and_shown_once_it_is_there(
    store: MemoryStore, clock: ManualClock
) -> None:
    sampler = sampler_of(store, clock)
    state = sampled(sampler)
    assert (state["condition"], state["error"]["kind"]) == ("missing", "NotFound")
    assert "nothing was ever written to this buffer, or its URL is wrong" in state["error"]["message"]
    assert state["error"]["hint"]
    list_batches(store, 1, clock)
    assert sampled(sampler)["condition"] == "live"


def test_live_buffer_is_shown_with_its_readers_batches_and_holds(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 20, clock, apart=1.0)
    read_batches(store, 5, "etl")
    with hold(store, from_=3, purpose="backfill", ttl=60, clock=clock):
        seen = sampled(sampler_of(store, clock))["seen"]
    assert (seen["is_topic"], seen["total"]["batches"], seen["total"]["entries"]) == (False, 20, 200)
    (group,) = seen["total"]["groups"]
    assert (group["name"], group["acked"], group["lag_batches"], group["lag_seconds"]) == ("etl", 4, 15, 14.0)
    assert [batch["sequence"] for batch in seen["newest"]] == list(range(19, 19 - NEWEST_BATCHES, -1))
    newest = seen["newest"][0]
    assert (newest["records"], newest["stored_bytes"], newest["raw_bytes"], newest["base_record"]) == (
        10,
        100,
        400,
        190,
    )
    (held,) = seen["parts"][0]["stats"]["holds"]
    assert (held["purpose"], held["first_sequence"]) == ("backfill", 3)


def test_version_1_is_shown_without_what_it_does_not_know(store: MemoryStore, clock: ManualClock) -> None:
    store.create("manifest", Manifest.empty("new").to_bytes())
    Queue(store).append([NewBatch("data/a", (Metadata(0, clock.now_ms(), b""),))])
    seen = sampled(sampler_of(store, clock))["seen"]
    assert (seen["total"]["batches"], seen["total"]["entries"], seen["total"]["writes"]) == (1, None, None)
    assert seen["newest"][0]["records"] is None
    json.dumps(seen)


def test_error_keeps_what_was_seen_and_says_since_when(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 3, clock)
    switched = Switched(store)
    sampler = sampler_of(switched, clock)
    good = sampled(sampler)
    switched.off = Fault.FAIL
    clock.advance(2)
    sampler.sample()
    clock.advance(2)
    stale = sampled(sampler)
    assert (stale["condition"], stale["seen"], stale["points"]) == ("stale", good["seen"], good["points"])
    assert (stale["error"]["kind"], stale["error"]["since_ms"]) == ("Unavailable", good["now_ms"] + 2000)
    assert "injected" in stale["error"]["message"]
    assert "keeps trying" in stale["error"]["hint"]
    switched.off = None
    assert (sampled(sampler)["condition"], sampler.state()["error"]) == ("live", None)


def test_store_that_was_never_read_is_broken(store: MemoryStore, clock: ManualClock) -> None:
    switched = Switched(store)
    switched.off = Fault.FAIL
    state = sampled(sampler_of(switched, clock))
    assert (state["condition"], state["seen"], state["error"]["kind"]) == ("broken", None, "Unavailable")


def test_error_that_nobody_foresaw_is_shown_too(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_batches(store, 1, clock)
    sampler = sampler_of(store, clock)
    sampler.sample()
    monkeypatch.setattr(store, "get_if_changed", lambda *_given: 1 // 0)
    assert (sampled(sampler)["condition"], sampler.state()["error"]["kind"]) == ("stale", "ZeroDivisionError")


def test_store_that_does_not_answer_is_told_of_while_it_is_waited_for(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 1, clock)
    switched = Switched(store)
    sampler = sampler_of(switched, clock)
    sampler.sample()
    switched.off = Fault.STALL
    looks = switched.calls.total()
    looking = Thread(target=sampler.sample, daemon=True)
    looking.start()
    while switched.calls.total() == looks:  # bounded by the suite's time limit
        looking.join(0.001)
    before = sampler.state()
    clock.advance(20)
    state = sampler.state()
    switched.release()
    looking.join()
    assert before["condition"] == "live"
    assert (state["condition"], state["seen"]["total"]["batches"]) == ("stale", 1)
    assert "has not answered for 20 seconds" in state["error"]["message"]
    assert sampler.state()["condition"] == "live"


def test_viewers_cost_the_store_nothing(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 3, clock)
    watched = FaultyStore(store)
    sampler = sampler_of(watched, clock)
    sampler.sample()
    before = dict(watched.calls)
    for _ in range(50):
        sampler.state()
    assert watched.calls == before


def test_looking_writes_nothing(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 200, clock)
    read_batches(store, 5, "etl")
    watched = FaultyStore(store)
    sampler_of(watched, clock).sample()
    assert set(watched.calls) <= {"get", "get_if_changed", "list"}


def test_history_is_bounded_and_given_from_a_number_on(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 1, clock)
    sampler = sampler_of(store, clock)
    for _ in range(KEPT_POINTS + 5):
        sampler.sample()
        clock.advance(2)
    numbers = [point["number"] for point in sampler.state()["points"]]
    assert numbers == list(range(6, KEPT_POINTS + 6))
    assert [point["number"] for point in sampler.state(after=KEPT_POINTS + 3)["points"]] == numbers[-2:]


def test_rates_are_told_from_look_to_look(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 10, clock)
    Consumer(store, group="etl").close()
    sampler = sampler_of(store, clock)
    first = sampled(sampler)["seen"]
    assert (first["in"], first["out"], first["writes_per_second"]) == ([None, None], {"etl": [None, None]}, None)
    clock.advance(2)
    list_batches(store, 8, clock)
    read_batches(store, 6, "etl")
    second = sampled(sampler)
    assert second["seen"]["in"] == [4.0, 40.0]
    assert second["seen"]["out"] == {"etl": [3.0, 30.0]}
    assert second["seen"]["writes_per_second"] == 1.0, "a writer was registered, and appended"
    assert second["points"][-1]["readers"]["etl"]["out"] == [3.0, 30.0]


def test_rates_are_means_over_a_window_and_forget_what_was_before(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 1, clock)
    sampler = sampler_of(store, clock)
    sampler.sample()
    clock.advance(2)
    list_batches(store, 10, clock)
    rates = []
    for _ in range(int(WINDOW_SECONDS / 2) + 1):
        rates.append(sampled(sampler)["seen"]["in"][0])
        clock.advance(2)
    assert rates[0] == 5.0
    assert all(later < earlier for earlier, later in pairwise(rates[:-1]))
    assert rates[-2:] == [pytest.approx(10 / WINDOW_SECONDS, abs=0.01), 0.0]


def test_group_that_goes_back_has_no_rate(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 10, clock)
    read_batches(store, 10, "etl")
    sampler = sampler_of(store, clock)
    sampler.sample()
    clock.advance(2)
    Groups(store).reset("etl", "earliest")
    assert sampled(sampler)["seen"]["out"] == {"etl": [None, None]}


def test_points_tell_of_the_readers_furthest_behind_only(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 20, clock)
    for number in range(KEPT_READERS + 2):
        read_batches(store, number + 1, f"g{number:02}")
    state = sampled(sampler_of(store, clock))
    assert sorted(state["points"][0]["readers"]) == [f"g{number:02}" for number in range(KEPT_READERS)]
    assert len(state["seen"]["total"]["groups"]) == KEPT_READERS + 2


def test_topic_is_shown_by_partition_and_grows(store: MemoryStore, clock: ManualClock) -> None:
    create_topic(store.url, 2, clock=clock)
    topic = Topic(store, clock=clock)
    for number in range(2):
        list_batches(topic.partition(number), number + 1, clock)
    sampler = sampler_of(store, clock)
    seen = sampled(sampler)["seen"]
    assert seen["is_topic"]
    assert [part["stats"]["batches"] for part in seen["parts"]] == [1, 2]
    assert seen["total"]["batches"] == 3
    assert sorted(batch["partition"] for batch in seen["newest"]) == [0, 1, 1]
    add_partitions(store.url, 3, clock=clock)
    clock.advance(2)
    seen = sampled(sampler)["seen"]
    assert [part["url"] for part in seen["parts"]] == [f"{store.url}/p-{number:05}" for number in range(3)]
    assert seen["in"] == [None, None], "it is not the same sum as before"


def test_url_may_become_a_topic_later(store: MemoryStore, clock: ManualClock) -> None:
    sampler = sampler_of(store, clock)
    assert sampled(sampler)["condition"] == "missing"
    create_topic(store.url, 2, clock=clock)
    assert sampled(sampler)["seen"]["is_topic"]


def test_partition_that_cannot_be_read_is_marked_and_the_others_are_shown(
    store: MemoryStore, clock: ManualClock
) -> None:
    create_topic(f"{store.url}/topic", 2, clock=clock)
    topic = OnePartitionDown(store)
    for number in range(2):
        list_batches(FolderStore(topic, f"p-{number:05}"), 2, clock)
    sampler = sampler_of(topic, clock)
    sampler.sample()
    topic.down = True
    state = sampled(sampler)
    assert state["condition"] == "live"
    up, down = state["seen"]["parts"]
    assert (up["error"], down["error"]["kind"], down["stats"]["batches"]) == (None, "Unavailable", 2)


# Beside the buffer


@pytest.fixture
def trail(request: pytest.FixtureRequest, store: MemoryStore, clock: ManualClock) -> Iterator[AuditTrail]:
    with open_event_log(f"memory://ui-log-{request.node.name}", clock=clock) as log:
        list_batches(store, 1, clock)
        yield AuditTrail(log)


def trail_of(store: MemoryStore, trail: AuditTrail) -> Trail:
    return Trail(trail._log, store.url)


def test_halt_stands_until_the_reader_goes_on(store: MemoryStore, clock: ManualClock, trail: AuditTrail) -> None:
    sampler = sampler_of(store, clock, trail=trail_of(store, trail))
    trail.record("runtime.resumed", store.url, group="etl", after=None)
    trail.record("runtime.halted", store.url, group="etl", acked=1, error="Halted: batch 2 cannot be used")
    shown = sampled(sampler)["seen"]["trail"]
    assert [event["kind"] for event in shown["events"]] == ["runtime.halted", "runtime.resumed"]
    (stopped,) = shown["stopped"]
    assert (stopped["group"], stopped["level"]) == ("etl", "critical")
    assert stopped["text"] == "etl halted: Halted: batch 2 cannot be used"
    trail.record("runtime.resumed", store.url, group="etl", after=1)
    assert sampled(sampler)["seen"]["trail"]["stopped"] == []


def test_events_of_other_buffers_are_left_out(store: MemoryStore, clock: ManualClock, trail: AuditTrail) -> None:
    sampler = sampler_of(store, clock, trail=trail_of(store, trail))
    for buffer in (f"{store.url}-2", "memory://another", f"{store.url}/p-00001"):
        trail.record("runtime.fenced", buffer, group="etl", error="Fenced")
    shown = sampled(sampler)["seen"]["trail"]
    assert [event["buffer"] for event in shown["events"]] == [f"{store.url}/p-00001"]


def test_requests_of_one_sweep_are_summed_and_an_unfinished_one_has_no_end(
    store: MemoryStore, clock: ManualClock, trail: AuditTrail
) -> None:
    sampler = sampler_of(store, clock, trail=trail_of(store, trail))
    assert sampled(sampler)["seen"]["trail"]["sweep"] is None
    begun_ms = clock.now_ms()
    for _ in range(2):
        trail.record("delete.started", store.url, objects=["data/a", "data/b"])
        clock.advance(1)
        trail.record("delete.finished", store.url, objects=["data/a", "data/b"], failed={"data/b": "denied"})
    expected = {"started_ms": begun_ms, "finished_ms": begun_ms + 2000, "deleted": 2, "failed": 2}
    shown = sampled(sampler)["seen"]["trail"]
    assert shown["sweep"] == expected
    assert [event["text"] for event in shown["events"]] == ["the collector deleted 2 objects, and 2 could not be"]
    trail.record("delete.started", store.url, objects=["data/b"])
    assert sampled(sampler)["seen"]["trail"]["sweep"] == {**expected, "finished_ms": None}, "it goes on, or has died"
    clock.advance(3600)
    trail.record("delete.started", store.url, objects=["data/c"])
    sweep = sampled(sampler)["seen"]["trail"]["sweep"]
    assert (sweep["started_ms"], sweep["finished_ms"], sweep["deleted"]) == (clock.now_ms(), None, 0)
    trail.record("delete.finished", store.url, objects=["data/c"], failed={})
    shown = sampled(sampler)["seen"]["trail"]
    assert [event["text"] for event in shown["events"]][:-1] == ["the collector deleted 1 object"]


def test_long_trail_is_read_in_pieces_from_not_too_far_back(
    store: MemoryStore, clock: ManualClock, trail: AuditTrail
) -> None:
    for number in range(LOOKED_BACK + 100):
        trail.record("runtime.resumed", store.url, group="etl", after=number)
    sampler = sampler_of(store, clock, trail=trail_of(store, trail))
    newest = [sampled(sampler)["seen"]["trail"]["events"][0]["text"] for _ in range(LOOKED_BACK // READ_AT_ONCE)]
    assert newest[0] == f"etl goes on after batch {99 + READ_AT_ONCE}"
    assert newest[-1] == f"etl goes on after batch {99 + LOOKED_BACK}"
    assert len(sampler.state()["seen"]["trail"]["events"]) == KEPT_EVENTS


def test_trail_that_cannot_be_read_does_not_hide_the_buffer(
    store: MemoryStore, clock: ManualClock, trail: AuditTrail
) -> None:
    sampler = sampler_of(store, clock, trail=trail_of(store, trail))
    trail._log.close()
    state = sampled(sampler)
    assert (state["condition"], state["seen"]["trail"]["error"]["kind"]) == ("live", "Closed")


def test_dead_letters_are_counted_with_their_reasons(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 1, clock)
    letters = MemoryStore(f"{store.url}-letters")
    sampler = sampler_of(store, clock, letters=Letters(Subject(letters, clock=clock)))
    assert sampled(sampler)["seen"]["dead_letters"]["batches"] == 0, "nobody has made that buffer yet"
    letter = DeadLetter("memory://a", "0" * 32, "etl", "1" * 32, 7, "data/x", 0, 9, "ValueError: not mine")
    second = msgspec.structs.replace(letter, first_entry=2, last_entry=9, indexes=[2, 9], error="another")
    metadata = tuple(
        Metadata(10 * n, clock.now_ms(), msgspec.json.encode(found)) for n, found in enumerate([letter, second])
    )
    Queue(letters).append([NewBatch("data/a", metadata), NewBatch("data/b")])
    shown = sampled(sampler)["seen"]["dead_letters"]
    assert shown["batches"] == 2
    assert shown["newest"][0]["error"] == "", "somebody put it there by hand"
    assert [(found["group"], found["sequence"], found["place"], found["error"]) for found in shown["newest"][1:]] == [
        ("etl", 7, "entries 2, 9", "another"),
        ("etl", 7, "entries 0 to 9", "ValueError: not mine"),
    ]


def test_no_secret_of_the_store_is_in_what_is_told(clock: ManualClock) -> None:
    options = {"key": "AKIASECRETKEY", "secret": "sEcReTvAlUe", "endpoint_url": "http://127.0.0.1:1"}
    store = open_store("s3://nowhere/clicks", options)
    state = json.dumps(sampled(sampler_of(store, clock)))
    assert '"condition": "broken"' in state
    assert "SECRET" not in state.upper()


def test_closing_ends_the_thread_at_once(store: MemoryStore, clock: ManualClock) -> None:
    sampler = sampler_of(store, clock)  # of a clock that nobody moves
    sampler.start()
    while not clock._waiters:  # bounded by the suite's time limit
        sampler._thread.join(0.001)
    sampler.close()
    assert not sampler._thread.is_alive()
    sampler.close()


def test_look_that_raises_no_error_is_shown_like_one_and_the_next_goes_on(
    store: MemoryStore, clock: ManualClock
) -> None:
    class Exiting(FaultyStore):
        is_exiting = True

        def get(self, key: str) -> StoredObject:
            if self.is_exiting:
                raise SystemExit("from the store")
            return super().get(key)

    list_batches(store, 1, clock)
    exiting = Exiting(store)
    sampler = sampler_of(exiting, clock)
    shown = sampled(sampler)
    assert (shown["condition"], shown["error"]["kind"]) == ("broken", "SystemExit")
    exiting.is_exiting = False
    assert sampled(sampler)["condition"] == "live"


# Typed buffers

SCHEMA = pa.schema([pa.field("user", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))])
COLUMNS = [("user", "int64 not null"), ("tags", "list<string>")]


def test_buffer_of_bytes_has_no_schema(store: MemoryStore, clock: ManualClock) -> None:
    list_batches(store, 1, clock)
    assert sampled(sampler_of(store, clock))["seen"]["schema"] is None


def test_schema_of_a_typed_buffer_is_shown_and_followed(store: MemoryStore, clock: ManualClock) -> None:
    Producer(store, schema=SCHEMA).close()
    sampler = sampler_of(store, clock)
    assert sampled(sampler)["seen"]["schema"] == {"version": 0, "count": 2, "columns": COLUMNS}
    evolve_schema(store, pa.schema([*SCHEMA, pa.field("page", pa.string())]))
    wider = {"version": 1, "count": 3, "columns": [*COLUMNS, ("page", "string")]}
    assert sampled(sampler)["seen"]["schema"] == wider


def test_schema_of_a_topic_is_that_of_its_record(store: MemoryStore, clock: ManualClock) -> None:
    create_topic(store, 2, schema=SCHEMA)
    sampler = sampler_of(store, clock)
    assert sampled(sampler)["seen"]["schema"]["version"] == 0
    evolve_schema(store, pa.schema([*SCHEMA, pa.field("page", pa.string())]))
    seen = sampled(sampler)["seen"]
    assert (seen["schema"]["version"], seen["schema"]["count"]) == (1, 3)
    assert {len(part["stats"]["schemas"]) for part in seen["parts"]} == {1}, "partitions follow with their next append"


def test_columns_beyond_the_first_are_only_counted(store: MemoryStore, clock: ManualClock) -> None:
    many = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(SHOWN_COLUMNS + 5)])
    Producer(store, schema=many).close()
    shown = sampled(sampler_of(store, clock))["seen"]["schema"]
    assert (shown["count"], len(shown["columns"])) == (SHOWN_COLUMNS + 5, SHOWN_COLUMNS)


def test_schema_that_is_missing_is_told_beside_what_can_be_seen(store: MemoryStore, clock: ManualClock) -> None:
    Producer(store, schema=SCHEMA).close()
    store.delete([info.key for info in store.list("schemas/")])
    state = sampled(sampler_of(store, clock))
    assert (state["condition"], state["seen"]["total"]["batches"]) == ("live", 0)
    assert state["seen"]["schema"]["error"]["kind"] == "Corrupt"
