"""The write side of a buffer: calls in, durable batches out (rfcs/0004)."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Backpressure, Closed, ForebayError, InvalidInput, Timeout, Unsupported
from forebay.buffer.base.lifecycle import AsyncClosing, shows_unopened
from forebay.buffer.coordinator import CoordinatorConfig, Durability, WriteCoordinator, WriteHandle
from forebay.buffer.format.batch import DEFAULT_LEVEL, DEFAULT_MAX_RAW_BYTES, check_compression
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.register import Limits
from forebay.buffer.manifest.state import OPENDATA_DATA_PREFIX, OPENDATA_MANIFEST_PATH, check_layout
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.store.retry import RETRY_SECONDS
from forebay.buffer.write.accumulator import MAX_CALL_BYTES, Filling, check_call
from forebay.buffer.write.upload import BatchUploader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.coordinator import FlushHandle
    from forebay.buffer.format.batch import Compression
    from forebay.buffer.manifest import Profile
    from forebay.buffer.manifest.state import State
    from forebay.buffer.write.accumulator import Call, Entries, Filled
    from forebay.buffer.write.upload import Uploaded

_log = logging.getLogger("forebay.producer")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_MOST_FLUSHED = DEFAULT_MAX_RAW_BYTES - MAX_CALL_BYTES
"""With one more call a batch is as large as readers take."""
_EXIT_SECONDS = 30.0
_BACKLOG_LOOK_SECONDS = 1.0

# Stopped at the interpreter's exit, so that a forgotten close loses nothing. Coordinators, not producers: one that was
# dropped unclosed has entries to store all the same.
_open: dict[Any, str] = {}
_inherited: list[object] = []
_process = os.getpid()


def _note_fork() -> None:
    """In a forked child: what is open is the parent's, whose threads are not here, and nothing of it may be freed."""
    global _process  # noqa: PLW0603 -- asking the system at every call would take a tenth of the call's time
    _process = os.getpid()
    _inherited.extend(_open)
    _open.clear()  # guard: forget the producers of the parent after a fork


os.register_at_fork(after_in_child=_note_fork)


class ProduceHandle(WriteHandle[None], eq=False, gc=False):
    """One call of `produce` on its way."""

    @property
    def ingestion_time_ms(self) -> int | None:
        """The time that readers see for these entries: when `produce` took them, in milliseconds since 1970.

        None until they are put into a batch, which happens before they are durable. It stays None for a repeated call
        whose number was durable already.
        """
        # `outcome` holds the call until then, and the error after a failure. Checking its type here costs other calls
        # nothing.
        return self.outcome if isinstance(self.outcome, int) else None

    @property
    def ingestion_time(self) -> datetime | None:
        """The same as a datetime in UTC."""
        time_ms = self.ingestion_time_ms
        return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)

    def _answer(self) -> None:
        return None


