"""The specification of histories once more, as a program, and every order that the times allow; and small histories."""

from __future__ import annotations

from functools import cache
from math import inf
from random import Random
from typing import Any

import msgspec

from forebay.testing.history import Operation


def log_after(log: tuple[str, ...], call: Operation) -> tuple[str, ...] | None:
    if call.kind == "append":
        return (*log, call.value)
    if not call.batches and call.first is None:
        return log
    following = call.batches[-1][0] + 1 if call.batches else call.first or 0
    seen = tuple(values[0] for _, values in call.batches)
    there = log[call.batches[0][0] : following] if call.batches else ()
    ended = len(log) == following if call.batches else len(log) <= following
    return log if seen == there and (ended or not call.saw_end) else None


def reader_after(state: Any, call: Operation) -> Any:  # noqa: PLR0911 - a case each
    owner, frontier, place = state
    if call.kind == "claim":
        # One that nobody knows of raises the epoch as well; by how much does not matter.
        if call.outcome == "ok":
            return None if call.epoch <= owner[0] else ((call.epoch, True), frontier, None)
        return (owner[0], False), frontier, None
    if owner != (call.epoch, True):
        return None if call.outcome == "ok" else state
    if call.outcome == "fenced":
        return None
    if call.kind == "ack":
        return owner, call.through if frontier is None else max(frontier, call.through), place
    began = call.batches[0][0] if call.batches else call.first
    if began is None:
        return state
    if place is None and frontier is None:
        frontier = began - 1  # where the reader started is not known
    if began != (frontier + 1 if place is None else place):
        return None
    return owner, frontier, began + len(call.batches)


def can_be(calls: tuple[Operation, ...], step: Any, start: Any) -> bool:
    """Whether any order of the calls that real time allows is one of the specification's."""

    @cache
    def search(left: frozenset[int], state: Any) -> bool:
        certain = [i for i in left if calls[i].outcome != "unknown"]
        if not certain:
            return True
        for i in left:
            if any(calls[j].ended < calls[i].started for j in certain if j != i):
                continue  # somebody's answer came before this began
            if calls[i].kind == "claim" and state[0][1] and search(left, ((state[0][0], False), state[1], None)):
                return True  # it was applied, and is made again since nobody told it
            after = step(state, calls[i])
            if after is not None and search(left - {i}, after):
                return True
            if calls[i].outcome == "unknown" and search(left - {i}, state):
                return True
        return False

    return search(frozenset(range(len(calls))), start)


def search_whole(history: list[Operation]) -> bool:
    of_log = [o for o in history if o.kind == "append" or (o.kind == "read" and o.outcome == "ok")]
    # A read that failed has moved nothing.
    of_reader = [o for o in history if o.kind in {"claim", "ack"} or (o.kind == "read" and o.outcome != "unknown")]
    of_reader = [o for o in of_reader if o.reader == ""]
    given = {o.epoch: o.ended for o in of_reader if o.kind == "claim" and o.outcome == "ok"}
    if any(o.started < given.get(o.epoch, inf) for o in of_reader if o.kind != "claim"):
        return False  # nobody knows an epoch before it is given
    return can_be(tuple(of_log), log_after, ()) and can_be(tuple(of_reader), reader_after, ((-9, False), None, None))


