"""What do an append, a poll, a claim, an ack and a standby's look cost with thousands of lasting writers and groups?

As in backlog.py, entries are synthetic and the store is in memory. The script counts requests and bytes sent to and
from the store, and the processor time of this process. 100 batches wait to be read. One turn is 64 operations of one
kind, and every turn starts from the same manifest:

- *append*: a writer that the manifest knows appends.
- *come back*: a process opens a writer with a lasting name (`writer_id`) that was idle, asks for the number of its last
  call, and appends once.
- *poll*: a consumer finds one new batch.
- *claim*: a process takes over a group, and releases it.
- *ack*: one batch is acknowledged, durably.
- *look*: a standby looks whether the owner of the group is alive.

Lasting names: the head of the manifest keeps the 128 to 256 most recent names. The others are in 64 objects, called
buckets. So the script compares 10,000 names with 1,000. Flat means at most 1.3 times the cost. Groups: the head names
each group. So every operation that reads or writes the manifest transfers some bytes for each of them. Acks and looks
use only the group's own object.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from backlog import Backlog

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Queue
from forebay.buffer.standby import Standby
from forebay.buffer.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections import Counter

    from harness import Bench

_WAITING = 100
_CYCLE = 64
_LEAST = 1 / 1.3
_A_GROUP_BYTES = 64
_ROUNDS = 25


def run(bench: Bench) -> None:
    few, many = (300, 600) if bench.quick else (1_000, 10_000)
    names = {each: Crowd(names=each) for each in (few, many)}
    for kind in ("append", "come_back", "poll", "claim", "ack", "look"):
        _require_flat(bench, *_compare(bench, kind, "lasting names", names))
    few, many = (1, 50) if bench.quick else (1, 1_000)
    groups = {each: Crowd(groups=each) for each in (few, many)}
    for kind in ("ack", "look"):
        _require_flat(bench, *_compare(bench, kind, "groups", groups))
    for kind in ("append", "poll", "claim"):
        what, _, few_counts, many_counts = _compare(bench, kind, "groups", groups)
        bench.require(f"{what}: requests", few_counts["requests"] / many_counts["requests"], least=_LEAST)
        added = (many_counts["bytes"] - few_counts["bytes"]) / _CYCLE / (many - few)
        bench.require(f"{what}: {_A_GROUP_BYTES} bytes for each group, of those added", _A_GROUP_BYTES / added, least=1)


def _compare(
    bench: Bench, kind: str, of: str, crowds: dict[int, Crowd]
) -> tuple[str, float, Counter[str], Counter[str]]:
    """Measure a kind of turn: what is compared, the ratio of processor time, and what the few and the many send."""
    few, many = crowds
    turns = {f"{size:,} {of}": getattr(crowd, kind) for size, crowd in crowds.items()}
    ceiling, other = turns
    group = f"{kind.replace('_', ' ')}, {of}"
    ratios = bench.compare(group, turns, ceiling=ceiling, amount=_CYCLE, unit="calls", rounds=_ROUNDS, clock="cpu")
    counts = {size: crowd.count(kind) for size, crowd in crowds.items()}
    for size, found in counts.items():
        requests, sent = found["requests"] / _CYCLE, found["bytes"] / _CYCLE
        bench.note(f"{group}: with {size:,}, {requests:.2f} requests and {sent:,.0f} bytes each")
    return f"{group}, {many:,} against {few:,}", ratios[other], counts[few], counts[many]


def _require_flat(bench: Bench, what: str, ratio: float, few: Counter[str], many: Counter[str]) -> None:
    bench.require(f"{what}: processor seconds", ratio, least=_LEAST)
    for counted in ("requests", "bytes"):
        share = max(1, few[counted]) / max(1, many[counted])  # an unchanged cursor has no bytes
        bench.require(f"{what}: {counted}", share, least=_LEAST)


class Crowd(Backlog):
    """A backlog whose manifest knows many lasting writers, or many groups."""

    def __init__(self, *, names: int = 0, groups: int = 0) -> None:
        self._names, self._groups = names, groups
        super().__init__(_WAITING)

    def _join(self) -> None:
        for number in range(self._names):
            Queue(self._store, writer_id=f"pod-{number}", random=self._random).register_writer()
        for number in range(self._groups):
            GroupReader(Queue(self._store, random=self._random), f"group-{number}", random=self._random)
        Consumer(self._store, group="owned", from_="earliest").close()
        self._owner = Consumer(self._store, group="owner", from_="earliest")
        self._reader = GroupReader(Queue(self._store, random=self._random), "acking", random=self._random)
        self._claim, self._acked = self._reader.claim(), count()
        self._standby = Standby(self._store, "owner", SystemClock())

    def come_back(self) -> None:
        """A process each for lasting names that have been idle longest: it opens, and appends once."""
        self._start_again()
        for number, batch in enumerate(self._new):
            queue = Queue(self._store, writer_id=f"pod-{number}", random=self._random)
            queue.resume()
            queue.append([batch])

    def claim(self) -> None:
        """A process takes the group, and lets it go."""
        self._start_again()
        for _ in range(_CYCLE):
            Consumer(self._store, group="owned").close()

    def ack(self) -> None:
        """Acknowledgements one by one. A group writes its cursor, whatever the manifest lists."""
        self._store.counts.clear()
        for _ in range(_CYCLE):
            self._reader.ack(self._claim, next(self._acked))

    def look(self) -> None:
        """Looks of a standby, which find the same owner."""
        self._store.counts.clear()
        for _ in range(_CYCLE):
            assert not self._standby.look(1.0)

    def _start_again(self) -> None:
        MemoryStore.put(self._store, "manifest", self._start)
        self._store.counts.clear()
