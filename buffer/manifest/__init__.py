"""The manifest: which batches a buffer holds, in which order, and who may remove them (rfcs/0005).

Every change is one compare-and-swap. Builds on `base`, `store` and `format`.
"""

from __future__ import annotations

from forebay.buffer.manifest.either_version import Claim
from forebay.buffer.manifest.head import BelowFloor, Head
from forebay.buffer.manifest.queue import PlaceConsumed, Queue
from forebay.buffer.manifest.state import Profile, State, read_state
from forebay.buffer.manifest.unnamed_reader import UnnamedReader
from forebay.buffer.manifest.v1 import Manifest

__all__ = [
    "BelowFloor",
    "Claim",
    "Head",
    "Manifest",
    "PlaceConsumed",
    "Profile",
    "Queue",
    "State",
    "UnnamedReader",
    "read_state",
]
