"""The version 1 manifest, byte for byte OpenData Buffer's (rfcs/0003).

    manifest = entry* footer
    entry    = entry_len:u32, sequence:u64, location_len:u16, location, metadata_count:u32, item*
    item     = start_index:u32, ingestion_time_ms:i64, payload_len:u32, payload
    footer   = entry_count:u32, next_sequence:u64, epoch:u64, version:u16 = 1

All integers are little-endian; `entry_len` counts the bytes after itself. A missing object is an empty manifest.

The words are OpenData Buffer's: an *entry* of this manifest is a listing everywhere else.

A `Manifest` wraps those bytes and never takes them apart as a whole: an append adds bytes before a new footer, an
acknowledgement copies what is left, and only the entries that are asked for become descriptors. Sequences are
contiguous, so the first one follows from the footer; and entries with a length before them are laid out like the
records of a batch, so one native pass (`block_v1`) finds and checks where each begins.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import pyarrow as pa

from forebay.buffer.base.checks import MOST
from forebay.buffer.base.errors import Corrupt, InvalidInput, damaged
from forebay.buffer.format import block_v1
from forebay.buffer.format.model import BatchDescriptor, Metadata, NewBatch
from forebay.buffer.manifest.either_version import EitherVersion
from forebay.buffer.store.base import check_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay.buffer.base.process import Process

VERSION: Final = 1
_FOOTER: Final = struct.Struct("<IQQH")
_ENTRY_HEAD: Final = struct.Struct("<QH")
_COUNT: Final = struct.Struct("<I")
_ITEM_HEAD: Final = struct.Struct("<IqI")
_LEN: Final = struct.Struct("<I")
_SMALLEST_ENTRY: Final = _LEN.size + _ENTRY_HEAD.size + _COUNT.size

_MAX_U32: Final = 2**32 - 1
_MAX_U64: Final = 2**64 - 1


class Manifest(EitherVersion):
    """One state of a version 1 manifest. Immutable: every change gives a new one."""

    __slots__ = ("_entries", "count", "data", "epoch", "first_sequence", "location", "next_sequence")

    version: ClassVar[Literal[1, 2]] = VERSION
    names_writers: ClassVar[bool] = False
    data: bytes
    """The whole manifest as stored."""
    count: int
    """How many batches are waiting."""
    next_sequence: int
    """The number that the next batch gets."""
    epoch: int
    """Each consumer that takes over the read side raises it."""

    def __init__(self, data: bytes | memoryview, location: str) -> None:
        """Check the footer; the entries are checked when first looked at.

        Raises:
            Corrupt: the bytes are no version 1 manifest; `location` is named in the message.
        """
        self.data = bytes(data)
        self.location: str = location
        self._entries: pa.BinaryArray | None = None
        size = len(self.data)
        if size < _FOOTER.size:
            raise self._corrupt(f"{size} bytes are too few for a manifest's footer of {_FOOTER.size}")
        self.count, self.next_sequence, self.epoch, version = _FOOTER.unpack_from(self.data, size - _FOOTER.size)
        if version != VERSION:
            raise self._corrupt(f"it is of version {version}; this reads version {VERSION}")
        if self.count * _SMALLEST_ENTRY > size - _FOOTER.size:
            raise self._corrupt(f"{size} bytes cannot hold the {self.count} entries its footer claims")
        if self.count > self.next_sequence:
            raise self._corrupt(f"{self.count} entries below sequence {self.next_sequence} cannot all have a number")
        self.first_sequence: int = self.next_sequence - self.count
        if self.count == 0 and size != _FOOTER.size:
            raise self._corrupt(f"{size - _FOOTER.size} bytes stand before the footer of an empty manifest")

    @classmethod
    def empty(cls, location: str) -> Manifest:
        """What a missing object stands for."""
        return cls(_FOOTER.pack(0, 0, 0, VERSION), location)

    def to_bytes(self) -> bytes:
        """The object as stored."""
        return self.data

    @property
    def buffer_id(self) -> str:
        """A hash of the manifest's address."""
        return blake2b(self.location.encode(), digest_size=16).hexdigest()

    @property
    def is_unwritten(self) -> bool:
        """Whether only an unnamed consumer wrote it."""
        # guard: never convert a manifest that was written to
        return self.next_sequence == 0 and 0 < self.epoch < MOST

    @property
    def acked(self) -> int | None:
        """The sequence before the oldest batch waiting: the others were removed when they were acknowledged."""
        return self.first_sequence - 1 if self.first_sequence else None

    def has_acked(self, through: int) -> bool:
        """Whether no batch up to and including `through` is waiting."""
        return self.count == 0 or self.first_sequence > through

    def following(self, after: int | None) -> int:
        """The sequence to read after `after`, but none that was removed: version 1 cannot tell who consumed it."""
        return self.first_sequence if after is None else max(after + 1, self.first_sequence)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def append(self, batches: Iterable[NewBatch]) -> Manifest:
        """The manifest with these batches at its end, in order. No entry that is there already is decoded."""
        entries = [_encode_entry(sequence, batch) for sequence, batch in enumerate(batches, self.next_sequence)]
        count, next_sequence = self.count + len(entries), self.next_sequence + len(entries)
        if next_sequence > _MAX_U64 or count > _MAX_U32:
            raise InvalidInput(
                f"{self.location} is full: {self.count} batches wait below {self.next_sequence}"
                "; let consumers read them, or start a new buffer"
            )
        footer = _FOOTER.pack(count, next_sequence, self.epoch, VERSION)
        return Manifest(b"".join((memoryview(self.data)[: -_FOOTER.size], *entries, footer)), self.location)

    def ack(self, through: int) -> Manifest:
        """The manifest without the batches up to and including sequence `through`."""
        gone = min(max(through + 1 - self.first_sequence, 0), self.count)
        footer = _FOOTER.pack(self.count - gone, self.next_sequence, self.epoch, VERSION)
        rest = memoryview(self.data)[self._place(gone) : -_FOOTER.size]
        return Manifest(b"".join((rest, footer)), self.location)

    def claim(self, claim_id: str = "", process: Process | None = None) -> Manifest:  # noqa: ARG002 - not stored
        """The manifest with the next epoch."""
        if self.epoch == _MAX_U64:
            raise self._corrupt("no epoch is left to claim")
        footer = _FOOTER.pack(self.count, self.next_sequence, self.epoch + 1, VERSION)
        return Manifest(b"".join((memoryview(self.data)[: -_FOOTER.size], footer)), self.location)

    def tail_descriptors(self, first: int, limit: int) -> list[BatchDescriptor]:
        """Up to `limit` descriptors of batches that wait, from sequence `first` on."""
        skipped = max(first - self.first_sequence, 0)
        if skipped >= self.count or limit <= 0:
            return []
        wanted = self._split().slice(skipped, limit).to_pylist()
        return [self._decode_entry(self.first_sequence + skipped + i, entry) for i, entry in enumerate(wanted)]

    def lists_any(self, locations: Sequence[str]) -> bool:
        """Whether any of these batches is waiting."""
        # A search of the raw bytes nearly always says no; metadata that quotes a location cannot fool the second look.
        if not any(location.encode() in self.data for location in locations):
            return False
        wanted = set(locations)
        # guard: compare whole locations
        return any(found.location in wanted for found in self.tail_descriptors(self.first_sequence, self.count))

    def _split(self) -> pa.BinaryArray:
        """The entries' bytes as one Arrow array, their bounds checked."""
        if self._entries is None:
            body = memoryview(self.data)[: -_FOOTER.size]
            try:
                entries = block_v1.read_page(body, self.count, codec=block_v1.UNCOMPRESSED, raw_size=len(body))
            except (pa.ArrowException, OSError) as error:
                raise self._corrupt(f"it does not hold the {self.count} entries its footer claims ({error})") from error
            left = len(body) - _LEN.size * self.count - int(entries.total_values_length)
            if left:
                raise self._corrupt(f"{left} bytes follow its last entry")
            self._entries = entries
        return self._entries

    def _place(self, index: int) -> int:
        """Where entry `index` begins."""
        if index == self.count:
            return len(self.data) - _FOOTER.size
        if index == 0:
            return 0
        skipped = self._split().slice(0, index)
        return _LEN.size * index + int(skipped.total_values_length)

    def _decode_entry(self, sequence: int, entry: bytes) -> BatchDescriptor:
        try:
            return _decode_entry(sequence, entry)
        except (struct.error, UnicodeDecodeError, InvalidInput, _MalformedError) as error:
            raise self._corrupt(f"its entry for sequence {sequence} is malformed: {error}") from error

    def _corrupt(self, what: str) -> Corrupt:
        return damaged(f"manifest {self.location}: {what}")


