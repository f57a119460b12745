"""Calls a sink, and turns what it returns or raises into one of the four answers of the contract (rfcs/0007)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Backpressure, ForebayError, NotReady, Timeout, Unavailable, Unknown
from forebay.runtime.contract import Committed, Fatal, MaybeCommitted, NotCommitted

if TYPE_CHECKING:
    from forebay.runtime.contract import Answer, Commit, CommitIdentity, Sink

_NOTHING_APPLIED: Final = (Unavailable, Timeout, Backpressure, NotReady)


class Raised(MaybeCommitted):
    """The sink raised an exception of unknown meaning. After `max_failures` of these in a row the runtime halts."""


def check_committed(sink: Sink, identity: CommitIdentity) -> Committed | MaybeCommitted | Fatal | None:
    """Return `Committed` if the sink has the commit, None if it does not, or an answer that says why it cannot tell."""
    try:
        return Committed() if sink.check_committed(identity) else None
    except Exception as error:  # noqa: BLE001 - a sink may raise anything
        answer = _answer_for(error)
        # guard: a failed check does not mean not committed
        return MaybeCommitted(answer.reason) if isinstance(answer, NotCommitted) else answer


def commit(sink: Sink, commit: Commit) -> Answer:
    """Make one attempt to commit, and return the sink's answer."""
    try:
        answer: object = sink.commit(commit)
    except Exception as error:  # noqa: BLE001 - a sink may raise anything
        return _answer_for(error)
    # guard: refuse rows that a sink was not given
    if isinstance(answer, Fatal) and (unknown := [row for row in answer.rows if row not in range(len(commit))]):
        given = f"must be from 0 to {len(commit) - 1}, not {unknown[0]!r}"
        return Fatal(f"the rows that commit() of {type(sink).__name__} refused {given} ({answer.reason})")
    if isinstance(answer, Committed | NotCommitted | MaybeCommitted | Fatal):
        return answer
    return Fatal(f"commit() of {type(sink).__name__} must return an answer such as Committed(), not {answer!r}")


def _answer_for(error: Exception) -> NotCommitted | MaybeCommitted | Fatal:
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, _NOTHING_APPLIED):
        return NotCommitted(reason)
    if isinstance(error, ForebayError) and not isinstance(error, Unknown):
        return Fatal(reason)
    # The sink may have raised it after the commit took effect: a lost reply looks like a refused connection.
    # guard: an exception means the commit may have happened
    return MaybeCommitted(reason) if isinstance(error, Unknown) else Raised(reason)
