"""The collector: deletes what every reader has read, and what nobody ever listed (rfcs/0006).

Run one per buffer or topic: as a thread beside a consumer or a producer (`Collector(url).start()`), from a scheduler
(`collect_once`), or as a process (`forebay gc URL --every 300`). Several at once do no harm.

Builds on `forebay.buffer`.
"""

from __future__ import annotations

from forebay.gc.collector import Collector
from forebay.gc.report import CollectionReport
from forebay.gc.retention import Retention

__all__ = ["CollectionReport", "Collector", "Retention"]
