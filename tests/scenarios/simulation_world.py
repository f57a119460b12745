"""The world of `simulation.py`: whose turn it is, what befalls requests, and what must hold.

Each process runs in a thread of its own, but only one runs at a time: it stops before every request to the store, and
the seed says who goes on, whether that request fails, is lost, is answered wrongly or lands long after, whether its
process dies there, and when time passes or a clock jumps. So everybody may be in the middle of something at any
moment, for as long as it takes others to do all they do: a process that is not chosen for a while has stalled, past
the grace period if the clocks are moved on meanwhile. A process that died is followed by another in its place.

Checked after every write: the invariants of the manifest, the cursors and the deletions (`WatchedStore`), and that the
one who acknowledges owns the reader and has committed all of it. At the end: all that is left is read and collected,
and what every process was told is one history of one log (`forebay.testing.history`).
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from threading import Lock, Thread
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from evolving import read_rows, schema_of
from machine_processes import FAULTS, GRACE, JUMPS, LATEST_MS, TTL

from forebay.buffer.base.errors import Closed, Fenced, NotFound, Timeout, Trimmed, Unavailable, Unknown
from forebay.buffer.base.names import ulid_in
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import decode_batch
from forebay.buffer.format.model import BatchDescriptor
from forebay.buffer.groups import Cursor
from forebay.buffer.inspect.migrate import migrate
from forebay.buffer.manifest import BelowFloor, Manifest, Queue, head
from forebay.buffer.manifest.head_fields import Owner
from forebay.buffer.manifest.state import CURSORS
from forebay.buffer.read import ahead
from forebay.buffer.read.fetch import Batch
from forebay.buffer.read.threads import Coming
from forebay.buffer.standby import TAKEOVER_SECONDS
from forebay.buffer.store.base import Data, Outcome
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.write.formats import open_format
from forebay.gc import Collector
from forebay.testing import Crash, Fault, FaultyStore, ManualClock
from forebay.testing.history import Journal, find_violations, read_lines
from forebay.testing.watched import WatchedStore

STEPS = 400
BURSTS = (1, 1, 1, 2, 3, 5, 8, 15, 40)
"""How many requests somebody makes before it is another's turn."""
PAUSES = (0.5, 60.0, 700.0, 700.0, 5_000.0, 100_000.0)
READ_FAULTS = (Fault.FAIL, Fault.FAIL, Fault.FAIL, Fault.FALSIFY, Fault.FALSIFY, Fault.CRASH)
EXPECTED = (Unavailable, Unknown, Timeout, Fenced, Trimmed, NotFound, Closed, BelowFloor)
"""What a process may be told. Anything else, such as `Corrupt`, has no reason here and fails the run."""
REST = "rests"
WRITES = frozenset({"put", "create", "replace"})

T = TypeVar("T")


