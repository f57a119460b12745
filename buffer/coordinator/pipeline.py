"""The flush pipeline: deltas are written in parallel, pass the watermarks in order, and become durable in groups."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.coordinator.delta import Durability, Stamped
from forebay.buffer.coordinator.errors import DeltaRejected, release_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.buffer.coordinator.delta import Flusher
    from forebay.buffer.coordinator.record import DeltaRecord
    from forebay.buffer.coordinator.state import CoordinatorState

FrozenT = TypeVar("FrozenT")
ReceiptT = TypeVar("ReceiptT")


class FlushPipeline(Generic[FrozenT, ReceiptT]):
    """Takes frozen deltas in order from the apply thread; `write_deltas` and `commit_groups` run on its own threads."""

    def __init__(
        self, state: CoordinatorState, flusher: Flusher[FrozenT, ReceiptT], storage_pace: Callable[[], float]
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._storage_pace = storage_pace
        self._capacity = state.config.max_concurrent_flushes
        self._durable_flushes = state.config.durable_flushes
        self._uploads: deque[DeltaRecord] = deque()
        """Frozen, and no thread has taken them yet."""
        self._unwritten: deque[DeltaRecord] = deque()
        """Frozen, and the written watermark has not passed them."""
        self._written: deque[DeltaRecord] = deque()
        """The written watermark has passed them, and no storage flush has taken them yet."""
        self._storage_due = False
        self._storage_not_before = 0.0
        self._commanded = False
        self._committing = False
        self._last = False

    @property
    def has_room(self) -> bool:
        """Whether another delta may be frozen; the lock is held, as in all but the two thread bodies."""
        return len(self._uploads) < self._capacity

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way that would make room under the cost bound by itself."""
        return not self._unwritten and not (self._durable_flushes and (self._written or self._committing))

    @property
    def _hurries(self) -> bool:
        """Whether somebody waits for nothing but the next storage flush."""
        return self._commanded or self._last or self._state.room_wanted

    def submit(self, record: DeltaRecord) -> None:
        """Take the next delta in order."""
        self._state.unsettled[record] = None
        self._unwritten.append(record)
        if record.keeps:
            self._uploads.append(record)
            self._state.uploads_ready.notify()
        else:
            record.flushed = True
            self._pass_written()

    def close(self) -> None:
        """Let the threads leave once all is flushed: no delta comes after this."""
        self._last = True
        self._state.uploads_ready.notify_all()
        self._state.commit_ready.notify_all()

    def write_deltas(self) -> None:
        """Write deltas until there are no more; several threads do this."""
        self._run(self._write_deltas)

    def commit_groups(self) -> None:
        """Flush storage for everything written so far, and repeat until nothing is left. One thread does this."""
        self._run(self._commit_groups)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fatal:  # noqa: BLE001 -- whatever it is, those who wait must hear of it
            self._state.fail(fatal)  # guard: report what ended a coordinator thread

    def _write_deltas(self) -> None:
        state = self._state
        while (record := self._next_upload()) is not None:
            try:
                frozen, record.frozen = record.frozen, None
                try:
                    receipt: ReceiptT | None = self._flusher.flush_delta(frozen, record.epochs)
                finally:
                    del frozen  # an idle thread must not hold on to a delta
                error: Exception | None = None
            except DeltaRejected as rejection:
                receipt, error = None, rejection
            with state.lock:
                if state.failure is not None:
                    return
                record.receipt = receipt
                record.flushed = True
                if error is not None:
                    self._reject(record, error, Durability.WRITTEN)
                self._pass_written()
            del receipt, record, error
            state.deliver()

    def _next_upload(self) -> DeltaRecord | None:
        state = self._state
        with state.lock:
            while not self._uploads:
                if self._last or state.failure is not None:
                    return None
                state.clock.wait_until(state.uploads_ready, None)
            if state.failure is not None:
                return None
            state.wake_apply()
            return self._uploads.popleft()

    def _reject(self, record: DeltaRecord, error: Exception, level: Durability) -> None:
        rejection = error if isinstance(error, DeltaRejected) else DeltaRejected(error)
        release_frames(rejection)
        reason = rejection.reason
        if reason.__traceback__ is None:
            # It was made and never raised: where it was rejected is the next best thing to show.
            reason.__traceback__ = rejection.__traceback__
        record.reject(reason if isinstance(reason, ForebayError) else rejection, level)
        self._release_cost(record)
        self._state.settle(record)

    def _pass_written(self) -> None:
        state = self._state
        while self._unwritten and self._unwritten[0].flushed:
            record = self._unwritten.popleft()
            # The view comes before the watermark: who sees the watermark move finds the delta in the view.
            if record.keeps and record.error is None:
                state.board.delta_written(record.receipt)
            elif record.keeps:
                state.board.delta_rejected()
            self._pass(record, Durability.WRITTEN)
            if not self._durable_flushes:
                self._release_cost(record)
            self._written.append(record)
            if record.wants_storage or (self._durable_flushes and record.needs_storage):
                self._storage_due = True
                self._commanded |= record.wants_storage
        self._pass_durable()

    def _pass_durable(self) -> None:
        """Pass over what storage need not hear of, and start a storage flush if there is a reason to."""
        while self._written and not self._committing and not self._written[0].needs_storage:
            self._pass(self._written.popleft(), Durability.DURABLE)
        if self._storage_due or self._last:
            self._state.commit_ready.notify_all()
        if self._state.room_wanted:
            self._state.wake_apply()

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

    def _release_cost(self, record: DeltaRecord) -> None:
        cost, record.cost = record.cost, 0
        self._state.release_cost(cost)

    def _commit_groups(self) -> None:
        state = self._state
        while (group := self._next_group()) is not None:
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
                raise ForebayError(f"{state.name}: flush_storage rejected deltas it was not given: {strangers}")
            with state.lock:
                if state.failure is not None:
                    return
                self._committing = False
                self._storage_not_before = began + self._storage_pace()
                for record in group:
                    error = rejected.get(record.epochs) if record.keeps and record.error is None else None
                    if error is not None:
                        self._reject(record, error, Durability.DURABLE)
                    self._pass(record, Durability.DURABLE)
                self._pass_durable()
            del group, receipts, rejected
            state.deliver()

    def _next_group(self) -> list[DeltaRecord] | None:
        state = self._state
        with state.lock:
            while state.failure is None:
                if self._storage_due and (self._hurries or state.clock.monotonic() >= self._storage_not_before):
                    self._committing = True
                    self._storage_due = self._commanded = False
                    group = list(self._written)
                    self._written.clear()
                    return group
                if self._last and not self._storage_due and not self._unwritten:
                    state.end()
                    break
                state.clock.wait_until(state.commit_ready, self._storage_not_before if self._storage_due else None)
        state.deliver()
        return None
