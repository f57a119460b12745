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

    It follows the log partitions that `reconcile_assignment` assigns, none at first. A stable hash of a partition's
    name decides which log partition holds its segments. A read has three outcomes. It returns nothing if that log
    partition is not assigned here. It raises `NotReady` while the view is behind the log's end at the assignment.
    Otherwise it returns the answer.

    If the log cannot be read, the catalog tries again, up to 30 times in a row. After that, or after an error that is
    not forebay's, reads and writes raise `NotReady` with the reason, until `reconcile_assignment` is called again.

    After `close`, writes raise `Closed`, and reads return the last known state. The caller closes the log.

    Args:
        log: the event log.
        topic: the topic. Do not compact it beyond the oldest snapshot of any process that follows it.
        partitions: number of partitions of the topic, which is created if it does not exist.
        snapshots: URL of a folder, or a store, where this process keeps snapshots of its view, to start from one the
            next time; None to replay everything.
        snapshot_interval: seconds between snapshots while the view changes. One is written at close as well.
        write_timeout: maximum number of seconds that a write waits for the view to show it.
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
        """Return the log partition that holds a partition's segments: the same in every process and release."""
        return partition_for(partition.encode(), self._count)

    def assigned(self) -> list[int]:
        """Return the log partitions that are assigned here, in order."""
        with self._follower.changed:
            return sorted(self._follower.marks)

    def reconcile_assignment(self, wanted: Iterable[int]) -> None:
        """Follow these log partitions and no others. Call it again regularly, or when the assignment may have changed.

        It raises no error if the log cannot be reached: the affected partitions stay `NotReady` until the next call.
        """
        self._follower.reconcile({check_whole(number, "a log partition", most=self._count - 1) for number in wanted})

    # Writing

    def add(self, segment: Segment) -> None:
        """Record that a segment's copy has started; return when this catalog shows it.

        Raises:
            InvalidInput: the segment has another state, and nothing was recorded; or it is known with other facts.
            NotReady: its log partition is not assigned here, and nothing was recorded.
            Timeout: it was recorded, but the view did not show it in time.
            Closed: this catalog was closed.
            Unknown: it may have been recorded, or may be later. It is safe to repeat the call.
        """
        check_first_state(segment)
        self._write(segment)

    def update(self, update: SegmentUpdate) -> None:
        """Record a step in a segment's life; return when this catalog shows it. Raises as `add` does.

        If the segment cannot enter this state now, that is `InvalidInput`. If it is in it already, nothing changes.
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
                        f"{recorded}, but this catalog was closed before it showed the change; open it again to read it"
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
        """Return the segment that holds an offset of an epoch, if its copy is finished and its deletion not started.

        Raises:
            NotReady: the view is still behind the log; try again soon.
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
        """Return the state of a partition's deletion; None if it has not begun or is done. Raises as `find` does."""
        with self._follower.changed:
            return self._follower.view.deletion(partition) if self._is_ready(partition) else None

    def _is_ready(self, partition: str) -> bool:
        """Return whether the view can answer; False if the log partition is not assigned here.

        Raises:
            NotReady: the view is still behind the log.
        """
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
