"""The state that the parts of one coordinator share: the queue, the watermarks, and the callbacks that wait."""

from __future__ import annotations

import logging
from threading import Condition
from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base.errors import Closed, Timeout
from forebay.buffer.coordinator.delta import Durability
from forebay.buffer.coordinator.errors import fresh, release_frames
from forebay.buffer.coordinator.record import DeltaRecord, Watcher
from forebay.buffer.coordinator.room import LoopWaker, Room

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from forebay.buffer.coordinator.config import CoordinatorConfig
    from forebay.buffer.coordinator.group import CoordinatorGroup
    from forebay.buffer.coordinator.record import Waitable
    from forebay.buffer.coordinator.threads import Task

_log = logging.getLogger(__name__)


class ChannelState:
    """The part of a channel that the apply thread uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted = 0
        """Number of writes that entered, including those that wait for the cost bound. Changed under the lock."""
        self.applied = 0
        """Number of writes that left the queue. Only the apply thread changes it, without the lock."""
        self.paused: bool = False


class CoordinatorState:
    """The state of one coordinator. Hold `lock` to change it, or to be sure that something has not happened yet."""

    def __init__(self, name: str, config: CoordinatorConfig, group: CoordinatorGroup) -> None:
        self.name = name
        self.config = config
        self.group = group
        self.clock: Final = group.clock
        self.lock: Final = group.lock
        self.apply_task: Task = lambda: False
        """The task that applies writes and freezes the delta. The apply thread runs it when it is woken."""
        self.idle: bool = False
        """Whether the task found nothing to do, so that the next write must wake it."""
        self.room: Final = Room(self.lock)
        """Writers wait here for their channel's capacity."""
        self.moved: Final = Condition(self.lock)
        """Notifies threads that wait for a write to be applied, for a watermark, for a pause, or for the end."""
        self.view_changed: Final = Condition(self.lock)
        """Subscribers wait here for the next view."""

        self.pending: list[Waitable] = []
        """Writes and flush commands in the order of their arrival."""
        self.parked: dict[ChannelState, list[Waitable]] = {}
        """Writes that the apply thread put aside because their channel was paused."""
        self.paused = 0
        self.newly_paused = False
        """Whether the apply thread may have taken writes of a channel before that was paused."""
        self.applying = False
        self.batches = 0
        """Number of batches applied. A thread that waits for the end of one may be too slow to see `applying` False."""
        self.interrupt: bool = False
        """Asks the apply thread to check the state before it applies another write."""
        self.held_cost: int = 0
        """This coordinator's part of the group's `held_cost`."""
        self.room_wanted: bool = False
        """Whether the group asks this coordinator to release cost."""

        self.watermarks: list[int] = [0, 0, 0, 0]
        """Indexed by `Durability`."""
        self.current: DeltaRecord = DeltaRecord(range(1, 1))
        self.unsettled: dict[DeltaRecord, None] = {}
        """Frozen deltas not yet durable, oldest first."""
        self.stopping = False
        self.ended: bool = False
        self.failure: BaseException | None = None
        self._unapplied_watchers: dict[Waitable, list[Watcher]] = {}
        self._outbox: list[Watcher] = []

    def over(self) -> BaseException | None:
        """Return why the coordinator has stopped; None if it has not."""
        if self.failure is not None:
            return self.failure
        return Closed(f"{self.name} was stopped; open a new one") if self.ended else None

    def check_accepting(self) -> None:
        """Raise `Closed`, or the error that stopped the coordinator, if it accepts no more writes."""
        if self.failure is not None:
            raise fresh(self.failure)
        if self.stopping:
            raise Closed(f"{self.name} was stopped; open a new one")

    def wait(self, condition: Condition, deadline: float | None, overdue: str) -> None:
        """Wait for a notification of `condition`, or raise `Timeout` with the text `overdue` after the deadline."""
        if deadline is not None and self.clock.monotonic() >= deadline:
            raise Timeout(f"{self.name}: {overdue}")
        self.clock.wait_until(condition, deadline)

    def wake_apply(self) -> None:
        """Wake the apply thread if it found nothing to do."""
        if self.idle:
            # In this order: after an interrupt in between, `idle` is still set and the next call wakes it again.
            self.group.apply_thread.wake(self.apply_task)
            self.idle = False

    def release_cost(self, cost: int) -> None:
        """Subtract a cost that is no longer held, and wake writers that wait for room."""
        if cost:
            self.held_cost -= cost
            self.group.held_cost -= cost
            # Writers that still find no room ask again.
            self.room_wanted = False
            self.group.room.notify_all()

    def make_room(self) -> None:
        """Flush soon, so that the held cost is released."""
        self.room_wanted = True
        self.wake_apply()

    def watch(self, watcher: Watcher) -> None:
        """Keep a watcher until its handle, which has not reached the watcher's level, does so or fails."""
        handle = watcher.handle
        epoch = handle.epoch
        if epoch is None or epoch > self.watermarks[Durability.APPLIED]:
            self._unapplied_watchers.setdefault(handle, []).append(watcher)
        elif handle.record is not None:
            handle.record.watchers.append(watcher)

    def handles_applied(self, handles: list[Waitable]) -> None:
        """Queue the watchers of handles that were just applied for `deliver`, or move them to their deltas' records."""
        self.moved.notify_all()
        watchers = self._unapplied_watchers
        if not watchers:
            return
        for handle in handles:
            for watcher in watchers.pop(handle, ()):
                if handle.standing(watcher.level) is False:
                    self.watch(watcher)
                else:
                    self._outbox.append(watcher)

    def settle(self, record: DeltaRecord) -> None:
        """Wake threads that wait for this record. `deliver` calls the watchers later."""
        if record.changed is not None:
            record.changed.notify_all()
        if record.watchers:
            left: list[Watcher] = []
            for watcher in record.watchers:
                (left if watcher.handle.standing(watcher.level) is False else self._outbox).append(watcher)
            record.watchers = left

    def fail(self, error: BaseException) -> None:
        """Stop the coordinator because of an error, and report it to all who wait. Takes the lock itself."""
        release_frames(error)
        with self.lock:
            if self.failure is None and not self.ended:
                self.failure = error
                self._tell_all()
        self.deliver()

    def end(self) -> None:
        """Record that everything is flushed. Called with the lock held."""
        self.ended = True
        self._tell_all()

    def _tell_all(self) -> None:
        self.interrupt = True
        self.wake_apply()  # so that it drops the writes it took
        for condition in (self.room, self.moved, self.view_changed):
            condition.notify_all()
        for record in (*self.unsettled, self.current):
            self.settle(record)
        for watchers in self._unapplied_watchers.values():
            self._outbox.extend(watchers)
        self._unapplied_watchers.clear()
        self.pending.clear()
        self.parked.clear()  # guard: release waiting writes when the coordinator fails
        self.unsettled.clear()
        self.release_cost(self.held_cost)
        self.group.leave(self)

    def deliver(self) -> None:
        """Call the watchers whose handles reached their level or failed. The caller must not hold the lock.

        A callback may do anything, so none is called under the lock.
        """
        if not self._outbox:
            return
        with self.lock:
            watchers, self._outbox = self._outbox, []
        by_loop: dict[asyncio.AbstractEventLoop, list[LoopWaker]] = {}
        for watcher in watchers:
            callback = watcher.callback
            if isinstance(callback, LoopWaker):
                by_loop.setdefault(callback.loop, []).append(callback)
            else:
                _call_quietly(callback, watcher.handle)
        for loop, wakers in by_loop.items():
            try:
                # One call for all coroutines of a loop: each call wakes the loop through a socket.
                loop.call_soon_threadsafe(_wake, wakers)
            except RuntimeError:
                _log.debug("an event loop was closed while some of its coroutines waited for %s", self.name)


def _wake(wakers: list[LoopWaker]) -> None:
    for waker in wakers:
        waker(None)


def tell(callback: Callable[[Any], object], handle: Waitable) -> None:
    """Call a done callback in the thread that added it. An error in it is logged and stops nothing."""
    try:
        callback(handle)
    except Exception:  # noqa: BLE001 -- logged
        _log.exception("a done callback failed")


def _call_quietly(callback: Callable[[Any], object], handle: Waitable) -> None:
    """Call a done callback in one of our threads, which must survive it even if it raises `SystemExit`."""
    try:
        callback(handle)
    # guard: survive any exception from a done callback
    except BaseException:  # noqa: BLE001 -- logged; this thread has other callbacks to call
        _log.exception("a done callback failed")
