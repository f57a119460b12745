"""How far apart a producer keeps its appends where others append too."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.head_fields import Writer
from forebay.buffer.manifest.pace import Pace
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore, ManualClock


def head(revision: int, **writers: int) -> Head:
    """A head of that revision, and the revision at which each of its writers last wrote."""
    return Head("id", revision, writers={name: Writer(1, wrote_at) for name, wrote_at in writers.items()})


def test_who_is_alone_waits_for_nothing() -> None:
    pace = Pace("me")
    for revision in range(10, 20):
        pace.note(head(revision, me=revision, gone=3), 0.02)
        assert pace.seconds() == 0


def test_each_other_writer_takes_the_same_share() -> None:
    pace = Pace("me")
    pace.note(head(10, me=10, a=8, b=9), 0.02)
    assert pace.seconds() == 0, "they may have written long ago"
    pace.note(head(13, me=13, a=11, b=9), 0.02)
    assert pace.seconds() == pytest.approx(2.5 * 0.02)
    pace.note(head(16, me=16, a=14, b=15), 0.02)
    assert pace.seconds() == pytest.approx(2.5 * 2 * 0.02)


def test_writer_that_left_is_forgotten_after_three_appends() -> None:
    pace = Pace("me")
    pace.note(head(10, me=10), 0.02)
    pace.note(head(12, me=12, a=11), 0.02)
    found = []
    for revision in (13, 14, 15):
        pace.note(head(revision, me=revision, a=11), 0.02)
        found.append(pace.seconds() > 0)
    assert found == [True, True, False]


def test_attempt_that_hung_says_nothing_about_the_next() -> None:
    pace = Pace("me")
    for revision, seconds in enumerate((0.02, 0.02, 30.0, 0.02, 0.02), start=10):
        pace.note(head(2 * revision, me=2 * revision, a=2 * revision - 1), seconds)
    assert pace.seconds() == pytest.approx(2.5 * 0.02)


def test_pace_has_a_bound() -> None:
    pace = Pace("me")
    for revision in (10, 20):
        pace.note(head(revision, me=revision, **{f"w{i}": revision - 1 for i in range(200)}), 0.1)
    assert pace.seconds() == 2.0


class Slow(FaultyStore):
    """Every read and write takes ten milliseconds."""

    def __init__(self, inner: MemoryStore, clock: ManualClock) -> None:
        super().__init__(inner)
        self.clock = clock

    def get_if_changed(self, *given: Any) -> Any:
        self.clock.advance(0.01)
        return super().get_if_changed(*given)

    def replace(self, *given: Any) -> Any:
        self.clock.advance(0.01)
        return super().replace(*given)


def test_writer_among_others_looks_first_even_if_none_wrote_since() -> None:
    inner, clock = MemoryStore("memory://paced"), ManualClock()
    store = Slow(inner, clock)
    queue, other = Queue(store, clock=clock, random=Random(1)), Queue(inner)
    for turn in range(3):
        other.append([NewBatch(f"data/other-{turn}")])
        queue.append([NewBatch(f"data/mine-{turn}")])
    assert queue.pace.seconds() > 0
    queue.append([NewBatch("data/unchanged")])
    store.calls.clear()
    queue.append([NewBatch("data/last")])
    assert store.calls == {"get_if_changed": 1, "replace": 1}


def test_conflicts_of_version_1_make_the_pause_longer_and_quiet_writes_end_it() -> None:
    pace = Pace("me")
    pace.note_conflicts(0, 0.02)
    assert pace.seconds() == 0, "who met nobody waits for nothing"
    pace.note_conflicts(1, 0.02)
    assert pace.seconds() == pytest.approx(2.5 * 0.02)
    pace.note_conflicts(2, 0.02)
    assert pace.seconds() > 2 * 2.5 * 0.02
    for _ in range(100):
        pace.note_conflicts(9, 0.02)
    assert pace.seconds() <= 2, "the pause is bounded"
    for _ in range(100):
        pace.note_conflicts(0, 0.02)
    assert pace.seconds() == 0
