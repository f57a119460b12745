"""The follower: reads log partitions in a thread, applies their events to the view, and writes snapshots of it."""

from __future__ import annotations

import logging
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.errors import Closed, ForebayError, InvalidInput
from forebay.buffer.base.waiting import wait_for
from forebay.buffer.eventlog import Lagged
from forebay.runtime.catalog.model import decode_change
from forebay.runtime.catalog.snapshot import CatalogSnapshot, load_snapshot, write_snapshot
from forebay.runtime.catalog.view import View

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import EventLog, Record, Subscription
    from forebay.buffer.store import ObjectStore

_log = logging.getLogger("forebay.catalog")

WRITE_ID: Final = "write"
"""Name of the header by which a writer recognizes its own event."""
_LONGEST_PAUSE: Final = 10.0
"""Maximum seconds between two attempts to follow a log that cannot be read."""
MAX_FAILURES: Final = 30
"""Failed attempts in a row, over two to five minutes, after which only `reconcile` lets the pump try again."""


class Pending:
    """A write that waits for its event to be applied."""

    def __init__(self) -> None:
        self.is_applied = False
        self.refusal: InvalidInput | None = None


class Follower:
    """Keeps the view of the assigned partitions of a topic. `changed` guards the public attributes."""

    def __init__(
        self,
        log: EventLog,
        topic: str,
        partitions: int,
        *,
        snapshots: ObjectStore | None,
        snapshot_interval: float,
        clock: Clock,
        random: Random,
    ) -> None:
        self._log = log
        self._topic = topic
        self._snapshots = snapshots
        self._snapshot_interval = snapshot_interval
        self._snapshot_due = clock.monotonic() + snapshot_interval
        self._clock = clock
        self._random = random
        self.changed: Final = Condition()
        self.is_stopping: bool = False
        self.marks: dict[int, int | None] = {}
        """The assigned partitions, each with its high-water mark at the assignment; None while that is unknown."""
        self.pending: dict[str, Pending] = {}
        """Writes of this process that are in progress, by their ids."""
        self.failure: BaseException | None = None
        """The error that stopped the follower; the next `reconcile` tries again."""
        self._failures = 0
        self.view: View = View()
        self.applied: list[int] = [-1] * partitions
        """The last offset applied to the view, of every partition; -1 if there is none."""
        self._life = 0
        """Grows whenever the view starts from nothing. Events read for an earlier value are not applied."""
        self._load()
        self._saved = list(self.applied)
        self._loaded: list[int] | None = list(self.applied)
        self._reconciling = Lock()
        self._subscribing = Lock()
        self._records, self._assignment = log.subscribe(topic)
        self._pump = Thread(target=self._run, name="forebay-catalog", daemon=True)
        self._pump.start()

    def name(self, number: int) -> str:
        """Return the name of a partition in messages."""
        return f"{self._log.url}: partition {number} of {self._topic}"

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if self.is_stopping:
            raise Closed(f"{self._log.url}: this catalog of {self._topic} was closed; open a new one")

    # Assignment

    def reconcile(self, wanted: Collection[int]) -> None:
        """Follow these partitions and no others, and ask again for every mark that is unknown."""
        with self._reconciling:
            with self.changed:
                self.check_open()
                # After a failure the view may be far behind: it must catch up with the present marks to be ready.
                failed, self.failure = self.failure is not None, None
                unknown = [number for number in wanted if failed or self.marks.get(number) is None]
                self.changed.notify_all()
            marks = self._read_marks() if unknown else []
            with self.changed:
                for number in self.marks.keys() - set(wanted):
                    del self.marks[number]
                for number in unknown:
                    # guard: an unknown mark means not ready
                    self.marks[number] = marks[number] if number < len(marks) else None
                self._drop_foreign_snapshot(marks)
                self.changed.notify_all()
            self._follow_what_is_assigned()

    def _read_marks(self) -> list[int]:
        try:
            return self._log.high_water_marks(self._topic)
        except ForebayError:
            _log.warning("%s: cannot read the high-water marks of %s", self._log.url, self._topic, exc_info=True)
            return []

    def _drop_foreign_snapshot(self, marks: list[int]) -> None:
        """Start from nothing if the snapshot has offsets that the log does not have: it belongs to another log."""
        if self._loaded is None or len(marks) < len(self.applied):
            return
        # guard: discard a snapshot with offsets beyond the marks
        if any(known >= mark for known, mark in zip(self._loaded, marks, strict=True)):
            _log.warning("%s: the snapshot is beyond the end of %s; everything is replayed", self._log.url, self._topic)
            self.view, self.applied = View(), [-1] * len(self.applied)
            self._life += 1
            self._records.close()  # the pump subscribes again, from the start
        self._loaded = None

    def _follow_what_is_assigned(self) -> None:
        with self._subscribing:
            with self.changed:
                starts = {number: self.applied[number] + 1 for number in self.marks}
            for number in set(self._assignment.assigned()) - starts.keys():
                self._assignment.remove(number)
            for number, start in starts.items():
                try:
                    self._assignment.add(number, start)
                except Closed:
                    return  # the pump is about to subscribe again, to the partitions assigned by then
                except ForebayError:
                    _log.warning("%s cannot be followed; the next call tries again", self.name(number), exc_info=True)
                    with self.changed:  # guard: clear the mark of a partition that cannot be followed
                        self.marks[number] = None

    # Following

    def _run(self) -> None:
        while not self.is_stopping:
            try:
                self._pump_records()
            except Lagged as lag:
                _log.info("%s; going on from there", lag)
            except Closed as closed:
                _log.warning("%s was closed; the catalog of %s no longer changes", self._log.url, self._topic)
                with self.changed:
                    self.failure = closed
                    self.changed.notify_all()
                return
            except BaseException as error:  # noqa: BLE001 - writers and readers must get the error
                self._failures += 1
                # guard: bound the attempts to follow the log
                if isinstance(error, ForebayError) and self._failures < MAX_FAILURES:
                    _log.warning("%s: following %s failed; trying again", self._log.url, self._topic, exc_info=True)
                    self._pause()
                else:
                    _log.exception(
                        "%s: stopped following %s until reconcile_assignment is called", self._log.url, self._topic
                    )
                    self._stand_still(error)

    def _stand_still(self, error: BaseException) -> None:
        """Report the error to everyone who waits, and wait for the next `reconcile`."""
        with self.changed:
            self.failure = error  # guard: tell everyone why following ended
            self.changed.notify_all()
            wait_for(self._clock, self.changed, lambda: self.is_stopping or self.failure is None, None)
        self._failures = 0

    def _pump_records(self) -> None:
        """Apply events as they come, and write snapshots in between, until the subscription ends."""
        records, life = self._subscribe()
        while not self.is_stopping:
            until_snapshot = max(0.0, self._snapshot_due - self._clock.monotonic())
            record = records.poll(min(until_snapshot, _LONGEST_PAUSE))
            self._failures = 0  # the log was read
            if record is not None:
                self._apply(record, life)
            elif records.ended:
                return
            if self._clock.monotonic() >= self._snapshot_due:
                self._snapshot_due = self._clock.monotonic() + self._snapshot_interval
                self._save()

    def _subscribe(self) -> tuple[Subscription, int]:
        """Return a subscription to the events that are not applied yet, and the value of `_life` that they are for."""
        with self._subscribing:
            while True:
                with self.changed:
                    life = self._life
                    starts = {number: self.applied[number] + 1 for number in self.marks}
                if self.is_stopping or not self._records.ended:
                    return self._records, life
                self._records, self._assignment = self._log.subscribe(self._topic, starts)
                with self.changed:
                    if life != self._life:  # the view started from nothing meanwhile
                        self._records.close()

    def _apply(self, record: Record, life: int) -> None:
        number, event = record.partition, record.event
        with self.changed:
            # Skip events that were read before the view started from nothing, or before the partition was added again.
            # guard: apply each event only once
            # guard: ignore events for an earlier life of the view
            # guard: stop before applying the next event
            if self.is_stopping or life != self._life or record.offset <= self.applied[number]:
                return
            refusal = None
            try:
                self.view.apply(decode_change(event), event.time_ms or 0)
            except InvalidInput as error:
                refusal = error
                _log.warning("%s: offset %d is passed over: %s", self.name(number), record.offset, error)
            self.applied[number] = record.offset
            pending = self.pending.get(event.headers.get(WRITE_ID, ""))
            if pending is not None:
                pending.is_applied, pending.refusal = True, refusal
            self.changed.notify_all()

    def _pause(self) -> None:
        deadline = self._clock.monotonic() + full_jitter(self._random, self._failures - 1, 0.1, _LONGEST_PAUSE)
        wait_for(self._clock, self.changed, lambda: self.is_stopping, deadline)

    def close(self) -> None:
        """Stop without applying further events, and write a last snapshot."""
        with self.changed:
            if self.is_stopping:
                return
            self.is_stopping = True
            self.changed.notify_all()
        with self._subscribing:
            self._records.close()
        self._pump.join()
        self._save()

    # Snapshots

    def _load(self) -> None:
        if self._snapshots is None:
            return
        snapshot = load_snapshot(self._snapshots, self._topic, len(self.applied), clock=self._clock)
        if snapshot is not None:
            self.view.load(snapshot.partitions)
            self.applied = list(snapshot.applied)

    def _save(self) -> None:
        """Write a snapshot, the view and its offsets at one moment, if any offset has advanced since the last one."""
        if self._snapshots is None:
            return
        with self.changed:
            applied = list(self.applied)
            if applied == self._saved:
                return
            snapshot = CatalogSnapshot(self._topic, applied, self.view.dump())
        try:
            write_snapshot(self._snapshots, snapshot)
            self._saved = applied
        except Exception:  # noqa: BLE001 - a store may raise anything, and the view is right without a snapshot
            _log.warning("%s: a snapshot could not be written; the next one may be", self._snapshots.url, exc_info=True)
