"""The catalog: the state of every stored segment, as a view built from event-log partitions (rfcs/0009).

Builds on `forebay.buffer.eventlog`.
"""

from __future__ import annotations

from forebay.runtime.catalog.catalog import CATALOG_TOPIC, Catalog
from forebay.runtime.catalog.model import DeletionState, Segment, SegmentState, SegmentUpdate

__all__ = ["CATALOG_TOPIC", "Catalog", "DeletionState", "Segment", "SegmentState", "SegmentUpdate"]
