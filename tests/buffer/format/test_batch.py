from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.format import batch, block_v1, block_v2
from forebay.buffer.format.batch import DecodedBatch, decode_batch, encode_batch, raw_size

SHAPES: dict[str, list[bytes]] = {
    "none": [],
    "one": [b"drop"],
    "one empty": [b""],
    "empties": [b""] * 1000,
    "mixed": [b"a", b"", b"\x00\xff", b"long " * 10_000, b"", b"z"],
    "a length of every width": [bytes(size) for size in (0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0x123456)],
}
EVERY_SHAPE = pytest.mark.parametrize("entries", SHAPES.values(), ids=SHAPES)
EVERY_COMPRESSION = pytest.mark.parametrize("compression", ["none", "zstd"])
EVERY_VERSION = pytest.mark.parametrize("version", [1, 2])


def write_out(entries: Sequence[bytes], version: int) -> bytes:
    """The block, by the layout."""
    lengths = [struct.pack("<I", len(entry)) for entry in entries]
    if version == 1:
        return b"".join(length + entry for length, entry in zip(lengths, entries, strict=True))
    return b"".join([*entries, *lengths])


def footer(compression: int, count: int, version: int) -> bytes:
    return struct.pack("<BIH", compression, count, version)


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


# --- encoding -------------------------------------------------------------------------------------------------------


@EVERY_SHAPE
@EVERY_VERSION
def test_uncompressed_batch_is_the_layout(version: Any, entries: list[bytes]) -> None:
    expected = write_out(entries, version) + footer(0, len(entries), version)
    assert encode_batch(entries, "none", version=version) == expected


@EVERY_SHAPE
@EVERY_VERSION
def test_zstd_batch_is_the_layout_in_one_frame(version: Any, entries: list[bytes]) -> None:
    data = bytes(encode_batch(entries, version=version))
    assert zstandard.ZstdDecompressor().decompress(data[:-7], allow_extra_data=False) == write_out(entries, version)
    assert data[-7:] == footer(1, len(entries), version)


@pytest.mark.parametrize("version", [0, 3, None, "2"])
def test_there_are_two_versions_to_write(version: Any) -> None:
    with pytest.raises(InvalidInput, match="must be 1 or 2"):
        encode_batch([], version=version)


@EVERY_VERSION
def test_zstd_frame_tells_its_content_size_and_carries_a_checksum_where_no_manifest_does(version: Any) -> None:
    frame = zstandard.get_frame_parameters(encode_batch([b"drop"] * 100, version=version))
    assert frame.content_size == 800
    assert frame.has_checksum == (version == 1)


def test_object_is_no_view_of_a_stream() -> None:
    """Python 3.12 crashes when it collects a cycle that holds one, such as the error of a failed upload."""
    data = encode_batch([b"entry"])
    assert isinstance(data, memoryview)
    assert isinstance(data.obj, bytes)


def test_level_reaches_zstd() -> None:
    entries = [b"%d:%d" % (number, number * 7919 % 1000) for number in range(20_000)]
    assert len(encode_batch(entries, level=19)) < len(encode_batch(entries, level=-7))


@EVERY_COMPRESSION
@EVERY_SHAPE
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_arrow_array_gives_the_bytes_of_the_list(kind: pa.DataType, entries: list[bytes], compression: Any) -> None:
    expected = encode_batch(entries, compression)
    assert encode_batch(pa.array(entries, kind), compression) == expected
    assert encode_batch(pa.chunked_array([pa.array(entries, kind)]), compression) == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_chunks_are_joined_in_order(kind: pa.DataType) -> None:
    chunks = [pa.array(part, kind) for part in ([b"a", b"bb"], [], [b""], [b"ccc"])]
    assert encode_batch(pa.chunked_array(chunks), "none") == encode_batch([b"a", b"bb", b"", b"ccc"], "none")


def test_array_without_chunks_is_an_empty_batch() -> None:
    assert encode_batch(pa.chunked_array([], pa.binary()), "none") == footer(0, 0, 2)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize(("start", "length"), [(0, 3), (3, 4), (7, 3), (9, 1), (5, 0)])
def test_slice_gives_its_own_entries_only(kind: pa.DataType, start: int, length: int) -> None:
    entries = [b"%d" % number * number for number in range(10)]
    part = pa.array(entries, kind).slice(start, length)
    assert encode_batch(part, "none") == encode_batch(entries[start : start + length], "none")


