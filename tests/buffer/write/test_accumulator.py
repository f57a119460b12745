from __future__ import annotations

import sys
from array import array
from random import Random

import pyarrow as pa
import pytest
import zstandard

from forebay.buffer.base.errors import InvalidInput, Unavailable
from forebay.buffer.format import block_v2
from forebay.buffer.format.batch import Compression, Version, decode_batch, encode_blocks, write_block
from forebay.buffer.format.block_v2 import Lengths, lengths_of
from forebay.buffer.write import accumulator as accumulator_module
from forebay.buffer.write.accumulator import BLOCK_BYTES, Accumulator, FilledBatch, check_call

LARGE = [bytes([65 + i % 26]) * 1000 for i in range(3 * BLOCK_BYTES // 1000)]


def entries_of(filled: FilledBatch) -> list[bytes]:
    """What is in the batch that is made of it."""
    data = encode_blocks(filled.take_block(), filled.count, version=filled.version)
    assert data[-2:] == filled.version.to_bytes(2, "little")
    batch = decode_batch(data)
    assert (len(batch), batch.raw_bytes) == (filled.count, filled.raw_bytes)
    return list(batch.entries)


@pytest.mark.parametrize("flush_size_bytes", [1 << 30, 1])
@pytest.mark.parametrize("in_one_piece", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_calls_of_every_kind_keep_their_order_in_one_batch(
    version: Version, in_one_piece: bool, flush_size_bytes: int
) -> None:
    small = [b"a", b"", b"b" * 50_000]
    middling = [b"m%d" % i for i in range(100)]
    array = pa.array([b"c", b"d"])
    calls = (
        b"first", small, middling, pa.array(middling), pa.array(middling).cast(pa.large_binary()), LARGE, array,
        pa.chunked_array([pa.array(middling[:50]), pa.array(middling[50:])]), tuple(small),
        pa.chunked_array([pa.array(LARGE)]), b"last",
    )  # fmt: skip
    accumulator = Accumulator(flush_size_bytes, version=version, in_one_piece=in_one_piece)
    for call in calls:
        accumulator.apply(check_call(call, b"", 0))  # type: ignore[arg-type]  # any of what a call takes
    filled, _ = accumulator.freeze()
    assert entries_of(filled) == [
        b"first", *small, *middling, *middling, *middling, *LARGE, b"c", b"d", *middling, *small, *LARGE, b"last",
    ]  # fmt: skip
    assert sum(map(len, filled.blocks.take())) == 0, "the frozen batch lets go of what was taken from it"


@pytest.mark.parametrize("call", [b"x" * 1000, [b"x" * 1000] * 100, pa.array([b"x" * 1000] * 100)])
def test_many_small_calls_share_blocks(call: object) -> None:
    accumulator = Accumulator(1 << 30)
    while accumulator.size() < 5 * BLOCK_BYTES // 2:
        accumulator.apply(check_call(call, b"", 0))  # type: ignore[arg-type]  # any of what a call takes
    filled, _ = accumulator.freeze()
    assert len(filled.take_block()) == 4, "two pieces, what is left, and the lengths"


@pytest.mark.parametrize("calls", [1, 3])
def test_small_batch_is_one_piece_and_sets_no_memory_aside_for_a_full_one(calls: int) -> None:
    before = pa.total_allocated_bytes()
    accumulator = Accumulator(64 << 20, in_one_piece=True)
    for _ in range(calls):
        accumulator.apply(check_call([b"x" * 300_000], b"", 0))
    filled, _ = accumulator.freeze()
    if calls == 1:
        assert pa.total_allocated_bytes() - before < 1 << 20
    assert [len(piece) for piece in filled.take_block()] == [filled.raw_bytes]


@pytest.mark.parametrize("call", [[b"x" * 1000] * 100, LARGE])
def test_blocks_that_shrink_become_one_piece(call: list[bytes]) -> None:
    accumulator = Accumulator(64 << 20, in_one_piece=True)
    while accumulator.size() < 20 << 20:
        applied = check_call(call, b"", 0)
        memory = applied.memory
        accumulator.apply(applied)
        assert applied.parts == [], "what was copied is not kept twice"
        assert applied.memory == memory, "what was taken of a bound is what is given back to it"
    filled, _ = accumulator.freeze()
    assert [len(block) for block in filled.take_block()] == [filled.raw_bytes]


@pytest.mark.parametrize("flush_size_bytes", [1 << 50, sys.maxsize])
@pytest.mark.parametrize("calls", [[[b"x"]], [LARGE], [[b"x"], LARGE, [b"y"]]])
def test_batch_that_is_flushed_by_time_alone_sets_no_memory_aside_for_its_size(
    calls: list[list[bytes]], flush_size_bytes: int
) -> None:
    accumulator = Accumulator(flush_size_bytes, in_one_piece=True)
    for call in calls:
        accumulator.apply(check_call(call, b"", 0))
    assert entries_of(accumulator.freeze()[0]) == [entry for call in calls for entry in call]


def test_where_memory_is_short_blocks_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise pa.ArrowMemoryError(f"malloc of size {size} failed")

    accumulator = Accumulator(64 << 20, in_one_piece=True)
    with monkeypatch.context() as short:
        short.setattr("forebay.buffer.write.accumulator.pa.allocate_buffer", refuse)
        accumulator.apply(check_call(LARGE, b"", 0))
    filled, _ = accumulator.freeze()
    pieces = filled.take_block()
    assert len(pieces) > 1
    assert list(decode_batch(encode_blocks(pieces, filled.count)).entries) == LARGE


@pytest.mark.parametrize("version", [1, 2])
def test_call_that_memory_is_too_short_for_leaves_no_trace(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    accumulator = Accumulator(64 << 20, version=version, in_one_piece=True)
    small, large = [b"s" * 1000] * 100, [b"l" * 300_000]
    while accumulator.size() < BLOCK_BYTES:
        accumulator.apply(check_call(small, b"before", 0))
    before = accumulator.size()
    with monkeypatch.context() as short:
        short.setattr("forebay.buffer.write.accumulator.Blocks._append", refuse)
        for call in (small, large):
            with pytest.raises(MemoryError):
                accumulator.apply(check_call(call, b"refused", 1))
    accumulator.apply(check_call(b"after", b"after", 2))
    filled, _ = accumulator.freeze()
    assert list(dict.fromkeys(item.payload for item in filled.metadata)) == [b"before", b"after"]
    assert entries_of(filled) == [b"s" * 1000] * (before // 1004) + [b"after"]


def test_list_that_changes_during_the_call_is_taken_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [b"a" * 30, b"b"]

    def measure(found: list[bytes]) -> Lengths:
        lengths = lengths_of(found)
        entries.reverse()
        return lengths

    monkeypatch.setattr("forebay.buffer.write.accumulator.lengths_of", measure)
    accumulator = Accumulator(1 << 30)
    accumulator.apply(check_call(entries, b"", 0))
    assert entries_of(accumulator.freeze()[0]) == [b"a" * 30, b"b"]


def test_batch_with_half_a_call_in_it_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = Accumulator(1 << 30)
    accumulator.apply(check_call(b"whole", b"", 0))
    call = check_call(LARGE, b"", 0)
    call.parts[1] = (b"", None)  # type: ignore[assignment]  # stands for anything that goes wrong there
    with pytest.raises(TypeError):
        accumulator.apply(call)
    filled, _ = accumulator.freeze()
    with pytest.raises(Unavailable, match="produce its entries again"):
        filled.take_block()


def test_blocks_that_do_not_shrink_stay_apart() -> None:
    noise = Random(1).randbytes(BLOCK_BYTES)
    accumulator = Accumulator(64 << 20, in_one_piece=True)
    for _ in range(4):
        accumulator.apply(check_call([noise], b"", 0))
    filled, _ = accumulator.freeze()
    assert len(filled.take_block()) == 5, "and the lengths"


@pytest.mark.parametrize("entries", [LARGE, tuple(LARGE), pa.array(LARGE), pa.array(LARGE).cast(pa.large_binary())])
def test_large_call_is_counted_by_what_it_holds(entries: object) -> None:
    call = check_call(entries, b"meta", 0)  # type: ignore[arg-type]  # any of what a call takes
    held = sum(len(data) + 4 * len(lengths) for data, lengths in call.parts)
    assert held == call.raw_bytes
    assert held + 4 < call.memory < 1.01 * held
    assert len(call.parts) > 1, "in pieces that can be let go one by one"


@pytest.mark.parametrize("rows", [10, 2000])
def test_slice_of_an_array_does_not_keep_the_whole_array(rows: int) -> None:
    before = pa.total_allocated_bytes()
    whole = pa.array([b"x" * 1000] * 50_000, pa.binary())
    call = check_call(whole.slice(100, rows), b"", 0)
    del whole
    assert pa.total_allocated_bytes() - before <= 2 * call.raw_bytes


def test_entries_changed_after_the_call_are_stored_as_they_were() -> None:
    storage = bytearray(b"a" * 300_000)
    offsets = pa.py_buffer(memoryview(b"".join(i.to_bytes(4, "little") for i in range(0, 300_001, 1000))))
    call = check_call(pa.Array.from_buffers(pa.binary(), 300, [None, offsets, pa.py_buffer(storage)]), b"", 0)
    storage[:] = b"b" * 300_000
    accumulator = Accumulator(1 << 30)
    accumulator.apply(call)
    assert set(entries_of(accumulator.freeze()[0])) == {b"a" * 1000}


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_pieces_are_let_go_while_the_batch_is_encoded(compression: Compression) -> None:
    pieces = [memoryview(b"x" * 100), memoryview(b"yz"), memoryview(bytes([100, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]))]
    batch = encode_blocks(pieces, 3, compression)
    assert pieces == []
    assert list(decode_batch(batch).entries) == [b"x" * 100, b"", b"yz"]


@pytest.mark.parametrize("array_bytes", [block_v2.MAX_ARRAY_BYTES, 27])
def test_block_of_version_1_is_the_same_with_offsets_of_either_size(
    monkeypatch: pytest.MonkeyPatch, array_bytes: int
) -> None:
    monkeypatch.setattr(block_v2, "MAX_ARRAY_BYTES", array_bytes)
    block = write_block(b"abcdefghijklmnop", array("I", [10, 0, 6]))
    assert bytes(block) == b"\n\0\0\0abcdefghij\0\0\0\0\6\0\0\0klmnop"


def test_large_calls_of_version_1_share_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make a block takes several passes of Arrow's kernels, each with a fixed cost."""
    made = []

    def count_and_write(data: bytes | memoryview, lengths: Lengths) -> memoryview:
        made.append(len(lengths))
        return write_block(data, lengths)

    monkeypatch.setattr(accumulator_module, "write_block", count_and_write)
    accumulator = Accumulator(8 * BLOCK_BYTES, version=1, in_one_piece=True)
    call = [b"x" * 100] * 1000
    calls = 4 * BLOCK_BYTES // (104 * 1000)
    for _ in range(calls):
        accumulator.apply(check_call(call, b"", 0))
    filled, _ = accumulator.freeze()
    assert entries_of(filled) == call * calls
    assert len(made) <= 5


@pytest.mark.parametrize(("version", "items"), [(1, [0, 2, 3]), (2, [0])])
def test_calls_share_a_metadata_item_in_version_2_and_have_one_each_in_version_1(
    version: Version, items: list[int]
) -> None:
    """OpenData Buffer writes an item for each call."""
    accumulator = Accumulator(1 << 20, version=version)
    for entries in ([b"a", b"b"], b"c", b"d"):
        accumulator.apply(check_call(entries, b"m", 7))
    filled, _ = accumulator.freeze()
    assert [item.start_index for item in filled.metadata] == items


def test_single_calls_of_version_1_do_not_make_small_batches() -> None:
    accumulator = Accumulator(1 << 30, version=1)
    for _ in range(20_000):
        accumulator.apply(check_call(b"x", b"", 7))
    assert accumulator.size() < 1 << 30


@pytest.mark.parametrize("offsets", [[0, 10, 5, 20], [0, 25, 20, 20], [0, -5, 3, 20]])
def test_array_with_wrong_offsets_is_refused(offsets: list[int]) -> None:
    data = pa.py_buffer(b"x" * 20)
    array = pa.Array.from_buffers(pa.binary(), 3, [None, pa.array(offsets, pa.int32()).buffers()[1], data])
    for entries in (array, pa.chunked_array([array])):
        with pytest.raises(InvalidInput, match="array of entries is damaged"):
            check_call(entries, b"", 0)


class Liar(bytes):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_entry_of_a_subclass_is_stored_as_its_bytes() -> None:
    accumulator = Accumulator(1 << 20)
    for entry in (b"a", Liar(b"b"), b"c"):
        accumulator.apply(check_call(entry, b"", 0))
    filled, _ = accumulator.freeze()
    assert entries_of(filled) == [b"a", b"b", b"c"]


def test_metadata_of_a_subclass_becomes_plain_bytes() -> None:
    call = check_call(b"x", Liar(b"m"), 0)
    assert type(call.metadata) is bytes
    assert call.metadata == b"m"


@pytest.mark.parametrize("number", [1, 2])
def test_call_whose_number_does_not_grow_in_the_queue_is_refused(number: int) -> None:
    accumulator = Accumulator(1 << 20)
    first, second = (check_call(entry, b"", 0) for entry in (b"2", b"later"))
    first.number, second.number = 2, number
    accumulator.apply(first)
    accumulator.freeze()
    with pytest.raises(InvalidInput, match="numbers must grow"):
        accumulator.apply(second)


def test_zstd_without_memory_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise zstandard.ZstdError("cannot compress: Allocation error : not enough memory")

    accumulator = Accumulator(1 << 20)
    accumulator.apply(check_call(b"x", b"", 0))
    filled, _ = accumulator.freeze()
    monkeypatch.setattr(accumulator_module, "encode_blocks", fail)
    with pytest.raises(MemoryError):
        filled.encode("zstd", 3)
