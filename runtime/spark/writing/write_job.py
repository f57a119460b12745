"""What the processes of one writing job have in common: where it writes, and the hold over what it stores (rfcs/0008).

The first task that stores something takes the hold. Tasks that store more renew it when it is due.
The write that lists the batches ends it. No thread renews it, because none of Spark's Python processes lives as long as
the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.holds import HeldUploads
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.manifest.topic import partition_name
from forebay.buffer.store.folder import FolderStore
from forebay.runtime.spark.writing.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.format.model import NewBatch
    from forebay.buffer.manifest import Head
    from forebay.buffer.store import ObjectStore

PURPOSE: Final = "a Spark job that writes"
_ENDED: Final = "a Spark job that has failed"
_ENDED_MS: Final = 3_600_000
"""How long the mark stays, in milliseconds: an attempt that does not know yet that its job has failed finds it."""


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
    frame: Frame = field(default_factory=Frame)
    """What the columns of the rows are."""
    clock: Clock = field(default_factory=SystemClock)

    def open_buffer(self, number: int) -> ObjectStore:
        """Return the store of a partition, or of the buffer itself."""
        return FolderStore(self.store, partition_name(number)) if self.partitions else self.store

    def open_queue(self, number: int, writer_id: str | None = None) -> Queue:
        """Return a view of a partition's manifest, or of the buffer's."""
        return Queue(self.open_buffer(number), self.manifest_path, role="spark", writer_id=writer_id, clock=self.clock)

    def hold_uploads(self, number: int) -> HeldUploads:
        """Return the job's hold in one partition. It is made when its floor is first asked for."""
        return HeldUploads(self.open_queue(number), self.hold_id, ttl=self.lease, purpose=PURPOSE, clock=self.clock)

    def save_schemas(self, queue: Queue, batches: Sequence[NewBatch]) -> tuple[str, ...]:
        """Return the ids of all versions up to the newest that one of the batches is in; none for bytes.

        Before that, store the schemas that a partition of a topic lacks: the append names them.
        """
        versions = [batch.schema for batch in batches if batch.schema is not None]
        if self.frame.rows is None or not versions:
            return ()
        ids = self.frame.rows.ids[: max(versions) + 1]
        if self.partitions:
            state = queue.last_seen() or queue.read()
            lacking = [schema_id for schema_id in ids if schema_id not in state.schemas]
            Schemas(self.store, clock=self.clock).copy(lacking, queue.store)
        return ids

    def let_go(self, number: int) -> None:
        """End the hold in one partition, if it is there."""
        self.hold_uploads(number).let_go()

    def end(self, number: int) -> None:
        """End the hold in one partition, for a job that is not run again under its id.

        A mark without a floor takes its place for an hour. Otherwise an attempt that does not know of the failure yet
        would make the hold again, and nobody would end it.
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
