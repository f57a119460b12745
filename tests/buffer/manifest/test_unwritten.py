"""A buffer that is read before it is written: the first writer decides the format, not a reader (rfcs/0005)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from forebay.buffer.base.errors import Corrupt, Fenced, NotFound, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import add_partitions, create_topic
from forebay.gc import Collector
from forebay.testing import Fault, FaultyStore, ManualClock
from forebay.testing.faults import WRITE_FAULTS


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}", clock=ManualClock())


def state_of(store: ObjectStore) -> Manifest | Head:
    return Queue(store).read_existing()


def produce(store: ObjectStore, *entries: bytes, **settings: Any) -> None:
    with Producer(store, manifest_path="manifest", **settings) as producer:
        for entry in entries:
            producer.produce(entry).result()


def read_all(consumer: Consumer) -> list[bytes]:
    return [entry for batch in consumer for entry in batch.entries]


class Meanwhile(FaultyStore):
    """A store in which something happens just before the first conditional write, which may then fail as well."""

    def __init__(self, inner: ObjectStore, happens: Callable[[], object], fault: Fault | None = None) -> None:
        super().__init__(inner)
        self._happens: Callable[[], object] | None = happens
        self._fault = fault

    def next_fault(self, kind: str) -> Fault | None:
        if kind not in ("create", "replace") or self._happens is None:
            return None
        happens, self._happens = self._happens, None
        happens()
        return self._fault


# The reader


def test_unnamed_consumer_leaves_an_empty_manifest_of_version_1(store: MemoryStore) -> None:
    Consumer(store)
    state = state_of(store)
    assert isinstance(state, Manifest)
    assert (state.count, state.next_sequence, state.epoch) == (0, 0, 1)


def test_consumer_opened_later_wins_before_anything_is_written(store: MemoryStore) -> None:
    first, second = Consumer(store), Consumer(store)
    with pytest.raises(Fenced):
        first.next_batch()
    assert second.next_batch() is None


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_claim_whose_answer_was_lost_is_made_again(store: MemoryStore, fault: Fault) -> None:
    consumer = Consumer(FaultyStore(store, {0: fault}, only={"create"}, clock=ManualClock()), clock=ManualClock())
    assert state_of(store).epoch == consumer.epoch


def test_consumer_refuses_a_buffer_whose_manifest_was_deleted(store: MemoryStore) -> None:
    store.put("segments/any.segment", b"x")
    with pytest.raises(Corrupt, match="was deleted"):
        Consumer(store)


# The first writer


def test_producer_of_opendata_keeps_version_1_and_the_claim(store: MemoryStore) -> None:
    consumer = Consumer(store)
    produce(store, b"a", profile="opendata")
    assert isinstance(state_of(store), Manifest)
    assert read_all(consumer) == [b"a"]
    consumer.ack_through(0)
    assert state_of(store).count == 0


def test_native_producer_makes_version_2_and_the_consumer_keeps_its_claim(store: MemoryStore) -> None:
    consumer = Consumer(store)
    produce(store, b"a", b"b")
    assert isinstance(state_of(store), Head)
    assert state_of(store).epoch == consumer.epoch
    assert read_all(consumer) == [b"a", b"b"]
    consumer.ack_through(0)
    with Consumer(store) as following:
        assert read_all(following) == [b"b"]


def test_consumer_opened_after_the_conversion_fences_the_one_from_before(store: MemoryStore) -> None:
    before = Consumer(store)
    produce(store, b"a")
    assert before.next_batch() is not None
    Consumer(store)
    with pytest.raises(Fenced):
        before.ack_through(0)
    with pytest.raises(Fenced):
        before.next_batch()


def test_consumer_fenced_before_the_conversion_stays_fenced(store: MemoryStore) -> None:
    fenced, owner = Consumer(store), Consumer(store)
    produce(store, b"a")
    with pytest.raises(Fenced):
        fenced.next_batch()
    assert read_all(owner) == [b"a"]


def test_manifest_of_version_1_that_was_written_to_stays_as_it_is(store: MemoryStore) -> None:
    produce(store, b"a", profile="opendata")
    consumer = Consumer(store)
    assert consumer.next_batch() is not None
    consumer.ack_through(0)
    produce(store, b"b")
    assert isinstance(state_of(store), Manifest)


def test_lasting_writer_converts(store: MemoryStore) -> None:
    Consumer(store)
    with Producer(store, writer_id="w") as producer:
        producer.produce(b"a", number=1).result()
    with Producer(store, writer_id="w") as producer:
        assert producer.last_number == 1


@pytest.mark.parametrize("open_reader", [lambda store: Consumer(store, group="g"), hold])
def test_reader_that_needs_version_2_converts(store: MemoryStore, open_reader: Callable[[Any], Any]) -> None:
    unnamed = Consumer(store)
    with open_reader(store):
        assert isinstance(state_of(store), Head)
    assert unnamed.next_batch() is None


def test_group_of_the_opendata_profile_is_refused_and_converts_nothing(store: MemoryStore) -> None:
    Consumer(store)
    with pytest.raises(Unsupported):
        Consumer(store, group="g", profile="opendata")
    assert isinstance(state_of(store), Manifest)


def test_partition_of_a_topic_that_was_read_too_early_is_converted(store: MemoryStore) -> None:
    create_topic(store, 1)
    partition = FolderStore(store, "p-00001")
    early = Consumer(partition)
    add_partitions(store, 2)
    assert isinstance(state_of(partition), Head)
    assert early.next_batch() is None


# Who comes between


def test_two_that_convert_at_once_make_one_buffer(store: MemoryStore) -> None:
    Consumer(store)
    between = Meanwhile(store, lambda: produce(store, b"rival"))
    produce(between, b"ours")
    assert read_all(Consumer(store)) == [b"rival", b"ours"]


def test_claim_between_read_and_conversion_is_kept(store: MemoryStore) -> None:
    fenced = Consumer(store)
    owners: list[Consumer] = []
    produce(Meanwhile(store, lambda: owners.append(Consumer(store))), b"a")
    assert state_of(store).epoch == owners[0].epoch
    assert read_all(owners[0]) == [b"a"]
    with pytest.raises(Fenced):
        fenced.next_batch()


def test_conversion_between_read_and_claim_leaves_the_claim_to_the_head(store: MemoryStore) -> None:
    before = Consumer(store)
    owner = Consumer(Meanwhile(store, lambda: produce(store, b"a")), clock=ManualClock())
    assert read_all(owner) == [b"a"]
    with pytest.raises(Fenced):
        before.next_batch()


def test_claim_in_doubt_that_was_converted_meanwhile_is_made_again(store: MemoryStore) -> None:
    """The lost claim is in the head, without an id: it might as well be a rival's."""

    class Converting(FaultyStore):
        def create(self, key: str, data: Any) -> Any:
            outcome = super().create(key, data)
            produce(store, b"a")
            return outcome

    faulty = Converting(store, {0: Fault.LOSE_ANSWER}, only={"create"})
    consumer = Consumer(faulty, clock=ManualClock())
    assert consumer.epoch == 2
    assert read_all(consumer) == [b"a"]


