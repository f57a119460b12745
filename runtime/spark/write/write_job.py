"""What the processes of one writing job have in common: where it writes, and the hold over what it stores (rfcs/0008).

The first task that stores something makes the hold. Tasks that find that the collector has begun to count its lease
renew it, and the write that lists the batches ends it. None of Spark's Python processes lives as long as the job does
and could renew it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import names
from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.base.errors import Fenced
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.topic import partition_name
from forebay.buffer.store.folder import FolderStore

if TYPE_CHECKING:
    from forebay.buffer.manifest import Head
    from forebay.buffer.store import ObjectStore

PURPOSE: Final = "a Spark job that writes"
_ENDED: Final = "a Spark job that has failed"
_ENDED_MS: Final = 3_600_000
"""So long an attempt that does not know yet that its job has failed finds that out."""


@dataclass(frozen=True)
class WriteJob:
    """A job that writes to a buffer or a topic. Pickles; a store's handle packs its credentials."""

    store: ObjectStore
    partitions: int
    """Of the topic; 0 for a buffer, whose only place has the number 0."""
    hold_id: str
    lease: float
    """Seconds, by the store's clock, that the hold lasts if no task renews it."""
    flush_size_bytes: int
    """What a task gathers, before compression, before it stores it."""
    manifest_path: str = "manifest"
    """The manifest's key in a buffer."""
    clock: Clock = field(default_factory=SystemClock)

    def open_buffer(self, number: int) -> ObjectStore:
        """Return the store of a partition, or of the buffer itself."""
        return FolderStore(self.store, partition_name(number)) if self.partitions else self.store

    def open_queue(self, number: int, writer_id: str | None = None) -> Queue:
        """Return a view of a partition's manifest, or of the buffer's."""
        return Queue(self.open_buffer(number), self.manifest_path, role="spark", writer_id=writer_id, clock=self.clock)

    def let_go(self, number: int) -> None:
        """End the hold in one partition, if it is there."""

        def change(head: Head) -> Head | None:
            return head.without_hold(self.hold_id) if self.hold_id in head.holds else None

        self.open_queue(number).change_head(change, lambda head: self.hold_id not in head.holds)

    def end(self, number: int) -> None:
        """End the hold in one partition, for a job that is not run again under its id.

        A mark that holds nothing stands in its place for a while: an attempt that has not heard of the failure would
        make the hold again, and nobody would end that.
        """

        def change(head: Head) -> Head | None:
            if has_ended(head):
                return None
            found = head.holds.get(self.hold_id)
            renewals = 0 if found is None else found.renewals + 1  # the counter of an id only grows
            return head.with_hold(self.hold_id, Hold(None, None, 0, _ENDED, _ENDED_MS, renewals))

        def has_ended(head: Head) -> bool:
            found = head.holds.get(self.hold_id)
            return found is not None and found.purpose == _ENDED

        queue = self.open_queue(number)
        queue.read()
        if queue.last_seen() is not None:  # a buffer is not made for that
            queue.change_head(change, has_ended)


class Pin:
    """The job's hold in one partition, as one task keeps it in force."""

    def __init__(self, job: WriteJob, number: int) -> None:
        self._queue = job.open_queue(number)
        self._hold_id = job.hold_id
        self._lease_ms = math.ceil(job.lease * 1000)
        self._clock = job.clock
        self._floor = names.LOWEST
        self._look_at = job.clock.monotonic()
        self._renewals: int | None = None
        """The counter that this task saw last; None before its first look."""

    def floor(self) -> str:
        """Return the hold's floor: this task's objects are named above it, and nothing above it is swept."""
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + self._lease_ms / 4000
            head = self._queue.change_head(self._keep, lambda head: self._keep(head) is None)
            found = head.holds[self._hold_id]
            self._floor, self._renewals = found.floor or names.LOWEST, found.renewals
        return self._floor

    def _keep(self, head: Head) -> Head | None:
        """The head with the hold renewed; None if that is not due."""
        found = head.holds.get(self._hold_id)
        if found is None:
            floor = max(head.lowest_new_name, names.at_time(self._clock.now_ms()))
            return head.with_hold(self._hold_id, Hold(None, floor, 0, PURPOSE, self._lease_ms))
        if found.purpose == _ENDED:  # guard: refuse to continue after the job has failed
            raise Fenced(f"{self._queue.url}: the job that this task belongs to has failed meanwhile")
        # A stamp: the collector has begun to count. An unchanged counter: no other task has renewed it since the last
        # look. A hold of an older release expires by a wall clock, so it is turned into one that does not.
        # guard: renew the job hold when it is due
        is_due = found.stamp_ms is not None or found.renewals == self._renewals or found.ttl_ms == 0
        return head.with_hold(self._hold_id, found.renew(self._lease_ms)) if is_due else None
