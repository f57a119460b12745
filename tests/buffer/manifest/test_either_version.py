"""Both versions of a manifest answer the same questions."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.buffer.base.names import LOWEST
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue, UnnamedReader
from forebay.buffer.manifest.either_version import EitherVersion
from forebay.buffer.store.memory import MemoryStore


@pytest.fixture(params=["native", "opendata"])
def queue(request: pytest.FixtureRequest) -> Queue:
    """A queue with five batches, two of which the unnamed consumer has acknowledged."""
    profile: Any = request.param
    queue = Queue(MemoryStore(f"memory://either-{profile}"), profile=profile)
    queue.append([NewBatch(f"data/{number}") for number in range(5)])
    reader = UnnamedReader(queue)
    reader.ack(reader.claim(), 1)
    return queue


def test_what_waits_and_what_comes_next_is_asked_of_either_version(queue: Queue) -> None:
    state = queue.read()
    assert (state.next_sequence, state.acked, state.waiting, state.epoch) == (5, 1, 3, 1)
    assert [state.has_acked(sequence) for sequence in (0, 1, 2)] == [True, True, False]
    assert [state.following(after) for after in (None, 1, 3)] == [2, 2, 4]
    assert [found.sequence for found in state.tail_descriptors(3, 9)] == [3, 4]
    assert not state.is_unwritten


def test_version_1_has_none_of_what_only_version_2_has() -> None:
    state = Manifest.empty("here")
    assert not any((state.groups, state.holds, state.writers, state.writer_buckets, state.refs))
    assert (state.object_bytes, state.dropped, state.claim_id) == (0, 0, "")
    assert state.gc_floor == state.lowest_new_name == LOWEST


def test_both_versions_give_every_answer() -> None:
    for state in (Manifest.empty("here"), Head(buffer_id="b")):
        for name in vars(EitherVersion):
            if not name.startswith("_"):
                getattr(state, name)