def test_version_1_append_between_read_and_conversion_is_kept_and_the_native_producer_is_told(
    store: MemoryStore,
) -> None:
    Consumer(store)
    between = Meanwhile(store, lambda: produce(store, b"rust", profile="opendata"))
    with contextlib.suppress(Unsupported), Producer(between) as producer, pytest.raises(Unsupported, match="version 1"):
        producer.produce(b"native").result()
    assert isinstance(state_of(store), Manifest)
    assert read_all(Consumer(store)) == [b"rust"]


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("at", [0, 1])
def test_conversion_and_first_append_with_a_fault_list_a_batch_once(store: MemoryStore, fault: Fault, at: int) -> None:
    consumer = Consumer(store)
    queue = Queue(
        FaultyStore(store, {at: fault}, only={"replace"}, clock=ManualClock()), clock=ManualClock(), random=Random(1)
    )
    queue.append([NewBatch("data/a")], version=2)
    assert [found.location for found in consumer.next_descriptors(9)] == ["data/a"]


def test_ack_in_doubt_across_the_conversion_is_recorded_once_it_returns(store: MemoryStore) -> None:
    faulty = FaultyStore(store, {0: Fault.LOSE_ANSWER}, only={"replace"}, clock=ManualClock())
    consumer = Consumer(faulty, clock=ManualClock())
    produce(store, b"a", b"b")
    assert consumer.next_batch() is not None
    consumer.ack_through(0)
    assert Consumer(store).acked == 0


# What was acknowledged before anything exists


def test_last_acked_before_the_first_write_is_skipped_and_recorded_later(store: MemoryStore) -> None:
    consumer = Consumer(store, last_acked=1)
    produce(store, b"0", b"1", b"2")
    assert read_all(consumer) == [b"2"]
    with Consumer(store) as following:
        assert following.acked == 1


def test_last_acked_before_the_first_write_of_version_1_is_skipped(store: MemoryStore) -> None:
    consumer = Consumer(store, last_acked=1)
    produce(store, b"0", b"1", b"2", profile="opendata")
    assert read_all(consumer) == [b"2"]


# The collector


def test_collector_deletes_nothing_beside_an_unwritten_manifest(store: MemoryStore) -> None:
    """A native producer may have stored its first batch, and pause before it lists it."""
    clock = ManualClock()
    store = MemoryStore("memory://unwritten-collected", clock=clock)
    queue = Queue(store, clock=clock)
    store.put("data/00000000000000000000000000.batch", b"x")
    clock.advance(10_000)
    Consumer(store)
    assert Collector(store, grace=600, clock=clock).collect_once().deleted == 0
    queue.append([NewBatch("data/00000000000000000000000000.batch")], version=2)
    assert store.get("data/00000000000000000000000000.batch")


def test_buffer_of_opendata_at_its_own_path_is_hinted_at_where_none_is_found() -> None:
    store = MemoryStore("memory://opendata-hint")
    with Producer(store, profile="opendata") as producer:
        producer.produce(b"x")
    with pytest.raises(NotFound, match="manifest is at ingest/manifest: pass that as the manifest path"):
        Queue(store).read_existing()
    assert Queue(store, "ingest/manifest").read_existing().next_sequence == 1
