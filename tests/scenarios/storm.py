"""A storm: real processes on one buffer, killed, stopped and starved at random, and an exact account at the end.

Whatever befell them, the account must come out (`Storm.check`): every entry that a producer's ledger calls durable is
in the log once, none that failed is, nothing is there that nobody tried to write, each producer's entries are in order,
sequences have no gap, every reader saw the same log, the Parquet files hold exactly it, and nothing listed is missing.

What happens is drawn from one seed: `FOREBAY_STORM_SEED=7 pytest …` repeats a storm's plan, though not the moments at
which real processes meet it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec
import pyarrow.dataset as ds
from evolving import VERSIONS, schema_of
from runtime_child import GROUP
from storm_child import FENCED, GAVE_UP, Part, entries_of, read_ledger

from forebay.buffer.consumer import Consumer
from forebay.buffer.inspect.findings import Severity
from forebay.buffer.inspect.verify import verify
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.head import KEPT_LASTING
from forebay.buffer.manifest.head_fields import Writer
from forebay.buffer.manifest.lasting_writers import list_lasting_writers
from forebay.buffer.producer import Producer
from forebay.buffer.store import ObjectStore, open_store
from forebay.gc import Collector

GRACE = 0.4
"""Seconds: shorter than a stop, so that a producer that was stopped finds its upload below the floor."""
EARLIER_WRITERS = {f"pod-of-yesterday-{number}": number for number in range(4 * KEPT_LASTING)}
NURSERY = Path(__file__).with_name("storm_child.py")


def seed_of(default: int) -> int:
    """The seed that was asked for, or a test's own."""
    return int(os.environ.get("FOREBAY_STORM_SEED", default))


class Nursery:
    """Starts the processes, and knows how they ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, part: Part) -> int:
        spec = asdict(part)
        started = self._ask({"start": spec.pop("role"), **spec})
        assert isinstance(started, int)
        return started

    def poll(self, pid: int) -> int | None:
        """The exit status; it may be asked for once."""
        return self._ask({"poll": pid})

    def wait(self, pid: int) -> int:
        while (status := self.poll(pid)) is None:
            pause(0.005)
        return status

    def _ask(self, command: dict[str, Any]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(command)}\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it; its processes end with it."""
        self._process.kill()
        self._process.communicate()


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(frozen=True)
class Weather:
    """What may befall a process besides being killed, and how often, beside the kills."""

    stops: float = 0.0
    """Stopped for longer than the grace period; a reader is overtaken by another meanwhile."""
    full_disks: float = 0.0
    server_kills: float = 0.0
    """Number of kills of this kind."""
    steps_clock: bool = False


