"""How the release at commit cf326e9 reads a head: kept as it was, to test what older processes make of newer heads.

It holds the structures, the envelope and the check of required features, and nothing of the package but the checksum.
Do not update it: later releases add features, and this one must go on refusing them.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from msgspec import Struct

from forebay.buffer.format.checksum import crc32c

VERSION: Final = 2
KNOWN_FEATURES: Final[frozenset[str]] = frozenset()
_TRAILER: Final = struct.Struct("<IH")


class OldCorrupt(Exception):
    """The bytes are damaged, or something else."""


class OldUnsupported(Exception):
    """The head needs a release that knows more."""


class Metadata(Struct, frozen=True, array_like=True):
    start_index: int
    ingestion_time_ms: int
    payload: bytes


class Facts(Struct, frozen=True, array_like=True):
    object_bytes: int
    raw_bytes: int
    records: int
    crc32c: int
    first_time_ms: int
    last_time_ms: int


class NewBatch(Struct, frozen=True, array_like=True):
    location: str
    metadata: tuple[Metadata, ...] = ()
    facts: Facts | None = None


class Ref(Struct, frozen=True, array_like=True):
    name: str
    level: int
    first_sequence: int
    count: int
    first_record: int | None
    object_bytes: int
    lowest: str
    first_time_ms: int | None
    last_time_ms: int | None


class Owner(Struct, frozen=True, array_like=True):
    epoch: int
    claim_id: str
    acked: int | None


class Group(Struct, frozen=True, array_like=True):
    generation: str
    start: int


class Hold(Struct, frozen=True, array_like=True):
    first_sequence: int | None
    floor: str | None
    expires_ms: int
    purpose: str


class Writer(Struct, frozen=True, array_like=True):
    number: int
    revision: int


class Head(Struct, frozen=True, array_like=True, tag="head"):
    buffer_id: str
    revision: int = 0
    required_features: tuple[str, ...] = ()
    first_sequence: int = 0
    next_sequence: int = 0
    next_record: int = 0
    gc_floor: str = "0" * 26
    owner: Owner | None = None
    groups: dict[str, Group] = {}
    holds: dict[str, Hold] = {}
    writers: dict[str, Writer] = {}
    dropped: int = 0
    refs: tuple[Ref, ...] = ()
    tail: tuple[NewBatch, ...] = ()


def pack(head: Head) -> bytes:
    """Return the object's bytes, as that release wrote them."""
    body = msgspec.msgpack.encode(head)
    return body + _TRAILER.pack(crc32c(body), VERSION)


def read_head(data: bytes) -> Head:
    """Return the head that the bytes hold.

    Raises:
        OldCorrupt: they are damaged.
        OldUnsupported: they require a feature that the release did not know.
    """
    body = data[: -_TRAILER.size]
    checksum, version = _TRAILER.unpack_from(data, len(body))
    if version != VERSION or crc32c(body) != checksum:
        raise OldCorrupt(f"version {version}, checksum {checksum:08x}")
    head = msgspec.msgpack.decode(body, type=Head)
    unknown = set(head.required_features) - KNOWN_FEATURES
    if unknown:
        raise OldUnsupported(f"needs {', '.join(sorted(unknown))}, which this release does not know: upgrade")
    return head
