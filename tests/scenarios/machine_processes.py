"""The processes of the buffer machine: what each remembers, the steps they take, and what befalls their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Condition
from typing import TypeVar

from evolving import schema_of

from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import NewBatch
from forebay.buffer.holds import HeldRange
from forebay.buffer.manifest import Queue, head
from forebay.buffer.manifest.register import Limits
from forebay.buffer.write.formats import open_format
from forebay.buffer.write.rows import RowFormat
from forebay.testing import WRITE_FAULTS, Crash, Fault, FaultyStore, ManualClock
from forebay.testing.watched import WatchedStore

T = TypeVar("T")
Payload = tuple[int, int]
"""Which writer, and its how-manieth."""
JUMPS = (-200_000.0, -700.0, 700.0, 200_000.0, 2_400_000_000.0)
"""By how many seconds a clock may jump."""
LATEST_MS = 5_000_000_000_000
GRACE = 600.0
TTL = 1000.0


class Network(FaultyStore):
    """One process's way to the store; it outlives the process, and late requests land when told."""

    def __init__(self, inner: WatchedStore, clock: ManualClock, interrupt: Callable[[Step], None]) -> None:
        super().__init__(inner, clock=clock)
        self._interrupt = interrupt
        self.follow(NOTHING)

    def follow(self, plan: Plan) -> None:
        """From here on, requests are counted anew and meet with this."""
        self._plan = plan
        self._requests = self._writes = 0

    def next_fault(self, kind: str) -> Fault | None:
        is_write = kind in {"put", "create", "replace"}
        for when, step in self._plan.steps:
            if when == self._requests or (is_write and when == ~self._writes):
                self._interrupt(step)
        self._requests += 1
        self._writes += is_write
        fault = self._plan.faults.get(self._writes - 1) if is_write else None
        # A store that says "not applied" is believed by who was forgotten at that very moment (rfcs/0005).
        return Fault.LOSE_ANSWER if fault is Fault.OWN_RETRY and head.MAX_WRITERS == 2 else fault


@dataclass(frozen=True)
class Step:
    """Something that a process does: a method of the machine, and which of those that can do it."""

    name: str
    who: int
    much: int
    plan: Plan

    @classmethod
    def drawn(cls, choice: bytes) -> Step:
        """Hypothesis chooses the bytes; drawing all else from them is fast, and every step as likely as we say."""
        random = Random(choice)
        plan = Plan.drawn(random) if random.random() < 0.6 else NOTHING
        return cls.among(STEPS, random, plan)

    @classmethod
    def among(cls, steps: Mapping[str, int], random: Random, plan: Plan) -> Step:
        (name,) = random.choices(list(steps), list(steps.values()))
        return cls(name, random.randrange(60), random.randrange(60), plan)


@dataclass(frozen=True)
class Plan:
    """What happens to one step's requests."""

    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By the number of the write."""
    steps: Sequence[tuple[int, Step]] = ()
    """What others do just before a request, by its number; before a write, by ~ its number."""

    @classmethod
    def drawn(cls, random: Random) -> Plan:
        faults = {random.choice((0, 0, 0, 1, 1, 2)): random.choice(FAULTS) for _ in range(random.choice((0, 1, 1, 2)))}
        steps = [
            (random.choice(PLACES), Step.among(STEPS_WITHIN, random, NOTHING))
            for _ in range(random.choice((0, 1, 1, 2, 4)))
        ]
        return cls(faults, steps)


NOTHING = Plan()
PLACES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ~0, ~0, ~0, ~0, ~1, ~1, ~1, ~2)


@dataclass
class Process:
    """What every process has."""

    clock: ManualClock
    store: Network
    busy: bool = False


@dataclass
class Writer(Process):
    number: int = 0
    task_clock: ManualClock = field(default_factory=ManualClock)
    """Of the machine that uploads; the one that appends may be another."""
    queue: Queue | None = None
    made: int = 0
    waiting: list[tuple[Payload, NewBatch]] = field(default_factory=list)
    refused: str | None = None
    rows: RowFormat | None = None
    """What it writes, once it has opened a buffer of rows."""

    @property
    def schemas(self) -> tuple[str, ...]:
        """The ids of the versions up to its own."""
        return () if self.rows is None else self.rows.ids

    def open_rows(self, version: int, random: Random) -> RowFormat | None:
        """Open the buffer with a version of the schema, which the buffer's may have to grow for."""
        queue = Queue(self.store, role="producer", limits=Limits(max_attempts=4), clock=self.clock, random=random)
        return open_format(queue, queue.read(), schema=schema_of(version), evolve=True)


@dataclass
class Reader(Process):
    group: str | None = None
    consumer: Consumer | None = None
    generation: str = ""
    following: int | None = None
    unacked: list[int] = field(default_factory=list)

    def leave(self) -> None:
        """Its consumer is gone."""
        self.consumer, self.following, self.unacked = None, None, []


@dataclass
class Holder(Process):
    held: HeldRange | None = None


class WithoutAlarms:
    """A clock on which no deadline comes: a hold is renewed by a step, not by the thread that waits for its time."""

    def __init__(self, clock: ManualClock) -> None:
        self.now_ms = clock.now_ms
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self._clock = clock

    def wait_until(self, condition: Condition, deadline: float | None) -> bool:
        return self._clock.wait_until(condition, None)


CRASHED = Crash("the process is gone")


def pick(those: Sequence[T], who: int) -> T | None:
    """One of them, or None if there are none."""
    return those[who % len(those)] if those else None


GROUPS = ("etl", "audit", "replay")
READERS: tuple[str | None, ...] = (None, None, "etl", "etl", "audit", "replay")

STEPS = {
    "upload": 1,
    "append": 1,
    "produce": 3,
    "evolve": 1,
    "open": 2,
    "read": 1,
    "ack": 1,
    "consume": 3,
    "close": 1,
    "regroup": 1,
    "hold": 1,
    "load": 2,
    "release": 1,
    "collect": 1,
    "turn_over": 3,
    "pause": 1,
    "jump": 2,
    "land": 1,
    "crash": 1,
}
"""What processes do, and how often."""
STEPS_WITHIN = {
    "disturb": 5,
    "upload": 1,
    "append": 1,
    "produce": 1,
    "evolve": 1,
    "open": 1,
    "consume": 1,
    "regroup": 1,
    "hold": 1,
    "collect": 2,
    "pause": 1,
    "land": 1,
}
"""What others do meanwhile."""
FAULTS = (*WRITE_FAULTS, Fault.LOSE_ANSWER, Fault.LATE, Fault.CRASH, Fault.CRASH_AFTER)
