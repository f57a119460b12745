"""Reading batches one by one, with `next_batch`, `for` and `async for`: the same for buffers and topics (rfcs/0004)."""

from __future__ import annotations

import asyncio
import math
import os
from abc import abstractmethod
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Condition, RLock
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakSet

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import Closed, InvalidInput, NotFound, Timeout
from forebay.buffer.base.lifecycle import AsyncClosing
from forebay.buffer.base.waiting import POLL_FLOOR, wait_for
from forebay.buffer.read.ahead import FetchWindow, ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.ahead import Fetch
    from forebay.buffer.read.fetch import Batch, FetchHandle

MAX_RACES: Final = 10_000
"""Maximum number of times in one call that other threads of the same consumer may take the next batch first."""
MAX_SKIPS: Final = 100
"""Maximum number of times in one call that retention may drop what comes next before it can be read."""
RUN: Final = 100
"""Maximum number of batches of one buffer that are listed ahead of what is handed over, fetched or not."""
_LOOK_AGAIN: Final = 1.0
"""Maximum time in seconds until a batch is noticed whose arrival nobody told."""

F = TypeVar("F")
"""Where a batch was found."""
B = TypeVar("B")
"""A batch."""


_consumers: WeakSet[BaseConsumer[Any, Any]] = WeakSet()


def _note_fork() -> None:
    """In a forked child: consumers are the parent's. Both would read under one claim, and neither would be fenced."""
    for consumer in _consumers:
        consumer.inherited = True


os.register_at_fork(after_in_child=_note_fork)


