"""The flush pipeline: deltas are written in parallel, pass the watermarks in order, and become durable in groups."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.coordinator.delta import Durability, FrozenT, ReceiptT, Stamped
from forebay.buffer.coordinator.errors import DeltaRejected, release_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.buffer.coordinator.delta import Flusher
    from forebay.buffer.coordinator.record import DeltaRecord
    from forebay.buffer.coordinator.state import CoordinatorState
    from forebay.buffer.coordinator.view import ViewBoard


class FlushPipeline(Generic[FrozenT, ReceiptT]):
    """Takes frozen deltas in order from the apply thread, and has the flush threads write them and flush storage."""

    def __init__(
        self,
        state: CoordinatorState,
        flusher: Flusher[FrozenT, ReceiptT],
        board: ViewBoard[Any, ReceiptT],
        storage_pace: Callable[[], float],
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._board = board
        self._storage_pace = storage_pace
        self._capacity = state.config.max_concurrent_flushes
        self._durable_flushes = state.config.durable_flushes
        self._uploads: deque[DeltaRecord] = deque()
        """Frozen deltas that no flush thread has taken yet."""
        self._unwritten: deque[DeltaRecord] = deque()
        """Frozen deltas that the written watermark has not passed yet."""
        self._written: deque[DeltaRecord] = deque()
        """Deltas that the written watermark has passed and no storage flush has taken yet."""
        self._writing = 0
        """Number of flush threads that write deltas or were asked to."""
        self._storage_due = False
        self._storage_not_before = 0.0
        self._commanded = False
        self._committing = False
        """Whether a flush thread flushes storage or was asked to. Only one does at a time."""
        self._last = False

    @property
    def has_room(self) -> bool:
        """Whether another delta may be frozen. The caller holds the lock, as for all methods but the tasks."""
        return len(self._uploads) < self._capacity

    @property
    def idle(self) -> bool:
        """Whether no flush is in progress that would make room under the cost bound."""
        return not self._unwritten and not (self._durable_flushes and (self._written or self._committing))

    @property
    def _hurries(self) -> bool:
        """Whether the next storage flush must begin without waiting for the pace."""
        return self._commanded or self._last or self._state.room_wanted

    def submit(self, record: DeltaRecord) -> None:
        """Queue the next delta in order."""
        self._state.unsettled[record] = None
        self._unwritten.append(record)
        if record.keeps:
            self._uploads.append(record)
            if self._writing < self._capacity:
                self._writing += 1
                self._state.group.flush_threads.add(partial(self._run, self._write_next_delta), self._state)
        else:
            record.flushed = True
            self._pass_written()

    def close(self) -> None:
        """End the coordinator once everything is flushed. No delta may be submitted after this."""
        self._last = True
        self._pass_durable()

    def flush_storage_when_due(self) -> None:
        """If a storage flush is due, let a flush thread do it, now or when the pace allows it."""
        state = self._state
        if not self._storage_due or self._committing:
            return
        if self._hurries or state.clock.monotonic() >= self._storage_not_before:
            self._committing = True
            state.group.flush_threads.add(partial(self._run, self._commit_next_group), state, first=True)
        else:
            state.group.apply_thread.wake_at(self._pace_is_over, self._storage_not_before)

    # Tasks: the first one runs on the apply thread, the others on flush threads.

    def _pace_is_over(self) -> bool:
        with self._state.lock:
            if self._state.failure is None:
                self.flush_storage_when_due()
        return False

    def _run(self, work: Callable[[], bool]) -> bool:
        try:
            more = work()
            self._state.deliver()
        except BaseException as fatal:  # noqa: BLE001 -- every waiting caller must get the error
            self._state.fail(fatal)  # guard: report what ended a coordinator thread
            return False
        return more

    def _write_next_delta(self) -> bool:
        state = self._state
        record = self._next_upload()
        if record is None:
            return False
        try:
            frozen, record.frozen = record.frozen, None
            try:
                receipt: ReceiptT | None = self._flusher.flush_delta(
                    frozen, record.epochs, partial(self._shrink, record)
                )
            finally:
                del frozen  # what is written must not stay in memory until storage is flushed
            error: Exception | None = None
        except DeltaRejected as rejection:
            receipt, error = None, rejection
        with state.lock:
            if state.failure is not None:
                return False
            record.receipt = receipt
            record.flushed = True
            if error is not None:
                self._reject(record, error, Durability.WRITTEN)
            self._pass_written()
        return True

    def _next_upload(self) -> DeltaRecord | None:
        state = self._state
        with state.lock:
            if not self._uploads or state.failure is not None:
                self._writing -= 1
                return None
            state.wake_apply()
            return self._uploads.popleft()

    def _reject(self, record: DeltaRecord, error: Exception, level: Durability) -> None:
        rejection = error if isinstance(error, DeltaRejected) else DeltaRejected(error)
        release_frames(rejection)
        reason = rejection.reason
        if reason.__traceback__ is None:
            # The reason was never raised, so it has no traceback: show where it was rejected instead.
            reason.__traceback__ = rejection.__traceback__
        record.error = reason if isinstance(reason, ForebayError) else rejection
        record.failed = level
        self._release_cost(record)
        self._state.settle(record)

    def _pass_written(self) -> None:
        while self._unwritten and self._unwritten[0].flushed:
            record = self._unwritten.popleft()
            # Update the view before the watermark: then a caller that sees the watermark finds the delta in the view.
            if record.keeps and record.error is None:
                self._board.delta_written(record.receipt)
            elif record.keeps:
                self._board.delta_rejected()
            self._pass(record, Durability.WRITTEN)
            if not self._durable_flushes:
                self._release_cost(record)
            self._written.append(record)
            if record.wants_storage or (self._durable_flushes and record.needs_storage):
                self._storage_due = True
                self._commanded |= record.wants_storage
        self._pass_durable()

    def _pass_durable(self) -> None:
        """Skip deltas that need no storage flush, start a storage flush if one is due, or end the coordinator."""
        while self._written and not self._committing and not self._written[0].needs_storage:
            self._pass(self._written.popleft(), Durability.DURABLE)
        self.flush_storage_when_due()
        if self._state.room_wanted:
            self._state.wake_apply()
        if self._last and not self._storage_due and not self._committing and not self._unwritten:
            self._state.end()

    def _pass(self, record: DeltaRecord, level: Durability) -> None:
        state = self._state
        state.watermarks[level] = record.epochs.stop - 1
        record.passed = level
        state.moved.notify_all()
        if level == Durability.DURABLE:
            self._release_cost(record)
            record.receipt = None
            state.unsettled.pop(record, None)
        state.settle(record)

    def _shrink(self, record: DeltaRecord, cost: int) -> None:
        with self._state.lock:
            # guard: release a delta's cost once, and never raise it
            if self._state.failure is None and cost < record.cost:
                self._state.release_cost(record.cost - cost)
                record.cost = cost

    def _release_cost(self, record: DeltaRecord) -> None:
        cost, record.cost = record.cost, 0
        self._state.release_cost(cost)

    def _commit_next_group(self) -> bool:
        state = self._state
        with state.lock:
            self._storage_due = self._commanded = False
            group = list(self._written)
            self._written.clear()
        receipts: list[Stamped[ReceiptT]] = [
            Stamped(record.epochs, record.receipt) for record in group if record.keeps and record.error is None
        ]
        began = state.clock.monotonic()
        try:
            rejected: Mapping[range, Exception] = self._flusher.flush_storage(receipts)
        except DeltaRejected as rejection:
            # guard: reject every delta of the group
            rejected = dict.fromkeys((receipt.epochs for receipt in receipts), rejection)
        strangers = rejected.keys() - {receipt.epochs for receipt in receipts}
        if strangers:
            raise ForebayError(
                f"{state.name}: flush_storage must reject only deltas that it was given, not {strangers}"
            )
        with state.lock:
            if state.failure is not None:
                return False
            self._committing = False
            self._storage_not_before = began + self._storage_pace()
            for record in group:
                error = rejected.get(record.epochs) if record.keeps and record.error is None else None
                if error is not None:
                    self._reject(record, error, Durability.DURABLE)
                self._pass(record, Durability.DURABLE)
            self._pass_durable()
        return False
