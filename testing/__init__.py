"""Fakes for tests of forebay and of programs that use it: stores that fail, throttle or wait, a clock to move by hand.

Builds on `forebay.buffer` and `forebay.runtime`; only `forebay.cli` imports it, for `forebay dev`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from forebay.testing.clock import ManualClock
from forebay.testing.faults import WRITE_FAULTS, Crash, Fault, FaultyStore
from forebay.testing.slow import SlowStore
from forebay.testing.throttled import ThrottledStore

__all__ = [
    "WRITE_FAULTS",
    "Crash",
    "Fault",
    "FaultyCatalog",
    "FaultyStore",
    "ManualClock",
    "SlowStore",
    "ThrottledStore",
]


def __getattr__(name: str) -> Any:
    if name != "FaultyCatalog":  # which needs pyiceberg, an extra
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("forebay.testing.catalogs"), name)
