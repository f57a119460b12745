"""The processes of a storm: a nursery that forks them on command, and what each of them does until it is killed.

python storm_child.py

The nursery loads everything once, so that a new process costs a fork and not a second of imports. It reads one JSON
object a line and answers with one: `{"start": role, …}` with a process id, `{"poll": id}` with its exit status, or null
while it lives. Killing is left to others. It ends, and all its processes with it, when its input does.

Each process keeps a ledger: a file of lines, synced before it goes on, of what it was told. That survives it.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pyarrow.parquet  # noqa: F401 - loaded once for all
import s3fs  # noqa: F401 - the same
from evolving import VERSIONS, make_row, read_rows, schema_of
from runtime_child import CONFIG, GROUP, open_sink

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Closed, Fenced, ForebayError, StoreError, Timeout, Unknown
from forebay.buffer.consumer import Consumer
from forebay.buffer.coordinator import WriteHandle
from forebay.buffer.producer import Producer
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.topic import TopicProducer
from forebay.gc import Collector
from forebay.runtime import Runtime, Source
from forebay.testing import Fault, FaultyStore

FENCED, GAVE_UP, BROKEN = 3, 4, 5
"""Exit statuses: another took over; the store failed and the next life tries again; an error nobody may make."""

IN_FLIGHT = 4
DIED_WITH_PARENT = 1


@dataclass(frozen=True)
class Part:
    """What one process is to do."""

    role: str
    """`producer`, `topic producer`, `consumer`, `runtime` or `collector`."""
    name: str
    """Of the process, whichever of its lives this is."""
    life: int
    url: str
    home: str
    """The storm's folder: ledgers, and the files by which the storm tells its processes something."""
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    profile: str = "native"
    group: str | None = None
    rows: bool = False
    """Whether the buffer or topic holds rows, of a schema that evolves (`evolving.py`)."""
    lasting: bool = False
    """A producer that goes on under its name, and repeats what it does not know to be durable."""
    grace: float = 600.0
    steps_clock: bool = False
    drains: bool = False
    """End once nothing is left to do."""

    @property
    def is_a_pod(self) -> bool:
        return self.profile == "native" and self.life % 2 == 1

    @property
    def schema_version(self) -> int:
        """How wide a producer's schema is: it grows with each life. One producer stays an old one."""
        return 0 if self.name == "plain-1" else min(self.life + 1, VERSIONS - 1)

    def make(self, values: list[bytes]) -> list[Any]:
        """Return the entries of a call."""
        return [make_row(value, self.schema_version) for value in values] if self.rows else values

    def read(self, batch: Any) -> list[str]:
        """Return what a batch holds."""
        return [value.decode() for value in (read_rows(batch) if self.rows else batch.entries)]

    @property
    def ledger(self) -> Path:
        return Path(self.home, f"{self.name}.ledger")

    @property
    def is_stopped(self) -> bool:
        return Path(self.home, "stop").exists()

    def open_store(self) -> ObjectStore:
        """The store. Some of its answers are wrong and some writes are throttled, until the storm is over."""
        store = open_store(self.url, self.options)
        if self.drains or self.profile != "native":
            return store  # version 1 has no checksum, so a wrong answer would be believed
        throttling = FaultyStore.seeded(
            store, self.seed, rate=0.02, faults=[Fault.THROTTLED], only=["create", "replace"]
        )
        return FaultyStore.seeded(
            throttling, self.seed + 1, rate=0.01, faults=[Fault.FALSIFY], only=["get", "get_if_changed"]
        )


class Ledger:
    """Lines that are on disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *values: Any) -> None:
        os.write(self._fd, json.dumps(values).encode() + b"\n")
        os.fdatasync(self._fd)


def read_ledger(path: Path) -> list[list[Any]]:
    """What was written in whole."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


