"""The state machine of segments and partitions, and finding offsets in what it adds up to."""

from __future__ import annotations

from itertools import product
from typing import Any

import hypothesis.strategies as st
import pytest
from catalog_rig import ORDERS, finish, segment
from hypothesis import given

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.eventlog import Event
from forebay.runtime.catalog import DeletionState, Segment, SegmentState
from forebay.runtime.catalog.model import PartitionDeletion, decode_change, encode_change
from forebay.runtime.catalog.view import View

S = SegmentState
D = DeletionState
LIFE = {
    S.COPY_STARTED: [],
    S.COPY_FINISHED: [S.COPY_FINISHED],
    S.DELETE_STARTED: [S.COPY_FINISHED, S.DELETE_STARTED],
    S.DELETE_FINISHED: [S.COPY_FINISHED, S.DELETE_STARTED, S.DELETE_FINISHED],
}
"""The updates that bring a segment into a state."""
ALLOWED = {
    (S.COPY_STARTED, S.COPY_FINISHED),
    (S.COPY_STARTED, S.DELETE_STARTED),
    (S.COPY_FINISHED, S.DELETE_STARTED),
    (S.DELETE_STARTED, S.DELETE_FINISHED),
}


def view_of(*segments: Segment, state: SegmentState = S.COPY_FINISHED) -> View:
    view = View()
    for item in segments:
        view.apply(item, 1)
        for step in LIFE[state]:
            view.apply(finish(item, step), 2)
    return view


@pytest.mark.parametrize(("before", "after"), list(product(S, S)))
def test_segment_goes_through_its_life_in_order_and_not_otherwise(before: SegmentState, after: SegmentState) -> None:
    view = view_of(segment(), state=before)
    known = view.segments(ORDERS)
    if before is after is not S.DELETE_FINISHED:
        view.apply(finish(segment(), after), 3)
        assert view.segments(ORDERS) == known
    elif (before, after) in ALLOWED:
        view.apply(finish(segment(), after), 3)
        states = [item.state for item in view.segments(ORDERS)]
        assert states == ([] if after is S.DELETE_FINISHED else [after])
    else:
        with pytest.raises(InvalidInput, match=r"cannot follow|is not in the catalog"):
            view.apply(finish(segment(), after), 3)
        assert view.segments(ORDERS) == known


@pytest.mark.parametrize("state", [state for state in S if state is not S.COPY_STARTED])
def test_segment_begins_with_its_copy(state: SegmentState) -> None:
    view = View()
    with pytest.raises(InvalidInput, match="added as copy_started"):
        view.apply(segment(state=state), 1)
    assert view.segments(ORDERS) == []


def test_same_segment_again_changes_nothing_and_another_of_its_name_is_refused() -> None:
    view = view_of(segment(), state=S.COPY_STARTED)
    view.apply(segment(), 9)
    assert [item.changed_ms for item in view.segments(ORDERS)] == [1]
    with pytest.raises(InvalidInput, match="is in the catalog already"):
        view.apply(segment(end=50), 9)
    view.apply(finish(segment()), 10)
    with pytest.raises(InvalidInput, match="is in the catalog already"):
        view.apply(segment(), 11)


def test_custom_metadata_is_kept_and_replaced_only_by_other() -> None:
    view = View()
    view.apply(segment(custom=b"one"), 1)
    view.apply(finish(segment()), 2)
    assert [item.custom for item in view.segments(ORDERS)] == [b"one"]
    view.apply(finish(segment(), S.DELETE_STARTED, custom=b"two"), 3)
    assert [(item.custom, item.changed_ms) for item in view.segments(ORDERS)] == [(b"two", 3)]


@pytest.mark.parametrize("state", [S.COPY_STARTED, S.DELETE_STARTED, S.DELETE_FINISHED])
def test_only_a_finished_copy_can_be_found(state: SegmentState) -> None:
    assert view_of(segment()).find(ORDERS, 0, 42) is not None
    assert view_of(segment(), state=state).find(ORDERS, 0, 42) is None


def test_highest_offset_stays_known_when_the_segment_is_deleted() -> None:
    assert view_of(segment(), state=S.COPY_STARTED).highest_offset(ORDERS, 0) is None
    assert view_of(segment(), state=S.DELETE_FINISHED).highest_offset(ORDERS, 0) == 99


def test_offset_is_found_in_the_epoch_that_it_was_written_in() -> None:
    view = view_of(segment("a", 0, 99, epochs={0: 0, 1: 60}), segment("b", 100, 199, epochs={1: 100, 3: 150}))

    def found(epoch: int, offset: int) -> str | None:
        item = view.find(ORDERS, epoch, offset)
        return None if item is None else item.segment_id

    assert [found(0, 0), found(0, 59), found(0, 60)] == ["a", "a", None]
    assert [found(1, 59), found(1, 60), found(1, 99), found(1, 149), found(1, 150)] == [None, "a", "a", "b", None]
    assert [found(3, 150), found(3, 199), found(3, 200), found(2, 150)] == ["b", "b", None, None]
    assert [view.highest_offset(ORDERS, epoch) for epoch in range(4)] == [59, 149, None, 199]


