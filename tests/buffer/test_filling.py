from __future__ import annotations

import sys
from random import Random

import pyarrow as pa
import pytest

from forebay.buffer.batch import Compression, decode_batch, encode_blocks, write_block
from forebay.buffer.filling import BLOCK_BYTES, Filling, check_call

LARGE = [bytes([65 + i % 26]) * 1000 for i in range(3 * BLOCK_BYTES // 1000)]


def fill(*calls: object, in_one_piece: bool = False, flush_size_bytes: int = 1 << 30) -> tuple[list[bytes], int]:
    filling = Filling(flush_size_bytes, in_one_piece=in_one_piece)
    for call in calls:
        filling.apply(check_call(call, b"", 0))  # type: ignore[arg-type]  # any of what a call takes
    filled, _ = filling.freeze()
    batch = decode_batch(encode_blocks(filled.take_blocks(), filled.count))
    assert (len(batch), batch.raw_bytes) == (filled.count, filled.raw_bytes)
    return list(batch.entries), len(filled.blocks.take()) + len(filled.loose)


@pytest.mark.parametrize("flush_size_bytes", [1 << 30, 1])
@pytest.mark.parametrize("in_one_piece", [False, True])
def test_calls_of_every_kind_keep_their_order_in_one_batch(in_one_piece: bool, flush_size_bytes: int) -> None:
    small = [b"a", b"", b"b" * 50_000]
    middling = [b"m%d" % i for i in range(100)]
    array = pa.array([b"c", b"d"])
    calls = (
        b"first", small, middling, pa.array(middling), pa.array(middling).cast(pa.large_binary()), LARGE, array,
        pa.chunked_array([pa.array(middling[:50]), pa.array(middling[50:])]), tuple(small),
        pa.chunked_array([pa.array(LARGE)]), b"last",
    )  # fmt: skip
    found, kept = fill(*calls, in_one_piece=in_one_piece, flush_size_bytes=flush_size_bytes)
    assert found == [
        b"first", *small, *middling, *middling, *middling, *LARGE, b"c", b"d", *middling, *small, *LARGE, b"last",
    ]  # fmt: skip
    assert kept == 0, "the frozen batch lets go of what was taken from it"


@pytest.mark.parametrize("call", [b"x" * 1000, [b"x" * 1000] * 100, pa.array([b"x" * 1000] * 100)])
def test_many_small_calls_share_blocks(call: object) -> None:
    filling = Filling(1 << 30)
    while filling.size() < 5 * BLOCK_BYTES // 2:
        filling.apply(check_call(call, b"", 0))  # type: ignore[arg-type]  # any of what a call takes
    filled, _ = filling.freeze()
    assert len(filled.take_blocks()) == 3, "the last calls make a block of what they are"


@pytest.mark.parametrize("call", [[b"x" * 1000] * 100, LARGE])
def test_blocks_that_shrink_become_one_piece(call: list[bytes]) -> None:
    filling = Filling(64 << 20, in_one_piece=True)
    while filling.size() < 20 << 20:
        applied = check_call(call, b"", 0)
        memory = applied.memory
        filling.apply(applied)
        assert applied.parts == [], "what was copied is not kept twice"
        assert applied.memory == memory, "what was taken of a bound is what is given back to it"
    filled, _ = filling.freeze()
    assert [len(block) for block in filled.take_blocks()] == [filled.raw_bytes]


@pytest.mark.parametrize("flush_size_bytes", [1 << 50, sys.maxsize])
@pytest.mark.parametrize("calls", [[[b"x"]], [LARGE], [[b"x"], LARGE, [b"y"]]])
def test_batch_that_is_flushed_by_time_alone_sets_no_memory_aside_for_its_size(
    calls: list[list[bytes]], flush_size_bytes: int
) -> None:
    found, _ = fill(*calls, in_one_piece=True, flush_size_bytes=flush_size_bytes)
    assert found == [entry for call in calls for entry in call]


def test_where_memory_is_short_blocks_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise pa.ArrowMemoryError(f"malloc of size {size} failed")

    filling = Filling(64 << 20, in_one_piece=True)
    with monkeypatch.context() as short:
        short.setattr("forebay.buffer.filling.pa.allocate_buffer", refuse)
        filling.apply(check_call(LARGE, b"", 0))
    filled, _ = filling.freeze()
    blocks = filled.take_blocks()
    assert len(blocks) > 1
    assert list(decode_batch(encode_blocks(blocks, filled.count)).entries) == LARGE


def test_blocks_that_do_not_shrink_stay_apart() -> None:
    noise = Random(1).randbytes(BLOCK_BYTES)
    filling = Filling(64 << 20, in_one_piece=True)
    for _ in range(4):
        filling.apply(check_call([noise], b"", 0))
    filled, _ = filling.freeze()
    assert len(filled.take_blocks()) == 4


@pytest.mark.parametrize("entries", [LARGE, tuple(LARGE), pa.array(LARGE), pa.array(LARGE).cast(pa.large_binary())])
def test_large_call_is_counted_by_what_it_holds(entries: object) -> None:
    call = check_call(entries, b"meta", 0)  # type: ignore[arg-type]  # any of what a call takes
    held = sum(part.nbytes for part in call.parts if isinstance(part, memoryview))
    assert call.memory == held + 4 == call.raw_bytes + 4
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
    filling = Filling(1 << 30)
    filling.apply(call)
    filled, _ = filling.freeze()
    assert set(decode_batch(encode_blocks(filled.take_blocks(), filled.count)).entries) == {b"a" * 1000}


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_blocks_are_let_go_while_the_batch_is_encoded(compression: Compression) -> None:
    blocks = [write_block([b"x" * 100, b""]), write_block([b"y"]), write_block(pa.array([b"z"] * 3))]
    batch = encode_blocks(blocks, 6, compression)
    assert blocks == []
    assert list(decode_batch(batch).entries) == [b"x" * 100, b"", b"y", b"z", b"z", b"z"]


def test_block_keeps_the_limits_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.buffer import batch
    from forebay.buffer.errors import InvalidInput

    monkeypatch.setattr(batch, "MAX_ENTRY_BYTES", 10)
    assert len(write_block([b"x" * 10, b"x" * 10])) == 28
    with pytest.raises(InvalidInput, match="11 bytes"):
        write_block([b"x" * 11])
