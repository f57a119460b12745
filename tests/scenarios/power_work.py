"""The work that is cut off by a power cut, what was reported while it was done, and what must be there afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from evolving import VERSIONS, make_row, read_rows, schema_of
from power import LOCK, TEMPORARY, RecordingDisk, Tree, UnsyncedDisk, cuts, write_tree

from forebay.buffer.consumer import Consumer
from forebay.buffer.inspect.findings import Severity
from forebay.buffer.inspect.verify import verify
from forebay.buffer.producer import Producer
from forebay.buffer.store.file import FileStore
from forebay.gc import Collector

BUFFER = "lake/events"
"""Where the buffer is on the disk: a folder that is not there yet, in another."""
GROUP = "etl"


@dataclass
class Told:
    """What the processes were told before the power was cut."""

    calls: list[list[bytes]] = field(default_factory=list)
    """The entries of each call that was begun. One is begun after the other is durable, so each has its number."""
    durable: int = 0
    """Number of calls whose handles have returned."""
    begun_ack: int = -1
    acked: int = -1
    """Last sequence for which `ack_through` has returned."""


@dataclass(frozen=True)
class Required:
    """What a disk must and may hold."""

    where: str
    """After which change, and how the power was lost."""
    durable: int
    begun: int
    acked: int
    begun_ack: int


class Work:
    """Producers, a consumer of a group and a collector on one buffer, and each disk that a power cut may leave."""

    def __init__(self, home: Path, *, rows: bool, seed: int = 0) -> None:
        home.mkdir()
        self.rows = rows
        self.told = Told()
        self.states: dict[frozenset[tuple[str, bytes | None]], tuple[Tree, set[Required]]] = {}
        """The different disks, and what each must hold."""
        self.cut_disks = 0
        self._random = Random(seed)
        self._url = f"file://{home / BUFFER}"
        self._consumer: Consumer | None = None
        self._unread: list[int] = []
        self.disk = RecordingDisk(home, self._lose_power)

    def open_store(self) -> FileStore:
        """Return the buffer's store, as another process would open it."""
        return FileStore(self._url, disk=self.disk)

    @contextmanager
    def producer(self, version: int = 0) -> Iterator[Producer]:
        """A producer; of rows, one whose schema is of a version."""
        settings: dict[str, Any] = {"schema": schema_of(version), "evolve": True} if self.rows else {}
        with Producer(self.open_store(), **settings) as producer:
            yield producer

    def produce(self, producer: Producer, version: int = 0) -> None:
        """Make one call and wait until it is durable."""
        number = len(self.told.calls)
        values = [b"%d-%d" % (number, part) for part in range(2)]
        self.told.calls.append(values)
        producer.produce([make_row(value, version) for value in values] if self.rows else values)
        producer.flush().result()
        self.told.durable = number + 1

    def read(self) -> None:
        """Read all there is, as a member of the group."""
        if self._consumer is None:
            self._consumer = Consumer(self.open_store(), group=GROUP)
        self._unread += [batch.sequence for batch in self._consumer]

    def ack(self, through: int) -> None:
        """Acknowledge, and wait until that is durable."""
        assert self._consumer is not None
        assert through in self._unread
        self.told.begun_ack = through
        self._consumer.ack_through(through)
        self.told.acked = through

    def collect(self) -> int:
        """Trim and sweep, and return how many objects were deleted."""
        return Collector(self.open_store(), grace=0).collect_once().deleted

    def do_all(self) -> None:
        """The whole story. Segments of the manifest are written if the limits are small."""
        with self.producer() as first:
            self.produce(first)
            self.read()
            self.produce(first)
            self.read()
            self.ack(0)
            with self.producer(version=1) as second:
                self.produce(second, version=1)
                self.produce(first)
            self.read()
            self.ack(2)
            assert self.collect() + self.collect() > 0
            with self.producer(version=2) as third:
                self.produce(third, version=2)
            self.read()
            self.ack(4)
            self.produce(first)
            self.collect()

    def _lose_power(self, what: str) -> None:
        """Note each disk that a power cut may leave now."""
        for cut in cuts(self._random):
            tree = self.disk.leave(cut)
            told = self.told
            required = Required(
                f"{self.disk.changes}: {what}; {cut.name}", told.durable, len(told.calls), told.acked, told.begun_ack
            )
            shown = frozenset(item for item in tree.items() if not _is_passed_over(item[0]))
            self.states.setdefault(shown, (tree, set()))[1].add(required)
            self.cut_disks += 1

    def check_all(self, home: Path) -> list[str]:
        """Check each disk, and return what is wrong with the first few that fail."""
        wrong: list[str] = []
        for tree, required in self.states.values():
            if len(wrong) == 3:
                break
            try:
                self.check(tree, required, home)
            except Exception as error:  # noqa: BLE001 - whatever it is, the disk cannot be used
                wrong.append(f"{sorted(state.where for state in required)[:3]}: {type(error).__name__}: {error}")
        return wrong

    def check(self, tree: Tree, required: set[Required], home: Path) -> None:
        """Turn the power on again, and see what is there."""
        write_tree(tree, home)
        try:
            store = FileStore(f"file://{home / BUFFER}", disk=UnsyncedDisk())
            with Consumer(store, group=GROUP) as consumer:
                acked = -1 if consumer.acked is None else consumer.acked
                found = {batch.sequence: self._values(batch) for batch in consumer}
                for state in required:
                    assert state.acked <= acked <= state.begun_ack, f"acked {acked}, and told {state}"
                    last = acked + len(found)
                    assert state.durable - 1 <= last < state.begun, f"read up to {last}, and told {state}"
                assert found == {number: self.told.calls[number] for number in range(acked + 1, last + 1)}
                self._use(store, consumer, last)
        finally:
            shutil.rmtree(home)

    def _use(self, store: FileStore, consumer: Consumer, last: int) -> None:
        """Use the buffer: everything must go on as if nothing had happened."""
        newest = VERSIONS - 1
        settings: dict[str, Any] = {"schema": schema_of(newest), "evolve": True} if self.rows else {}
        with Producer(store, **settings) as producer:
            producer.produce([make_row(b"after", newest)] if self.rows else [b"after"])
            producer.flush().result()
        assert [(batch.sequence, self._values(batch)) for batch in consumer] == [(last + 1, [b"after"])]
        report = verify(store)
        assert report.severity == Severity.OK, report.findings[:5]
        consumer.ack_through(last + 1)
        Collector(store, grace=0).collect_once()
        report = verify(store)
        assert report.severity == Severity.OK, report.findings[:5]

    def _values(self, batch: Any) -> list[bytes]:
        return read_rows(batch) if self.rows else list(batch.entries)


def _is_passed_over(path: str) -> bool:
    """Whether a store passes over a file, so that disks that differ in nothing else are one state."""
    name = path.rpartition("/")[2]
    return name == LOCK or name.startswith(TEMPORARY)
