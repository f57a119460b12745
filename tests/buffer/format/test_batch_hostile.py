"""Bytes from a stranger: a batch or `Corrupt`, within bounded memory and time."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.buffer.base.errors import Corrupt
from forebay.buffer.format.batch import decode_batch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

WHERE = "data/01JD0000000000000000000000.batch"
EVERY_VERSION = pytest.mark.parametrize("version", [1, 2])


def footer(compression: int, count: int, version: int) -> bytes:
    return struct.pack("<BIH", compression, count, version)


def write_out(entries: list[bytes], version: int) -> bytes:
    lengths = [struct.pack("<I", len(entry)) for entry in entries]
    if version == 1:
        return b"".join(length + entry for length, entry in zip(lengths, entries, strict=True))
    return b"".join([*entries, *lengths])


def refuse(data: bytes, said: str, **options: Any) -> None:
    with pytest.raises(Corrupt, match=said) as caught:
        decode_batch(data, location=WHERE, **options)
    assert WHERE in str(caught.value)


@contextmanager
def no_more_than(limit: int) -> Iterator[None]:
    """Fail if Arrow, all its requests added up, or Python, at its peak, set aside more than `limit` bytes.

    Arrow's own counter is read, since what a Parquet page unpacks into does not come from a pool that a test could set.
    """
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    tracemalloc.start()
    try:
        yield
        _, python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pool.total_bytes_allocated() - before <= limit
    assert python <= limit


# --- one lie at a time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(7))
def test_object_shorter_than_a_footer_is_refused(size: int) -> None:
    refuse(footer(0, 0, 2)[7 - size :], f"{size} bytes")


@pytest.mark.parametrize("unknown", [0, 3, 256, 65535])
@pytest.mark.parametrize("code", [0, 1])
def test_other_version_is_refused(unknown: int, code: int) -> None:
    refuse(write_out([b"a"], 1) + footer(code, 1, unknown), f"version {unknown}")


@EVERY_VERSION
@pytest.mark.parametrize("code", [2, 3, 255])
def test_unknown_compression_is_refused(version: int, code: int) -> None:
    refuse(write_out([b"a"], version) + footer(code, 1, version), f"compression code {code}")


@EVERY_VERSION
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("extra", [b"\x00", b"\x00\x00\x00\x00", b"more than a length"])
def test_bytes_after_the_last_entry_are_refused(version: int, extra: bytes, zipped: bool) -> None:
    block = write_out([b"a", b"bc"], version) + extra
    stored = zstandard.compress(block) if zipped else block
    said = f"{len(extra)} bytes follow the last entry" if version == 1 else "does not hold 2 entries"
    refuse(stored + footer(int(zipped), 2, version), said)


@EVERY_VERSION
@pytest.mark.parametrize("zipped", [False, True])
def test_block_without_entries_must_be_empty(version: int, zipped: bool) -> None:
    stored = zstandard.compress(b"left over") if zipped else b"left over"
    refuse(stored + footer(int(zipped), 0, version), "9 bytes follow" if version == 1 else "add up to 0, and 9 bytes")


@EVERY_VERSION
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("length", [0, 2, 4, 2**31 - 1, 2**31, 2**32 - 1])
def test_entry_of_another_length_than_it_says_is_refused(version: int, length: int, zipped: bool) -> None:
    wrong = struct.pack("<I", length)
    block = write_out([b"first"], 1) + wrong + b"abc" if version == 1 else b"firstabc\x05\x00\x00\x00" + wrong
    stored = zstandard.compress(block) if zipped else block
    refuse(stored + footer(int(zipped), 2, version), "follow the last entry|does not hold 2 entries")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("lengths", [(-1, 5), (5, -1), (-(2**31), 2**31 - 1), (2**31 - 1, 2**31 - 1)])
def test_lengths_that_add_up_only_because_they_overflow_are_refused(lengths: tuple[int, int], zipped: bool) -> None:
    block = b"abcd" + struct.pack("<ii", *lengths)
    stored = zstandard.compress(block) if zipped else block
    refuse(stored + footer(int(zipped), 2, 2), "does not hold 2 entries")


@EVERY_VERSION
@pytest.mark.parametrize("count", [2, 3, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("stored", ["none", "zstd", "zstd, size not told"])
def test_count_beyond_the_block_is_refused_without_memory_for_it(version: int, count: int, stored: str) -> None:
    block = write_out([b"forty bytes less the lengths and footers"], version)
    if stored != "none":
        block = zstandard.ZstdCompressor(write_content_size=stored == "zstd").compress(block)
    with no_more_than(2 << 20):
        refuse(block + footer(int(stored != "none"), count, version), "entries")


@EVERY_VERSION
def test_count_below_the_block_is_refused(version: int) -> None:
    said = "5 bytes follow" if version == 1 else "add up to 1, and 6 bytes"
    refuse(write_out([b"a", b"b"], version) + footer(0, 1, version), said)


def frame_that_claims(size: int, version: int) -> bytes:
    """A zstd frame header with an 8-byte content size, and one raw block of a few bytes."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x29\x00\x00" + write_out([b"x"], version)


