"""Dead letters go back to their source, once, however often the replay dies (rfcs/0007)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from filled import acked, run
from kinds import BYTES, Kind, values_of

from forebay.buffer.base.errors import ForebayError, InvalidInput, StoreError
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.letter_replay import Replay
from forebay.testing import Crash, Fault, FaultyStore
from forebay.testing.ledger import LedgerSink

CALLS = [(b"a", b""), (b"bad 1", b"svc=web"), (b"bad 2", b""), (b"b", b""), (b"bad 3", b"svc=app")]


def refuse_bad(batch: Batch) -> pa.Table:
    for value in values_of(batch):
        if b"bad" in value:
            raise ValueError(f"{value.decode()} is bad")
    return batch.records() if batch.schema is None else batch.table


def with_letters(
    name: str, *, runs: int = 1, profile: Any = "native", kind: Kind = BYTES
) -> tuple[MemoryStore, MemoryStore]:
    """A buffer, and the three letters, in a batch each, that runtimes made of it."""
    name = f"{name}-{kind.name}"
    source, letters = MemoryStore(f"memory://replay-{name}"), MemoryStore(f"memory://replay-{name}-dead")
    paths = {"manifest_path": "manifest", "data_prefix": "data"}
    with Producer(source, schema=kind.schema, profile=profile, flush_interval=0.001, **paths) as producer:
        for value, metadata in CALLS:
            producer.produce(kind.make(value), metadata).result()
    group = None if profile == "opendata" else "etl"
    for _ in range(runs):
        with Producer(letters, flush_interval=0.001) as dead:
            if group is not None and _:
                Groups(source).reset("etl", "earliest", force=True)
            run(source, LedgerSink(), group=group, decoder=refuse_bad, dead_letters=dead, config={"fetch_workers": 1})
    return source, letters


def opener(source: ObjectStore) -> Callable[[str, str | None], Producer]:
    def open_producer(url: str, writer_id: str | None) -> Producer:
        paths = {"manifest_path": "manifest", "data_prefix": "data"}
        return Producer(source if url == source.url else url, writer_id=writer_id, flush_interval=0.001, **paths)

    return open_producer


def replay(letters: ObjectStore, source: ObjectStore, to: str | None = None, *names: str) -> list[tuple[str, str]]:
    work = Replay(Queue(letters), to, opener(source), group="replay")
    return [(found.kept.name, found.skipped) for found in (work.run_named(names) if names else work.run())]


def entries_of(store: ObjectStore | str) -> list[tuple[bytes, bytes]]:
    return [
        (row["value"], row["metadata" if batch.schema is None else "_call_metadata"] or b"")
        for batch in Consumer(store, group="looks")
        for row in batch.records().to_pylist()
    ]


BAD = [CALLS[1], CALLS[2], CALLS[4]]


def test_entries_go_back_to_their_source_with_their_metadata_and_only_once(kind: Kind) -> None:
    source, letters = with_letters("source", kind=kind)
    assert replay(letters, source) == [("0.0", ""), ("1.0", ""), ("2.0", "")]
    assert replay(letters, source) == []
    assert entries_of(source) == CALLS + BAD
    sink = LedgerSink()
    run(source, sink)
    assert sink.values() == [entry for entry, _ in BAD], "the group that could not use them reads on there"


def test_letters_that_came_later_are_replayed_by_the_next_replay(kind: Kind) -> None:
    source, letters = with_letters("later", kind=kind)
    replay(letters, source)
    with Producer(letters, flush_interval=0.001) as dead:
        run(source, LedgerSink(), decoder=refuse_bad, dead_letters=dead, config={"fetch_workers": 1})
    assert len(replay(letters, source)) == 3
    assert entries_of(source) == CALLS + BAD + BAD


def test_entries_go_to_another_buffer_if_asked() -> None:
    source, letters = with_letters("other")
    replay(letters, source, "memory://replay-mended")
    assert entries_of("memory://replay-mended") == BAD
    assert entries_of(source) == CALLS
    with pytest.raises(InvalidInput, match="another buffer"):
        replay(letters, source, letters.url)


def test_named_letters_are_replayed_each_time(kind: Kind) -> None:
    source, letters = with_letters("named", kind=kind)
    for _ in range(2):
        assert replay(letters, source, None, "1.0") == [("1.0", "")]
    assert entries_of(source) == [*CALLS, CALLS[2], CALLS[2]]


def test_entries_that_two_letters_hold_are_replayed_once(kind: Kind) -> None:
    source, letters = with_letters("twice", runs=2, kind=kind)
    assert [skipped for _name, skipped in replay(letters, source)] == [
        "", "", "", *(f"letter {first}.0 holds the same entries" for first in range(3))
    ]  # fmt: skip
    assert entries_of(source) == CALLS + BAD


def test_object_that_could_not_be_read_is_left_out(kind: Kind) -> None:
    source, letters = with_letters("object", kind=kind)
    source.put(Queue(source).descriptors(0, 1)[0].location, b"damaged")
    with Producer(letters, flush_interval=0.001) as dead:
        run(source, LedgerSink(), group="other", decoder=refuse_bad, dead_letters=dead)
    skipped = [found for _name, found in replay(letters, source) if found.startswith("it holds an object")]
    assert len(skipped) == 1


def test_preview_shows_what_is_left_and_changes_nothing(kind: Kind) -> None:
    source, letters = with_letters("preview", kind=kind)
    work = Replay(Queue(letters), None, opener(source), group="replay")
    assert [found.target for found in work.preview()] == [source.url] * 3
    assert Queue(letters).read().groups == {}
    replay(letters, source)
    assert list(work.preview()) == []
    assert [found.kept.name for found in work.preview_named(("1.0",))] == ["1.0"]
    assert entries_of(source) == CALLS + BAD


def test_version_1_source_gets_the_entries_too() -> None:
    source, letters = with_letters("version-1", profile="opendata")
    replay(letters, source)
    found = [entry for batch in Consumer(source) for entry in batch.entries]
    assert found[-3:] == [entry for entry, _ in BAD]


# Dying on the way


def test_replay_that_dies_after_any_letter_goes_on_and_repeats_nothing(kind: Kind) -> None:
    for at in range(3):
        source, letters = with_letters(f"dies-{at}", kind=kind)
        found = Replay(Queue(letters), None, opener(source), group="replay").run()
        for _ in range(at + 1):
            next(found)
        found.close()
        replay(letters, source)
        assert entries_of(source) == CALLS + BAD


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER, Fault.LOSE_ANSWER, Fault.DROP])
def test_fault_at_any_ack_of_the_letters_repeats_nothing(fault: Fault, kind: Kind) -> None:
    for at in range(20):
        source, letters = with_letters(f"ack-{fault.name}-{at}", kind=kind)
        faulty = FaultyStore(letters, {at: fault}, only={"replace", "create"})
        try:
            replay(faulty, source)
        except (Crash, ForebayError):
            replay(letters, source)
        assert entries_of(source) == CALLS + BAD
        assert acked(letters, "replay") == 2
        if faulty.calls["replace"] + faulty.calls["create"] <= at:
            return
    pytest.fail("a replay has more than 20 writes")


class DyingProducer(Producer):
    """Dies after one of its calls is queued, or durable, and before the replay hears of it."""

    left = 0
    durable = False

    def produce(self, *args: Any, **settings: Any) -> Any:
        handle = super().produce(*args, **settings)
        DyingProducer.left -= 1
        if DyingProducer.left == 0:
            if self.durable:
                handle.result()
            raise Crash("here")
        return handle


def test_letters_whose_entries_are_not_durable_are_not_acknowledged(kind: Kind) -> None:
    source, letters = with_letters("not-durable", kind=kind)
    stuck = FaultyStore(source, dict.fromkeys(range(1000), Fault.FAIL), only={"put"})

    def open_stuck(_url: str, writer_id: str | None) -> Producer:
        return Producer(stuck, writer_id=writer_id, flush_interval=0.001, retry_timeout=0.001)

    with pytest.raises(StoreError, match="upload failed"):
        list(Replay(Queue(letters), None, open_stuck, group="replay").run())
    assert acked(letters, "replay") is None
    replay(letters, source)
    assert entries_of(source) == CALLS + BAD


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_replay_that_dies_in_any_call_repeats_nothing(call: int, durable: bool, kind: Kind) -> None:
    source, letters = with_letters(f"call-{call}-{durable}", kind=kind)

    def open_dying(_url: str, writer_id: str | None) -> Producer:
        producer = DyingProducer(source, writer_id=writer_id, flush_interval=0.001)
        DyingProducer.left, producer.durable = call, durable
        return producer

    with pytest.raises(Crash):
        list(Replay(Queue(letters), None, open_dying, group="replay").run())
    replay(letters, source)
    assert entries_of(source) == CALLS + BAD
