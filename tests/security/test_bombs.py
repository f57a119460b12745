"""Batches that unpack to far more than they should: `Corrupt`, within bounded memory, for every reader.

What one decoder makes of hostile bytes is in tests/buffer/format/test_batch_hostile.py. Here is what reaches it, and
with which bound. Mutation note: the bound by `facts.raw_bytes` in `FetchHandle.fetch`, removed, fails tests here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from every_reader import EVERY_READER, consume, run_runtime, run_spark

from forebay.buffer.base.errors import Corrupt
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import DEFAULT_MAX_RAW_BYTES, decode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store.memory import MemoryStore

LOCATION = "data/01JD0000000000000000000000.batch"
BOMB = 256 << 20
ALLOWED = 8 << 20


def footer(entries: int) -> bytes:
    return struct.pack("<BIH", 1, entries, 1)


def zeros(size: int, *, told: bool = True, frames: int = 1) -> bytes:
    """A batch of empty entries, a few kilobytes that unpack to `size` for each frame."""
    frame = zstandard.ZstdCompressor(level=1, write_content_size=told).compress(bytes(size))
    return frame * frames + footer(size * frames // 4)


BOMBS = {
    "one frame that tells its size": zeros(BOMB),
    "one frame that does not": zeros(BOMB, told=False),
    "many frames": zeros(BOMB >> 8, frames=256),
    "many frames that do not tell": zeros(BOMB >> 8, told=False, frames=256),
}


@contextmanager
def no_more_than(limit: int) -> Iterator[None]:
    """Fail if Arrow set aside more than `limit` bytes, all its requests added up."""
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    yield
    assert pool.total_bytes_allocated() - before <= limit


def bomb_buffer(folder: Path, data: bytes, *, claimed: int) -> ObjectStore:
    """A buffer whose manifest is right about a batch's bytes, and lies about what they unpack to."""
    store = open_store(folder)
    store.put(LOCATION, data)
    store.put("manifest", Head("b" * 32).to_bytes())
    facts = Facts(len(data), claimed, claimed // 4, crc32c(data), 0, 0)
    Queue(store).append([NewBatch(LOCATION, (), facts)])
    return store


@pytest.mark.parametrize("bomb", BOMBS)
@EVERY_READER
def test_batch_that_unpacks_to_more_than_the_manifest_says_is_refused_early(
    read: Callable[[ObjectStore], object], bomb: str, tmp_path: Path
) -> None:
    store = bomb_buffer(tmp_path, BOMBS[bomb], claimed=4096)
    with no_more_than(ALLOWED), pytest.raises(Corrupt):
        read(store)


def test_batch_that_unpacks_to_just_what_the_manifest_says_is_read(tmp_path: Path) -> None:
    store = bomb_buffer(tmp_path, zeros(4096), claimed=4096)
    batch = Consumer(store).next_batch()
    assert batch is not None
    assert len(batch) == 1024


def test_version_1_knows_no_sizes_and_takes_no_more_than_the_format_allows() -> None:
    """A frame that claims more than 4 GiB, which that many bytes of zstd could hold."""
    store = MemoryStore("memory://bombs-v1")
    store.put("manifest", Manifest.empty("new").to_bytes())
    claims = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", DEFAULT_MAX_RAW_BYTES + 1) + bytes(200_000)
    store.put(LOCATION, claims + footer(1))
    Queue(store).append([NewBatch(LOCATION)])
    with no_more_than(ALLOWED), pytest.raises(Corrupt, match="max_raw_bytes"):
        Consumer(store).next_batch()


@pytest.mark.parametrize("exponent", range(18, 32))
def test_frame_with_a_huge_window_is_refused_without_memory_for_it(exponent: int) -> None:
    """Windows above 128 MiB (exponent 17) are refused, however little the frame holds."""
    block = struct.pack("<I", 0)
    head = struct.pack("<I", len(block) << 3 | 1)[:3]
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([exponent << 3]) + head + block
    with no_more_than(ALLOWED), pytest.raises(Corrupt, match="zstd"):
        decode_batch(frame + footer(1))


def test_manifest_that_claims_no_end_of_bytes_frightens_nobody(tmp_path: Path) -> None:
    """A claim that is too high costs parallelism, not memory: nothing is set aside by it."""
    store = bomb_buffer(tmp_path, zeros(4096), claimed=2**62)
    with no_more_than(ALLOWED):
        run_runtime(store)
        consume(store)
        run_spark(store)
