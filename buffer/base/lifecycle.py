"""The `with` statement of everything that has to be closed."""

from __future__ import annotations

import asyncio
import functools
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

from forebay.buffer.base.errors import ForebayError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

_log = logging.getLogger("forebay")


R = TypeVar("R")


def shows_unopened(show: Callable[[R], str]) -> Callable[[R], str]:
    """Make a `__repr__` that also works on an object whose constructor failed, and which has no fields yet."""

    @functools.wraps(show)
    def shown(self: R) -> str:
        try:
            return show(self)
        except AttributeError:
            return f"<{type(self).__name__} that was not opened>"

    return shown


def refuse_pickle(what: object, instead: str) -> NoReturn:
    """Raise the error of something that belongs to one process, for `pickle` and `copy`."""
    raise Unsupported(f"a {type(what).__name__} cannot be pickled or copied, as it belongs to its process: {instead}")


class Closing(ABC):
    """Closed at the end of a `with` block."""

    _INSTEAD: ClassVar[str] = "pass on its URL, and open another one there"
    """What to do instead of pickling it."""

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self, self._INSTEAD)

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
            # The error of the block is the cause, so that one is raised.
            _log.warning("%r: closing after an error failed", self, exc_info=True)


class AsyncClosing(Closing):
    """Closed at the end of a `with` or `async with` block; the latter waits in a thread."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)
