"""Object stores: one interface, its implementations, and `open_store` to get one from a URL (rfcs/0001).

Builds on `base`.
"""

from __future__ import annotations

from forebay.buffer.store.base import (
    Applied,
    Data,
    InDoubt,
    NotApplied,
    ObjectInfo,
    ObjectStore,
    Outcome,
    StoredObject,
)
from forebay.buffer.store.open import StoreUrl, open_store

__all__ = [
    "Applied",
    "Data",
    "InDoubt",
    "NotApplied",
    "ObjectInfo",
    "ObjectStore",
    "Outcome",
    "StoreUrl",
    "StoredObject",
    "open_store",
]