def test_slice_of_an_array_that_starts_within_its_buffers_is_right() -> None:
    inner = pa.array([b"skip", b"a", b"bb", b"ccc", b"skip"], pa.large_binary()).slice(1, 3).slice(1)
    assert encode_batch(inner, "none") == encode_batch([b"bb", b"ccc"], "none")


def test_entries_may_be_any_kind_of_bytes() -> None:
    given = [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], type("MyBytes", (bytes,), {})(b"d")]
    assert encode_batch(given, "none") == encode_batch([b"a", b"b", b"c", b"d"], "none")  # type: ignore[arg-type]  # on purpose
    assert encode_batch((b"a",), "none") == encode_batch([b"a"], "none")


def test_decoded_entries_can_be_encoded_again() -> None:
    data = encode_batch(SHAPES["mixed"])
    assert encode_batch(decode_batch(data).entries) == encode_batch(decode_batch(data).arrow) == data


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([b"a", None], "NoneType"),
        ([b"a", "text"], "str"),
        (["text"], "str"),
        ([b"a", 1], "int"),
        (b"one entry", "bytes"),
        ("text", "str"),
        (7, "int"),
        (pa.array([b"a", None]), "1 of 2 entries are null"),
        (pa.chunked_array([pa.array([b"a"]), pa.array([None], pa.binary())]), "null"),
        (pa.array(["text"]), "string"),
        (pa.array([1]), "int64"),
    ],
    ids=str,
)
@EVERY_COMPRESSION
def test_what_is_not_bytes_is_refused_by_name(entries: Any, said: str, compression: Any) -> None:
    with pytest.raises(InvalidInput, match=said):
        encode_batch(entries, compression)


@pytest.mark.parametrize("compression", ["lz4", "", None, 1, "ZSTD"])
def test_unknown_compression_is_refused(compression: Any) -> None:
    with pytest.raises(InvalidInput, match="none, zstd"):
        encode_batch([], compression)


@pytest.mark.parametrize("level", [-8, 23, 10**30, True, 3.0, "3", None])
def test_level_out_of_range_is_refused(level: Any) -> None:
    with pytest.raises(InvalidInput, match="-7 to 22"):
        encode_batch([], level=level)


def test_block_that_readers_would_refuse_is_not_written() -> None:
    assert encode_batch([bytes(96)], max_raw_bytes=100)
    with pytest.raises(InvalidInput, match="block of 101 bytes; the most is 100"):
        encode_batch([bytes(97)], max_raw_bytes=100)


@EVERY_VERSION
def test_entry_that_fits_no_array_is_not_written(version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_ENTRY_BYTES", 10)
    assert encode_batch([bytes(10), bytes(10)], version=version)
    with pytest.raises(InvalidInput, match="an entry is 11 bytes long; the most is 10"):
        encode_batch([b"", bytes(11)], version=version)


@EVERY_SHAPE
def test_raw_size_is_the_size_of_the_uncompressed_block(entries: list[bytes]) -> None:
    size = len(write_out(entries, 1))
    assert size == len(write_out(entries, 2))
    array = pa.array([b"before", *entries, b"after"], pa.binary()).slice(1, len(entries))
    assert raw_size(entries) == raw_size(array) == raw_size(array.cast(pa.large_binary())) == size
    assert raw_size(pa.chunked_array([array, array])) == 2 * size


# --- decoding -------------------------------------------------------------------------------------------------------


@EVERY_COMPRESSION
@EVERY_SHAPE
@EVERY_VERSION
def test_batch_comes_back_as_it_went_in(version: Any, entries: list[bytes], compression: Any) -> None:
    decoded = decode_batch(encode_batch(entries, compression, version=version))
    for chunk in decoded.chunks:
        chunk.validate(full=True)
    assert decoded.arrow.equals(pa.array(entries, pa.binary()))
    assert decoded.entries == entries
    assert len(decoded) == len(decoded.entries) == len(entries)
    assert decoded.raw_bytes == len(write_out(entries, version))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, pa.py_buffer, lambda data: memoryview(b"x" + data)[1:]])
