"""Channels: where writes enter, each with a capacity and a pause of its own."""

from __future__ import annotations

import math
from threading import current_thread
from typing import TYPE_CHECKING, Generic, TypeVar

from forebay.buffer.base.checks import check_timeout
from forebay.buffer.base.errors import Backpressure, InvalidInput, Timeout
from forebay.buffer.coordinator.errors import fresh
from forebay.buffer.coordinator.handle import WriteHandle

if TYPE_CHECKING:
    from threading import Thread

    from forebay.buffer.coordinator.state import CoordinatorState

WriteT = TypeVar("WriteT")
ResultT = TypeVar("ResultT")


class WriteChannel(Generic[WriteT, ResultT]):
    """One named way in. Writes of one channel are applied in the order they entered it, paused or not."""

    def __init__(self, name: str, state: CoordinatorState) -> None:
        self.name = name
        self.state = state
        self.handle_type: type[WriteHandle[ResultT]] = WriteHandle
        """What a write returns; set before the first write."""
        self._capacity = state.config.queue_capacity
        self._max_cost = math.inf if state.config.max_cost is None else state.config.max_cost
        self.accepted = 0
        """Writes that entered, those waiting for the cost bound included; changed under the lock."""
        self.applied = 0
        """Writes that left the queue; changed by the apply thread alone, without the lock."""
        self.paused = False
        self.apply_thread: Thread | None = None

    @property
    def queued(self) -> int:
        """How many writes of this channel are accepted and not yet applied."""
        return self.accepted - self.applied

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
                self._refuse()
            if self.accepted - self.applied >= self._capacity:
                raise Backpressure(f"{state.name}: channel {self.name!r} holds {self._capacity} writes", write=write)
            if not self._has_cost_room(cost):
                raise Backpressure(f"{state.name}: {state.held_cost} of {self._max_cost} are held", write=write)
            self.accepted += 1
            state.held_cost += cost
            state.pending.append(handle)
            if state.idle:
                state.wake_apply()
        return handle

    def write(self, write: WriteT, *, timeout: float | None = None, cost: int = 0) -> WriteHandle[ResultT]:
        """Hand a write in, waiting for room, for at most `timeout` seconds if given.

        Raises:
            Timeout: there was no room in that time; the write is in its `write`.
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        if timeout is not None:
            check_timeout(timeout)
        state = self.state
        handle = self.handle_type(write, self, state, cost)
        with state.lock:
            if state.stopping or state.failure is not None:
                self._refuse()
            if self.accepted - self.applied >= self._capacity or (
                # What nearly every write finds is seen here, without the price of a call.
                (state.cost_line or not 0 <= cost <= self._max_cost - state.held_cost) and not self._has_cost_room(cost)
            ):
                self._wait_for_room(write, timeout, cost)
            self.accepted += 1
            state.held_cost += cost
            state.pending.append(handle)
            if state.idle:
                state.wake_apply()
        return handle

    def _has_cost_room(self, cost: int) -> bool:
        state = self.state
        if cost < 0:
            raise InvalidInput(f"a write's cost must not be negative: {cost}")
        if not cost:
            return True
        held = state.held_cost
        # guard: bound the cost of writes that are not yet durable
        if not state.cost_line and (held == 0 or held + cost <= self._max_cost):
            return True
        self._want_room()
        return False

    def _want_room(self) -> None:
        # What is held may be sitting in a delta that no size or interval will flush soon.
        self.state.room_wanted = True
        self.state.wake_apply()
        self.state.commit_ready.notify_all()  # as in `wake_apply`

    def _wait_for_room(self, write: WriteT, timeout: float | None, cost: int) -> None:
        state = self.state
        deadline = None if timeout is None else state.clock.monotonic() + timeout

        def sleep() -> None:
            if deadline is not None and state.clock.monotonic() >= deadline:
                raise Timeout(f"{state.name}: no room in channel {self.name!r} in {timeout} seconds", write=write)
            state.clock.wait_until(state.room, deadline)
            if state.stopping or state.failure is not None:
                self._refuse()

        while self.accepted - self.applied >= self._capacity:
            sleep()
        if not cost:
            return
        # The place in the channel is kept while the cost bound is waited for, so that neither wait starts over.
        place = object()
        self.accepted += 1
        try:
            state.cost_line.append(place)
            while state.cost_line[0] is not place or (state.held_cost and state.held_cost + cost > self._max_cost):
                self._want_room()
                sleep()
        finally:
            self.accepted -= 1
            state.cost_line.remove(place)  # an interrupt comes after a call, so it is there
            state.room.notify_all()

    def _refuse(self) -> None:
        refusal = self.state.refusal()
        if refusal is not None:
            raise fresh(refusal)

    def pause(self) -> None:
        """Hold back this channel's writes: once this returns, none is applied until `resume`, or until the stop."""
        state = self.state
        with state.lock:
            self._refuse()
            if not self.paused:
                self.paused = True
                state.paused += 1
                state.newly_paused = True
            # From inside an apply it cannot wait for that apply; the ones after it are held back all the same.
            state.interrupt = state.interrupt or state.applying
            batches = state.batches
            while state.applying and state.batches == batches and current_thread() is not self.apply_thread:
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
