"""Accumulates calls into one batch: calls go in one by one, entries and metadata come out for one object."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from operator import countOf
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from forebay.buffer.base.errors import InvalidInput, Unavailable
from forebay.buffer.format.batch import MAX_ENTRY_BYTES, encode_blocks, raw_size, shrinks, write_block
from forebay.buffer.format.block_v1 import join_buffers
from forebay.buffer.format.block_v2 import bytes_of, lengths_of, total_of
from forebay.buffer.format.model import Metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.format.batch import Compression, Version
    from forebay.buffer.format.block_v2 import Lengths

MAX_CALL_BYTES = 2 << 30
"""One call's entries are never split over two batches, and a batch has to be decoded in one piece."""

MAX_METADATA_BYTES = 1 << 20
"""One call's metadata. Every reader of the manifest reads it, so it should be far smaller."""

FLUSH_METADATA_BYTES = 64 << 10
"""A batch with so much metadata is flushed however few entries it has, to keep the manifest small."""

FLUSH_METADATA_BYTES_V1 = 1 << 20
"""The same for a batch of version 1, where every call has an item of its own: 65,536 calls without metadata."""

METADATA_ITEM_BYTES = 16
"""About what a metadata item takes in the manifest beside its payload."""

BLOCK_BYTES = 1 << 20
"""Entries wait for their upload in pieces of about this size: large enough for native speed, and small enough that
letting go of them one by one while a batch is encoded keeps memory where it was."""

_MOST_ROOM = 1 << 28
"""Memory that is set aside for one piece; what a batch has beyond that stays in blocks."""

_SPARE_ROOM = 8 << 20
"""Room in a piece for what its last call has beyond the size at which a batch is flushed."""

# Calls below this are joined into blocks, because each block has a fixed cost: in version 1, passes of Arrow's kernels.
_SMALL_CALL_BYTES = 256 << 10
# A single entry below this is handed on as it is. A list of parts costs more, but lets go of an entry that was copied.
_SMALL_ENTRY_BYTES = 4 << 10
# What a `bytes` object and its place in a list take beside its content.
_PART_OVERHEAD_BYTES = 41

Entries: TypeAlias = "bytes | Sequence[bytes] | pa.Array | pa.ChunkedArray"
"""What a call takes: one entry, a list of them, or an Arrow `binary` or `large_binary` array."""

Part: TypeAlias = "tuple[bytes | memoryview, Lengths | tuple[int, ...]]"
"""Entries that follow each other: their bytes, and the length of each."""


class Call(msgspec.Struct, gc=False):
    """One checked call of `produce`, on its way into a batch.

    A struct, as a handle is (`forebay.buffer.coordinator.handle`): many programs make one for each entry.
    """

    parts: bytes | list[Part]
    """Its entries: one small one as it is."""
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
    if metadata.__class__ is not bytes or len(metadata) > MAX_METADATA_BYTES:  # a call would cost a small one time
        metadata = check_metadata(metadata)
    if isinstance(entries, bytes):
        if entries.__class__ is not bytes:
            # guard: take the bytes of a subclass, whose own methods may say anything
            entries = bytes(entries)
        if len(entries) < _SMALL_CALL_BYTES:  # what many callers do many times: nothing else can be wrong with it
            length = len(entries)
            memory = 4 + length + _PART_OVERHEAD_BYTES + len(metadata)
            parts: bytes | list[Part] = entries if length < _SMALL_ENTRY_BYTES else [(entries, (length,))]
            return Call(parts, 1, metadata, time_ms, 4 + length, memory)
        entries = [entries]
    else:
        if isinstance(entries, list):
            # guard: copy the list of entries at the start of the call
            entries = tuple(entries)  # as it is now: lengths and bytes of two moments would cut entries in the middle
        _check_types(entries)
    count = len(entries)
    if count == 0:
        raise InvalidInput("the call has no entries: give it at least one (which may be empty bytes)")
    lengths = None if isinstance(entries, pa.Array | pa.ChunkedArray) else _list_lengths(entries)
    size = raw_size(entries) if lengths is None else 4 * count + total_of(lengths)
    if size > MAX_CALL_BYTES:
        raise InvalidInput(
            f"{count} entries of {size} bytes in one call; the most is {MAX_CALL_BYTES}: split them over several "
            f"calls (one entry may have {MAX_ENTRY_BYTES} bytes)"
        )
    if size > MAX_ENTRY_BYTES and (longest := _longest(entries)) > MAX_ENTRY_BYTES:
        raise _too_long(longest)
    parts = _copy_array(entries) if lengths is None else _copy_list(entries, lengths, size)
    return Call(parts, count, metadata, time_ms, size, size + _PART_OVERHEAD_BYTES * len(parts) + len(metadata))


