"""The coordinator's settings."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.coordinator.delta import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """How much a coordinator holds and when it flushes."""

    queue_capacity: int = 10_000
    """Maximum number of writes in each channel that are not applied yet."""
    flush_interval: float | None = 10.0
    """Seconds between flushes, counted from start and again from every flush; None for no flush by time."""
    flush_size: int | None = 64 * 1024 * 1024
    """Size at which a delta is flushed, in the unit of `Delta.size()`; None for no flush by size."""
    max_concurrent_flushes: int = 1
    """Maximum number of deltas in `Flusher.flush_delta` at once.

    The same number of frozen deltas may wait. After that, a full delta takes no more writes.
    """
    max_cost: int | None = None
    """Maximum sum of the costs of all writes that are not flushed yet; None for no bound.

    A write counts from entry until its delta is durable (written, without `durable_flushes`), or it or its delta fails.
    `Flusher.flush_delta` may lower the cost of its delta before that. A write that costs more than the bound is
    accepted only while no other cost counts.
    """
    durable_flushes: bool = False
    """Whether `Flusher.flush_storage` follows every flush. One call of it takes all deltas that are written."""
    default_durability: Durability = Durability.WRITTEN
    """What `WriteHandle.result()` and `await handle` wait for."""
    view_capacity: int = 16
    """Maximum number of views queued for a subscriber. If it falls further behind, it gets `MessagesLost`."""

    def __post_init__(self) -> None:
        for name in ("queue_capacity", "flush_size", "max_concurrent_flushes", "max_cost", "view_capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        if self.flush_interval is not None:
            check_seconds(self.flush_interval, "flush_interval")
