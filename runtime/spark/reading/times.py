"""Ranges of ingestion time, and which batches may have entries in one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from forebay.buffer.format.model import BatchDescriptor


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Ingestion times, in milliseconds since 1970."""

    since_ms: int | None = None
    """The first that belongs to it; None if it has no beginning."""
    until_ms: int | None = None
    """The first behind it; None if it has no end."""

    def meets(self, batch: BatchDescriptor) -> bool:
        """Whether an entry of the batch may be in the range."""
        span = time_span(batch)
        return span is None or (
            (self.since_ms is None or span[1] >= self.since_ms) and (self.until_ms is None or span[0] < self.until_ms)
        )

    def covers(self, batch: BatchDescriptor) -> bool:
        """Whether every entry of the batch is known to be in the range."""
        if self.since_ms is None and self.until_ms is None:
            return True
        # Entries in front of the first metadata have no time, which facts do not tell.
        span = time_span(batch) if batch.metadata and batch.metadata[0].start_index == 0 else None
        return (
            span is not None
            and (self.since_ms is None or span[0] >= self.since_ms)
            and (self.until_ms is None or span[1] < self.until_ms)
        )

    def mask(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which of the times are in the range; null for one that is not known, which Arrow's filter takes for no."""
        bounds = ((pc.greater_equal, self.since_ms), (pc.less, self.until_ms))
        tests = [compare(times, pa.scalar(ms * 1000, times.type)) for compare, ms in bounds if ms is not None]
        return reduce(pc.and_, tests)


def time_span(batch: BatchDescriptor) -> tuple[int, int] | None:
    """The earliest and the latest ingestion time in a batch; None if it tells none."""
    if batch.facts is not None:
        return batch.facts.first_time_ms, batch.facts.last_time_ms
    times = [item.ingestion_time_ms for item in batch.metadata]
    return (min(times), max(times)) if times else None