def check_metadata(metadata: bytes) -> bytes:
    """Return the metadata of a call as plain bytes; raise `InvalidInput` if it cannot be that."""
    if not isinstance(metadata, bytes):
        raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
    metadata = bytes(metadata)  # guard: no subclass of bytes gets into the manifest, whose encoder refuses it
    if len(metadata) > MAX_METADATA_BYTES:
        raise InvalidInput(f"{len(metadata)} bytes of metadata; the most is {MAX_METADATA_BYTES}: all readers read it")
    return metadata


def _check_types(entries: Entries) -> None:
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        _check_arrow(entries)
    elif not isinstance(entries, list | tuple):
        raise InvalidInput(
            f"entries must be bytes, a list of bytes or an Arrow binary array, not {type(entries).__name__}"
        )
    # Counting is the cheapest look at every type.
    elif countOf(map(type, entries), bytes) != len(entries):
        found = ", ".join(sorted(kind.__name__ for kind in set(map(type, entries)) - {bytes}))
        raise InvalidInput(f"every entry must be bytes; found {found}: encode it first")


def _check_arrow(entries: pa.Array | pa.ChunkedArray) -> None:
    if entries.type not in (pa.binary(), pa.large_binary()):
        raise InvalidInput(f"entries must be an Arrow binary or large_binary array, not {entries.type}: cast it first")
    if entries.null_count:
        raise InvalidInput(f"{entries.null_count} of {len(entries)} entries are null; every entry must be bytes")
    try:
        entries.validate(full=True)  # guard: refuse an Arrow array whose offsets are wrong
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"the Arrow array of entries is damaged ({error}), so nothing of it was stored: make it again"
        ) from error


def _list_lengths(entries: Sequence[bytes]) -> Lengths:
    try:
        return lengths_of(entries)
    except OverflowError:
        raise _too_long(_longest(entries)) from None


def _too_long(length: int) -> InvalidInput:
    return InvalidInput(f"an entry is {length} bytes long; the most is {MAX_ENTRY_BYTES}: split it")


def _longest(entries: Sequence[bytes] | pa.Array | pa.ChunkedArray) -> int:
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        return int(pc.max(pc.binary_length(entries)).as_py())
    return max(map(len, entries))


# A slice of an array would keep the whole array in memory, and entries of a list leave holes where they were: so both
# are copied, in pieces that can go one by one.


