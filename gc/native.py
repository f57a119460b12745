"""Collecting a buffer of version 2: one compare-and-swap on the head, then deletions below its floors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import Corrupt, NotFound, StoreError, Timeout
from forebay.buffer.base.names import LOWEST
from forebay.buffer.manifest import Head
from forebay.buffer.manifest.head import SEALED_WRITERS
from forebay.buffer.manifest.nodes import NodeNeeded
from forebay.buffer.manifest.segments import FOLDER as SEGMENTS
from forebay.buffer.manifest.writers import ENDING as BUCKET_ENDING
from forebay.buffer.manifest.writers import FOLDER as WRITERS
from forebay.buffer.manifest.writers import bucket_key
from forebay.gc.trim import CursorNeeded, Decision, Frontiers, decide, read_frontier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.manifest import Queue
    from forebay.buffer.manifest.head_fields import Hold
    from forebay.buffer.manifest.nodes import Node, Ref
    from forebay.gc.retention import Retention
    from forebay.gc.sweep import Sweep

_log = logging.getLogger("forebay.gc")

_MOST_STARTS = 100


class CollectionV2:
    """One collection of one buffer; whatever the manifest becomes meanwhile, it must stay that buffer's."""

    def __init__(self, queue: Queue, buffer_id: str, *, clock: Clock | None = None) -> None:
        self._queue = queue
        self._clock = clock
        self._buffer_id = buffer_id
        self._frontiers: Frontiers = {}
        self._nodes: dict[str, Node] = {}
        self._decision: Decision | None = None

    def touch(self) -> None:
        """Have the manifest written once, by us or by anyone, so that the store's time of it is fresh."""
        seen = self._read_head().revision

        def change(head: Head) -> Head | None:
            self._check(head)
            return None if head.revision > seen else head.touch()

        self._queue.change_head(change, lambda head: head.revision > seen)

    def trim(
        self, *, now_ms: int, grace: float, retention: Retention | None, seen: Mapping[str, Hold], dry_run: bool
    ) -> tuple[Decision, Head]:
        """Decide and write it, all on one head; return the decision and the head that has it in it.

        `seen` are holds that were read before `now_ms` was requested from the store.

        Starts again where it finds that it has to read something else first.
        """

        def change(head: Head) -> Head | None:
            self._check(head)
            # guard: decide on the very head that is replaced
            decision = decide(
                head, self._frontiers, now_ms=now_ms, grace=grace, retention=retention, nodes=self._nodes, seen=seen
            )
            self._decision = decision
            return decision.after

        def is_mine(head: Head) -> bool:
            return self._decision is not None and self._decision.shows_in(head)

        for _ in range(_MOST_STARTS):
            head = self._read_head()
            self._read_frontiers(head)
            try:
                written = change(head) or head if dry_run else self._queue.change_head(change, is_mine)
            except CursorNeeded:
                continue
            except NodeNeeded as needed:
                self._load(needed.ref, head)
                continue
            if self._decision is not None:
                return self._decision, written
        raise Timeout(f"{self._queue.url}: groups kept appearing while it was read; nothing was trimmed. Try again")

    def delete(self, head: Head, sweep: Sweep, data_prefix: str) -> None:
        """Delete objects below the floor, objects that were never listed, and cursors of deleted groups."""
        for folder in (data_prefix, SEGMENTS):
            sweep.delete_below(folder, head.gc_floor)
        self._delete_unlisted(head, sweep, data_prefix)
        self._delete_old_buckets(head, sweep)
        sweep.delete_old_cursors(head, self._read_head)

    def _delete_unlisted(self, head: Head, sweep: Sweep, data_prefix: str) -> None:
        """Delete objects below the reference floor that cannot be reached, and so never will be (rfcs/0006)."""
        first, end = max(head.gc_floor, head.swept), head.reference_floor
        if first >= end:
            return
        looked_at = False

        def reachable(first: str, last: str) -> set[str]:
            nonlocal head, looked_at
            looked_at = True
            for _ in range(_MOST_STARTS):
                try:
                    return self._queue.segments.reachable(head, first, last)
                except NotFound as error:
                    # Another collector has trimmed since that head was read. Any later head will do as well.
                    before, head = head, self._read_head()
                    if head.revision == before.revision:
                        raise Corrupt(
                            f"{self._queue.url}: it refers to a segment that is not there ({error})"
                        ) from error
            raise Timeout(f"{self._queue.url}: it kept changing during the sweep; the next collection continues it")

        for folder in (data_prefix, SEGMENTS):
            sweep.delete_unreachable(folder, first, end, reachable)
        if looked_at and sweep.is_complete:  # guard: record names as swept only if every delete succeeded
            self._note_swept(end)

    def _delete_old_buckets(self, head: Head, sweep: Sweep) -> None:
        # Without either, nobody has made a bucket. Names that were all forgotten leave buckets behind.
        if head.lasting_writers or SEALED_WRITERS in head.required_features:
            # guard: keep buckets in use whatever the floor
            in_use = {bucket_key(bucket.name) for bucket in head.writer_buckets.values()}
            # An older release let batches be stored in this folder: they are not ours to judge.
            sweep.delete_unreachable(
                WRITERS, LOWEST, head.reference_floor, lambda _first, _last: in_use, ending=BUCKET_ENDING
            )

    def _note_swept(self, end: str) -> None:
        def change(head: Head) -> Head | None:
            self._check(head)
            return head.with_swept(end)

        try:
            self._queue.change_head(change, lambda head: head.swept >= end)
        except StoreError as error:
            _log.warning("%s: the next collection looks at the same names again: %s", self._queue.url, error)

    def _read_frontiers(self, head: Head) -> None:
        for name, group in head.groups.items():
            if (name, group.generation) not in self._frontiers:
                frontier = read_frontier(self._queue.store, self._buffer_id, name, group, clock=self._clock)
                # guard: key a frontier by the generation of its group
                self._frontiers[name, group.generation] = frontier

    def _load(self, ref: Ref, head: Head) -> None:
        try:
            self._nodes[ref.name] = self._queue.segments.load(ref, self._buffer_id)
        except NotFound as error:
            # Swept by another collector since that head was read, or really missing: a fresh look tells.
            if self._read_head().revision == head.revision:  # guard: retry with a fresh head if a node was swept
                raise Corrupt(f"{self._queue.url}: it refers to a segment that is not there ({error})") from error

    def _read_head(self) -> Head:
        head = self._queue.read()
        if not isinstance(head, Head):
            raise Corrupt(f"{self._queue.url} was of version 2 a moment ago and is of version 1 now")
        self._check(head)
        return head

    def _check(self, head: Head) -> None:
        if head.buffer_id != self._buffer_id:  # guard: check the id of the buffer before trimming its head
            # What was read of cursors and nodes belongs to the other one, and so do the objects below the floor.
            raise Corrupt(f"{self._queue.url} is not the manifest of a moment ago: somebody deleted or replaced it")
