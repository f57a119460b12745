"""Batches that cannot be used: the runtime halts, or keeps them as dead letters and goes on (rfcs/0007).

No decoder can refuse rows. test_runtime_typed.py and test_sink_poison.py test letters of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from filled import acked, append_data, fill, new_buffer, run
from kinds import Kind

from forebay.buffer.base.errors import Corrupt, InvalidInput, NotFound
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Combining, DeadLetter, Fatal, Halted
from forebay.testing import Fault, FaultyStore, ManualClock
from forebay.testing.ledger import LedgerSink


@pytest.fixture
def letters(request: pytest.FixtureRequest) -> Iterator[Producer]:
    """A producer of a buffer for dead letters."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with Producer(f"memory://letters-{name}", flush_interval=0.01) as producer:
        yield producer


def read_letters(letters: Producer) -> list[tuple[DeadLetter, list[bytes]]]:
    found = []
    for batch in Consumer(letters.url):
        starts = [item.start_index for item in batch.metadata] + [len(batch)]
        for number, item in enumerate(batch.metadata):
            letter = DeadLetter.parse(item.payload)
            found.append((letter, list(batch.entries[starts[number] : starts[number + 1]])))
    return sorted(found, key=lambda item: item[0].sequence)


def decode(batch: Batch) -> pa.Table:
    if any(b"bad" in entry for entry in batch.entries):
        raise ValueError("entry 1 is bad")
    return batch.records()


def with_bad(name: str) -> MemoryStore:
    """Ten batches, of which the decoder refuses 4 and 7."""
    store = new_buffer(name, 0)
    held = [[b"good", b"bad" if number in (4, 7) else b"good"] for number in range(10)]
    Queue(store).append([append_data(store, i, bytes(encode_batch(h, "none")), h) for i, h in enumerate(held)])
    return store


EACH = [(number, number) for number in range(10)]


def test_batch_that_cannot_be_decoded_halts_and_nothing_after_it_is_acknowledged() -> None:
    store = with_bad("halt")
    told = r"runtime-halt: batch 4, entry 1, cannot be used: ValueError: entry 1 is bad.*\[dead_letters\] with url"
    with pytest.raises(Halted, match=told):
        run(store, LedgerSink(in_order=True), decoder=decode, config={"fetch_workers": 1, "max_batches": 1})
    assert acked(store) == 3


@pytest.mark.parametrize("in_order", [False, True])
def test_entry_that_cannot_be_decoded_becomes_a_dead_letter_and_the_others_land(
    letters: Producer, in_order: bool
) -> None:
    store = with_bad(f"letter-{in_order}")
    sink = LedgerSink(in_order=in_order)
    status = run(store, sink, decoder=decode, dead_letters=letters)
    assert sink.ranges == EACH
    assert sink.values() == [b"good"] * 18
    assert acked(store) == 9
    assert status.sources[0].dead_letters == 2
    first, second = read_letters(letters)
    reader = Consumer(store, group="etl").reader
    assert first == (
        DeadLetter(
            url=store.url,
            source=reader.source,
            group="etl",
            generation=reader.generation,
            sequence=4,
            location="data/4",
            first_entry=1,
            last_entry=1,
            error="ValueError: entry 1 is bad",
        ),
        [b"bad"],
    )
    assert second[0].sequence == 7


def test_frontier_passes_a_dead_letter_only_once_it_is_durable(letters: Producer) -> None:
    store = with_bad("letter-durable")
    inner = letters.produce
    seen = []

    class Waiting:
        def __init__(self, handle: Any) -> None:
            self.handle = handle

        def result(self) -> None:
            seen.append(acked(store))
            self.handle.result()

    letters.produce = lambda *args, **kwargs: Waiting(inner(*args, **kwargs))  # type: ignore[assignment,method-assign,return-value]
    run(store, LedgerSink(), decoder=decode, dead_letters=letters, config={"ack_every": 1})
    assert all(frontier is None or frontier < 7 for frontier in seen)
    assert len(seen) == 2


def test_poison_in_a_combined_range_is_taken_out_and_its_identity_stays(letters: Producer) -> None:
    store = with_bad("letter-range")
    sink = LedgerSink(combining=Combining(1 << 20))
    run(store, sink, decoder=decode, dead_letters=letters)
    assert sink.ranges == [(0, 9)]
    assert len(sink.values()) == 18
    assert [letter.sequence for letter, _ in read_letters(letters)] == [4, 7]


