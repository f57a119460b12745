"""Fetching batches: what a worker does with a descriptor, anywhere and in any order."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import partial
from threading import Semaphore
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import structs

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput, NotFound, damaged
from forebay.buffer.base.reread import read_sound
from forebay.buffer.format.batch import DEFAULT_MAX_RAW_BYTES, DecodedBatch, decode_batch, raw_size
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.parquet import DecodedRows
from forebay.buffer.read.notebook import PREVIEW_ROWS, html_of
from forebay.buffer.read.records import RECORDS_SCHEMA, record_columns, typed_records
from forebay.buffer.read.typed import RowReader, entries_of, rows_of
from forebay.buffer.store.retry import RETRY_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor, Metadata
    from forebay.buffer.read.typed import Columns
    from forebay.buffer.store.base import ObjectStore

_MOST_DECODING = (os.cpu_count() or 1) + 1
"""Maximum number of threads that decode at once. Many may wait for objects, but many that decode push each other's
memory out of the caches. One more than there are processors keeps them busy while a thread waits for the interpreter's
lock: runtimes with 4 and 8 workers are 3 to 9 % faster by that."""

_decoding = Semaphore(_MOST_DECODING)


def _decode_afresh() -> None:
    """The threads that were decoding did not come along into this process."""
    global _decoding  # noqa: PLW0603  (there is one set of processors)
    _decoding = Semaphore(_MOST_DECODING)


os.register_at_fork(after_in_child=_decode_afresh)

_MOST_IN_ONE_ARRAY = 2**31 - 1
"""Bytes of entries that an Arrow `binary` array can hold."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, fetched and decoded."""

    descriptor: BatchDescriptor
    """What it was fetched by."""
    decoded: DecodedBatch | DecodedRows
    """Its entries, or its rows."""
    size: int
    """The stored object's bytes."""
    kept: pa.Array | None = None
    """The index of each entry in the stored batch, if `select` left some out; None if all entries are here."""

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
    def entries(self) -> Sequence[Any]:
        """The entries as `bytes`, or the rows as dicts, each made when it is asked for."""
        return self.decoded.entries

    @property
    def arrow(self) -> pa.BinaryArray | pa.ChunkedArray:
        """The entries as one Arrow `binary` array (from 2 GiB on, a chunked one).

        Raises:
            Unsupported: it is a typed batch; `table` has its rows.
        """
        return entries_of(self.decoded, self.location).arrow

    @property
    def chunks(self) -> tuple[pa.BinaryArray, ...]:
        """The entries as Arrow `binary` arrays in order, each below 2 GiB.

        Raises:
            Unsupported: it is a typed batch; `table` has its rows.
        """
        return entries_of(self.decoded, self.location).chunks

    @property
    def table(self) -> pa.Table:
        """The rows of a typed batch, in the newest schema that its reader knew.

        Raises:
            Unsupported: it is a batch of bytes; `arrow` and `entries` have them.
        """
        return rows_of(self.decoded, self.location).table

    @property
    def schema(self) -> pa.Schema | None:
        """The schema that the rows are shown in; None for a batch of bytes."""
        return self.decoded.table.schema if isinstance(self.decoded, DecodedRows) else None

    def __len__(self) -> int:
        return len(self.decoded)

    def __bool__(self) -> bool:
        return True  # a batch without entries is still a batch: it has a sequence to acknowledge

    def records(self, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the entries from `start` to before `stop` as rows of `RECORDS_SCHEMA`, made by Arrow alone.

        Of a typed batch: its rows, and then the columns `_sequence`, `_index`, `_ingestion_time` and `_call_metadata`.
        `columns` names those wanted, in order; None is all.

        Values are not copied. Metadata is, for every row: a few thousand rows at a time keep that small.
        """
        start, stop, _step = slice(start, stop).indices(len(self))
        stop = max(start, stop)
        decoded = self.decoded
        added = record_columns([(self.descriptor, start, stop)])
        if self.kept is not None:
            added["index"] = partial(self._indexes, start, stop)
        if isinstance(decoded, DecodedRows):
            return typed_records(decoded.table.slice(start, stop - start), added, columns)
        columns = RECORDS_SCHEMA.names if columns is None else columns
        makers: dict[str, Callable[[], pa.Array | pa.ChunkedArray]] = {
            "value": lambda: pa.chunked_array(decoded.chunks, pa.binary()).slice(start, stop - start),
            **added,
        }
        schema = pa.schema([RECORDS_SCHEMA.field(name) for name in columns])
        return pa.table([makers[name]() for name in columns], schema=schema)

    def _repr_html_(self) -> str:
        """Return the schema and the first rows, for a notebook."""
        return html_of(f"batch {self.sequence}, {counted(len(self), 'entry')}", self.records(0, PREVIEW_ROWS))

    def select(self, ranges: Sequence[range]) -> Batch:
        """Return the batch with only the entries in these ranges, which ascend.

        It keeps its sequence, and `records` shows the index that an entry has in the stored batch. `metadata` counts
        the entries that are left. One range copies nothing.
        """
        indexes = [self._indexes(found.start, found.stop) for found in ranges]
        return Batch(
            structs.replace(self.descriptor, metadata=_select_metadata(self.metadata, ranges)),
            _select_rows(self.decoded, ranges)
            if isinstance(self.decoded, DecodedRows)
            else _select_entries(self.decoded, ranges),
            self.size,
            pa.concat_arrays([*indexes, pa.array([], pa.int32())]),
        )

    def _indexes(self, start: int, stop: int) -> pa.Array:
        return pa.arange(start, stop).cast(pa.int32()) if self.kept is None else self.kept[start:stop]


class FetchHandle:
    """Fetches batches by descriptor. Stateless: pickle it, fork it, share it between threads.

    It does not notice a fence; it reads whatever is still there, which is what was appended: objects never change.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        columns: Columns | None = None,
        retry_timeout: float = RETRY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Make a handle.

        Args:
            store: the buffer's store.
            columns: of a typed buffer: names of the columns to decode, or a schema to show rows in. None is all.
            retry_timeout: maximum time in seconds for which a read is retried while the store fails.
            clock: measures that time.
        """
        self.store = store
        self.clock: Final = clock or SystemClock()
        self._retry_timeout = check_seconds(retry_timeout, "retry_timeout", zero=True)
        self._rows = RowReader(store, columns, clock=self.clock)

    def fetch(self, descriptor: BatchDescriptor) -> Batch:
        """Return the batch, decoded.

        Raises:
            NotFound: its object is gone.
            Corrupt: its bytes are no batch, or unpack to more than the manifest says, also when they are read again.
        """
        began = self.clock.monotonic()
        batch = self.decode(descriptor, self.fetch_raw(descriptor))
        metrics.fetch_duration.record(self.clock.monotonic() - began, {"buffer": self.store.url})
        return batch

    def fetch_raw(self, descriptor: BatchDescriptor) -> bytes | memoryview:
        """Return the batch object's bytes, for `decode` here or `decode_batch` elsewhere.

        Raises:
            NotFound: its object is gone.
            Corrupt: its bytes do not match the manifest's checksum, in three reads.
        """
        return read_sound(lambda: self._read(descriptor), self.clock)

    def _read(self, descriptor: BatchDescriptor) -> bytes | memoryview:
        try:
            data = self._patience().call(lambda: self.store.get(descriptor.location)).data
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
                raise damaged(
                    f"{self.store.url}/{descriptor.location}, batch {descriptor.sequence}, is damaged: expected "
                    f"{descriptor.facts.object_bytes} bytes with CRC32C {descriptor.facts.crc32c:08x}, found "
                    f"{len(data)} bytes with {checksum:08x}"
                )
        return data

    def decode(self, descriptor: BatchDescriptor, data: bytes | memoryview, *, step_bytes: int | None = None) -> Batch:
        """Return the batch of what `fetch_raw` returned: `fetch` in two steps, for who reads on other threads.

        If the manifest has no checksum of the batch (version 1), decoding is what finds damage. Then the object is read
        again before it counts as damaged.

        Args:
            descriptor: what the batch was fetched by.
            data: the object.
            step_bytes: about how many bytes of rows become a chunk of a typed batch's table; None for large chunks.

        Raises:
            NotFound: its object had to be read again, and is gone.
            Corrupt: the bytes are no batch, or unpack to more than the manifest says.
        """
        if descriptor.facts is not None:
            return self._decode(descriptor, data, step_bytes)  # its checksum was right, so another read would not help
        # guard: read a batch without checksum again if decoding fails
        return read_sound(
            lambda: self._decode(descriptor, data, step_bytes),
            self.clock,
            again=lambda: self._decode(descriptor, self._read(descriptor), step_bytes),
        )

    def _patience(self) -> Patience:
        return Patience(self.clock, system_random(), self._retry_timeout)  # made when needed: it does not pickle

    def _decode(self, descriptor: BatchDescriptor, data: bytes | memoryview, step_bytes: int | None) -> Batch:
        location = f"{self.store.url}/{descriptor.location}"
        decoded: DecodedBatch | DecodedRows
        if descriptor.schema is not None:
            schema = descriptor.schema
            self._patience().call(lambda: self._rows.load(schema))
            with _decoding:
                decoded = self._rows.decode(descriptor, data, location, step_bytes=step_bytes)
        else:
            decoded = self._decode_bytes(descriptor, data, location)
        attributes = {"buffer": self.store.url}
        metrics.batches_fetched.add(1, attributes)
        metrics.entries_fetched.add(len(decoded), attributes)
        metrics.bytes_fetched.add(len(data), attributes)
        return Batch(descriptor, decoded, len(data))

    def _decode_bytes(self, descriptor: BatchDescriptor, data: bytes | memoryview, location: str) -> DecodedBatch:
        if self._rows.columns is not None:
            raise InvalidInput(f"{location} holds bytes, which have no columns: leave out columns")
        limit = DEFAULT_MAX_RAW_BYTES
        if descriptor.facts is not None:
            # What budgets of memory were reckoned with.
            limit = min(limit, descriptor.facts.raw_bytes)
        with _decoding:
            return decode_batch(data, location=location, max_raw_bytes=limit)


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


def _select_entries(decoded: DecodedBatch, ranges: Sequence[range]) -> DecodedBatch:
    whole = pa.chunked_array(decoded.chunks, pa.binary())
    chunks = [chunk for found in ranges for chunk in whole[found.start : found.stop].chunks]
    size = sum(map(raw_size, chunks))
    if len(chunks) != 1 and size < _MOST_IN_ONE_ARRAY:
        chunks = [pa.concat_arrays([*chunks, pa.array([], pa.binary())])]
    return DecodedBatch(tuple(chunks), size)


def _select_rows(decoded: DecodedRows, ranges: Sequence[range]) -> DecodedRows:
    table = decoded.table
    rows = pa.concat_tables([table.slice(0, 0), *(table.slice(found.start, len(found)) for found in ranges)])
    return DecodedRows(rows, rows.nbytes)


def _select_metadata(metadata: Sequence[Metadata], ranges: Sequence[range]) -> tuple[Metadata, ...]:
    """What covers the entries in the ranges, counted from the first of these entries."""
    found: list[Metadata] = []
    before, last = 0, None
    for entries in ranges:
        first = max(0, bisect_right(metadata, entries.start, key=lambda item: item.start_index) - 1)
        for item in metadata[first : bisect_left(metadata, entries.stop, key=lambda item: item.start_index)]:
            if item is not last:
                start = before + max(0, item.start_index - entries.start)
                found.append(structs.replace(item, start_index=start))
            last = item
        before += len(entries)
    return tuple(found)
