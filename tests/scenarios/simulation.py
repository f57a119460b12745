"""A buffer with all who use it, simulated from one seed: producers, consumers, groups, sealing, holds and collection.

    python tests/scenarios/simulation.py SEED [rows]

replays a seed, the same each time, and prints what happened, request by request, and what every process was told.
`simulation_world.py` explains how.

The processes here are the real ones, without the threads that they have in production: a producer's uploader and
queue, consumers, collectors, holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from machine_processes import GRACE, TTL, WithoutAlarms
from simulation_readers import Consuming, Iterating, StandingBy
from simulation_world import EXPECTED, Process, Simulation
from simulation_writers import Input, Lasting, Loading, Producing

from forebay.buffer.base.errors import Closed, Fenced, InvalidInput
from forebay.buffer.either.holds import hold
from forebay.buffer.groups import Groups
from forebay.buffer.holds import HeldRange
from forebay.buffer.inspect.migrate import migrate
from forebay.gc import Collector


class Collecting(Process):
    """Trims and sweeps, again and again."""

    def begin(self) -> None:
        self.collector = Collector(self.line, grace=GRACE, clock=self.line.clock, random=self.random)

    def work(self) -> None:
        try:
            report = self.collector.collect_once()
        except EXPECTED:
            return
        self.simulation.seen["trims"] += report.trimmed > 0
        self.simulation.seen["sweeps"] += report.deleted > 0
        self.simulation.seen["expired holds"] += len(report.expired_holds)


class Keeping(Process):
    """Resets and deletes groups while others read them."""

    def work(self) -> None:
        groups = Groups(self.line, clock=self.line.clock, random=self.random)
        name = self.random.choice(("etl", "audit"))
        answer = self.simulation.journal.call("end", self.who, reader=name)
        try:
            if self.random.random() < 0.3:
                groups.delete(name, force=True)
            else:
                groups.reset(name, self.random.choice(("earliest", "latest")), force=True)
            self.simulation.seen["resets"] += 1
        except (*EXPECTED, InvalidInput):  # somebody else has changed it meanwhile
            pass
        answer("unknown")
        for _ in range(20):
            self.rest()


class Holding(Process):
    """Keeps what it is about to read, and reads it."""

    held: HeldRange | None = None

    def work(self) -> None:
        try:
            if self.held is None:
                place = self.random.choice(("earliest", "latest"))
                # Shorter than most pauses: it is lost if two collections come meanwhile, and no renewal.
                self.held = hold(
                    self.line, from_=place, ttl=TTL / 2, clock=WithoutAlarms(self.line.clock), random=self.random
                )
            elif self.random.random() < 0.2:
                held, self.held = self.held, None
                held.close()
            else:
                self.renew(self.held)
        except (Fenced, Closed):
            self.simulation.seen["holds lost"] += 1
            self.end()
        except EXPECTED:
            pass

    def renew(self, held: HeldRange) -> None:
        held.renew()
        self.simulation.seen["renewals"] += 1
        found = [batch.location for batch in held.descriptors()]
        assert found == self.simulation.store.listed[held.first : held.last + 1]

    def end(self) -> None:
        if self.held is not None:
            self.held._lease.stop()
            self.held = None


class Migrating(Process):
    """Makes a buffer of version 1 one of version 2, while producers write to it."""

    def work(self) -> None:
        for _ in range(20):
            self.rest()
        try:
            report = migrate(self.line, others_stopped=True, grace=GRACE, clock=self.line.clock, random=self.random)
        except EXPECTED:
            return
        self.simulation.seen["migrations"] += report.migrated


def migrating_cast(simulation: Simulation) -> list[Process]:
    """Those who may be at work before, during and after a migration.

    Nobody consumes before, and nothing is trimmed after: an append in doubt whose place is gone is made again, since
    version 1 keeps no trace of it.
    """
    return [
        Producing(simulation, "producer 1"),
        Producing(simulation, "producer 2"),
        Migrating(simulation, "migrator 1"),
        Migrating(simulation, "migrator 2"),
        Consuming(simulation, "etl 1", "etl"),
        Consuming(simulation, "etl 2", "etl"),
    ]


def whole_cast(simulation: Simulation) -> list[Process]:
    """Those who always play, and some of the others."""
    if simulation.migrating:
        return migrating_cast(simulation)
    cast: list[Process] = [
        Producing(simulation, "producer 1"),
        Consuming(simulation, "consumer 1", None),
        Consuming(simulation, "etl 1", "etl"),
        Collecting(simulation, "collector 1"),
    ]
    lasting = Input("lasting")
    others: list[Callable[[], Process]] = [
        lambda: Producing(simulation, "producer 2"),
        lambda: Lasting(simulation, "lasting 1", lasting),
        lambda: Lasting(simulation, "lasting 2", lasting),
        lambda: Lasting(simulation, "pod-a 1", Input("pod-a")),
        lambda: Lasting(simulation, "pod-b 1", Input("pod-b")),
        lambda: Lasting(simulation, "pod-c 1", Input("pod-c")),
        lambda: Loading(simulation, "job"),
        lambda: Iterating(simulation, "consumer 2", None),
        lambda: Consuming(simulation, "etl 2", "etl"),
        lambda: Consuming(simulation, "audit", "audit"),
        lambda: Iterating(simulation, "etl 3", "etl"),
        lambda: StandingBy(simulation, "standby 1", "etl"),
        lambda: StandingBy(simulation, "standby 2", "etl"),
        lambda: Collecting(simulation, "collector 2"),
        lambda: Keeping(simulation, "keeper"),
        lambda: Holding(simulation, "holder 1"),
        lambda: Holding(simulation, "holder 2"),
    ]
    count = simulation.random.randint(3, 6)
    return [*cast, *(make() for make in simulation.random.sample(others, count))]


def play(seed: int, *, rows: bool = False) -> Simulation:
    """Run a seed and return it, or raise `AssertionError` with the way to replay it."""
    simulation = Simulation(seed, whole_cast, rows=rows)
    simulation.run()
    return simulation


def main() -> int:
    """Replay the seed that was given, and print what happened."""
    simulation = Simulation(int(sys.argv[1]), whole_cast, rows=sys.argv[2:] == ["rows"])
    verdict = ""
    try:
        simulation.run()
    except AssertionError as error:
        verdict = str(error)
    holds = f"seed {simulation.seed}: everything holds; {dict(sorted(simulation.seen.items()))}"
    told = [line.decode().rstrip() for line in simulation.lines]
    sys.stdout.write("\n".join([*simulation.trace, *told, verdict or holds, ""]))
    return bool(verdict)


if __name__ == "__main__":
    sys.exit(main())
