"""How batches are cut into portions: as recorded, as the sink likes them, or one each (rfcs/0007)."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.buffer.format.model import BatchDescriptor
from forebay.runtime.contract import Combining
from forebay.runtime.stages.portions import PortionBuilder


def batches(*sequences: int) -> list[BatchDescriptor]:
    return [BatchDescriptor(sequence, f"data/{sequence}") for sequence in sequences]


def builder(
    planned: Sequence[int] = (), combining: Combining | None = None, max_batches: int = 100, *, after: int = -1
) -> PortionBuilder:
    return PortionBuilder(planned, combining, max_batches, lambda found: 10 + found.sequence % 2, after=after)


def ranges(cut: list[list[BatchDescriptor]]) -> list[tuple[int, int]]:
    return [(portion[0].sequence, portion[-1].sequence) for portion in cut]


def test_one_batch_each_without_combining() -> None:
    assert ranges(builder().add(batches(3, 4, 5), 0.0)) == [(3, 3), (4, 4), (5, 5)]


def test_combined_up_to_the_target_over_several_looks() -> None:
    cut = builder(combining=Combining(30, max_seconds=5))
    assert ranges(cut.add(batches(0, 1), 100.0)) == []
    assert (len(cut), cut.due) == (2, 105.0)
    assert ranges(cut.add(batches(2, 3, 4), 101.0)) == [(0, 2)]
    assert (len(cut), cut.due) == (2, 106.0)
    assert ranges(cut.close()) == [(3, 4)]
    assert (len(cut), cut.due, cut.close()) == (0, None, [])


def test_recorded_ranges_are_cut_the_same_again_whatever_the_target_is_now() -> None:
    for combining in (None, Combining(1), Combining(10**9)):
        cut = builder([12, 13, 17], combining)
        assert ranges(cut.add(batches(*range(10, 16)), 0.0)) == [(10, 12), (13, 13)]
        assert ranges(cut.add(batches(16, 17), 0.0)) == [(14, 17)]


def test_what_follows_the_recorded_ranges_is_cut_by_the_target() -> None:
    cut = builder([12], Combining(20))
    assert ranges(cut.add(batches(*range(10, 18)), 0.0)) == [(10, 12), (13, 14), (15, 16)]


def test_gap_that_retention_left_ends_a_portion() -> None:
    cut = builder(combining=Combining(10**9))
    assert ranges(cut.add(batches(0, 1, 7, 8), 0.0)) == [(0, 1)]
    assert ranges(cut.close()) == [(7, 8)]


def test_recorded_range_keeps_its_first_sequence_if_its_beginning_was_trimmed() -> None:
    cut = builder([10, 12], after=4)
    complete = cut.add(batches(8, 9, 10, 11, 12, 13), 0.0)
    assert ranges(complete) == [(8, 10), (11, 12), (13, 13)]
    assert [cut.first_of(portion) for portion in complete] == [5, 11, 13]


def test_beginning_of_a_recorded_range_is_dropped_if_batches_after_it_were_trimmed() -> None:
    cut = builder([10], after=4)
    assert ranges(cut.add(batches(5, 6), 0.0)) == []
    complete = cut.add(batches(9, 10), 0.0)
    assert ranges(complete) == [(9, 10)]
    assert (cut.first_of(complete[0]), cut.trimmed) == (5, 2)


def test_recorded_range_that_was_trimmed_after_it_was_found_is_in_no_portion() -> None:
    cut = builder([10], after=4)
    assert ranges(cut.add(batches(5, 6), 0.0)) == []
    assert ranges(cut.add(batches(12), 0.0)) == [(12, 12)]


def test_portion_of_tiny_batches_is_limited_so_that_others_have_room() -> None:
    cut = builder(combining=Combining(10**9), max_batches=3)
    assert ranges(cut.add(batches(*range(7)), 0.0)) == [(0, 2), (3, 5)]
