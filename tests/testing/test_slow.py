"""The store that takes its time."""

from __future__ import annotations

import pytest

from forebay.buffer.store.memory import MemoryStore
from forebay.testing import ManualClock, SlowStore


def test_each_request_takes_as_long_as_its_kind_and_is_counted() -> None:
    clock = ManualClock()
    store = SlowStore(MemoryStore("memory://slow"), reads=0.5, writes=2.0, clock=clock)
    version = store.put("a", b"x")
    assert clock.monotonic() == 2.0
    assert store.get("a").data == b"x"
    assert store.get_if_changed("a", version) is None
    assert [found.key for found in store.list()] == ["a"]
    assert clock.monotonic() == 3.5
    store.replace("a", b"y", version)
    store.create("b", b"z")
    store.delete(["a"])
    assert clock.monotonic() == 9.5
    assert store.calls == {
        "put": 1, "get": 1, "get_if_changed": 1, "list": 1, "replace": 1, "create": 1, "delete": 1
    }  # fmt: skip


def test_default_delays_are_those_of_a_store_far_away() -> None:
    clock = ManualClock()
    store = SlowStore(MemoryStore("memory://slow-by-default"), clock=clock)
    store.put("a", b"x")
    store.get("a")
    assert clock.monotonic() == pytest.approx(0.08)
