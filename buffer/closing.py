"""The `with` statement of everything that has to be closed."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from forebay.buffer.errors import ForebayError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_log = logging.getLogger("forebay")


class Closing(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Finish and let go. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ForebayError:
            if error is None:
                raise
            # The block's own error says more than what came of it.
            _log.warning("%r: closing after an error failed", self, exc_info=True)


class AsyncClosing(Closing):
    """Closed at the end of a `with` or `async with` block; the latter waits in a thread."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)