class Storm:
    """Processes on a buffer, and what is done to them.

    Args:
        url: the buffer, empty at first.
        home: a folder for ledgers and Parquet files.
        seed: what everything is drawn from.
        rows: whether the buffer holds rows, of a schema that evolves while old and new producers write.
        options: storage options of the processes, which may lead them through a proxy; one is drawn for each life.
        direct: storage options of the account at the end.
        pace: how long things take on this store, beside files.
        restart_server: kills the server that the buffer is on, and has it back before it returns.
    """

    def __init__(
        self,
        url: str,
        home: Path,
        seed: int,
        *,
        profile: str = "native",
        rows: bool = False,
        weather: Weather = Weather(),
        options: Collection[dict[str, Any]] = ({},),
        direct: dict[str, Any] | None = None,
        pace: float = 1.0,
        restart_server: Callable[[], None] | None = None,
    ) -> None:
        self.url, self.home, self.seed, self.profile, self.rows = url, home, seed, profile, rows
        self.happened: Counter[str] = Counter()
        """How often what was done to whom."""
        self._random = Random(seed)
        self._weather = weather
        self._options = list(options)
        self._direct = direct
        self._pace = pace
        self._restart_server = restart_server
        self._nursery = Nursery()
        self._cast = list(self._parts())
        self._alive: dict[str, tuple[Part, int]] = {}

    def _parts(self) -> Iterator[Part]:
        base = Part("producer", "", 0, self.url, str(self.home), 0, profile=self.profile, rows=self.rows)
        grace = GRACE if self.profile == "native" else 600.0  # version 1 allows no pause beyond it
        steps = self._weather.steps_clock
        yield replace(base, name="plain-1", grace=grace, steps_clock=steps)
        yield replace(base, name="plain-2", grace=grace)
        yield replace(base, role="collector", name="sweeper", grace=grace, steps_clock=steps)
        if self.profile == "opendata":
            yield replace(base, role="consumer", name="owner")
            return
        yield replace(base, name="lasting", lasting=True)
        yield replace(base, role="consumer", name="reader-1", group="audit-1")
        yield replace(base, role="consumer", name="reader-2", group="audit-2")
        yield replace(base, role="runtime", name="to-parquet", group=GROUP)

    @property
    def kills(self) -> int:
        """Processes killed so far, the server included."""
        return sum(times for what, times in self.happened.items() if what.startswith("killed"))

    def __enter__(self) -> Self:
        if self.profile == "native":
            if self.rows:
                Producer(self.open_store(), schema=schema_of(0)).close()
            # Before anyone trims: a group that comes later begins at what is left.
            for part in self._cast:
                if part.group is not None:
                    Consumer(self.open_store(), group=part.group).close()
            self._remember_writers()
        for part in self._cast:
            self._start(part)
        return self

    def _remember_writers(self) -> None:
        """Have the head know lasting writers of earlier days, so that those who come are sealed into buckets."""
        writers = {f"={name}": Writer(number, 0) for name, number in EARLIER_WRITERS.items()}
        Queue(self.open_store()).change_head(
            lambda head: msgspec.structs.replace(head.touch(), writers=writers), lambda head: len(head.writers) > 1
        )

    def __exit__(self, *_: object) -> None:
        self._nursery.close()

    def open_store(self) -> ObjectStore:
        return open_store(self.url, self._direct)

    # Weather

    def rage(self, kills: int) -> None:
        """Kill this number of processes, and let every other kind of weather happen at least once."""
        for strike in self._plan(kills):
            # Long enough for some work, short enough to meet the next one in the middle of it.
            pause(self._pace * self._random.random() * self._random.choice((0.02, 0.1, 0.3)))
            self._replace_the_dead()
            strike()

    def _plan(self, kills: int) -> list[Callable[[], None]]:
        weather = self._weather
        servers = ceil(kills * weather.server_kills)
        plan = [
            *[self._kill_the_server] * servers,
            *[self._kill_one] * (kills - servers),
            *[self._stop_one] * ceil(kills * weather.stops),
            *[self._fill_the_disk] * ceil(kills * weather.full_disks),
        ]
        self._random.shuffle(plan)
        return plan

    def _kill_the_server(self) -> None:
        assert self._restart_server is not None
        self._restart_server()
        self.happened["killed server"] += 1

    def _start(self, part: Part) -> int:
        seed, options = self._random.getrandbits(32), self._random.choice(self._options)
        life = self._alive[part.name][0].life + 1 if part.name in self._alive else 0
        calm = part.drains and self._direct is not None
        part = replace(part, life=life, seed=seed, options=self._direct if calm else options)
        pid = self._nursery.start(part)
        self._alive[part.name] = part, pid
        return pid

    def _kill_one(self) -> None:
        part, pid = self._alive[self._random.choice(self._cast).name]
        os.kill(pid, signal.SIGKILL)
        self._see_how_it_ended(part, self._nursery.wait(pid))
        self.happened[f"killed {part.role}"] += 1
        self._start(part)

    def _stop_one(self) -> None:
        part, pid = self._alive[self._random.choice(self._cast).name]
        os.kill(pid, signal.SIGSTOP)
        self.happened[f"stopped {part.role}"] += 1
        taken_over = part.role in {"consumer", "runtime"}
        if taken_over:
            self._start(part)
        pause(GRACE * (1.5 + self._random.random()))
        os.kill(pid, signal.SIGCONT)
        if taken_over:
            # Fenced, if the new one came to claim; killed before that, it would have gone on.
            pause(self._random.random() * 0.2)
            os.kill(pid, signal.SIGKILL)
            status = self._nursery.wait(pid)
            self._see_how_it_ended(part, status)
            self.happened[f"overtaken {part.role}, {'fenced' if status == FENCED else 'not seen to be'}"] += 1

    def _fill_the_disk(self) -> None:
        full = self.home / "disk-full"
        full.touch()
        self.happened["disk full"] += 1
        pause(0.1 + self._random.random() * 0.4)
        full.unlink()

    def _replace_the_dead(self) -> None:
        for part, pid in list(self._alive.values()):
            status = self._nursery.poll(pid)
            if status is not None:
                self._see_how_it_ended(part, status)
                self.happened[f"ended without a kill: {part.role}"] += 1
                self._start(part)

    def _see_how_it_ended(self, part: Part, status: int) -> None:
        broken = self.home / "broken"
        shown = broken.read_text() if broken.exists() else ""
        assert status in {0, -signal.SIGKILL, FENCED, GAVE_UP}, (
            f"seed {self.seed}: {part.name} ended with {status}\n{shown}"
        )

    # The account

    def settle(self) -> None:
        """Let the producers end, the readers catch up, and everything be swept."""
        (self.home / "stop").touch()
        for part, pid in self._alive.values():
            self._see_how_it_ended(part, self._nursery.wait(pid))
        for part in self._cast:
            if part.role in {"consumer", "runtime"}:
                self._drain(replace(part, drains=True))
        (self.home / "stop").unlink()

    def _drain(self, part: Part) -> None:
        for _ in range(20):
            status = self._nursery.wait(self._start(part))
            self._see_how_it_ended(part, status)
            if status == 0:
                return
        raise AssertionError(f"seed {self.seed}: {part.name} cannot catch up in calm weather")

    def check(self) -> str:
        """Compare what everyone was told with what is there; return the account in one line."""
        log = self._check_log()
        found = [entry for _sequence, entries in sorted(log.items()) for entry in entries]
        doubled = len(found) - len(set(found))
        if self.profile == "native":
            assert not doubled, f"seed {self.seed}: {[e for e, times in Counter(found).items() if times > 1][:5]}"
            self._check_files(found)
        durable = sum(self._check_producer(part.name, found) for part in self._cast if part.role == "producer")
        assert durable, f"seed {self.seed}: nothing was durable, so this says nothing"
        if self.profile == "native":
            self._check_writers()
        if self.rows:
            self.happened["schema versions"] = len(Queue(self.open_store()).read().schemas)
            assert 1 < self.happened["schema versions"] <= VERSIONS, f"seed {self.seed}: the schema did not evolve"
        kept = self._check_store()
        swept = sum(line[1] for line in read_ledger(self.home / "sweeper.ledger"))
        return (
            f"seed {self.seed}: {self.kills} kills; {len(log)} batches, {len(found)} entries, {durable} reported "
            f"durable: none lost, {doubled} doubled, none dangling; {swept} objects swept during it, {kept} left; "
            + ", ".join(f"{what} {times}" for what, times in sorted(self.happened.items()))
        )

    def _check_log(self) -> dict[int, list[str]]:
        """The log as its readers saw it, each batch as often as it was handed out."""
        logs: dict[str, dict[int, list[str]]] = {}
        for part in self._cast:
            if part.role == "consumer":
                log = logs.setdefault(part.name, {})
                for sequence, entries in read_ledger(part.ledger):
                    assert log.setdefault(sequence, entries) == entries, f"seed {self.seed}: {sequence} has changed"
        first, *others = logs.values()
        state = Queue(self.open_store()).read()
        assert sorted(first) == list(range(state.next_sequence)), f"seed {self.seed}: a gap, or not all was read"
        assert all(log == first for log in others), f"seed {self.seed}: two readers saw different logs"
        return first

    def _check_files(self, found: list[str]) -> None:
        """Check that the Parquet files hold the log, and nothing twice."""
        table = ds.dataset(self.home / "parquet").to_table(columns=["value"])
        written, expected = Counter(value.decode() for value in table["value"].to_pylist()), Counter(found)
        missing, doubled = sorted((expected - written).elements()), sorted((written - expected).elements())
        assert written == expected, (
            f"seed {self.seed}: in the Parquet files {len(missing)} are missing and {len(doubled)} too many: "
            f"{missing[:5]}, {doubled[:5]}"
        )

    def _check_producer(self, name: str, found: list[str]) -> int:
        """Compare a producer's ledger with the log, and return how many entries it was told to be durable."""
        told = read_answers(self.home / f"{name}.ledger")
        there = [entry for entry in found if entry.startswith(f"{name}/")]
        seen = set(there)
        durable = 0
        for (life, number), answer in told.items():
            expected = {entry.decode() for entry in entries_of(name, life, number)}
            present = expected & seen
            assert present in (set(), expected), f"seed {self.seed}: half of {name}'s call {number} is there"
            if answer == "durable":
                assert present, f"seed {self.seed}: LOST: {name}, life {life}, call {number}"
                durable += len(expected)
            assert not (answer == "failed" and present), f"seed {self.seed}: {name}'s call {number} failed and is there"
        places = [tuple(map(int, entry.split("/")[1:])) for entry in there]
        assert {place[:2] for place in places} <= set(told), f"seed {self.seed}: nobody wrote all that is there"
        if self.profile == "native":
            lives = {place[0] for place in places}
            for life in lives:
                calls = [place for place in places if place[0] == life]
                assert calls == sorted(calls), f"seed {self.seed}: {name}'s entries are out of order"
            if name == "lasting":
                numbers = sorted({number for _life, number, _i in places})
                assert numbers == list(range(1, len(numbers) + 1)), f"seed {self.seed}: {name} skipped a call"
        return durable

    def _check_writers(self) -> None:
        """Check that no lasting name is forgotten, and that some of them are in buckets."""
        queue = Queue(self.open_store())
        known = list_lasting_writers(queue)
        lost = {name for name, number in EARLIER_WRITERS.items() if known.get(name) != number}
        assert not lost, f"seed {self.seed}: writers are forgotten: {sorted(lost)[:5]}"
        head = queue.last_seen()
        assert isinstance(head, Head)
        self.happened["writers sealed"] = sum(bucket.count for bucket in head.writer_buckets.values())
        assert head.writer_buckets, f"seed {self.seed}: no writer was sealed"

    def _check_store(self) -> int:
        """Check that nothing dangles, before and after all is swept; return how many objects are left."""
        for _ in range(2):
            report = verify(self.open_store())
            assert report.severity == Severity.OK, f"seed {self.seed}: {report}: {report.findings[:5]}"
            Collector(self.open_store(), grace=0).collect_once()
        assert report.batches == 0, f"seed {self.seed}: everyone has read all, and {report.batches} batches are kept"
        return sum(1 for found in self.open_store().list("data/"))


def read_answers(ledger: Path) -> dict[tuple[int, int], str]:
    """What a producer was last told of each call, by its life and its number."""
    return {(life, number): answer for answer, life, number in read_ledger(ledger)}


def rage(storm: Storm, kills: int) -> str:
    """A whole storm of this number of kills, and the account."""
    with storm:
        storm.rage(kills)
        with suppress(FileNotFoundError):
            (storm.home / "disk-full").unlink()
        storm.settle()
        return storm.check()