def test_damaged_object_becomes_a_dead_letter_as_it_is(letters: Producer, kind: Kind) -> None:
    store = new_buffer("damaged", 3, kind=kind)
    store.put("data/1", b"not a batch at all")
    run(store, LedgerSink(), dead_letters=letters)
    ((letter, entries),) = read_letters(letters)
    assert entries == [b"not a batch at all"]
    assert (letter.sequence, letter.first_entry, letter.last_entry) == (1, None, None)
    assert "CRC32C" in letter.error
    with pytest.raises(Halted, match=r"batch 1 cannot be used: Corrupt.*\[dead_letters\]"):
        run(store, LedgerSink(), group="halts")


def test_missing_object_becomes_a_dead_letter_of_nothing(letters: Producer, kind: Kind) -> None:
    store = new_buffer("missing", 3, kind=kind)
    store.delete(["data/1"])
    sink = LedgerSink()
    run(store, sink, dead_letters=letters)
    assert sink.ranges == [(0, 0), (2, 2)]
    ((letter, entries),) = read_letters(letters)
    assert (letter.sequence, letter.first_entry, entries) == (1, None, [b""])
    assert letter.error.startswith("NotFound")


def test_data_that_the_sink_refuses_becomes_dead_letters(letters: Producer) -> None:
    store = new_buffer("refused", 6)
    sink = LedgerSink((False, Fatal("does not fit the table", poison=True)), in_order=True)
    run(store, sink, dead_letters=letters)
    assert sink.ranges == [(number, number) for number in range(1, 6)]
    ((letter, entries),) = read_letters(letters)
    assert (letter.sequence, letter.error, entries) == (0, "does not fit the table", [b"0:0", b"0:1"])
    assert acked(store) == 5
    with pytest.raises(Halted, match="does not fit"):
        run(store, LedgerSink((False, Fatal("does not fit", poison=True))), group="halts")


def test_refusal_for_other_reasons_halts_and_makes_no_dead_letter(letters: Producer, kind: Kind) -> None:
    store = new_buffer("refusal", 2, kind=kind)
    with pytest.raises(Halted, match=r"batch [01], group etl: the sink refused: table dropped\. Remove the cause"):
        run(store, LedgerSink((False, Fatal("table dropped"))), dead_letters=letters)
    with pytest.raises(Halted):
        run(store, LedgerSink(*[(False, OSError("down"))] * 99), dead_letters=letters)
    assert read_letters(letters) == []


def test_batches_that_make_no_table_together_are_poison(letters: Producer) -> None:
    store = new_buffer("contradiction", 2)

    def contradict(batch: Batch) -> pa.Table:
        return pa.table({"a": [1] if batch.sequence else ["text"]})

    run(store, LedgerSink(combining=Combining(1 << 20)), decoder=contradict, dead_letters=letters)
    assert [letter.sequence for letter, _ in read_letters(letters)] == [0, 1]
    assert acked(store) == 1


def test_object_that_cannot_be_read_for_a_while_is_no_poison(kind: Kind) -> None:
    class FailsOnBatches(FaultyStore):
        def get(self, key: str) -> Any:
            return super().get(key) if key.startswith("data/") else self.inner.get(key)

    store = FailsOnBatches(new_buffer("unreachable", 5, kind=kind), dict.fromkeys(range(40), Fault.FAIL), only={"get"})
    sink = LedgerSink()
    run(store, sink)
    assert len(sink.rows) == 5
    assert store.calls["get"] == 45


def test_dead_letters_that_cannot_be_written_for_a_while_are_tried_again() -> None:
    store = with_bad("letters-unreachable")
    target = FaultyStore(MemoryStore("memory://letters-faulty"), dict.fromkeys(range(4), Fault.FAIL), only={"put"})
    with Producer(target, flush_interval=0.01) as letters:
        run(store, LedgerSink(), decoder=decode, dead_letters=letters)
    kept = [DeadLetter.parse(item.payload).sequence for batch in Consumer(target) for item in batch.metadata]
    assert set(kept) == {4, 7}
    assert acked(store) == 9


OLD = (
    b'{"url":"memory://a","source":"00","group":"etl","generation":"11","sequence":7,"location":"data/x",'
    b'"first_entry":0,"last_entry":9,"error":"ValueError: not mine"}'
)
"""A letter as the first version wrote it: a whole batch, without indexes and metadata."""


def test_letter_that_an_earlier_version_wrote_is_read() -> None:
    letter = DeadLetter.parse(OLD)
    assert letter == DeadLetter("memory://a", "00", "etl", "11", 7, "data/x", 0, 9, "ValueError: not mine")
    assert (letter.count, letter.place, letter.metadata) == (10, "entries 0 to 9", [])


