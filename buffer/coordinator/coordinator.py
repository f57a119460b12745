"""The write coordinator: puts writes in one order, gathers them into deltas, and sees each delta through its flush."""

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
    """Orders writes, batches them and makes them durable, whatever a delta is and however it is flushed.

    Its threads are daemons: they never hold up the interpreter's exit, so the owner of the coordinator must `stop` it,
    or lose what is not flushed. They do not survive a fork: a child process must not use its parent's coordinator.
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
        """Make a coordinator that takes writes at once and applies them once started.

        Args:
            delta: The first delta.
            flusher: What stores deltas.
            config: Settings; the defaults if None.
            channels: The names of the ways in.
            snapshot: What views show as the flusher's snapshot before the first flush.
            storage_pace: Asked after each storage flush how many seconds to leave from its beginning to that of the
                next one, which then takes all that is written meanwhile. One that was commanded never waits, nor does
                one that makes room or the last one of a stop.
            group: The coordinators to share threads, lock and bound on cost with: the group's bound counts, not
                `max_cost`. None for threads of its own.
            clock: Where time comes from, unless there is a group, which has a clock.
            name: What error messages and threads call it.
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
        """Begin to apply and flush. Once started, this does nothing.

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
        """The way in of that name.

        Raises:
            InvalidInput: there is none.
        """
        try:
            return self._channels[name]
        except KeyError:
            known = ", ".join(map(repr, self._channels))
            raise InvalidInput(f"{self._state.name}: no channel {name!r}; there are {known}") from None

    def flush(self, *, durable: bool | None = None) -> FlushHandle:
        """Flush all that entered before, except what a pause holds back; returns a handle at once.

        The handle fails if one of the deltas it waits for is rejected.

        Args:
            durable: Whether to flush storage too, even if nothing is new; None for what `durable_flushes` says.

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
        """Run something beside the flushes, on a flush thread.

        Raises:
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
        """
        with self._state.lock:
            self._state.check_accepting()
            self._group.run_soon(work)

    def watermark(self, durability: Durability) -> int:
        """The epoch up to which every write has come to this level, or was rejected on the way to it; 0 at first."""
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
        """Where every write is now. What a watermark covers is in the view that is read after it."""
        with self._state.lock:
            return self._board.view()

    def subscribe(self) -> ViewSubscription[ReaderT, ReceiptT]:
        """Every view from now on: two for each flush, when a delta is frozen and when its flush is over."""
        return ViewSubscription(self._state, self._board, self._config.view_capacity)

    @property
    def held_cost(self) -> int:
        """The cost of all writes that count towards `max_cost`."""
        return self._state.held_cost

    @property
    def stopped(self) -> bool:
        """Whether nothing more will happen: it was stopped, or an error stopped it."""
        return self._state.over() is not None

    def stop(self, timeout: float | None = None) -> None:
        """Apply and flush all that was accepted, on paused channels too, and stop. Once stopped, this does nothing.

        Called from a done callback it cannot wait, and only begins the stop.

        Raises:
            Timeout: it is not over after `timeout` seconds; it goes on, and `stop` can be called again.
            ForebayError: what rejected one of the last deltas, or what stopped the coordinator; one call raises it.
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
        # After a failure a thread may be stuck in the flusher for as long as the store pleases.
        if state.failure is None and self._group.ended:
            self._group.join_threads(state, deadline)
        if isinstance(problem, BaseException):
            error = fresh(problem)
            with state.lock:
                # Last, so that an interrupt of this call leaves the error to the next one.
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
            state.stopping = True  # before the call: after an interrupt of it, nobody appends another flush
            state.pending.append(self._last_flush)
        # Every call does this: an interrupt may have ended the first one before it did.
        state.room.notify_all()
        self._group.room.notify_all()
        self._start()
        state.wake_apply()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
