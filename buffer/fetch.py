"""Fetching batches: what a worker does with a descriptor, anywhere and in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer import metrics
from forebay.buffer.batch import DecodedBatch, decode_batch
from forebay.buffer.checksum import crc32c
from forebay.buffer.clock import SystemClock
from forebay.buffer.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.clock import Clock
    from forebay.buffer.model import BatchDescriptor, Metadata
    from forebay.buffer.store.base import ObjectStore, StoredObject

RECORDS_SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("ingestion_time", pa.timestamp("us", "UTC")),
        pa.field("metadata", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""One row per entry; time and metadata are null for entries whose producer attached none."""

_MAX_TIME_MS = 2**63 // 1000 - 1
"""Beyond it no timestamp in microseconds can go; the column shows null."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, fetched and decoded."""

    descriptor: BatchDescriptor
    """What it was fetched by."""
    decoded: DecodedBatch
    """Its entries."""
    size: int
    """The stored object's bytes."""

    @property
    def sequence(self) -> int:
        """The number the manifest gave it."""
        return self.descriptor.sequence

    @property
    def location(self) -> str:
        """The object's key, relative to the buffer's URL."""
        return self.descriptor.location

    @property
    def metadata(self) -> tuple[Metadata, ...]:
        """What its producers attached, each item with the first entry that it covers."""
        return self.descriptor.metadata

    @property
    def entries(self) -> Sequence[bytes]:
        """The entries as `bytes`, each made when it is asked for."""
        return self.decoded.entries

    @property
    def arrow(self) -> pa.BinaryArray | pa.ChunkedArray:
        """The entries as one Arrow `binary` array (from 2 GiB on, a chunked one)."""
        return self.decoded.arrow

    def __len__(self) -> int:
        return len(self.decoded)

    def __bool__(self) -> bool:
        return True  # a batch without entries is still a batch: it has a sequence to acknowledge

    def records(self) -> pa.Table:
        """Return the entries as a table of `RECORDS_SCHEMA`, one row each, made by Arrow alone."""
        count = len(self)
        times, payloads = _expand(self.metadata, count)
        return pa.table(
            [
                pa.repeat(pa.scalar(self.sequence, pa.int64()), count),
                pa.arange(0, count).cast(pa.int32()),
                times,
                payloads,
                pa.chunked_array(self.decoded.chunks, pa.binary()),
            ],
            schema=RECORDS_SCHEMA,
        )


class FetchHandle:
    """Fetches batches by descriptor. Stateless: pickle it, fork it, share it between threads.

    It does not notice a fence; it reads whatever is still there, which is what was appended: objects never change.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock | None = None) -> None:
        self.store = store
        self._clock = clock or SystemClock()

    def fetch(self, descriptor: BatchDescriptor) -> Batch:
        """Return the batch, decoded.

        Raises:
            NotFound: its object is gone.
            Corrupt: its bytes are no batch.
        """
        began = self._clock.monotonic()
        found = self._read(descriptor)
        decoded = decode_batch(found.data, location=f"{self.store.url}/{descriptor.location}")
        attributes = {"buffer": self.store.url}
        metrics.fetch_duration.record(self._clock.monotonic() - began, attributes)
        metrics.batches_fetched.add(1, attributes)
        metrics.entries_fetched.add(len(decoded), attributes)
        metrics.bytes_fetched.add(len(found.data), attributes)
        return Batch(descriptor, decoded, len(found.data))

    def fetch_raw(self, descriptor: BatchDescriptor) -> bytes | memoryview:
        """Return the batch object's bytes, to be decoded elsewhere by `decode_batch`."""
        return self._read(descriptor).data

    def _read(self, descriptor: BatchDescriptor) -> StoredObject:
        try:
            found = self.store.get(descriptor.location)
        except NotFound as error:
            if error.bucket:
                raise
            raise NotFound(
                f"{self.store.url}/{descriptor.location}, batch {descriptor.sequence}, is not there. It may have been "
                "swept after another consumer acknowledged it: check that nobody else acknowledges this buffer, that "
                "no lifecycle rule deletes its objects, and that it was not read for longer than the collector's grace"
            ) from error
        if descriptor.facts is not None:
            checksum = crc32c(found.data)
            if checksum != descriptor.facts.crc32c or len(found.data) != descriptor.facts.object_bytes:
                raise Corrupt(
                    f"{self.store.url}/{descriptor.location}, batch {descriptor.sequence}, is damaged: expected "
                    f"{descriptor.facts.object_bytes} bytes with CRC32C {descriptor.facts.crc32c:08x}, found "
                    f"{len(found.data)} bytes with {checksum:08x}"
                )
        return found


def _expand(metadata: Sequence[Metadata], count: int) -> tuple[pa.Array, pa.Array]:
    """Times and payloads, a row each: every item repeated over the entries that it covers."""
    ends: list[int] = []
    times: list[int | None] = []
    payloads: list[bytes | None] = []

    def add_run(end: int, time_ms: int | None, payload: bytes | None) -> None:
        if min(end, count) > (ends[-1] if ends else 0):
            ends.append(min(end, count))
            times.append(None if time_ms is None or abs(time_ms) > _MAX_TIME_MS else time_ms * 1000)
            payloads.append(payload)

    starts = [item.start_index for item in metadata]
    add_run(starts[0] if starts else count, None, None)
    for i, item in enumerate(metadata):
        add_run(starts[i + 1] if i + 1 < len(starts) else count, item.ingestion_time_ms, item.payload)
    run_ends = pa.array(ends, pa.int32())
    return (
        pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, pa.array(times, pa.timestamp("us", "UTC")))),
        pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, pa.array(payloads, pa.binary()))),
    )
