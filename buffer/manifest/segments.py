"""Sealed entries: storing nodes, finding entries through them, and keeping those that were read."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

from forebay.buffer import names
from forebay.buffer.errors import Corrupt
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.head import Node, describe_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay.buffer.clock import Clock, Random
    from forebay.buffer.manifest.head import Head, Ref
    from forebay.buffer.model import BatchDescriptor
    from forebay.buffer.store.base import ObjectStore

FOLDER: Final = "segments"
_KEPT_NODES: Final = 256


class Segments:
    """The nodes of one buffer. They never change, so those read lately are kept."""

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._lock = Lock()
        self._kept: OrderedDict[str, Node] = OrderedDict()

    def store_node(self, node: Node, *, above: str) -> Ref:
        """Store a node under a new name above the collector's floor, and return the reference to it."""
        name = names.mint(self._clock, self._random, above=above)
        self._store.put(_key(name), pack(node))
        return node.refer(name)

    def load(self, ref: Ref, buffer_id: str) -> Node:
        """Return the node that a reference stands for.

        Raises:
            NotFound: it is gone: the reference is old, or the buffer is damaged.
            Corrupt: it is not what the reference says.
        """
        with self._lock:
            node = self._kept.get(ref.name)
            if node is not None:
                self._kept.move_to_end(ref.name)
                return node
        location = f"{self._store.url}/{_key(ref.name)}"
        node = unpack(self._store.get(_key(ref.name)).data, Node, location)
        if node.buffer_id != buffer_id:
            raise Corrupt(f"{location} belongs to buffer {node.buffer_id}; this one is {buffer_id}")
        if node.refer(ref.name) != ref:
            raise Corrupt(f"{location} is not what the manifest says of it")
        with self._lock:
            self._kept[ref.name] = node
            while len(self._kept) > _KEPT_NODES:
                self._kept.popitem(last=False)
        return node

    def descriptors(self, head: Head, first: int, limit: int) -> list[BatchDescriptor]:
        """Return up to `limit` descriptors from sequence `first` on; nodes are read only on the way to them."""
        found: list[BatchDescriptor] = []
        at = max(first, head.first_sequence)
        while len(found) < limit and at < head.next_sequence:
            wanted = limit - len(found)
            if at >= head.tail_start:
                found += head.tail_descriptors(at, wanted)
                break
            segment = self._segment_at(head, at)
            start = at - segment.first_sequence
            found += describe_all(segment)[start : start + wanted]
            at = segment.first_sequence + len(segment.entries)
        return found

    def sequence_at(self, head: Head, time_ms: int) -> int:
        """Return the first sequence such that no batch before it has an entry taken in at or after a moment.

        Batches that do not tell their time (they come from version 1) count as older.
        """
        refs: Sequence[Ref] = head.refs
        while refs:
            ref = next((r for r in refs if r.last_time_ms is not None and r.last_time_ms >= time_ms), None)
            if ref is None:
                break
            node = self.load(ref, head.buffer_id)
            if node.level == 0:
                late = (i for i, e in enumerate(node.entries) if e.facts and e.facts.last_time_ms >= time_ms)
                return max(head.first_sequence, node.first_sequence + next(late))
            refs = node.refs
        late = (i for i, e in enumerate(head.tail) if e.facts and e.facts.last_time_ms >= time_ms)
        return max(head.first_sequence, head.tail_start + next(late, len(head.tail)))

    def segments(self, head: Head) -> Iterator[Node]:
        """Yield every segment that the head refers to, oldest first."""
        at = head.refs[0].first_sequence if head.refs else head.tail_start
        while at < head.tail_start:
            segment = self._segment_at(head, at)
            yield segment
            at = segment.first_sequence + len(segment.entries)

    def _segment_at(self, head: Head, sequence: int) -> Node:
        ref = ref_at(head.refs, sequence)
        while True:
            node = self.load(ref, head.buffer_id)
            if node.level == 0:
                return node
            ref = ref_at(node.refs, sequence)


def ref_at(refs: Sequence[Ref], sequence: int) -> Ref:
    """The reference that covers a sequence; the caller knows that one does."""
    return refs[bisect_right(refs, sequence, key=lambda ref: ref.first_sequence) - 1]


def _key(name: str) -> str:
    return f"{FOLDER}/{name}.segment"