class Line(FaultyStore):
    """One process's way to the store: before each request it waits for its turn, and hears what befalls the request."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation.store, clock=ManualClock())
        self.clock = ManualClock()
        self.name = name
        self.claims: set[str] = set()
        """The ids of the claims that were ever made from here."""
        self.waits = False
        """Whether its process takes a group over only from an owner that is gone."""
        self.changed_at: dict[str, float] = {}
        """When each cursor last changed, by the clock of this process."""
        self.doomed = False
        """Whether the next request is its last."""
        self.was_falsified = False
        """Whether the fault that it met last was a falsified answer."""
        self.request = ""
        """What it is about to do."""
        self._simulation = simulation

    def put(self, key: str, data: Data) -> str:
        """Write through, and note what a batch holds."""
        if key.startswith("data/"):
            self._simulation.values[key] = tuple(bytes(entry).decode() for entry in self._simulation.decode(data))
        return super().put(key, data)

    def _call(self, kind: str, key: str, do: Callable[[], T], falsify: Callable[[T], T] = lambda answer: answer) -> T:
        self.request = f"{kind} {key}"
        return super()._call(kind, key, do, falsify)

    def _write(self, kind: str, key: str, do: Callable[[], Outcome]) -> Outcome:
        self.request = f"{kind} {key}"
        return super()._write(kind, key, lambda: self._simulation.watch_acks(self, key, do))

    def next_fault(self, kind: str) -> Fault | None:
        return self._simulation.wait_for_turn(self, self.request, is_write=kind in WRITES)

    @property
    def is_busy(self) -> bool:
        """Whether its process is in the middle of something."""
        return self.request not in {"", REST}


class Simulation:
    """One run.

    Args:
        seed: what all of it follows from.
        cast: makes the processes; they are started in this order.
        rows: whether the buffer holds rows, of a schema that evolves while old and new producers write.
    """

    def __init__(self, seed: int, cast: Callable[[Simulation], list[Process]], *, rows: bool = False) -> None:
        self.seed = seed
        self.rows = rows
        self.random = Random(seed)
        self.store_clock = ManualClock()
        memory = MemoryStore("memory://simulation", clock=self.store_clock)
        memory.delete([found.key for found in memory.list()])
        self.store = WatchedStore(memory)
        self.values: dict[str, tuple[str, ...]] = {}
        """What each batch ever stored holds, by its location."""
        self.committed: dict[tuple[str, str], set[int]] = {}
        """What each reader has committed, by group and generation."""
        self.seen: Counter[str] = Counter()
        self.trace: list[str] = []
        self.lines: list[bytes] = []
        moments = count()
        self.journal = Journal(self.lines.append, lambda: next(moments))
        self.over = False
        self._back = Lock()
        self._back.acquire()
        self._troubled = False
        self.forgetful = self.random.random() < 0.3
        self._fault_rate = self.random.choice((0.0, 0.03, 0.1, 0.2))
        self._throttle_rate = self.random.choice((*5 * (0.0,), 0.4))
        """The share of writes to the manifest and to cursors that come too soon for the store."""
        self.migrating = self.random.random() < 0.1 and not rows
        """Whether the buffer is of version 1 at first."""
        if self.migrating:
            self.store.create("manifest", Manifest.empty("manifest").to_bytes())
        if rows:
            queue = Queue(self.store, clock=self.store_clock, random=self.random)
            open_format(queue, queue.read(), schema=schema_of(0))
        self.processes = cast(self)

    def decode(self, data: Data) -> Sequence[bytes]:
        """Return the values in a batch object."""
        if self.rows:
            return pq.read_table(pa.BufferReader(data))["value"].to_pylist()  # type: ignore[no-any-return]
        return decode_batch(bytes(data)).entries

    def read(self, batch: Batch) -> tuple[str, ...]:
        """Return the values that a reader was given, each in a row that is as its producer wrote it."""
        return tuple(value.decode() for value in (read_rows(batch) if self.rows else batch.entries))

    # Whose turn it is

    def run(self) -> None:
        """Let everything happen, and check it.

        Raises:
            AssertionError: something did not hold; the message says how to replay it.
        """
        try:
            with small_limits(forgetful=self.forgetful):
                self._act()
                self._end()
        except AssertionError as error:
            command = f"python tests/scenarios/simulation.py {self.seed}{' rows' * self.rows}"
            raise AssertionError(f"seed {self.seed}: {error}\nreplay it: {command}") from error

    def _act(self) -> None:
        self._troubled = True
        for process in self.processes:
            process.thread.start()
        try:
            step = 0
            while step < STEPS:
                process = self.random.choice(self.processes)
                for _ in range(self.random.choice(BURSTS)):
                    self._disturb()
                    self._let_go_on(process)
                    step += 1
            # Half of them end what they are at, undisturbed; the others are never heard of again.
            self._troubled = False
            self.over = True
            for process in self.processes:
                process.line.doomed = self.random.random() < 0.5
                while not process.ended:
                    self._let_go_on(process)
        finally:
            self._end_threads()

    def _let_go_on(self, process: Process) -> None:
        process.go.release()
        self._back.acquire()
        if process.failure is not None:
            raise AssertionError(f"{process.line.name}: {process.failure}") from process.failure

    def _end_threads(self) -> None:
        self.over = True
        for process in self.processes:
            process.line.doomed = True
            while not process.ended:
                process.go.release()
                self._back.acquire()
            process.thread.join()

    def wait_for_turn(self, line: Line, request: str, *, is_write: bool) -> Fault | None:
        """Called by a process before a request: let others go first, and return what befalls it."""
        line.request = request
        process = next(process for process in self.processes if process.line is line)
        if process.dead:
            raise Crash("the process is gone")
        self._back.release()
        process.go.acquire()
        fault = self._draw_fault(process, is_write=is_write)
        self.trace.append(f"{len(self.trace)} {line.name}: {request}{f' ({fault.name})' if fault else ''}")
        if fault in {Fault.CRASH, Fault.CRASH_AFTER}:
            process.dead = True
            self.seen["crashes"] += 1
        return fault

    def _draw_fault(self, process: Process, *, is_write: bool) -> Fault | None:
        if process.line.doomed:
            return Fault.CRASH
        if not self._troubled:
            return None
        fault = self._draw_trouble(process.line, is_write=is_write)
        if fault is None:
            return None
        if fault is Fault.FALSIFY:
            # Version 1 has no checksum to tell by; and three wrong answers in a row are damage.
            if self.migrating or self.store.head is None or process.line.was_falsified:
                return None
            self.seen["falsified reads"] += 1
        process.line.was_falsified = fault is Fault.FALSIFY
        self.seen["throttled writes"] += fault is Fault.THROTTLED
        # It is believed by who is forgotten or fenced at that very moment (rfcs/0005).
        if fault is Fault.OWN_RETRY and (self.forgetful or process.can_be_fenced):
            return Fault.LOSE_ANSWER
        return fault

    def _draw_trouble(self, line: Line, *, is_write: bool) -> Fault | None:
        is_shared = is_write and line.request.partition(" ")[2].startswith(("manifest", CURSORS))
        if is_shared and self.random.random() < self._throttle_rate:
            return Fault.THROTTLED
        if self.random.random() >= self._fault_rate:
            return None
        return self.random.choice(FAULTS if is_write else READ_FAULTS)

    def _disturb(self) -> None:
        what = self.random.random()
        if what < 0.03:
            seconds = self.random.choice(PAUSES)
            self.trace.append(f"{len(self.trace)} {seconds:g} s pass")
            for clock in self._clocks:
                clock.advance(seconds)
            if seconds > GRACE:
                self.seen["stalls past the grace period"] += sum(p.line.is_busy for p in self.processes)
        elif what < 0.04:
            clock, seconds = self.random.choice(self._clocks), self.random.choice(JUMPS)
            if 0 <= clock.now_ms() + seconds * 1000 < LATEST_MS:
                self.trace.append(f"{len(self.trace)} a clock jumps by {seconds:g} s")
                clock.step_wall(seconds)
        elif what < 0.06:
            late = [process.line for process in self.processes if process.line.has_late_requests]
            if late:
                line = self.random.choice(late)
                self.trace.append(f"{len(self.trace)} a late request of {line.name} lands")
                line.land_late_request()
                self.seen["landings"] += 1

    @property
    def _clocks(self) -> list[ManualClock]:
        return [self.store_clock, *(process.line.clock for process in self.processes)]

    # What must hold at every write

    def watch_acks(self, line: Line, key: str, do: Callable[[], Outcome]) -> Outcome:
        """Do a conditional write, and check that the mover of a frontier owns it and has committed what it passes."""
        is_cursor = key.startswith(f"{CURSORS}/")
        before: Cursor | Owner | None = self.store.cursor(key) if is_cursor else self._owner()
        outcome = do()
        after: Cursor | Owner | None = self.store.cursor(key) if is_cursor else self._owner()
        if isinstance(after, Cursor) and after is not before:
            assert not isinstance(before, Owner)
            self._watch_takeover(line, key, before, after)
        if after is None or after is before or (before is not None and after.acked == before.acked):
            return outcome
        if after.acked is not None:
            # A claim that was made before the first write has no id in the head.
            assert after.claim_id in {*line.claims, ""}, f"{line.name} moved a frontier that is not its own: {after}"
            _, group, life = key.split("/") if is_cursor else ("", "", "")
            assert self.store.head is not None
            first = self.store.head.first_sequence if before is None or before.acked is None else before.acked + 1
            if is_cursor:
                known = self.store.head.groups.get(group)
                first = max(first, known.start) if known and known.generation == life else after.acked + 1
            missing = set(range(first, after.acked + 1)) - self.committed.get((group, life), set())
            assert not missing, f"{line.name} acknowledged {sorted(missing)}, which was not committed"
        return outcome

    def _watch_takeover(self, line: Line, key: str, before: Cursor | None, after: Cursor) -> None:
        """Check that a standby replaces no owner that changed its cursor lately, by the standby's own clock."""
        if line.waits and before is not None and before.claim_id and after.claim_id not in {"", before.claim_id}:
            silent = line.clock.monotonic() - line.changed_at[key]
            assert silent >= TAKEOVER_SECONDS, f"{line.name} took over from an owner that was silent for {silent} s"
            self.seen["takeovers by a standby"] += 1
        for process in self.processes:
            process.line.changed_at[key] = process.line.clock.monotonic()

    def _owner(self) -> Owner | None:
        return None if self.store.head is None else self.store.head.owner

    # The end

    def _end(self) -> None:
        for process in self.processes:
            process.line.land_late_requests()
        assert not self.store.violations, self.store.violations
        if self.store.head is not None:
            kept = {found.key for found in self.store.list("segments/")}
            self.seen["segments"] += len(kept | {key for key in self.store.deleted if key.startswith("segments/")})
            for group in (None, *sorted(self.store.head.groups)):
                self._read_rest(group)
            self._collect_rest()
        if self.store.listed:
            self._observe()
        violations = find_violations(read_lines(self.lines))
        assert not violations, "; ".join(violations)

    def _read_rest(self, group: str | None) -> None:
        """The next process reads all that is left of a reader, and acknowledges it."""
        who = f"successor of {group}"
        answer = self.journal.call("claim", who, reader=group or "")
        consumer = Consumer(self.store, group=group, clock=self.store_clock, random=self.random)
        reader = {"reader": group or "", "life": consumer.reader.generation, "epoch": consumer.epoch}
        answer("ok", **reader)
        answer = self.journal.call("read", who, **reader)
        found = consumer.next_descriptors(10_000)
        values = [(batch.sequence, self.values[batch.location]) for batch in found]
        answer("ok", batches=values, first=place_of(consumer, found), saw_end=True)
        if found:
            consumer.ack_through(found[-1].sequence)

    def _collect_rest(self) -> None:
        """Once all is read and every hold has expired, a collection leaves nothing but what is above the floor."""
        self.store_clock.step_wall((2 * LATEST_MS - self.store_clock.now_ms()) / 1000)
        clock = ManualClock(self.store_clock.now_ms())
        collector = Collector(self.store, grace=GRACE, clock=clock, random=self.random)
        collector.collect_once()  # it stamps the holds that nobody renews any more
        self.store_clock.step_wall(2 * TTL)
        clock.step_wall(2 * TTL)
        collector.collect_once()
        assert self.store.head is not None
        assert self.store.head.holds == {}, "a hold that nobody renews was not removed"
        assert self.store.head.count == 0, "what everyone has read was not trimmed"
        in_use = {bucket.name for bucket in self.store.head.writer_buckets.values()}
        left = {name for found in self.store.list() if (name := ulid_in(found.key))} - in_use
        assert all(name >= self.store.head.gc_floor for name in left), "what is below the floor was not swept"

    def _observe(self) -> None:
        """Somebody who has seen everything reads the log from the beginning on, with what was trimmed of it."""
        claimed = self.journal.call("claim", "observer", reader="observer")
        claimed("ok", epoch=1)
        read = self.journal.call("read", "observer", reader="observer", epoch=1, first=0)
        read("ok", batches=[(i, self.values[key]) for i, key in enumerate(self.store.listed)], saw_end=True)


