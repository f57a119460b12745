"""Collecting one buffer, again and again (rfcs/0006)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import StoreError, Unsupported
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store.file import is_disk_full
from forebay.gc.native import CollectionV2
from forebay.gc.report import CollectionReport
from forebay.gc.sweep import Sweep
from forebay.gc.version_1 import collect_v1

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import AuditTrail
    from forebay.buffer.manifest import Head
    from forebay.buffer.store import ObjectStore
    from forebay.gc.retention import Retention

_log = logging.getLogger("forebay.gc")

RESERVE_KEY: Final = "gc.reserve"
"""In a `file://` buffer, an object that reserves disk space for the manifest."""
_RESERVE_BYTES: Final = 256 << 10
"""Several times the size of a manifest."""
_TELL_SECONDS: Final = 60.0
"""Minimum seconds between two warnings that nothing was ever written."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a collector was told, the same for every partition of a topic; see `Collector`."""

    grace: float
    retention: Retention | None
    manifest_path: str
    data_prefix: str
    events: AuditTrail | None
    is_stopped: Callable[[], bool]
    """Asked between requests of a sweep."""
    clock: Clock
    random: Random | None


class BufferCollector:
    """Collects a buffer, or one partition of a topic."""

    def __init__(self, store: ObjectStore, settings: Settings) -> None:
        self.url = store.url
        self._store = store
        self._settings = settings
        self._clock = settings.clock
        self._queue = Queue(
            store, settings.manifest_path, role="collector", clock=settings.clock, random=settings.random
        )
        self._attributes = {"buffer": self.url}
        self._told_at: float | None = None

    def collect(self, *, dry_run: bool) -> CollectionReport:
        """Collect once; see `Collector.collect_once`.

        Raises:
            IsTopic: it is not one buffer.
        """
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
        store_time_ms = self._store_time()  # guard: read the store time before the manifest
        state = self._queue.read()
        # The manifest is unwritten: a native producer may have uploaded its first batch and not listed it yet. However
        # old the object is, it must stay.
        if store_time_ms is None or state.is_unwritten:  # guard: never sweep beside an unwritten manifest
            self._tell_unwritten()
            return CollectionReport(self.url, dry_run)
        if isinstance(state, Manifest):
            return self._collect_v1(state, store_time_ms, dry_run=dry_run)
        try:
            report = self._collect_v2(state, store_time_ms, dry_run=dry_run)
            freed = 0
        except StoreError as error:
            if dry_run or not is_disk_full(error):  # guard: free reserved space when the disk is full
                raise
            freed = self._free_disk(state)
            if not freed:
                raise
            report = self._collect_v2(state, store_time_ms, dry_run=dry_run)
        if not dry_run and self.url.startswith("file://"):
            self._keep_reserve()
        return replace(report, deleted=report.deleted + freed)

    def _free_disk(self, head: Head) -> int:
        """Make room for the manifest on a full disk, and return how many objects were deleted.

        A head's floor never goes down, so objects below it may be deleted without writing another head first. If there
        are none, the reserve is deleted.
        """
        sweep = self._sweep(dry_run=False)
        CollectionV2(self._queue, head.buffer_id).delete(head, sweep, self._settings.data_prefix)
        if not sweep.deleted and any(found.key == RESERVE_KEY for found in self._store.list(RESERVE_KEY)):
            failures = self._store.delete([RESERVE_KEY])
            sweep.deleted += not failures
        _log.warning(
            "%s: the disk is full, so %d objects were deleted before the manifest was written", self.url, sweep.deleted
        )
        return sweep.deleted

    def _keep_reserve(self) -> None:
        """Store an object whose deletion makes room for a manifest when the disk is full."""
        if any(found.key == RESERVE_KEY for found in self._store.list(RESERVE_KEY)):
            return
        random = self._settings.random or system_random()
        try:
            self._store.put(RESERVE_KEY, random.randbytes(_RESERVE_BYTES))  # which no file system can compress
        except StoreError as error:
            _log.warning("%s: no room could be reserved for the manifest: %s", self.url, error)

    def _tell_unwritten(self) -> None:
        now = self._clock.monotonic()
        if self._told_at is None or now >= self._told_at + _TELL_SECONDS:
            self._told_at = now
            _log.warning("nothing was ever written to %s, so there is nothing to collect. Is the URL right?", self.url)

    def _store_time(self) -> int | None:
        """When the store last wrote the manifest, by its own clock; None if there is no manifest."""
        manifest_path = self._settings.manifest_path
        found = next(iter(self._store.list(manifest_path)), None)
        # guard: use the time of the store and not the local clock
        return found.modified_ms if found is not None and found.key == manifest_path else None

    def _collect_v1(self, manifest: Manifest, store_time_ms: int, *, dry_run: bool) -> CollectionReport:
        settings = self._settings
        if settings.retention is not None:
            raise Unsupported(f"{self._queue.url} is of version 1, which retention cannot trim: migrate it first")
        sweep = self._sweep(dry_run=dry_run)
        floor = collect_v1(
            manifest, sweep, data_prefix=settings.data_prefix, store_time_ms=store_time_ms, grace=settings.grace
        )
        return self._report(sweep, kept=manifest.count, floor=floor)

    def _collect_v2(self, head: Head, store_time_ms: int, *, dry_run: bool) -> CollectionReport:
        settings = self._settings
        collection = CollectionV2(self._queue, head.buffer_id, clock=self._clock)
        now_ms = store_time_ms
        # In a buffer that nobody writes, the store's time of it stands still: no hold would expire, nothing would come
        # of age. Our own clock only says when to ask again; if it is wrong, that is one write for nothing.
        own_ms = self._clock.now_ms()
        overdue = any(hold.is_expired(own_ms) and not hold.is_expired(store_time_ms) for hold in head.holds.values())
        if own_ms - store_time_ms > settings.grace * 1000 or overdue:
            if dry_run:
                now_ms = own_ms
            else:
                collection.touch()  # guard: touch the store to learn its current time
                now_ms = self._store_time() or store_time_ms
        # guard: read the store time again before stamping a hold
        elif any(hold.needs_stamp(store_time_ms) for hold in head.holds.values()) and not dry_run:
            # The time above was read before the head, and may be older than a hold in it.
            now_ms = self._store_time() or store_time_ms
        decision, head = collection.trim(
            now_ms=now_ms, grace=settings.grace, retention=settings.retention, seen=head.holds, dry_run=dry_run
        )
        if decision.dropped and not dry_run:
            metrics.collection_dropped.add(decision.dropped, self._attributes)
            _log.warning(
                "%s: retention dropped %d batches that not every reader had read, the last of them %d",
                self.url,
                decision.dropped,
                decision.head.first_sequence - 1,
            )
        sweep = self._sweep(dry_run=dry_run)
        collection.delete(head, sweep, settings.data_prefix)
        return self._report(
            sweep,
            kept=head.count,
            trimmed=decision.trimmed,
            dropped_unread=decision.dropped,
            expired_holds=decision.expired,
            floor=head.gc_floor,
        )

    def _sweep(self, *, dry_run: bool) -> Sweep:
        settings = self._settings
        return Sweep(self._store, dry_run=dry_run, is_stopped=settings.is_stopped, events=settings.events)

    def _report(self, sweep: Sweep, **found: Any) -> CollectionReport:
        return CollectionReport(
            self.url,
            sweep.dry_run,
            deleted=sweep.deleted,
            failed=sweep.failed,
            failed_count=sweep.failed_count,
            **found,
        )
