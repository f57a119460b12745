"""Those who read in the simulation."""

from __future__ import annotations

from collections.abc import Callable

from simulation_world import EXPECTED, Process, Simulation, place_of

from forebay.buffer.base.errors import Fenced, NotFound, Trimmed, Unknown, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import BatchDescriptor
from forebay.buffer.groups import CursorState, cursor_key
from forebay.buffer.read.ahead import ReadAhead
from forebay.buffer.standby import HEARTBEAT_SECONDS, Standby
from forebay.runtime.stages.frontier import Frontier
from forebay.runtime.stages.portions import Portion

PAUSE = 15.0
"""Seconds between two looks of a standby. A longer pause counts as two of it, as long as an owner may be silent."""


class Consuming(Process):
    """Reads, commits in any order, and acknowledges what is committed without a gap."""

    can_be_fenced = True
    check_claim: Callable[[CursorState], None] | None = None

    def __init__(self, simulation: Simulation, name: str, group: str | None) -> None:
        super().__init__(simulation, name)
        self.group = group
        self.consumer: Consumer | None = None

    def begin(self) -> None:
        self.consumer = None

    def work(self) -> None:
        if self.consumer is None:
            self.open()
        elif self.random.random() < 0.05:
            self.close(self.consumer)
        else:
            self.read(self.consumer)

    def open(self) -> None:
        answer = self.simulation.journal.call("claim", self.who, reader=self.group or "")
        try:
            consumer = Consumer(
                self.line,
                group=self.group,
                read_ahead=ReadAhead(batches=3),
                check_claim=self.check_claim,
                clock=self.line.clock,
                random=self.random,
            )
        except EXPECTED:
            answer("unknown")  # a claim may have been made before it failed
            return
        except Unsupported:
            assert self.simulation.migrating
            answer("failed")  # it is of version 1 yet
            return
        self.line.claims.add(consumer._claim.claim_id)
        self.life = consumer.reader.generation
        answer("ok", epoch=consumer.epoch, life=self.life)
        self.simulation.seen["claims of a group" if self.group else "claims of the unnamed"] += 1
        self.consumer = consumer
        self.following: int | None = None
        self.frontier = Frontier(every=1, seconds=0.0)

    def read(self, consumer: Consumer) -> None:
        most = self.random.choice((1, 2, 5))
        told = {"reader": self.group or "", "life": self.life, "epoch": consumer.epoch}
        answer = self.simulation.journal.call("read", self.who, **told)
        is_over = self.is_life_over()
        try:
            found, saw_end = self.look(consumer, most)
        except (Fenced, Trimmed) as error:
            answer("fenced")
            self.leave(error)
            return
        except EXPECTED:
            answer("unknown")
            return
        assert not is_over, f"{self.who} reads on, and its group was reset or deleted before"
        first = place_of(consumer, found) if self.following is None else self.following
        values = [(batch.sequence, self.simulation.values[batch.location]) for batch in found]
        answer("ok", batches=values, first=first, saw_end=saw_end)
        self.following = first + len(found)
        if found and (self.group is None or self.record(consumer, [batch.sequence for batch in found])):
            self.commit(consumer, found)

    def look(self, consumer: Consumer, most: int) -> tuple[list[BatchDescriptor], bool]:
        """What comes next, and whether there was no more."""
        found = consumer.next_descriptors(most)
        return found, len(found) < most

    def record(self, consumer: Consumer, ends: list[int]) -> bool:
        """Write down what is about to be committed, as the runtime does for a group; False if it is another's now."""
        while True:
            try:
                consumer.plan(ends)
            except Fenced as error:
                self.leave(error)
                return False
            except EXPECTED:
                continue
            return True

    def commit(self, consumer: Consumer, found: list[BatchDescriptor]) -> None:
        """Fetch and commit in any order, and acknowledge now and then."""
        portions = [Portion(consumer.reader, [batch], replay=False) for batch in found]
        for portion in portions:
            self.frontier.add(portion)
        ledger = self.simulation.committed.setdefault((self.group or "", self.life), set())
        for portion in self.random.sample(portions, len(portions)):
            batch = portion.descriptors[0]
            while not portion.done:
                try:
                    fetched = consumer.fetch_descriptor(batch)
                except NotFound as error:
                    self.leave(error)
                    if not self.is_gone(batch):
                        raise AssertionError(f"listed, and missing: {batch.location}") from error
                    return
                except EXPECTED:
                    continue
                values = self.simulation.read(fetched)
                assert values == self.simulation.values[batch.location], f"{batch.location} changed"
                assert self.is_recorded(batch.sequence), (
                    f"{batch.sequence} is committed, and its cursor does not name it"
                )
                ledger.add(batch.sequence)
                portion.done = True
            self.frontier.advance(0.0)
            if self.frontier.unacked and self.random.random() < 0.6:
                self.ack(consumer)
            if self.consumer is None:
                return

    def is_recorded(self, sequence: int) -> bool:
        cursor = None if self.group is None else self.simulation.store.cursor(cursor_key(self.group, self.life))
        if cursor is None:
            return self.group is None or self.is_life_over()
        return sequence in cursor.planned or (cursor.acked is not None and sequence <= cursor.acked)

    def is_life_over(self) -> bool:
        """Whether the group was reset or deleted since it was opened here."""
        if self.group is None:
            return False
        head = self.simulation.store.head
        assert head is not None
        return self.group not in head.groups or head.groups[self.group].generation != self.life

    def is_gone(self, batch: BatchDescriptor) -> bool:
        head = self.simulation.store.head
        return head is not None and batch.sequence < head.first_sequence

    def ack(self, consumer: Consumer) -> None:
        through = self.frontier.through
        assert through is not None
        told = {"reader": self.group or "", "life": self.life, "epoch": consumer.epoch, "through": through}
        answer = self.simulation.journal.call("ack", self.who, **told)
        try:
            consumer.ack_through(through)
        except Fenced as error:
            answer("fenced")
            self.leave(error)
        except Unknown:
            answer("unknown")
        except EXPECTED:
            answer("failed")
        else:
            answer("ok")
            self.frontier.mark_acked(through)
            self.simulation.seen["acks"] += 1

    def leave(self, why: Exception) -> None:
        """Stop: it is another's now; its sequences are gone only if it is."""
        self.simulation.seen[type(why).__name__] += 1
        self.consumer = None

    def close(self, consumer: Consumer) -> None:
        self.consumer = None
        try:
            consumer.close()
        except EXPECTED as error:
            self.simulation.seen[f"closing: {type(error).__name__}"] += 1


