"""Filters that Spark pushes down: which batches they leave, by what the manifest tells of each.

Spark evaluates every filter again on the rows, so a batch may be kept in vain, never left out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import datasource  # not the names in it: Spark 4.0 has no filters

from forebay.runtime.spark.reading.times import time_span

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql.datasource import Filter

    from forebay.buffer.format.model import BatchDescriptor


def may_match(found: Filter, batch: BatchDescriptor) -> bool:
    """Whether a filter may leave a row of the batch."""
    match getattr(found, "attribute", None):
        case ("sequence" | "_sequence",):
            return _reaches(found, batch.sequence, batch.sequence)
        case ("ingestion_time" | "_ingestion_time",):
            span = time_span(batch)
            return span is None or _reaches(found, span[0], span[1])
    return True


def _reaches(found: Filter, lowest: int, highest: int) -> bool:
    match found:
        case datasource.EqualTo(value=value):
            return lowest <= _number(value) <= highest
        case datasource.In(value=values):
            return any(lowest <= _number(value) <= highest for value in values if value is not None)
        case datasource.GreaterThan(value=value) | datasource.GreaterThanOrEqual(value=value):
            return highest >= _number(value)
        case datasource.LessThan(value=value) | datasource.LessThanOrEqual(value=value):
            return lowest <= _number(value)
    return True


def _number(value: Any) -> int:
    """A sequence as it is, a time in milliseconds; both rounded down, as ingestion times are."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000 // 1)
    return int(value)
