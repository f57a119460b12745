"""Handles: what a caller holds of a write or a flush that is under way.

A handle owns no lock and no event: it points to the record of its delta, which all writes of that delta share.
A program may make hundreds of thousands of writes a second, so a handle is a struct: made in native code, in half the
time of an object with an `__init__`, and of no concern to the cyclic garbage collector, which would otherwise look at
each one that is queued several times. That is safe because nothing that a handle refers to refers back to it once the
write is settled. Queues and watchers let go of it then, or when the coordinator ends.
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


class Handle(Generic[ResultT]):  # no ABC: a struct has a metaclass of its own
    """Something that was accepted and can be waited for, from threads and from coroutines; dropping it cancels nothing.

    `epoch` is None until the write is applied, and then its place in the order. The other fields are the coordinator's.
    """

    __slots__ = ()

    epoch: int | None
    record: DeltaRecord | None
    state: CoordinatorState

    def standing(self, level: int) -> BaseException | bool:
        """True once `level` is reached, the error if it never will be, else False: certain only under the lock."""
        raise NotImplementedError

    def _answer(self) -> ResultT:
        raise NotImplementedError

    @property
    def final_level(self) -> int:
        """The level that is waited for unless another is named."""
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
        """Return once the level is reached; without one, the same that `result` waits for.

        Raises:
            ApplyFailed: the delta refused the write.
            Timeout: it was not reached in `timeout` seconds; it may still be.
            Closed: the coordinator was stopped before it was reached.
            ForebayError: what kept the write's delta from the level, or what stopped the coordinator.
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
        """Call `callback(handle)` once the level is reached or never will be: at once if that is known already.

        It is called from one of the coordinator's threads, which coordinators of a group share. So it should be quick,
        and must not wait for another handle. A write that would wait for room is refused there, and a stop only begins.
        Its errors are logged.
        """
        level = durability or self.final_level
        with self.state.lock:
            if self.standing(level) is False:
                self.state.watch(Watcher(level, self, callback))
                return
        tell(callback, self)

    def __await__(self) -> Generator[asyncio.Future[None], None, ResultT]:
        """Wait as `result()` does without blocking the event loop."""
        if not self.done():
            import asyncio  # noqa: PLC0415 -- a producer in threads alone need not load it

            waker = LoopWaker(asyncio.get_running_loop())
            self.add_done_callback(waker)
            yield from waker.future
        return self.result()


class WriteHandle(Handle[ResultT], msgspec.Struct, eq=False, gc=False):
    """One write on its way."""

    outcome: Any
    """The write until it is applied, then what apply returned, or the `ApplyFailed`."""
    channel: ChannelState
    state: CoordinatorState
    cost: int
    epoch: int | None = None
    record: DeltaRecord | None = None

    def standing(self, level: int) -> BaseException | bool:
        """True once `level` is reached, the error if it never will be, else False: certain only under the lock."""
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
        """What the configuration says."""
        return self.state.config.default_durability


class FlushHandle(Handle[int], msgspec.Struct, eq=False):
    """One flush command on its way; its epoch is that of the last write applied before it, 0 if there was none."""

    state: CoordinatorState
    durable: bool
    epoch: int | None = None
    record: DeltaRecord | None = None
    waited_for: tuple[DeltaRecord, ...] = ()
    """The deltas this flush covers that were not durable when it was given; the last of them is `record`."""

    def standing(self, level: int) -> BaseException | bool:
        """True once `level` is reached, the error if it never will be, else False: certain only under the lock."""
        last = self.record
        # The last delta to settle answers for all, as levels are reached in order.
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
        """Where this flush ends."""
        durable = self.durable or self.state.config.durable_flushes
        return Durability.DURABLE if durable else Durability.WRITTEN
