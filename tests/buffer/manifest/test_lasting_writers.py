"""Lasting writers: rfcs/0005. Their names last, however many there are, and the head does not grow with them.

A writer's number does not depend on what its batches hold, so these run on bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from forebay.buffer.base import names
from forebay.buffer.base.errors import Backpressure, Corrupt, InvalidInput, Timeout, Unknown
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import NewBatch
from forebay.buffer.inspect.describe import describe_all
from forebay.buffer.inspect.findings import Severity
from forebay.buffer.inspect.verify import verify
from forebay.buffer.manifest import Head, Queue, head
from forebay.buffer.manifest.decode import read_writer_node
from forebay.buffer.manifest.head import KEPT_LASTING, WRITER_BUCKETS, bucket_of
from forebay.buffer.manifest.head_fields import Bucket, Writer
from forebay.buffer.manifest.lasting_writers import forget_lasting_writer, list_lasting_writers
from forebay.buffer.manifest.register import Limits
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.cli import main
from forebay.gc import Collector
from forebay.testing import Fault, FaultyStore, ManualClock

MANY = 4 * KEPT_LASTING
"""More names than a head keeps."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(request: pytest.FixtureRequest, clock: ManualClock) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}", clock=clock)


def open_queue(store: Any, writer_id: str | None = None, **settings: Any) -> Queue:
    return Queue(store, writer_id=writer_id, clock=ManualClock(), **settings)


def register(store: Any, first: int, end: int) -> None:
    for number in range(first, end):
        open_queue(store, f"pod-{number}").register_writer()


def head_of(store: Any) -> Head:
    state = Queue(store).read()
    assert isinstance(state, Head)
    return state


def buckets_in(store: Any) -> list[str]:
    return [found.key for found in store.list("writers/")]


def produce(store: Any, name: str, *numbers: int) -> int | None:
    """Numbered calls of a producer that starts anew; returns what it finds durable."""
    with Producer(store, writer_id=name, flush_interval=0.01) as producer:
        before = producer.last_number
        for number in numbers:
            producer.produce(b"%s %d" % (name.encode(), number), number=number)
    return before


def entries_in(store: Any) -> list[bytes]:
    return [entry for batch in Consumer(store) for entry in batch.entries]


def test_ordinary_producer_writes_to_a_buffer_with_many_lasting_writers(store: MemoryStore) -> None:
    register(store, 0, MANY)
    with Producer(store, flush_interval=0.01) as producer:
        producer.produce(b"x").result()
    assert entries_in(store) == [b"x"]


def test_lasting_writer_that_comes_back_after_many_others_stores_nothing_twice(store: MemoryStore) -> None:
    assert produce(store, "orders", 1, 2) is None
    register(store, 0, MANY)
    assert "=orders" not in head_of(store).writers, "it was not sealed, so this shows nothing"
    assert produce(store, "orders", 1, 2, 3) == 2
    assert entries_in(store) == [b"orders 1", b"orders 2", b"orders 3"]


def test_more_writers_at_work_than_a_head_keeps_store_everything_once(store: MemoryStore) -> None:
    """In turn, so that each of them was sealed since its last append; and each repeats what it has stored."""
    queues = [open_queue(store, f"copy-{number}") for number in range(MANY)]
    for turn in (1, 2):
        for number, queue in enumerate(queues):
            assert queue.resume() == turn - 1
            queue.append([NewBatch(f"data/{number}-{turn}")], number=turn)
    listed = [batch.location for batch in Queue(store).descriptors(0, 10**6)]
    assert sorted(listed) == sorted(f"data/{number}-{turn}" for number in range(MANY) for turn in (1, 2))
    assert len(head_of(store).writers) <= 3 * KEPT_LASTING


def test_head_and_append_stay_flat_however_many_names_there_are(store: MemoryStore) -> None:
    def cost(seed: int) -> tuple[int, int]:
        """The bytes of the head, and the requests of one append to a manifest that was seen before."""
        watched = FaultyStore(store)
        queue = open_queue(watched, random=Random(seed))  # by its id it may be its turn to seal, which costs more
        queue.append([NewBatch("data/first")])
        before = watched.calls.total()
        queue.append([NewBatch("data/second")])
        return len(store.get("manifest").data), watched.calls.total() - before

    register(store, 0, MANY)
    few = cost(1)
    register(store, MANY, 4 * MANY)
    many = cost(2)
    assert many[0] <= 1.1 * few[0] + WRITER_BUCKETS * 32
    assert many[1] <= few[1]
    assert head_of(store).lasting_writers == 4 * MANY


