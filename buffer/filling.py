"""The batch that is being filled: calls go in one by one, entries and metadata come out for one object."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from forebay.buffer.batch import MAX_ENTRY_BYTES, raw_size
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

# What a `bytes` object and its place in a list take beside its content, and an Arrow value beside its own.
_LIST_OVERHEAD_BYTES = 41
_ARROW_OVERHEAD_BYTES = 8

Entries: TypeAlias = "bytes | Sequence[bytes] | pa.Array | pa.ChunkedArray"
"""What a call takes: one entry, a list of them, or an Arrow `binary` or `large_binary` array."""


@dataclass(slots=True)
class Call:
    """One checked call of `produce`, on its way into a batch."""

    entries: list[bytes] | pa.ChunkedArray
    metadata: bytes
    time_ms: int
    raw_bytes: int
    """What the entries take in a batch before compression."""
    number: int | None = None
    """The caller's own number for the call."""

    @property
    def memory(self) -> int:
        """About what the call holds in memory."""
        overhead = _LIST_OVERHEAD_BYTES if isinstance(self.entries, list) else _ARROW_OVERHEAD_BYTES
        return self.raw_bytes + len(self.entries) * overhead + len(self.metadata)


def check_call(entries: Entries, metadata: bytes, time_ms: int) -> Call:
    """Return the call if a batch can hold it, with a list of its own.

    Raises:
        InvalidInput: it cannot, and the message says why.
    """
    if not isinstance(metadata, bytes):
        raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
    if len(metadata) > MAX_METADATA_BYTES:
        raise InvalidInput(f"{len(metadata)} bytes of metadata; the most is {MAX_METADATA_BYTES}: all readers read it")
    if isinstance(entries, bytes):
        held: list[bytes] | pa.ChunkedArray = [entries]
    elif isinstance(entries, pa.Array | pa.ChunkedArray):
        held = _check_arrow(entries)
    elif isinstance(entries, list | tuple):
        held = list(entries)
        wrong = set(map(type, held)) - {bytes}
        if wrong:
            found = ", ".join(sorted(kind.__name__ for kind in wrong))
            raise InvalidInput(f"every entry must be bytes; found {found}: encode it first")
    else:
        raise InvalidInput(
            f"entries must be bytes, a list of bytes or an Arrow binary array, not {type(entries).__name__}"
        )
    if len(held) == 0:
        raise InvalidInput("there are no entries: a call needs at least one (it may be empty bytes)")
    size = raw_size(held)
    if size > MAX_CALL_BYTES:
        raise InvalidInput(
            f"{len(held)} entries of {size} bytes in one call; the most is {MAX_CALL_BYTES}: split them over several "
            f"calls (one entry may have {MAX_ENTRY_BYTES} bytes)"
        )
    return Call(held, metadata, time_ms, size)


def _check_arrow(entries: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    if entries.type not in (pa.binary(), pa.large_binary()):
        raise InvalidInput(f"entries must be an Arrow binary or large_binary array, not {entries.type}: cast it first")
    if entries.null_count:
        raise InvalidInput(f"{entries.null_count} of {len(entries)} entries are null; every entry must be bytes")
    return entries if isinstance(entries, pa.ChunkedArray) else pa.chunked_array([entries])


@dataclass(slots=True)
class Filled:
    """What one batch object will hold."""

    parts: list[list[bytes] | pa.ChunkedArray]
    """The entries, call by call."""
    metadata: tuple[Metadata, ...]
    count: int
    raw_bytes: int
    number: int | None
    """Of its last call, where the caller numbers them."""

    def take_entries(self) -> list[bytes] | pa.ChunkedArray:
        """Return the entries for `encode_batch`, and hold them no longer."""
        parts, self.parts = self.parts, []
        lists = [part for part in parts if isinstance(part, list)]
        if len(lists) == len(parts):
            return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
        arrays = [pa.chunked_array([pa.array(p, pa.large_binary())]) if isinstance(p, list) else p for p in parts]
        return pa.chunked_array([chunk.cast(pa.large_binary()) for array in arrays for chunk in array.chunks])


class Filling:
    """The coordinator's delta of a producer: one batch, not yet full."""

    def __init__(self, flush_size_bytes: int) -> None:
        self._flush_size_bytes = flush_size_bytes
        self._parts: list[list[bytes] | pa.ChunkedArray] = []
        self._metadata: list[Metadata] = []
        self._metadata_bytes = 0
        self._count = 0
        self._raw_bytes = 0
        self._number: int | None = None

    def apply(self, call: Call) -> None:
        """Add a call's entries. Calls that follow each other in one millisecond with equal metadata share an item."""
        if not len(call.entries):
            return  # a repeat of what is durable: only its place in the order matters
        self._number = call.number
        last = self._metadata[-1] if self._metadata else None
        if last is None or last.ingestion_time_ms != call.time_ms or last.payload != call.metadata:
            self._metadata.append(Metadata(self._count, call.time_ms, call.metadata))
            self._metadata_bytes += len(call.metadata) + _METADATA_ITEM_BYTES
        entries = call.entries
        if isinstance(entries, list) and self._parts and isinstance(self._parts[-1], list):
            self._parts[-1] += entries
        else:
            self._parts.append(entries)
        self._count += len(entries)
        self._raw_bytes += call.raw_bytes

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