@EVERY_VERSION
@pytest.mark.parametrize("size", [6, 1 << 20, 1 << 30, 1 << 40, 2**63, 2**64 - 3])
def test_frame_that_claims_more_than_it_holds_is_refused_without_memory_for_it(version: int, size: int) -> None:
    with no_more_than(4 << 20):
        refuse(frame_that_claims(size, version) + footer(1, 1, version), "zstd")


@EVERY_VERSION
def test_frame_that_claims_more_than_its_bytes_could_hold_is_refused_before_anything_is_read(version: int) -> None:
    refuse(frame_that_claims(1 << 30, version) + footer(1, 1, version), "claims 1073741824 bytes; 21 compressed bytes")


@EVERY_VERSION
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("frames", [1, 3])
def test_block_that_unpacks_beyond_the_limit_is_refused_early(version: int, told: bool, frames: int) -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=told).compress(bytes(64 << 20)) * frames
    with no_more_than(3 << 20):
        refuse(bomb + footer(1, 16 << 20, version), "max_raw_bytes", max_raw_bytes=1 << 20)


@EVERY_VERSION
@pytest.mark.parametrize("stored", ["none", "zstd", "zstd, size not told"])
def test_limit_itself_is_allowed_and_one_byte_more_is_not(version: int, stored: str) -> None:
    block = write_out([b"a" * 96], version)
    if stored != "none":
        block = zstandard.ZstdCompressor(write_content_size=stored == "zstd").compress(block)
    data = block + footer(int(stored != "none"), 1, version)
    assert decode_batch(data, max_raw_bytes=100).raw_bytes == 100
    refuse(data, "max_raw_bytes", max_raw_bytes=99)


@EVERY_VERSION
def test_densest_frame_that_zstd_can_make_is_within_what_we_take_for_possible(version: int) -> None:
    # 1,000 blocks that each say "128 KiB of this byte" in four bytes, the last one marked so.
    blocks = [struct.pack("<I", (128 << 10) << 3 | 1 << 1 | (number == 999))[:3] + b"\x00" for number in range(1000)]
    told = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1000 * (128 << 10)) + b"".join(blocks)
    assert len(decode_batch(told + footer(1, 1000 * (32 << 10), version))) == 1000 * (32 << 10)


@EVERY_VERSION
@pytest.mark.parametrize("told", [True, False])
def test_wrong_checksum_is_refused(version: int, told: bool) -> None:
    frame = bytearray(
        zstandard.ZstdCompressor(write_checksum=True, write_content_size=told).compress(write_out([b"a"], version))
    )
    assert decode_batch(frame + footer(1, 1, version)).entries == [b"a"]
    frame[-1] ^= 1
    refuse(bytes(frame) + footer(1, 1, version), "checksum")


def test_changed_content_under_an_unchanged_checksum_is_refused() -> None:
    data = bytearray(encode_batch([b"incompressible: \x01\x9f\x33"], version=1))
    place = bytes(data).index(b"\x01\x9f\x33")
    data[place] ^= 4
    refuse(bytes(data), "checksum")


@EVERY_VERSION
@pytest.mark.parametrize("told", [True, False])
def test_every_truncation_is_refused(version: int, told: bool) -> None:
    options = {"write_checksum": True, "write_content_size": told}
    frame = zstandard.ZstdCompressor(**options).compress(write_out([b"entry %d" % i for i in range(40)], version))
    for size in range(len(frame)):
        refuse(frame[:size] + footer(1, 40, version), "zstd")


