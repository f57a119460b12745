"""Sealed listings: storing nodes, finding listings through them, and keeping the nodes that were read."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import names
from forebay.buffer.base.errors import damaged
from forebay.buffer.base.names import LOWEST, ulid_in
from forebay.buffer.base.reread import read_sound
from forebay.buffer.manifest.decode import read_node
from forebay.buffer.manifest.envelope import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest.either_version import EitherVersion
    from forebay.buffer.manifest.head import Head
    from forebay.buffer.manifest.nodes import Node, Ref
    from forebay.buffer.store.base import ObjectStore

FOLDER: Final = "segments"
_KEPT_ITEMS: Final = 1 << 15
"""Maximum number of listings and references in all kept nodes together: about 16 MB."""


class _KeptNode:
    """A node that was read, and the descriptors of its listings once somebody asked for them."""

    __slots__ = ("described", "node", "schemas")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.described: list[BatchDescriptor] | None = None
        self.schemas: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.node.entries) + len(self.node.refs)

    def describe(self, schemas: Sequence[str]) -> list[BatchDescriptor]:
        described = self.described
        # Descriptors name the newest schema, so a later version needs new ones.
        # guard: describe kept listings again after the schema evolved
        if described is None or self.schemas != schemas:
            described = self.described = self.node.describe(schemas)
            self.schemas = schemas
        return described


class Segments:
    """The nodes of one buffer. They never change, so those read lately are kept."""

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._lock = Lock()
        self._kept: OrderedDict[str, _KeptNode] = OrderedDict()
        self._kept_items = 0

    def store_node(self, node: Node, *, above: str) -> Ref:
        """Store a node under a new name above the collector's floor, and return the reference to it."""
        name = names.mint(self._clock, self._random, above=above)
        self._store.put(node_key(name), pack(node))
        return node.refer(name)

    def load(self, ref: Ref, buffer_id: str) -> Node:
        """Return the node that a reference stands for.

        Raises:
            NotFound: it is gone: the reference is old, or the buffer is damaged.
            Corrupt: it is not what the reference says, also when it is read again.
        """
        return self._load(ref, buffer_id).node

    def _load(self, ref: Ref, buffer_id: str) -> _KeptNode:
        with self._lock:
            kept = self._kept.get(ref.name)
            if kept is not None:
                self._kept.move_to_end(ref.name)
                return kept
        if not names.is_ulid(ref.name):
            raise damaged(f"{self._store.url}: its manifest refers to {ref.name!r}, which is not a segment's name")
        return self._keep(ref.name, _KeptNode(read_sound(lambda: self._read(ref, buffer_id), self._clock)))

    def _read(self, ref: Ref, buffer_id: str) -> Node:
        location = f"{self._store.url}/{node_key(ref.name)}"
        node = read_node(self._store.get(node_key(ref.name)).data, location)
        if node.buffer_id != buffer_id:  # guard: a segment must carry the id of its buffer
            raise damaged(f"{location} belongs to buffer {node.buffer_id}; this one is {buffer_id}")
        if not node.is_behind(ref):  # guard: a segment must match its reference
            raise damaged(f"{location} is not what the manifest says of it")
        return node

    def _keep(self, name: str, read: _KeptNode) -> _KeptNode:
        with self._lock:
            kept = self._kept.setdefault(name, read)
            if kept is read:
                self._kept_items += len(read)
            while self._kept_items > _KEPT_ITEMS and len(self._kept) > 1:
                self._kept_items -= len(self._kept.popitem(last=False)[1])
        return kept

    def descriptors(self, state: EitherVersion, first: int, limit: int) -> list[BatchDescriptor]:
        """Return up to `limit` descriptors from sequence `first` on; nodes are read only on the way to them."""
        found: list[BatchDescriptor] = []
        at = max(first, state.first_sequence)
        while len(found) < limit and at < state.next_sequence:
            wanted = limit - len(found)
            if at >= state.tail_start:
                found += state.tail_descriptors(at, wanted)
                break
            segment = self._segment_at(state, at)
            start = at - segment.node.first_sequence
            found += segment.describe(state.schemas)[start : start + wanted]
            at = segment.node.first_sequence + len(segment.node.entries)
        return found

    def sequence_at(self, head: Head, time_ms: int) -> int:
        """Return the first sequence such that no batch before it has an entry taken in at or after a moment.

        Batches that do not tell their time (they come from version 1) count as older.
        """
        refs, listings, start = head.refs, head.tail, head.tail_start
        while ref := next((r for r in refs if r.last_time_ms is not None and r.last_time_ms >= time_ms), None):
            node = self.load(ref, head.buffer_id)
            refs, listings, start = node.refs, node.entries, node.first_sequence
        late = (i for i, e in enumerate(listings) if e.facts and e.facts.last_time_ms >= time_ms)
        return max(head.first_sequence, start + next(late, len(listings)))

    def end_before(self, head: Head, time_ms: int) -> int:
        """Return the sequence after the last batch that has an entry taken in before a moment.

        Batches that do not tell their time (they come from version 1) count as older.
        """
        refs, listings, end = head.refs, head.tail, head.next_sequence
        while True:
            for listing in reversed(listings):
                if listing.facts is None or listing.facts.first_time_ms < time_ms:
                    return max(end, head.first_sequence)
                end -= 1
            ref = next((r for r in reversed(refs) if _starts_before(r, time_ms)), None)
            if ref is None:
                return head.first_sequence
            node = self.load(ref, head.buffer_id)
            refs, listings, end = node.refs, node.entries, ref.end

    def bytes_from(self, head: Head, first: int) -> int:
        """Return the size of all batches from sequence `first` on that tell it; one node a level is read at most."""
        refs, listings, start, total = head.refs, head.tail, head.tail_start, 0
        while True:
            total += sum(listed.facts.object_bytes for listed in listings[max(0, first - start) :] if listed.facts)
            total += sum(ref.object_bytes for ref in refs if ref.first_sequence >= first)
            cut = next((ref for ref in refs if ref.first_sequence < first < ref.end), None)
            if cut is None:
                return total
            node = self.load(cut, head.buffer_id)
            refs, listings, start = node.refs, node.entries, node.first_sequence

    def reachable(self, head: Head, first: str, last: str) -> set[str]:
        """Return the keys of all listed batches and nodes whose names lie from `first` to `last`.

        Only nodes that may lead to such names are read.
        """
        keys = {listed.location for listed in head.tail if first <= (ulid_in(listed.location) or LOWEST) <= last}
        # guard: follow references by the range of names below them
        pending = [ref for ref in head.refs if ref.meets(first, last)]
        while pending:
            ref = pending.pop()
            if first <= ref.name <= last:
                keys.add(node_key(ref.name))
            node = self.load(ref, head.buffer_id)
            pending += [child for child in node.refs if child.meets(first, last)]
            keys.update(e.location for e in node.entries if first <= (ulid_in(e.location) or LOWEST) <= last)
        return keys

    def _segment_at(self, state: EitherVersion, sequence: int) -> _KeptNode:
        ref = ref_at(state.refs, sequence)
        while True:
            kept = self._load(ref, state.buffer_id)
            if kept.node.level == 0:
                return kept
            ref = ref_at(kept.node.refs, sequence)


def ref_at(refs: Sequence[Ref], sequence: int) -> Ref:
    """The reference that covers a sequence; the caller knows that one does."""
    return refs[bisect_right(refs, sequence, key=lambda ref: ref.first_sequence) - 1]


def _starts_before(ref: Ref, time_ms: int) -> bool:
    # Without a first record it holds batches from version 1.
    return ref.first_record is None or ref.first_time_ms is None or ref.first_time_ms < time_ms


def node_key(name: str) -> str:
    """The key of a node."""
    return f"{FOLDER}/{name}.segment"
