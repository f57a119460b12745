"""Fakes for tests of forebay and of what is built on it: a store that fails on purpose, a clock that obeys."""

from __future__ import annotations

from forebay.testing.clock import ManualClock
from forebay.testing.faults import WRITE_FAULTS, Crash, Fault, FaultyStore

__all__ = ["WRITE_FAULTS", "Crash", "Fault", "FaultyStore", "ManualClock"]
