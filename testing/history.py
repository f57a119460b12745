"""Checks whether a history of calls is linearizable: whether all clients saw one log.

Clients record every call when they make it, and every answer when they get it (`Journal`). `find_violations` checks
whether each call can be assigned one moment between its start and its answer. In the order of these moments, all
answers must be those of the sequential specification. A call without an answer, or with the answer *unknown*, may take
effect at any moment after its start, or never. A *failed* call never takes effect, and a *fenced* call changes nothing.

The specification has two kinds of objects. Each can be checked on its own, since linearizability is local:

- **The log.** `append` puts a value into a batch at the end; several values may share a batch. `read` returns the
  batches from a sequence on, and says whether it saw the end. Values of one client are in the order of its appends.
- **A reader**, one for each life (generation) of a group: an owner's epoch and a frontier. `claim` raises the epoch and
  makes its caller the owner. `ack` moves the frontier, and `read` checks the owner: both are *fenced* unless the caller
  is the owner. A claim's first read begins behind the frontier; each further read begins where the previous read ended.
  `end`, the reset or deletion of a group, may fence its owner.

A read accesses both objects, one after the other, and is checked as two operations. A claim whose answer was lost is
repeated: it may fence an owner, be overtaken, and count with its last epoch.

No search is needed, since numbers are unique. The reads give the place of every batch, and so the order of appends.
Each call then bounds a moment from one side only. The moment of batch n has two lower bounds: the calls of its appends,
and the start of any read that saw the end before it. It has two upper bounds: the answers of its appends, and the end
of any read that saw it. Such moments exist exactly if no moment's lower bound is later than the upper bound of that
moment or of a later one. Claims are ordered by their epochs in the same way. A fence that no later claim explains needs
a claim of unknown outcome. `tests/scenarios/test_history.py` compares all this with an exhaustive search.

The time is proportional to the number of calls, apart from a sort. There are three conditions. Values are unique. Every
client logs what it read before it acknowledges it, so that no batch is unread. All clients use one clock, such as the
monotonic clock of one machine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forebay.buffer.base.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Kind = Literal["append", "read", "claim", "ack", "end"]
Outcome = Literal["ok", "failed", "fenced", "unknown"]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a client, and its answer."""

    kind: Kind
    who: str
    """The client. A lasting writer is one client, even if it is started several times."""
    started: float
    ended: float = inf
    """When the answer came; infinity if none came."""
    outcome: Outcome = "unknown"
    value: str = ""
    """The value that was appended."""
    reader: str = ""
    """The group; empty for the unnamed consumer."""
    life: str = ""
    """The group's generation; empty if it is not known."""
    epoch: int = 0
    """The epoch that a claim made, or under which a client read or acknowledged."""
    first: int | None = None
    """The sequence from which a read began; None if it began behind the frontier."""
    batches: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """The batches that were read: the sequence and the values of each."""
    saw_end: bool = False
    """Whether the read reached the end of the log."""
    through: int = -1
    """The last sequence that was acknowledged."""

    def __str__(self) -> str:
        what = self.value or (f"through {self.through}" if self.kind == "ack" else f"{len(self.batches)} batches")
        of = f" of {self.reader or 'the unnamed reader'}, epoch {self.epoch}" if self.kind != "append" else ""
        return f"{self.who}'s {self.kind} ({what}{of}; {self.started:g} to {self.ended:g}, {self.outcome})"


