"""Version 1 manifests, kept for ever: built here byte by byte from the layout of rfcs/0003, and as files beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.buffer.format.model import BatchDescriptor, Metadata, NewBatch
from forebay.buffer.manifest.v1 import Manifest

HERE = Path(__file__).parent


def unsigned(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def signed(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def footer(count: int, next_sequence: int, epoch: int) -> bytes:
    return unsigned(count, 4) + unsigned(next_sequence, 8) + unsigned(epoch, 8) + unsigned(1, 2)


# entry_len (what follows it), sequence, location_len, location, metadata_count
PLAIN = unsigned(8 + 2 + 6 + 4, 4) + unsigned(7, 8) + unsigned(6, 2) + b"data/a" + unsigned(0, 4)
RICH = (
    unsigned(8 + 2 + 8 + 4 + (16 + 3) + (16 + 0), 4)
    + unsigned(8, 8)
    + unsigned(8, 2)
    + "data/\u00fcb".encode()  # 8 bytes in UTF-8
    + unsigned(2, 4)
    # start_index, ingestion_time_ms, payload_len, payload
    + (unsigned(0, 4) + signed(1_700_000_000_123) + unsigned(3, 4) + b"web")
    + (unsigned(5, 4) + signed(-1) + unsigned(0, 4))
)
RICH_METADATA = (Metadata(0, 1_700_000_000_123, b"web"), Metadata(5, -1, b""))

GOLDEN: dict[str, tuple[bytes, list[BatchDescriptor]]] = {
    "manifest-v1-empty": (footer(0, 0, 0), []),
    "manifest-v1-drained": (footer(0, 42, 3), []),
    "manifest-v1-one": (PLAIN + footer(1, 8, 0), [BatchDescriptor(7, "data/a")]),
    "manifest-v1-two": (
        PLAIN + RICH + footer(2, 9, 2**64 - 1),
        [BatchDescriptor(7, "data/a"), BatchDescriptor(8, "data/\u00fcb", RICH_METADATA)],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_file_is_what_the_layout_says(name: str) -> None:
    assert (HERE / name).read_bytes() == GOLDEN[name][0]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_manifest_reads_as_it_always_did(name: str) -> None:
    assert Manifest((HERE / name).read_bytes(), name).tail_descriptors(0, 10) == GOLDEN[name][1]


def test_golden_manifest_is_written_as_it_always_was() -> None:
    """From drained at 7, with an epoch that somebody raised: the bytes are the golden ones."""
    drained = Manifest(footer(0, 7, 2**64 - 1), "drained")
    made = drained.append([NewBatch("data/a")]).append([NewBatch("data/\u00fcb", RICH_METADATA)])
    assert made.data == (HERE / "manifest-v1-two").read_bytes()


def test_dequeue_and_claim_write_golden_bytes_too() -> None:
    two = Manifest(PLAIN + RICH + footer(2, 9, 1), "two")
    assert two.ack(7).data == RICH + footer(1, 9, 1)
    assert two.ack(8).claim().data == footer(0, 9, 2)
