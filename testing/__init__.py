"""Fakes for tests of forebay and of programs that use it: stores that fail or throttle, a clock that a test moves.

Builds on `forebay.buffer` and `forebay.runtime`; no other folder imports it.
"""

from __future__ import annotations

from forebay.testing.clock import ManualClock
from forebay.testing.faults import WRITE_FAULTS, Crash, Fault, FaultyStore
from forebay.testing.throttled import ThrottledStore

__all__ = ["WRITE_FAULTS", "Crash", "Fault", "FaultyStore", "ManualClock", "ThrottledStore"]