class Iterating(Consuming):
    """Iterates, so that it reads ahead. Each run begins with a look of its own, as the journal's reads do."""

    def look(self, consumer: Consumer, most: int) -> tuple[list[BatchDescriptor], bool]:
        batch = consumer.next_batch()
        found: list[BatchDescriptor] = []
        while batch is not None:
            values = self.simulation.read(batch)
            assert values == self.simulation.values[batch.location], f"{batch.location} changed"
            found.append(batch.descriptor)
            if len(found) > most:
                return found, False
            try:
                batch = next(consumer.batches(), None)
            except (Fenced, Trimmed):
                raise
            except EXPECTED:
                return found, False
            self.simulation.seen["batches read ahead"] += batch is not None
        return found, True


class StandingBy(Consuming):
    """Takes over a group only once its owner has shown no life for long enough, and shows life itself."""

    def __init__(self, simulation: Simulation, name: str, group: str) -> None:
        super().__init__(simulation, name, group)
        self.line.waits = True
        self.waits_for = group

    def begin(self) -> None:
        super().begin()
        self.standby = Standby(self.line, self.waits_for, self.line.clock)
        self.check_claim = self.standby.check_claim

    def work(self) -> None:
        if self.consumer is not None and self.random.random() < 0.3:
            self.show_alive(self.consumer)
        else:
            super().work()

    def open(self) -> None:
        try:
            is_free = self.standby.look(PAUSE)
        except EXPECTED:
            return
        if is_free:
            super().open()
            self.standby.start_again()

    def show_alive(self, consumer: Consumer) -> None:
        try:
            consumer.show_alive(HEARTBEAT_SECONDS)
        except Fenced as error:
            self.leave(error)
        except EXPECTED:
            pass
