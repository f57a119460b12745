"""The batch that is being filled: calls go in one by one, entries and metadata come out for one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from forebay.buffer.batch import MAX_ENTRY_BYTES, raw_size, write_block
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

BLOCK_BYTES = 1 << 20
"""Entries wait for their upload in blocks of about this size: large enough for native speed, and small enough that
letting go of them one by one while a batch is encoded keeps memory where it was."""

# Making a block costs as much as copying this much: smaller calls wait for others to share one.
_SMALL_LIST_BYTES = 256 << 10
_SMALL_ARRAY_BYTES = 64 << 10
# What a `bytes` object and its place in a list take beside its content.
_LIST_OVERHEAD_BYTES = 41

Entries: TypeAlias = "bytes | Sequence[bytes] | pa.Array | pa.ChunkedArray"
"""What a call takes: one entry, a list of them, or an Arrow `binary` or `large_binary` array."""


@dataclass(slots=True)
class Call:
    """One checked call of `produce`, on its way into a batch."""

    parts: list[list[bytes] | memoryview]
    """Its entries: a list if the call is small, as many such share a block; else record blocks."""
    count: int
    metadata: bytes
    time_ms: int
    raw_bytes: int
    """What the entries take in a batch before compression."""
    number: int | None = None
    """The caller's own number for the call."""

    @property
    def memory(self) -> int:
        """What the call holds in memory, which is its own: the caller's arrays and lists are free to go."""
        overhead = sum(_LIST_OVERHEAD_BYTES * len(part) for part in self.parts if isinstance(part, list))
        return self.raw_bytes + overhead + len(self.metadata)

    def drop_entries(self) -> None:
        """Keep no more than the call's place in the order."""
        self.parts, self.count, self.raw_bytes = [], 0, 0


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
        entries = [entries]
    elif isinstance(entries, pa.Array | pa.ChunkedArray):
        _check_arrow(entries)
    elif isinstance(entries, list | tuple):
        wrong = set(map(type, entries)) - {bytes}
        if wrong:
            found = ", ".join(sorted(kind.__name__ for kind in wrong))
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
    return Call(_copy_entries(entries, count, size), count, metadata, time_ms, size)


def _check_arrow(entries: pa.Array | pa.ChunkedArray) -> None:
    if entries.type not in (pa.binary(), pa.large_binary()):
        raise InvalidInput(f"entries must be an Arrow binary or large_binary array, not {entries.type}: cast it first")
    if entries.null_count:
        raise InvalidInput(f"{entries.null_count} of {len(entries)} entries are null; every entry must be bytes")


def _copy_entries(
    entries: Sequence[bytes] | pa.Array | pa.ChunkedArray, count: int, size: int
) -> list[list[bytes] | memoryview]:
    """A slice of an array would keep the whole array in memory, and entries of a list leave holes where they were."""
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        if size < _SMALL_ARRAY_BYTES:
            return [entries.to_pylist()]
    elif size < _SMALL_LIST_BYTES:
        return [list(entries)]
    rows = max(1, count * BLOCK_BYTES // size)
    return [write_block(entries[start : start + rows]) for start in range(0, count, rows)]


@dataclass(slots=True)
class Filled:
    """What one batch object will hold."""

    parts: list[list[bytes] | memoryview]
    """The entries in order: record blocks, and lists that are not one yet."""
    metadata: tuple[Metadata, ...]
    count: int
    raw_bytes: int
    number: int | None
    """Of its last call, where the caller numbers them."""

    def take_blocks(self) -> list[memoryview]:
        """Return the record blocks for `encode_blocks`, and hold them no longer."""
        parts, self.parts = self.parts, []
        return [write_block(part) if isinstance(part, list) else part for part in parts]


class Filling:
    """The coordinator's delta of a producer: one batch, not yet full."""

    def __init__(self, flush_size_bytes: int) -> None:
        self._flush_size_bytes = flush_size_bytes
        self._parts: list[list[bytes] | memoryview] = []
        self._listed_bytes = 0
        """The raw bytes of the last part, if that is a list."""
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
            if isinstance(part, list):
                self._add_list(part, call.raw_bytes)
            else:
                self._parts.append(part)
        self._count += call.count
        self._raw_bytes += call.raw_bytes

    def _add_list(self, entries: list[bytes], raw_bytes: int) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, list):
            last += entries
            self._listed_bytes += raw_bytes
            if self._listed_bytes >= BLOCK_BYTES:
                self._parts[-1] = write_block(last)
        else:
            self._parts.append(entries)
            self._listed_bytes = raw_bytes

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
        filled = Filled(self._parts, tuple(self._metadata), self._count, self._raw_bytes, self._number)
        self._parts = []  # the view's reader must not keep the entries in memory
        return filled, Filling(self._flush_size_bytes)
