"""One try of a commit: ask if it is there, commit it, and take what comes of it for one of the four answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Backpressure, ForebayError, NotReady, Timeout, Unavailable, Unknown
from forebay.runtime.contract import Committed, Fatal, MaybeCommitted, NotCommitted

if TYPE_CHECKING:
    from forebay.runtime.contract import Answer, Commit, CommitIdentity, Sink

_NOTHING_APPLIED: Final = (Unavailable, Timeout, Backpressure, NotReady)


class Raised(MaybeCommitted):
    """An exception that does not tell what it means: a `MaybeCommitted` that must not go on for ever."""


def ask(sink: Sink, identity: CommitIdentity) -> Committed | MaybeCommitted | Fatal | None:
    """Return `Committed` if it is there, None if it is not, or why that could not be found out."""
    try:
        return Committed() if sink.check_committed(identity) else None
    except Exception as error:  # noqa: BLE001 - a sink may raise anything
        answer = _read(error)
        # guard: a failed check does not mean not committed
        return MaybeCommitted(answer.reason) if isinstance(answer, NotCommitted) else answer


def commit(sink: Sink, commit: Commit) -> Answer:
    """Return what the sink says, in words or by what it raises."""
    try:
        answer: object = sink.commit(commit)
    except Exception as error:  # noqa: BLE001 - a sink may raise anything
        return _read(error)
    if isinstance(answer, Committed | NotCommitted | MaybeCommitted | Fatal):
        return answer
    return Fatal(f"commit() of {type(sink).__name__} must return an answer such as Committed(), not {answer!r}")


def _read(error: Exception) -> NotCommitted | MaybeCommitted | Fatal:
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, _NOTHING_APPLIED):
        return NotCommitted(reason)
    if isinstance(error, ForebayError) and not isinstance(error, Unknown):
        return Fatal(reason)
    # It may have been raised after the effect: a lost reply looks like a refused connection.
    # guard: an exception means the commit may have happened
    return MaybeCommitted(reason) if isinstance(error, Unknown) else Raised(reason)
