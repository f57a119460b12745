"""Collecting a buffer of version 1: safe only while no process pauses for longer than the grace period."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.names import at_time, ulid_in
from forebay.gc.report import CollectionReport

if TYPE_CHECKING:
    from forebay.buffer.manifest import Manifest
    from forebay.gc.settings import Settings
    from forebay.gc.sweep import Sweep

_ENTRIES_AT_ONCE = 1000


def collect_version_1(manifest: Manifest, sweep: Sweep, settings: Settings, store_time_ms: int) -> CollectionReport:
    """Delete what is older than everything listed and older than the grace period.

    Older by name, and by when the store says that it was written: a producer's clock may be behind. `store_time_ms`
    must have been read before the manifest, which then lists all that was listed by that time.
    """
    cutoff_ms = store_time_ms - int(settings.grace * 1000)  # guard: subtract the grace period from the cutoff
    # guard: keep everything from the oldest listed name on
    floor = min([at_time(cutoff_ms), *_oldest_listed(manifest)])
    sweep.delete_below(settings.data_prefix, floor, written_before_ms=cutoff_ms)
    return CollectionReport.of_sweep(sweep, kept=manifest.count, floor=floor)


def _oldest_listed(manifest: Manifest) -> list[str]:
    """The smallest ULID that a manifest lists, if any; decoded piece by piece."""
    oldest: list[str] = []
    for start in range(0, manifest.count, _ENTRIES_AT_ONCE):
        entries = manifest.tail_descriptors(manifest.first_sequence + start, _ENTRIES_AT_ONCE)
        names = [ulid for entry in entries if (ulid := ulid_in(entry.location))]
        oldest = sorted(oldest + names)[:1]
    return oldest
