"""A batch with some of its entries: each keeps its place, time and metadata."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.format.model import BatchDescriptor, Metadata
from forebay.buffer.read.fetch import Batch


def make_batch(count: int, starts: list[int]) -> Batch:
    """Entry i is `i`; the call that starts at entry s has the metadata `s` and the time s."""
    data = encode_batch([b"%d" % index for index in range(count)])
    items = tuple(Metadata(start, start, b"%d" % start) for start in starts)
    return Batch(BatchDescriptor(7, "data/7", items), decode_batch(data), len(data))


@st.composite
def selections(draw: st.DrawFn) -> tuple[Batch, list[range]]:
    count = draw(st.integers(1, 20))
    starts = sorted(draw(st.sets(st.integers(0, count - 1))))
    bounds = sorted(draw(st.sets(st.integers(0, count))))
    return make_batch(count, starts), [
        range(first, last) for first, last in zip(bounds[::2], bounds[1::2], strict=False)
    ]


@given(selections())
def test_selected_entries_keep_what_their_records_say(selected: tuple[Batch, list[range]]) -> None:
    batch, ranges = selected
    chosen = [index for entries in ranges for index in entries]
    part = batch.select(ranges)
    assert part.records().equals(batch.records().take(pa.array(chosen, pa.int64())))
    assert (part.sequence, part.location, len(part)) == (7, "data/7", len(chosen))


@given(selections(), st.data())
def test_selection_of_a_selection_keeps_the_stored_index(
    selected: tuple[Batch, list[range]], data: st.DataObject
) -> None:
    part = selected[0].select(selected[1])
    first = data.draw(st.integers(0, len(part)))
    last = data.draw(st.integers(first, len(part)))
    assert part.select([range(first, last)]).records().equals(part.records(first, last).combine_chunks())


def test_entries_of_a_selection_are_one_array() -> None:
    part = make_batch(10, [0]).select([range(1, 3), range(5, 6)])
    assert isinstance(part.arrow, pa.BinaryArray)
    assert part.arrow.to_pylist() == [b"1", b"2", b"5"]
    assert part.decoded.raw_bytes == 15
    assert make_batch(10, [0]).select([]).arrow.to_pylist() == []
