"""Views: what readers see of the writes, and subscriptions to new views."""

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
    """All deltas at one moment. Together, the parts hold each write that was applied and not rejected."""

    current: ReaderT
    """The delta that takes writes now."""
    frozen: tuple[Stamped[ReaderT], ...] = ()
    """The frozen deltas that are not written yet, newest first."""
    last_written: Stamped[ReaderT] | None = None
    """The newest delta that was written."""
    snapshot: ReceiptT | None = None
    """The receipt of the newest written delta; before the first, the `snapshot` that the coordinator was given."""


class ViewBoard(Generic[ReaderT, ReceiptT]):
    """The parts of the current view, and its subscribers. Every method is called with the coordinator's lock held.

    A `View` is made only on request or for subscribers.
    """

    def __init__(self, current: ReaderT, snapshot: ReceiptT | None) -> None:
        self._current = current
        self._frozen: deque[Stamped[ReaderT]] = deque()
        self._last_written: Stamped[ReaderT] | None = None
        self._snapshot = snapshot
        # Weak references: a subscription that its owner drops disappears from here too.
        self.subscriptions: WeakSet[ViewSubscription[ReaderT, ReceiptT]] = WeakSet()

    def view(self) -> View[ReaderT, ReceiptT]:
        """Return the current view."""
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
        """Remove the oldest frozen delta from the view."""
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
    """The view at the start. The first view received is the next one after it."""

    def __init__(self, state: CoordinatorState, board: ViewBoard[ReaderT, ReceiptT], capacity: int) -> None:
        self._state = state
        self._board = board
        self._capacity = capacity
        self._waiting: deque[View[ReaderT, ReceiptT]] = deque()
        self._lost = False
        self.restart()

    def restart(self) -> View[ReaderT, ReceiptT]:
        """Return the current view, and continue from there: the next view received is the one after it."""
        with self._state.lock:
            self._waiting.clear()
            self._lost = False
            self._board.subscriptions.add(self)
            self.view = self._board.view()
            return self.view

    def receive(self, timeout: float | None = None) -> View[ReaderT, ReceiptT]:
        """Wait for the next view, and return it.

        Raises:
            MessagesLost: views were dropped; call `restart()`.
            Timeout: there was no new view in `timeout` seconds.
            Closed: the coordinator was stopped. If an error stopped it, that is raised instead.
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
        """Queue a view. If the queue is full, drop all views; `receive` then raises `MessagesLost`."""
        if self._lost:
            return
        if len(self._waiting) < self._capacity:
            self._waiting.append(view)
        else:
            self._lost = True
            self._waiting.clear()
        self._state.view_changed.notify_all()
