"""The batch that is being filled: calls go in one by one, entries and metadata come out for one object."""

from __future__ import annotations

from dataclasses import dataclass
from operator import countOf
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from forebay.buffer.batch import MAX_ENTRY_BYTES, raw_size, shrinks, write_block
from forebay.buffer.errors import InvalidInput
from forebay.buffer.model import Metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CALL_BYTES = 2 << 30
"""One call's entries are never split over two batches, and a batch has to be decoded in one piece."""

MAX_METADATA_BYTES = 1 << 20
"""One call's metadata. Every reader of the manifest reads it, so it should be far smaller."""

FLUSH_METADATA_BYTES = 64 << 10
"""A batch with so much metadata is flushed however few entries it has, to keep the manifest small."""

_METADATA_ITEM_BYTES = 16

BLOCK_BYTES = 1 << 22
"""Entries wait for their upload in blocks of about this size: large enough for native speed, and small enough that
letting go of them one by one while a batch is encoded keeps memory where it was."""

_MOST_ROOM = 1 << 28
"""Memory that is set aside for one piece; what a batch has beyond that stays in blocks."""

# Making a block costs as much as copying this much, and making an array as putting so many entries into one: smaller
# calls wait for others to share it.
_SMALL_CALL_BYTES = 256 << 10
_FEW_ENTRIES = 32
# What a `bytes` object and its place in a list take beside its content.
_LIST_OVERHEAD_BYTES = 41

Loose: TypeAlias = "list[bytes] | pa.BinaryArray"
"""Entries that wait for others to share a block."""

Entries: TypeAlias = "bytes | Sequence[bytes] | pa.Array | pa.ChunkedArray"
"""What a call takes: one entry, a list of them, or an Arrow `binary` or `large_binary` array."""


@dataclass(slots=True)
class Call:
    """One checked call of `produce`, on its way into a batch."""

    parts: list[Loose | memoryview]
    """Its entries: loose if the call is small, else record blocks."""
    count: int
    metadata: bytes
    time_ms: int
    raw_bytes: int
    """What the entries take in a batch before compression."""
    memory: int
    """What the call takes in memory, which is its own: the caller's arrays and lists are free to go."""
    number: int | None = None
    """The caller's own number for the call."""

    def drop_entries(self) -> None:
        """Keep no more than the call's place in the order."""
        self.parts, self.count, self.raw_bytes, self.memory = [], 0, 0, len(self.metadata)


def check_call(entries: Entries, metadata: bytes, time_ms: int) -> Call:
    """Return the call if a batch can hold it, with a copy of its entries.

    Raises:
        InvalidInput: it cannot, and the message says why.
    """
    if not isinstance(metadata, bytes):
        raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
    if len(metadata) > MAX_METADATA_BYTES:
        raise InvalidInput(f"{len(metadata)} bytes of metadata; the most is {MAX_METADATA_BYTES}: all readers read it")
    if isinstance(entries, bytes):
        if len(entries) < _SMALL_CALL_BYTES:  # what many callers do many times: nothing else can be wrong with it
            size = 4 + len(entries)
            return Call([[entries]], 1, metadata, time_ms, size, size + _LIST_OVERHEAD_BYTES + len(metadata))
        entries = [entries]
    elif isinstance(entries, pa.Array | pa.ChunkedArray):
        _check_arrow(entries)
    elif isinstance(entries, list | tuple):
        # Counting is the cheapest look at every type.
        if countOf(map(type, entries), bytes) != len(entries):
            found = ", ".join(sorted(kind.__name__ for kind in set(map(type, entries)) - {bytes}))
            raise InvalidInput(f"every entry must be bytes; found {found}: encode it first")
    else:
        raise InvalidInput(
            f"entries must be bytes, a list of bytes or an Arrow binary array, not {type(entries).__name__}"
        )
    count = len(entries)
    if count == 0:
        raise InvalidInput("there are no entries: a call needs at least one (it may be empty bytes)")
    size = raw_size(entries)
    if size > MAX_CALL_BYTES:
        raise InvalidInput(
            f"{count} entries of {size} bytes in one call; the most is {MAX_CALL_BYTES}: split them over several "
            f"calls (one entry may have {MAX_ENTRY_BYTES} bytes)"
        )
    parts = _copy_entries(entries, count, size)
    overhead = _LIST_OVERHEAD_BYTES * count if isinstance(parts[0], list) else 0
    return Call(parts, count, metadata, time_ms, size, size + overhead + len(metadata))


def _check_arrow(entries: pa.Array | pa.ChunkedArray) -> None:
    if entries.type not in (pa.binary(), pa.large_binary()):
        raise InvalidInput(f"entries must be an Arrow binary or large_binary array, not {entries.type}: cast it first")
    if entries.null_count:
        raise InvalidInput(f"{entries.null_count} of {len(entries)} entries are null; every entry must be bytes")


def _copy_entries(
    entries: Sequence[bytes] | pa.Array | pa.ChunkedArray, count: int, size: int
) -> list[Loose | memoryview]:
    """A slice of an array would keep the whole array in memory, and entries of a list leave holes where they were."""
    if size < _SMALL_CALL_BYTES:
        return [_copy_loose(entries, count)]
    rows = max(1, count * BLOCK_BYTES // size)
    return [write_block(entries[start : start + rows]) for start in range(0, count, rows)]


def _copy_loose(entries: Sequence[bytes] | pa.Array | pa.ChunkedArray, count: int) -> Loose:
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        chunks = entries.chunks if isinstance(entries, pa.ChunkedArray) else [entries]
        return entries.to_pylist() if count < _FEW_ENTRIES else pa.concat_arrays(chunks).cast(pa.binary())
    return list(entries) if count < _FEW_ENTRIES else pa.array(entries, pa.binary())


def _join_loose(loose: list[Loose]) -> memoryview:
    arrays = [pa.array(part, pa.binary()) if isinstance(part, list) else part for part in loose]
    return write_block(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays))


