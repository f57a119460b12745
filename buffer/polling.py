"""Iterating over what arrives: the same for `for` and `async for`, for buffers and topics."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from forebay.buffer.checks import check_seconds
from forebay.buffer.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from forebay.buffer.clock import Clock

POLL_FLOOR = 0.05
"""Seconds until the first look after one that found nothing."""

B = TypeVar("B")


class Arrivals(Generic[B]):
    """Batches as they arrive, for `for` and for `async for`. Ends when their source is closed.

    Taking a batch has two steps, so that a wait that is cancelled takes none.

    Args:
        peek: fetches the next batch without taking it: where it stands, and the batch, or None if there is none yet.
        take: takes what `peek` returned, unless somebody else has meanwhile.
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
        wait: Callable[[float], bool],
        *,
        patience: bool | float,
        longest: float,
        clock: Clock,
    ) -> None:
        self._peek = peek
        self._take = take
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
        try:
            for delay in self._delays():
                place, batch = self._peek()
                while batch is not None:
                    if self._take(place, batch):
                        return batch
                    place, batch = self._peek()
                if not self._wait(delay):
                    break
        except Closed:
            pass  # by another thread
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        try:
            for delay in self._delays():
                # A thread looks; the batch is taken only here, so a cancelled call leaves it to the next one.
                place, batch = await asyncio.to_thread(self._peek)
                while batch is not None:
                    if self._take(place, batch):
                        return batch
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