class Process:
    """Somebody who does things, one after the other, until it dies; then another does them in its place."""

    can_be_fenced = False

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.line = Line(simulation, name)
        if self.random.random() < 0.3:
            self.line.clock.step_wall(self.random.choice(JUMPS))
        self.go = Lock()
        self.go.acquire()
        self.dead = False
        self.ended = False
        self.failure: BaseException | None = None
        self.thread = Thread(target=self._live, name=name, daemon=True)

    @property
    def who(self) -> str:
        """By which the journal knows it."""
        return self.line.name

    def work(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start with nothing in memory."""

    def rest(self) -> None:
        """Let others go first; it may die meanwhile, as anywhere."""
        if self.simulation.wait_for_turn(self.line, REST, is_write=False) is Fault.CRASH:
            raise Crash("the process is gone")

    def _live(self) -> None:
        self.go.acquire()
        try:
            while not self.simulation.over:
                self.dead = False
                try:
                    self.begin()
                    while not self.simulation.over:
                        self.rest()
                        self.work()
                except Crash:
                    pass
                finally:
                    self.end()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run has failed
            self.failure = error
        finally:
            self.ended = True
            self.simulation._back.release()

    def end(self) -> None:
        """Let go of what would complain; no request can be made any more."""


def place_of(consumer: Consumer, found: list[BatchDescriptor]) -> int:
    """Where a consumer that had read nothing yet began to read."""
    if found or consumer.acked is not None:
        return found[0].sequence if found else (consumer.acked or 0) + 1
    state = consumer._queue.last_seen()
    assert state is not None
    return state.first_sequence


class FetchedAtOnce:
    """In place of the threads of a reader: what shall be fetched is fetched at once, by the process that asks."""

    def __init__(self, most: int, name: str) -> None:
        pass

    def submit(self, do: Callable[[], T]) -> Coming[T]:
        coming: Coming[T] = Coming()
        self.run(coming, do)
        return coming

    def run(self, coming: Coming[T], do: Callable[[], T]) -> None:
        coming.carry_out(do)
        if isinstance(error := coming.exception(), Crash):
            raise error

    def close(self, timeout: float | None = None) -> None:
        pass


@contextmanager
def small_limits(*, forgetful: bool) -> Iterator[None]:
    """Segments of one or two entries, few writers remembered, no log, and no threads that fetch."""
    kept = [(module, name, getattr(module, name)) for module, name in LIMITS]
    settings = (1, 2, 2 if forgetful else 256, 0 if forgetful else 1, 1, 2, FetchedAtOnce)
    for (module, name), value in zip(LIMITS, settings, strict=True):
        setattr(module, name, value)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for module, name, value in kept:
            setattr(module, name, value)


_migrate = sys.modules[migrate.__module__]
LIMITS = (
    *((head, "KEPT_LISTINGS"), (head, "FANOUT"), (head, "MAX_WRITERS"), (head, "KEPT_LASTING")),
    *((_migrate, "KEPT_LISTINGS"), (_migrate, "FANOUT"), (ahead, "FetchThreads")),
)
