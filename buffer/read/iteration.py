"""Reading batches one by one, with `next_batch`, `for` and `async for`: the same for buffers and topics (rfcs/0004)."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from dataclasses import dataclass
from threading import Condition
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import Closed, Timeout
from forebay.buffer.base.lifecycle import Closing
from forebay.buffer.base.waiting import POLL_FLOOR, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from forebay.buffer.base.clock import Clock

MAX_RACES: Final = 10_000
"""Maximum number of times in one call that other threads of the same consumer may take the next batch first."""
MAX_SKIPS: Final = 100
"""Maximum number of times in one call that retention may drop what comes next before it can be read."""

F = TypeVar("F")
"""Where a batch was found."""
B = TypeVar("B")
"""A batch."""


class BaseConsumer(Closing, Generic[F, B]):
    """What a consumer of a buffer and one of a topic have in common: handing out batches one by one."""

    _INSTEAD = "pass on fetch_handle(), which can be pickled and only fetches, or the URL, and open another one there"

    def __init__(self, url: str, *, max_poll_interval: float, clock: Clock) -> None:
        self.url = url
        self._max_poll_interval = max_poll_interval
        self._clock = clock
        self._closing = Condition()
        self._closed = False

    def next_batch(self) -> B | None:
        """Return the next batch, or None if there is none yet. A topic gives one of each partition in turn.

        The position moves only once the batch is here: after an error or an interrupt, the next call reads the same
        one. An interrupt is any exception that Python raises between two instructions, such as `KeyboardInterrupt`. If
        it comes after the position has moved, the position is moved back. If another thread has already read further,
        a buffer's consumer cannot acknowledge the interrupted batch or later ones, and a new consumer reads them again.
        A topic's consumer returns the interrupted batch next, after later ones of its partition.

        A batch can still be lost in two cases: a second interrupt comes while the position is moved back, or an
        interrupt comes after this call has returned and before the caller has stored the result. The second cannot
        happen in `batch = consumer.next_batch()` unless a debugger or tracer is running, because CPython checks for
        signals only at a function's start, after a call of C code and at a loop's jump back. `ack` notices a lost
        batch, because it goes one by one. `ack_through` cannot.
        """
        # The code from `_take` to `return` must be in the function that the user calls: an interrupt on the way from
        # another function to this one would lose the batch. So `Arrivals` has it twice more.
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
        """Iterate over what follows, with `for` or `async for`.

        Args:
            wait: what to do at the end of what is there: False stops, True waits for more until the consumer is
                closed, a number stops after that many seconds without a new batch.
        """
        self._check_open()
        patience = (math.inf if wait else 0.0) if isinstance(wait, bool) else check_seconds(wait, "wait")
        steps = self._peek, self._take, self._put_back, self._wait
        return Arrivals(*steps, patience, self._max_poll_interval, self._clock)

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

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.url}: this consumer was closed; open a new one")

    def _start_closing(self) -> bool:
        """Mark this consumer as closed, wake the threads that wait, and return False if it was closed before."""
        with self._closing:
            if self._closed:
                return False
            self._closed = True
            self._closing.notify_all()
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
            pass  # by another thread
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
            pass
        raise StopAsyncIteration

    def _delays(self) -> Iterator[float]:
        """How long to wait after each look that found nothing: longer each time, up to the bound."""
        until = self._clock.monotonic() + self._patience
        delay = POLL_FLOOR
        while True:
            yield max(0.0, min(delay, until - self._clock.monotonic()))
            if self._clock.monotonic() >= until:
                return
            delay = min(2 * delay, self._longest)


def count_race(races: int) -> int:
    """Return one more than `races`, the times that another thread took the next batch first.

    Raises:
        Timeout: that happened too often in one call.
    """
    if races + 1 >= MAX_RACES:
        raise Timeout(f"other threads took the next batch first {MAX_RACES} times: call again, or use fewer threads")
    return races + 1