class Blocks:
    """The record blocks of a batch, in order.

    With `room`, those that zstd is going to shrink are put together into one piece of memory of that size: it
    compresses one piece a fifth faster than a row of blocks. Others stay apart, so that each can go as soon as it is in
    the object, which will be as large as they are.
    """

    def __init__(self, room: int = 0) -> None:
        self._room = min(room, _MOST_ROOM)
        self._piece: memoryview | None = None
        self._used = 0
        self._rest: list[memoryview] = []

    def append(self, block: memoryview) -> None:
        """Add a block. It is copied, or kept."""
        if len(self._rest) == 1 and self._piece is None:
            self._begin_piece(len(block))  # one alone is a piece already
        self._add(block)

    def _begin_piece(self, more: int) -> None:
        (first,) = self._rest
        if len(first) + more > self._room or not shrinks(first):
            return
        try:
            self._piece = memoryview(pa.allocate_buffer(self._room)).cast("B")  # pages not written to are not there
        except MemoryError:
            return  # a row of blocks does as well
        self._rest = []
        self._add(first)

    def _add(self, block: memoryview) -> None:
        end = self._used + len(block)
        if self._piece is None or self._rest or end > self._room:
            self._rest.append(block)
        else:
            self._piece[self._used : end] = block
            self._used = end

    def take(self) -> list[memoryview]:
        """Return the blocks, and hold them no longer."""
        blocks = [*([] if self._piece is None else [self._piece[: self._used]]), *self._rest]
        self._piece, self._rest = None, []
        return blocks


@dataclass(slots=True)
class Filled:
    """What one batch object will hold."""

    blocks: Blocks
    loose: list[Loose]
    """The entries after them."""
    metadata: tuple[Metadata, ...]
    count: int
    raw_bytes: int
    number: int | None
    """Of its last call, where the caller numbers them."""

    def take_blocks(self) -> list[memoryview]:
        """Return the record blocks for `encode_blocks`, and hold them no longer."""
        if self.loose:
            self.blocks.append(_join_loose(self.loose))
            self.loose = []
        return self.blocks.take()


class Filling:
    """The coordinator's delta of a producer: one batch, not yet full."""

    def __init__(self, flush_size_bytes: int, *, in_one_piece: bool = False) -> None:
        """Start an empty batch; `in_one_piece` is for batches that will be compressed."""
        self._flush_size_bytes = flush_size_bytes
        self._in_one_piece = in_one_piece
        self._blocks = Blocks(flush_size_bytes + 2 * BLOCK_BYTES if in_one_piece else 0)
        self._loose: list[Loose] = []
        self._loose_bytes = 0
        self._metadata: list[Metadata] = []
        self._metadata_bytes = 0
        self._count = 0
        self._raw_bytes = 0
        self._number: int | None = None

    def apply(self, call: Call) -> None:
        """Add a call's entries. Calls that follow each other in one millisecond with equal metadata share an item."""
        if not call.count:
            return  # a repeat of what is durable: only its place in the order matters
        self._number = call.number
        last = self._metadata[-1] if self._metadata else None
        if last is None or last.ingestion_time_ms != call.time_ms or last.payload != call.metadata:
            self._metadata.append(Metadata(self._count, call.time_ms, call.metadata))
            self._metadata_bytes += len(call.metadata) + _METADATA_ITEM_BYTES
        for part in call.parts:
            if isinstance(part, memoryview):
                self._join_loose()
                self._blocks.append(part)
            else:
                self._add_loose(part, call.raw_bytes)
        call.parts = []  # they may have been copied
        self._count += call.count
        self._raw_bytes += call.raw_bytes

    def _add_loose(self, entries: Loose, raw_bytes: int) -> None:
        if isinstance(entries, list) and self._loose and isinstance(self._loose[-1], list):
            self._loose[-1] += entries
        else:
            self._loose.append(entries)
        self._loose_bytes += raw_bytes
        if self._loose_bytes >= BLOCK_BYTES:
            self._join_loose()

    def _join_loose(self) -> None:
        if self._loose:
            self._blocks.append(_join_loose(self._loose))
            self._loose, self._loose_bytes = [], 0

    def size(self) -> int:
        """The batch's size before compression, or enough to be flushed if its metadata is due."""
        if self._metadata_bytes >= FLUSH_METADATA_BYTES:
            return max(self._raw_bytes, self._flush_size_bytes)
        return self._raw_bytes

    def reader(self) -> Filling:
        """The batch itself: views of a producer show only how full it is."""
        return self

    def freeze(self) -> tuple[Filled, Filling]:
        """What to store, and an empty batch."""
        filled = Filled(self._blocks, self._loose, tuple(self._metadata), self._count, self._raw_bytes, self._number)
        self._blocks, self._loose = Blocks(), []  # the view's reader must not keep the entries in memory
        return filled, Filling(self._flush_size_bytes, in_one_piece=self._in_one_piece)
