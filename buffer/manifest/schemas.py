"""The schemas of a typed buffer or topic: immutable objects, named by a hash of their bytes (rfcs/0010)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Corrupt, NotFound, damaged
from forebay.buffer.base.reread import read_sound
from forebay.buffer.format.schema import decode_schema, encode_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store.base import ObjectStore

FOLDER: Final = "schemas"
"""The collector never deletes from it."""


class Schemas:
    """The schemas of one buffer or topic. Those that were read are kept. It pickles, and many threads may share it."""

    def __init__(self, store: ObjectStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[str, tuple[pa.Schema, bytes]] = {}

    def save(self, schema: pa.Schema) -> str:
        """Store a schema, and return its id. Storing it again changes nothing."""
        data = encode_schema(schema)
        schema_id = _hash(data)
        self._store.put(schema_key(schema_id), data)
        self._kept[schema_id] = schema, data
        return schema_id

    def copy(self, schema_ids: Iterable[str], store: ObjectStore) -> None:
        """Store schemas in another store as well, where a topic's partition keeps its own."""
        for schema_id in schema_ids:
            _, data = self._load(schema_id)
            store.put(schema_key(schema_id), data)

    def load(self, schema_id: str) -> pa.Schema:
        """Return a schema.

        Raises:
            Corrupt: it is damaged or missing.
        """
        return self._load(schema_id)[0]

    def _load(self, schema_id: str) -> tuple[pa.Schema, bytes]:
        kept = self._kept.get(schema_id)
        if kept is None:
            kept = self._kept[schema_id] = read_sound(lambda: self._read(schema_id), self._clock)
        return kept

    def _read(self, schema_id: str) -> tuple[pa.Schema, bytes]:
        key = schema_key(schema_id)
        location = f"{self._store.url}/{key}"
        try:
            data = bytes(self._store.get(key).data)
        except NotFound as error:
            if error.bucket:
                raise
            raise Corrupt(f"{location} is missing, and batches were written in it: restore it") from error
        if _hash(data) != schema_id:  # guard: a schema object has the hash that names it
            raise damaged(f"{location} is damaged: its hash is {_hash(data)}")
        return decode_schema(data, location), data


def schema_key(schema_id: str) -> str:
    """The key of a schema's object."""
    return f"{FOLDER}/{schema_id}"


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
