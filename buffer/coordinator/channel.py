"""Channels: where writes enter, each with a capacity and a pause of its own."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING, Generic

from forebay.buffer.base.checks import check_timeout
from forebay.buffer.base.errors import Backpressure, InvalidInput, Timeout
from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.coordinator.delta import ResultT, WriteT
from forebay.buffer.coordinator.handle import WriteHandle
from forebay.buffer.coordinator.state import ChannelState

if TYPE_CHECKING:
    from threading import Condition

    from forebay.buffer.coordinator.state import CoordinatorState


class WriteChannel(ChannelState, Generic[WriteT, ResultT]):
    """One named way in. Writes of one channel are applied in the order they entered it, paused or not."""

    def __init__(self, name: str, state: CoordinatorState) -> None:
        super().__init__(name)
        self.state = state
        self._group = state.group
        self.handle_type: type[WriteHandle[ResultT]] = WriteHandle
        """What a write returns; set before the first write."""
        self._capacity = state.config.queue_capacity

    def try_write(self, write: WriteT, *, cost: int = 0) -> WriteHandle[ResultT]:
        """Hand a write in if there is room now.

        Raises:
            Backpressure: there is none; the write is in its `write`.
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        state = self.state
        handle = self.handle_type(write, self, state, cost)
        with state.lock:
            if state.stopping or state.failure is not None:
                state.check_accepting()
            if self.accepted - self.applied >= self._capacity:
                raise Backpressure(f"{state.name}: channel {self.name!r} holds {self._capacity} writes", write=write)
            if not self._has_cost_room(cost):
                held, most = self._group.held_cost, self._group.max_cost
                raise Backpressure(f"{state.name}: {held} of {most} bytes are held", write=write)
            self.accepted += 1
            state.held_cost += cost
            self._group.held_cost += cost
            state.pending.append(handle)
            if state.idle:
                state.wake_apply()
        return handle

    def write(self, write: WriteT, *, timeout: float | None = None, cost: int = 0) -> WriteHandle[ResultT]:
        """Hand a write in, waiting for room, for at most `timeout` seconds if given.

        Raises:
            Timeout: there was no room in that time; the write is in its `write`.
            InvalidInput: there is no room, and the caller is a done callback: waiting there would stop the flushes.
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
                # What nearly every write finds is seen here, without the price of a call.
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
        deadline = deadline_in(state.clock, timeout)

        def wait(room: Condition) -> None:
            if deadline is not None and state.clock.monotonic() >= deadline:
                raise Timeout(f"{state.name}: no room in channel {self.name!r} in {timeout} seconds", write=write)
            state.clock.wait_until(room, deadline)
            if state.stopping or state.failure is not None:
                state.check_accepting()

        while self.accepted - self.applied >= self._capacity:
            wait(state.room)
        if not cost:
            return
        # The place in the channel is kept while the cost bound is waited for, so that neither wait starts over.
        place = object()
        self.accepted += 1
        try:
            group.cost_line.append(place)
            while group.cost_line[0] is not place or (group.held_cost and group.held_cost + cost > group.max_cost):
                group.make_room()
                wait(group.room)
        finally:
            self.accepted -= 1
            group.cost_line.remove(place)  # an interrupt comes after a call, so it is there
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
            # From inside an apply it cannot wait for that apply; the ones after it are held back all the same.
            state.interrupt = state.interrupt or state.applying
            batches = state.batches
            here = current_thread() is self._group.apply_thread.thread
            while state.applying and state.batches == batches and not here:
                state.clock.wait_until(state.moved, None)

    def resume(self) -> None:
        """Let this channel's writes go on, those held back first."""
        with self.state.lock:
            self.unpark()
            self.state.wake_apply()

    def unpark(self) -> None:
        """Undo a pause, with the lock held."""
        if self.paused:
            self.paused = False
            self.state.paused -= 1
            self.state.pending[:0] = self.state.parked.pop(self, [])