@EVERY_COMPRESSION
@EVERY_VERSION
def test_object_may_come_in_any_form_of_bytes(version: Any, wrap: Any, compression: Any) -> None:
    data = bytes(encode_batch(SHAPES["mixed"], compression, version=version))
    assert decode_batch(wrap(data)).entries == SHAPES["mixed"]


@EVERY_COMPRESSION
@EVERY_VERSION
def test_decoded_batch_does_not_lean_on_an_object_that_may_change(version: Any, compression: Any) -> None:
    data = bytearray(encode_batch(SHAPES["mixed"], compression, version=version))
    decoded = decode_batch(data)
    data[:] = bytes(len(data))
    assert decoded.entries == SHAPES["mixed"]


@EVERY_COMPRESSION
def test_entries_of_version_2_stand_on_the_block(compression: Any) -> None:
    data = bytes(encode_batch([b"x" * 1000] * 1000, compression))
    before = pa.total_allocated_bytes()
    decoded = decode_batch(data)
    block = decoded.raw_bytes if compression == "zstd" else 0
    assert pa.total_allocated_bytes() - before < block + 5_000, "one block, if any, and 4 bytes of offset an entry"


@EVERY_SHAPE
@EVERY_VERSION
def test_frame_without_content_size_decodes(version: int, entries: list[bytes]) -> None:
    frame = zstd(write_out(entries, version), write_content_size=False, write_checksum=True)
    assert zstandard.frame_content_size(frame) == -1
    decoded = decode_batch(frame + footer(1, len(entries), version))
    assert decoded.entries == entries
    assert decoded.raw_bytes == len(write_out(entries, version))


@EVERY_VERSION
def test_frame_without_content_size_that_grows_a_thousandfold_decodes(version: int) -> None:
    entries = [bytes(1 << 20)] * 8
    frame = zstd(write_out(entries, version), write_content_size=False)
    assert len(frame) < 8 << 10
    assert decode_batch(frame + footer(1, 8, version)).entries == entries


@pytest.mark.parametrize("sizes", [(True, True), (True, False), (False, True), (False, False)])
@EVERY_VERSION
def test_frames_one_after_the_other_decode_as_one_block(version: int, sizes: tuple[bool, bool]) -> None:
    block = write_out(SHAPES["mixed"], version)
    parts = (block[:1001], block[1001:])  # in the middle of an entry
    frames = b"".join(zstd(part, write_content_size=told) for part, told in zip(parts, sizes, strict=True))
    assert decode_batch(frames + footer(1, len(SHAPES["mixed"]), version)).entries == SHAPES["mixed"]


@EVERY_VERSION
def test_frame_of_a_long_window_decodes(version: int) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27, write_content_size=False)
    block = write_out(SHAPES["mixed"], version)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(block)
    assert decode_batch(frame + footer(1, len(SHAPES["mixed"]), version)).entries == SHAPES["mixed"]


# --- batches larger than a page or an Arrow array --------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [
        [b"%04d" % number * 5 for number in range(500)],
        [b"x" * 250] * 10 + [b""] * 500,  # the average is far from the start
        [b""] * 500 + [b"x" * 250] * 10,
        [b"x" * (number % 252) for number in range(400)],
    ],
    ids=["even", "large first", "large last", "ragged"],
)
@EVERY_COMPRESSION
@EVERY_VERSION
def test_batch_too_large_for_an_array_comes_back_in_chunks(
    version: Any, entries: list[bytes], compression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_v1, "MAX_PAGE_BYTES", 256)
    monkeypatch.setattr(block_v2, "MAX_ARRAY_BYTES", 252)
    decoded = decode_batch(encode_batch(entries, compression, version=version))
    assert len(decoded.chunks) > 1
    assert all(chunk.type == pa.binary() and chunk.total_values_length <= 252 for chunk in decoded.chunks)
    for chunk in decoded.chunks:
        chunk.validate(full=True)
    assert isinstance(decoded.arrow, pa.ChunkedArray)
    assert decoded.arrow.type == pa.binary()
    assert decoded.entries == entries
    assert decoded.entries[len(entries) - 1] == entries[-1]
    assert len(decoded) == len(entries)


