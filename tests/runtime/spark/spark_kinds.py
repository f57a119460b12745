"""Buffers of bytes and typed buffers that hold the same values: rows of a typed one have the only column `value`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from spark_place import Place

from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import FetchHandle

SCHEMAS = {"bytes": None, "typed": pa.schema([("value", pa.binary())])}


def make(place: Place, kind: str) -> None:
    """Make an empty buffer. One of bytes needs no making."""
    if SCHEMAS[kind] is not None:
        Producer(place.url, schema=SCHEMAS[kind], storage_options=place.storage_options).close()


def fill(place: Place, kind: str, batches: Iterable[Sequence[bytes]]) -> None:
    """Append batches of these values."""
    with Producer(place.url, schema=SCHEMAS[kind], storage_options=place.storage_options) as producer:
        for values in batches:
            producer.produce([{"value": value} for value in values] if kind == "typed" else list(values))
            producer.flush().result()


def values_in(place: Place) -> list[bytes]:
    """Return the values of all batches."""
    store = place.open()
    handle = FetchHandle(store)
    entries = [entry for batch in Queue(store).descriptors(0, 10**6) for entry in handle.fetch(batch).entries]
    return [entry["value"] if isinstance(entry, dict) else entry for entry in entries]
