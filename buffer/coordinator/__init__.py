"""The write coordinator: one order, batches, watermarks and views for writes of any kind."""

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
