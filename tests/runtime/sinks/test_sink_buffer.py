"""Copies into buffers and topics, each entry once, whatever is repeated.

Mutation notes: without the numbers of the calls, with a check that looks at numbers seen before, or with `Fenced` taken
for the source's, tests here fail.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kinds import BYTES, Kind, kind_in

from forebay.buffer.base.errors import Denied, ForebayError, Unavailable, Unknown, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.head import LASTING
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, create_topic, partition_for
from forebay.runtime.contract import Commit, Committed, Fatal, MaybeCommitted
from forebay.runtime.decoders import raw
from forebay.runtime.sinks import BufferSink
from forebay.testing import Crash, Fault, FaultyStore
from forebay.testing.commits import make_batch, make_commit


def as_rows(batch: Batch) -> pa.Table:
    """The entries as a typed buffer would have them, with the metadata of their calls."""
    records = batch.records(columns=["value", "metadata"])
    return records.rename_columns(["value", "_call_metadata"])


def commit_of(first: int, last: int | None = None, *, group: str = "tests", kind: Kind = BYTES) -> Commit:
    """Each batch has metadata of its own, so that each is a call."""
    sequences = range(first, (first if last is None else last) + 1)
    batches = [make_batch([b"%03d a" % i, b"%03d b" % i], i, metadata=b"batch %d" % i) for i in sequences]
    return make_commit(*batches, decoder=raw if kind is BYTES else as_rows, group=group)


def expected(last: int) -> list[bytes]:
    return [b"%03d %s" % (i, which) for i in range(last + 1) for which in (b"a", b"b")]


def entries(store: ObjectStore) -> list[bytes]:
    return kind_in(store).read_all(Consumer(store))


def commit_until_done(sink: BufferSink, commit: Commit) -> None:
    """Do as the runtime does."""
    for _ in range(1000):  # a quarter of all requests fail, and opening a typed buffer takes several in a row
        try:
            answer = sink.commit(commit)
            if answer == Committed():
                return
            assert isinstance(answer, MaybeCommitted)
        except Unavailable:
            continue
        except Unknown:
            pass
        try:
            if sink.check_committed(commit.identity):
                return
        except (Unavailable, Unknown):
            continue
    pytest.fail(f"{commit.identity} was never committed")


def test_entries_are_copied_in_order_with_their_metadata() -> None:
    target = MemoryStore("memory://copy-plain")
    with BufferSink(target) as sink:
        assert sink.commit(commit_of(0, 2)) == Committed()
    copied = list(Consumer(target))
    assert [entry for batch in copied for entry in batch.entries] == expected(2)
    records = pa.concat_tables([batch.records() for batch in copied])
    assert records["metadata"].to_pylist() == [b"batch %d" % i for i in (0, 0, 1, 1, 2, 2)]


def test_commit_given_again_is_dropped_by_the_target() -> None:
    target = MemoryStore("memory://copy-again")
    for _ in range(3):
        with BufferSink(target) as sink:
            assert sink.commit(commit_of(0, 2)) == Committed()
            assert sink.commit(commit_of(3)) == Committed()
    assert entries(target) == expected(3)


def test_check_says_whether_the_target_has_the_whole_commit() -> None:
    target = MemoryStore("memory://copy-check")
    with BufferSink(target) as sink:
        assert sink.check_committed(commit_of(0, 2).identity) is False
        sink.commit(commit_of(0, 2))
        assert sink.check_committed(commit_of(0, 2).identity) is True
        assert sink.check_committed(commit_of(3).identity) is False


def test_readers_have_names_of_their_own() -> None:
    target = MemoryStore("memory://copy-readers")
    with BufferSink(target) as sink:
        for group in ("a", "b", ""):
            assert sink.commit(commit_of(0, group=group)) == Committed()
    assert sorted(entries(target)) == sorted(expected(0) * 3)


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER])
def test_dying_at_any_store_call_leaves_what_a_replay_completes(fault: Fault, kind: Kind) -> None:
    typed = kind is not BYTES
    for number in range(100):
        target = MemoryStore(f"memory://copy-{fault.name}-{number}-{kind.name}")
        store = FaultyStore(target, {number: fault})
        with suppress(Crash, ForebayError):  # a crash in a thread of the producer's ends as an error
            sink = BufferSink(store, evolve=typed)
            sink.commit(commit_of(0, 1, kind=kind))
            sink.commit(commit_of(2, 4, kind=kind))
        with BufferSink(target, evolve=typed) as successor:
            commit_until_done(successor, commit_of(0, 1, kind=kind))
            commit_until_done(successor, commit_of(2, 4, kind=kind))
        assert entries(target) == expected(4), f"{fault.name} at call {number}"
        if sum(store.calls.values()) <= number:
            return
    pytest.fail("there are more than 100 store calls")


@pytest.mark.parametrize("seeds", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_seeded_faults_double_and_lose_nothing(seeds: int, kind: Kind) -> None:
    for seed in range(seeds):
        target = MemoryStore(f"memory://copy-seeded-{seed}-{kind.name}")
        store = FaultyStore.seeded(target, seed, rate=0.25)
        with BufferSink(store, evolve=kind is not BYTES) as sink:
            for first in range(0, 6, 2):
                commit_until_done(sink, commit_of(first, first + 1, kind=kind))
            store.land_late_requests()
        assert entries(target) == expected(5), f"seed {seed}"


def test_predecessor_that_still_appends_the_same_doubles_nothing() -> None:
    """Its fence is in the source, and it learns of that only when it acknowledges."""
    target = MemoryStore("memory://copy-rivals")
    with BufferSink(target) as old, BufferSink(target) as new:
        for sink in (old, new):
            commit_until_done(sink, commit_of(0))
        for sequence in (1, 2, 3):
            commit_until_done(old, commit_of(sequence))
            commit_until_done(new, commit_of(sequence))
        commit_until_done(new, commit_of(4))
        commit_until_done(old, commit_of(4))
    assert entries(target) == expected(4)


def test_predecessor_that_has_come_half_way_is_taken_over_from() -> None:
    target = MemoryStore("memory://copy-half")
    with BufferSink(target) as sink:
        sink.commit(commit_of(0))
        head = Queue(target).read()
        assert isinstance(head, Head)
        (name,) = (found.removeprefix(LASTING) for found in head.writers if found.startswith(LASTING))
        with Producer(target, writer_id=name) as predecessor:
            first_call = make_batch([b"001 a", b"001 b"]).arrow
            predecessor.produce(first_call, b"batch 1", number=(2 << 20) + 1).result()
        answer = sink.commit(commit_of(1, 2))
        assert isinstance(answer, MaybeCommitted), "the target says Fenced, which is not this reader's fence"
        assert sink.check_committed(commit_of(1, 2).identity) is False
        assert sink.commit(commit_of(1, 2)) == Committed()
    assert entries(target) == expected(2)


def test_rows_can_be_changed_by_the_decoder_on_the_way() -> None:
    def shout(batch: Batch) -> pa.Table:
        return pa.table({"value": pc.binary_replace_slice(batch.arrow, 0, 3, b"new")})

    target = MemoryStore("memory://copy-changed")
    with BufferSink(target) as sink:
        sink.commit(make_commit(make_batch([b"000 a", b"000 b"]), decoder=shout))
    assert entries(target) == [b"new a", b"new b"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"other": [1]}), "need the column value, and these have other"),
        (pa.table({"value": ["text"]}), "must be binary without nulls, not string"),
        (pa.table({"value": pa.array([None], pa.binary())}), "with 1"),
    ],
)
def test_rows_that_are_no_entries_halt(table: pa.Table, reason: str) -> None:
    with BufferSink("memory://copy-unfit") as sink:
        answer = sink.commit(make_commit(make_batch([b"x"]), decoder=lambda _: table))
    assert isinstance(answer, Fatal)
    assert reason in answer.reason


def test_target_of_version_1_is_refused_as_it_remembers_no_writers() -> None:
    target = MemoryStore("memory://copy-version-1")
    with Producer(target, profile="opendata", manifest_path="manifest") as producer:
        producer.produce(b"x")
    with BufferSink(target) as sink, pytest.raises(Unsupported, match="version 1"):
        sink.commit(commit_of(0))


def test_target_that_refuses_is_told_as_it_is() -> None:
    class Refusing(FaultyStore):
        def next_fault(self, kind: str) -> Fault | None:
            if kind == "put":
                raise Denied("memory://copy-denied: denied")
            return None

    with BufferSink(Refusing(MemoryStore("memory://copy-denied"))) as sink, pytest.raises(Denied):
        sink.commit(commit_of(0))


# Into the partitions of a topic


def first_letters(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_replace_slice(table["value"], 0, 4, b"")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> Topic:
    url = f"memory://copy-topic-{request.node.name[:60]}".replace("[", "-").replace("]", "")
    create_topic(url, partitions=4)
    return Topic(url)


def test_rows_of_a_key_go_to_its_partition_in_order(topic: Topic) -> None:
    with BufferSink(topic.store, key=first_letters) as sink:
        for first in range(0, 6, 2):
            assert sink.commit(commit_of(first, first + 1)) == Committed()
    for key in (b"a", b"b"):
        found = entries(topic.partition(partition_for(key, 4)))
        assert [entry for entry in found if entry.endswith(key)] == [b"%03d %s" % (i, key) for i in range(6)]
    assert sum(len(entries(topic.partition(number))) for number in range(4)) == 12


def test_repeats_are_dropped_in_every_partition(topic: Topic) -> None:
    for _ in range(3):
        with BufferSink(topic.store, key=first_letters) as sink:
            assert sink.check_committed(commit_of(0, 3).identity) is False
            assert sink.commit(commit_of(0, 3)) == Committed()
    assert sum(len(entries(topic.partition(number))) for number in range(4)) == 8


def test_keys_must_be_binary_and_one_a_row(topic: Topic) -> None:
    for key, reason in (
        (lambda table: pc.cast(table["value"], pa.string()), "binary array, not string"),
        (lambda table: table["value"][:1], "1 keys, 0 of them null, for 2 rows"),
        (lambda table: [b"k"] * len(table), "not list"),
    ):
        with BufferSink(topic.store, key=key) as sink:
            answer = sink.commit(commit_of(0))
        assert isinstance(answer, Fatal)
        assert reason in answer.reason


def test_buffer_is_never_copied_into_itself() -> None:
    commit = commit_of(0)
    with BufferSink(MemoryStore(commit.url)) as sink:
        answer = sink.commit(commit)
    assert isinstance(answer, Fatal)
    assert "into itself" in answer.reason
    assert not answer.poison