def _copy_list(entries: Sequence[bytes], lengths: Lengths, size: int) -> list[Part]:
    count = len(entries)
    rows = max(1, count * BLOCK_BYTES // size)
    if rows >= count:
        return [(b"".join(entries), lengths)]
    starts = range(0, count, rows)
    return [(b"".join(entries[start : start + rows]), lengths[start : start + rows]) for start in starts]


def _copy_array(entries: pa.Array | pa.ChunkedArray) -> list[Part]:
    if isinstance(entries, pa.ChunkedArray):
        return [part for chunk in entries.chunks for part in _copy_array(chunk)]
    count = len(entries)
    rows = max(1, count * BLOCK_BYTES // max(1, raw_size(entries)))
    pieces = [entries.slice(start, rows) for start in range(0, count, rows)]
    return [(bytes(bytes_of(piece)), lengths_of(piece)) for piece in pieces]


def check_order(number: int, last: int) -> int:
    """Return the number of a call; raise `InvalidInput` if it does not follow that of the last call in the queue."""
    if number <= last:  # guard: let numbers grow in the order of the queue
        raise InvalidInput(f"call {number} was queued behind call {last}, so it was not stored; numbers must grow")
    return number


class Blocks:
    """The block of a batch, in the making: entries go in, and it comes out in one or several pieces.

    With `room`, entries that zstd is going to shrink are put together into one piece of memory of that size: it
    compresses one piece a fifth faster than a row of them. Others stay apart, so that each can go as soon as it is in
    the object, which will be as large as they are.
    """

    def __init__(self, version: Version, room: int = 0) -> None:
        self._version = version
        self._room = min(room, _MOST_ROOM)
        self._piece: memoryview | None = None
        self._used = 0
        self._rest: list[memoryview] = []
        self._lengths = array("I")
        self._loose: list[bytes | memoryview] = []
        self._loose_lengths = array("I")
        self._loose_bytes = 0

    def add(self, data: bytes | memoryview, lengths: Lengths | tuple[int, ...]) -> None:
        """Add entries. They are copied, or kept; if memory is short for that, nothing was added."""
        if len(data) >= _SMALL_CALL_BYTES:
            self._join_loose()
            self._append(data, array("I", lengths))
            return
        if self._loose_bytes >= BLOCK_BYTES:
            self._join_loose()
        self._loose_lengths.extend(lengths)
        self._loose.append(data)
        self._loose_bytes += len(data) + 4 * len(lengths)

    def add_small(self, entry: bytes) -> None:
        """Add one small entry; if memory is short for that, nothing was added."""
        if self._loose_bytes >= BLOCK_BYTES:
            self._join_loose()
        self._loose_lengths.append(len(entry))
        self._loose.append(entry)
        self._loose_bytes += 4 + len(entry)

    def take(self) -> list[memoryview]:
        """Return the pieces that make the block, and hold them no longer."""
        self._join_loose()
        if self._version == 2:
            self._end(memoryview(self._lengths).cast("B"))
        pieces = [*([] if self._piece is None else [self._piece[: self._used]]), *self._rest]
        self._piece, self._rest, self._lengths = None, [], array("I")
        return pieces

    def _join_loose(self) -> None:
        if self._loose_lengths:
            data = self._loose[0] if len(self._loose) == 1 else b"".join(self._loose)
            self._append(data, self._loose_lengths)
            self._loose, self._loose_lengths, self._loose_bytes = [], array("I"), 0

    def _append(self, data: bytes | memoryview, lengths: Lengths) -> None:
        if self._version == 1:
            data = write_block(data, lengths)
        if len(self._rest) == 1 and self._piece is None:
            self._begin_piece(len(data))  # one alone is a piece already
        self._put(data)
        if self._version == 2:
            self._lengths.extend(lengths)

    def _end(self, lengths: memoryview) -> None:
        """Put the lengths after everything else."""
        if self._piece is None and sum(map(len, self._rest)) <= BLOCK_BYTES:
            self._rest = [memoryview(join_buffers(*self._rest, lengths)).cast("B")]
        else:
            self._put(lengths)

    def _begin_piece(self, more: int) -> None:
        (first,) = self._rest
        if len(first) + more > self._room or not shrinks(first):
            return
        try:
            self._piece = memoryview(pa.allocate_buffer(self._room)).cast("B")  # pages not written to are not there
        except MemoryError:
            return  # a row of pieces does as well
        self._rest = []
        self._put(first)

    def _put(self, data: bytes | memoryview) -> None:
        end = self._used + len(data)
        if self._piece is None or self._rest or end > self._room:
            self._rest.append(memoryview(data))
        else:
            self._piece[self._used : end] = data
            self._used = end


@dataclass(slots=True)
class FilledBatch:
    """The content of one batch object, before it is encoded."""

    blocks: Blocks
    version: Version
    metadata: list[Metadata] = field(default_factory=list)
    metadata_bytes: int = 0
    """About what the metadata takes in the manifest."""
    count: int = 0
    raw_bytes: int = 0
    number: int | None = None
    """Of its last call, where the caller numbers them."""
    lacks_a_call: bool = False
    """A call that the caller has numbered is not in it, and calls after that may be."""
    ending: ClassVar[str] = ".batch"
    schema: ClassVar[None] = None
    gap: ClassVar[None] = None

    def prepare(self) -> None:
        """Nothing: its calls were checked and copied when they were made."""

    def encode(self, compression: Compression, level: int) -> memoryview:
        """Return the batch object. The entries are let go of.

        Raises:
            Unavailable: memory ran short while a call was put into this batch.
            MemoryError: there is none to compress it.
        """
        try:
            return encode_blocks(self.take_block(), self.count, compression, level, version=self.version)
        except zstandard.ZstdError as error:  # guard: zstd without memory fails only its own batch
            raise MemoryError(str(error)) from error

    def take_block(self) -> list[memoryview]:
        """Return the pieces that make the block, and hold them no longer.

        Raises:
            Unavailable: they are not what was counted, or not all calls that were numbered, since memory ran short.
        """
        pieces = self.blocks.take()
        if self.lacks_a_call or sum(map(len, pieces)) != self.raw_bytes:  # guard: never store a batch with half a call
            raise Unavailable("memory ran short while a call was put into this batch: produce its entries again")
        return pieces


class Accumulator:
    """Fills one batch after the other. To the coordinator it is the current delta."""

    def __init__(self, flush_size_bytes: int, *, version: Version = 2, in_one_piece: bool = False) -> None:
        """Start an empty batch; `in_one_piece` is for batches that will be compressed."""
        self._flush_size_bytes = flush_size_bytes
        self._version = version
        self._room = flush_size_bytes + _SPARE_ROOM if in_one_piece else 0
        self._most_metadata_bytes = FLUSH_METADATA_BYTES_V1 if version == 1 else FLUSH_METADATA_BYTES
        self._batch = FilledBatch(Blocks(version, self._room), version)
        self._last_number = 0

    def apply(self, call: Call) -> int | None:
        """Add a call's entries, and return its ingestion time; None if it is a repeat of what is durable.

        In version 2, calls that follow each other in one millisecond with equal metadata share an item.
        """
        if not call.count:
            return None  # only its place in the order matters
        if call.number is not None:
            self._last_number = check_order(call.number, self._last_number)
        batch = self._batch
        try:
            if isinstance(call.parts, bytes):
                batch.blocks.add_small(call.parts)
            else:
                for data, lengths in call.parts:
                    batch.blocks.add(data, lengths)
                call.parts = []  # they may have been copied
        except BaseException:
            # A later number in the manifest would say that this one is durable.
            batch.lacks_a_call |= call.number is not None  # guard: list no later number after a call that was left out
            raise
        batch.number = call.number
        last = batch.metadata[-1] if batch.metadata else None
        if (
            last is None
            or last.ingestion_time_ms != call.time_ms
            or last.payload != call.metadata
            or self._version == 1  # OpenData Buffer writes one item for each call, and its readers may count on that
        ):
            batch.metadata.append(Metadata(batch.count, call.time_ms, call.metadata))
            batch.metadata_bytes += len(call.metadata) + METADATA_ITEM_BYTES
        batch.count += call.count
        batch.raw_bytes += call.raw_bytes
        return call.time_ms

    def size(self) -> int:
        """The batch's size before compression, or enough to be flushed if its metadata is due."""
        if self._batch.metadata_bytes >= self._most_metadata_bytes:
            return max(self._batch.raw_bytes, self._flush_size_bytes)
        return self._batch.raw_bytes

    def reader(self) -> Accumulator:
        """The accumulator itself: nobody reads a producer's entries from its views."""
        return self

    def freeze(self) -> tuple[FilledBatch, Accumulator]:
        """What to store, and this accumulator with an empty batch."""
        filled, self._batch = self._batch, FilledBatch(Blocks(self._version, self._room), self._version)
        return filled, self