class World:
    """A log and a reader, answering truthfully, for a few clients at once."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log: list[str] = []
        self.owner = self.epoch = 0
        self.frontier = -1
        self.positions: dict[int, int] = {}
        self.first_read: dict[int, int] = {}
        self.free_from: dict[int, float] = {}
        self.history: list[Operation] = []

    def act(self, moment: float) -> None:
        started = moment - self.random.choice((1, 4, 15, 40))
        ended = moment + self.random.choice((1, 4, 15, 40))
        outcome = self.random.choices(("ok", "unknown", "lost"), (6, 2, 1))[0]
        times: dict[str, Any] = {
            "started": started,
            "ended": ended,
            "outcome": "ok" if outcome == "ok" else "unknown",
        }
        (kind,) = self.random.choices(("append", "claim", "read", "ack"), (2, 2, 4, 2))
        if kind == "append":
            self.append(times, takes_effect=outcome != "lost")
        elif kind == "claim":
            self.claim(times, takes_effect=outcome != "lost")
        else:
            by = self.random.randint(max(1, self.epoch - 1), max(1, self.epoch))
            if started > self.free_from.get(by, inf):  # a consumer makes one call at a time
                self.use(kind, by, times, takes_effect=outcome != "lost")

    def append(self, times: dict[str, Any], *, takes_effect: bool) -> None:
        value = f"v{len(self.history)}"
        self.history.append(Operation(kind="append", who=value, value=value, **times))
        if takes_effect:
            self.log.append(value)

    def claim(self, times: dict[str, Any], *, takes_effect: bool) -> None:
        self.history.append(Operation(kind="claim", who="c", epoch=self.epoch + 1, **times))
        self.epoch += takes_effect
        if takes_effect:
            self.owner = self.epoch if times["outcome"] == "ok" else 0
            self.positions[self.epoch] = self.frontier + 1
        if self.owner == self.epoch:
            self.free_from[self.epoch] = times["ended"]

    def use(self, kind: Any, by: int, times: dict[str, Any], *, takes_effect: bool) -> None:
        self.free_from[by] = times["ended"]
        what: dict[str, Any] = {"kind": kind, "who": "c", "epoch": by, **times}
        if by != self.owner:
            self.history.append(Operation(**{**what, "outcome": "fenced"}))
        elif kind == "ack":
            if by not in self.first_read:
                return
            through = self.random.randint(self.first_read[by] - 1, self.positions[by] - 1)
            self.history.append(Operation(through=through, **what))
            if takes_effect:
                self.frontier = max(self.frontier, through)
        elif times["outcome"] == "ok":
            at = self.positions[by]
            there = tuple((at + i, (value,)) for i, value in enumerate(self.log[at : at + 2]))
            self.first_read.setdefault(by, at)
            self.positions[by] = at + len(there)
            saw_end = at + len(there) >= len(self.log)
            self.history.append(Operation(batches=there, first=at, saw_end=saw_end, **what))

    def read_everything(self) -> None:
        """Or no history could be judged."""
        last = max((o.ended for o in self.history), default=0.0) + 1
        times: dict[str, Any] = {"started": last, "ended": last, "outcome": "ok", "who": "all", "reader": "all"}
        everything = tuple((i, (value,)) for i, value in enumerate(self.log))
        self.history.append(Operation(kind="claim", epoch=1, **times))
        self.history.append(Operation(kind="read", epoch=1, first=0, batches=everything, saw_end=True, **times))


def make_history(random: Random) -> list[Operation]:
    """A true history; then, perhaps, one answer or time is made a lie."""
    world = World(random)
    for moment in sorted(random.sample(range(10, 300), 12)):
        world.act(moment)
    for _ in range(random.choice((0, 1, 2)) if world.history else 0):
        about = random.randrange(len(world.history))
        world.history[about] = lie(random, world.history[about])
    world.read_everything()
    return world.history


def lie(random: Random, of: Operation) -> Operation:
    change = msgspec.structs.replace
    by = random.choice((-60, -20, 20, 60))
    match of.kind, random.choice(("outcome", "other")):
        case "append" | "claim", "outcome":
            return change(of, outcome=random.choice(("ok", "unknown")))
        case "claim", _ if random.random() < 0.3:
            return change(of, epoch=of.epoch + random.choice((-1, 1)))
        case "append" | "claim", _:
            return change(of, started=of.started + by, ended=of.ended + by)
        case _, "outcome":
            return change(of, outcome=random.choice(("ok", "fenced")))
        case "read", _:
            return change(of, batches=of.batches[:-1], saw_end=random.random() < 0.5)
    return change(of, through=of.through + random.choice((-1, 1)))
