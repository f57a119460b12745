"""Collecting a native buffer: one compare-and-swap on its head, then deletions below its floors (rfcs/0006)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import Corrupt, NotFound, StoreError, Timeout, damaged
from forebay.buffer.base.names import LOWEST
from forebay.buffer.manifest import Head
from forebay.buffer.manifest.head import SEALED_WRITERS
from forebay.buffer.manifest.nodes import NodeNeeded
from forebay.buffer.manifest.segments import FOLDER as SEGMENTS
from forebay.buffer.manifest.writers import ENDING as BUCKET_ENDING
from forebay.buffer.manifest.writers import FOLDER as WRITERS
from forebay.buffer.manifest.writers import bucket_key
from forebay.gc.report import CollectionReport
from forebay.gc.store_time import read_store_time
from forebay.gc.trim import CursorNeeded, Decision, Frontiers, decide, read_frontier

if TYPE_CHECKING:
    from forebay.buffer.manifest import Queue
    from forebay.buffer.manifest.nodes import Node, Ref
    from forebay.gc.settings import Settings
    from forebay.gc.sweep import Sweep

_log = logging.getLogger("forebay.gc")

_MOST_STARTS = 100


class NativeCollection:
    """One collection of one buffer. Whatever happens to the manifest meanwhile, it must stay that buffer's."""

    def __init__(self, queue: Queue, head: Head, sweep: Sweep, settings: Settings) -> None:
        self._queue = queue
        self._buffer_id = head.buffer_id
        self._holds = head.holds
        self._sweep = sweep
        self._settings = settings
        self._frontiers: Frontiers = {}
        self._nodes: dict[str, Node] = {}
        self._decision: Decision | None = None

    def run(self, store_time_ms: int) -> CollectionReport:
        """Trim the manifest and delete, and return what was done. `store_time_ms` was read before the head."""
        decision, head = self._trim(self._current_time(store_time_ms))
        if decision.dropped and not self._sweep.dry_run:
            metrics.collection_dropped.add(decision.dropped, {"buffer": self._sweep.url})
            _log.warning(
                "%s: retention dropped %d batches that not every reader had read, the last of them %d",
                self._sweep.url,
                decision.dropped,
                decision.head.first_sequence - 1,
            )
        self.delete(head)
        return CollectionReport.of_sweep(
            self._sweep,
            kept=head.count,
            trimmed=decision.trimmed,
            dropped_unread=decision.dropped,
            expired_holds=decision.expired,
            floor=head.gc_floor,
        )

    def _current_time(self, store_time_ms: int) -> int:
        holds, dry_run = self._holds.values(), self._sweep.dry_run
        # In a buffer that nobody writes, the store's time of it stands still: no hold would expire, nothing would come
        # of age. Our own clock only says when to ask again; if it is wrong, that is one write for nothing.
        own_ms = self._settings.clock.now_ms()
        overdue = any(hold.is_expired(own_ms) and not hold.is_expired(store_time_ms) for hold in holds)
        if own_ms - store_time_ms > self._settings.grace * 1000 or overdue:
            if dry_run:
                return own_ms
            self._touch()  # guard: touch the store to learn its current time
            return read_store_time(self._queue) or store_time_ms
        # guard: read the store time again before stamping a hold
        if any(hold.needs_stamp(store_time_ms) for hold in holds) and not dry_run:
            # The time that was given is older than the head, and may be older than a hold in it.
            return read_store_time(self._queue) or store_time_ms
        return store_time_ms

    def _touch(self) -> None:
        """Have the manifest written once, by us or by anyone, so that the store's time of it is fresh."""
        seen = self._read_head().revision

        def change(head: Head) -> Head | None:
            self._check(head)
            return None if head.revision > seen else head.touch()

        self._queue.change_head(change, lambda head: head.revision > seen)

    def _trim(self, now_ms: int) -> tuple[Decision, Head]:
        """Decide and write it, all on one head; return the decision and the head that has it in it.

        Starts again where it finds that it has to read something else first.
        """

        def change(head: Head) -> Head | None:
            self._check(head)
            # guard: decide on the very head that is replaced
            decision = decide(head, self._frontiers, self._settings, now_ms=now_ms, nodes=self._nodes, seen=self._holds)
            self._decision = decision
            return decision.after

        def is_mine(head: Head) -> bool:
            return self._decision is not None and self._decision.shows_in(head)

        for _ in range(_MOST_STARTS):
            head = self._read_head()
            self._read_frontiers(head)
            try:
                written = change(head) or head if self._sweep.dry_run else self._queue.change_head(change, is_mine)
            except CursorNeeded:
                continue
            except NodeNeeded as needed:
                self._load(needed.ref, head)
                continue
            if self._decision is not None:
                return self._decision, written
        raise Timeout(f"{self._queue.url}: groups kept appearing while it was read; nothing was trimmed. Try again")

    def delete(self, head: Head) -> None:
        """Delete objects below the floor, objects that were never listed, and cursors of deleted groups."""
        for folder in (self._settings.data_prefix, SEGMENTS):
            self._sweep.delete_below(folder, head.gc_floor)
        self._delete_unlisted(head)
        self._delete_old_buckets(head)
        self._sweep.delete_old_cursors(head, self._read_head)

    def _delete_unlisted(self, head: Head) -> None:
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
                        raise damaged(
                            f"{self._queue.url}: it refers to a segment that is not there ({error})"
                        ) from error
            raise Timeout(
                f"{self._queue.url}: the manifest kept changing during the sweep; wait for the next "
                "collection, which continues it"
            )

        for folder in (self._settings.data_prefix, SEGMENTS):
            self._sweep.delete_unreachable(folder, first, end, reachable)
        if looked_at and self._sweep.is_complete:  # guard: record names as swept only if every delete succeeded
            self._note_swept(end)

    def _delete_old_buckets(self, head: Head) -> None:
        # Without either, nobody has made a bucket. Names that were all forgotten leave buckets behind.
        if head.lasting_writers or SEALED_WRITERS in head.required_features:
            # guard: keep buckets in use whatever the floor
            in_use = {bucket_key(bucket.name) for bucket in head.writer_buckets.values()}
            # An older release let batches be stored in this folder: they are not ours to judge.
            self._sweep.delete_unreachable(
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
                frontier = read_frontier(self._queue.store, self._buffer_id, name, group, clock=self._settings.clock)
                # guard: key a frontier by the generation of its group
                self._frontiers[name, group.generation] = frontier

    def _load(self, ref: Ref, head: Head) -> None:
        try:
            self._nodes[ref.name] = self._queue.segments.load(ref, self._buffer_id)
        except NotFound as error:
            # Swept by another collector since that head was read, or really missing: a fresh look tells.
            if self._read_head().revision == head.revision:  # guard: retry with a fresh head if a node was swept
                raise damaged(f"{self._queue.url}: it refers to a segment that is not there ({error})") from error

    def _read_head(self) -> Head:
        head = self._queue.read()
        if not isinstance(head, Head):
            raise Corrupt(
                f"{self._queue.url} was of version 2 a moment ago and is of version 1 now"
                "; restore the manifest of version 2"
            )
        self._check(head)
        return head

    def _check(self, head: Head) -> None:
        if head.buffer_id != self._buffer_id:  # guard: check the id of the buffer before trimming its head
            # What was read of cursors and nodes belongs to the other one, and so do the objects below the floor.
            raise Corrupt(
                f"{self._queue.url} is not the manifest of a moment ago: it was replaced, or set back to "
                "an older version. Restore the newest one"
            )
