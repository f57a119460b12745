"""Fetching batches: what a worker does with a descriptor, anywhere and in any order."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from threading import Semaphore
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Corrupt, NotFound
from forebay.buffer.base.reread import read_sound
from forebay.buffer.format.batch import DEFAULT_MAX_RAW_BYTES, DecodedBatch, decode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.store.retry import RETRY_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor, Metadata
    from forebay.buffer.store.base import ObjectStore

# Many threads may wait for objects at once; more of them decoding than there are processors only push each other's
# memory out of the caches.
_decoding = Semaphore(os.cpu_count() or 1)


def _decode_afresh() -> None:
    """The threads that were decoding did not come along into this process."""
    global _decoding  # noqa: PLW0603  (there is one set of processors)
    _decoding = Semaphore(os.cpu_count() or 1)


os.register_at_fork(after_in_child=_decode_afresh)

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

    def records(
        self, start: int = 0, stop: int | None = None, *, columns: Sequence[str] = tuple(RECORDS_SCHEMA.names)
    ) -> pa.Table:
        """Return the entries from `start` to before `stop` as rows of `RECORDS_SCHEMA`, made by Arrow alone.

        Values are not copied. Metadata is, for every row: a few thousand rows at a time keep that small.
        """
        start, stop, _step = slice(start, stop).indices(len(self))
        makers: dict[str, Callable[[], pa.Array | pa.ChunkedArray]] = {
            "sequence": lambda: pa.repeat(pa.scalar(self.sequence, pa.int64()), max(0, stop - start)),
            "index": lambda: pa.arange(start, max(start, stop)).cast(pa.int32()),
            "ingestion_time": lambda: _expand_times(self.metadata, start, stop),
            "metadata": lambda: _expand_payloads(self.metadata, start, stop),
            "value": lambda: pa.chunked_array(self.decoded.chunks, pa.binary()).slice(start, max(0, stop - start)),
        }
        schema = pa.schema([RECORDS_SCHEMA.field(name) for name in columns])
        return pa.table([makers[name]() for name in columns], schema=schema)


class FetchHandle:
    """Fetches batches by descriptor. Stateless: pickle it, fork it, share it between threads.

    It does not notice a fence; it reads whatever is still there, which is what was appended: objects never change.
    """

    def __init__(self, store: ObjectStore, *, retry_timeout: float = RETRY_SECONDS, clock: Clock | None = None) -> None:
        """Make a handle that retries a read for at most `retry_timeout` seconds while the store fails."""
        self.store = store
        self._clock = clock or SystemClock()
        self._retry_timeout = check_seconds(retry_timeout, "retry_timeout", zero=True)

    def fetch(self, descriptor: BatchDescriptor) -> Batch:
        """Return the batch, decoded.

        Raises:
            NotFound: its object is gone.
            Corrupt: its bytes are no batch, or unpack to more than the manifest says, also when they are read again.
        """
        began = self._clock.monotonic()
        batch = self.decode(descriptor, self.fetch_raw(descriptor))
        metrics.fetch_duration.record(self._clock.monotonic() - began, {"buffer": self.store.url})
        return batch

    def fetch_raw(self, descriptor: BatchDescriptor) -> bytes | memoryview:
        """Return the batch object's bytes, for `decode` here or `decode_batch` elsewhere.

        Raises:
            NotFound: its object is gone.
            Corrupt: its bytes do not match the manifest's checksum, in three reads.
        """
        return read_sound(lambda: self._read(descriptor), self._clock)

    def _read(self, descriptor: BatchDescriptor) -> bytes | memoryview:
        patience = Patience(self._clock, system_random(), self._retry_timeout)  # made here: it does not pickle
        try:
            data = patience.call(lambda: self.store.get(descriptor.location)).data
        except NotFound as error:
            if error.bucket:
                raise
            raise NotFound(
                f"{self.store.url}/{descriptor.location}, batch {descriptor.sequence}, is not there. "
                f"{_hint_at_doubled_folder(self.store.url, descriptor)}It may have been "
                "swept after another consumer acknowledged it: check that nobody else acknowledges this buffer, that "
                "no lifecycle rule deletes its objects, and that it was not read for longer than the collector's grace"
            ) from error
        if descriptor.facts is not None:
            checksum = crc32c(data)
            # guard: verify the checksum and size of a batch
            if checksum != descriptor.facts.crc32c or len(data) != descriptor.facts.object_bytes:
                raise Corrupt(
                    f"{self.store.url}/{descriptor.location}, batch {descriptor.sequence}, is damaged: expected "
                    f"{descriptor.facts.object_bytes} bytes with CRC32C {descriptor.facts.crc32c:08x}, found "
                    f"{len(data)} bytes with {checksum:08x}"
                )
        return data

    def decode(self, descriptor: BatchDescriptor, data: bytes | memoryview) -> Batch:
        """Return the batch of what `fetch_raw` returned: `fetch` in two steps, for who reads on other threads.

        If the manifest has no checksum of the batch (version 1), decoding is what finds damage. Then the object is read
        again before it counts as damaged.

        Raises:
            NotFound: its object had to be read again, and is gone.
            Corrupt: the bytes are no batch, or unpack to more than the manifest says.
        """
        if descriptor.facts is not None:
            return self._decode(descriptor, data)  # its checksum was right, so another read would not help
        # guard: read a batch without checksum again if decoding fails
        return read_sound(
            lambda: self._decode(descriptor, data),
            self._clock,
            again=lambda: self._decode(descriptor, self._read(descriptor)),
        )

    def _decode(self, descriptor: BatchDescriptor, data: bytes | memoryview) -> Batch:
        limit = DEFAULT_MAX_RAW_BYTES
        if descriptor.facts is not None:
            # What budgets of memory were reckoned with.
            limit = min(limit, descriptor.facts.raw_bytes)
        with _decoding:
            decoded = decode_batch(data, location=f"{self.store.url}/{descriptor.location}", max_raw_bytes=limit)
        attributes = {"buffer": self.store.url}
        metrics.batches_fetched.add(1, attributes)
        metrics.entries_fetched.add(len(decoded), attributes)
        metrics.bytes_fetched.add(len(data), attributes)
        return Batch(descriptor, decoded, len(data))


def _hint_at_doubled_folder(url: str, descriptor: BatchDescriptor) -> str:
    """Advice if a location of version 1 repeats the folder at the URL's end; else an empty string."""
    folders = url.partition("://")[2].split("/")[1:]
    ends = ("/".join(folders[start:]) for start in range(len(folders)))
    doubled = next((end for end in ends if end and descriptor.location.startswith(f"{end}/")), None)
    if descriptor.facts is not None or doubled is None:
        return ""
    return (
        f"Its location repeats the URL's own folder {doubled}/. OpenData Buffer's locations begin at the bucket: "
        f"leave {doubled} out of the URL, and put it in front of manifest_path. If that is not the cause: "
    )


