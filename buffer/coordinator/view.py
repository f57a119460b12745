"""Views: what readers see of the writes, and subscriptions to every change of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic
from weakref import WeakSet

from forebay.buffer.base.errors import Closed
from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.coordinator.delta import ReaderT, ReceiptT, Stamped
from forebay.buffer.coordinator.errors import MessagesLost, fresh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.coordinator.state import CoordinatorState


@dataclass(frozen=True, slots=True)
class View(Generic[ReaderT, ReceiptT]):
    """Where every write is at one moment: together the parts hold each write that was applied and not rejected."""

    current: ReaderT
    """The delta that takes writes now."""
    frozen: tuple[Stamped[ReaderT], ...] = ()
    """The deltas on their way to storage, newest first."""
    last_written: Stamped[ReaderT] | None = None
    """The newest delta that was written."""
    snapshot: ReceiptT | None = None
    """What the flusher returned for the newest written delta; before the first, what the coordinator was given."""


class ViewBoard(Generic[ReaderT, ReceiptT]):
    """The parts of the latest view, and those who follow it. Every method is called with the coordinator's lock held.

    A view is made only for those who ask or have subscribed.
    """

    def __init__(self, current: ReaderT, snapshot: ReceiptT | None) -> None:
        self._current = current
        self._frozen: deque[Stamped[ReaderT]] = deque()
        self._last_written: Stamped[ReaderT] | None = None
        self._snapshot = snapshot
        # A subscription that its owner forgot is gone from here too.
        self.subscriptions: WeakSet[ViewSubscription[ReaderT, ReceiptT]] = WeakSet()

    def view(self) -> View[ReaderT, ReceiptT]:
        """The view as it is now."""
        return View(self._current, tuple(self._frozen), self._last_written, self._snapshot)

    def delta_frozen(self, epochs: range, successor: ReaderT) -> None:
        """Show the current delta as frozen, and its successor as current."""
        self._frozen.appendleft(Stamped(epochs, self._current))
        self._current = successor
        self._publish()

    def delta_written(self, receipt: ReceiptT) -> None:
        """Show the oldest frozen delta as written."""
        self._last_written = self._frozen.pop()
        self._snapshot = receipt
        self._publish()

    def delta_rejected(self) -> None:
        """Show the oldest frozen delta no more."""
        self._frozen.pop()
        self._publish()

    def _publish(self) -> None:
        if self.subscriptions:
            view = self.view()
            for subscription in self.subscriptions:
                subscription.offer(view)


class ViewSubscription(Generic[ReaderT, ReceiptT]):
    """Every view since the subscription began, in order, as long as its reader keeps up."""

    view: View[ReaderT, ReceiptT]
    """The view it started from: the first one received is the one right after it."""

    def __init__(self, state: CoordinatorState, board: ViewBoard[ReaderT, ReceiptT], capacity: int) -> None:
        self._state = state
        self._board = board
        self._capacity = capacity
        self._waiting: deque[View[ReaderT, ReceiptT]] = deque()
        self._lost = False
        self.restart()

    def restart(self) -> View[ReaderT, ReceiptT]:
        """The view as it is now; what is received next comes right after it."""
        with self._state.lock:
            self._waiting.clear()
            self._lost = False
            self._board.subscriptions.add(self)
            self.view = self._board.view()
            return self.view

    def receive(self, timeout: float | None = None) -> View[ReaderT, ReceiptT]:
        """The next view.

        Raises:
            MessagesLost: views were dropped; call `restart()`.
            Timeout: there was none in `timeout` seconds.
            Closed: there will be no more. If an error stopped the coordinator, it is raised instead.
        """
        state = self._state
        deadline = deadline_in(state.clock, timeout)
        with state.lock:
            while not self._waiting:
                if self._lost:
                    raise MessagesLost(
                        f"{state.name}: a subscriber fell {self._capacity} views behind"
                        "; subscribe again, and read from the newest view"
                    )
                over = state.over()
                if over is not None:
                    raise fresh(over)
                state.wait(state.view_changed, deadline, f"no new view in {timeout} seconds")
            return self._waiting.popleft()

    def __iter__(self) -> Iterator[View[ReaderT, ReceiptT]]:
        try:
            while True:
                yield self.receive()
        except Closed:
            return

    def offer(self, view: View[ReaderT, ReceiptT]) -> None:
        """Queue a view, with the lock held; if there is no room, drop them all and remember it."""
        if self._lost:
            return
        if len(self._waiting) < self._capacity:
            self._waiting.append(view)
        else:
            self._lost = True
            self._waiting.clear()
        self._state.view_changed.notify_all()
