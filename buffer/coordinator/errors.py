"""The coordinator's own errors, and how one error is reported to many callers."""

from __future__ import annotations

import copy
import traceback

from forebay.buffer.base.errors import ForebayError, Unknown


class DeltaRejected(ForebayError):
    """Raised by a flusher: this delta cannot be stored; its writes fail and the others go on.

    Who waits on one of its writes gets `reason`: as it is if it is a `ForebayError`, else wrapped in this class.
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
    """The coordinator stopped on an error that is none of forebay's own; it is the `__cause__`.

    What was on its way may be there or not.
    """


class MessagesLost(ForebayError):
    """The subscriber fell behind and views were dropped; `restart()` goes on from a fresh one."""


def fresh(error: BaseException) -> ForebayError:
    """The error to raise for one of many waiters: a copy, since a shared one would gather all their tracebacks."""
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
