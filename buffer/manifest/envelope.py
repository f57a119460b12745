"""The envelope of every version 2 object: `MessagePack ‖ crc32c:u32 ‖ version:u16 = 2` (rfcs/0005)."""

from __future__ import annotations

import struct
from functools import cache
from threading import Lock
from typing import Final, TypeVar

import msgspec

from forebay.buffer.base.checks import MOST
from forebay.buffer.base.errors import Corrupt, InvalidInput, damaged
from forebay.buffer.format.checksum import crc32c

VERSION: Final = 2
_TRAILER: Final = struct.Struct("<IH")
_encoder = msgspec.msgpack.Encoder()

_making_decoder = Lock()

S = TypeVar("S", bound=msgspec.Struct)


def pack(value: msgspec.Struct) -> bytes:
    """Return the object's bytes.

    Raises:
        InvalidInput: a number in it is too large to be stored.
    """
    try:
        body = _encoder.encode(value)
    except OverflowError as error:
        raise InvalidInput(
            f"a number in this {type(value).__name__.lower()} is too large to be stored: it must be at most {MOST}"
        ) from error
    return body + _TRAILER.pack(crc32c(body), VERSION)


@cache
def _make_decoder(kind: type[S]) -> msgspec.msgpack.Decoder[S]:
    return msgspec.msgpack.Decoder(kind)


def _decoder_of(kind: type[S]) -> msgspec.msgpack.Decoder[S]:
    # msgspec 0.22 crashes the process if a thread uses a type that another thread is looking at for the first time.
    with _making_decoder:  # guard: one thread at a time makes decoders
        return _make_decoder(kind)


def unpack(data: bytes | memoryview, kind: type[S], location: str) -> S:
    """Return what the bytes hold.

    Raises:
        Corrupt: they are damaged, or something else; `location` is named.
    """
    data = bytes(data)
    if len(data) < _TRAILER.size:
        raise damaged(f"{location}: {len(data)} bytes are too few for an object of version {VERSION}")
    body = data[: -_TRAILER.size]
    checksum, version = _TRAILER.unpack_from(data, len(body))
    if version != VERSION:
        raise Corrupt(f"{location}: it is of version {version}; expected version {VERSION}: restore it, or upgrade")
    found = crc32c(body)
    if found != checksum:  # guard: verify the checksum of heads and segments and cursors
        raise damaged(f"{location}: its checksum is {found:08x}, and {checksum:08x} was written")
    try:
        return _decoder_of(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"{location}: it does not hold a {kind.__name__.lower()}: {error}") from error
