"""The write coordinator: puts writes in one order, collects them in deltas, and flushes each delta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.coordinator.applier import Applier
from forebay.buffer.coordinator.channel import WriteChannel
from forebay.buffer.coordinator.config import CoordinatorConfig
from forebay.buffer.coordinator.delta import FrozenT, ReaderT, ReceiptT, ResultT, WriteT
from forebay.buffer.coordinator.errors import fresh
from forebay.buffer.coordinator.group import CoordinatorGroup
from forebay.buffer.coordinator.handle import FlushHandle
from forebay.buffer.coordinator.pipeline import FlushPipeline
from forebay.buffer.coordinator.state import CoordinatorState
from forebay.buffer.coordinator.view import ViewBoard, ViewSubscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.coordinator.delta import Delta, Durability, Flusher
    from forebay.buffer.coordinator.view import View


class WriteCoordinator(Generic[WriteT, ResultT, FrozenT, ReaderT, ReceiptT]):
    """Orders writes, batches them and makes them durable, with any kind of delta and flusher.

    Its threads are daemons: they do not delay the interpreter's exit. The owner must `stop` the coordinator, or loses
    what is not flushed. Threads do not survive a fork, so a child process must not use its parent's coordinator.
    """

    def __init__(
        self,
        delta: Delta[WriteT, ResultT, FrozenT, ReaderT],
        flusher: Flusher[FrozenT, ReceiptT],
        config: CoordinatorConfig | None = None,
        *,
        channels: Iterable[str] = ("default",),
        snapshot: ReceiptT | None = None,
        storage_pace: Callable[[], float] = lambda: 0.0,
        group: CoordinatorGroup | None = None,
        clock: Clock | None = None,
        name: str = "coordinator",
    ) -> None:
        """Make a coordinator. It accepts writes at once, and applies them after `start`.

        Args:
            delta: The first delta.
            flusher: What stores deltas.
            config: Settings; the defaults if None.
            channels: The names of the channels.
            snapshot: What views show as the flusher's snapshot before the first flush.
            storage_pace: Called after each storage flush. Returns the minimum number of seconds between the start of
                that flush and the start of the next. A storage flush does not wait if it was commanded, makes room,
                or is the last one of a stop.
            group: The group to share threads, a lock and a bound on cost with. The group's bound applies, not
                `max_cost`. None for its own threads.
            clock: Where time comes from. Ignored with a group, which has its own clock.
            name: Its name in error messages and in the names of threads.
        """
        self._config = config or CoordinatorConfig()
        self._group = group or CoordinatorGroup(
            flush_threads=self._config.max_concurrent_flushes + 1,  # one is left for storage
            max_cost=self._config.max_cost,
            clock=clock or SystemClock(),
            name=name,
        )
        self._board: ViewBoard[ReaderT, ReceiptT] = ViewBoard(delta.reader(), snapshot)
        self._state = CoordinatorState(name, self._config, self._group)
        self._channels: dict[str, WriteChannel[WriteT, ResultT]] = {
            channel: WriteChannel(channel, self._state) for channel in channels
        }
        if not self._channels:
            raise InvalidInput(f"{name}: at least one channel is needed")
        pipeline = FlushPipeline(self._state, flusher, self._board, storage_pace)
        self._applier = Applier(self._state, delta, self._board, pipeline)
        self._started = False
        self._last_flush: FlushHandle | None = None
        self._told = False

    def start(self) -> None:
        """Begin to apply and flush. Calling this again does nothing.

        Raises:
            Closed: it was stopped, or all coordinators of its group were. If an error stopped it, that is raised
                instead.
        """
        with self._state.lock:
            self._state.check_accepting()
            self._start()

    def _start(self) -> None:
        if not self._started:
            self._group.join(self._state)
            self._applier.begin()
            self._started = True

    def channel(self, name: str = "default") -> WriteChannel[WriteT, ResultT]:
        """Return the channel of that name.

        Raises:
            InvalidInput: there is no such channel.
        """
        try:
            return self._channels[name]
        except KeyError:
            known = ", ".join(map(repr, self._channels))
            raise InvalidInput(f"{self._state.name}: no channel {name!r}; there are {known}") from None

    def flush(self, *, durable: bool | None = None) -> FlushHandle:
        """Flush every write that entered before, except those that a pause holds back. Return a handle at once.

        The handle fails if one of the deltas it waits for is rejected.

        Args:
            durable: Whether to flush storage too, even if nothing is new; None to do as `durable_flushes` says.

        Raises:
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        handle = FlushHandle(self._state, self._config.durable_flushes if durable is None else durable)
        with self._state.lock:
            self._state.check_accepting()
            self._state.pending.append(handle)
            self._state.wake_apply()
        return handle

    def run_soon(self, work: Callable[[], None]) -> None:
        """Run a function on one of the flush threads.

        Raises:
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        with self._state.lock:
            self._state.check_accepting()
            self._group.run_soon(work)

    def watermark(self, durability: Durability) -> int:
        """Return the highest epoch up to which every write has reached this level or was rejected; 0 at first."""
        return self._state.watermarks[durability]

    def wait_for_epoch(self, epoch: int, durability: Durability, timeout: float | None = None) -> None:
        """Wait until the watermark of `durability` reaches an epoch, which may belong to a future write.

        For callers that know an epoch and have no handle, such as a reader that waits for another process's write. The
        watermark also passes rejected writes: only a write's own handle tells whether it succeeded.

        Raises:
            Timeout: it was not reached in `timeout` seconds.
            Closed: the coordinator stopped first. If an error stopped it, that error is raised instead.
        """
        state = self._state
        deadline = deadline_in(state.clock, timeout)
        with state.lock:
            while state.watermarks[durability] < epoch:
                over = state.over()
                if over is not None:
                    raise fresh(over)
                state.wait(state.moved, deadline, f"epoch {epoch} not {durability.name.lower()} in {timeout} seconds")

    @property
    def view(self) -> View[ReaderT, ReceiptT]:
        """The current view. It is at least as new as any watermark that was read before it."""
        with self._state.lock:
            return self._board.view()

    def subscribe(self) -> ViewSubscription[ReaderT, ReceiptT]:
        """Subscribe to new views. Each flush gives two: when the delta is frozen, and when its flush is over."""
        return ViewSubscription(self._state, self._board, self._config.view_capacity)

    @property
    def held_cost(self) -> int:
        """The cost of all writes that count towards `max_cost`."""
        return self._state.held_cost

    @property
    def stopped(self) -> bool:
        """Whether it has stopped, by `stop` or because of an error."""
        return self._state.over() is not None

    def stop(self, timeout: float | None = None) -> None:
        """Apply and flush every accepted write, on paused channels too, and stop. Once stopped, this does nothing.

        In a done callback this only begins the stop, and does not wait for its end.

        Raises:
            Timeout: the stop did not end in `timeout` seconds. It continues, and `stop` can be called again.
            ForebayError: one of the last deltas was rejected, or an error stopped the coordinator. Only one call
                raises it.
        """
        state = self._state
        deadline = deadline_in(state.clock, timeout)
        with state.lock:
            self._begin_stop()
            if self._group.runs_here():
                return
            while not state.ended and state.failure is None:
                state.wait(state.moved, deadline, f"not stopped in {timeout} seconds")
            problem: BaseException | bool = state.failure if state.failure is not None else False
            if problem is False and self._last_flush is not None:
                problem = self._last_flush.standing(self._last_flush.final_level)
        # After a failure, do not wait for the threads: one may hang in the flusher for any length of time.
        if state.failure is None and self._group.ended:
            self._group.join_threads(state, deadline)
        if isinstance(problem, BaseException):
            error = fresh(problem)
            with state.lock:
                # Do this last: if this call is interrupted before, the next call raises the error.
                if not self._told:
                    self._told = True
                    raise error

    def _begin_stop(self) -> None:
        state = self._state
        if state.ended or state.failure is not None:
            return
        if not state.stopping:
            for channel in self._channels.values():
                channel.unpark()
            if not self._started and not state.pending:
                state.stopping = True
                state.end()
                return
            self._last_flush = FlushHandle(state, self._config.durable_flushes)
            state.stopping = True  # set first: if the append is interrupted, no later call appends again
            state.pending.append(self._last_flush)
        # Every call repeats this: the first call may have been interrupted before it got here.
        state.room.notify_all()
        self._group.room.notify_all()
        self._start()
        state.wake_apply()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
