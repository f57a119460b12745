"""Bad entries are taken out of a batch; the good ones land once, in order, whenever the process dies (rfcs/0007)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filled import NoPauses, acked, append_data, new_buffer, run

from forebay.buffer.base.errors import Timeout, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Combining, DeadLetter, Fatal, Halted, ParquetSink
from forebay.runtime.bad_entries import MAX_ATTEMPTS, BadEntry
from forebay.runtime.decoders import JsonLines, arrow_ipc
from forebay.runtime.stages.isolation import isolate
from forebay.testing import WRITE_FAULTS, Crash, Fault, FaultyStore
from forebay.testing.commits import make_batch
from forebay.testing.ledger import LedgerSink

USERS = JsonLines(pa.schema([("user", pa.int64())]), keep=["sequence", "index"])


def refuse_bad(batch: Batch) -> pa.Table:
    """A decoder that somebody wrote: it raises whatever it likes."""
    for entry in batch.entries:
        if b"bad" in entry:
            raise RuntimeError(f"{entry.decode()} is bad")
    return batch.records()


def buffer_of(name: str, *batches: list[bytes]) -> MemoryStore:
    store = new_buffer(name, 0)
    Queue(store).append(
        [append_data(store, i, bytes(encode_batch(held, "none")), held) for i, held in enumerate(batches)]
    )
    return store


def read_letters(store: MemoryStore | str) -> list[tuple[DeadLetter, list[bytes]]]:
    found = []
    for batch in Consumer(store):
        starts = [item.start_index for item in batch.metadata] + [len(batch)]
        for number, item in enumerate(batch.metadata):
            letter = DeadLetter.parse(item.payload)
            found.append((letter, list(batch.entries[starts[number] : starts[number] + letter.count])))
    return sorted(found, key=lambda item: (item[0].sequence, item[0].first_entry or 0))


# What lands and what is put aside


@pytest.mark.parametrize("times", [1, 2])
def test_outage_that_a_decoder_meets_makes_no_dead_letters(times: int) -> None:
    store = buffer_of(f"registry-outage-{times}", [b"a"])  # a sole entry would be taken for bad without another look
    letters = MemoryStore(f"memory://registry-outage-{times}-letters")
    outages = [Unavailable("the schema registry does not answer"), Timeout("nor now")][:times]

    def ask_registry(batch: Batch) -> pa.Table:
        if outages:
            raise outages.pop()
        return batch.records()

    sink = LedgerSink()
    with Producer(letters) as producer:
        run(store, sink, decoder=ask_registry, dead_letters=producer)
    assert list(sink.rows.values()) == [[b"a"]]
    assert read_letters(letters) == []


def test_one_line_of_the_wrong_type_among_a_thousand_is_the_only_dead_letter() -> None:
    lines = [json.dumps({"user": number}).encode() for number in range(1000)]
    lines[333] = b'{"user": "x"}'
    store = buffer_of("isolate-one", lines[:500], lines[500:])
    sink = LedgerSink(in_order=True)
    with Producer("memory://isolate-one-letters", flush_interval=0.01) as letters:
        status = run(store, sink, decoder=USERS, dead_letters=letters)
    rows = [row for found in sink.rows.values() for row in found]
    assert [row["user"] for row in rows] == [number for number in range(1000) if number != 333]  # type: ignore[index]
    assert [row["index"] for row in rows] == [number % 500 for number in range(1000) if number != 333]  # type: ignore[index]
    ((letter, entries),) = read_letters("memory://isolate-one-letters")
    assert (letter.url, letter.sequence, letter.first_entry, letter.last_entry) == (store.url, 0, 333, 333)
    assert letter.error == "column user: expected a number (int64), found text"
    assert entries == [b'{"user": "x"}']
    assert (acked(store), status.sources[0].dead_letters) == (1, 1)


def test_bad_entries_of_one_reason_share_a_letter_that_lists_them() -> None:
    store = buffer_of("isolate-reasons", [b"{}", b"null", b'{"user": 1.5}', b"null", b"{}", b"[]", b'{"user": 1.5}'])
    with Producer("memory://isolate-reasons-letters", flush_interval=0.01) as letters:
        run(store, LedgerSink(), decoder=USERS, dead_letters=letters)
    first, second = read_letters("memory://isolate-reasons-letters")
    assert (first[0].indexes, first[0].count, first[0].place) == ([1, 3, 5], 3, "entries 1, 3, 5")
    assert first[1] == [b"null", b"null", b"[]"]
    assert (second[0].indexes, second[0].error) == ([2, 6], "column user: expected int64, found 1.5")


def test_batches_of_a_combined_commit_keep_their_good_entries() -> None:
    store = buffer_of("isolate-combined", [b"a", b"bad"], [b"bad"], [b"b"])
    sink = LedgerSink(combining=Combining(1 << 20))
    with Producer("memory://isolate-combined-letters", flush_interval=0.01) as letters:
        run(store, sink, decoder=refuse_bad, dead_letters=letters)
    assert sink.ranges == [(0, 2)]
    assert sink.values() == [b"a", b"b"]
    assert [letter.sequence for letter, _ in read_letters("memory://isolate-combined-letters")] == [0, 1]


def test_metadata_of_the_producers_is_kept_with_the_entries() -> None:
    with Producer("memory://isolate-metadata", flush_interval=1000) as producer:
        producer.produce([b"a", b"bad 1"], b"svc=web")
        producer.produce([b"bad 2", b"bad 3"], b"svc=app")
        producer.produce(b"b")
    with Producer("memory://isolate-metadata-letters", flush_interval=0.01) as letters:
        run(MemoryStore("memory://isolate-metadata"), LedgerSink(), decoder=refuse_all_bad, dead_letters=letters)
    ((letter, entries),) = read_letters("memory://isolate-metadata-letters")
    assert entries == [b"bad 1", b"bad 2", b"bad 3"]
    assert letter.metadata == [(0, b"svc=web"), (1, b"svc=app")]


def refuse_all_bad(batch: Batch) -> pa.Table:
    if any(b"bad" in entry for entry in batch.entries):
        raise ValueError("some are bad")
    return batch.records()


def test_many_reasons_of_one_batch_share_the_last_letter() -> None:
    store = buffer_of("isolate-many", [b"bad %d" % number for number in range(100)])
    with Producer("memory://isolate-many-letters", flush_interval=0.01) as letters:
        run(store, LedgerSink(), decoder=refuse_bad, dead_letters=letters)
    found = read_letters("memory://isolate-many-letters")
    assert len(found) == 32
    assert [entry for _letter, entries in found for entry in entries] == [b"bad %d" % number for number in range(100)]
    assert found[-1][0].error == "RuntimeError: bad 31 is bad (and 68 other reasons)"


def test_halt_names_the_source_the_batch_the_entry_and_the_line_for_the_job_file() -> None:
    store = buffer_of("isolate-halt", [b"a"], [b"a", b"bad", b"a", b"bad"])
    told = r"memory://runtime-isolate-halt: batch 1, entries 1, 3, cannot be used: RuntimeError: bad is bad\. "
    with pytest.raises(Halted, match=rf"{told}.*\[dead_letters\] with url"):
        run(store, LedgerSink(), decoder=refuse_bad)


def test_batch_without_entries_that_the_decoder_refuses_is_kept_as_its_object() -> None:
    store = buffer_of("isolate-empty", [], [b"a"])

    def refuse_empty(batch: Batch) -> pa.Table:
        if not len(batch):
            raise ValueError("it is empty")
        return batch.records()

    sink = LedgerSink()
    with Producer("memory://isolate-empty-letters", flush_interval=0.01) as letters:
        run(store, sink, decoder=refuse_empty, dead_letters=letters)
    ((letter, _entries),) = read_letters("memory://isolate-empty-letters")
    assert (letter.sequence, letter.first_entry, letter.error) == (0, None, "ValueError: it is empty")
    assert (sink.values(), acked(store)) == ([b"a"], 1)


def test_commit_that_the_sink_refuses_leaves_letters_for_batches_with_entries_only() -> None:
    store = buffer_of("isolate-refused", [], [b"a", b"bad", b"b"])
    sink = LedgerSink((False, Fatal("does not fit", poison=True)), combining=Combining(1 << 20))
    with Producer("memory://isolate-refused-letters", flush_interval=0.01) as letters:
        run(store, sink, decoder=refuse_bad, dead_letters=letters)
    first, second = read_letters("memory://isolate-refused-letters")
    assert (first[0].indexes, first[0].error, first[1]) == ([0, 2], "does not fit", [b"a", b"b"])
    assert (second[0].first_entry, second[0].error, second[1]) == (1, "RuntimeError: bad is bad", [b"bad"])
    assert acked(store) == 1


# Decoders


def test_healthy_batch_is_decoded_once() -> None:
    calls = []

    def count(batch: Batch) -> pa.Table:
        calls.append(len(batch))
        return batch.records()

    run(buffer_of("isolate-healthy", [b"a"] * 1000), LedgerSink(), decoder=count)
    assert calls == [1000]


def test_any_exception_of_a_decoder_is_narrowed_down_with_few_calls() -> None:
    calls = []

    def count(batch: Batch) -> pa.Table:
        calls.append(len(batch))
        return refuse_bad(batch)

    batch = make_batch([b"bad" if number == 700 else b"%d" % number for number in range(1000)])
    found = isolate(count, batch, RuntimeError("bad is bad"))
    assert found.reasons == {700: "RuntimeError: bad is bad"}
    assert found.table is not None
    assert found.table["index"].to_pylist() == [number for number in range(1000) if number != 700]
    assert len(calls) == 21


def test_batch_that_is_bad_throughout_takes_a_bounded_number_of_calls() -> None:
    calls = []

    def refuse(batch: Batch) -> pa.Table:
        calls.append(len(batch))
        raise ValueError("never")

    found = isolate(refuse, make_batch([b"x"] * 20_000), ValueError("never"))
    assert (found.batch, len(found.reasons)) == (None, 20_000)
    assert len(calls) <= MAX_ATTEMPTS


def test_decoder_that_names_only_its_first_bad_entry_is_asked_for_the_others() -> None:
    def name_first(batch: Batch) -> pa.Table:
        for index, entry in enumerate(batch.entries):
            if entry == b"bad":
                raise BadEntry("no good", sequence=batch.sequence, index=index)
        return batch.records()

    batch = make_batch([b"bad" if number % 3 == 0 else b"x" for number in range(30)])
    found = isolate(name_first, batch, BadEntry("no good", sequence=0, index=0))
    assert sorted(found.reasons) == list(range(0, 30, 3))
    assert found.table is not None
    assert found.table.num_rows == 20


def test_entry_that_is_bad_only_beside_others_can_be_named() -> None:
    def refuse_repeats(batch: Batch) -> pa.Table:
        seen: set[bytes] = set()
        for index, entry in enumerate(batch.entries):
            if entry in seen:
                raise BadEntry("it was here before", sequence=batch.sequence, index=index)
            seen.add(entry)
        return batch.records()

    batch = make_batch([b"a", b"b", b"a"])
    found = isolate(refuse_repeats, batch, BadEntry("it was here before", sequence=0, index=2))
    assert list(found.reasons) == [2]
    assert found.table is not None
    assert found.table["value"].to_pylist() == [b"a", b"b"]


def test_batch_whose_bad_entries_cannot_be_told_is_bad_as_a_whole() -> None:
    def refuse_many(batch: Batch) -> pa.Table:
        if len(batch) > 2:
            raise ValueError("too many")
        return batch.records()

    found = isolate(refuse_many, make_batch([b"a"] * 4), ValueError("too many"))
    assert found.batch is None
    assert found.reasons == dict.fromkeys(range(4), "ValueError: too many")


def test_lack_of_memory_during_the_search_is_no_reason() -> None:
    def run_out(batch: Batch) -> pa.Table:
        raise MemoryError("malloc failed")

    with pytest.raises(MemoryError):
        isolate(run_out, make_batch([b"a"] * 4), ValueError("bad"))


def test_stream_with_other_columns_than_most_is_the_one_that_is_put_aside() -> None:
    def stream(table: pa.Table) -> bytes:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        return out.getvalue().to_pybytes()

    usual, odd = stream(pa.table({"a": [1]})), stream(pa.table({"b": ["x"]}))
    batch = make_batch([odd, usual, b"no stream", usual])
    with pytest.raises(BadEntry) as raised:
        arrow_ipc(batch)
    found = isolate(arrow_ipc, batch, raised.value)
    assert sorted(found.reasons) == [0, 2]
    assert found.table == pa.table({"a": [1, 1]})


# Dying on the way


LINES = [b"a", b"bad 1", b"b", b"c", b"bad 2"]


def check_outcome(store: MemoryStore, sink: LedgerSink, letters: MemoryStore) -> int:
    """Every good entry landed once, every bad one has a letter; repeated letters are equal. Returns their number."""
    assert sink.values() == [b"a", b"b", b"c", b"d"]
    assert acked(store) == 1
    found = read_letters(letters)
    different = {(letter.sequence, letter.first_entry): (letter, entries) for letter, entries in found}
    assert [entries for _letter, entries in different.values()] == [[b"bad 1"], [b"bad 2"]]
    assert all(item == different[item[0].sequence, item[0].first_entry] for item in found)
    return len(found)


@pytest.mark.parametrize("applied", [False, True])
def test_dying_after_the_letters_around_the_commit_lands_rows_once_and_letters_again(applied: bool) -> None:
    name = f"isolate-die-commit-{applied}"
    store, target = buffer_of(name, LINES, [b"d"]), MemoryStore(f"memory://{name}-letters")
    sink = LedgerSink((applied, Crash("here")), in_order=True)
    with Producer(target, flush_interval=0.01) as letters:
        with pytest.raises(Crash):
            run(store, sink, decoder=refuse_bad, dead_letters=letters)
        run(store, sink, decoder=refuse_bad, dead_letters=letters)
    assert check_outcome(store, sink, target) == 4, "the letters of the process that died, and those of its successor"


class DyingProducer(Producer):
    """Dies in one of its calls: before it, when it is queued, or when it is durable."""

    left = 0
    when = ""

    def produce(self, *args: Any, **settings: Any) -> Any:
        self.left -= 1
        if self.left == 0 and self.when == "before":
            raise Crash("before")
        handle = super().produce(*args, **settings)
        if self.left == 0 and self.when == "durable":
            handle.result()
        if self.left == 0:
            raise Crash(self.when)
        return handle


@pytest.mark.parametrize("when", ["before", "queued", "durable"])
@pytest.mark.parametrize("call", [1, 2])
def test_dying_in_any_call_for_a_letter_loses_none_and_repeats_no_row(call: int, when: str) -> None:
    name = f"isolate-die-letter-{call}-{when}"
    store, target = buffer_of(name, LINES, [b"d"]), MemoryStore(f"memory://{name}-letters")
    sink = LedgerSink()
    with DyingProducer(target, flush_interval=0.01) as letters:
        letters.left, letters.when = call, when
        with pytest.raises(Crash):
            run(store, sink, decoder=refuse_bad, dead_letters=letters)
        assert acked(store) is None
    with Producer(target, flush_interval=0.01) as letters:
        run(store, sink, decoder=refuse_bad, dead_letters=letters)
    check_outcome(store, sink, target)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_any_fault_of_any_write_of_a_letter_loses_none_and_repeats_no_row(fault: Fault) -> None:
    for at in range(20):
        name = f"isolate-fault-{fault.name}-{at}"
        store, target = buffer_of(name, LINES, [b"d"]), MemoryStore(f"memory://{name}-letters")
        with Producer(target, flush_interval=0.01) as first:  # makes the buffer
            first.flush().result()
        faulty = FaultyStore(target, {at: fault}, only={"create", "replace", "put"})
        sink = LedgerSink()
        with Producer(faulty, flush_interval=0.01, random=NoPauses(1)) as letters:
            run(store, sink, decoder=refuse_bad, dead_letters=letters)
        faulty.land_late_requests()
        check_outcome(store, sink, target)
        if sum(faulty.calls[kind] for kind in ("create", "replace", "put")) <= at:
            return
    pytest.fail("a run has more than 20 writes")


def test_rows_in_files_are_there_once_after_dying_between_letters_and_commit(tmp_path: Any) -> None:
    store, target = buffer_of("isolate-files", LINES, [b"d"]), MemoryStore("memory://isolate-files-letters")

    class DyingOnce(ParquetSink):
        died = False

        def commit(self, commit: Any) -> Any:
            if not self.died:
                self.died = True
                raise Crash("here")
            return super().commit(commit)

    with DyingOnce(f"file://{tmp_path}/out") as sink, Producer(target, flush_interval=0.01) as letters:
        with pytest.raises(Crash):
            run(store, sink, decoder=refuse_bad, dead_letters=letters)
        run(store, sink, decoder=refuse_bad, dead_letters=letters)
    assert sorted(pq.read_table(tmp_path / "out")["value"].to_pylist()) == [b"a", b"b", b"c", b"d"]
