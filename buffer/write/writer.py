"""Writes one buffer: calls go into batches, batches are uploaded in parallel and listed in order (rfcs/0004)."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from forebay.buffer.base.errors import Backpressure, Closed, ForebayError, Unsupported
from forebay.buffer.base.tracing import configured_tracer
from forebay.buffer.coordinator import CoordinatorConfig, Durability, WriteCoordinator
from forebay.buffer.format.batch import DEFAULT_MAX_RAW_BYTES
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.register import Limits
from forebay.buffer.write.accumulator import MAX_CALL_BYTES, Accumulator
from forebay.buffer.write.formats import open_format
from forebay.buffer.write.handle import ProduceHandle
from forebay.buffer.write.rows import RowAccumulator, RowsHandle
from forebay.buffer.write.traced import TracedChannel
from forebay.buffer.write.upload import BatchStorage, BatchUploader

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forebay.buffer.coordinator import CoordinatorGroup, FlushHandle
    from forebay.buffer.manifest import Profile, State
    from forebay.buffer.store.base import ObjectStore
    from forebay.buffer.write.rows import RowFormat
    from forebay.buffer.write.settings import WriterSettings

    _Coordinator = WriteCoordinator[Any, Any, Any, Any, Any]

_log = logging.getLogger("forebay.producer")

_MOST_FLUSHED = DEFAULT_MAX_RAW_BYTES - MAX_CALL_BYTES
"""With one more call a batch is as large as readers take."""
_EXIT_SECONDS = 30.0
_BACKLOG_LOOK_SECONDS = 1.0

# Stopped at the interpreter's exit, so that a forgotten close loses nothing. Coordinators, not writers: one that was
# dropped unclosed has entries to store all the same.
_open: dict[Any, str] = {}
_writers: WeakSet[BufferWriter] = WeakSet()
_inherited: list[object] = []


def _note_fork() -> None:
    """In a forked child: what is open is the parent's, whose threads are not here, and nothing of it may be freed."""
    for writer in _writers:
        writer.inherited = True
    _inherited.extend(_open)
    _open.clear()  # guard: forget the producers of the parent after a fork


os.register_at_fork(after_in_child=_note_fork)


