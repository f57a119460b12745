"""Channels: named queues for writes. Each has its own capacity and can be paused on its own."""

from __future__ import annotations

from collections import deque
from threading import current_thread
from typing import TYPE_CHECKING, Final, Generic

from forebay.buffer.base.checks import check_timeout
from forebay.buffer.base.errors import Backpressure, InvalidInput, Timeout
from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.coordinator.delta import ResultT, WriteT
from forebay.buffer.coordinator.handle import WriteHandle
from forebay.buffer.coordinator.room import LoopWaker
from forebay.buffer.coordinator.state import ChannelState

if TYPE_CHECKING:
    from threading import Condition

    from forebay.buffer.coordinator.room import Room
    from forebay.buffer.coordinator.state import CoordinatorState


class _Place:
    """Where a coroutine waits: in its channel's line for capacity, then in the group's line for the cost bound."""

    __slots__ = ("in_channel_line", "in_line", "thread", "waker")

    def __init__(self) -> None:
        self.in_channel_line = False
        self.in_line = False
        self.waker: LoopWaker | None = None
        self.thread: Final = current_thread()
        """The thread of its event loop: while this thread waits, the coroutine cannot leave the queue."""


class WriteChannel(ChannelState, Generic[WriteT, ResultT]):
    """A named queue for writes. It keeps their order, also across a pause."""

    paused: bool

    def __init__(self, name: str, state: CoordinatorState) -> None:
        super().__init__(name)
        self.state = state
        self._group = state.group
        self.handle_type: type[WriteHandle[ResultT]] = WriteHandle
        """The class of the handle that a write returns. Set it before the first write."""
        self._capacity = state.config.queue_capacity
        self._line: deque[_Place] = deque()
        """Coroutines that wait for the channel's capacity, first come first served."""

    def try_write(self, write: WriteT, *, cost: int = 0) -> WriteHandle[ResultT]:
        """Queue a write if there is room now, and return its handle.

        Raises:
            Backpressure: there is no room. The error's `write` is the write.
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        state = self.state
        handle = self.handle_type(write, self, state, cost)
        with state.lock:
            if state.stopping or state.failure is not None:
                state.check_accepting()
            if self.accepted - self.applied >= self._capacity:
                raise Backpressure(
                    f"channel {self.name!r} of {state.name} is full: it holds {self._capacity} writes; try again later",
                    write=write,
                )
            if not self._has_cost_room(cost):
                held, most = self._group.held_cost, self._group.max_cost
                raise Backpressure(f"{state.name}: {held} of {most} bytes are held; try again later", write=write)
            self.accepted += 1
            state.held_cost += cost
            self._group.held_cost += cost
            state.pending.append(handle)
            if state.idle:
                state.wake_apply()
        return handle

    def write(self, write: WriteT, *, timeout: float | None = None, cost: int = 0) -> WriteHandle[ResultT]:
        """Queue a write and return its handle. Wait for room, for at most `timeout` seconds if given.

        Raises:
            Timeout: there was no room in that time. The error's `write` is the write.
            InvalidInput: there is no room, and the caller must not wait. It is a done callback, and waiting there
                would stop the flushes. Or a coroutine of this thread's event loop waits before it, and could not go on.
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        if timeout is not None:
            check_timeout(timeout)
        state, group = self.state, self._group
        handle = self.handle_type(write, self, state, cost)
        with state.lock:
            if state.stopping or state.failure is not None:
                state.check_accepting()
            if self.accepted - self.applied >= self._capacity or (
                # The common case is checked here, without the cost of a call.
                (group.cost_line or not 0 <= cost <= group.max_cost - group.held_cost) and not self._has_cost_room(cost)
            ):
                self._wait_for_room(write, timeout, cost)
            self.accepted += 1
            state.held_cost += cost
            group.held_cost += cost
            state.pending.append(handle)
            if state.idle:
                state.wake_apply()
        return handle

    async def write_async(
        self,
        write: WriteT,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 -- on the coordinator's clock; the error has the write
        cost: int = 0,
    ) -> WriteHandle[ResultT]:
        """Queue a write as `write` does, but wait for room without blocking the event loop.

        A call that is cancelled while it waits has queued nothing. The coordinator must have been started: its threads
        end the wait at the timeout.

        Raises:
            Timeout: there was no room in that time. The error's `write` is the write.
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        from asyncio import get_running_loop  # noqa: PLC0415 -- a producer used only by threads need not load it

        state = self.state
        handle = self.handle_type(write, self, state, cost)
        deadline = deadline_in(state.clock, timeout)
        place = _Place()
        try:
            while True:
                with state.lock:
                    state.check_accepting()
                    room = self._find_room(place, cost)
                    if room is None:
                        self._leave_line(place)
                        self._accept(handle)
                        return handle  # no await after `_accept`: a cancelled call has queued nothing
                    if deadline is not None and state.clock.monotonic() >= deadline:
                        raise self._no_room(write, timeout)
                    place.waker = waker = LoopWaker(get_running_loop())
                    room.add(waker)
                    self._group.apply_thread.wake_at(waker.wake_soon, deadline)
                try:
                    await waker.future
                finally:
                    with state.lock:
                        room.discard(waker)
                        self._group.apply_thread.wake_at(waker.wake_soon, None)
        finally:
            with state.lock:
                self._leave_line(place)  # guard: a cancelled write gives up its place

    def _find_room(self, place: _Place, cost: int) -> Room | None:
        """Return the room that a coroutine must wait for; None if its write may enter now."""
        group = self._group
        if not place.in_line:
            ahead = self._line[0] is not place if self._line else False  # guard: coroutines enter in their order
            if ahead or self.accepted - self.applied >= self._capacity:
                if not place.in_channel_line:
                    place.in_channel_line = True
                    self._line.append(place)
                return self.state.room
            self._leave_channel_line(place)
            if self._has_cost_room(cost):
                return None
            # As in `_wait_for_room`, keep the place in the channel while waiting for the cost bound.
            self.accepted += 1
            place.in_line = True
            group.cost_line.append(place)
        if group.cost_line[0] is place and (not group.held_cost or group.held_cost + cost <= group.max_cost):
            return None
        group.make_room()
        return group.room

    def _leave_channel_line(self, place: _Place) -> None:
        if place.in_channel_line:
            place.in_channel_line = False
            self._line.remove(place)
            if self._line and (waker := self._line[0].waker) is not None:
                waker.wake_soon()  # there may be room for it too, and it may have been woken before its turn

    def _leave_line(self, place: _Place) -> None:
        self._leave_channel_line(place)
        if place.in_line:
            place.in_line = False
            self.accepted -= 1
            self._group.cost_line.remove(place)
            self._group.room.notify_all()
            self.state.room.notify_all()

    def _accept(self, handle: WriteHandle[ResultT]) -> None:
        self.accepted += 1
        self.state.held_cost += handle.cost
        self._group.held_cost += handle.cost
        self.state.pending.append(handle)
        self.state.wake_apply()

    def _no_room(self, write: WriteT, timeout: float | None) -> Timeout:
        return Timeout(
            f"{self.state.name}: no room in channel {self.name!r} in {timeout} seconds; try again later", write=write
        )

    def _has_cost_room(self, cost: int) -> bool:
        group = self._group
        if cost < 0:
            raise InvalidInput(f"a write's cost must not be negative: {cost}")
        if not cost:
            return True
        held = group.held_cost
        # guard: bound the cost of writes that are not yet durable
        if not group.cost_line and (held == 0 or held + cost <= group.max_cost):
            return True
        group.make_room()
        return False

    def _wait_for_room(self, write: WriteT, timeout: float | None, cost: int) -> None:
        state, group = self.state, self._group
        if group.runs_here():
            raise InvalidInput(
                f"{state.name}: no room, and a done callback must not wait for it: use try_write or try_produce"
            )
        # guard: never wait behind a coroutine of the calling thread
        if any(isinstance(place, _Place) and place.thread is current_thread() for place in group.cost_line):
            raise InvalidInput(
                f"{state.name}: no room, and a coroutine of this thread's event loop waits for room before this call, "
                "which would stop that loop for ever: await write_async or produce_async instead"
            )
        deadline = deadline_in(state.clock, timeout)

        def wait(room: Condition) -> None:
            if deadline is not None and state.clock.monotonic() >= deadline:
                raise self._no_room(write, timeout)
            state.clock.wait_until(room, deadline)
            if state.stopping or state.failure is not None:
                state.check_accepting()

        while self.accepted - self.applied >= self._capacity:
            wait(state.room)
        if not cost:
            return
        # Keep the place in the channel while waiting for the cost bound, so that the wait for it need not be repeated.
        place = object()
        self.accepted += 1
        try:
            group.cost_line.append(place)
            while group.cost_line[0] is not place or (group.held_cost and group.held_cost + cost > group.max_cost):
                group.make_room()
                wait(group.room)
        finally:
            self.accepted -= 1
            group.cost_line.remove(place)  # an interrupt comes only after a call, so the append was done
            group.room.notify_all()
            state.room.notify_all()

    def pause(self) -> None:
        """Hold back this channel's writes: once this returns, none is applied until `resume`, or until the stop."""
        state = self.state
        with state.lock:
            state.check_accepting()
            if not self.paused:
                self.paused = True
                state.paused += 1
                state.newly_paused = True
            # Called from inside an apply, this cannot wait for that apply to end. It only holds back later writes.
            state.interrupt = state.interrupt or state.applying
            batches = state.batches
            here = current_thread() is self._group.apply_thread.thread
            while state.applying and state.batches == batches and not here:
                state.clock.wait_until(state.moved, None)

    def resume(self) -> None:
        """Apply this channel's writes again, first those that were held back."""
        with self.state.lock:
            self.unpark()
            self.state.wake_apply()

    def unpark(self) -> None:
        """Undo a pause. The caller holds the lock."""
        if self.paused:
            self.paused = False
            self.state.paused -= 1
            self.state.pending[:0] = self.state.parked.pop(self, [])