def test_names_are_counted_once_wherever_they_are(store: MemoryStore) -> None:
    register(store, 0, MANY)
    sealed = [name for name in list_lasting_writers(open_queue(store)) if f"={name}" not in head_of(store).writers]
    for name in sealed[:3]:
        produce(store, name, 1)
    assert head_of(store).lasting_writers == MANY == len(list_lasting_writers(open_queue(store)))
    (stats,) = describe_all(store)
    assert stats.lasting_writers == MANY


class Meanwhile(FaultyStore):
    """Lets others act right after the n-th conditional write, before its answer is looked at."""

    def __init__(self, inner: Any, write: int, fault: Fault, act: Callable[[], object]) -> None:
        super().__init__(inner, {write: fault}, only={"replace"})
        self._number, self._act = write, act

    def replace(self, key: str, data: Any, version: str) -> Any:
        is_it = self.calls["replace"] == self._number
        outcome = super().replace(key, data, version)
        if is_it:
            self._act()
        return outcome


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP, Fault.OWN_RETRY])
def test_append_in_doubt_of_a_writer_that_was_sealed_meanwhile_is_found_out(store: MemoryStore, fault: Fault) -> None:
    open_queue(store).append([NewBatch("data/0")])
    # The first write registers the writer, the second appends.
    watched = Meanwhile(store, 1, fault, lambda: register(store, 0, MANY))
    queue = open_queue(watched, "orders")
    queue.append([NewBatch("data/1")], number=7)
    assert [batch.location for batch in Queue(store).descriptors(0, 9)] == ["data/0", "data/1"]
    assert open_queue(store, "orders").resume() == 7


def test_writer_that_was_removed_with_an_append_in_doubt_is_told_that_nobody_knows(store: MemoryStore) -> None:
    open_queue(store).append([NewBatch("data/0")])
    watched = Meanwhile(store, 1, Fault.LOSE_ANSWER, lambda: forget_lasting_writer(open_queue(store), "orders"))
    with pytest.raises(Unknown):
        open_queue(watched, "orders").append([NewBatch("data/1")], number=7)


def test_writer_that_appends_while_it_is_being_sealed_keeps_its_number() -> None:
    idle = {"=busy": Writer(1, 3), "=idle": Writer(4, 2)}
    seen = Head("b" * 32, revision=5, writers=idle)
    changed = seen.append((NewBatch("data/1"),), "=busy", 2)
    sealed = changed.seal_writers(0, None, Bucket(names.at_time(1), 2), idle)
    assert sealed.writers == {"=busy": Writer(2, 6, sealed=True)}
    assert sealed.lasting_writers == 2


class Forgetting(FaultyStore):
    """Lets somebody forget a writer right after the first bucket with its name was stored."""

    forgotten = ""

    def put(self, key: str, data: Any) -> str:
        version = super().put(key, data)
        if key.startswith("writers/") and not self.forgotten:
            self.forgotten = next(iter(read_writer_node(data, key).numbers)).removeprefix("=")
            assert forget_lasting_writer(open_queue(self.inner), self.forgotten)
        return version


def test_writer_that_is_forgotten_while_it_is_being_sealed_does_not_come_back(store: MemoryStore) -> None:
    """Its number would come back, too, and a producer that counts from 1 again would store nothing."""
    for number in range(2 * KEPT_LASTING):
        open_queue(store, f"pod-{number}").append([NewBatch(f"data/{number}")], number=7)
    watched = Forgetting(store)
    register(watched, 2 * KEPT_LASTING, MANY)
    assert watched.forgotten
    assert watched.forgotten not in list_lasting_writers(open_queue(store))
    assert open_queue(store, watched.forgotten).resume() == 0
    assert len(list_lasting_writers(open_queue(store))) == MANY - 1


def test_bucket_that_was_replaced_meanwhile_is_left_as_it_is() -> None:
    """It holds writers that the one made from the older bucket lacks."""
    seen = Head("b" * 32, writers={"=a": Writer(1, 3)}, writer_buckets={0: Bucket(names.at_time(2), 7)})
    assert seen.seal_writers(0, None, Bucket(names.at_time(3), 1), seen.writers) is seen


def test_two_that_seal_one_bucket_lose_no_writer(store: MemoryStore) -> None:
    register(store, 0, 2 * KEPT_LASTING)
    sealers = [open_queue(store, f"sealer-{number}", random=Random(number)) for number in range(2)]
    for sealer in sealers:
        sealer.read()
        sealer.seal_if_due()
    for sealer in sealers:
        sealer.register_writer()
    expected = {*(f"pod-{number}" for number in range(2 * KEPT_LASTING)), "sealer-0", "sealer-1"}
    assert set(list_lasting_writers(open_queue(store))) == expected