class Producer(AsyncClosing):
    """Writes entries to a buffer. Any number of producers, threads and processes may share one buffer.

    `produce` returns as soon as the call is queued, with a handle to wait on; a thread of its own fills batches and
    flushes them. Entries of one producer are read in the order produced. Several producers of one native buffer leave
    each other room between their manifest writes, so that an entry is durable somewhat later than by one alone.

    Args:
        url: the buffer, such as `s3://lake/clicks`, or its store if it is open already.
        profile: the format of a buffer that nothing was written to yet: `native`, or `opendata`, which OpenData
            Buffer's producers and consumers share. A buffer that was written to keeps its format.
        manifest_path: the manifest's key below `url`; by default `manifest`, and `ingest/manifest` with `opendata`.
        data_prefix: the folder below `url` that batches are stored in; by default `data`, and `ingest` with `opendata`.
        flush_interval: a batch is stored at the latest so many seconds after the flush before.
        flush_size_bytes: a batch is stored when its entries take so many bytes before compression, and at 2 GiB in any
            case.
        max_buffered_calls: calls that wait to be put into a batch; then `produce` blocks.
        max_buffered_bytes: memory for entries that are not durable yet; then `produce` blocks. A call larger than that
            goes in alone.
        max_concurrent_uploads: batches encoded and uploaded at once.
        compression: `zstd` or `none`.
        compression_level: zstd's level.
        writer_id: a lasting name of this writer, whose calls carry numbers (`produce(…, number=…)`). The buffer
            remembers the last one that is durable (`last_number`), so a producer that starts again may repeat its
            calls: what is durable is not written twice. Native buffers only; one producer of a name at a time.
        max_backlog_bytes: refuse entries with `Backpressure` while the buffer retains more than so many bytes of
            batches. Native buffers only.
        grace: the collector's grace period in seconds, which only version 1 needs to know: a batch that took longer
            than half of it from upload to listing is checked, and stored again if it was swept.
        retry_timeout: maximum time in seconds for which an upload, and then the write of the manifest, is retried while
            the store fails. After that its calls fail. `close` takes no longer than that for all uploads together.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        StoreError: the buffer's store cannot be reached, or refuses.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        profile: Profile = "native",
        manifest_path: str | None = None,
        data_prefix: str | None = None,
        flush_interval: float = 0.1,
        flush_size_bytes: int = 64 << 20,
        max_buffered_calls: int = 1000,
        max_buffered_bytes: int = 256 << 20,
        max_concurrent_uploads: int = 4,
        compression: Compression = "zstd",
        compression_level: int = DEFAULT_LEVEL,
        writer_id: str | None = None,
        max_backlog_bytes: int | None = None,
        grace: float = 600.0,
        retry_timeout: float = RETRY_SECONDS,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        check_seconds(grace, "grace")
        check_seconds(retry_timeout, "retry_timeout")
        check_compression(compression, compression_level)
        if manifest_path is None:
            manifest_path = OPENDATA_MANIFEST_PATH if profile == "opendata" else "manifest"
        if data_prefix is None:
            data_prefix = OPENDATA_DATA_PREFIX if profile == "opendata" else "data"
        check_layout(manifest_path, data_prefix)
        if max_backlog_bytes is not None:
            check_whole(max_backlog_bytes, "max_backlog_bytes", least=1)
        config = CoordinatorConfig(
            queue_capacity=check_whole(max_buffered_calls, "max_buffered_calls", least=1),
            flush_interval=check_seconds(flush_interval, "flush_interval"),
            flush_size=min(check_whole(flush_size_bytes, "flush_size_bytes", least=1), _MOST_FLUSHED),
            max_concurrent_flushes=check_whole(max_concurrent_uploads, "max_concurrent_uploads", least=1),
            max_cost=check_whole(max_buffered_bytes, "max_buffered_bytes", least=1),
            durable_flushes=True,
            default_durability=Durability.DURABLE,
        )
        self._clock = clock or SystemClock()
        store = open_store(url, storage_options)
        self.url = store.url
        self._queue = Queue(
            store,
            manifest_path,
            profile=profile,
            role="producer",
            writer_id=writer_id,
            limits=Limits.within(retry_timeout),
            clock=clock,
            random=random,
        )
        # A wrong bucket or wrong credentials are found out now, not at the first flush.
        state = self._queue.as_written(self._queue.read())
        self.last_number = None if writer_id is None else self._last_number_in(state)
        """The number of the last call that is durable, for a lasting writer; None if there is none."""
        self._numbered = writer_id is not None
        self._max_backlog_bytes = max_backlog_bytes
        self._backlog_looked_at = self._clock.monotonic()
        self._last_queued_number = self.last_number or 0
        self._uploader = BatchUploader(
            store,
            self._queue,
            data_prefix=data_prefix,
            compression=compression,
            compression_level=compression_level,
            grace=grace,
            numbered=writer_id is not None,
            retry_timeout=retry_timeout,
            clock=self._clock,
            random=random or system_random(),
        )
        self._coordinator: WriteCoordinator[Call, int | None, Filled, Filling, Uploaded | None] = WriteCoordinator(
            Filling(
                flush_size_bytes,
                version=state.version,
                in_one_piece=compression == "zstd",
            ),
            self._uploader,
            config,
            storage_pace=self._queue.pace.seconds,
            clock=self._clock,
            name=f"producer of {self.url}",
        )
        self._channel = self._coordinator.channel()
        self._channel.handle_type = ProduceHandle  # type: ignore[assignment]  # one whose result is None
        self._process = _process
        self._coordinator.start()
        _open[self._coordinator] = self.url
        # Exit handlers run last in, first out: ours has to come before those of the client that the store has loaded.
        atexit.unregister(_close_all)
        atexit.register(_close_all)

    def produce(
        self, entries: Entries, metadata: bytes = b"", *, number: int | None = None, timeout: float | None = None
    ) -> ProduceHandle:
        """Queue entries, and return a handle: `handle.result(timeout)` or `await handle` return once they are durable.

        Then `handle.ingestion_time` is the time that readers see for them.

        Blocks while the buffers are full, for at most `timeout` seconds if given. Not for signal handlers and
        finalizers (`__del__`), which may interrupt the very thread that is in here.

        Args:
            entries: one entry as bytes, a list of them, or an Arrow `binary` or `large_binary` array. They are copied,
                and stay together in one batch.
            metadata: kept with these entries and given to their reader.
            number: the caller's own number for this call, higher than before; with `writer_id` alone. A number that is
                durable already is not written again.
            timeout: seconds to wait for room.

        Raises:
            InvalidInput: these entries can never be stored; nothing was queued.
            Timeout: there was no room in time; the entries are in its `write`.
            Backpressure: the buffer retains more than `max_backlog_bytes`; the entries are in its `write`.
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
            if number is not None:  # guard: count a number as used if an interrupt may have queued it
                self._note_queued(number)  # it may be queued: to take it again could write it twice
            raise
        return handle

    def try_produce(self, entries: Entries, metadata: bytes = b"", *, number: int | None = None) -> ProduceHandle:
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
                self._note_queued(number)  # it may be queued: to take it again could write it twice
            raise
        return handle

    def flush(self) -> FlushHandle:
        """Store what is queued without waiting for the interval; the handle is done once all of it is durable."""
        if self._process != _process:
            self._refuse_child()
        return self._coordinator.flush(durable=True)

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, and stop. Closing again does nothing.

        Raises:
            Timeout: it took longer than `timeout` seconds; it goes on, and `close` can be called again.
            ForebayError: something of the last flush could not be stored.
        """
        if self._process != _process:
            return  # the parent's to close
        self._uploader.begin_close()
        try:
            self._coordinator.stop(timeout)
        finally:
            if self._coordinator.stopped:
                _open.pop(self._coordinator, None)

    @property
    def conflict_rate(self) -> float:
        """The share of this producer's manifest writes, from 0 to 1, that met another writer."""
        return self._queue.conflict_rate

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by entries that are not durable yet."""
        return self._coordinator.held_cost

    @shows_unopened
    def __repr__(self) -> str:
        state = f"{self.buffered_bytes} bytes buffered" if self._coordinator in _open else "closed"
        return f"<Producer of {self.url}, {state}>"

    def __del__(self) -> None:
        coordinator = getattr(self, "_coordinator", None)
        # Once the interpreter is on its way out, a thread never starts, and whoever starts one waits for ever.
        if coordinator not in _open or sys.is_finalizing():
            return
        warnings.warn(f"{self!r} was not closed: use `with` or close()", ResourceWarning, source=self, stacklevel=2)
        # What was queued is still stored, at exit at the latest; waiting for it here could block any thread, anywhere.
        with suppress(RuntimeError):
            Thread(target=_stop_quietly, args=(coordinator, self.url, None), daemon=True).start()

    def _check(self, entries: Entries, metadata: bytes, number: int | None) -> Call:
        if self._process != _process:
            self._refuse_child()
        call = check_call(entries, metadata, self._clock.now_ms())
        if self._max_backlog_bytes is not None:
            self._check_backlog(entries, self._max_backlog_bytes)
        if self._numbered or number is not None:
            self._number_call(call, number)
        return call

    def _number_call(self, call: Call, number: int | None) -> None:
        if not self._numbered or number is None:
            raise InvalidInput(f"{self.url}: with a lasting writer_id calls carry numbers, from 1; without one, none")
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

    def _check_backlog(self, entries: Entries, limit: int) -> None:
        state = self._queue.last_seen()
        held = 0 if state is None else state.object_bytes
        if held <= limit:
            return
        # Only the collector makes a backlog smaller. An empty flush looks whether it has, without anybody waiting.
        now = self._clock.monotonic()
        if now - self._backlog_looked_at >= _BACKLOG_LOOK_SECONDS:
            self._backlog_looked_at = now
            self._coordinator.flush(durable=True)
        raise Backpressure(
            f"{self.url} retains {held} bytes of batches, and {limit} are allowed: let its readers catch up and the "
            "collector run",
            write=entries,
        )

    def _last_number_in(self, state: State) -> int | None:
        if not state.names_writers:
            raise Unsupported(
                f"{self.url} is of version 1, which remembers no writers: leave out writer_id, or migrate it"
            )
        return self._queue.resume() or None

    def _refuse_child(self) -> NoReturn:
        raise Closed(
            f"{self.url}: this producer belongs to process {self._process}, and its threads did not come along into "
            "this one; open a producer here"
        )


def _stop_quietly(coordinator: WriteCoordinator[Any, Any, Any, Any, Any], url: str, timeout: float | None) -> None:
    try:
        coordinator.stop(timeout)
    except ForebayError:
        _log.exception("%s: entries of a producer that was not closed could not be stored", url)
    _open.pop(coordinator, None)


def _close_all() -> None:
    for coordinator, url in list(_open.items()):
        _stop_quietly(coordinator, url, _EXIT_SECONDS)
