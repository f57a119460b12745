"""Events, descriptions of a log, and the bytes in which every kind of storage keeps an event."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotation
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forebay.buffer.base.checks import MOST, check_whole
from forebay.buffer.base.errors import Corrupt, ForebayError, InvalidInput
from forebay.buffer.format.checksum import crc32c


class Event(Struct, frozen=True):
    """Something that happened."""

    kind: str
    """The type of the event, such as `delete.started`, by which readers tell events apart."""
    payload: Any = None
    """Bytes, or anything that JSON can hold. It is read back as JSON gives it: a tuple as a list."""
    headers: Mapping[str, str] = {}
    """Short facts that are stored beside the payload."""
    time_ms: int | None = None
    """When it happened, in milliseconds since 1970; by default, the time of the append."""


class Record(Struct, frozen=True):
    """An event and its place in a log."""

    topic: str
    partition: int
    offset: int
    """Its number within the partition. Offsets begin at 0, are contiguous and are never used again."""
    event: Event


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did to a partition."""

    removed: int = 0
    """Number of events that it removed."""
    remaining: int = 0
    """Number of events that are left."""
    latest: int | None = None
    """The offset of the last event ever appended; None if there was none."""
    checkpointed: bool = False
    """Whether the space is free now: SQLite has emptied its write-ahead log."""


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about a log that need no reading of events."""

    backend: str
    """`memory`, `file`, `sqlite` or `objects`."""
    location: str | None
    """The log's URL; None in memory."""
    size_bytes: int | None
    """The log's size there, in bytes; None in memory."""
    depth: int
    """Maximum number of events that wait for a subscriber in one partition. If more do, it gets `Lagged`."""


class Lagged(ForebayError):
    """The subscriber fell too far behind, and the subscription has ended; subscribe again after `last`."""

    last: dict[int, int]
    """For each assigned partition, the offset of the last event returned; the start minus one if there was none."""

    def __init__(self, message: str, *, last: dict[int, int]) -> None:
        super().__init__(message)
        self.last = last


class _Stored(Struct, frozen=True, omit_defaults=True):
    """An event as it is stored: one line of JSON. A payload of bytes has its own field."""

    kind: str
    time_ms: int
    headers: dict[str, str] = {}
    payload: Any = None
    payload_base64: bytes | UnsetType = UNSET


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Stored)


def encode_event(event: Event, now_ms: int) -> bytes:
    """Return the bytes of an event, or raise `InvalidInput` if it can never be stored."""
    if not isinstance(event, Event):
        raise InvalidInput(f"append takes an Event or a list of them; expected Event, found {type(event).__name__}")
    if not event.kind or not isinstance(event.kind, str):
        raise InvalidInput(f"the kind of an event must be text that is not empty, not {event.kind!r}")
    headers = dict(event.headers)
    if not all(isinstance(text, str) for item in headers.items() for text in item):
        raise InvalidInput(f"headers of event {event.kind!r} must be text, by names that are text")
    time_ms = now_ms if event.time_ms is None else check_whole(event.time_ms, "an event's time_ms", least=-MOST)
    try:
        if isinstance(event.payload, bytes | bytearray | memoryview):
            return _encoder.encode(_Stored(event.kind, time_ms, headers, None, bytes(event.payload)))
        return _encoder.encode(_Stored(event.kind, time_ms, headers, event.payload))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"the payload of event {event.kind!r} must be bytes, or something that JSON can hold: {error}"
        ) from error


_SEAL: Final = b'{"crc32c":"'
_SEAL_SIZE: Final = len(_SEAL) + 10
"""Size in bytes of the checksum's field: `_SEAL`, then eight hexadecimal digits, a quote and a comma."""


def seal_event(event: bytes, offset: int) -> bytes:
    """Return the bytes of an event with a first field added: a checksum of the bytes and their offset."""
    return b'%s%08x",%s' % (_SEAL, crc32c(b"%d%s" % (offset, event)), event[1:])


def is_sealed(data: bytes) -> bool:
    """Whether the bytes of an event begin with a checksum."""
    return data.startswith(_SEAL)


def unseal_event(sealed: bytes, offset: int) -> bytes | None:
    """Return the bytes of an event without its checksum; None if that is missing or not the event's."""
    event = b"{" + sealed[_SEAL_SIZE:]
    return event if seal_event(event, offset) == sealed else None


def decode_record(data: bytes, url: str, topic: str, partition: int, offset: int) -> Record:
    """Return an event with its place in the log, or raise `Corrupt` with that place."""
    try:
        stored = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"{url}: topic {topic}, partition {partition}, offset {offset}"
        raise Corrupt(
            f"{where} is not an event: {error}; read on after it, and restore the log if it should be one"
        ) from error
    payload = stored.payload if stored.payload_base64 is UNSET else stored.payload_base64
    return Record(topic, partition, offset, Event(stored.kind, payload, stored.headers, stored.time_ms))
