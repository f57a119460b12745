"""The view: the state that results from a catalog's events, that is, which segments exist and which offsets they hold.

This module uses no logs and no threads. A change that is out of order raises `InvalidInput` and has no effect.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.checks import Signed, Whole  # noqa: TC001 - msgspec reads the annotations
from forebay.buffer.base.errors import InvalidInput
from forebay.runtime.catalog.model import (
    DELETION_STEPS,
    SEGMENT_STEPS,
    DeletionState,
    PartitionDeletion,
    Segment,
    SegmentState,
    SegmentUpdate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.runtime.catalog.model import Change


class PartitionDump(Struct, frozen=True):
    """A partition's state, for a snapshot."""

    partition: str
    deletion: DeletionState | None
    segments: list[Segment]
    highest: dict[Signed, Whole]


class _PartitionView:
    """One partition's segments, and an index of those that can be read."""

    def __init__(self) -> None:
        self.deletion: DeletionState | None = None
        self.segments: dict[str, Segment] = {}
        self.highest: dict[int, int] = {}
        """The last offset of each epoch that was ever copied. It is kept when segments are deleted."""
        self._index: dict[int, list[tuple[int, int, str]]] = {}
        """For each epoch, the readable segments in order: first and last offset of the epoch, and segment id."""

    def put(self, segment: Segment) -> None:
        """Add or replace a segment; remove it if its deletion is finished."""
        before = self.segments.pop(segment.segment_id, None)
        if before is not None and before.state is SegmentState.COPY_FINISHED:
            for epoch, first, last in before.epoch_ranges():
                self._index[epoch].remove((first, last, before.segment_id))
        if segment.state is SegmentState.DELETE_FINISHED:
            return
        self.segments[segment.segment_id] = segment
        if segment.state is SegmentState.COPY_FINISHED:
            for epoch, first, last in segment.epoch_ranges():
                insort(self._index.setdefault(epoch, []), (first, last, segment.segment_id))
                self.highest[epoch] = max(self.highest.get(epoch, -1), last)

    def find(self, epoch: int, offset: int) -> Segment | None:
        index = self._index.get(epoch, [])
        # Usually it is the last segment that begins at or before the offset; if segments overlap, maybe an earlier one.
        for first, last, segment_id in reversed(index[: bisect_right(index, offset, key=lambda entry: entry[0])]):
            if first <= offset <= last:
                return self.segments[segment_id]
        return None

    def listed(self, epoch: int | None) -> list[Segment]:
        wanted = (segment for segment in self.segments.values() if epoch is None or epoch in segment.epochs)
        return sorted(wanted, key=lambda segment: (segment.start_offset, segment.segment_id))


class View:
    """Every partition's segments."""

    def __init__(self) -> None:
        self._partitions: dict[str, _PartitionView] = {}

    def apply(self, change: Change, time_ms: int) -> None:
        """Apply a change that happened at a time.

        Raises:
            InvalidInput: the change cannot follow the present state; nothing was changed.
        """
        match change:
            case Segment():
                self._add(replace(change, changed_ms=time_ms))
            case SegmentUpdate():
                self._update(change, time_ms)
            case PartitionDeletion():
                self._delete(change)

    def _add(self, segment: Segment) -> None:
        check_first_state(segment)
        view = self._partitions.setdefault(segment.partition, _PartitionView())
        known = view.segments.get(segment.segment_id)
        if known is None:
            view.put(segment)
        elif replace(known, changed_ms=0) != replace(segment, changed_ms=0):
            raise InvalidInput(
                f"segment {segment.segment_id} of {segment.partition} is in the catalog already, as "
                f"{known.state}; update it instead"
            )

    def _update(self, update: SegmentUpdate, time_ms: int) -> None:
        view = self._partition(update.partition)
        known = view.segments.get(update.segment_id)
        if known is None:
            raise InvalidInput(
                f"segment {update.segment_id} of {update.partition} is not in the catalog, so it cannot "
                f"become {update.state}; add it first"
            )
        if known.state is update.state:
            return
        if update.state not in SEGMENT_STEPS[known.state]:
            raise InvalidInput(
                f"segment {update.segment_id} of {update.partition} is {known.state}, and {update.state} "
                "cannot follow; look it up before you update it"
            )
        custom = known.custom if update.custom is None else update.custom
        view.put(replace(known, state=update.state, changed_ms=time_ms, custom=custom))

    def _delete(self, deletion: PartitionDeletion) -> None:
        known = self.deletion(deletion.partition)
        if deletion.state is known:
            return
        if deletion.state is not DELETION_STEPS.get(known):
            now = known or "not being deleted"
            raise InvalidInput(
                f"partition {deletion.partition} is {now}, and {deletion.state} cannot follow; look it up "
                "before you delete it"
            )
        if deletion.state is DeletionState.FINISHED:
            del self._partitions[deletion.partition]
        else:
            self._partitions.setdefault(deletion.partition, _PartitionView()).deletion = deletion.state

    def find(self, partition: str, epoch: int, offset: int) -> Segment | None:
        """Return the readable segment that holds an offset of an epoch; None if there is none."""
        return self._partition(partition).find(epoch, offset)

    def highest_offset(self, partition: str, epoch: int) -> int | None:
        """Return the last offset of an epoch that was ever copied."""
        return self._partition(partition).highest.get(epoch)

    def segments(self, partition: str, epoch: int | None = None) -> list[Segment]:
        """Return the segments in any state, or only those that contain an epoch, by start offset."""
        return self._partition(partition).listed(epoch)

    def deletion(self, partition: str) -> DeletionState | None:
        """Return the state of a partition's deletion; None if it is not being deleted, or was deleted."""
        return self._partition(partition).deletion

    def _partition(self, partition: str) -> _PartitionView:
        """Return a partition's view; an empty one if the partition is not known."""
        return self._partitions.get(partition) or _PartitionView()

    def dump(self) -> list[PartitionDump]:
        """Return the state of all partitions, for a snapshot."""
        return [
            PartitionDump(name, view.deletion, view.listed(None), dict(view.highest))
            for name, view in self._partitions.items()
        ]

    def load(self, dumps: Iterable[PartitionDump]) -> None:
        """Add the partitions of a snapshot."""
        for dump in dumps:
            view = self._partitions[dump.partition] = _PartitionView()
            view.deletion = dump.deletion
            for segment in dump.segments:
                view.put(segment)
            view.highest = dict(dump.highest)


def check_first_state(segment: Segment) -> None:
    """Raise `InvalidInput` unless the segment has the first state, `COPY_STARTED`."""
    if segment.state not in SEGMENT_STEPS[None]:
        raise InvalidInput(
            f"segment {segment.segment_id} of {segment.partition} must be added as "
            f"{SegmentState.COPY_STARTED} and updated from there, not added as {segment.state}"
        )
