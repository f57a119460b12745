"""The settings of a collector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import AuditTrail
    from forebay.gc.retention import Retention


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a `Collector`, which explains them. They are the same for every partition of a topic."""

    grace: float
    retention: Retention | None
    manifest_path: str
    data_prefix: str
    events: AuditTrail | None
    is_stopped: Callable[[], bool]
    """Returns whether to stop. A sweep calls it between requests."""
    clock: Clock
    random: Random | None