class Journal:
    """Records what clients do: a line of JSON for each call, and one for its answer.

    Args:
        write: called once for each line. Use the `write` of a file opened with `buffering=0`: then lines survive if
            the process is killed.
        now: returns the time, by a clock that all clients share.
    """

    def __init__(self, write: Callable[[bytes], object], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now
        self._ids = count()
        self._lock = Lock()

    def call(self, kind: Kind, who: str, **what: Any) -> Callable[..., None]:
        """Record the start of a call. Return a function to call with the outcome and the answer's other fields."""
        with self._lock:
            call_id = f"{who}/{next(self._ids)}"
        self._line({"id": call_id, "kind": kind, "who": who, "started": self._now(), **what})

        def answer(outcome: Outcome, **said: Any) -> None:
            self._line({"id": call_id, "ended": self._now(), "outcome": outcome, **said})

        return answer

    def _line(self, fields: dict[str, Any]) -> None:
        self._write(msgspec.json.encode(fields) + b"\n")


def read_lines(lines: Iterable[bytes], source: str = "history") -> list[Operation]:
    """Return the operations of one journal. A torn last line is ignored: its process died while writing it.

    Raises:
        Corrupt: a line is not a line of a journal.
    """
    calls: list[dict[str, Any]] = []
    unanswered: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            call_id = fields.pop("id")
            if "kind" in fields:  # a restarted process uses the same ids again, from 0
                calls.append(fields)
                unanswered[call_id] = fields
            else:
                unanswered.pop(call_id).update(fields)
        except (msgspec.MsgspecError, KeyError) as error:
            raise Corrupt(
                f"{source}, line {number} is not a line of a journal: {line[:100]!r}"
                "; give a journal that forebay.testing wrote"
            ) from error
    try:
        return [msgspec.convert(fields, Operation) for fields in calls]
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{source}: {error}") from error


def load(*paths: Path) -> list[Operation]:
    """Return the operations of all clients from the journals of several processes, one file each.

    Raises:
        Corrupt: a file is not a journal.
    """
    operations = []
    for path in paths:
        with path.open("rb") as file:
            operations += read_lines(file, str(path))
    return operations


def find_violations(history: Iterable[Operation]) -> list[str]:
    """Return the violations of linearizability. The list is empty exactly if the history is linearizable."""
    operations = sorted(history, key=lambda operation: operation.started)
    readers: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind in {"read", "ack"} or (operation.kind == "claim" and operation.outcome == "ok"):
            readers[operation.reader, operation.life].append(operation)
    found = list(_check_log(operations))
    for (reader, life), of_reader in sorted(readers.items()):
        strangers = [
            other
            for other in operations
            if other.reader == reader
            and (other.kind == "end" or (other.kind == "claim" and other.outcome == "unknown"))
            and other.life in {"", life}
        ]
        found += _Reader(of_reader, strangers).check()
    return found


@dataclass(slots=True)
class _Moment:
    """Bounds of the moment at which something took effect."""

    earliest: float = -inf
    why_not_before: Operation | None = None
    latest: float = inf
    why_not_after: Operation | None = None

    def not_before(self, time: float, why: Operation | None) -> None:
        if time > self.earliest:
            self.earliest, self.why_not_before = time, why

    def not_after(self, time: float, why: Operation) -> None:
        if time < self.latest:
            self.latest, self.why_not_after = time, why


def _put_in_order(moments: Iterable[_Moment]) -> Iterator[str]:
    """Make every moment as early as the previous moments allow, and yield those that are then too late."""
    before = _Moment()
    for moment in moments:
        moment.not_before(before.earliest, before.why_not_before)
        if moment.earliest > moment.latest:
            yield f"{moment.why_not_after} comes too early for {moment.why_not_before}"
        before = moment


# The log


def _check_log(operations: list[Operation]) -> Iterator[str]:
    appends: dict[str, Operation] = {}
    for operation in operations:
        if operation.kind == "append" and appends.setdefault(operation.value, operation) is not operation:
            yield f"{operation} and {appends[operation.value]} append the same value, so they cannot be told apart"
    reads = [operation for operation in operations if operation.kind == "read" and operation.outcome == "ok"]
    contents: dict[int, tuple[str, ...]] = {}
    for read in reads:
        yield from _gather_contents(read, contents)
    places: dict[str, int] = {}
    for sequence in sorted(contents):
        for value in contents[sequence]:
            if value not in appends:
                yield f"{value} at {sequence} was never appended"
            elif appends[value].outcome == "failed":
                yield f"{appends[value]} failed, but its value is in the log at {sequence}"
            if value in places:
                yield f"{value} is in the log twice, at {places[value]} and at {sequence}"
            places[value] = sequence
    yield from _check_moments(appends, reads, contents, places)
    yield from _check_order(appends.values(), contents)


def _gather_contents(read: Operation, contents: dict[int, tuple[str, ...]]) -> Iterator[str]:
    """Add what a read found to `contents`, and yield where it contradicts itself or earlier reads."""
    for follows, (sequence, values) in enumerate(read.batches, read.batches[0][0] if read.batches else 0):
        if sequence != follows:
            yield f"{read} has {sequence} where {follows} must come"
        if contents.setdefault(sequence, values) != values:
            yield f"{read} found {values} at {sequence}, where {contents[sequence]} was before"


def _check_moments(
    appends: dict[str, Operation], reads: list[Operation], contents: dict[int, tuple[str, ...]], places: dict[str, int]
) -> Iterator[str]:
    first, end = min(contents, default=0), max(contents, default=-1) + 1
    for sequence in sorted(set(range(first, end)) - contents.keys()):
        yield f"the batch at {sequence} is unknown: a reader skipped it, or did not log what it acknowledged"
    moments = {sequence: _Moment() for sequence in range(first, end + 1)}  # the last: values that nobody has read
    for append in appends.values():
        if append.value in places:
            moment = moments[places[append.value]]
            moment.not_before(append.started, append)
            moment.not_after(append.ended if append.outcome == "ok" else inf, append)
    for read in reads:
        following = read.batches[-1][0] + 1 if read.batches else read.first
        if read.batches:
            moments[read.batches[-1][0]].not_after(read.ended, read)
        if read.saw_end and following is not None and following <= end:
            moments[max(first, following)].not_before(read.started, read)
    yield from _put_in_order(moments.values())
    for append in appends.values():
        if append.outcome == "ok" and append.value not in places and append.ended < moments[end].earliest:
            yield f"{append} is lost: {moments[end].why_not_before} did not find it"


def _check_order(appends: Iterable[Operation], contents: dict[int, tuple[str, ...]]) -> Iterator[str]:
    places = {value: (sequence, i) for sequence, values in contents.items() for i, value in enumerate(values)}
    last: dict[str, Operation] = {}
    for append in appends:  # in the order of their calls
        if append.value not in places:
            continue
        before = last.get(append.who)
        if before is not None and places[before.value] > places[append.value]:
            yield f"{append} stands before {before}, which the same client appended first"
        last[append.who] = append


# Readers


class _Reader:
    """One life (generation) of one reader."""

    def __init__(self, operations: list[Operation], strangers: list[Operation]) -> None:
        """`strangers` are ends of groups and claims of unknown outcome: any of them may have fenced an owner."""
        self._ends = [other for other in strangers if other.kind == "end"]
        claims = [operation for operation in operations if operation.kind == "claim"]
        self._claims = sorted(self._without_vain(claims), key=lambda claim: claim.epoch)
        self._numbers = {claim.epoch: number for number, claim in enumerate(self._claims)}
        self._operations = [operation for operation in operations if operation.kind != "claim"]
        self._unknown_claims = [other for other in strangers if other.kind == "claim"]
        # One more than there are claims: operations under the last claim bound a next claim, which does not exist.
        self._moments = [_Moment() for _ in range(len(self._claims) + 1)]
        self._done: list[list[Operation]] = [[] for _ in self._claims]
        self._fenced: list[list[Operation]] = [[] for _ in self._claims]
        self._acks_in_doubt: list[list[Operation]] = [[] for _ in self._claims]

    def _without_vain(self, claims: list[Operation]) -> list[Operation]:
        """Return the claims without those made after the life had ended: their epochs repeat, and no read uses them."""
        kept: list[Operation] = []
        for claim in sorted(claims, key=lambda claim: claim.ended):
            begins_anew = any(
                known.epoch == claim.epoch or (known.epoch > claim.epoch and known.ended < claim.started)
                for known in kept
            )
            if not begins_anew or not any(end.started <= claim.ended for end in self._ends):
                kept.append(claim)
        return kept

    def check(self) -> Iterator[str]:
        for claim, following in zip(self._claims, self._claims[1:], strict=False):
            if claim.epoch == following.epoch:
                yield f"two claims own epoch {claim.epoch}: {claim} and {following}"
        for operation in self._operations:
            number = self._numbers.get(operation.epoch)
            if number is None or operation.started < self._claims[number].ended:
                yield f"{operation} uses an epoch that no claim had been given yet"
            elif operation.outcome == "ok":
                self._done[number].append(operation)
            elif operation.outcome == "fenced":
                self._fenced[number].append(operation)
            elif operation.outcome == "unknown" and operation.kind == "ack":
                self._acks_in_doubt[number].append(operation)
        self._bound_moments()
        for number in range(len(self._claims)):
            yield from self._check_reading(number)
        yield from self._check_frontier()
        yield from _put_in_order(self._moments)
        yield from self._check_fences()

    def _bound_moments(self) -> None:
        for number, claim in enumerate(self._claims):
            self._moments[number].not_before(claim.started, claim)
            self._moments[number].not_after(claim.ended, claim)
            for operation in self._done[number]:
                self._moments[number + 1].not_before(operation.started, operation)

    def _check_reading(self, number: int) -> Iterator[str]:
        following: int | None = None
        for read in self._reads(number):
            place = _place(read)
            if following is not None and place is not None and place != following:
                yield f"{read} begins at {place}, but the previous read ended before {following}"
            if place is not None:
                following = place + len(read.batches)

    def _reads(self, number: int) -> list[Operation]:
        return [operation for operation in self._done[number] if operation.kind == "read"]

    def _check_frontier(self) -> Iterator[str]:
        """Check that each claim's first read begins right behind what earlier claims had acknowledged."""
        latest = [moment.latest for moment in self._moments]
        for number in reversed(range(len(self._claims))):
            latest[number] = min(latest[number], latest[number + 1])
        certain: int | None = None
        in_doubt: list[tuple[int, Operation]] = []
        for number, claim in enumerate(self._claims):
            place = next((place for read in self._reads(number) if (place := _place(read)) is not None), None)
            if place is not None and certain is not None and place - 1 != certain:
                # An ack without an answer explains this, if it may have taken effect before the next claim.
                explained = [
                    (by, ack)
                    for by, ack in in_doubt
                    if place - 1 == ack.through > certain and ack.started <= latest[by + 1]
                ]
                if not explained:
                    yield f"{claim} began to read at {place}, though {certain} was the last acknowledged before it"
                for by, ack in explained[:1]:
                    self._moments[by + 1].not_before(ack.started, ack)
            if place is not None:
                certain, in_doubt = place - 1, []  # earlier acks in doubt can no longer take effect
            in_doubt += [(number, ack) for ack in self._acks_in_doubt[number]]
            acked = [operation.through for operation in self._done[number] if operation.kind == "ack"]
            certain = max([*acked, *([] if certain is None else [certain])], default=None)

    def _check_fences(self) -> Iterator[str]:
        unexplained = []
        for number, fenced in enumerate(self._fenced):
            first = min(fenced, key=lambda operation: operation.ended, default=None)
            if first is None:
                continue
            for operation in self._done[number]:
                if operation.started > first.ended:
                    yield f"{operation} was allowed, though {first} had been fenced before it began"
            if not any(other.started <= first.ended for other in [*self._claims[number + 1 :], *self._ends]):
                unexplained.append(first)
        # Each claim of unknown outcome may have fenced one of them.
        claims = sorted(claim.started for claim in self._unknown_claims)
        for number, fenced_first in enumerate(sorted(unexplained, key=lambda operation: operation.ended)):
            if number >= len(claims) or claims[number] > fenced_first.ended:
                yield f"{fenced_first} was fenced, but no claim explains it"


def _place(read: Operation) -> int | None:
    """Return the sequence at which a read began; None if it is not known."""
    return read.batches[0][0] if read.batches else read.first