def test_damage_beyond_the_first_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_v1, "MAX_PAGE_BYTES", 256)
    block = bytearray(write_out([b"x" * 20] * 100, 1))
    for wrong in (19, 21, 2**32 - 1):
        block[24 * 60 : 24 * 60 + 4] = struct.pack("<I", wrong)
        with pytest.raises(Corrupt):
            decode_batch(bytes(block) + footer(0, 100, 1))
    for count in (99, 98, 101, 1, 0):
        with pytest.raises(Corrupt):
            decode_batch(write_out([b"x" * 20] * 100, 1) + footer(0, count, 1))


def test_damage_to_a_batch_too_large_for_an_array_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_v2, "MAX_ARRAY_BYTES", 256)
    block = write_out([b"x" * 20] * 100, 2)
    for wrong in (19, 21, 257, 2**32 - 1):
        damaged = block[: 2000 + 4 * 60] + struct.pack("<I", wrong) + block[2000 + 4 * 61 :]
        with pytest.raises(Corrupt):
            decode_batch(damaged + footer(0, 100, 2))
    for count in (99, 98, 101, 1, 0):
        with pytest.raises(Corrupt):
            decode_batch(block + footer(0, count, 2))
    with pytest.raises(Corrupt, match="2 GiB or more"):
        decode_batch(write_out([b"x" * 257], 2) + footer(0, 1, 2))


@pytest.mark.slow
@EVERY_COMPRESSION
@EVERY_VERSION
def test_more_than_two_gigabytes_of_entries_come_back(version: Any, compression: Any) -> None:
    megabyte = bytes(range(256)) * 4096
    chunk = pa.array([megabyte, b"", megabyte[:-1]] * 100, pa.binary())
    entries = pa.chunked_array([chunk] * 11)
    assert raw_size(entries) > 2**31
    decoded = decode_batch(encode_batch(entries, compression, 1, version=version))
    assert len(decoded) == len(entries)
    assert decoded.raw_bytes == raw_size(entries)
    assert [c.type for c in decoded.chunks] == [pa.binary()] * len(decoded.chunks)
    assert decoded.arrow.equals(entries)


@pytest.mark.slow
@EVERY_VERSION
def test_largest_entry_comes_back(version: Any) -> None:
    entry = bytes(batch.MAX_ENTRY_BYTES)
    decoded = decode_batch(encode_batch([b"before", entry, b"after"], "zstd", 1, version=version))
    assert decoded.entries == [b"before", entry, b"after"]


# --- the lazy sequence ----------------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> DecodedBatch:
    monkeypatch.setattr(batch, "_ENTRIES_AT_ONCE", 3)
    return DecodedBatch((pa.array([b"0", b"1", b"2", b"3", b"4"]), pa.array([b"5", b"6"])), 35)


def test_entries_behave_as_a_list_does(decoded: DecodedBatch) -> None:
    entries, expected = decoded.entries, [b"%d" % number for number in range(7)]
    assert list(entries) == expected
    assert [entries[i] for i in range(-7, 7)] == [expected[i] for i in range(-7, 7)]
    for piece in (slice(None), slice(2, 6), slice(-3, None), slice(5, 2), slice(None, None, 2), slice(None, None, -1)):
        assert entries[piece] == expected[piece]
    assert b"6" in entries
    assert b"7" not in entries
    assert entries.index(b"5") == 5
    assert list(reversed(entries)) == expected[::-1]
    for index in (7, -8):
        with pytest.raises(IndexError):
            entries[index]


def test_entries_equal_the_same_entries_and_nothing_else(decoded: DecodedBatch) -> None:
    entries = decoded.entries
    assert entries == decoded.entries
    assert entries == tuple(entries)
    assert entries != list(entries)[:-1]
    assert entries != [*list(entries)[:-1], b"x"]
    assert entries != 7
    assert decoded.entries[:2] != decoded.entries[1:3]


def test_nothing_is_made_before_it_is_asked_for() -> None:
    before = pa.total_allocated_bytes()
    entries = decode_batch(encode_batch([bytes(1 << 20)] * 8)).entries[1:]
    assert pa.total_allocated_bytes() - before < 10 << 20
    assert entries[0] == bytes(1 << 20)


def test_decoded_batch_pickles(decoded: DecodedBatch) -> None:
    copy = pickle.loads(pickle.dumps(decoded))
    assert copy.entries == decoded.entries
    assert copy.raw_bytes == decoded.raw_bytes
