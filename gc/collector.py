"""The collector of one buffer (rfcs/0006)."""

from __future__ import annotations

import logging
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING

from forebay.buffer import metrics
from forebay.buffer.clock import SystemClock
from forebay.buffer.errors import InvalidInput, Unsupported
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store.base import check_key
from forebay.gc.report import CollectionReport
from forebay.gc.sweep import Sweep
from forebay.gc.v1 import collect_v1
from forebay.gc.v2 import CollectionV2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

    from forebay.buffer.clock import Clock, Random
    from forebay.buffer.manifest import Head
    from forebay.gc.retention import Retention

_log = logging.getLogger("forebay.gc")


class Collector:
    """Deletes the objects of a buffer that nobody needs any more.

    A native buffer may have any number of collectors, with any clocks: what is listed is never deleted, and what was
    deleted is never listed. In a buffer of version 1 that holds only if no process pauses for longer than `grace`.

    It decides by the store's time alone: when the store says that the manifest was last written. Where that is older
    than `grace` by this machine's clock, the manifest of a native buffer is written once to hear the time anew.

    A consumer runs no collector of its own: start one beside it, in the same process or elsewhere.

    Args:
        url: the buffer, such as `s3://lake/clicks`, or its store if it is open already.
        grace: seconds that an upload may take to be listed. In a native buffer a slower one is only uploaded again;
            in one of version 1, keep it longer than any pause of any process.
        retention: bounds beyond which batches are dropped though not every reader has read them. Native buffers only.
        manifest_path: the manifest's key below `url`.
        data_prefix: the folder below `url` that batches are stored in.
        storage_options: credentials, endpoint and client of the store.
    """

    def __init__(
        self,
        url: str | ObjectStore,
        *,
        grace: float = 600.0,
        retention: Retention | None = None,
        manifest_path: str = "manifest",
        data_prefix: str = "data",
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        if not grace >= 0:
            raise InvalidInput(f"grace must be a number of seconds, 0 or more, not {grace}")
        check_key(data_prefix)
        self._store = url if isinstance(url, ObjectStore) else open_store(url, storage_options)
        self.url = self._store.url
        self._grace = grace
        self._retention = retention
        self._manifest_path = manifest_path
        self._data_prefix = data_prefix
        self._clock = clock or SystemClock()
        self._queue = Queue(self._store, manifest_path, role="collector", clock=clock, random=random)
        self._attributes = {"buffer": self.url}
        self._collecting = Lock()
        self._waking = Condition()
        self._stopping = False
        self._thread: Thread | None = None
        self.failed_runs = 0
        """Collections in the background that ended in an error. Each is logged, and the next one starts anew."""

    def collect_once(self, dry_run: bool = False) -> CollectionReport:
        """Trim what every reader has read, delete what is free to be deleted, and return what was done.

        Objects that cannot be deleted are in the report and no error: the next collection tries again. A dry run
        changes nothing and returns what a collection would do now, if this machine's clock is right.

        Raises:
            StoreError: the manifest or a cursor cannot be read or written; nothing was deleted.
            Corrupt: one of them is damaged, or the manifest is gone; nothing was deleted.
            Unsupported: retention is set, and the buffer is of version 1.
        """
        with self._collecting:
            began = self._clock.monotonic()
            report = self._collect(dry_run=dry_run)
            if not dry_run:
                metrics.collection_deleted.add(report.deleted, self._attributes)
                metrics.collection_failed.add(report.failed_count, self._attributes)
                metrics.collection_duration.record(self._clock.monotonic() - began, self._attributes)
            _log.info("%s", report)
            return report

    def _collect(self, *, dry_run: bool) -> CollectionReport:
        # Before the manifest: version 1 relies on seeing there whatever was listed by this time.
        store_time_ms = self._store_time()
        state = self._queue.read()
        if store_time_ms is None:
            return CollectionReport(self.url, dry_run)
        if isinstance(state, Manifest):
            return self._collect_v1(state, store_time_ms, dry_run=dry_run)
        return self._collect_v2(state, store_time_ms, dry_run=dry_run)

    def _store_time(self) -> int | None:
        """When the store last wrote the manifest, by its own clock; None if there is no manifest."""
        found = next(iter(self._store.list(self._manifest_path)), None)
        return found.modified_ms if found is not None and found.key == self._manifest_path else None

    def _collect_v1(self, manifest: Manifest, store_time_ms: int, *, dry_run: bool) -> CollectionReport:
        if self._retention is not None:
            raise Unsupported(f"{self._queue.url} is of version 1, which retention cannot trim: migrate it first")
        sweep = self._sweep(dry_run=dry_run)
        floor = collect_v1(
            manifest, sweep, data_prefix=self._data_prefix, store_time_ms=store_time_ms, grace=self._grace
        )
        return self._report(sweep, kept=manifest.count, floor=floor)

    def _collect_v2(self, head: Head, store_time_ms: int, *, dry_run: bool) -> CollectionReport:
        collection = CollectionV2(self._queue, head.buffer_id)
        now_ms = store_time_ms
        # In a buffer that nobody writes, the store's time of it stands still: no hold would expire, nothing would come
        # of age. Our own clock only says when to ask again; if it is wrong, that is one write for nothing.
        if self._clock.now_ms() - store_time_ms > self._grace * 1000:
            if dry_run:
                now_ms = self._clock.now_ms()
            else:
                collection.touch()
                now_ms = self._store_time() or store_time_ms
        decision, head = collection.trim(now_ms=now_ms, grace=self._grace, retention=self._retention, dry_run=dry_run)
        if decision.dropped and not dry_run:
            metrics.collection_dropped.add(decision.dropped, self._attributes)
            _log.warning(
                "%s: retention dropped %d batches that not every reader had read, the last of them %d",
                self.url,
                decision.dropped,
                decision.head.first_sequence - 1,
            )
        sweep = self._sweep(dry_run=dry_run)
        collection.delete(head, sweep, self._data_prefix)
        return self._report(
            sweep,
            kept=head.count,
            trimmed=decision.trimmed,
            dropped_unread=decision.dropped,
            expired_holds=decision.expired,
            floor=head.gc_floor,
        )

    def _sweep(self, *, dry_run: bool) -> Sweep:
        return Sweep(self._store, dry_run=dry_run, is_stopped=lambda: self._stopping)

    def _report(self, sweep: Sweep, **found: Any) -> CollectionReport:
        return CollectionReport(
            self.url,
            sweep.dry_run,
            deleted=sweep.deleted,
            failed=sweep.failed,
            failed_count=sweep.failed_count,
            **found,
        )

    # In the background

    def start(self, interval: float = 300.0) -> Self:
        """Collect now and every `interval` seconds after, in a thread of its own, until `stop`."""
        if not interval > 0:
            raise InvalidInput(f"interval must be a positive number of seconds, not {interval}")
        with self._waking:
            if self._thread is not None:
                raise InvalidInput(f"{self.url}: this collector is running already")
            self._stopping = False
            self._thread = Thread(target=self._run, args=(interval,), name="forebay-collector", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread, if there is one, after the request under way."""
        with self._waking:
            thread = self._thread
            if thread is None:
                return
            self._stopping = True
            self._waking.notify_all()
        thread.join()
        with self._waking:
            self._thread = None
            self._stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, interval: float) -> None:
        going_on = True
        while going_on:
            try:
                self.collect_once()
            except Exception:  # noqa: BLE001 - whatever it was, the next collection starts from nothing
                self.failed_runs += 1
                metrics.collection_errors.add(1, self._attributes)
                _log.exception("%s: a collection failed; the next one is in %s s", self.url, interval)
            going_on = self._wait(interval)

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether to go on."""
        deadline = self._clock.monotonic() + seconds
        with self._waking:
            while not self._stopping and self._clock.wait_until(self._waking, deadline):
                pass
            return not self._stopping
