"""What a test's entries are: bytes, or rows of a schema. A test that takes a `Kind` holds for buffers of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec import structs

from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.format.parquet import encode_rows
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.topic import TopicProducer
from forebay.buffer.write.formats import open_format


@dataclass(frozen=True)
class Kind:
    """One kind of entry."""

    name: str
    schema: pa.Schema | None
    """What a producer or `create_topic` is given as `schema`."""

    def make(self, value: bytes) -> Any:
        """Return an entry that holds a value, as `produce` takes it."""
        return value if self.schema is None else {"value": value}

    def make_all(self, values: Iterable[bytes]) -> list[Any]:
        """Return an entry for each value."""
        return list(map(self.make, values))

    def read(self, batch: Any) -> list[bytes]:
        """Return the values of a batch's entries, in order."""
        return list(batch.entries) if self.schema is None else [row["value"] for row in batch.entries]

    def read_all(self, batches: Iterable[Any]) -> list[bytes]:
        """Return the values of all batches, in order."""
        return [value for batch in batches for value in self.read(batch)]

    def begin(self, store: ObjectStore) -> None:
        """Make a buffer that nothing was written to one of this kind."""
        if self.schema is not None:
            queue = Queue(store)
            open_format(queue, queue.read(), schema=self.schema)

    def upload(self, store: ObjectStore, key: str, values: Sequence[bytes], *times: int) -> NewBatch:
        """Store a batch under a name, and return its listing; `times` are its first and last ingestion time."""
        data: Any
        if self.schema is None:
            data, schema = encode_batch(values, "none"), None
            raw_bytes = len(data) - 7
        else:
            table = pa.table([pa.array(values, pa.binary())], schema=self.schema)
            data, schema, raw_bytes = encode_rows(table, "none"), 0, table.nbytes
        store.put(key, data)
        return NewBatch(key, (), Facts(len(data), raw_bytes, len(values), crc32c(data), *(times or (0, 0))), schema)


def kind_in(store: ObjectStore) -> Kind:
    """Return what a buffer holds."""
    return ROWS if Queue(store).read().schemas else BYTES


def values_of(batch: Any) -> list[bytes]:
    """Return the values of a batch of either kind, in order."""
    return (BYTES if batch.schema is None else ROWS).read(batch)


def append_all(queue: Queue, batches: Sequence[NewBatch], **settings: Any) -> range:
    """Append batches of the kind that the buffer holds, and return their sequences."""
    schemas = Queue(queue.store).read().schemas
    listings = [structs.replace(batch, schema=0 if schemas else None) for batch in batches]
    return queue.append(listings, schemas=schemas, **settings)


BYTES: Final = Kind("bytes", None)
ROWS: Final = Kind("rows", pa.schema([pa.field("value", pa.binary(), nullable=False)]))
KINDS: Final = pytest.mark.parametrize("kind", [BYTES, ROWS], ids=lambda kind: kind.name)
OF_BYTES: Final = pytest.mark.parametrize("profile", ["native", "opendata"])
"""For a test that is only about bytes, among others that hold for every profile."""
ONLY_BYTES: Final = pytest.mark.parametrize("kind", [BYTES], ids=lambda kind: kind.name)
"""For a test that counts bytes of entries, among others that hold for both kinds."""


class _OfValues:
    """A producer that takes values, and writes each as an entry of its buffer's kind. It flushes as often for both."""

    schema: pa.Schema | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"flush_interval": 0.1, **settings})

    def produce(self, values: Any, *args: Any, **settings: Any) -> Any:
        return super().produce(self._make(values), *args, **settings)  # type: ignore[misc]  # of what it is mixed into

    def try_produce(self, values: Any, *args: Any, **settings: Any) -> Any:
        return super().try_produce(self._make(values), *args, **settings)  # type: ignore[misc]

    async def produce_async(self, values: Any, *args: Any, **settings: Any) -> Any:
        return await super().produce_async(self._make(values), *args, **settings)  # type: ignore[misc]

    def _make(self, values: Any) -> Any:
        if self.schema is None:
            return values
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return pa.table([values.cast(pa.binary())], schema=ROWS.schema)
        return ROWS.make_all(values) if isinstance(values, list) else ROWS.make(values)


class ValueProducer(_OfValues, Producer):
    """A producer of a buffer of either kind."""


class ValueTopicProducer(_OfValues, TopicProducer):
    """A producer of a topic of either kind."""
