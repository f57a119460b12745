"""What a collection writes to the head of a version 2 manifest: decided on exactly the head that it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from forebay.buffer.base.errors import damaged
from forebay.buffer.base.names import at_time
from forebay.buffer.groups import open_cursor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.manifest.head import Head
    from forebay.buffer.manifest.head_fields import Group, Hold
    from forebay.buffer.manifest.nodes import Node
    from forebay.buffer.store import ObjectStore
    from forebay.gc.settings import Settings

Frontiers: TypeAlias = "dict[tuple[str, str], int]"
"""The first sequence not acknowledged, by group and generation. It only grows, so one read earlier is merely lower."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a collection does to a head."""

    before: Head
    after: Head | None
    """As it is to be written; None if there is nothing to write."""
    trimmed: int
    dropped: int
    """Of the trimmed, those that not every reader had read."""
    expired: tuple[str, ...]
    """The ids of holds that it removes."""
    stamps: Mapping[str, int]
    """The store's time for each hold that it stamps."""

    @property
    def head(self) -> Head:
        """The head that results."""
        return self.after or self.before

    def shows_in(self, head: Head) -> bool:
        """Whether a head contains all of this, regardless of which process wrote it."""
        # guard: recognize a collection whose answer was lost
        # guard: recognize a stamp whose answer was lost
        return (
            head.buffer_id == self.before.buffer_id
            and head.first_sequence >= self.head.first_sequence
            and head.gc_floor >= self.head.gc_floor
            and head.reference_floor >= self.head.reference_floor
            and all(head.holds.get(hold_id) != self.before.holds[hold_id] for hold_id in (*self.expired, *self.stamps))
        )


class CursorNeeded(Exception):
    """A group has appeared whose cursor was not read."""


def decide(
    head: Head,
    frontiers: Frontiers,
    settings: Settings,
    *,
    now_ms: int,
    nodes: Mapping[str, Node],
    seen: Mapping[str, Hold],
) -> Decision:
    """Return what to do to this very head.

    `seen` are holds that were read before `now_ms` was requested from the store: only they can be stamped with it.

    Raises:
        CursorNeeded: the frontier of one of its groups is not among those given.
        NodeNeeded: a node is not among those given.
    """
    # guard: remove a hold only after it expires
    expired = tuple(sorted(hold_id for hold_id, hold in head.holds.items() if hold.is_expired(now_ms)))
    # A hold taken or renewed since then is newer than `now_ms`: this stamp would shorten its time to live.
    # guard: stamp only a hold seen before the time was read
    stamps = {
        hold_id: now_ms
        for hold_id, hold in head.holds.items()
        if hold.needs_stamp(now_ms) and seen.get(hold_id) == hold
    }
    held = [
        hold.first_sequence
        for hold_id, hold in head.holds.items()
        if hold.first_sequence is not None and hold_id not in expired
    ]
    # Only readers let anything go; with none of them, a hold that begins late says nothing of what is before it.
    # guard: a hold alone lets nothing be trimmed
    unread_from = min(_frontiers(head, frontiers), default=head.first_sequence)
    point = unread_from
    if settings.retention is not None:
        point = max(point, settings.retention.first_kept(head, now_ms, nodes))
    # A frontier may lie beyond what exists (`last_acked`), or below what retention has dropped before.
    point = max(head.first_sequence, min([point, head.next_sequence, *held]))  # guard: never trim past a hold
    dropped = max(0, point - max(unread_from, head.first_sequence))
    after = head.collect(
        point=point,
        dropped=dropped,
        expired=expired,
        floor=at_time(now_ms - int(settings.grace * 1000)),
        nodes=nodes,
        stamps=stamps,
    )
    return Decision(head, after, point - head.first_sequence, dropped, expired, stamps)


def _frontiers(head: Head, frontiers: Frontiers) -> list[int]:
    found = []
    for name, group in head.groups.items():
        if (name, group.generation) not in frontiers:
            raise CursorNeeded(name)  # guard: start over if a cursor of a group was not read
        found.append(frontiers[name, group.generation])
    if head.owner is not None:
        found.append(head.first_sequence if head.owner.acked is None else head.owner.acked + 1)
    return found


def read_frontier(store: ObjectStore, buffer_id: str, name: str, group: Group, *, clock: Clock | None = None) -> int:
    """Return the first sequence that a group has not acknowledged.

    Raises:
        Corrupt: its cursor is damaged, or another buffer's.
    """
    register = open_cursor(store, name, group.generation, clock=clock)
    cursor = register.read().value
    if cursor is None:
        return group.start
    if cursor.buffer_id != buffer_id:  # guard: a damaged cursor stops the trim
        raise damaged(f"{register.url} belongs to buffer {cursor.buffer_id}; this one is {buffer_id}")
    return group.start if cursor.acked is None else cursor.acked + 1
