"""What do an append and a poll cost when 100 batches wait, and when a million do?

Synthetic entries, in memory: what is counted is what goes to the store, and the processor time of this side of it. One
turn is 64 appends of one batch, or 64 polls that each find one new batch: a whole cycle of sealing, its segment and
index nodes included. The backlog was appended 64 at a time, so its segments are the smallest and its index the deepest
that there can be. Every turn starts from the same manifest. Version 1 rewrites all of it for each append, which is why
it stops at 100,000 here.
"""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from forebay.buffer.base import names
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.head import KEPT_LISTINGS
from forebay.buffer.store.memory import MemoryStore

if TYPE_CHECKING:
    from harness import Bench

    from forebay.buffer.store.base import Data, Outcome, StoredObject

_FEW = 100
_CYCLE = 64
_MOST_TIMES = 1.3
_numbers = count()
"""One for each backlog: stores in memory with the same URL share their objects."""


def run(bench: Bench) -> None:
    sizes = [100, 1_000, 10_000] if bench.quick else [100, 1_000, 10_000, 100_000, 1_000_000]
    native = {size: Backlog(size) for size in sizes}
    plain = {size: Backlog(size, version=1) for size in sizes if size <= 100_000}
    most = sizes[-1]

    _compare(bench, "append, version 2", {size: backlog.append for size, backlog in native.items()}, most)
    _compare(bench, "poll that finds one, version 2", {size: backlog.poll for size, backlog in native.items()}, most)
    for doing in ("append", "poll"):
        for what in ("requests", "bytes"):
            counted = {size: backlog.count(doing)[what] for size, backlog in native.items()}
            bench.require(
                f"{doing} with {most:,} waiting against {_FEW}: {what}", counted[_FEW] / counted[most], least=_LEAST
            )
    bench.compare(
        "append, version 1",
        {_case(size): backlog.append for size, backlog in plain.items()},
        ceiling=_case(_FEW),
        amount=_CYCLE,
        unit="appends",
        rounds=3,
        clock="cpu",
    )
    for version, backlogs in ((2, native), (1, plain)):
        for size, backlog in backlogs.items():
            append, poll = backlog.count("append"), backlog.count("poll")
            bench.note(
                f"version {version}, {size:>9,} waiting: an append sends {append['bytes'] / _CYCLE:>11,.0f} bytes in "
                f"{append['requests'] / _CYCLE:.2f} requests, a poll reads {poll['bytes'] / _CYCLE:>11,.0f} bytes in "
                f"{poll['requests'] / _CYCLE:.2f}"
            )
    oldest = native[most].count_oldest()
    bench.note(
        f"version 2, {most:,} waiting: a new reader finds the oldest {_CYCLE} in {oldest['requests']} requests and "
        f"{oldest['bytes']:,} bytes"
    )


_LEAST = 1 / _MOST_TIMES


def _compare(bench: Bench, group: str, turns: dict[int, object], most: int) -> None:
    cases = {_case(size): turn for size, turn in turns.items()}
    bench.compare(group, cases, ceiling=_case(_FEW), amount=_CYCLE, unit="calls", rounds=25, clock="cpu")
    seconds = {row.case: statistics.median(row.seconds) for row in bench.rows if row.group == group}
    found = seconds[_case(_FEW)] / seconds[_case(most)]
    bench.require(f"{group} with {most:,} waiting against {_FEW}: processor seconds", found, least=_LEAST)


def _case(size: int) -> str:
    return f"{size:,} waiting"


class CountingStore(MemoryStore):
    """Counts requests, and the bytes that they carry either way."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.counts: Counter[str] = Counter()

    def get(self, key: str) -> StoredObject:
        found = super().get(key)
        self.counts.update(requests=1, bytes=len(found.data))
        return found

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        found = MemoryStore.get(self, key)
        unchanged = found.version == version
        self.counts.update(requests=1, bytes=0 if unchanged else len(found.data))
        return None if unchanged else found

    def put(self, key: str, data: Data) -> str:
        self.counts.update(requests=1, bytes=len(data))
        return super().put(key, data)

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        self.counts.update(requests=1, bytes=len(data))
        return super().replace(key, data, version)


class Backlog:
    """A buffer with a given number of waiting batches, a writer, and a reader at its end."""

    def __init__(self, size: int, version: int = 2, schemas: tuple[str, ...] = ()) -> None:
        self._random = Random(size)
        self._schemas = schemas
        self._store = CountingStore(f"memory://backlog-{next(_numbers)}")
        if version == 1:
            self._store.create("manifest", Manifest.empty(self._store.url).to_bytes())
        self._writer = Queue(self._store, random=self._random)
        group = size if version == 1 or size == _FEW else KEPT_LISTINGS
        for at in range(0, size, group):
            self._append([self._batch() for _ in range(min(group, size - at))])
        reader = {} if version == 1 else {"group": "reader", "from_": "latest"}
        self._consumer = Consumer(self._store, **reader)
        self._join()
        state = self._writer.read()
        assert (state.next_sequence, isinstance(state, Head)) == (size, version == 2)
        self._start = bytes(self._store.get("manifest").data)
        self._end = size
        self._new = [self._batch() for _ in range(_CYCLE)]
        self._states = [self._append_one(batch) for batch in self._new]

    def _join(self) -> None:
        """Who else has a place in the manifest before anything is measured: nobody here."""

    def append(self) -> None:
        """One cycle of appends, by a writer that the manifest knows."""
        MemoryStore.put(self._store, "manifest", self._start)
        self._writer.read()
        self._store.counts.clear()
        for batch in self._new:
            self._append([batch])

    def poll(self) -> None:
        """One cycle of polls: each finds what an append has just added."""
        self._consumer.seek(self._end)
        self._store.counts.clear()
        for state in self._states:
            MemoryStore.put(self._store, "manifest", state)
            (found,) = self._consumer.next_descriptors(1)
        assert found.location == self._new[-1].location

    def count(self, doing: str) -> Counter[str]:
        """What one cycle sends and receives."""
        getattr(self, doing)()
        return Counter(self._store.counts)

    def count_oldest(self) -> Counter[str]:
        """What a reader that has read nothing yet needs for the oldest batches."""
        self._store.counts.clear()
        assert len(Queue(self._store).descriptors(0, _CYCLE)) == _CYCLE
        return Counter(self._store.counts)

    def _append(self, batches: list[NewBatch]) -> None:
        if self._schemas:
            self._writer.append(batches, version=2, schemas=self._schemas)
        else:
            self._writer.append(batches)

    def _append_one(self, batch: NewBatch) -> bytes:
        self._append([batch])
        return bytes(MemoryStore.get(self._store, "manifest").data)

    def _batch(self) -> NewBatch:
        now = SystemClock().now_ms()
        facts = Facts(
            object_bytes=self._random.randrange(1 << 16, 1 << 24),
            raw_bytes=self._random.randrange(1 << 20, 1 << 26),
            records=self._random.randrange(1 << 10, 1 << 19),
            crc32c=self._random.getrandbits(32),
            first_time_ms=now - 100,
            last_time_ms=now,
        )
        location = f"data/{names.mint(SystemClock(), self._random)}.batch"
        schema = len(self._schemas) - 1 if self._schemas else None
        return NewBatch(location, (Metadata(0, now - 100, b"svc=web"),), facts, schema)
