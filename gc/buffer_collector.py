"""Collecting one buffer, again and again (rfcs/0006)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import StoreError, Unsupported
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store.file import is_disk_full
from forebay.gc.native import NativeCollection
from forebay.gc.report import CollectionReport
from forebay.gc.store_time import read_store_time
from forebay.gc.sweep import Sweep
from forebay.gc.version_1 import collect_version_1

if TYPE_CHECKING:
    from forebay.buffer.store import ObjectStore
    from forebay.gc.settings import Settings

_log = logging.getLogger("forebay.gc")

RESERVE_KEY: Final = "gc.reserve"
"""In a `file://` buffer, an object that reserves disk space for the manifest."""
_RESERVE_BYTES: Final = 256 << 10
"""Several times the size of a manifest."""
_TELL_SECONDS: Final = 60.0
"""Minimum seconds between two warnings that nothing was ever written."""


class BufferCollector:
    """Collects a buffer, or one partition of a topic."""

    def __init__(self, store: ObjectStore, settings: Settings) -> None:
        self.url: str = store.url
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
        report = self._collect(Sweep(self._store, self._settings, dry_run=dry_run))
        if not dry_run:
            metrics.collection_deleted.add(report.deleted, self._attributes)
            metrics.collection_failed.add(report.failed_count, self._attributes)
            metrics.collection_duration.record(self._clock.monotonic() - began, self._attributes)
        _log.info("%s", report)
        return report

    def _collect(self, sweep: Sweep) -> CollectionReport:
        # Before the manifest: version 1 relies on seeing there whatever was listed by this time.
        store_time_ms = read_store_time(self._queue)  # guard: read the store time before the manifest
        state = self._queue.read()
        # The manifest is unwritten: a native producer may have uploaded its first batch and not listed it yet. However
        # old the object is, it must stay.
        if store_time_ms is None or state.is_unwritten:  # guard: never sweep beside an unwritten manifest
            self._tell_unwritten()
            return CollectionReport.of_sweep(sweep)
        if isinstance(state, Manifest):
            if self._settings.retention is not None:
                raise Unsupported(f"{self._queue.url} is of version 1, which retention cannot trim: migrate it first")
            return collect_version_1(state, sweep, self._settings, store_time_ms)
        collection = NativeCollection(self._queue, state, sweep, self._settings)
        try:
            report = collection.run(store_time_ms)
        except StoreError as error:
            if sweep.dry_run or not is_disk_full(error):  # guard: free reserved space when the disk is full
                raise
            # A head's floor never goes down, so objects below it may be deleted without writing another head first.
            collection.delete(state)
            if not self._has_freed_disk(sweep):
                raise
            report = collection.run(store_time_ms)
        if not sweep.dry_run and self.url.startswith("file://"):
            self._keep_reserve()
        return report

    def _has_freed_disk(self, sweep: Sweep) -> bool:
        """Whether a sweep has made room for the manifest on a full disk. If it has not, the reserve is deleted."""
        if not sweep.deleted and any(found.key == RESERVE_KEY for found in self._store.list(RESERVE_KEY)):
            failures = self._store.delete([RESERVE_KEY])
            sweep.deleted += not failures
        _log.warning(
            "%s: the disk is full, so %d objects were deleted before the manifest was written", self.url, sweep.deleted
        )
        return sweep.deleted > 0

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