def test_lists_are_by_start_offset_and_by_epoch() -> None:
    view = view_of(segment("c", 200, 299, epochs={1: 200}), segment("a", 0, 99), segment("b", 100, 199))
    view.apply(segment("d", 100, 150, epochs={1: 120}), 1)
    assert [item.segment_id for item in view.segments(ORDERS)] == ["a", "b", "d", "c"]
    assert [item.segment_id for item in view.segments(ORDERS, 1)] == ["d", "c"]
    assert view.segments(ORDERS, 7) == []
    assert view.segments("other") == []


def test_overlapping_copies_are_each_found_while_they_are_there() -> None:
    view = view_of(segment("long", 0, 99), segment("short", 10, 20))
    assert [item.segment_id for o in (15, 50) if (item := view.find(ORDERS, 0, o))] == ["short", "long"]
    view.apply(finish(segment("long"), S.DELETE_STARTED), 3)
    assert [view.find(ORDERS, 0, o) is not None for o in (15, 50)] == [True, False]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=12), st.integers(0, 60))
def test_finding_agrees_with_looking_at_every_segment(ranges: list[tuple[int, int]], offset: int) -> None:
    items = [segment(f"{n}", start, start + length) for n, (start, length) in enumerate(ranges)]
    covering = [item for item in items if item.start_offset <= offset <= item.end_offset]
    found = view_of(*items).find(ORDERS, 0, offset)
    assert (found is None) == (not covering)
    if found is not None:
        assert found.start_offset == max(item.start_offset for item in covering)


@pytest.mark.parametrize(("before", "after"), list(product([None, D.MARKED, D.STARTED], D)))
def test_partition_is_deleted_in_order_and_not_otherwise(before: DeletionState | None, after: DeletionState) -> None:
    view = view_of(segment())
    for step in [D.MARKED, D.STARTED][: [None, D.MARKED, D.STARTED].index(before)]:
        view.apply(PartitionDeletion(ORDERS, step), 1)
    follows = {None: D.MARKED, D.MARKED: D.STARTED, D.STARTED: D.FINISHED}[before]
    if after not in (before, follows):
        with pytest.raises(InvalidInput, match="cannot follow"):
            view.apply(PartitionDeletion(ORDERS, after), 1)
        assert view.deletion(ORDERS) == before
        return
    view.apply(PartitionDeletion(ORDERS, after), 1)
    assert view.deletion(ORDERS) == (None if after is D.FINISHED else after)
    assert bool(view.segments(ORDERS)) == (after is not D.FINISHED)


def test_dump_loaded_again_is_the_same_view() -> None:
    view = view_of(segment("a", epochs={0: 0, 2: 50}), segment("b", 100, 150), segment("x", partition="views/1"))
    view.apply(finish(segment("b"), S.DELETE_STARTED), 3)
    view.apply(PartitionDeletion("views/1", D.MARKED), 4)
    copy = View()
    copy.load(view.dump())
    assert copy.dump() == view.dump()
    assert copy.find(ORDERS, 2, 70) == view.find(ORDERS, 2, 70) is not None
    assert copy.find(ORDERS, 0, 120) is None
    assert copy.highest_offset(ORDERS, 0) == 150
    assert copy.deletion("views/1") is D.MARKED


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 5, "end": 4},
        {"start": -1},
        {"epochs": {0: 100}},
        {"start": 10, "epochs": {0: 9}},
        {"epochs": {0: 50, 1: 50}},
        {"epochs": {0: 60, 1: 50}},
    ],
)
def test_segment_whose_offsets_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="epochs must begin"):
        segment(**wrong)


def test_changes_survive_being_events() -> None:
    for change in (
        segment(epochs={0: 0, 12: 50}, size_bytes=7, custom=b"\x00\xff"),
        finish(segment(), custom=b"\x07"),
        finish(segment()),
        PartitionDeletion(ORDERS, D.MARKED),
    ):
        assert decode_change(encode_change(change, {})) == change


@pytest.mark.parametrize(
    "event",
    [
        Event("other"),
        Event("segment.added"),
        Event("segment.added", {"partition": "p"}),
        Event("segment.added", {"partition": "p", "segment_id": "s", "start_offset": 3, "end_offset": 1, "epochs": {}}),
        Event("segment.updated", {"partition": "p", "segment_id": "s", "state": "nowhere"}),
        Event("partition.deletion", b"bytes"),
    ],
)
def test_event_that_tells_of_no_change_is_refused(event: Event) -> None:
    with pytest.raises(InvalidInput):
        decode_change(event)
