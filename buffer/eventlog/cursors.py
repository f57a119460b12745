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
    """The last offset that the consumer is done with; None if it was reset."""
    number: Whole
    """Grows with every write, so that no two states have the same bytes."""
    write_id: str
    """A random id of this write, by which its writer recognizes it."""


_decoder = msgspec.json.Decoder(_Cursor)


class StoredCursors(Backend):
    """A backend in a store or a folder that keeps its cursors there too."""

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._random = random

    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return a consumer's cursor, the last offset it is done with; None if there is none."""
        found = self._register(topic, partition, consumer).read().value
        return None if found is None else found.at

    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Set a consumer's cursor; None removes it. Unless `back`, an offset before the current one changes nothing."""
        write_id = f"{self._random.getrandbits(128):032x}"

        def change(cursor: _Cursor | None) -> _Cursor | None:
            at = None if cursor is None else cursor.at
            if to == at or (not back and to is not None and at is not None and to < at):
                return None
            return _Cursor(consumer, to, 0 if cursor is None else cursor.number + 1, write_id)

        # If another write replaced ours before we saw the answer, ours is repeated. That never moves an ack backward.
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
