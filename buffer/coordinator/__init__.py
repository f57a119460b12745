"""The write coordinator: puts writes of any kind in one order, flushes them in batches and applies backpressure.

Builds on `base` alone: it knows neither stores nor batches.
"""

from __future__ import annotations

from forebay.buffer.coordinator.channel import WriteChannel
from forebay.buffer.coordinator.config import CoordinatorConfig
from forebay.buffer.coordinator.coordinator import WriteCoordinator
from forebay.buffer.coordinator.delta import Delta, Durability, Flusher, Stamped
from forebay.buffer.coordinator.errors import ApplyFailed, DeltaRejected, FlushFailed, MessagesLost
from forebay.buffer.coordinator.group import CoordinatorGroup
from forebay.buffer.coordinator.handle import FlushHandle, WriteHandle
from forebay.buffer.coordinator.view import View, ViewSubscription

__all__ = [
    "ApplyFailed",
    "CoordinatorConfig",
    "CoordinatorGroup",
    "Delta",
    "DeltaRejected",
    "Durability",
    "FlushFailed",
    "FlushHandle",
    "Flusher",
    "MessagesLost",
    "Stamped",
    "View",
    "ViewSubscription",
    "WriteChannel",
    "WriteCoordinator",
    "WriteHandle",
]
