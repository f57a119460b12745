"""Admission: within the budget, fairly, and never for ever (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from random import Random

import pyarrow as pa
import pytest

from forebay.buffer.format.model import BatchDescriptor, Facts, Reader
from forebay.runtime.stages.admission import Admission, Sizes, held_bytes
from forebay.runtime.stages.portions import Portion
from forebay.testing.commits import make_batch


class Waiting:
    """A source whose portions have this number of batches, each of this size."""

    def __init__(self, *portions: tuple[int, int]) -> None:
        self.ready: deque[Portion] = deque()
        self._sizes: dict[int, list[int]] = {}
        for number, (count, size) in enumerate(portions):
            described = [BatchDescriptor(1000 * number + i, "x") for i in range(count)]
            portion = Portion(Reader("5" * 32), described, replay=False)
            self.ready.append(portion)
            self._sizes[id(portion)] = [size] * count
        self.batches = self.bytes = 0
        self.obstacle = ""

    def expect(self, portion: Portion) -> list[int]:
        return self._sizes[id(portion)]


def make(max_batches: int, max_bytes: int, *sources: Waiting) -> Admission[Waiting]:
    admission: Admission[Waiting] = Admission(max_batches, max_bytes)
    for source in sources:
        admission.join(source)
    return admission


def finish(admission: Admission[Waiting], source: Waiting, portion: Portion) -> None:
    admission.free_bytes(source, portion)
    admission.free_batches(source, len(portion.descriptors))


def test_takes_what_fits_and_no_more() -> None:
    source = Waiting(*[(1, 30)] * 5)
    admission = make(10, 100, source)
    admitted = [portion for _, portion in admission.admit()]
    assert (len(admitted), admission.batches, admission.bytes) == (3, 3, 90)
    assert "max_bytes" in source.obstacle
    finish(admission, source, admitted[0])
    assert len(list(admission.admit())) == 1
    source = Waiting(*[(1, 30)] * 5)
    admission = make(4, 1000, source)
    assert len(list(admission.admit())) == 4
    assert "max_batches" in source.obstacle


def test_portion_is_admitted_whole_or_not_at_all() -> None:
    source = Waiting((2, 10), (4, 10))
    admission = make(5, 1000, source)
    assert [len(portion.descriptors) for _, portion in admission.admit()] == [2]
    assert admission.batches == 2


def test_portion_larger_than_the_budget_goes_alone() -> None:
    source = Waiting((1, 10), (1, 500), (1, 10))
    admission = make(10, 100, source)
    first = [portion for _, portion in admission.admit()]
    assert len(first) == 1
    finish(admission, source, first[0])
    alone = [portion for _, portion in admission.admit()]
    assert [portion.reserved for portion in alone] == [[500]]
    finish(admission, source, alone[0])
    assert len(list(admission.admit())) == 1


def test_large_portion_is_not_passed_by_smaller_ones_of_others_for_ever() -> None:
    large, small = Waiting((1, 95)), Waiting(*[(1, 10)] * 50)
    admission = make(100, 100, small, large)
    under_way = [portion for source, portion in admission.admit() if source is small]
    for _ in range(20):
        finish(admission, small, under_way.pop(0))
        admitted = list(admission.admit())
        if any(source is large for source, _ in admitted):
            return
        under_way += [portion for _, portion in admitted]
    pytest.fail("the large one waits for ever")


def test_sources_take_turns() -> None:
    sources = [Waiting(*[(1, 1)] * 20) for _ in range(3)]
    admission = make(12, 1000, *sources)
    order = [sources.index(source) for source, _ in admission.admit()]
    assert order[:6] == [0, 1, 2, 0, 1, 2]
    assert max(source.batches for source in sources) - min(source.batches for source in sources) <= 1


def test_source_whose_commits_are_stuck_leaves_room_for_others() -> None:
    stuck, other = Waiting(*[(1, 10)] * 200), Waiting()
    admission = make(90, 10**9, stuck, other)
    list(admission.admit())
    assert stuck.batches == 60, "two thirds"
    assert "others" in stuck.obstacle
    other.ready.extend(Waiting(*[(1, 10)] * 5).ready)
    other.expect = lambda _portion: [10]  # type: ignore[method-assign]
    assert [source is other for source, _ in admission.admit()] == [True] * 5


def test_sole_source_may_take_everything() -> None:
    source = Waiting(*[(1, 10)] * 200)
    admission = make(90, 10**9, source)
    list(admission.admit())
    assert source.batches == 90


def test_whatever_comes_and_goes_the_budget_holds_and_all_get_their_turn() -> None:
    random = Random(5)
    for seed in range(30):
        sources = [
            Waiting(*[(random.randint(1, 4), random.randint(1, 40)) for _ in range(25)]) for _ in range(1 + seed % 4)
        ]
        admission = make(10, 120, *sources)
        under_way: list[tuple[Waiting, Portion]] = []
        left = sum(len(source.ready) for source in sources)
        while left:
            for source, portion in admission.admit():
                under_way.append((source, portion))
                left -= 1
            alone = len(under_way) == 1
            assert alone or (admission.batches <= 10 and admission.bytes <= 120)
            assert under_way, "nothing is under way, and nothing is admitted"
            finish(admission, *under_way.pop(random.randrange(len(under_way))))
        for item in under_way:
            finish(admission, *item)
        assert (admission.batches, admission.bytes) == (0, 0)


def test_source_that_leaves_gives_back_what_it_holds() -> None:
    source, other = Waiting(*[(1, 10)] * 5), Waiting(*[(1, 10)] * 5)
    admission = make(100, 1000, source, other)
    list(admission.admit())
    admission.leave(source)
    assert (admission.batches, admission.bytes) == (5, 50)


# Sizes


def test_size_is_exact_where_the_manifest_tells_it() -> None:
    described = BatchDescriptor(0, "x", (), Facts(1000, 5000, 10, 0, 0, 0))
    assert Sizes().raw_bytes(described) == 5000
    assert Sizes().expect(described) == 1000 + 2 * 5000


def test_size_is_estimated_then_learnt_where_it_does_not() -> None:
    sizes, unknown = Sizes(), BatchDescriptor(0, "x")
    assert sizes.raw_bytes(unknown) == 64 << 20
    for length in (100, 400, 200):
        batch = make_batch([b"x" * length])
        sizes.learn(batch, length)
    assert sizes.raw_bytes(unknown) == 404
    assert sizes.expect(unknown) == 3 * 404
    for _ in range(16):
        sizes.learn(make_batch([b"x" * 10]), 10)
    assert sizes.raw_bytes(unknown) == 14, "old ones are forgotten"


def test_rows_that_come_out_larger_raise_what_is_expected_of_the_next() -> None:
    sizes, described = Sizes(), BatchDescriptor(0, "x", (), Facts(10, 104, 1, 0, 0, 0))
    sizes.learn(make_batch([b"x" * 100]), 104 * 20)
    assert sizes.expect(described) == 104 * 20


def test_held_bytes_count_shared_buffers_once() -> None:
    batch = make_batch([b"x" * 1000] * 50)
    plain = held_bytes(batch, pa.table({}))
    assert 50 * 1000 <= plain < 51 * 1000
    shared = held_bytes(batch, pa.table({"value": batch.arrow}))
    assert shared == plain
    copied = held_bytes(batch, pa.table({"value": pa.array(batch.arrow.to_pylist())}))
    assert copied == 2 * plain