class SteppingClock(SystemClock):
    """A wall clock that somebody sets, by up to an hour either way, whenever he likes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._offset_ms = 0

    def now_ms(self) -> int:
        if self._random.random() < 0.02:
            self._offset_ms = self._random.randrange(-3_600_000, 3_600_001)
        return super().now_ms() + self._offset_ms


def produce(part: Part) -> None:
    """Produce calls of a few entries, a few of them in flight, and write down what became of each."""
    random, ledger = Random(part.seed), Ledger(part.ledger)
    # Of the others, every second one has a lasting name for its one life, as pods do.
    writer_id = part.name if part.lasting else f"{part.name}-{part.life}" if part.is_a_pod else None
    with Producer(
        part.open_store(),
        profile=part.profile,  # type: ignore[arg-type]  # from JSON
        manifest_path="manifest",
        data_prefix="data",
        schema=schema_of(part.schema_version) if part.rows else None,
        evolve=part.rows,
        flush_interval=0.01,
        writer_id=writer_id,
        grace=part.grace,
        clock=_clock(part, random),
    ) as producer:
        life = 0 if part.lasting else part.life
        done = [line[2] for line in read_ledger(part.ledger) if line[0] == "durable"]
        number = max(done, default=0) if part.lasting else 0
        in_flight: deque[tuple[int, WriteHandle[None]]] = deque()
        while not part.is_stopped:
            number += 1
            entries = entries_of(part.name, life, number)
            ledger.write("tried", life, number)
            in_flight.append((number, producer.produce(part.make(entries), number=number if writer_id else None)))
            while len(in_flight) >= IN_FLIGHT or (in_flight and random.random() < 0.3):
                _settle(part, ledger, life, *in_flight.popleft())
        for waiting in in_flight:
            _settle(part, ledger, life, *waiting)


def produce_to_topic(part: Part) -> None:
    """Produce rows to a topic, by their keys, and write down what became of each call."""
    random, ledger = Random(part.seed), Ledger(part.ledger)
    with TopicProducer(
        open_store(part.url, part.options),
        schema=schema_of(part.schema_version),
        evolve=True,
        flush_interval=0.01,
        clock=_clock(part, random),
    ) as producer:
        number = 0
        while not part.is_stopped:
            number += 1
            values = entries_of(part.name, part.life, number)
            ledger.write("tried", part.life, number)
            _settle(part, ledger, part.life, number, producer.produce(part.make(values), key=b"%d" % (number % 8)))


def _settle(part: Part, ledger: Ledger, life: int, number: int, handle: WriteHandle[None]) -> None:
    try:
        handle.result()
    except ForebayError as error:
        if part.lasting or part.is_a_pod or isinstance(error, Closed | Timeout):
            raise  # only a new life, which asks the buffer how far it came, may go on
        ledger.write("unknown" if isinstance(error, Unknown) else "failed", life, number)
    else:
        ledger.write("durable", life, number)


def entries_of(name: str, life: int, number: int) -> list[bytes]:
    """What a producer's call holds: one to four entries that say whose they are."""
    return [f"{name}/{life}/{number}/{i}".encode() for i in range(1 + number % 4)]


def consume(part: Part) -> None:
    """Read batches, write down what they hold, and acknowledge them."""
    ledger, pause = Ledger(part.ledger), threading.Event()
    with Consumer(part.open_store(), group=part.group, profile=part.profile) as consumer:  # type: ignore[arg-type]
        while not part.is_stopped or part.drains:
            batch = consumer.next_batch()
            if batch is not None:
                ledger.write(batch.sequence, part.read(batch))
                consumer.ack_through(batch.sequence)
            elif part.drains:
                return
            else:
                pause.wait(0.02)


def run_runtime(part: Part) -> None:
    """Read a group into Parquet files."""
    with open_sink("parquet", f"file://{part.home}/parquet") as sink:
        runtime = Runtime([Source(part.open_store(), group=GROUP, takeover=True)], sink, CONFIG)
        threading.Thread(target=_stop_when_told, args=(part, runtime), daemon=True).start()
        runtime.run(until_caught_up=part.drains, show_progress=False)


def _stop_when_told(part: Part, runtime: Runtime) -> None:
    pause = threading.Event()
    while not part.is_stopped:
        pause.wait(0.05)
    if not part.drains:
        runtime.stop()


def collect(part: Part) -> None:
    """Trim and sweep, again and again."""
    random, ledger, pause = Random(part.seed), Ledger(part.ledger), threading.Event()
    collector = Collector(part.open_store(), grace=part.grace, clock=_clock(part, random))
    while not part.is_stopped:
        report = collector.collect_once()
        if report.deleted:
            ledger.write("deleted", report.deleted)
        pause.wait(0.05)


def _clock(part: Part, random: Random) -> SystemClock:
    return SteppingClock(random) if part.steps_clock else SystemClock()


ROLES: dict[str, Callable[[Part], None]] = {
    "producer": produce,
    "topic producer": produce_to_topic,
    "consumer": consume,
    "runtime": run_runtime,
    "collector": collect,
}


def _fill_the_disk_when_told(home: Path) -> None:
    """While the file `disk-full` is there, a file store's data does not get to the disk."""
    fsync = os.fsync

    def full_fsync(descriptor: int) -> None:
        if (home / "disk-full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    vars(os)["fsync"] = full_fsync  # ledgers are synced by fdatasync


def _live(part: Part) -> NoReturn:
    """Be one process of the storm, and never return to the nursery's loop."""
    status = 0
    try:
        ctypes.CDLL(None).prctl(DIED_WITH_PARENT, signal.SIGKILL)
        os.dup2(2, 1)  # the nursery's answers are its own
        _fill_the_disk_when_told(Path(part.home))
        ROLES[part.role](part)
    except Fenced:
        status = FENCED
    except (StoreError, Timeout, Closed):
        status = GAVE_UP
    except BaseException:  # noqa: BLE001 - it is shown, and fails the storm
        status = BROKEN
        with Path(part.home, "broken").open("a") as shown:
            shown.write(f"{part.role} {part.name}, life {part.life}:\n{traceback.format_exc()}\n")
    os._exit(status)


def main() -> None:
    faulthandler.enable()
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            answer: int | None = os.fork()
            if answer == 0:
                _live(Part(role=command.pop("start"), **command))
        else:
            ended, status = os.waitpid(command["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
