"""Fakes for tests of forebay and of what is built on it: stores that fail or throttle, a clock that obeys."""

from __future__ import annotations

from forebay.testing.clock import ManualClock
from forebay.testing.faults import WRITE_FAULTS, Crash, Fault, FaultyStore
from forebay.testing.throttled import ThrottledStore

__all__ = ["WRITE_FAULTS", "Crash", "Fault", "FaultyStore", "ManualClock", "ThrottledStore"]
