"""Fakes for tests of forebay and of programs that use it: stores that fail, throttle or wait, and a manual clock.

Builds on `forebay.buffer` and `forebay.runtime`; only `forebay.cli` imports it, for `forebay dev`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.lazy import load_on_demand

if TYPE_CHECKING:
    from forebay.testing.catalogs import FaultyCatalog
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

_HOMES = {
    "Crash": "forebay.testing.faults",
    "Fault": "forebay.testing.faults",
    "FaultyCatalog": "forebay.testing.catalogs",
    "FaultyStore": "forebay.testing.faults",
    "ManualClock": "forebay.testing.clock",
    "SlowStore": "forebay.testing.slow",
    "ThrottledStore": "forebay.testing.throttled",
    "WRITE_FAULTS": "forebay.testing.faults",
}
"""The module of each name, loaded on first use: pytest imports this package whenever it starts."""

if not TYPE_CHECKING:  # a type checker would take any name for one of them
    __getattr__, __dir__ = load_on_demand(__name__, _HOMES)
