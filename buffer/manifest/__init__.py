"""The manifest: which batches wait, in which order, and who may remove them."""

from __future__ import annotations

from forebay.buffer.manifest.queue import PlaceConsumed, Queue

__all__ = ["PlaceConsumed", "Queue"]