def test_sealer_that_slept_over_a_collection_does_not_refer_to_its_swept_bucket(
    store: MemoryStore, clock: ManualClock
) -> None:
    register(store, 0, MANY)
    name = next(name for i in range(1000) if head_of(store).seal_turn(f"={(name := f'sealer-{i}')}") == 0)
    sealer = Queue(store, writer_id=name, clock=clock)
    sealer.read()
    before = set(buckets_in(store))
    sealer.seal_if_due()
    made = set(buckets_in(store)) - before
    assert made
    clock.advance(10_000)
    Collector(store, clock=clock).collect_once()
    assert not made & set(buckets_in(store))
    sealer.register_writer()
    assert set(list_lasting_writers(open_queue(store))) == {*(f"pod-{number}" for number in range(MANY)), name}
    assert verify(store).severity == Severity.OK


def test_buckets_in_use_outlive_every_batch_and_others_are_swept(store: MemoryStore, clock: ManualClock) -> None:
    for round_ in range(4):
        register(store, round_ * MANY, (round_ + 1) * MANY)
        clock.advance(10_000)
    consumer = Consumer(store, clock=clock)
    open_queue(store).append([NewBatch(f"data/{names.mint(clock, Random(1))}.batch")])
    consumer.next_descriptors(1)
    consumer.ack_through(0)
    clock.advance(10_000)
    for _ in range(2):
        Collector(store, clock=clock).collect_once()
    found = head_of(store)
    assert found.gc_floor > max(bucket.name for bucket in found.writer_buckets.values())
    assert buckets_in(store) == sorted(f"writers/{bucket.name}.writers" for bucket in found.writer_buckets.values())
    assert len(list_lasting_writers(open_queue(store))) == 4 * MANY


def test_buckets_of_names_that_were_all_forgotten_are_swept(store: MemoryStore, clock: ManualClock) -> None:
    register(store, 0, MANY)
    for name in list_lasting_writers(open_queue(store)):
        assert forget_lasting_writer(open_queue(store), name)
    assert buckets_in(store)
    clock.advance(10_000)
    Collector(store, clock=clock).collect_once()
    assert buckets_in(store) == []


def sealed_name_in(store: Any) -> str:
    """One whose number is in a bucket alone, beside others in that bucket."""
    found = head_of(store)
    return next(
        name
        for name in list_lasting_writers(open_queue(store))
        if f"={name}" not in found.writers and found.writer_buckets[bucket_of(f"={name}")].count > 1
    )


def test_name_is_forgotten_though_the_collector_passes_the_name_of_its_new_bucket(
    store: MemoryStore, clock: ManualClock
) -> None:
    class Passing(FaultyStore):
        """A collection raises the floor after the first bucket was stored."""

        def put(self, key: str, data: Any) -> str:
            version = super().put(key, data)
            if self.calls["put"] == 1:
                clock.advance(10_000)
                Collector(store, clock=clock).collect_once()
            return version

    register(store, 0, MANY)
    name = sealed_name_in(store)
    assert forget_lasting_writer(open_queue(Passing(store)), name)
    assert name not in list_lasting_writers(open_queue(store))


def test_name_whose_removal_was_in_doubt_and_whose_bucket_was_replaced_was_there(store: MemoryStore) -> None:
    register(store, 0, MANY)
    name = sealed_name_in(store)
    others = [
        other for other in list_lasting_writers(open_queue(store)) if bucket_of(f"={other}") == bucket_of(f"={name}")
    ]
    other = next(other for other in others if other != name and f"={other}" not in head_of(store).writers)
    watched = Meanwhile(store, 0, Fault.LOSE_ANSWER, lambda: forget_lasting_writer(open_queue(store), other))
    assert forget_lasting_writer(open_queue(watched), name)
    assert name not in list_lasting_writers(open_queue(store))


def test_batches_are_not_stored_or_swept_in_the_folder_of_the_buckets(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="outside"):
        Producer(store, data_prefix="writers")
    with pytest.raises(InvalidInput, match="outside"):
        Collector(store, data_prefix="writers")


def test_batches_that_an_older_release_stored_in_the_folder_of_the_buckets_are_kept(
    store: MemoryStore, clock: ManualClock
) -> None:
    location = f"writers/{names.mint(clock, Random(1))}.batch"
    open_queue(store, "orders").append([NewBatch(location)], number=1)
    store.put(location, b"listed")
    clock.advance(10_000)
    Collector(store, clock=clock).collect_once()
    assert [found.key for found in store.list("writers/")] == [location]


