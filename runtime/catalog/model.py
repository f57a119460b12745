"""Segments and partitions of a catalog, and the events that change them (rfcs/0009)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from forebay.buffer.base.checks import MOST, Signed, Whole
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.eventlog import Event

if TYPE_CHECKING:
    from collections.abc import Mapping


class SegmentState(StrEnum):
    """The state of a segment, from the start of its copy to the end of its deletion."""

    COPY_STARTED = "copy_started"
    COPY_FINISHED = "copy_finished"
    DELETE_STARTED = "delete_started"
    DELETE_FINISHED = "delete_finished"


class DeletionState(StrEnum):
    """The state of the deletion of a whole partition."""

    MARKED = "marked"
    STARTED = "started"
    FINISHED = "finished"


SEGMENT_STEPS: Final[Mapping[SegmentState | None, frozenset[SegmentState]]] = {
    None: frozenset({SegmentState.COPY_STARTED}),
    # A copy that failed is deleted without ever having finished.
    SegmentState.COPY_STARTED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    SegmentState.COPY_FINISHED: frozenset({SegmentState.DELETE_STARTED}),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_FINISHED}),
}
"""The states that may follow each state; None is a segment that is not known yet. A repeated state changes nothing."""

DELETION_STEPS: Final[Mapping[DeletionState | None, DeletionState]] = {
    None: DeletionState.MARKED,
    DeletionState.MARKED: DeletionState.STARTED,
    DeletionState.STARTED: DeletionState.FINISHED,
}


class Segment(Struct, frozen=True):
    """A stored range of a partition's offsets."""

    partition: str
    """The caller's own name of the partition, such as a buffer's URL."""
    segment_id: str
    """Unique within the partition, such as the object's location."""
    start_offset: Whole
    end_offset: Whole
    """The last offset in the segment."""
    epochs: dict[Signed, Whole]
    """The first offset in the segment of each epoch. An epoch ends where the next one begins."""
    size_bytes: Whole = 0
    state: SegmentState = SegmentState.COPY_STARTED
    changed_ms: Signed = 0
    """When it entered that state, in milliseconds since 1970: the writer's time, or the log's if that is 0."""
    custom: bytes | None = None
    """Any data that the storage needs to find the segment."""
    max_time_ms: Signed | None = None
    """The latest time of a record in the segment, in milliseconds since 1970; None if it is not known."""
    writer: str | None = None
    """The name of the writer that copied the segment; None if it is not known."""

    def __post_init__(self) -> None:
        inside = all(self.start_offset <= first <= self.end_offset for first in self.epochs.values())
        firsts = [first for _, first in sorted(self.epochs.items())]
        if not 0 <= self.start_offset <= self.end_offset <= MOST or not inside or firsts != sorted(set(firsts)):
            raise InvalidInput(
                f"segment {self.segment_id} of {self.partition}: epochs must begin within its offsets, "
                f"each after the last; found offsets {self.start_offset} to {self.end_offset} with epochs "
                f"{self.epochs}"
            )

    def epoch_ranges(self) -> list[tuple[int, int, int]]:
        """Return each epoch with its first and its last offset in this segment."""
        ordered = sorted(self.epochs.items())
        ends = [first - 1 for _, first in ordered[1:]] + [self.end_offset]
        return [(epoch, first, last) for (epoch, first), last in zip(ordered, ends, strict=True)]


class SegmentUpdate(Struct, frozen=True):
    """A change of a segment's state."""

    partition: str
    segment_id: str
    state: SegmentState
    custom: bytes | None = None
    """Replaces the segment's `custom`, unless it is None."""
    changed_ms: int = 0
    """When it happened, in milliseconds since 1970; 0 for the time at which the log appends it."""


class PartitionDeletion(Struct, frozen=True):
    """A change of the state of a whole partition's deletion."""

    partition: str
    state: DeletionState


Change: TypeAlias = Segment | SegmentUpdate | PartitionDeletion

_KINDS: Final[dict[str, type[Change]]] = {
    "segment.added": Segment,
    "segment.updated": SegmentUpdate,
    "partition.deletion": PartitionDeletion,
}
_KIND_OF: Final = {kind: name for name, kind in _KINDS.items()}


def encode_change(change: Change, headers: Mapping[str, str]) -> Event:
    """Return the event that records a change."""
    told_ms = None if isinstance(change, PartitionDeletion) else change.changed_ms or None
    return Event(_KIND_OF[type(change)], msgspec.to_builtins(change, str_keys=True), headers, told_ms)


def decode_change(event: Event) -> Change:
    """Return the change that an event records, or raise `InvalidInput` if it records none."""
    kind = _KINDS.get(event.kind)
    if kind is None:
        raise InvalidInput(
            f"event {event.kind!r} is not a change of a catalog; use a topic that only catalogs write to"
        )
    try:
        return msgspec.convert(event.payload, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"it is no {event.kind}: {error}") from error
