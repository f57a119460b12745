"""Events, what is known of a log, and the bytes that every home keeps."""

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
    """What happened, such as `delete.started`. Readers tell events apart by it."""
    payload: Any = None
    """Anything that JSON can hold, read back as JSON gives it (a tuple as a list), or bytes."""
    headers: Mapping[str, str] = {}
    """Short facts beside the payload."""
    time_ms: int | None = None
    """When it happened, in milliseconds since 1970; by default, when it is appended."""


class Record(Struct, frozen=True):
    """An event and its place in a log."""

    topic: str
    partition: int
    offset: int
    """Within the partition: from 0, contiguous, never used again."""
    event: Event


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did to a partition."""

    removed: int = 0
    """Events that are gone by it."""
    remaining: int = 0
    """Events that are still there."""
    latest: int | None = None
    """The offset of the last event ever appended; None if there was none."""
    checkpointed: bool = False
    """Whether the space is free now: SQLite has emptied its write-ahead log."""


@dataclass(frozen=True, slots=True)
class Description:
    """What there is to know of a log without reading it."""

    backend: str
    """`memory`, `file`, `sqlite` or `objects`."""
    location: str | None
    """Where it is; None in memory."""
    size_bytes: int | None
    """What it takes there; None in memory."""
    depth: int
    """Maximum number of events that wait for a subscriber. After that it gets an error that says that it lags."""


class Lagged(ForebayError):
    """The subscriber fell too far behind, and the subscription has ended; subscribe again after `last`."""

    last: dict[int, int]
    """The last offset given, for each partition assigned; one less than the start where none was."""

    def __init__(self, message: str, *, last: dict[int, int]) -> None:
        super().__init__(message)
        self.last = last


class _Stored(Struct, frozen=True, omit_defaults=True):
    """An event as every home keeps it: one line of JSON. Bytes have a field of their own."""

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
"""Bytes of the checksum's field, to the comma after it: eight hexadecimal digits, a quote and the comma."""


def seal_event(event: bytes, offset: int) -> bytes:
    """Return the bytes of an event with a checksum of them and of their offset as the first field."""
    return b'%s%08x",%s' % (_SEAL, crc32c(b"%d%s" % (offset, event)), event[1:])


def is_sealed(data: bytes) -> bool:
    """Whether the bytes of an event begin with a checksum."""
    return data.startswith(_SEAL)


def unseal_event(sealed: bytes, offset: int) -> bytes | None:
    """Return the bytes of an event without its checksum; None if that is missing or not the event's."""
    event = b"{" + sealed[_SEAL_SIZE:]
    return event if seal_event(event, offset) == sealed else None


def decode_record(data: bytes, url: str, topic: str, partition: int, offset: int) -> Record:
    """Return an event with its place, or raise `Corrupt`, naming where it is."""
    try:
        stored = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"{url}: topic {topic}, partition {partition}, offset {offset}"
        raise Corrupt(
            f"{where} is not an event: {error}; read on after it, and restore the log if it should be one"
        ) from error
    payload = stored.payload if stored.payload_base64 is UNSET else stored.payload_base64
    return Record(topic, partition, offset, Event(stored.kind, payload, stored.headers, stored.time_ms))