def test_name_is_refused_before_anything_is_written_where_it_could_not_be_kept(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(head, "MAX_LASTING", 4 * KEPT_LASTING)
    register(store, 0, 2 * KEPT_LASTING)
    unable = FaultyStore(store, dict.fromkeys(range(1000), Fault.FAIL), only={"put"})
    with pytest.raises(Backpressure, match="forebay writers forget"):
        register(unable, 2 * KEPT_LASTING, 5 * KEPT_LASTING)
    assert "sealing older listings or idle writers failed" in caplog.text
    register(store, 2 * KEPT_LASTING, 5 * KEPT_LASTING)
    assert len(list_lasting_writers(open_queue(store))) == 5 * KEPT_LASTING


def test_missing_bucket_is_damage_that_verify_finds(store: MemoryStore) -> None:
    register(store, 0, MANY)
    sealed = next(name for name in list_lasting_writers(open_queue(store)) if f"={name}" not in head_of(store).writers)
    lost = head_of(store).writer_buckets[bucket_of(f"={sealed}")]
    store.delete([f"writers/{lost.name}.writers"])
    with pytest.raises(Corrupt, match="bucket of writers that is not there"):
        open_queue(store, sealed).resume()
    report = verify(store)
    assert (report.severity, report.missing) == (Severity.DAMAGE, 1)


def test_writer_without_a_name_that_is_forgotten_again_and_again_gives_up(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_WRITERS", 1)

    class Crowd(FaultyStore):
        """Another producer registers after each registration of ours."""

        def replace(self, key: str, data: Any, version: str) -> Any:
            outcome = super().replace(key, data, version)
            open_queue(store).register_writer()
            return outcome

    open_queue(store).append([NewBatch("data/0")])
    queue = open_queue(Crowd(store), limits=Limits(max_attempts=5))
    with pytest.raises(Timeout, match="spread the producers"):
        queue.append([NewBatch("data/1")])
    assert head_of(store).next_sequence == 1


def test_command_lists_and_forgets_writers(store: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    register(store, 0, MANY)
    produce(store, "orders", 1, 2)
    sealed = next(name for name in list_lasting_writers(open_queue(store)) if f"={name}" not in head_of(store).writers)
    assert main(["writers", "list", store.url, "--json"]) == 0
    assert '"writer_id": "orders", "last_number": 2' in capsys.readouterr().out
    assert main(["stat", store.url]) == 0
    assert f"{MANY + 1} with a lasting name" in capsys.readouterr().out
    assert main(["writers", "forget", store.url, "orders", sealed]) == 0
    left = list_lasting_writers(open_queue(store))
    assert len(left) == MANY - 1
    assert not {"orders", sealed} & set(left)
    assert main(["writers", "forget", store.url, sealed]) == 2
    assert "knows no lasting writer" in capsys.readouterr().err


def test_writers_of_a_topic_are_listed_and_forgotten_in_every_partition(capsys: pytest.CaptureFixture[str]) -> None:
    from forebay.buffer.topic import create_topic

    store = MemoryStore("memory://writers-of-a-topic")
    topic = create_topic(store, 2)
    for number in range(2):
        open_queue(topic.partition(number), "etl").register_writer()
    assert main(["writers", "list", store.url]) == 0
    assert capsys.readouterr().out.count("etl") == 2
    assert main(["writers", "forget", store.url, "etl"]) == 0
    assert main(["writers", "list", store.url]) == 0
    assert "no lasting writers" in capsys.readouterr().out


def test_writer_in_a_bucket_that_is_registered_again_keeps_its_number(store: MemoryStore) -> None:
    produce(store, "orders", 1, 2)
    register(store, 0, MANY)
    assert "=orders" not in head_of(store).writers, "it was not sealed, so this shows nothing"
    open_queue(store, "orders").register_writer()
    assert open_queue(store, "orders").resume() == 2


def test_bucket_that_arrives_damaged_once_is_read_again(store: MemoryStore) -> None:
    register(store, 0, MANY)
    sealed = next(name for name in list_lasting_writers(open_queue(store)) if f"={name}" not in head_of(store).writers)
    falsified = FaultyStore(store, {1: Fault.FALSIFY}, only={"get"})
    assert open_queue(falsified, sealed).resume() == 0
    assert falsified.calls["get"] == 3, "the head, its bucket, and its bucket again"


@pytest.mark.parametrize("number", [4, 5])
def test_number_that_was_used_appends_nothing(store: MemoryStore, number: int) -> None:
    queue = open_queue(store, "orders")
    queue.resume()
    queue.append([NewBatch("data/1")], number=5)
    with pytest.raises(InvalidInput, match="give a higher one"):
        queue.append([NewBatch("data/2")], number=number)
    assert head_of(store).count == 1
