"""Stores for tests of the buffer, holding an empty manifest of either version."""

from __future__ import annotations

import pytest

from forebay.buffer.manifest import Head, Manifest
from forebay.buffer.store.memory import MemoryStore


@pytest.fixture(params=["native", "opendata"])
def profile(request: pytest.FixtureRequest) -> str:
    """Both formats: what follows must hold in either."""
    return str(request.param)


@pytest.fixture
def inner(request: pytest.FixtureRequest, profile: str) -> MemoryStore:
    """A new buffer in memory."""
    store = MemoryStore(f"memory://{request.node.name}")
    empty = Manifest.empty("new") if profile == "opendata" else Head(buffer_id="b" * 32)
    store.create("manifest", empty.to_bytes())
    return store
