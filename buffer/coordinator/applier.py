"""The apply thread: gives each write its epoch, applies it, and freezes the delta when a flush is due."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic

from forebay.buffer.coordinator.delta import Durability, FrozenT, ReaderT, ResultT, WriteT
from forebay.buffer.coordinator.errors import ApplyFailed, release_frames
from forebay.buffer.coordinator.handle import FlushHandle, WriteHandle
from forebay.buffer.coordinator.record import DeltaRecord

if TYPE_CHECKING:
    from forebay.buffer.coordinator.delta import Delta
    from forebay.buffer.coordinator.pipeline import FlushPipeline
    from forebay.buffer.coordinator.record import Waitable
    from forebay.buffer.coordinator.state import CoordinatorState
    from forebay.buffer.coordinator.view import ViewBoard

_MOST_AT_ONCE = 1024
"""Maximum number of writes applied between two acquisitions of the lock.

Large enough to hide the lock's cost, small enough for the applied watermark to advance often.
"""


class Applier(Generic[WriteT, ResultT, FrozenT, ReaderT]):
    """Owns the current delta. Only the apply thread touches that."""

    def __init__(
        self,
        state: CoordinatorState,
        delta: Delta[WriteT, ResultT, FrozenT, ReaderT],
        board: ViewBoard[ReaderT, Any],
        pipeline: FlushPipeline[FrozenT, Any],
    ) -> None:
        self._state = state
        self._delta = delta
        self._board = board
        self._pipeline = pipeline
        self._interval = state.config.flush_interval
        self._flush_size = math.inf if state.config.flush_size is None else state.config.flush_size
        self._taken: list[Waitable] = []
        self._taken_at = 0
        self._next_epoch = 1
        self._first_epoch = 1
        self._full = False
        self._commanded = False
        self._ticks_from = state.clock.monotonic()
        self._deadline: float | None = None

    def begin(self) -> None:
        """Count the flush interval from now on; called with the lock held."""
        self._ticks_from = self._state.clock.monotonic()
        self._state.apply_task = self._run
        self._state.group.apply_thread.wake(self._run)

    def _run(self) -> bool:
        """Apply some writes or freeze the delta. Return whether there may be more to do.

        Any exception here stops the coordinator.
        """
        state = self._state
        try:
            batch = self._next_step()
            if batch:
                self._apply(batch)
            elif batch is not None:
                self._freeze()
            state.deliver()
        except BaseException as error:  # noqa: BLE001 -- every waiting caller must get the error
            state.fail(error)
            with state.lock:
                state.applying = False
                state.moved.notify_all()
                self._taken = []
            return False
        return batch is not None

    def _next_step(self) -> list[Waitable] | None:
        """Return the writes and commands to apply next, an empty list to freeze, or None if there is nothing to do."""
        state = self._state
        with state.lock:
            if state.over() is not None:
                self._taken = []
                self._wake_at(None)
                return None
            if state.room_wanted:
                self._pipeline.flush_storage_when_due()
            if self._freeze_due():
                return []
            # A full delta that cannot be frozen yet takes no more writes, so the channels' queues fill up.
            if not self._full and (batch := self._take()):
                state.applying = True
                return batch
            unfrozen = self._next_epoch > self._first_epoch
            if state.stopping and not unfrozen and not state.pending and not self._taken:
                self._pipeline.close()
                return None
            state.idle = True
            self._wake_at(self._deadline if self._pipeline.has_room else None)
            return None

    def _wake_at(self, moment: float | None) -> None:
        self._state.group.apply_thread.wake_at(self._state.apply_task, moment)

    def _freeze_due(self) -> bool:
        if self._next_epoch == self._first_epoch or not self._pipeline.has_room:
            return False
        if self._commanded or self._full:
            return True
        if self._deadline is not None and self._state.clock.monotonic() >= self._deadline:
            return True
        return self._state.room_wanted and self._pipeline.idle

    def _take(self) -> list[Waitable]:
        """Return the next writes and commands. They count as done when `_taken_at` moves past them."""
        state = self._state
        if state.newly_paused:
            state.newly_paused = False
            self._taken = _park(self._taken[self._taken_at :])
            self._taken_at = 0
        if self._taken_at >= len(self._taken):
            self._taken = _park(state.pending) if state.paused else state.pending
            self._taken_at = 0
            state.pending = []
        if self._taken_at == 0 and len(self._taken) <= _MOST_AT_ONCE:
            return self._taken
        return self._taken[self._taken_at : self._taken_at + _MOST_AT_ONCE]

    def _apply(self, batch: list[Waitable]) -> None:
        """Apply writes up to the first reason to stop: a command, a full delta, a pause or a failure."""
        state = self._state
        record = state.current
        apply, size, limit = self._delta.apply, self._delta.size, self._flush_size
        epoch = self._next_epoch
        cost = failed_cost = 0
        count = 0
        writes: list[Any] = batch
        for handle in writes:
            if state.interrupt or handle.__class__ is FlushHandle:  # `isinstance` would make a write 5 % slower
                break
            try:
                handle.outcome = apply(handle.outcome)
                record.keeps = True
                cost += handle.cost
            except Exception as error:  # noqa: BLE001 -- the write's handle raises it
                handle.outcome = _apply_failed(error, epoch)
                failed_cost += handle.cost
            handle.record = record
            handle.epoch = epoch
            handle.channel.applied += 1
            epoch += 1
            count += 1
            if size() >= limit:
                self._full = True
                break
        with state.lock:
            if state.failure is None:
                self._publish(batch, count, epoch, cost, failed_cost)
            state.interrupt = state.failure is not None
            state.applying = False
            state.batches += 1
            state.moved.notify_all()

    def _publish(self, batch: list[Waitable], count: int, epoch: int, cost: int, failed_cost: int) -> None:
        state = self._state
        if count:
            if self._deadline is None and self._interval is not None:
                self._deadline = self._next_tick(self._interval)
            self._next_epoch = epoch
            state.current.cost += cost
            state.release_cost(failed_cost)
            state.watermarks[Durability.APPLIED] = epoch - 1
            state.room.notify_all()
        following = batch[count] if count < len(batch) else None
        if isinstance(following, FlushHandle) and not self._full and not state.interrupt:
            self._command(following)
            count += 1
        self._taken_at += count
        if self._taken_at >= len(self._taken):
            self._taken, self._taken_at = [], 0  # keep no reference to a handle: see handle.py
        state.handles_applied(batch[:count])

    def _next_tick(self, interval: float) -> float:
        # Skip ticks with nothing to flush, so that an idle coordinator sleeps.
        elapsed = self._state.clock.monotonic() - self._ticks_from
        return self._ticks_from + (math.floor(elapsed / interval) + 1) * interval

    def _command(self, flush: FlushHandle) -> None:
        state = self._state
        covered = [record for record in state.unsettled if record.error is None]
        if self._next_epoch > self._first_epoch:
            self._commanded = True
            last = state.current
            last.wants_storage = last.wants_storage or flush.durable
            covered.append(last)
        elif flush.durable:
            last = DeltaRecord(range(self._next_epoch, self._next_epoch), wants_storage=True)
            self._pipeline.submit(last)
            covered.append(last)
        flush.waited_for = tuple(covered)
        flush.record = covered[-1] if covered else None
        flush.epoch = self._next_epoch - 1

    def _freeze(self) -> None:
        state = self._state
        record = state.current
        epochs = range(self._first_epoch, self._next_epoch)
        if record.keeps:
            record.frozen, self._delta = self._delta.freeze()
            reader = self._delta.reader()
        with state.lock:
            if state.failure is not None:
                return
            record.epochs = epochs
            # If every write was refused, the delta is unchanged: keep it, and only move the epochs.
            if record.keeps:
                self._board.delta_frozen(epochs, reader)
            state.current = DeltaRecord(range(self._next_epoch, self._next_epoch))
            self._first_epoch = self._next_epoch
            self._full = False
            self._commanded = False
            self._deadline = None
            self._ticks_from = state.clock.monotonic()
            self._pipeline.submit(record)


def _park(handles: list[Waitable]) -> list[Waitable]:
    """Move the writes of paused channels to `parked`, and return the rest."""
    going: list[Waitable] = []
    for handle in handles:
        if isinstance(handle, WriteHandle) and handle.channel.paused:
            handle.state.parked.setdefault(handle.channel, []).append(handle)
        else:
            going.append(handle)
    return going


def _apply_failed(error: Exception, epoch: int) -> ApplyFailed:
    release_frames(error)
    # Drop the first frame, that of the apply thread: it refers to every write of the batch.
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    failed = ApplyFailed(f"write {epoch} was refused: {type(error).__name__}: {error}", epoch=epoch)
    failed.__cause__ = error
    return failed
