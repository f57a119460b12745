"""Portions: the batches of one commit. Builds them from the batches of a source (rfcs/0007)."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from opentelemetry.trace import INVALID_SPAN

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.schema import present, widen
from forebay.runtime.bad_entries import others
from forebay.runtime.contract import Commit, CommitIdentity
from forebay.runtime.stages.isolation import NOT_THE_DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.trace import Span

    from forebay.buffer.format.model import BatchDescriptor, Reader
    from forebay.buffer.read.fetch import Batch
    from forebay.runtime.contract import Combining, Decoder, Fatal


class Portion:
    """Contiguous batches of one source that are committed together, and their progress."""

    def __init__(
        self, reader: Reader, descriptors: Sequence[BatchDescriptor], *, replay: bool, first: int | None = None
    ) -> None:
        self.descriptors = descriptors
        first = descriptors[0].sequence if first is None else first
        self.identity: Final = CommitIdentity(
            reader.source, reader.group, reader.generation, first, descriptors[-1].sequence
        )
        self.is_partial: Final = first != descriptors[0].sequence
        """Whether retention has dropped the first batches of a recorded range. The rest must not be committed."""
        self.replay = replay
        """Whether an earlier process may have committed it."""
        self.asks = replay  # guard: check before committing a replay
        """Whether the sink's `check_committed` is asked before the next commit."""
        self.attempts = 0
        """Number of failed attempts; the pause before the next one grows with it."""
        self.failures = 0
        """Number of exceptions of unknown meaning that the sink has raised in a row."""
        self.trouble = ""
        """Why it is tried again; empty if it is not."""
        self.missing: int = len(descriptors) + 1  # guard: record ranges before they are committed
        """Number of batches that are not decoded yet, plus one until the portion is recorded."""
        self.reserved: list[int] = []
        """Number of bytes of the budget that each batch takes."""
        self.done = False
        self.span: Span = INVALID_SPAN
        """Its span, from the first fetch to the commit, if the host has configured a tracer."""
        self.rows: int = 0
        self._is_row_per_entry = True
        self._batches: list[Batch | None] = [None] * len(descriptors)
        self._tables: list[pa.Table | None] = [None] * len(descriptors)

    def fill(self, index: int, batch: Batch, table: pa.Table) -> None:
        """Add a fetched batch and its rows."""
        self._batches[index] = batch
        self._tables[index] = table
        self.rows += table.num_rows
        self._is_row_per_entry &= table.num_rows == len(batch)

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches that could be decoded."""
        return tuple(batch for batch in self._batches if batch is not None)

    def commit(self, url: str) -> Commit:
        """Return the commit to give to the sink.

        Raises:
            pa.ArrowException: the batches' columns contradict each other.
        """
        tables = [table for table in self._tables if table is not None and table.num_rows]
        if len(tables) > 1:
            tables = [self._join(tables)]
        self._tables = list(tables)  # keep the joined table for further attempts
        return Commit(self.identity, url, self.batches, tables[0], replay=self.replay)

    def _join(self, tables: list[pa.Table]) -> pa.Table:
        if all(batch.schema is not None for batch in self.batches):
            tables = _in_widest_schema(tables)
        return pa.concat_tables(tables, promote_options="permissive")

    def find_entries(self, answer: Fatal, decoder: Decoder) -> list[dict[int, str]]:
        """Return which entries of each batch in `batches` a sink refused, with the reasons.

        These are all entries if the sink does not say which rows it refused, or if rows do not correspond to entries.

        Raises:
            MemoryError, Unavailable, Unknown, Timeout: the decoder cannot decode the other entries now.
        """
        if not answer.rows or not self._is_row_per_entry:
            return [dict.fromkeys(range(len(batch)), answer.reason) for batch in self.batches]
        found: list[dict[int, str]] = [{} for _ in self.batches]
        starts = [0, *accumulate(len(batch) for batch in self.batches)]
        for row, reason in sorted(answer.rows.items()):
            at = bisect_right(starts, row) - 1
            found[at][row - starts[at]] = reason
        for at, (batch, bad) in enumerate(zip(self.batches, found, strict=True)):
            # guard: take single rows out only if the other entries make the other rows
            if bad and not self._is_rest(starts[at], batch, others(sorted(bad), len(batch)), decoder):
                found[at] = dict.fromkeys(range(len(batch)), answer.reason)
        return found

    def _is_rest(self, start: int, batch: Batch, kept: list[range], decoder: Decoder) -> bool:
        """Return whether these entries of a batch, decoded alone, give the rows at their places from row `start` on.

        A decoder may return one row per entry on the whole, and still sort the rows, or make no row of one entry and
        two of another.
        """
        if not kept:
            return True
        (whole,) = (table for table in self._tables if table is not None)  # `commit` has joined them
        rows = pa.concat_tables([whole.slice(start + part.start, len(part)) for part in kept])
        try:
            decoded = self._join([whole.slice(0, 0), decoder(batch.select(kept))]).select(whole.column_names)
        except NOT_THE_DATA:
            raise
        except Exception:  # noqa: BLE001 - a decoder may raise anything
            return False
        return decoded.schema.equals(rows.schema) and all(map(_is_same, rows.columns, decoded.columns))

    def take_out(self, entries: Sequence[Mapping[int, str]]) -> None:
        """Remove the entries that `find_entries` returned, and their rows. The identity stays the same."""
        kept = [others(sorted(bad), len(batch)) for batch, bad in zip(self.batches, entries, strict=True)]
        starts = [0, *accumulate(len(batch) for batch in self.batches)]
        if not any(kept):
            self.rows = 0
            return
        table = pa.concat_tables([table for table in self._tables if table is not None])
        ranges = [(start + part.start, len(part)) for start, parts in zip(starts, kept, strict=False) for part in parts]
        self._tables = [pa.concat_tables([table.slice(*place) for place in ranges])]
        self._batches = [batch.select(parts) for batch, parts in zip(self.batches, kept, strict=True) if parts]
        self.rows = sum(length for _start, length in ranges)

    def empty(self) -> None:
        """Release the memory."""
        self._batches = []
        self._tables = []


def _is_same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if pa.types.is_floating(one.type):
        one, other = one.cast(pa.string()), other.cast(pa.string())  # NaN does not equal itself
    return bool(one.equals(other))


def _in_widest_schema(tables: list[pa.Table]) -> list[pa.Table]:
    """Convert tables in several versions of a typed buffer's schema to the widest version, and return them.

    Arrow's own promotion does not support fields that were added inside a struct. If a decoder has changed the tables
    so that they do not fit together, they are returned unchanged, for Arrow to decide.
    """
    widest = tables[0].schema
    if all(table.schema.equals(widest) for table in tables):
        return tables
    try:
        for table in tables[1:]:
            widest = _wider(widest, table.schema)
        return [present(table, widest) for table in tables]
    except InvalidInput:
        return tables


def _wider(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    try:
        return widen(one, other)
    except InvalidInput:
        return widen(other, one)


class PortionBuilder:
    """Groups the batches of one source into portions.

    Args:
        planned: the last sequence of each portion that the previous consumer recorded. These portions are built again
            with the same boundaries.
        after: the last sequence before the first of these portions.
        combining: how the sink wants batches combined; None for one batch per portion.
        max_batches: maximum number of batches in a portion.
        raw_bytes: returns how many bytes a batch holds before compression.
    """

    def __init__(
        self,
        planned: Iterable[int],
        combining: Combining | None,
        max_batches: int,
        raw_bytes: Callable[[BatchDescriptor], int],
        *,
        after: int = -1,
    ) -> None:
        ends = sorted(planned)
        self._planned = {end: before + 1 for before, end in pairwise([after, *ends])}
        """The first sequence of each recorded portion, by its last."""
        self._last_planned = max(ends, default=-1)
        self._combining = combining
        self._max_batches = max_batches
        self._raw_bytes = raw_bytes
        self._open: list[BatchDescriptor] = []
        self._size = 0
        self._since = 0.0
        self.trimmed: int = 0
        """Number of batches of recorded portions that retention dropped after they were added."""

    def add(self, descriptors: Iterable[BatchDescriptor], now: float) -> list[list[BatchDescriptor]]:
        """Return the portions that are complete with these batches."""
        complete = []
        for descriptor in descriptors:
            if self._open and descriptor.sequence != self._open[-1].sequence + 1:
                # Retention dropped the batches in between, and with them all that are older.
                # guard: never commit the beginning of a recorded range
                if self._open[-1].sequence < self._last_planned:
                    self.trimmed += len(self.close()[0])
                complete += self.close()
            if not self._open:
                self._since = now
            self._open.append(descriptor)
            self._size += self._raw_bytes(descriptor)
            if self._is_complete(descriptor.sequence):
                complete += self.close()
        return complete

    def first_of(self, complete: Sequence[BatchDescriptor]) -> int:
        """Return the first sequence of a complete portion, as it was recorded if it was."""
        found = complete[0].sequence
        # guard: keep the identity of a recorded range whose beginning was trimmed
        return min(found, self._planned.get(complete[-1].sequence, found))

    def close(self) -> list[list[BatchDescriptor]]:
        """Return the portion that is not complete yet, if there is one."""
        closed = [self._open] if self._open else []
        self._open, self._size = [], 0
        return closed

    @property
    def due(self) -> float | None:
        """When to close the incomplete portion, by the monotonic clock; None if it is not to be closed early."""
        if self._combining is None or not self.may_close:
            return None
        return self._since + self._combining.max_seconds

    @property
    def may_close(self) -> bool:
        """Whether there is an incomplete portion that was not recorded with more batches.

        A recorded portion is never closed early: it may have been committed as it was recorded.
        """
        # guard: never close a recorded range early
        return bool(self._open) and self._open[-1].sequence >= self._last_planned

    def __len__(self) -> int:
        """Number of batches in the incomplete portion."""
        return len(self._open)

    @property
    def first(self) -> BatchDescriptor | None:
        """The first batch of the incomplete portion; None if there is none."""
        return self._open[0] if self._open else None

    def _is_complete(self, sequence: int) -> bool:
        if sequence <= self._last_planned:
            return sequence in self._planned
        if self._combining is None:
            return True
        return self._size >= self._combining.target_bytes or len(self._open) >= self._max_batches
