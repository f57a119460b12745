"""The columns that readers add to a batch's entries: sequence, index, ingestion time and metadata of the call."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.buffer.format.model import BatchDescriptor, Metadata

RECORDS_SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("ingestion_time", pa.timestamp("us", "UTC")),
        pa.field("metadata", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""One row per entry; time and metadata are null for entries whose producer attached none."""

_MAX_TIME_MS = 2**63 // 1000 - 1
"""Beyond it no timestamp in microseconds can go; the column shows null."""

_ADDED = {"_sequence": "sequence", "_index": "index", "_ingestion_time": "ingestion_time", "_call_metadata": "metadata"}
"""The columns that are added to the rows of a typed batch, and what they are called for a batch of bytes."""
ADDED_SCHEMA = pa.schema([RECORDS_SCHEMA.field(known).with_name(name) for name, known in _ADDED.items()])
"""The columns that readers add to the rows of a typed batch."""


def records_schema(rows: pa.Schema | None) -> pa.Schema:
    """Return the schema of `Batch.records` for rows of a schema; for entries of bytes if it is None."""
    if rows is None:
        return RECORDS_SCHEMA
    return pa.schema([*rows, *ADDED_SCHEMA])


Span: TypeAlias = "tuple[BatchDescriptor, int, int]"
"""Rows of a batch: from one, to before another."""


def record_columns(spans: Sequence[Span]) -> dict[str, Callable[[], pa.Array | pa.ChunkedArray]]:
    """What makes each column that does not come from the entries, for rows of batches that follow each other."""
    return {
        "sequence": lambda: _repeat([batch.sequence for batch, _start, _stop in spans], spans, pa.int64()),
        "index": lambda: _indexes(spans),
        "ingestion_time": lambda: _expand_times(spans),
        "metadata": lambda: _expand_payloads(spans),
    }


def typed_records(
    rows: pa.Table, makers: Mapping[str, Callable[[], pa.Array | pa.ChunkedArray]], columns: Sequence[str] | None
) -> pa.Table:
    """Return rows of a typed batch, with the columns that readers add after the user's, which `makers` make.

    Raises:
        InvalidInput: a column in `columns` is not there.
    """
    wanted = [*rows.column_names, *_ADDED] if columns is None else list(columns)
    fields, arrays = [], []
    for name in wanted:
        if name in _ADDED:
            fields.append(ADDED_SCHEMA.field(name))
            arrays.append(makers[_ADDED[name]]())
        elif name in rows.column_names:
            fields.append(rows.schema.field(name))
            arrays.append(rows.column(name))
        else:
            raise InvalidInput(
                f"no column {name!r} is in the rows; use one of {', '.join([*rows.column_names, *_ADDED])}"
            )
    return pa.table(arrays, schema=pa.schema(fields))


def _repeat(values: list[int], spans: Sequence[Span], kind: pa.DataType) -> pa.Array:
    """A value for each span, repeated for each of its rows."""
    ends = list(accumulate(stop - start for _batch, start, stop in spans))
    return _decode_runs(ends, pa.array(values, kind))


def _indexes(spans: Sequence[Span]) -> pa.Array:
    if len(spans) == 1:
        return pa.arange(spans[0][1], spans[0][2]).cast(pa.int32())
    lengths = accumulate((stop - start for _batch, start, stop in spans), initial=0)
    shifts = [before - start for before, (_batch, start, _stop) in zip(lengths, spans, strict=False)]
    rows = sum(stop - start for _batch, start, stop in spans)
    return pc.subtract(pa.arange(0, rows), _repeat(shifts, spans, pa.int64())).cast(pa.int32())


def _expand_times(spans: Sequence[Span]) -> pa.Array:
    """A time for each row, null where there is none that a timestamp can show."""
    ends, items = _runs(spans)
    times = [
        None if i is None or abs(i.ingestion_time_ms) > _MAX_TIME_MS else i.ingestion_time_ms * 1000 for i in items
    ]
    return _decode_runs(ends, pa.array(times, pa.timestamp("us", "UTC")))


def _expand_payloads(spans: Sequence[Span]) -> pa.Array:
    """A payload for each row, null where there is none."""
    ends, items = _runs(spans)
    return _decode_runs(ends, pa.array([None if item is None else item.payload for item in items], pa.binary()))


def _runs(spans: Sequence[Span]) -> tuple[list[int], list[Metadata | None]]:
    """What covers the rows: each item, and how many rows there are up to its end."""
    ends: list[int] = []
    items: list[Metadata | None] = []
    before = 0
    for batch, start, stop in spans:
        metadata, row = batch.metadata, start
        at = bisect_right(metadata, start, key=lambda item: item.start_index) - 1  # -1: none covers the first row
        while row < stop:
            end = metadata[at + 1].start_index if at + 1 < len(metadata) else stop
            if end > row:
                row = min(end, stop)
                ends.append(before + row - start)
                items.append(metadata[at] if at >= 0 else None)
            at += 1
        before += stop - start
    return ends, items


def _decode_runs(ends: list[int], values: pa.Array) -> pa.Array:
    if len(ends) == 1:  # nearly always, and much faster
        return pa.repeat(values[0], ends[0])
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values))