@EVERY_VERSION
@pytest.mark.parametrize("extra", [b"\x00", b"junk", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f"])
def test_junk_after_the_frame_is_refused(version: int, extra: bytes) -> None:
    refuse(zstandard.compress(write_out([b"a"], version)) + extra + footer(1, 1, version), "zstd")
    refuse(zstandard.compress(b"") + extra + footer(1, 0, version), "zstd")


@EVERY_VERSION
def test_footer_that_says_zstd_of_plain_bytes_is_refused(version: int) -> None:
    refuse(write_out([b"a"], version) + footer(1, 1, version), "does not start as zstd")
    refuse(footer(1, 0, version), "does not start as zstd")


@EVERY_VERSION
def test_frame_that_needs_a_dictionary_is_refused(version: int) -> None:
    dictionary = zstandard.ZstdCompressionDict(b"drop by drop " * 100, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(write_out([b"drop by drop " * 20], version))
    refuse(frame + footer(1, 1, version), "zstd")


@EVERY_VERSION
def test_a_million_empty_frames_do_not_hang(version: int) -> None:
    empty = zstandard.ZstdCompressor(write_content_size=False).compress(b"")
    assert len(decode_batch(empty * 1_000_000 + footer(1, 0, version))) == 0


# --- many lies at a time --------------------------------------------------------------------------------------------


def decode_or_refuse(data: bytes) -> None:
    """What any bytes must give: `Corrupt`, or a batch that accounts for every byte of its block."""
    try:
        decoded = decode_batch(data, location=WHERE, max_raw_bytes=1 << 20)
    except Corrupt:
        return
    count, version = struct.unpack("<IH", data[-6:])
    for chunk in decoded.chunks:
        chunk.validate(full=True)
    entries = list(decoded.entries)
    assert len(entries) == len(decoded) == count
    assert version in (1, 2)
    if data[-7] == 0:
        assert write_out(entries, version) == data[:-7]
    else:
        block = zstandard.ZstdDecompressor().stream_reader(data[:-7], read_across_frames=True).read()
        assert write_out(entries, version) == block


entry_lists = st.lists(st.binary(max_size=40), max_size=20)
versions = st.sampled_from([1, 2])


@given(entries=entry_lists, compression=st.sampled_from(["none", "zstd"]), level=st.integers(-7, 9), version=versions)
def test_any_entries_come_back(entries: list[bytes], compression: Any, level: int, version: Any) -> None:
    assert decode_batch(encode_batch(entries, compression, level, version=version)).entries == entries


@given(
    entries=entry_lists,
    cuts=st.lists(st.integers(0, 20), max_size=4),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    offset=st.integers(0, 20),
    version=versions,
)
def test_any_chunks_and_slices_give_the_bytes_of_the_list(
    entries: list[bytes], cuts: list[int], kind: pa.DataType, offset: int, version: Any
) -> None:
    whole = pa.array(entries, kind)
    edges = sorted({0, len(entries), *(min(cut, len(entries)) for cut in cuts)})
    chunks = [whole.slice(low, high - low) for low, high in pairwise(edges)]
    chunked = pa.chunked_array(chunks, kind)
    offset = min(offset, len(entries))
    expected = encode_batch(entries[offset:], "none", version=version)
    assert encode_batch(chunked.slice(offset), "none", version=version) == expected
    assert encode_batch(whole.slice(offset), "none", version=version) == expected


@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decode_or_refuse(data)


@settings(max_examples=300)
@given(
    given_block=st.one_of(st.binary(max_size=100), entry_lists),
    stored=st.sampled_from(["none", "zstd", "zstd, size not told"]),
    count=st.one_of(st.integers(0, 25), st.integers(0, 2**32 - 1)),
    version=versions,
)
def test_any_block_and_any_count_decode_or_are_refused(
    given_block: bytes | list[bytes], stored: str, count: int, version: int
) -> None:
    block = given_block if isinstance(given_block, bytes) else write_out(given_block, version)
    if stored != "none":
        block = zstandard.ZstdCompressor(write_content_size=stored == "zstd").compress(block)
    decode_or_refuse(block + footer(int(stored != "none"), count, version))


@settings(max_examples=500)
@given(
    entries=entry_lists,
    stored=st.sampled_from(["none", "zstd", "zstd, size not told", "two frames"]),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    ends=st.tuples(st.integers(0, 12), st.binary(max_size=6)),
    version=versions,
)
def test_any_damage_to_a_batch_is_decoded_truly_or_refused(
    entries: list[bytes], stored: str, changes: list[tuple[int, int]], ends: tuple[int, bytes], version: int
) -> None:
    cut, extra = ends
    block = write_out(entries, version)
    if stored == "two frames":
        block = zstandard.compress(block[:9]) + zstandard.compress(block[9:])
    elif stored != "none":
        # Without a checksum, so that damage reaches the code behind it.
        block = zstandard.ZstdCompressor(write_content_size=stored == "zstd").compress(block)
    data = bytearray(block + extra + footer(int(stored != "none"), len(entries), version))
    for place, value in changes:
        data[place % len(data)] = value
    decode_or_refuse(bytes(data[cut // 2 : len(data) - cut % 2]))
