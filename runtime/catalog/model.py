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
    """Where a segment is in its life."""

    COPY_STARTED = "copy_started"
    COPY_FINISHED = "copy_finished"
    DELETE_STARTED = "delete_started"
    DELETE_FINISHED = "delete_finished"


class DeletionState(StrEnum):
    """How far the deletion of a whole partition has come."""

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
"""What may follow what. The same state again changes nothing and is no step."""

DELETION_STEPS: Final[Mapping[DeletionState | None, DeletionState]] = {
    None: DeletionState.MARKED,
    DeletionState.MARKED: DeletionState.STARTED,
    DeletionState.STARTED: DeletionState.FINISHED,
}


class Segment(Struct, frozen=True):
    """A stored run of a partition's offsets."""

    partition: str
    """Whose offsets they are: the caller's own name for it, such as a buffer's URL."""
    segment_id: str
    """Its own within the partition, such as the object's location."""
    start_offset: Whole
    end_offset: Whole
    """The last one in it."""
    epochs: dict[Signed, Whole]
    """The first offset of each epoch in it. An epoch ends where the next one begins."""
    size_bytes: Whole = 0
    state: SegmentState = SegmentState.COPY_STARTED
    changed_ms: Signed = 0
    """When it entered that state, in milliseconds since 1970: the writer's time, or the log's if that is 0."""
    custom: bytes | None = None
    """Whatever the storage needs to find it again."""
    max_time_ms: Signed | None = None
    """The latest time of a record in it, in milliseconds since 1970, if the writer knows."""
    writer: str | None = None
    """Who copied it, if the writer says."""

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
    """A step in a segment's life."""

    partition: str
    segment_id: str
    state: SegmentState
    custom: bytes | None = None
    """Replaces what is known, unless it is None."""
    changed_ms: int = 0
    """When it happened, in milliseconds since 1970; 0 for the time at which the log takes it."""


class PartitionDeletion(Struct, frozen=True):
    """A step in the deletion of a whole partition."""

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
    """Return the event that tells everyone of a change."""
    told_ms = None if isinstance(change, PartitionDeletion) else change.changed_ms or None
    return Event(_KIND_OF[type(change)], msgspec.to_builtins(change, str_keys=True), headers, told_ms)


def decode_change(event: Event) -> Change:
    """Return the change that an event tells of, or raise `InvalidInput` if it tells of none."""
    kind = _KINDS.get(event.kind)
    if kind is None:
        raise InvalidInput(
            f"event {event.kind!r} is not a change of a catalog; use a topic that only catalogs write to"
        )
    try:
        return msgspec.convert(event.payload, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"it is no {event.kind}: {error}") from error
