"""The time by the clock of the store. A collection decides by no other clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.buffer.manifest import Queue


def read_store_time(queue: Queue) -> int | None:
    """Return when the store last wrote the manifest, in milliseconds; None if there is no manifest."""
    found = next(iter(queue.store.list(queue.manifest_path)), None)
    # guard: use the time of the store and not the local clock
    return found.modified_ms if found is not None and found.key == queue.manifest_path else None
