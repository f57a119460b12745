"""The catalog: which segments are stored where, as a view built from event-log partitions (rfcs/0009)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Closed, InvalidInput, NotReady, Timeout
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic.keys import partition_for
from forebay.runtime.catalog.follower import WRITE_ID, Follower, Pending
from forebay.runtime.catalog.model import PartitionDeletion, encode_change
from forebay.runtime.catalog.view import check_first_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import EventLog
    from forebay.runtime.catalog.model import Change, DeletionState, Segment, SegmentUpdate

CATALOG_TOPIC: Final = "forebay.segments"


class Catalog(Closing):
    """The segments of many partitions, as recorded in the shared log. Safe to use from many threads.

    It follows the log partitions that `reconcile_assignment` gives it, none at first. A partition's name decides, by a
    stable hash, in which of them its segments are. What is read has three outcomes: nothing, if that log partition is
    not assigned here; `NotReady`, while the view is still behind what was in the log when it was assigned; the answer.

    A log that cannot be read is tried again, 30 times in a row. After that, or after an error that is not forebay's,
    reads and writes raise `NotReady` with the reason, until `reconcile_assignment` is called again.

    After `close` writes raise `Closed`, and reads go on with what was known. The log is the caller's to close.

    Args:
        log: the event log.
        topic: the topic. Never compact it past the snapshots of those who read it.
        partitions: how many partitions the topic has; it is made if it is not there.
        snapshots: a folder's URL, or a store, where this process keeps its view, to start from there the next time;
            None replays everything.
        snapshot_interval: seconds between snapshots while anything changes. One is written at close as well.
        write_timeout: seconds that a write waits for the view to show it.
        clock: where time comes from.
        random: where ids come from.

    Raises:
        InvalidInput: the topic has another number of partitions.
    """

    def __init__(
        self,
        log: EventLog,
        topic: str = CATALOG_TOPIC,
        *,
        partitions: int = 8,
        snapshots: StoreUrl | None = None,
        snapshot_interval: float = 60.0,
        write_timeout: float = 60.0,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._write_timeout = check_seconds(write_timeout, "write_timeout")
        self._clock = clock or SystemClock()
        self._random = random or system_random()
        self._log = log
        self._topic = topic
        self._count = partitions
        log.create_topic(topic, partitions)
        self._follower = Follower(
            log,
            topic,
            partitions,
            snapshots=None if snapshots is None else open_store(snapshots),
            snapshot_interval=check_seconds(snapshot_interval, "snapshot_interval"),
            clock=self._clock,
            random=self._random,
        )

    # Assignment

    def log_partition(self, partition: str) -> int:
        """Return the log partition that a partition's segments are told in: the same in every process and release."""
        return partition_for(partition.encode(), self._count)

    def assigned(self) -> list[int]:
        """Return the log partitions that are assigned here, in order."""
        with self._follower.changed:
            return sorted(self._follower.marks)

    def reconcile_assignment(self, wanted: Iterable[int]) -> None:
        """Follow these log partitions and no others; call it again whenever that may have changed, or regularly.

        A log that cannot be reached is no error: what could not be found out stays `NotReady` until the next call.
        """
        self._follower.reconcile({check_whole(number, "a log partition", most=self._count - 1) for number in wanted})

    # Writing

    def add(self, segment: Segment) -> None:
        """Record that a segment's copy has started; return when this catalog shows it.

        Raises:
            InvalidInput: it is in another state (then nothing was recorded), or known already and different.
            NotReady: its log partition is not assigned here, and nothing was recorded.
            Timeout: it was recorded, but the view did not show it in time.
            Closed: this catalog was closed.
            Unknown: it may have been recorded, or may yet be; repeating it does no harm.
        """
        check_first_state(segment)
        self._write(segment)

    def update(self, update: SegmentUpdate) -> None:
        """Record a step in a segment's life; return when this catalog shows it. Raises as `add` does.

        A step that cannot follow is `InvalidInput`; the state that it is in already changes nothing.
        """
        self._write(update)

    def delete_partition(self, partition: str, state: DeletionState) -> None:
        """Record a step in the deletion of a whole partition; return when this catalog shows it. Raises as `add`."""
        self._write(PartitionDeletion(partition, state))

    def _write(self, change: Change) -> None:
        follower = self._follower
        number = self.log_partition(change.partition)
        write_id = f"{self._random.getrandbits(128):032x}"
        pending = Pending()
        with follower.changed:
            follower.check_open()
            if number not in follower.marks:
                raise NotReady(
                    f"partition {change.partition} is in {follower.name(number)}, which is not assigned to "
                    "this catalog; write it where that is assigned"
                )
            self._check_followed(number)
            follower.pending[write_id] = pending
        try:
            offset = self._log.append(self._topic, encode_change(change, {WRITE_ID: write_id}), partition=number)
            self._wait_for(pending, number, offset, change)
        finally:
            with follower.changed:
                del follower.pending[write_id]
        if pending.refusal is not None:
            raise InvalidInput(f"{follower.name(number)}, offset {offset}: {pending.refusal}") from pending.refusal

    def _wait_for(self, pending: Pending, number: int, offset: int, change: Change) -> None:
        follower = self._follower
        deadline = self._clock.monotonic() + self._write_timeout
        recorded = f"{follower.name(number)}: the change was recorded at offset {offset}"
        with follower.changed:
            while not pending.is_applied:
                if follower.is_stopping:
                    raise Closed(
                        f"{recorded}, but this catalog was closed before it showed it; open it again to read it"
                    )
                if number not in follower.marks:
                    raise NotReady(
                        f"{recorded}, but the partition is not assigned here any more; read it where that is assigned"
                    )
                if follower.failure is not None:
                    raise NotReady(
                        f"{recorded}, but {_stopped_following(follower.failure)}; open the catalog again"
                    ) from follower.failure
                if not self._clock.wait_until(follower.changed, deadline) and not pending.is_applied:
                    raise Timeout(
                        f"{recorded}, but was not shown in {self._write_timeout:g} s; read before you write it again",
                        write=change,
                    )

    # Reading

    def find(self, partition: str, epoch: int, offset: int) -> Segment | None:
        """Return the segment, copied and not being deleted, that holds an offset of an epoch.

        Raises:
            NotReady: it is not known yet; try again soon.
        """
        with self._follower.changed:
            return self._follower.view.find(partition, epoch, offset) if self._is_ready(partition) else None

    def highest_offset(self, partition: str, epoch: int) -> int | None:
        """Return the last offset of an epoch that was ever copied. Raises `NotReady` as `find` does."""
        with self._follower.changed:
            return self._follower.view.highest_offset(partition, epoch) if self._is_ready(partition) else None

    def segments(self, partition: str, epoch: int | None = None) -> list[Segment]:
        """Return all segments, or those of an epoch, by start offset. Raises `NotReady` as `find` does."""
        with self._follower.changed:
            return self._follower.view.segments(partition, epoch) if self._is_ready(partition) else []

    def deletion(self, partition: str) -> DeletionState | None:
        """Return how far a partition's deletion is; None if there is none or it is done. `NotReady` as `find`."""
        with self._follower.changed:
            return self._follower.view.deletion(partition) if self._is_ready(partition) else None

    def _is_ready(self, partition: str) -> bool:
        """Whether the view can answer; False if it is not for us to answer."""
        follower, number = self._follower, self.log_partition(partition)
        if number not in follower.marks:
            return False
        self._check_followed(number)
        mark, applied = follower.marks[number], follower.applied[number]
        if mark is None or applied + 1 < mark:
            behind = "its high-water mark is not known yet" if mark is None else f"at {applied + 1} of {mark}"
            raise NotReady(f"{follower.name(number)} is catching up ({behind}); try again soon")
        return True

    def _check_followed(self, number: int) -> None:
        """Raise `NotReady` if an error stopped the follower. After the log was closed, the last view stays readable."""
        failure = self._follower.failure
        if failure is not None and not isinstance(failure, Closed):
            raise NotReady(
                f"{self._follower.name(number)}: {_stopped_following(failure)}; open the catalog again"
            ) from failure

    def close(self) -> None:
        """Stop following, and write a last snapshot. Closing again does nothing."""
        self._follower.close()

    @shows_unopened
    def __repr__(self) -> str:
        return f"<Catalog of {self._topic} in {self._log.url}, partitions {self.assigned()} of {self._count}>"


def _stopped_following(failure: BaseException) -> str:
    return (
        f"this catalog has stopped following the log ({type(failure).__name__}: {failure}): fix the cause, then call "
        "reconcile_assignment"
    )
