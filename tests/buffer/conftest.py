"""Stores for tests of the buffer, holding an empty manifest of either version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kinds import ROWS

from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.store.memory import MemoryStore


@pytest.fixture(params=["native", "opendata", "rows"])
def profile(request: pytest.FixtureRequest) -> str:
    """Both versions, and a buffer of rows, which is of version 2: what follows must hold in each."""
    return str(request.param)


@pytest.fixture
def inner(request: pytest.FixtureRequest, profile: str) -> Iterator[MemoryStore]:
    """A new buffer in memory, of the same version at the end of the test as at the beginning."""
    store = MemoryStore(f"memory://{request.node.name}")
    empty = Manifest.empty("new") if profile == "opendata" else Head(buffer_id="b" * 32)
    store.create("manifest", empty.to_bytes())
    if profile == "rows":
        ROWS.begin(store)
    yield store
    assert isinstance(Queue(store).read(), Manifest) == (profile == "opendata")