class BufferWriter:
    """Makes checked calls durable in one buffer. `Producer` has one, `TopicProducer` has one for each partition."""

    def __init__(
        self,
        store: ObjectStore,
        settings: WriterSettings,
        *,
        profile: Profile = "native",
        manifest_path: str = "manifest",
        data_prefix: str = "data",
        writer_id: str | None = None,
        group: CoordinatorGroup | None = None,
        open_rows: Callable[[Queue, State], RowFormat | None] = open_format,
    ) -> None:
        """Open the buffer and start.

        Args:
            store: the buffer's store.
            settings: how to write.
            profile: the format of a buffer that nothing was written to yet.
            manifest_path: the manifest's key.
            data_prefix: the folder for batches.
            writer_id: a lasting name of this writer.
            group: the writers to share threads and memory with; None for threads and memory of its own.
            open_rows: finds out whether the buffer holds rows, and what to write; by default its newest schema.

        Raises:
            StoreError: the store cannot be reached, or refuses.
            InvalidInput: the buffer holds rows of another schema.
            Unsupported: the buffer is of version 1, and there is a `writer_id`; or a schema, and it holds bytes.
        """
        limits, clock = settings.limits, settings.clock
        self.url: str = store.url
        self.inherited = False
        """Whether this process is a forked child of the one that opened it."""
        self._clock = clock
        self._max_backlog_bytes = limits.backlog_bytes
        self._backlog_looked_at = clock.monotonic()
        self._looking = False
        self._queue = Queue(
            store,
            manifest_path,
            profile=profile,
            role="producer",
            writer_id=writer_id,
            limits=Limits.within(settings.retry_timeout),
            clock=clock,
            random=settings.random,
        )
        # A wrong bucket or wrong credentials are found out now, not at the first flush.
        state = self._queue.as_written(self._queue.read())
        if writer_id is not None and isinstance(state, Manifest):
            raise Unsupported(
                f"{self.url} is of version 1, which remembers no writers: leave out writer_id, or migrate it"
            )
        self.rows: Final = open_rows(self._queue, state)
        """What this writer writes; None in a buffer of bytes."""
        resolved = settings.resolve(typed=self.rows is not None)
        self.last_number: int | None = None if writer_id is None else self._queue.resume() or None
        """The number of the last call that is durable, for a lasting writer; None if there is none."""
        self._storage = BatchStorage(
            store,
            data_prefix=data_prefix,
            compression=settings.compression,
            compression_level=resolved.compression_level,
            retry_timeout=settings.retry_timeout,
            clock=clock,
            random=settings.random,
        )
        self._coordinator: _Coordinator = WriteCoordinator(
            RowAccumulator(settings.flush_size_bytes, self.rows)
            if self.rows is not None
            else Accumulator(
                settings.flush_size_bytes,
                version=1 if isinstance(state, Manifest) else 2,
                in_one_piece=settings.compression == "zstd",
            ),
            BatchUploader(
                self._queue,
                self._storage,
                grace=settings.grace,
                numbered=writer_id is not None,
                schemas=() if self.rows is None else self.rows.ids,
                clock=clock,
            ),
            CoordinatorConfig(
                queue_capacity=limits.buffered_calls,
                flush_interval=resolved.flush_interval,
                flush_size=min(settings.flush_size_bytes, _MOST_FLUSHED),
                max_concurrent_flushes=limits.concurrent_uploads,
                max_cost=limits.buffered_bytes,
                durable_flushes=True,
                default_durability=Durability.DURABLE,
            ),
            storage_pace=self._queue.pace.seconds,
            group=group,
            clock=clock,
            name=f"producer of {self.url}",
        )
        channel = self._coordinator.channel()
        channel.handle_type = ProduceHandle if self.rows is None else RowsHandle
        tracer = configured_tracer()
        self.channel: Final = channel if tracer is None else TracedChannel(channel, tracer, self.url)
        """Where calls enter, each with its memory as its cost."""
        try:
            _writers.add(self)
            _open[self._coordinator] = self.url
            # Exit handlers run last in, first out: ours must come before those of the client that the store has loaded.
            atexit.unregister(_close_all)
            atexit.register(_close_all)
            self._coordinator.start()
        except BaseException:  # no thread could be started, or Ctrl-C: nobody will close this writer
            with suppress(ForebayError):
                self._coordinator.stop(timeout=0)
            _open.pop(self._coordinator, None)
            raise

    def flush(self) -> FlushHandle:
        """Store what is queued without waiting for the interval; the handle is done once all of it is durable."""
        return self._coordinator.flush(durable=True)

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, and stop. Closing again does nothing, nor does closing in a forked child.

        Raises:
            Timeout: it took longer than `timeout` seconds; it goes on, and `close` can be called again.
            ForebayError: something of the last flush could not be stored.
        """
        if self.inherited:
            return
        self._storage.begin_close()
        try:
            self._coordinator.stop(timeout)
        finally:
            if self._coordinator.stopped:
                _open.pop(self._coordinator, None)

    @property
    def closed(self) -> bool:
        """Whether nothing more will be stored."""
        return self._coordinator not in _open

    @property
    def conflict_rate(self) -> float:
        """The share of this writer's manifest writes, from 0 to 1, that met another writer."""
        return self._queue.conflict_rate

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by entries that are not durable yet."""
        return self._coordinator.held_cost

    def check_backlog(self, entries: object) -> None:
        """Refuse entries with `Backpressure` while the buffer retains more than `limits.backlog_bytes`."""
        limit = self._max_backlog_bytes
        if limit is None:
            return
        state = self._queue.last_seen()
        held = state.object_bytes if isinstance(state, Head) else 0
        if held <= limit:
            return
        # Only the collector makes a backlog smaller. A look now and then, which nobody waits for, finds out.
        now = self._clock.monotonic()
        if not self._looking and now - self._backlog_looked_at >= _BACKLOG_LOOK_SECONDS:
            self._backlog_looked_at = now
            self._looking = True
            try:
                self._coordinator.run_soon(self._look)
            except BaseException:
                self._looking = False  # an interrupt must not end the looks
                raise
        raise Backpressure(
            f"{self.url} retains {held} bytes of batches, and {limit} are allowed: let its readers catch up and the "
            "collector run",
            write=entries,
        )

    def _look(self) -> None:
        try:
            self._queue.read()
        except ForebayError:
            _log.warning("%s could not be read", self._queue.url, exc_info=True)
        finally:
            self._looking = False

    def __del__(self) -> None:
        coordinator = getattr(self, "_coordinator", None)
        # While the interpreter exits, a new thread never starts, and starting one waits for ever.
        if coordinator not in _open or sys.is_finalizing():
            return
        message = f"the producer of {self.url} was not closed: use `with` or close()"
        warnings.warn(message, ResourceWarning, source=self, stacklevel=2)
        # What was queued is still stored, at exit at the latest; waiting for it here could block any thread, anywhere.
        with suppress(RuntimeError):
            Thread(target=_stop_quietly, args=(coordinator, self.url, None), daemon=True).start()


def refuse_child(url: str) -> Closed:
    """Return the error for a call in a forked child."""
    return Closed(
        f"{url}: this producer was opened before a fork, and its threads did not come along into this process; open a "
        "producer here"
    )


def _stop_quietly(coordinator: _Coordinator, url: str, timeout: float | None) -> None:
    try:
        coordinator.stop(timeout)
    except ForebayError:
        _log.exception("%s: entries of a producer that was not closed could not be stored", url)
    _open.pop(coordinator, None)


def _close_all() -> None:
    for coordinator, url in list(_open.items()):
        _stop_quietly(coordinator, url, _EXIT_SECONDS)