def _expand_times(metadata: Sequence[Metadata], start: int, stop: int) -> pa.Array:
    """A time for each row, null where there is none that a timestamp can show."""
    ends, items = _runs(metadata, start, stop)
    times = [
        None if i is None or abs(i.ingestion_time_ms) > _MAX_TIME_MS else i.ingestion_time_ms * 1000 for i in items
    ]
    return _decode_runs(ends, pa.array(times, pa.timestamp("us", "UTC")))


def _expand_payloads(metadata: Sequence[Metadata], start: int, stop: int) -> pa.Array:
    """A payload for each row, null where there is none."""
    ends, items = _runs(metadata, start, stop)
    return _decode_runs(ends, pa.array([None if item is None else item.payload for item in items], pa.binary()))


def _runs(metadata: Sequence[Metadata], start: int, stop: int) -> tuple[list[int], list[Metadata | None]]:
    """What covers the rows from `start` to before `stop`: each item, and how many rows there are up to its end."""
    ends: list[int] = []
    items: list[Metadata | None] = []
    row = start
    at = bisect_right(metadata, start, key=lambda item: item.start_index) - 1  # -1: none covers the first row
    while row < stop:
        end = metadata[at + 1].start_index if at + 1 < len(metadata) else stop
        if end > row:
            row = min(end, stop)
            ends.append(row - start)
            items.append(metadata[at] if at >= 0 else None)
        at += 1
    return ends, items


def _decode_runs(ends: list[int], values: pa.Array) -> pa.Array:
    if len(ends) == 1:  # nearly always, and much faster
        return pa.repeat(values[0], ends[0])
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values))
