"""Handles: a caller's references to writes and flushes in progress.

A handle has no lock and no event. It refers to the record of its delta, which all writes of that delta share.
A program may make hundreds of thousands of writes a second, so a handle is a msgspec struct: native code makes it in
half the time of an object with an `__init__`. The cyclic garbage collector ignores handles of writes; otherwise it
would visit each queued handle several times. That is safe: once a write is settled, nothing that its handle refers to
refers back to the handle. Queues and watchers drop it then, or when the coordinator ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

import msgspec

from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.coordinator.delta import Durability, ResultT
from forebay.buffer.coordinator.errors import ApplyFailed, fresh
from forebay.buffer.coordinator.record import Watcher
from forebay.buffer.coordinator.room import LoopWaker
from forebay.buffer.coordinator.state import tell

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from threading import Condition
    from typing import Self

    from forebay.buffer.coordinator.record import DeltaRecord
    from forebay.buffer.coordinator.state import ChannelState, CoordinatorState


class Handle(Generic[ResultT]):  # not an ABC: a struct has its own metaclass
    """An accepted write or flush. Threads and coroutines can wait for it; dropping the handle cancels nothing.

    `epoch` is None until the write is applied; then it is the write's place in the order. The other fields are internal
    to the coordinator.
    """

    __slots__ = ()

    epoch: int | None
    record: DeltaRecord | None
    state: CoordinatorState

    def standing(self, level: int) -> BaseException | bool:
        """Return True once `level` is reached, the error if it never will be, else False.

        Without the lock, only True is certain.
        """
        raise NotImplementedError

    def _answer(self) -> ResultT:
        raise NotImplementedError

    @property
    def final_level(self) -> int:
        """The level that `wait` and `result` wait for by default."""
        raise NotImplementedError

    def __repr__(self) -> str:
        place = "not applied yet" if self.epoch is None else f"epoch {self.epoch}"
        return f"<{type(self).__name__}, {place}>"

    def done(self, durability: Durability | None = None) -> bool:
        """Whether `wait` would return or raise at once."""
        level = durability or self.final_level
        if self.standing(level) is True:
            return True
        with self.state.lock:
            return self.standing(level) is not False

    def wait(self, durability: Durability | None = None, timeout: float | None = None) -> None:
        """Return once the level `durability` is reached; by default, the level that `result` waits for.

        Raises:
            ApplyFailed: the delta refused the write.
            Timeout: the level was not reached in `timeout` seconds. It may be reached later.
            Closed: the coordinator was stopped before the level was reached.
            ForebayError: the write's delta was rejected, or an error stopped the coordinator.
        """
        state = self.state
        deadline = deadline_in(state.clock, timeout)
        level = durability or self.final_level
        if self.standing(level) is True:
            return
        with state.lock:
            while (standing := self.standing(level)) is False:
                overdue = f"not {Durability(level).name.lower()} in {timeout} seconds"
                state.wait(self._next_change(), deadline, overdue)
        if isinstance(standing, BaseException):
            raise fresh(standing)

    def _next_change(self) -> Condition:
        state = self.state
        if self.record is None or self.epoch is None or self.epoch > state.watermarks[Durability.APPLIED]:
            return state.moved
        return self.record.condition(state.lock)

    def result(self, timeout: float | None = None, *, durability: Durability | None = None) -> ResultT:
        """Wait as `wait` does, and return what the write's apply returned (for a flush, its epoch)."""
        self.wait(durability, timeout)
        return self._answer()

    def add_done_callback(self, callback: Callable[[Self], object], *, durability: Durability | None = None) -> None:
        """Call `callback(handle)` once the level is reached or never will be. If that is known already, call it now.

        Otherwise one of the coordinator's threads calls it, and coordinators of a group share these threads. So the
        callback should be quick, and must not wait for another handle. In it, a `write` that would wait for room
        raises `InvalidInput`, and `stop` only begins the stop. An exception from the callback is logged.
        """
        level = durability or self.final_level
        with self.state.lock:
            if self.standing(level) is False:
                self.state.watch(Watcher(level, self, callback))
                return
        tell(callback, self)

    def __await__(self) -> Generator[asyncio.Future[None], None, ResultT]:
        """Wait as `result()` does, but without blocking the event loop."""
        if not self.done():
            import asyncio  # noqa: PLC0415 -- a producer used only by threads need not load it

            waker = LoopWaker(asyncio.get_running_loop())
            self.add_done_callback(waker)
            yield from waker.future
        return self.result()


class WriteHandle(Handle[ResultT], msgspec.Struct, eq=False, gc=False):
    """One write in progress."""

    outcome: Any
    """The write until it is applied, then what apply returned, or the `ApplyFailed`."""
    channel: ChannelState
    state: CoordinatorState
    cost: int
    epoch: int | None = None
    record: DeltaRecord | None = None

    def standing(self, level: int) -> BaseException | bool:
        """Return True once `level` is reached, the error if it never will be, else False.

        Without the lock, only True is certain.
        """
        state, record, epoch = self.state, self.record, self.epoch
        if record is not None and epoch is not None and epoch <= state.watermarks[Durability.APPLIED]:
            if self.outcome.__class__ is ApplyFailed:
                error: BaseException = self.outcome
                return error
            rejection = record.error_at(level)
            if rejection is not None:
                return rejection
            if level == Durability.APPLIED or record.passed >= level:
                return True
        return state.over() or False

    def _answer(self) -> ResultT:
        answer: ResultT = self.outcome
        return answer

    @property
    def final_level(self) -> int:
        """The `default_durability` of the configuration."""
        return self.state.config.default_durability


class FlushHandle(Handle[int], msgspec.Struct, eq=False):
    """One flush command in progress. Its epoch is that of the last write applied before it; 0 if there was none."""

    state: CoordinatorState
    durable: bool
    epoch: int | None = None
    record: DeltaRecord | None = None
    waited_for: tuple[DeltaRecord, ...] = ()
    """The deltas that this flush covers and that were not durable when it began. The last of them is `record`."""

    def standing(self, level: int) -> BaseException | bool:
        """Return True once `level` is reached, the error if it never will be, else False.

        Without the lock, only True is certain.
        """
        last = self.record
        # Deltas reach each level in order, so the last delta decides for all.
        if self.epoch is not None and (
            last is None or level == Durability.APPLIED or last.passed >= level or last.error_at(level) is not None
        ):
            errors = (covered.error_at(level) for covered in self.waited_for)
            return next((error for error in errors if error is not None), True)
        return self.state.over() or False

    def _answer(self) -> int:
        return self.epoch or 0

    @property
    def final_level(self) -> int:
        """DURABLE if this flush includes storage, else WRITTEN."""
        durable = self.durable or self.state.config.durable_flushes
        return Durability.DURABLE if durable else Durability.WRITTEN
