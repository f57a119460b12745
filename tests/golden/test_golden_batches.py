"""Batches as they lie in buckets. The files here are never changed: old bytes keep reading."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from forebay.buffer.format.batch import decode_batch, encode_batch

GOLDEN = Path(__file__).parent

# Each block is written out by hand from the layout: ( len:u32, bytes )*, or bytes* and then len:u32*, little-endian.
THREE_BLOCK = (
    b"\x05\x00\x00\x00hello"
    b"\x00\x00\x00\x00"  # an empty entry
    b"\x04\x00\x00\x00\x00\xff\x0a\x22"  # entries are bytes, not text
)
THREE_COLUMNS = b"hello\x00\xff\x0a\x22\x05\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00"
THREE = [b"hello", b"", b"\x00\xff\n\x22"]
LONG = [b"%03d:" % number + b"drop " * 60 for number in range(5)]  # 304 bytes each: the length takes two of its bytes
LONG_BLOCK = b"".join(b"\x30\x01\x00\x00" + entry for entry in LONG)

LONG_COLUMNS = b"".join(LONG) + 5 * b"\x30\x01\x00\x00"

NONE_FOOTER = b"\x00%b\x01\x00"  # compression:u8 = 0, record_count:u32, version:u16 = 1
NONE_FOOTER_2 = b"\x00%b\x02\x00"

UNCOMPRESSED = {
    "batch-v1-none-empty.batch": ([], b"" + NONE_FOOTER % b"\x00\x00\x00\x00"),
    "batch-v1-none-three.batch": (THREE, THREE_BLOCK + NONE_FOOTER % b"\x03\x00\x00\x00"),
    "batch-v1-none-long.batch": (LONG, LONG_BLOCK + NONE_FOOTER % b"\x05\x00\x00\x00"),
    "batch-v2-none-empty.batch": ([], b"" + NONE_FOOTER_2 % b"\x00\x00\x00\x00"),
    "batch-v2-none-three.batch": (THREE, THREE_COLUMNS + NONE_FOOTER_2 % b"\x03\x00\x00\x00"),
    "batch-v2-none-long.batch": (LONG, LONG_COLUMNS + NONE_FOOTER_2 % b"\x05\x00\x00\x00"),
}

# zstd that any reader can check by hand: one frame of one raw block (RFC 8878), no content checksum.
THREE_ZSTD = (
    b"\x28\xb5\x2f\xfd"  # magic
    b"\x20\x15"  # single segment, so a content size of one byte: 21
    b"\xa9\x00\x00"  # block header: last, raw, 21 bytes
    + THREE_BLOCK
    + b"\x01\x03\x00\x00\x00\x01\x00"  # compression:u8 = 1, record_count:u32 = 3, version:u16 = 1
)
THREE_ZSTD_UNSIZED = (
    b"\x28\xb5\x2f\xfd"  # magic
    b"\x00\x00"  # no content size; a window of 1 KiB
    b"\xa9\x00\x00" + THREE_BLOCK + b"\x01\x03\x00\x00\x00\x01\x00"
)
THREE_COLUMNS_ZSTD = (
    b"\x28\xb5\x2f\xfd\x20\x15\xa9\x00\x00" + THREE_COLUMNS + b"\x01\x03\x00\x00\x00\x02\x00"  # version:u16 = 2
)
ZSTD_BY_HAND = {
    "batch-v1-zstd-three.batch": (THREE, THREE_ZSTD),
    "batch-v1-zstd-three-unsized.batch": (THREE, THREE_ZSTD_UNSIZED),
    "batch-v2-zstd-three.batch": (THREE, THREE_COLUMNS_ZSTD),
}
# Made by libzstd 1.5.7 at level 3. Another libzstd may compress otherwise, and must still read these.
ZSTD_AS_WRITTEN = {
    "batch-v1-zstd-long.batch": LONG,  # as encode_batch writes: with content size and checksum
    "batch-v1-zstd-long-unsized.batch": LONG,  # as a streaming writer does: without a content size
    "batch-v1-zstd-empty.batch": [],
    "batch-v2-zstd-long.batch": LONG,
    "batch-v2-zstd-empty.batch": [],
}


@pytest.mark.parametrize("name", [*UNCOMPRESSED, *ZSTD_BY_HAND])
def test_golden_file_is_the_layout_written_out_by_hand(name: str) -> None:
    _, written_out = (UNCOMPRESSED | ZSTD_BY_HAND)[name]
    assert (GOLDEN / name).read_bytes() == written_out


@pytest.mark.parametrize("name", [*UNCOMPRESSED, *ZSTD_BY_HAND])
def test_golden_file_decodes_to_the_entries_it_was_built_from(name: str) -> None:
    entries, _ = (UNCOMPRESSED | ZSTD_BY_HAND)[name]
    assert decode_batch((GOLDEN / name).read_bytes()).entries == entries


@pytest.mark.parametrize("name", ZSTD_AS_WRITTEN)
def test_golden_file_compressed_by_libzstd_decodes_for_ever(name: str) -> None:
    assert decode_batch((GOLDEN / name).read_bytes()).entries == ZSTD_AS_WRITTEN[name]


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_encoding_without_compression_gives_the_golden_bytes(name: str) -> None:
    entries, _ = UNCOMPRESSED[name]
    version: Literal[1, 2] = 1 if "-v1-" in name else 2
    assert encode_batch(entries, "none", version=version) == (GOLDEN / name).read_bytes()


def test_no_golden_batch_is_left_out() -> None:
    assert {path.name for path in GOLDEN.glob("batch-*")} == {*UNCOMPRESSED, *ZSTD_BY_HAND, *ZSTD_AS_WRITTEN}
