"""Waiting: until something happens, and for batches as they arrive (`for` and `async for`, buffers and topics)."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import Closed, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Condition
    from typing import Any, Self

    from forebay.buffer.base.clock import Clock

POLL_FLOOR = 0.05
"""Seconds until the first look after one that found nothing."""

MAX_RACES: Final = 10_000
"""Maximum number of times in one call that other threads of the same consumer may take the next batch first."""

B = TypeVar("B")


def wait_for(clock: Clock, condition: Condition, is_met: Callable[[], object], deadline: float | None) -> bool:
    """Wait until `is_met` is true or `clock.monotonic()` reaches `deadline`, and return whether it is true.

    As `Condition.wait_for`, but takes the condition's lock itself, and the time from `clock`. `is_met` is called under
    the lock; whoever makes it true notifies the condition. None waits without a limit.
    """
    with condition:
        while not is_met() and clock.wait_until(condition, deadline):
            pass
        return bool(is_met())


class Arrivals(Generic[B]):
    """Batches as they arrive, for `for` and for `async for`. Ends when their source is closed.

    Taking a batch has two steps, so that a wait that is cancelled takes none. A batch that is taken and then cannot be
    returned, because of an interrupt, is put back.

    Args:
        peek: fetches the next batch without taking it: where it stands, and the batch, or None if there is none yet.
        take: takes what `peek` returned, unless somebody else has meanwhile.
        put_back: undoes `take`, if that had happened.
        wait: waits for so many seconds, and returns whether more may come.
        patience: what to do at the end of what is there: False stops, True waits for more, a number stops after so many
            seconds without a new batch.
        longest: while nothing arrives, looks are so many seconds apart at most.
        clock: where time comes from.
    """

    def __init__(
        self,
        peek: Callable[[], tuple[Any, B | None]],
        take: Callable[[Any, B], bool],
        put_back: Callable[[Any, B], None],
        wait: Callable[[float], bool],
        *,
        patience: bool | float,
        longest: float,
        clock: Clock,
    ) -> None:
        self._peek = peek
        self._take = take
        self._put_back = put_back
        self._wait = wait
        if patience is True or patience is False:
            self._patience = math.inf if patience else 0.0
        else:
            self._patience = check_seconds(patience, "wait")
        self._longest = longest
        self._clock = clock

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        """Return the next batch. What an interrupt does to it is what `Consumer.next_batch` says."""
        # No `for` over the delays: leaving it closes the generator, where an interrupt could come after the take.
        races, delays = 0, self._delays()
        try:
            while (delay := next(delays, None)) is not None:
                place, batch = self._peek()
                while batch is not None:
                    try:
                        if self._take(place, batch):
                            return batch
                    except BaseException:
                        self._put_back(place, batch)
                        raise
                    races = count_race(races)
                    place, batch = self._peek()
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
                place, batch = await asyncio.to_thread(self._peek)
                while batch is not None:
                    try:
                        if self._take(place, batch):
                            return batch
                    except BaseException:
                        self._put_back(place, batch)
                        raise
                    races = count_race(races)
                    place, batch = await asyncio.to_thread(self._peek)
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
