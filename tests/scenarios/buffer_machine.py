"""The state machine of `test_buffer_machine.py`: a native buffer, its processes, and what each of them was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, TypeVar

from evolving import VERSIONS
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from machine_processes import (
    CRASHED,
    GRACE,
    GROUPS,
    JUMPS,
    LATEST_MS,
    NOTHING,
    READERS,
    TTL,
    Holder,
    Network,
    Payload,
    Plan,
    Process,
    Reader,
    Step,
    WithoutAlarms,
    Writer,
    pick,
)

from forebay.buffer.base import names
from forebay.buffer.base.errors import Corrupt, Fenced, ForebayError, InvalidInput, Trimmed, Unknown, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.groups import Groups, cursor_key
from forebay.buffer.holds import HeldRange, HeldUploads
from forebay.buffer.manifest import BelowFloor, Queue, head
from forebay.buffer.manifest.register import Limits
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.write.rows import RowFormat
from forebay.gc import CollectionReport, Collector
from forebay.testing import Crash, ManualClock
from forebay.testing.watched import WatchedStore

PAUSES = (1.0, 700.0, 100_000.0)

T = TypeVar("T")


class BufferMachine(RuleBasedStateMachine):
    """One buffer and its processes."""

    examples = 0
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.store_clock = ManualClock()
        self.latest_ms = 0
        """The latest time of the store, which its clock may have gone back from since."""
        self.random = Random(0)
        memory = MemoryStore(f"memory://machine-{self.examples}", clock=self.store_clock)
        memory.delete([found.key for found in memory.list()])
        self.store = WatchedStore(memory)
        self.typed = False
        self.payloads: dict[str, Payload] = {}
        self.answers: dict[Payload, str] = {}
        self.writers = [self.start(Writer, number=number) for number in range(3)]
        self.job = self.start(Writer, number=3)
        self.pinned: tuple[str, str] | None = None
        """The id and the floor of the job's hold."""
        self.readers = [self.start(Reader, group=group) for group in READERS]
        self.keeper = self.start(Process)
        self.holders = [self.start(Holder) for _ in range(2)]
        self.collectors = [self.start(Process) for _ in range(2)]
        self.collector: list[Collector | None] = [None, None]

    def start(self, kind: type[T], **fields: Any) -> T:
        clock = ManualClock()
        return kind(clock, Network(self.store, clock, self.act), **fields)

    @property
    def processes(self) -> list[Process]:
        return [*self.writers, self.job, *self.readers, self.keeper, *self.holders, *self.collectors]

    @property
    def clocks(self) -> list[ManualClock]:
        return [
            self.store_clock,
            *(process.clock for process in self.processes),
            *(writer.task_clock for writer in [*self.writers, self.job]),
        ]

    @initialize(seed=st.integers(0, 2**16), backlog=st.integers(0, 3), forgetful=st.booleans(), typed=st.booleans())
    def begin(self, seed: int, backlog: int, forgetful: bool, typed: bool) -> None:
        self.random.seed(seed)
        self.typed = typed
        head.MAX_WRITERS = 2 if forgetful else 256  # type: ignore[misc]
        head.KEPT_LASTING = 0 if forgetful else 1  # type: ignore[misc]
        for clock in self.clocks[1:]:
            if self.random.random() < 0.4:
                clock.step_wall(self.random.choice(JUMPS))
        for who in range(backlog):
            self.produce(who=who, much=2, plan=NOTHING)

    @rule(step=st.binary(min_size=8, max_size=8).map(Step.drawn))
    def act(self, step: Step) -> None:
        """Somebody does something."""
        getattr(self, step.name)(who=step.who, much=step.much, plan=step.plan)

    def disturb(self, who: int, much: int, plan: Plan) -> None:
        """Somebody does what the process at work must notice."""
        busy = next(process for process in self.processes if process.busy)
        if isinstance(busy, Reader):
            rivals = [i for i, reader in enumerate(self.readers) if reader.group == busy.group and reader is not busy]
            (self.open if rivals and much % 2 else self.regroup)(who=rivals[0] if rivals else who, much=1, plan=plan)
        elif busy in self.collectors:
            known = () if self.store.head is None else self.store.head.groups
            new = [i for i, reader in enumerate(self.readers) if reader.group is not None and reader.group not in known]
            does = (self.open if new else self.regroup, self.regroup, self.hold)[much % 3]
            does(who=new[0] if new and does == self.open else who, much=(1, 1, 0)[much % 3], plan=plan)
        else:
            (self.collect, self.produce)[much % 2](who=who, much=much, plan=plan)

    def attempt(self, process: Process, plan: Plan, do: Callable[[], T]) -> T | ForebayError | Crash:
        """Let a process do something; what it raises is its answer."""
        process.busy = True
        self.seen["attempts"] += 1
        process.store.follow(plan)
        try:
            return do()
        except (Corrupt, Unsupported) as error:
            raise AssertionError(f"damage was found where there is none: {error}") from error
        except ForebayError as error:
            self.seen[type(error).__name__] += 1
            return error
        except Crash:
            return CRASHED
        finally:
            process.store.follow(NOTHING)
            process.busy = False

    # Writing

    def upload(self, who: int, much: int, plan: Plan) -> None:
        """A writer stores one to three batches, and lists none of them."""
        writer = self.writers[who % 3]
        if writer.busy:
            return
        for _ in range(1 + much % 3):
            payload = (writer.number, writer.made)
            writer.made += 1
            self.store_payload(writer, payload, names.LOWEST, plan)
            plan = NOTHING

    def store_payload(self, writer: Writer, payload: Payload, above: str, plan: Plan) -> None:
        location = f"data/{names.mint(writer.task_clock, self.random, above=above)}.batch"
        now_ms = writer.task_clock.now_ms()
        self.payloads[location] = payload
        self.answers[payload] = "failed"
        if self.typed and writer.rows is None:
            self.open_rows(writer, 1, NOTHING)
        stored = self.attempt(writer, plan, lambda: writer.store.put(location, b"x"))
        if isinstance(stored, str):
            self.answers[payload] = "not listed"
            version = None if writer.rows is None else writer.rows.version
            writer.waiting.append((payload, NewBatch(location, (), Facts(1, 1, 1, 0, now_ms, now_ms), version)))
        elif stored is CRASHED:
            self.die(writer)

    def append(self, who: int, much: int, plan: Plan) -> None:
        """A writer lists what it has stored; or, if it was refused, stores it again above the floor."""
        writer = pick([writer for writer in self.writers if writer.waiting and not writer.busy], who)
        if writer is None:
            return
        if writer.refused is not None:
            above, writer.refused = writer.refused, None
            again, writer.waiting = writer.waiting, []
            for payload, _ in again:
                self.store_payload(writer, payload, above, plan)
                plan = NOTHING
            return
        count = 1 + much % 3
        batches = writer.waiting[:count]
        queue = writer.queue = writer.queue or Queue(
            writer.store, role="producer", limits=Limits(max_attempts=4), clock=writer.clock, random=self.random
        )
        done = self.attempt(writer, plan, lambda: queue.append([batch for _, batch in batches], schemas=writer.schemas))
        if isinstance(done, BelowFloor):
            writer.refused = done.floor
            return
        writer.waiting = writer.waiting[count:]
        if isinstance(done, range):
            answer = "durable"
            places = [self.store.place_of(batch.location) for _, batch in batches]
            assert places == list(done), f"the writer was told {done}, and the batches are at {places}"
        else:
            answer = "unknown" if isinstance(done, Unknown | Crash) else "failed"
        for payload, _ in batches:
            self.answers[payload] = answer
        if done is CRASHED:
            self.die(writer)

    def produce(self, who: int, much: int, plan: Plan) -> None:
        """A writer stores batches and lists them at once, as it mostly does."""
        self.upload(who=who, much=much, plan=NOTHING)
        self.append(who=who, much=2, plan=plan)

    def die(self, writer: Writer) -> None:
        """The process is gone with all that it had in memory; another takes its place."""
        for payload, _ in writer.waiting:
            self.answers[payload] = "failed"
        writer.waiting = []
        writer.queue = writer.rows = None
        writer.refused = None
        if writer is self.job:
            self.pinned = None

    def evolve(self, who: int, much: int, plan: Plan) -> None:
        """A newer or an older release of a writer's program takes its place; its rows are of another version."""
        writer = [*self.writers, self.job][who % 4]
        if self.typed and not writer.busy:
            self.die(writer)
            self.open_rows(writer, 1 + much % (VERSIONS - 1), plan)  # the type of version 0 is narrower

    def open_rows(self, writer: Writer, version: int, plan: Plan) -> None:
        before = 0 if self.store.head is None else len(self.store.head.schemas)
        opened = self.attempt(writer, plan, lambda: writer.open_rows(version, self.random))
        assert not isinstance(opened, InvalidInput), f"versions do not fit that do: {opened}"
        if isinstance(opened, RowFormat):
            assert self.store.head is not None
            known = self.store.head.schemas
            assert known[: len(opened.ids)] == opened.ids, f"a writer was told {opened.ids}, and the head has {known}"
            self.seen["evolutions"] += len(known) > before > 0
            writer.rows = opened

    # Reading

    def open(self, who: int, much: int, plan: Plan) -> None:
        """A consumer is opened, and takes over."""
        reader = self.readers[who % len(self.readers)]
        if reader.busy:
            return
        reader.leave()
        opened = self.attempt(
            reader,
            plan,
            lambda: Consumer(
                reader.store,
                group=reader.group,
                from_=None if reader.group is None else ("latest", "earliest", "earliest")[much % 3],
                clock=reader.clock,
                random=self.random,
            ),
        )
        if isinstance(opened, Consumer):
            reader.consumer = opened
            self.seen["claims of a group" if reader.group else "claims of the unnamed"] += 1
            reader.generation = "" if reader.group is None else opened.reader.generation
            made = opened._claim.claim_id in self.store.claims or (
                reader.group is None and opened.epoch in self.store.epochs
            )
            assert made, "a consumer believes in a claim that was never made"

    def owns(self, reader: Reader) -> bool:
        """Whether the store says that this reader is the last that claimed."""
        assert reader.consumer is not None
        claim_id = reader.consumer._claim.claim_id
        if reader.group is not None:
            cursor = self.store.cursor(cursor_key(reader.group, reader.generation))
            return cursor is not None and cursor.claim_id == claim_id
        return self.store.is_owner(reader.consumer.epoch, claim_id)

    def is_alive(self, reader: Reader) -> bool:
        """Whether the generation that this reader knows is still its group's."""
        if reader.group is None:
            return True
        assert self.store.head is not None
        group = self.store.head.groups.get(reader.group)
        return group is not None and group.generation == reader.generation

    def next_for(self, reader: Reader) -> int:
        """What this reader has to get next."""
        if reader.following is not None:
            return reader.following
        if self.store.head is None:
            return 0  # nothing was ever written
        if reader.group is not None:
            return self.store.frontier(reader.group)
        owner = self.store.head.owner
        return self.store.head.first_sequence if owner is None or owner.acked is None else owner.acked + 1

    def read(self, who: int, much: int, plan: Plan) -> None:
        """A consumer asks for what is next."""
        reader = pick([reader for reader in self.readers if reader.consumer is not None and not reader.busy], who)
        if reader is None or (consumer := reader.consumer) is None:
            return
        rightly = self.owns(reader) and self.is_alive(reader)
        expected = self.next_for(reader) if rightly else None
        there = len(self.store.listed)
        limit = 1 + much % 5
        found = self.attempt(reader, plan, lambda: consumer.next_descriptors(limit))
        if isinstance(found, list):
            assert rightly, "a consumer read on after it was fenced"
            assert expected is not None
            assert [batch.sequence for batch in found] == list(range(expected, expected + len(found)))
            assert [batch.location for batch in found] == self.store.listed[expected : expected + len(found)]
            assert len(found) >= min(limit, there - expected), "a batch that was there was not given"
            reader.following = expected + len(found)
            reader.unacked += [batch.sequence for batch in found]
        else:
            self.end_reader(reader, found)

    def ack(self, who: int, much: int, plan: Plan) -> None:
        """A consumer acknowledges some of what it got."""
        reader = pick([reader for reader in self.readers if reader.unacked and not reader.busy], who)
        if reader is None or (consumer := reader.consumer) is None:
            return
        through = reader.unacked[much % len(reader.unacked)]
        rightly = self.owns(reader)
        done = self.attempt(reader, plan, lambda: consumer.ack_through(through))
        if done is None:
            assert rightly, "a consumer acknowledged after it was fenced"
            reader.unacked = [sequence for sequence in reader.unacked if sequence > through]
        else:
            self.end_reader(reader, done)

    def consume(self, who: int, much: int, plan: Plan) -> None:
        """Consumers read and acknowledge all there is, as they mostly do."""
        if all(reader.consumer is None for reader in self.readers):
            self.open(who=who, much=much, plan=NOTHING)
        for turn in range(len(self.readers)):
            self.read(who=turn, much=4, plan=NOTHING)
            self.ack(who=turn, much=-1, plan=plan)

    def end_reader(self, reader: Reader, answer: ForebayError | Crash) -> None:
        """A fence must be one; whatever is trimmed must not have been this reader's."""
        if isinstance(answer, Fenced | Trimmed):
            assert not (self.owns(reader) and self.is_alive(reader)), f"its reader was told: {answer}"
        if isinstance(answer, Fenced | Trimmed | Crash):
            reader.leave()

    def close(self, who: int, much: int, plan: Plan) -> None:
        """A consumer closes."""
        reader = pick([reader for reader in self.readers if reader.consumer is not None and not reader.busy], who)
        if reader is not None and reader.consumer is not None:
            self.attempt(reader, plan, reader.consumer.close)
            reader.leave()

    # Keeping

    def regroup(self, who: int, much: int, plan: Plan) -> None:
        """Somebody moves a group to another place, or deletes it."""
        if self.keeper.busy or self.store.head is None:
            return
        name = pick(sorted(self.store.head.groups), who)
        groups = Groups(self.keeper.store, clock=self.keeper.clock, random=self.random)
        first, following = self.store.head.first_sequence, self.store.head.next_sequence
        if name is None:
            return
        if much % 3 == 0:
            self.attempt(self.keeper, plan, lambda: groups.delete(name, force=True))
        else:
            to = ("earliest", "latest", first + much % (following - first + 1))[(much // 3) % 3]
            self.attempt(self.keeper, plan, lambda: groups.reset(name, to, force=True))

    def hold(self, who: int, much: int, plan: Plan) -> None:
        """A job takes a hold, or renews it and reads what it holds."""
        holder = self.holders[who % 2]
        if holder.busy or self.store.head is None:
            return
        if holder.held is None:
            first, following = self.store.head.first_sequence, self.store.head.next_sequence
            at = first + much % (following - first + 1)
            held = self.attempt(
                holder,
                plan,
                lambda: hold(holder.store, from_=at, ttl=TTL, clock=WithoutAlarms(holder.clock), random=self.random),
            )
            holder.held = held if isinstance(held, HeldRange) else None
            return
        kept = holder.held
        in_force = kept.hold_id in self.store.head.holds
        renewed = self.attempt(holder, plan, kept.renew)
        if renewed is None:
            assert in_force, "a hold was renewed that was gone"
            self.seen["renewals"] += 1
            found = self.attempt(holder, NOTHING, lambda: list(kept.descriptors()))
            locations = [batch.location for batch in found] if isinstance(found, list) else found
            assert locations == self.store.listed[kept.first : kept.last + 1]
        elif isinstance(renewed, Fenced | Crash):
            assert renewed is CRASHED or kept.hold_id not in self.store.head.holds
            kept._lease.stop()
            holder.held = None

    def release(self, who: int, much: int, plan: Plan) -> None:
        """A job lets go of its hold."""
        holder = self.holders[who % 2]
        if not holder.busy and holder.held is not None:
            self.attempt(holder, plan, holder.held.close)
            holder.held = None

    def load(self, who: int, much: int, plan: Plan) -> None:
        """A job pins the floor, then its tasks store batches, then it lists them all at once and lets go."""
        if self.job.busy:
            return
        if self.pinned is None:
            hold_id = f"{self.random.getrandbits(128):032x}"
            floor = self.attempt(self.job, plan, self.hold_uploads(hold_id).floor)
            self.pinned = (hold_id, floor) if isinstance(floor, str) else None
        elif much % 3 or not self.job.waiting:
            self.job.made += 1
            self.store_payload(self.job, (self.job.number, self.job.made), self.pinned[1], plan)
        else:
            self.list_load(self.pinned[0], plan)

    def hold_uploads(self, hold_id: str) -> HeldUploads:
        queue = Queue(self.job.store, role="hold", clock=self.job.clock, random=self.random)
        return HeldUploads(queue, hold_id, ttl=TTL, clock=self.job.clock)

    def list_load(self, hold_id: str, plan: Plan) -> None:
        queue = Queue(self.job.store, role="producer", clock=self.job.clock, random=self.random)
        batches = [batch for _, batch in self.job.waiting]
        done = self.attempt(self.job, plan, lambda: queue.append(batches, schemas=self.job.schemas))
        assert self.store.head is not None
        if isinstance(done, BelowFloor):
            assert hold_id not in self.store.head.holds, "the floor went past a hold"
        answer = "durable" if isinstance(done, range) else "unknown" if isinstance(done, Unknown | Crash) else "failed"
        for payload, _ in self.job.waiting:
            self.answers[payload] = answer
        self.seen["loads"] += answer == "durable"
        self.job.waiting = []
        self.attempt(self.job, NOTHING, self.hold_uploads(hold_id).let_go)
        self.die(self.job)

    # Collecting

    def collect(self, who: int, much: int, plan: Plan) -> None:
        """A collector trims and sweeps."""
        process = self.collectors[who % 2]
        if process.busy:
            return
        collector = self.collector[who % 2] or Collector(
            process.store, grace=GRACE, clock=process.clock, random=self.random
        )
        self.collector[who % 2] = collector
        before = self.store.head
        done = self.attempt(process, plan, collector.collect_once)
        if done is CRASHED:
            self.collector[who % 2] = None
        if isinstance(done, CollectionReport):
            self.seen["trims"] += done.trimmed > 0
            self.seen["sweeps"] += done.deleted > 0
            self.seen["expired holds"] += len(done.expired_holds)
        if before is not None and plan is NOTHING:
            assert isinstance(done, CollectionReport)
            latest_ms = max(self.latest_ms, self.store_clock.now_ms())
            early = [h for h in done.expired_holds if not before.holds[h].is_expired(latest_ms)]
            assert not early, f"holds were removed before they expired: {early}"

    def turn_over(self, who: int, much: int, plan: Plan) -> None:
        """What comes is read, acknowledged and collected, as it is all day long."""
        self.produce(who=who, much=much, plan=NOTHING)
        self.consume(who=who, much=much, plan=NOTHING)
        self.collect(who=who, much=much, plan=plan)

    # Time and the network

    def pause(self, who: int, much: int, plan: Plan) -> None:
        """Time passes."""
        seconds = PAUSES[much % len(PAUSES)]
        for clock in self.clocks:
            clock.advance(seconds)

    def jump(self, who: int, much: int, plan: Plan) -> None:
        """Somebody's wall clock jumps: a process's, or the store's."""
        self.latest_ms = max(self.latest_ms, self.store_clock.now_ms())
        clock = self.clocks[who % len(self.clocks)]
        clock.step_wall(JUMPS[much % len(JUMPS)])
        if not 0 <= clock.now_ms() < LATEST_MS:
            clock.step_wall((self.store_clock.now_ms() - clock.now_ms()) / 1000)

    def land(self, who: int, much: int, plan: Plan) -> None:
        """A request lands whose process gave up on it long ago."""
        network = pick([process.store for process in self.processes if process.store.has_late_requests], who)
        if network is not None:
            network.land_late_request()
            self.seen["landings"] += 1

    def crash(self, who: int, much: int, plan: Plan) -> None:
        """A process dies between two steps."""
        process = self.processes[who % len(self.processes)]
        if isinstance(process, Writer):
            self.die(process)
        elif isinstance(process, Reader):
            process.leave()
        elif isinstance(process, Holder) and process.held is not None:
            process.held._lease.stop()
            process.held = None
        elif process in self.collectors:
            self.collector[self.collectors.index(process)] = None

    # The end

    def teardown(self) -> None:
        for holder in self.holders:
            if holder.held is not None:
                holder.held._lease.stop()
        assert not self.store.violations, self.store.violations
        for process in self.processes:
            process.store.land_late_requests()
        listed = Counter(self.payloads[location] for location in self.store.listed)
        for payload, answer in self.answers.items():
            expected = {"durable": {1}, "unknown": {0, 1}}.get(answer, {0})
            times = listed[payload]
            assert times in expected, f"{payload} was answered {answer!r} and is there {times} times"
        for writer in [*self.writers, self.job]:
            order = [p for location in self.store.listed if (p := self.payloads[location])[0] == writer.number]
            assert order == sorted(order), f"the order of writer {writer.number} is lost"
        if self.store.head is None:
            return
        for group in [None, *GROUPS]:
            self.drain(group)
        self.store_clock.step_wall((2 * LATEST_MS - self.store_clock.now_ms()) / 1000)
        for _ in range(2):  # the first stamps the holds that are left, the second removes them
            self.store_clock.step_wall(2 * TTL)
            clock = ManualClock(self.store_clock.now_ms())
            Collector(self.store, grace=GRACE, clock=clock, random=self.random).collect_once()
        assert self.store.head.holds == {}
        assert self.store.head.count == 0
        in_use = {bucket.name for bucket in self.store.head.writer_buckets.values()}
        left = {name for found in self.store.list() if (name := names.ulid_in(found.key))} - in_use
        assert all(name >= self.store.head.gc_floor for name in left), "what is below the floor was not swept"
        levels = [node.level for node in self.store._nodes.values()]
        self.seen["segments"] += levels.count(0)
        self.seen["index nodes"] += len(levels) - levels.count(0)
        self.store.inner.delete([found.key for found in self.store.inner.list()])

    def drain(self, group: str | None) -> None:
        """Another process reads, once each, all that this group has not acknowledged."""
        reader = self.start(Reader, group=group)
        reader.consumer = Consumer(self.store, group=group, clock=reader.clock, random=self.random)
        expected = self.next_for(reader)
        found = reader.consumer.next_descriptors(10_000)
        assert [batch.location for batch in found] == self.store.listed[expected:]
        if found:
            reader.consumer.ack_through(found[-1].sequence)
