"""The coordinator's own errors, and how one error is reported to many callers."""

from __future__ import annotations

import copy
import traceback

from forebay.buffer.base.errors import ForebayError, Unknown


class DeltaRejected(ForebayError):
    """A flusher raises this if a delta cannot be stored. The delta's writes fail; other deltas continue.

    The handles of its writes raise `reason` as it is if it is a `ForebayError`, else wrapped in this class.
    """

    reason: Exception
    """Why the delta was rejected."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(f"the delta was rejected: {type(reason).__name__}: {reason}")
        self.reason = reason
        self.__cause__: BaseException | None = reason


class ApplyFailed(ForebayError):
    """The delta refused this write; the reason is the `__cause__`. The other writes are not affected."""

    epoch: int
    """The epoch that the write used up."""

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class FlushFailed(Unknown):
    """The coordinator stopped because of an error that is not a `ForebayError`; that error is the `__cause__`.

    Writes that were being flushed may or may not be stored.
    """


class MessagesLost(ForebayError):
    """The subscriber fell behind and views were dropped. Call `restart()` to continue from the current view."""


def fresh(error: BaseException) -> ForebayError:
    """Return a copy of an error, for one of many waiters. A shared error would collect the tracebacks of all."""
    if not isinstance(error, ForebayError):
        told: ForebayError = FlushFailed(
            f"the coordinator stopped: {type(error).__name__}: {error}"
            "; what it was flushing may or may not be stored: read before you write it again"
        )
        told.__cause__ = error
        return told
    told = copy.copy(error)
    told.__cause__ = error if error.__traceback__ is not None else error.__cause__
    return told


def release_frames(error: BaseException) -> None:
    """Drop the local variables that an error's tracebacks hold: a kept error must not keep a whole delta in memory."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            chain += (link.__cause__, link.__context__)
