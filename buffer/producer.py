"""The write side of a buffer: calls in, durable batches out (rfcs/0004)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.checks import check_whole
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Backpressure, ForebayError, InvalidInput, Timeout
from forebay.buffer.base.lifecycle import AsyncClosing, shows_unopened
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.manifest.state import OPENDATA_DATA_PREFIX, OPENDATA_MANIFEST_PATH, check_layout
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.store.retry import RETRY_SECONDS
from forebay.buffer.write.accumulator import check_call
from forebay.buffer.write.formats import open_format
from forebay.buffer.write.rows import check_rows, row_bytes_of
from forebay.buffer.write.settings import FLUSH_SIZE_BYTES, ProducerLimits, WriterSettings
from forebay.buffer.write.writer import BufferWriter, refuse_child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.coordinator import FlushHandle
    from forebay.buffer.format.batch import Compression
    from forebay.buffer.manifest import Profile
    from forebay.buffer.write.accumulator import Call, Entries
    from forebay.buffer.write.handle import ProduceHandle
    from forebay.buffer.write.rows import RowCall, Rows


class Producer(AsyncClosing):
    """Writes entries to a buffer. Any number of producers, threads and processes may share one buffer.

    A buffer holds entries of bytes, or rows of a schema: `schema` makes a typed buffer, or opens one.

    `produce` queues the call and returns a handle to wait on. A background thread fills batches and flushes them.
    Entries of one producer are read in the order produced. Several producers of one native buffer space out their
    manifest writes, so an entry is durable somewhat later than with a single producer.

    Args:
        url: the buffer, such as `s3://lake/clicks`, or its store if it is open already.
        schema: the Arrow schema of the rows, or a class that describes it (docs/typed.md). A buffer that nothing was
            written to becomes a typed buffer. In a typed buffer, nullable columns may be missing; None uses the newest
            schema of the buffer.
        evolve: whether a schema with new nullable columns or wider types changes the buffer's schema, permanently.
            Otherwise such a schema is refused.
        profile: the format of a buffer that nothing was written to yet: `native`, or `opendata`, which OpenData
            Buffer's producers and consumers share. A buffer that was written to keeps its format.
        manifest_path: the manifest's key below `url`; by default `manifest`, and `ingest/manifest` with `opendata`.
        data_prefix: the folder below `url` that batches are stored in; by default `data`, and `ingest` with `opendata`.
        flush_interval: maximum time in seconds between two flushes; by default 0.1, and 1 in a typed buffer.
        flush_size_bytes: size of the entries, before compression, at which a batch is stored; at most 2 GiB.
        compression: `zstd` or `none`.
        compression_level: zstd's level; by default 3, and 1 in a typed buffer.
        writer_id: a lasting name of this writer, whose calls have numbers (`produce(…, number=…)`). The buffer
            remembers the number of its last durable call (`last_number`). So a restarted producer may repeat its calls:
            durable calls are not written twice. Native buffers only. Use each name in one producer at a time.
        limits: how much this producer may hold and do at once; None for the defaults of `ProducerLimits`.
        grace: the collector's grace period in seconds, which only version 1 needs to know: a batch that took longer
            than half of it from upload to listing is checked, and stored again if it was swept.
        retry_timeout: maximum time in seconds for which an upload, and then the write of the manifest, is retried while
            the store fails. After that its calls fail. `close` takes no longer than that for all uploads together.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        InvalidInput: the schema cannot be stored, or does not fit the buffer's.
        Unsupported: there is a schema, and the buffer holds bytes or is of version 1.
        StoreError: the buffer's store cannot be reached, or refuses.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        schema: pa.Schema | type | None = None,
        evolve: bool = False,
        profile: Profile = "native",
        manifest_path: str | None = None,
        data_prefix: str | None = None,
        flush_interval: float | None = None,
        flush_size_bytes: int = FLUSH_SIZE_BYTES,
        compression: Compression = "zstd",
        compression_level: int | None = None,
        writer_id: str | None = None,
        limits: ProducerLimits | None = None,
        grace: float = 600.0,
        retry_timeout: float = RETRY_SECONDS,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        if manifest_path is None:
            manifest_path = OPENDATA_MANIFEST_PATH if profile == "opendata" else "manifest"
        if data_prefix is None:
            data_prefix = OPENDATA_DATA_PREFIX if profile == "opendata" else "data"
        check_layout(manifest_path, data_prefix)
        self._clock = clock or SystemClock()
        settings = WriterSettings(
            flush_interval=flush_interval,
            flush_size_bytes=flush_size_bytes,
            compression=compression,
            compression_level=compression_level,
            grace=grace,
            retry_timeout=retry_timeout,
            limits=ProducerLimits() if limits is None else limits,
            clock=self._clock,
            random=random or system_random(),
        )
        self._writer = BufferWriter(
            open_store(url, storage_options),
            settings,
            profile=profile,
            manifest_path=manifest_path,
            data_prefix=data_prefix,
            writer_id=writer_id,
            open_rows=partial(open_format, schema=schema, evolve=evolve),
        )
        rows = self._writer.rows
        self.schema: Final = None if rows is None else rows.schema
        """The schema that rows have to fit; None in a buffer of bytes."""
        self._check_call: Callable[[Any, bytes, int], Call | RowCall] = (
            check_call
            if rows is None
            else partial(check_rows, converter=RowConverter(rows.schema), row_bytes=row_bytes_of(rows.stored))
        )
        self._channel = self._writer.channel
        self.url: str = self._writer.url
        self.last_number: int | None = self._writer.last_number
        """The number of the last call that is durable, for a lasting writer; None if there is none."""
        self._last_queued_number = self.last_number or 0
        self._numbered = writer_id is not None
        self._has_backlog_limit = settings.limits.backlog_bytes is not None

    def produce(
        self,
        entries: Entries | Rows,
        metadata: bytes = b"",
        *,
        number: int | None = None,
        timeout: float | None = None,
    ) -> ProduceHandle:
        """Queue entries, and return a handle: `handle.result(timeout)` or `await handle` return once they are durable.

        Then `handle.ingestion_time` is the time that readers see for them.

        Blocks while the buffers are full, for at most `timeout` seconds if given. Not for signal handlers and
        finalizers (`__del__`), which may interrupt the very thread that is in here.

        Args:
            entries: one entry as bytes, a list of them, or an Arrow `binary` or `large_binary` array. In a typed
                buffer: an Arrow table or record batch, a dict or a list of dicts, or JSON documents as bytes or a list
                of bytes, one row each. They are copied, but for Arrow tables, and stay together in one batch. Rows are
                compared with the schema when their batch is stored: those that do not fit fail their own handle with
                `InvalidInput`, and no others.
            metadata: kept with these entries and given to their reader.
            number: the caller's own number for this call, higher than before; with `writer_id` alone. A number that is
                durable already is not written again.
            timeout: seconds to wait for room.

        Raises:
            InvalidInput: these entries can never be stored. Or there is no room, and this call must not wait for it,
                because it would block a `produce_async` of the same thread that waits before it. Nothing was queued.
            Timeout: there was no room in time; the entries are in its `write`.
            Backpressure: the buffer retains more than `limits.backlog_bytes`; the entries are in its `write`.
            Closed: this producer was closed.
        """
        call = self._check(entries, metadata, number)
        try:
            handle: ProduceHandle = self._channel.write(call, timeout=timeout, cost=call.memory)  # type: ignore[assignment]
            if number is not None:
                self._note_queued(number)
        except Timeout as error:
            raise Timeout(str(error), write=entries) from None
        except ForebayError:
            raise
        except BaseException:
            if number is not None:
                self._note_queued(number)  # it may be queued: refuse it at the call, not only in the queue
            raise
        return handle

    async def produce_async(
        self,
        entries: Entries | Rows,
        metadata: bytes = b"",
        *,
        number: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 -- by the producer's clock, and the error has the entries
    ) -> ProduceHandle:
        """Queue entries as `produce` does, and return the same handle. Awaits room, and does not block the event loop.

        `handle = await producer.produce_async(…)` returns once the call is queued, and `await handle` once it is
        durable. While the buffers are full, calls of all tasks wait, first come first served. The calls of one task are
        queued in their order. A call that is cancelled while it waits has queued nothing.

        Raises:
            InvalidInput, Timeout, Backpressure, Closed: as `produce` does.
        """
        call = self._check(entries, metadata, number)
        try:
            handle: ProduceHandle = await self._channel.write_async(call, timeout=timeout, cost=call.memory)  # type: ignore[assignment]
        except Timeout as error:
            raise Timeout(str(error), write=entries) from None
        if number is not None:
            self._note_queued(number)
        return handle

    def try_produce(
        self, entries: Entries | Rows, metadata: bytes = b"", *, number: int | None = None
    ) -> ProduceHandle:
        """Queue entries if there is room now, as `produce` does.

        Raises:
            Backpressure: there is none; the entries are in its `write`.
        """
        call = self._check(entries, metadata, number)
        try:
            handle: ProduceHandle = self._channel.try_write(call, cost=call.memory)  # type: ignore[assignment]
            if number is not None:
                self._note_queued(number)
        except Backpressure as error:
            raise Backpressure(str(error), write=entries) from None
        except ForebayError:
            raise
        except BaseException:
            if number is not None:
                self._note_queued(number)  # it may be queued: refuse it at the call, not only in the queue
            raise
        return handle

    def flush(self) -> FlushHandle:
        """Store what is queued without waiting for the interval; the handle is done once all of it is durable."""
        if self._writer.inherited:
            raise refuse_child(self.url)
        return self._writer.flush()

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, and stop. Closing again does nothing.

        Raises:
            Timeout: it took longer than `timeout` seconds; it goes on, and `close` can be called again.
            ForebayError: something of the last flush could not be stored.
        """
        self._writer.close(timeout)

    @property
    def conflict_rate(self) -> float:
        """The share of this producer's manifest writes, from 0 to 1, that met another writer."""
        return self._writer.conflict_rate

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by entries that are not durable yet."""
        return self._writer.buffered_bytes

    @shows_unopened
    def __repr__(self) -> str:
        state = "closed" if self._writer.closed else f"{self.buffered_bytes} bytes buffered"
        return f"<Producer of {self.url}, {state}>"

    def _check(self, entries: Entries | Rows, metadata: bytes, number: int | None) -> Call | RowCall:
        if self._writer.inherited:
            raise refuse_child(self.url)
        call = self._check_call(entries, metadata, self._clock.now_ms())
        if self._has_backlog_limit:
            self._writer.check_backlog(entries)
        if self._numbered or number is not None:
            self._number_call(call, number)
        return call

    def _number_call(self, call: Call | RowCall, number: int | None) -> None:
        if not self._numbered or number is None:
            raise InvalidInput(
                f"{self.url}: number must be given, from 1 on, if the producer has a lasting writer_id, "
                "and must be left out if not"
            )
        number = check_whole(number, "number", least=1)
        if self.last_number is not None and number <= self.last_number:
            call.drop_entries()
            return
        if number <= self._last_queued_number:
            raise InvalidInput(f"{self.url}: call {number} follows call {self._last_queued_number}; numbers must grow")
        call.number = number

    def _note_queued(self, number: int) -> None:
        """Let no earlier number follow: only now, as a call that was refused may be repeated with its own."""
        self._last_queued_number = max(number, self._last_queued_number)
