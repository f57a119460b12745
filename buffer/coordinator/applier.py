"""The apply thread: gives each write its epoch, applies it, and freezes the delta when a flush is due."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forebay.buffer.coordinator.delta import Durability
from forebay.buffer.coordinator.errors import ApplyFailed, release_frames
from forebay.buffer.coordinator.handle import FlushHandle, WriteHandle
from forebay.buffer.coordinator.record import DeltaRecord

if TYPE_CHECKING:
    from forebay.buffer.coordinator.delta import Delta
    from forebay.buffer.coordinator.handle import Handle
    from forebay.buffer.coordinator.pipeline import FlushPipeline
    from forebay.buffer.coordinator.state import CoordinatorState

WriteT = TypeVar("WriteT")
ResultT = TypeVar("ResultT")
FrozenT = TypeVar("FrozenT")
ReaderT = TypeVar("ReaderT")

_MOST_AT_ONCE = 1024
"""Writes applied between two looks at the lock: enough to make its cost vanish, few enough to keep `applied` moving."""


class Applier(Generic[WriteT, ResultT, FrozenT, ReaderT]):
    """Owns the current delta; nothing but its thread touches that."""

    def __init__(
        self,
        state: CoordinatorState,
        delta: Delta[WriteT, ResultT, FrozenT, ReaderT],
        pipeline: FlushPipeline[FrozenT, Any],
    ) -> None:
        self._state = state
        self._delta = delta
        self._pipeline = pipeline
        self._interval = state.config.flush_interval
        self._flush_size = math.inf if state.config.flush_size is None else state.config.flush_size
        self._taken: list[Handle[Any]] = []
        self._taken_at = 0
        self._next_epoch = 1
        self._first_epoch = 1
        self._full = False
        self._commanded = False
        self._ticks_from = 0.0
        self._deadline: float | None = None

    def run(self) -> None:
        """Apply and freeze until the stop; what goes wrong here stops the coordinator."""
        state = self._state
        self._ticks_from = state.clock.monotonic()
        try:
            while (batch := self._next_step()) is not None:
                if batch:
                    self._apply(batch)
                else:
                    self._freeze()
                del batch
                state.deliver()
        except BaseException as error:  # noqa: BLE001 -- whatever it is, those who wait must hear of it
            state.fail(error)
        finally:
            with state.lock:
                state.applying = False
                state.moved.notify_all()

    def _next_step(self) -> list[Handle[Any]] | None:
        """Wait for something to do: what to apply, an empty list to freeze, or None to leave."""
        state = self._state
        with state.lock:
            while state.failure is None:
                if self._freeze_due():
                    return []
                # A full delta that cannot be frozen yet takes no more: from here the queues fill up.
                if not self._full and (batch := self._take()):
                    state.applying = True
                    return batch
                unfrozen = self._next_epoch > self._first_epoch
                if state.stopping and not unfrozen and not state.pending and not self._taken:
                    self._pipeline.close()
                    return None
                state.idle = True
                state.clock.wait_until(state.work, self._deadline if self._pipeline.has_room else None)
                state.idle = False
        return None

    def _freeze_due(self) -> bool:
        if self._next_epoch == self._first_epoch or not self._pipeline.has_room:
            return False
        if self._commanded or self._full:
            return True
        if self._deadline is not None and self._state.clock.monotonic() >= self._deadline:
            return True
        return self._state.room_wanted and self._pipeline.idle

    def _take(self) -> list[Handle[Any]]:
        """The next writes and commands to look at; they count as done when `_taken_at` moves past them."""
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

    def _apply(self, batch: list[Handle[Any]]) -> None:
        """Apply writes up to the first reason to stop: a command, a full delta, a pause or a failure."""
        state = self._state
        record = state.current
        apply, size, limit = self._delta.apply, self._delta.size, self._flush_size
        epoch = self._next_epoch
        cost = failed_cost = 0
        count = 0
        writes: list[Any] = batch
        for handle in writes:
            if state.interrupt or handle.__class__ is FlushHandle:  # `isinstance` would cost a write a twentieth
                break
            try:
                handle.outcome = apply(handle.outcome)
                record.keeps = True
                cost += handle.cost
            except Exception as error:  # noqa: BLE001 -- the write's owner hears of it
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

    def _publish(self, batch: list[Handle[Any]], count: int, epoch: int, cost: int, failed_cost: int) -> None:
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
        state.handles_applied(batch[:count])

    def _next_tick(self, interval: float) -> float:
        # Ticks with nothing to flush pass unnoticed, so that an idle coordinator sleeps.
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
            last = DeltaRecord(self._next_epoch)
            last.wants_storage = True
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
            # With every write refused the delta is as it was: it goes on, and only the epochs pass.
            if record.keeps:
                state.board.delta_frozen(epochs, reader)
            state.current = DeltaRecord(self._next_epoch)
            self._first_epoch = self._next_epoch
            self._full = False
            self._commanded = False
            self._deadline = None
            self._ticks_from = state.clock.monotonic()
            self._pipeline.submit(record)


def _park(handles: list[Handle[Any]]) -> list[Handle[Any]]:
    """Put the writes of paused channels aside; returns the rest."""
    going: list[Handle[Any]] = []
    for handle in handles:
        if isinstance(handle, WriteHandle) and handle.channel.paused:
            handle.state.parked.setdefault(handle.channel, []).append(handle)
        else:
            going.append(handle)
    return going


def _apply_failed(error: Exception, epoch: int) -> ApplyFailed:
    release_frames(error)
    # The first frame is the apply thread's own: it holds every write of the batch.
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    failed = ApplyFailed(f"write {epoch} was refused: {type(error).__name__}: {error}", epoch=epoch)
    failed.__cause__ = error
    return failed
