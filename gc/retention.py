"""Retention: how much of a buffer is kept, read or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.base.names import at_time, ulid_in
from forebay.buffer.manifest.nodes import NodeNeeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.format.model import NewBatch
    from forebay.buffer.manifest.head import Head
    from forebay.buffer.manifest.nodes import Node, Ref


@dataclass(frozen=True, slots=True)
class Retention:
    """Bounds beyond which batches are dropped even if they were not read; every one that is set counts."""

    max_age: float | None = None
    """Seconds since a batch's newest entry was taken in, by its producer's clock against the store's."""
    max_bytes: int | None = None
    """Bytes of batch objects. Batches that came from version 1, whose size nobody recorded, count nothing."""

    def __post_init__(self) -> None:
        if self.max_age is None and self.max_bytes is None:
            raise InvalidInput("retention has no limit: give max_age in seconds, max_bytes, or both")
        if self.max_age is not None:
            check_seconds(self.max_age, "retention's max_age")
        if self.max_bytes is not None:
            check_whole(self.max_bytes, "retention's max_bytes", least=1)

    def first_kept(self, head: Head, now_ms: int, nodes: Mapping[str, Node]) -> int:
        """Return the lowest sequence within every bound.

        Raises:
            NodeNeeded: that cannot be told without a node that is not among those given.
        """
        kept = head.first_sequence
        if self.max_age is not None:
            kept = max(kept, _first_young(head, now_ms - int(self.max_age * 1000), nodes))
        if self.max_bytes is not None:
            kept = max(kept, _first_fitting(head, self.max_bytes, nodes))
        return kept


def _first_young(head: Head, cutoff_ms: int, nodes: Mapping[str, Node]) -> int:
    """The sequence after the last batch known to be older than a moment, before the first known to be younger.

    A batch that does not tell its age goes with the old ones only if an old one follows it.
    """
    kept = head.first_sequence
    pending = list(reversed(head.refs))
    while pending:
        ref = pending.pop()
        if _is_old(ref.last_time_ms, ref.name, cutoff_ms):
            kept = ref.end
            continue
        if ref.first_time_ms is not None and ref.first_time_ms >= cutoff_ms:
            return kept
        node = _node(ref, nodes)
        pending.extend(reversed(node.refs))
        kept, found_young = _skip_old(node.entries, node.first_sequence, kept, cutoff_ms)
        if found_young:
            return kept
    return _skip_old(head.tail, head.tail_start, kept, cutoff_ms)[0]


def _skip_old(entries: tuple[NewBatch, ...], first: int, kept: int, cutoff_ms: int) -> tuple[int, bool]:
    for sequence, entry in enumerate(entries, first):
        old = _is_old(_last_time(entry), ulid_in(entry.location), cutoff_ms)
        if old is False:
            return kept, True
        if old:
            kept = sequence + 1
    return kept, False


def _last_time(entry: NewBatch) -> int | None:
    if entry.facts is not None:
        return entry.facts.last_time_ms
    return max((item.ingestion_time_ms for item in entry.metadata), default=None)


def _is_old(time_ms: int | None, name: str | None, cutoff_ms: int) -> bool | None:
    """By the time recorded, else by the time in the name; None if neither is known."""
    if time_ms is not None:
        return time_ms < cutoff_ms
    return None if name is None else name < at_time(cutoff_ms)


def _first_fitting(head: Head, max_bytes: int, nodes: Mapping[str, Node]) -> int:
    """The lowest sequence from which on all batches together are no larger than `max_bytes`."""
    kept, left = _count_back(head.tail, head.tail_start, max_bytes)
    pending = list(head.refs)
    while pending and kept == pending[-1].end:
        ref = pending.pop()
        if ref.object_bytes <= left:
            kept, left = ref.first_sequence, left - ref.object_bytes
            continue
        node = _node(ref, nodes)
        pending.extend(node.refs)
        if node.level == 0:
            kept, left = _count_back(node.entries, node.first_sequence, left)
    return kept


def _count_back(entries: tuple[NewBatch, ...], first: int, left: int) -> tuple[int, int]:
    """Where the newest of these entries that fit begin, and how many bytes are left then."""
    kept = first + len(entries)
    for entry in reversed(entries):
        size = entry.facts.object_bytes if entry.facts else 0
        if size > left:
            break
        kept, left = kept - 1, left - size
    return kept, left


def _node(ref: Ref, nodes: Mapping[str, Node]) -> Node:
    if ref.name not in nodes:
        raise NodeNeeded(ref)
    return nodes[ref.name]
