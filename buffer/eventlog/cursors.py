"""Consumers' cursors as registers in a store: one small object for each consumer and partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from forebay.buffer.base.checks import Whole  # noqa: TC001 - msgspec reads the annotations
from forebay.buffer.base.errors import Corrupt
from forebay.buffer.eventlog.backend import Backend
from forebay.buffer.eventlog.names import safe_name
from forebay.buffer.manifest.register import Register
from forebay.buffer.manifest.topic import partition_name

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.store.base import ObjectStore


class _Cursor(Struct, frozen=True):
    """One state of a cursor."""

    consumer: str
    at: Whole | None
    """The last offset that the consumer is done with."""
    number: Whole
    """Grows with every write, so that no two states are the same bytes."""
    write_id: str
    """Random: known beforehand to the one who made this write alone."""


_decoder = msgspec.json.Decoder(_Cursor)


class StoredCursors(Backend):
    """A backend whose home is a store or a folder, and which keeps its cursors there."""

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._random = random

    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return where a consumer is; None if it never said."""
        found = self._register(topic, partition, consumer).read().value
        return None if found is None else found.at

    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Remember where a consumer is; unless `back`, a place before the present one changes nothing."""
        write_id = f"{self._random.getrandbits(128):032x}"

        def change(cursor: _Cursor | None) -> _Cursor | None:
            at = None if cursor is None else cursor.at
            if to == at or (not back and to is not None and at is not None and to < at):
                return None
            return _Cursor(consumer, to, 0 if cursor is None else cursor.number + 1, write_id)

        # Where another write came on top, ours is repeated: an ack then changes nothing or moves forward, as it should.
        self._register(topic, partition, consumer).update(change, lambda cursor: cursor.write_id == write_id)

    def _register(self, topic: str, partition: int, consumer: str) -> Register[_Cursor]:
        key = f"{topic}/consumers/{partition_name(partition)}/{safe_name(consumer)}.json"
        return Register(
            self._store,
            key,
            decode=lambda data: _decode(data, f"{self._store.url}/{key}"),
            encode=msgspec.json.encode,
            clock=self._clock,
            random=self._random,
        )


def _decode(data: bytes | memoryview, location: str) -> _Cursor:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{location} is not a cursor: {error}; remove it to let the consumer start again") from error
