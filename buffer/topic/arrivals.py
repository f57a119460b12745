"""Keeps the order of coroutines' calls while they wait for a partition, or for the number of partitions (rfcs/0005)."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator


class Line:
    """The calls of one event loop that wait, first come, first served. A call that is cancelled leaves the line."""

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 -- a producer in threads alone need not load it

        self.looking: Final = asyncio.Lock()
        """Held by the call that looks for new partitions; it hands itself on in the order of arrival."""
        self.opening: Final[defaultdict[int, asyncio.Lock]] = defaultdict(asyncio.Lock)
        """For each partition: held by the call that opens it; it hands itself on in the order of arrival."""
        self.calls: int = 0


class Arrivals:
    """The lines of all event loops that use a producer. A loop has one only while calls of it wait."""

    def __init__(self) -> None:
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}
        self._lock = Lock()

    def __contains__(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether calls of this loop wait."""
        return loop in self._lines

    @contextmanager
    def join(self, loop: asyncio.AbstractEventLoop) -> Iterator[Line]:
        """Be one of the calls of this loop that wait."""
        with self._lock:
            line = self._lines.setdefault(loop, Line())
            line.calls += 1
        try:
            yield line
        finally:
            with self._lock:
                line.calls -= 1
                if not line.calls:
                    del self._lines[loop]  # it would keep a loop that has ended