class _MalformedError(Exception):
    """An entry's bytes contradict each other."""


def _encode_entry(sequence: int, batch: NewBatch) -> bytes:
    location = check_key(batch.location).encode()
    parts = [_ENTRY_HEAD.pack(sequence, len(location)), location, _COUNT.pack(len(batch.metadata))]
    for item in batch.metadata:
        parts.append(_ITEM_HEAD.pack(item.start_index, item.ingestion_time_ms, len(item.payload)))
        parts.append(item.payload)
    size = sum(map(len, parts))
    if size > _MAX_U32:
        raise InvalidInput(
            f"batch {batch.location}: {size} bytes of metadata do not fit into a manifest entry"
            "; give the calls less metadata"
        )
    return b"".join((_LEN.pack(size), *parts))


def _decode_entry(sequence: int, entry: bytes) -> BatchDescriptor:
    found, location_size = _ENTRY_HEAD.unpack_from(entry)
    if found != sequence:
        raise _MalformedError(f"it says {found}")
    at = _ENTRY_HEAD.size + location_size
    # A slice past the end would be silently short; the count that must follow is what notices.
    location = check_key(entry[_ENTRY_HEAD.size : at].decode())  # guard: refuse locations that are not valid keys
    (count,) = _COUNT.unpack_from(entry, at)
    at += _COUNT.size
    if count * _ITEM_HEAD.size > len(entry) - at:
        raise _MalformedError(f"{len(entry) - at} bytes cannot hold the {count} metadata items it claims")
    metadata = []
    start = 0
    for _ in range(count):
        start_index, time_ms, payload_size = _ITEM_HEAD.unpack_from(entry, at)
        at += _ITEM_HEAD.size
        if start_index < start:
            raise _MalformedError(f"metadata for entry {start_index} stands after that for entry {start}")
        if payload_size > len(entry) - at:
            raise _MalformedError(f"a metadata payload of {payload_size} bytes runs past its end")
        metadata.append(Metadata(start_index, time_ms, entry[at : at + payload_size]))
        at += payload_size
        start = start_index
    if at != len(entry):
        raise _MalformedError(f"{len(entry) - at} bytes are left over")
    return BatchDescriptor(sequence, location, tuple(metadata))
