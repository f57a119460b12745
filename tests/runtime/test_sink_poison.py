"""Rows that a sink refuses, one by one: they become dead letters, and the others of their commit land once."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from filled import run

from forebay.buffer.consumer import Consumer
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Answer, CallableSink, Combining, Commit, CommitIdentity, Committed, Fatal, Halted
from forebay.runtime.contract import Decoder
from forebay.runtime.decoders import arrow_ipc, stored_rows
from forebay.testing import Fault, FaultyStore

SCHEMA = pa.schema([pa.field("id", pa.int64())])


class Picky:
    """Takes no odd ids, and says which rows those are."""

    def __init__(self, *, names_rows: bool = True) -> None:
        self.landed: list[Any] = []
        self.identities: list[CommitIdentity] = []
        self.sequences: list[int] = []
        self._names_rows = names_rows

    def __call__(self, commit: Commit) -> Answer:
        ids = commit.table["id"].to_pylist()
        self.identities.append(commit.identity)
        odd = {place: f"{number} is odd" for place, number in enumerate(ids) if number % 2}
        if odd:
            return Fatal("some are odd", poison=True, rows=odd if self._names_rows else {})
        self.landed += ids
        self.sequences += [batch.sequence for batch in commit.batches]
        return Committed()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://poison-{request.node.name}")
    with Producer(store, schema=SCHEMA, flush_interval=0.01) as producer:
        for ids in ([0, 1, 2], [3, 5], [4, 6], [7, 8]):
            producer.produce([{"id": number} for number in ids]).result()
    return store


def land(store: Any, picky: Picky, letters: Any, decoder: Decoder = stored_rows) -> None:
    sink = CallableSink(picky, in_order=True, combining=Combining(1 << 20))
    with Producer(letters) as dead:
        run(store, sink, decoder=decoder, dead_letters=dead)


def letters_of(store: MemoryStore) -> list[bytes]:
    return [entry for batch in Consumer(store, group="looks") for entry in batch.entries]


def test_rows_that_the_sink_names_become_letters_and_the_others_land_in_order(store: MemoryStore) -> None:
    picky, letters = Picky(), MemoryStore("memory://poison-letters-1")
    land(store, picky, letters)
    assert picky.landed == [0, 2, 4, 6, 8]
    assert letters_of(letters) == [b'{"id":1}', b'{"id":3}', b'{"id":5}', b'{"id":7}']


def test_the_rest_has_the_identity_of_the_whole_commit_and_no_batch_without_rows(store: MemoryStore) -> None:
    picky = Picky()
    land(store, picky, MemoryStore("memory://poison-letters-2"))
    assert len(picky.identities) == 2
    assert len(set(picky.identities)) == 1
    assert picky.sequences == [0, 2, 3]


def test_all_rows_become_letters_if_the_sink_does_not_say_which(store: MemoryStore) -> None:
    picky, letters = Picky(names_rows=False), MemoryStore("memory://poison-letters-3")
    land(store, picky, letters)
    assert picky.landed == []
    assert len(letters_of(letters)) == 9


def test_all_entries_become_letters_if_rows_are_not_entries(store: MemoryStore) -> None:
    """Which entry a row came from is not known if the decoder makes other rows than entries."""
    picky, letters = Picky(), MemoryStore("memory://poison-letters-4")
    land(store, picky, letters, lambda batch: pa.concat_tables([batch.table, batch.table]))
    assert picky.landed == []
    assert len(letters_of(letters)) == 9


def test_no_row_is_lost_if_the_decoder_makes_as_many_rows_as_entries_in_another_order() -> None:
    """The rows of the other entries would not be the other rows: then all entries of the batch become letters."""
    store, letters = MemoryStore("memory://poison-sorted"), MemoryStore("memory://poison-letters-7")
    with Producer(store, schema=SCHEMA, flush_interval=0.01) as producer:
        for ids in ([3, 0, 2], [4, 5, 6]):
            producer.produce([{"id": number} for number in ids]).result()
    picky = Picky()
    land(store, picky, letters, lambda batch: batch.table.sort_by("id"))
    assert picky.landed == [4, 6]
    assert letters_of(letters) == [b'{"id":3}', b'{"id":0}', b'{"id":2}', b'{"id":5}']


def test_no_row_is_lost_if_one_entry_has_no_rows_and_another_has_two() -> None:
    store, letters = MemoryStore("memory://poison-streams"), MemoryStore("memory://poison-letters-8")
    entries = [_stream([2, 3]), _stream([])]
    with Producer(store) as producer:
        producer.produce(entries).result()
    picky = Picky()
    land(store, picky, letters, arrow_ipc)
    assert picky.landed == []
    assert letters_of(letters) == entries


def test_single_rows_of_batches_of_several_schema_versions_become_letters() -> None:
    store, letters = MemoryStore("memory://poison-versions"), MemoryStore("memory://poison-letters-10")
    old = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("x", pa.int32())])
    new = pa.schema([pa.field("page", pa.string()), pa.field("x", pa.float64()), pa.field("id", pa.int64())])
    for schema, first in ((old, 0), (new, 1 << 40)):
        with Producer(store, schema=schema, evolve=True, flush_interval=0.01) as producer:
            producer.produce([{"id": first + number, "x": 1} for number in range(3)]).result()
    picky = Picky()
    land(store, picky, letters)
    assert picky.landed == [0, 2, 1 << 40, (1 << 40) + 2]
    assert len(letters_of(letters)) == 2


def test_rows_with_nan_that_the_sink_takes_land() -> None:
    store, letters = MemoryStore("memory://poison-nan"), MemoryStore("memory://poison-letters-9")
    with Producer(store, schema=pa.schema([*SCHEMA, pa.field("x", pa.float64())]), flush_interval=0.01) as producer:
        producer.produce([{"id": 1, "x": 0.5}, {"id": 2, "x": math.nan}]).result()
    picky = Picky()
    land(store, picky, letters)
    assert picky.landed == [2]
    assert letters_of(letters) == [b'{"id":1,"x":0.5}']


def _stream(ids: list[int]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(pa.table({"id": ids}, schema=SCHEMA))
    return bytes(sink.getvalue())


def test_without_dead_letters_the_runtime_halts_and_names_the_entries(store: MemoryStore) -> None:
    picky = Picky()
    with pytest.raises(Halted, match=r"batch 0, entry 1, cannot be used: 1 is odd"):
        run(store, CallableSink(picky, in_order=True, combining=Combining(1 << 20)))
    assert picky.landed == []


def test_letters_that_cannot_be_stored_now_are_stored_before_the_rest_lands(store: MemoryStore) -> None:
    picky, inner = Picky(), MemoryStore("memory://poison-letters-5")
    faulty = FaultyStore(inner, {0: Fault.FAIL}, only={"replace"})
    land(store, picky, faulty)
    assert picky.landed == [0, 2, 4, 6, 8]
    assert set(letters_of(inner)) == {b'{"id":1}', b'{"id":3}', b'{"id":5}', b'{"id":7}'}


def test_death_after_the_letters_and_before_the_rest_lands_loses_and_doubles_no_row(store: MemoryStore) -> None:
    letters = MemoryStore("memory://poison-letters-6")
    first, second = Picky(), Picky()
    with pytest.raises(KeyboardInterrupt), Producer(letters) as dead:
        run(store, CallableSink(_stop_after(first), in_order=True, combining=Combining(1 << 20)), dead_letters=dead)
    land(store, second, letters)
    assert (first.landed, second.landed) == ([], [0, 2, 4, 6, 8])
    assert set(letters_of(letters)) == {b'{"id":1}', b'{"id":3}', b'{"id":5}', b'{"id":7}'}


@pytest.mark.parametrize("row", [-1, 9])
def test_row_that_the_sink_was_not_given_halts_the_runtime_and_buries_nothing(store: MemoryStore, row: int) -> None:
    letters = MemoryStore(f"memory://poison-letters-not-given-{row}")
    sink = CallableSink(lambda _: Fatal("odd", poison=True, rows={row: "odd"}), combining=Combining(1 << 20))
    with Producer(letters) as dead, pytest.raises(Halted, match=f"must be from 0 to 8, not {row}"):
        run(store, sink, dead_letters=dead)
    assert letters_of(letters) == []


def _stop_after(picky: Picky) -> Any:
    def function(commit: Commit) -> Answer:
        if picky.identities:
            raise KeyboardInterrupt
        return picky(commit)

    return function