def test_earlier_version_can_read_the_letters_of_this_one() -> None:
    class Old(msgspec.Struct):
        url: str
        sequence: int
        first_entry: int | None
        last_entry: int | None
        error: str

    new = DeadLetter("memory://a", "00", "etl", "11", 7, "data/x", 2, 9, "bad", [2, 5, 9], [(0, b"svc=web")])
    assert msgspec.json.decode(msgspec.json.encode(new), type=Old) == Old("memory://a", 7, 2, 9, "bad")
    assert DeadLetter.parse(msgspec.json.encode(new)) == new


def test_metadata_of_something_else_is_no_dead_letter() -> None:
    with pytest.raises(Corrupt):
        DeadLetter.parse(b"svc=web")


def test_bucket_that_is_gone_is_no_poison(kind: Kind) -> None:
    store = new_buffer("bucket", 2, kind=kind)

    class Gone(FaultyStore):
        def get(self, key: str) -> Any:
            if not key.startswith("data/"):
                return super().get(key)
            raise NotFound(f"the bucket of {key} is not there", bucket=True)

    with pytest.raises(NotFound, match="bucket"):
        run(Gone(store), LedgerSink())
    fill(store, 1)


def test_lack_of_memory_is_no_poison(letters: Producer, kind: Kind) -> None:
    def run_out(batch: Batch) -> pa.Table:
        if batch.sequence == 4:
            raise pa.ArrowMemoryError("malloc of size 1000000 failed")
        return batch.records()

    store = new_buffer("memory-is-short", kind=kind)
    with pytest.raises(MemoryError, match=f"{store.url}: batch 4: malloc of size"):
        run(store, LedgerSink(), decoder=run_out, dead_letters=letters)
    assert read_letters(letters) == []
    run(store, LedgerSink(), dead_letters=letters)
    assert acked(store) == 9


def test_lack_of_memory_to_put_batches_together_is_no_poison(letters: Producer) -> None:
    def decode_more_than_fits(batch: Batch) -> pa.Table:
        # Nulls without a type take no memory. Joined with numbers, they need more than any address space has.
        nulls = pa.Array.from_buffers(pa.null(), 1 << 60, [None])
        return pa.table({"value": nulls if batch.sequence == 1 else pa.array([1])})

    store, sink = new_buffer("memory-is-short-later"), LedgerSink()
    sink.combining = Combining(target_bytes=100)
    with pytest.raises(Halted, match="malloc of size"):
        run(store, sink, decoder=decode_more_than_fits, dead_letters=letters)
    assert read_letters(letters) == []


def test_dead_letters_never_go_to_a_source() -> None:
    store = new_buffer("its-own-letters", 1)
    with Producer(store) as letters, pytest.raises(InvalidInput, match="another buffer"):
        run(store, LedgerSink(), dead_letters=letters)


# Reads that are falsified once


@pytest.mark.parametrize("number", range(10))
def test_batch_that_arrives_falsified_once_is_no_poison(letters: Producer, number: int, kind: Kind) -> None:
    store = new_buffer(f"falsified-{number}", 10, kind=kind)
    consumer = Consumer(store, group="etl", clock=ManualClock())
    consumer.fetch_handle().store = FaultyStore(store, {number: Fault.FALSIFY}, only={"get"})
    sink = LedgerSink()
    status = run(consumer, sink, dead_letters=letters)
    assert len(sink.rows) == 10
    assert status.sources[0].dead_letters == 0
    assert acked(store) == 9


def test_batch_without_a_checksum_that_arrives_falsified_once_is_no_poison(letters: Producer) -> None:
    """Version 1, uncompressed: only the decoder can notice."""
    store = MemoryStore("memory://falsified-v1")
    paths = {"manifest_path": "manifest", "data_prefix": "data"}
    with Producer(store, profile="opendata", compression="none", flush_interval=1000, **paths) as producer:
        producer.produce([b"x" * 4000])
        producer.flush().result()

    def refuse_changes(batch: Batch) -> pa.Table:
        if batch.entries[0] != b"x" * 4000:
            raise ValueError("it is not what was produced")
        return batch.records()

    consumer = Consumer(store, clock=ManualClock())
    consumer.fetch_handle().store = FaultyStore(store, {0: Fault.FALSIFY}, only={"get"})
    sink = LedgerSink()
    status = run(consumer, sink, decoder=refuse_changes, dead_letters=letters)
    assert len(sink.rows) == 1
    assert status.sources[0].dead_letters == 0