class BaseConsumer(AsyncClosing, Generic[F, B]):
    """What a consumer of a buffer and one of a topic have in common: handing out batches one by one.

    `next_batch` looks and fetches when it is called. Iteration reads ahead: `_found` lists what comes next, as the last
    looks found it, and `_window` fetches the first of these.
    """

    _INSTEAD = "pass on fetch_handle(), which can be pickled and only fetches, or the URL, and open another one there"

    def __init__(self, url: str, *, max_poll_interval: float, read_ahead: ReadAhead | None, clock: Clock) -> None:
        read_ahead = ReadAhead() if read_ahead is None else read_ahead
        if not isinstance(read_ahead, ReadAhead):
            raise InvalidInput(f"read_ahead must be ReadAhead(batches=…, max_bytes=…), not {read_ahead!r}")
        self.url = url
        self.inherited = False
        """Whether this process is a forked child of the one that opened it."""
        self._max_poll_interval = max_poll_interval
        self._read_ahead = read_ahead
        self._clock = clock
        self._closing_lock = RLock()
        self._closing = Condition(self._closing_lock)
        """Notified when the consumer is closed, and when a batch arrives that was fetched ahead."""
        self._closed = False
        self._reading = RLock()
        """Guards what follows, during looks too."""
        self._found: deque[F] = deque()
        self._window: FetchWindow[F] = FetchWindow(
            read_ahead.limits, name="forebay-ahead", tell=partial(_notify, self._closing_lock, self._closing)
        )
        self._has_more = True
        """Whether there may be more than `_found` lists."""
        self._is_ahead = False
        """Whether `_found` was filled by iteration."""
        _consumers.add(self)

    def next_batch(self) -> B | None:
        """Return the next batch, or None if there is none yet. A topic gives one of each partition in turn.

        The position moves only once the batch is here: after an error or an interrupt, the next call reads the same
        one. An interrupt is any exception that Python raises between two instructions, such as `KeyboardInterrupt`. If
        it comes after the position has moved, the position is moved back. If another thread has already read further,
        a buffer's consumer cannot acknowledge the interrupted batch or later ones, and a new consumer reads them again.
        A topic's consumer returns the interrupted batch next, after later ones of its partition.

        It looks at the manifest and then fetches the batch, each time. Iteration is faster: it reads ahead. What was
        fetched ahead is discarded here.

        A batch can still be lost in two cases: a second interrupt comes while the position is moved back, or an
        interrupt comes after this call has returned and before the caller has stored the result. The second cannot
        happen in `batch = consumer.next_batch()` unless a debugger or tracer is running, because CPython checks for
        signals only at a function's start, after a call of C code and at a loop's jump back. `ack` notices a lost
        batch, because it goes one by one. `ack_through` cannot.
        """
        # The code from `_take` to `return` must be in the function that the user calls: an interrupt on the way from
        # another function to this one would lose the batch. So `Arrivals` has it twice more.
        self._stop_ahead()
        races = 0
        while (found := self._peek()) is not None:
            place, batch = found
            try:
                if self._take(place):
                    return batch
            except BaseException:  # guard: put back a batch whose return was interrupted
                self._put_back(place)
                raise
            races = count_race(races)
        return None

    def batches(self, *, wait: bool | float = False) -> Arrivals[B]:
        """Iterate over what follows, with `for` or `async for`, while the next batches are fetched (`read_ahead`).

        The position moves only when a batch is handed over, as with `next_batch`. Several iterators of one consumer,
        in one thread or in several, share the batches: each is handed over once. An iterator can be dropped at any
        time; the next one goes on where it was.

        Args:
            wait: what to do at the end of what is there: False stops, True waits for more until the consumer is
                closed, a number stops after that many seconds without a new batch.
        """
        self._check_open()
        patience = (math.inf if wait else 0.0) if isinstance(wait, bool) else check_seconds(wait, "wait")
        steps = (self._peek_ahead, self._take_ahead) if self._read_ahead.batches else (self._peek, self._take)
        return Arrivals(*steps, self._put_back, self._wait, patience, self._max_poll_interval, self._clock)

    def __iter__(self) -> Arrivals[B]:
        return self.batches()

    def __aiter__(self) -> Arrivals[B]:
        return self.batches()

    @abstractmethod
    def __len__(self) -> int:
        """How many batches were not acknowledged, as last seen."""

    def __bool__(self) -> bool:
        return True  # an empty consumer is still a consumer

    @abstractmethod
    def _peek(self) -> tuple[F, B] | None:
        """Fetch the next batch without taking it, and return it with its place; None if there is none yet."""

    @abstractmethod
    def _take(self, place: F) -> bool:
        """Take a batch that `_peek` returned, unless another thread has since."""

    @abstractmethod
    def _put_back(self, place: F) -> None:
        """Undo `_take`, if it happened."""

    # Reading ahead

    @abstractmethod
    def _look_ahead(self) -> None:
        """Look for more than `_found` lists, up to `RUN` batches of each buffer, and append what is there."""

    @abstractmethod
    def _follows(self, place: F) -> bool:
        """Whether this is still the next batch to be handed over."""

    @abstractmethod
    def _last_look(self, place: F) -> float:
        """When the last look at the manifest or cursor of a batch's buffer began, by the monotonic clock."""

    @abstractmethod
    def _to_fetch(self, place: F) -> tuple[FetchHandle, BatchDescriptor]:
        """What is fetched, and by whom."""

    @abstractmethod
    def _arrived(self, place: F, batch: Batch) -> B:
        """Note that a batch was fetched, and return what is handed over."""

    @abstractmethod
    def _look_for_missing(self, place: F, error: NotFound) -> None:
        """Look again for a batch whose object is missing; return if the next one is another now, else raise."""

    def _peek_ahead(self) -> tuple[F, B] | None:
        """Do what `_peek` does, while the following batches are fetched."""
        races = skips = 0
        while True:
            self._check_open()  # before the lock, which a thread of the parent may hold for ever in a forked child
            with self._reading:
                self._check_open()
                fetch = self._fill_window()
            if fetch is None:
                return None
            coming = fetch.batch
            with self._closing_lock:
                while not coming.done() and not self._closed:
                    # Not for ever: a thread that is short of memory may fail to tell us.
                    self._clock.wait_until(self._closing, self._clock.monotonic() + _LOOK_AGAIN)
            self._check_open()
            try:
                batch = coming.result()
            except CancelledError:  # another thread has discarded it
                races = count_race(races)
            except NotFound as error:
                self._drop(fetch)
                self._look_for_missing(fetch.place, error)
                skips += 1
                if skips >= MAX_SKIPS:
                    raise self._outpaced() from error
            except BaseException:
                self._drop(fetch)  # guard: fetch a batch again after an error
                raise
            else:
                self._ensure_fresh(fetch)
                return fetch.place, self._arrived(fetch.place, batch)

    def _take_ahead(self, place: F) -> bool:
        """Do what `_take` does, unless the last look is too old."""
        with self._reading:
            fetch = self._window.first
            if fetch is None or fetch.place is not place:
                return False
            if self._is_stale(place) and not fetch.is_late:
                fetch.is_late = True  # the next attempt hands it over, however slow the look or the event loop is
                return False
            if not self._take(place):
                return False
            self._window.pop()
            return True

    def _fill_window(self) -> Fetch[F] | None:
        """Fetch as many of the next batches as the limits allow, and return the first; None if there is none yet."""
        self._is_ahead = True
        if self._found and not self._follows(self._found[0]):  # guard: discard what was fetched ahead after a jump
            self._found.clear()
        if not self._found:
            self._window.clear()
            self._look_ahead()
        elif (first := self._window.first) is not None and first.place is not self._found[0]:
            self._window.clear()
        self._start_fetches()
        if self._has_more and len(self._window) == len(self._found) < self._read_ahead.batches:
            self._look_ahead()
            self._start_fetches()
        return self._window.first

    def _start_fetches(self) -> None:
        for place in islice(self._found, len(self._window), None):
            fetcher, descriptor = self._to_fetch(place)
            if not self._window.has_room(descriptor):
                break
            self._window.add(place, fetcher, descriptor)

    def _is_stale(self, place: F) -> bool:
        return self._clock.monotonic() - self._last_look(place) > self._read_ahead.max_age

    def _ensure_fresh(self, fetch: Fetch[F]) -> None:
        """Look again if the last look is too old for a batch to be handed over. Raises `Fenced` if we were replaced."""
        if not self._is_stale(fetch.place):
            return
        with self._reading:
            if self._is_stale(fetch.place):  # guard: look again before a batch is handed over late
                began = self._clock.monotonic()
                self._look_ahead()
                # Where a look takes that long, waiting for a younger one would never end.
                fetch.is_late |= self._clock.monotonic() - began > self._read_ahead.max_age

    def _drop(self, fetch: Fetch[F]) -> None:
        """Forget what was fetched, if this is still the first of it. The next call fetches it again."""
        with self._reading:
            if self._window.first is fetch:
                self._window.clear()

    def _stop_ahead(self) -> None:
        """Discard what iteration has found and fetched ahead."""
        if self._is_ahead and not self.inherited:
            with self._reading:
                self._discard()
                self._is_ahead = False

    def _discard(self) -> None:
        self._window.clear()
        self._found.clear()

    # Closing

    def _check_open(self) -> None:
        if self.inherited:
            raise Closed(
                f"{self.url}: this consumer was opened before a fork, and belongs to the parent process; open one "
                "here, or only fetch here, by the parent's fetch_handle()"
            )
        if self._closed:
            raise Closed(f"{self.url}: this consumer was closed; open a new one")

    def _start_closing(self) -> bool:
        """Mark this consumer as closed and end its threads and those that wait; return False if that was done before.

        Also False in a forked child, which must leave it to the parent.
        """
        if self.inherited:
            return False
        with self._closing_lock:
            if self._closed:
                return False
            self._closed = True
            self._closing.notify_all()
        self._window.close(timeout=0)
        return True

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether the consumer is still open."""
        deadline = self._clock.monotonic() + seconds
        return not wait_for(self._clock, self._closing, lambda: self._closed, deadline)

    def _outpaced(self) -> Timeout:
        return Timeout(
            f"{self.url}: {MAX_SKIPS} times in a row, retention dropped the next batch before it could be read. Read "
            "again, and retain batches for longer than it takes to read them"
        )


@dataclass(eq=False, repr=False)
class Arrivals(Generic[B]):
    """Batches as they arrive, for `for` and for `async for`. Ends when their source is closed.

    Taking a batch has two steps, so that a wait that is cancelled takes none. A batch that is taken and then cannot be
    returned, because of an interrupt, is put back.
    """

    _peek: Callable[[], tuple[Any, B] | None]
    """Fetches the next batch without taking it: its place and the batch, or None if there is none yet."""
    _take: Callable[[Any], bool]
    """Takes the batch at a place that `_peek` returned, unless another thread has since."""
    _put_back: Callable[[Any], None]
    """Undoes `_take`, if it happened."""
    _wait: Callable[[float], bool]
    """Waits for a number of seconds, and returns whether more may come."""
    _patience: float
    """Seconds without a new batch after which this ends."""
    _longest: float
    """Maximum time in seconds between two looks while nothing arrives."""
    _clock: Clock
    _process: int = field(default_factory=os.getpid)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        """Return the next batch. What an interrupt does to it is what `Consumer.next_batch` says."""
        # No `for` over the delays: leaving it closes the generator, where an interrupt could come after the take.
        races, delays = 0, self._delays()
        try:
            while (delay := next(delays, None)) is not None:
                while (found := self._peek()) is not None:
                    place, batch = found
                    try:
                        if self._take(place):
                            return batch
                    except BaseException:
                        self._put_back(place)
                        raise
                    races = count_race(races)
                if not self._wait(delay):
                    break
        except Closed:
            self._check_process()
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        """Return the next batch. What an interrupt does to it is what `Consumer.next_batch` says."""
        races, delays = 0, self._delays()
        try:
            while (delay := next(delays, None)) is not None:
                # A thread looks; the batch is taken only here, so a cancelled call leaves it to the next one.
                while (found := await asyncio.to_thread(self._peek)) is not None:
                    place, batch = found
                    try:
                        if self._take(place):
                            return batch
                    except BaseException:
                        self._put_back(place)
                        raise
                    races = count_race(races)
                if not await asyncio.to_thread(self._wait, delay):
                    break
        except Closed:
            self._check_process()
        raise StopAsyncIteration

    def _check_process(self) -> None:
        """Let the `Closed` that is being handled end this, if another thread has closed the consumer; else raise it."""
        if os.getpid() != self._process:
            raise  # noqa: PLE0704 - a forked child, which would take it for the end of what is there

    def _delays(self) -> Iterator[float]:
        """How long to wait after each look that found nothing: longer each time, up to the bound."""
        until = self._clock.monotonic() + self._patience
        delay = POLL_FLOOR
        while True:
            yield max(0.0, min(delay, until - self._clock.monotonic()))
            if self._clock.monotonic() >= until:
                return
            delay = min(2 * delay, self._longest)


def _notify(lock: RLock, condition: Condition) -> None:
    with lock:
        condition.notify_all()


def count_race(races: int) -> int:
    """Return one more than `races`, the times that another thread took the next batch first.

    Raises:
        Timeout: that happened too often in one call.
    """
    if races + 1 >= MAX_RACES:
        raise Timeout(
            f"the next batch was taken by another thread {MAX_RACES} times in a row: call again, or use fewer threads"
        )
    return races + 1
