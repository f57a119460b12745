"""A log whose reads and marks obey a test, and catalogs over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Event as Signal
from typing import Any

from patience import PATIENCE, wait_for

from forebay.buffer.base.errors import NotReady, Unavailable
from forebay.buffer.eventlog import EventLog
from forebay.buffer.eventlog.backend import Bounds
from forebay.buffer.eventlog.memory import MemoryBackend
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.catalog import Catalog, Segment, SegmentState, SegmentUpdate
from forebay.runtime.catalog.snapshot import SNAPSHOT_KEY, CatalogSnapshot, load_snapshot

TOPIC = "segments"
PARTITIONS = 4
ORDERS = "orders/0"


class ObedientBackend(MemoryBackend):
    """A log in memory that can be made to stall, to fail, and to say what was read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reading = Signal()
        self.reading.set()
        self.failures = 0
        self.error: BaseException = Unavailable("the log is away")
        self.reads: list[tuple[int, int]] = []

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        self._fail_if_told()
        return super().bounds(topic, partitions)

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        assert self.reading.wait(PATIENCE)
        self._fail_if_told()
        self.reads.append((partition, first))
        return super().read(topic, partition, first, limit)

    def _fail_if_told(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error


class FlakyLog(EventLog):
    """A log whose high-water marks cannot be had when a test says so."""

    fails_marks = False
    marks: list[int] | None = None

    def high_water_marks(self, topic: str) -> list[int]:
        if self.fails_marks:
            raise Unavailable("no marks now")
        return super().high_water_marks(topic) if self.marks is None else self.marks


class Rig:
    """Everything that a test of catalogs needs; closed at its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = ObedientBackend(f"memory://{name}")
        self.log = FlakyLog(self.backend, depth=1024)
        self.snapshots = MemoryStore(f"memory://{name}-snapshots")
        self._catalogs: list[Catalog] = []

    def open(self, *, assign: Iterable[int] = range(PARTITIONS), **settings: Any) -> Catalog:
        settings.setdefault("partitions", PARTITIONS)
        log = settings.pop("log", self.log)
        catalog = Catalog(log, TOPIC, **settings)
        self._catalogs.append(catalog)
        catalog.reconcile_assignment(assign)
        return catalog

    def write(self, *segments: Segment, finished: bool = True) -> None:
        """Segments as another process writes them."""
        with Catalog(self.log, TOPIC, partitions=PARTITIONS) as catalog:
            catalog.reconcile_assignment(range(PARTITIONS))
            for segment in segments:
                catalog.add(segment)
                if finished:
                    catalog.update(finish(segment))

    def snapshot(self) -> CatalogSnapshot | None:
        return load_snapshot(self.snapshots, TOPIC, PARTITIONS)

    def has_snapshot(self) -> bool:
        return any(found.key == SNAPSHOT_KEY for found in self.snapshots.list())

    def close(self) -> None:
        self.backend.reading.set()
        for catalog in self._catalogs:
            catalog.close()
        self.log.close()


def segment(name: str = "a", start: int = 0, end: int = 99, *, partition: str = ORDERS, **fields: Any) -> Segment:
    return Segment(partition, name, start, end, fields.pop("epochs", {0: start}), **fields)


def finish(of: Segment, state: SegmentState = SegmentState.COPY_FINISHED, **fields: Any) -> SegmentUpdate:
    return SegmentUpdate(of.partition, of.segment_id, state, **fields)


def eventually(read: Callable[[], Any]) -> Any:
    """What a read answers once it is not `NotReady` and not empty any more; it must come to that."""

    def read_if_ready() -> Any:
        try:
            return read()
        except NotReady:
            return None

    return wait_for(read_if_ready)
