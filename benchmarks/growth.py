"""Does a gigabyte cost the same in a large buffer as in a small one, and with many producers as with one?

The cost of a gigabyte of entries (before compression) is processor seconds, bytes sent to and from the store, and
requests. Cases take turns, and medians are compared. Flat means at most a tenth more.

- *By size*: one buffer grows to 50 GiB. A *window* is 1 GiB of it. At its end, and at points on the way, a window is
  produced into it, and one into a fresh buffer. Then windows at its front (the oldest batches) and at its back (the
  newest) are read, by a new group with workers, which acknowledges. Then windows at its front are collected. Between
  the points, the buffer is filled with copies of its own batches, stored and listed one by one. For the buffer, a copy
  is the same as a new batch, and compressing the same data again would show nothing new. A producer, a reader and a
  collector are opened and closed for each window, and that is counted. Collecting costs almost nothing. So its cost is
  shown, but the promise is about the sum of producing, reading and collecting. A typed buffer grows in the same way,
  from Arrow tables with the same events in a column of text.
- *By producers*: 1, 8 and 64 processes write to 8 buffers (process n writes to buffer n modulo 8). The total bytes and
  the total rate are the same for each number of processes. If 64 producers flushed batches that are not full, the
  result would only show that small batches cost more requests, which cost.py shows. So the producers take turns: each
  produces what fills a batch, and waits until that is durable. The number and size of batches and the number of appends
  are then the same for every number of producers. Opening and closing are not counted: a producer lives for hours.
  A producer that shares a manifest must read what others wrote before it appends. That takes a read for each append,
  and a read costs a twelfth of the price of a write. So the writes and the total price must stay flat.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
from metering import Cost, Meter, Metered, median_cost

from forebay import Consumer, Producer, ProducerLimits, open_store
from forebay.buffer.base import names
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.format.batch import raw_size
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Queue
from forebay.gc import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

    from harness import Bench

    from forebay.buffer.store import ObjectStore

_FLAT = 0.91
"""A tenth more, upside down."""
_FRESH = "fresh buffer"
_CALLS = "calls"
_ENTRY_BYTES = 1024
_CALLS_A_BATCH = 32
_WORKERS = 4
_AT_ONCE = 32
_BUFFERS = 8
_FLEET_RATE = 64e6
"""Bytes each second of all producers together: less than two cores can take, so that nothing queues up."""
_PATIENT = 3600.0
_ROOM = 256 << 20
"""Room for many batches: a producer without room flushes batches that are not full."""
_SHRUNK = 0.5
"""More than zstd leaves of these events."""
_KINDS = ("cpu", "bytes", "requests")
_SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("event", pa.string(), nullable=False)])


@dataclass(frozen=True, slots=True)
class _Sizes:
    entries_a_call: int
    window_batches: int
    windows: int
    points: tuple[int, ...]
    """Number of windows after which one is measured on the way."""
    rounds: int
    fleets: tuple[int, ...]
    fleet_batches: int
    fleet_rounds: int

    @property
    def window_bytes(self) -> int:
        return self.window_batches * self.batch_bytes

    @property
    def batch_bytes(self) -> int:
        """What one full batch holds, which is what a producer is told to flush at."""
        return _CALLS_A_BATCH * self.entries_a_call * (_ENTRY_BYTES + 4)


_FULL = _Sizes(
    entries_a_call=256,
    window_batches=128,
    windows=50,
    points=(1, 10, 20, 30, 40),
    rounds=5,
    fleets=(1, 8, 64),
    fleet_batches=128,
    fleet_rounds=3,
)
_QUICK = _Sizes(
    entries_a_call=8,
    window_batches=8,
    windows=10,
    points=(1, 4),
    rounds=3,
    fleets=(1, 8),
    fleet_batches=64,
    fleet_rounds=1,
)


def run(bench: Bench) -> None:
    sizes = _QUICK if bench.quick else _FULL
    # Deleted whatever happens, an interrupt included.
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        needed = int(_SHRUNK * (sizes.windows + len(sizes.points) + sizes.rounds) * sizes.window_bytes)
        if shutil.disk_usage(folder).free < needed:
            raise RuntimeError(f"{folder} has less than {needed >> 30} GiB free; set TMPDIR to a folder with more")
        _make_calls(Path(folder) / _CALLS)
        for schema in (None, _SCHEMA):
            _BySize(bench, folder, sizes, schema).run()
        _by_producers(bench, folder, sizes)


# Showing


def _record(bench: Bench, group: str, costs: Mapping[str, Sequence[Cost]]) -> dict[str, Cost]:
    """Show what each case costs, the first being the one to compare with, and return it."""
    seconds = {case: [cost.cpu for cost in found] for case, found in costs.items()}
    bench.record(group, seconds, ceiling=next(iter(costs)))
    bench.clocks[group] = "cpu"
    median = {case: median_cost(found) for case, found in costs.items()}
    for case, cost in median.items():
        bench.note(f"{group}, {case}: {cost} for each GB")
    bench.figures[group] = {case: {n: getattr(cost, n) for n in Cost.__slots__} for case, cost in median.items()}
    return median


def _require_flat(bench: Bench, what: str, small: Cost, large: Cost, kinds: Sequence[str] = _KINDS) -> None:
    for kind in kinds:
        bench.require(f"{what}: {kind}", getattr(small, kind) / getattr(large, kind), least=_FLAT)


# By size


class _BySize:
    """A buffer that grows, and fresh ones beside it."""

    def __init__(self, bench: Bench, folder: str, sizes: _Sizes, schema: pa.Schema | None) -> None:
        self._bench = bench
        self._folder = folder
        self._sizes = sizes
        self._schema = schema
        self._of = "" if schema is None else " rows"
        calls = _load_calls(Path(folder) / _CALLS, sizes)
        self._calls: Iterator[list[bytes] | pa.Table] = cycle(calls if schema is None else map(_to_table, calls))
        self._large = self._open("large")
        self._fresh: list[Metered] = []
        self._whole = self._shown(sizes.windows)

    def _open(self, name: str) -> Metered:
        return Metered(open_store(f"file://{self._folder}/{name}"))

    def _shown(self, windows: int) -> str:
        size = windows * self._sizes.window_bytes
        return f"{size >> 30} GiB" if size >> 30 else f"{size >> 20} MiB"

    def run(self) -> None:
        bench, whole, of = self._bench, self._whole, self._of
        produced = _record(bench, f"produce{of}, by size", self._produce())
        read = _record(bench, f"read{of}, by size", self._read())
        collected = _record(bench, f"collect{of}, by size", self._collect())
        what = f"produce{of}, at {whole} against a fresh buffer"
        _require_flat(bench, what, produced[_FRESH], produced[f"at {whole}"])
        for where in ("front", "back"):
            what = f"read{of}, at the {where} of {whole} against a fresh buffer"
            _require_flat(bench, what, read[_FRESH], read[f"{where} of {whole}"])
        small = produced[_FRESH] + read[_FRESH] + collected[_FRESH]
        large = produced[f"at {whole}"] + read[f"front of {whole}"] + collected[f"front of {whole}"]
        _require_flat(bench, f"produced, read and collected{of}, at {whole} against a fresh buffer", small, large)
        for store in (self._large, *self._fresh):
            shutil.rmtree(store.url.removeprefix("file://"))

    def _produce(self) -> dict[str, list[Cost]]:
        sizes = self._sizes
        costs: dict[str, list[Cost]] = {_FRESH: []}
        ends = range(sizes.windows - sizes.rounds + 1, sizes.windows + 1)
        grown = 0
        for upto in (*sizes.points, *ends):
            self._bench.progress(f"produce{self._of}, from {self._shown(upto - 1)} on")
            _fill(self._large, (upto - 1 - grown) * sizes.window_batches)
            grown = upto
            case = f"at {self._whole if upto in ends else self._shown(upto)}"
            costs.setdefault(case, []).append(self._produce_window(self._large))
            self._fresh.append(self._open(f"fresh-{upto}"))
            costs[_FRESH].append(self._produce_window(self._fresh[-1]))
        assert Queue(self._large).read().count == sizes.windows * sizes.window_batches
        return costs

    def _produce_window(self, store: Metered) -> Cost:
        meter = Meter([store])
        with Producer(
            store,
            schema=self._schema,
            flush_size_bytes=self._sizes.batch_bytes,
            flush_interval=_PATIENT,
            limits=ProducerLimits(buffered_bytes=_ROOM),
        ) as producer:
            for call in islice(self._calls, self._sizes.window_batches * _CALLS_A_BATCH):
                producer.produce(call)
        return meter.cost(self._sizes.window_bytes)

    def _read(self) -> dict[str, list[Cost]]:
        sizes, whole = self._sizes, self._whole
        last = (sizes.windows - 1) * sizes.window_batches
        costs: dict[str, list[Cost]] = {_FRESH: [], f"front of {whole}": [], f"back of {whole}": []}
        self._bench.progress("read windows")
        for fresh in (self._fresh[0], *self._fresh):
            places = ((fresh, 0), (self._large, 0), (self._large, last))
            found = [self._read_window(store, first) for store, first in places]
            for case, cost in zip(costs.values(), found, strict=True):
                case.append(cost)
        for case in costs.values():
            del case[0]  # which brought the files into memory
        return costs

    def _read_window(self, store: Metered, first: int) -> Cost:
        meter = Meter([store])
        with Consumer(store, group="reader", from_=first) as consumer, ThreadPoolExecutor(_WORKERS) as pool:
            _read_and_ack(consumer, pool, self._sizes.window_batches)
        cost = meter.cost(self._sizes.window_bytes)
        Groups(store).delete("reader")
        return cost

    def _collect(self) -> dict[str, list[Cost]]:
        costs: dict[str, list[Cost]] = {_FRESH: [], f"front of {self._whole}": []}
        for fresh in self._fresh:
            for case, store in zip(costs.values(), (fresh, self._large), strict=True):
                case.append(self._collect_window(store))
        return costs

    def _collect_window(self, store: Metered) -> Cost:
        """Acknowledge the oldest window, and collect it."""
        with Consumer(store, group="collected") as consumer:
            window = consumer.next_descriptors(self._sizes.window_batches)
            consumer.ack_through(window[-1].sequence)
        meter = Meter([store])
        report = Collector(store, grace=0).collect_once()
        cost = meter.cost(self._sizes.window_bytes)
        # The objects of a segment that is trimmed in part stay until a later collection.
        assert report.trimmed >= self._sizes.window_batches, report
        return cost


def _fill(store: ObjectStore, batches: int) -> None:
    """Store and list copies of the batches that are there already."""
    queue, clock = Queue(store), SystemClock()
    head = queue.read()
    random = Random(head.next_sequence)
    listed = queue.descriptors(0, _CALLS_A_BATCH) if batches else []
    models = cycle([(each, store.get(each.location).data) for each in listed])

    def copy(number: int) -> NewBatch:
        model, data = chosen[number]
        location = f"data/{names.mint(clock, random)}{Path(model.location).suffix}"
        store.put(location, data)
        return NewBatch(location, model.metadata, model.facts, None if model.schema is None else 0)

    with ThreadPoolExecutor(_WORKERS) as pool:
        for start in range(0, batches, _WORKERS):
            chosen = list(islice(models, min(_WORKERS, batches - start)))
            for batch in sorted(pool.map(copy, range(len(chosen))), key=lambda batch: batch.location):
                queue.append([batch], version=2, schemas=head.schemas)


def _read_and_ack(consumer: Consumer, pool: ThreadPoolExecutor, batches: int) -> None:
    """Fetch up to this many batches with workers, and acknowledge them."""
    fetch = consumer.fetch_handle().fetch
    while batches and (found := consumer.next_descriptors(min(batches, _AT_ONCE))):
        assert all(len(batch) for batch in pool.map(fetch, found))
        consumer.ack_through(found[-1].sequence)
        batches -= len(found)


# By producers


def _by_producers(bench: Bench, folder: str, sizes: _Sizes) -> None:
    writing: dict[str, list[Cost]] = {_fleet(number): [] for number in sizes.fleets}
    reading: dict[str, list[Cost]] = {_fleet(number): [] for number in sizes.fleets}
    # Processes that start at once: what they need is loaded into the one that they are copies of.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["forebay.runtime", "forebay.gc", "forebay.testing"])
    order = list(sizes.fleets)
    for number in range(sizes.fleet_rounds):
        Random(number).shuffle(order)
        for producers in order:
            bench.progress(f"{_fleet(producers)} on {_BUFFERS} buffers")
            topic = f"{folder}/fleet"
            writing[_fleet(producers)].append(_run_fleet(processes, topic, producers, sizes))
            reading[_fleet(producers)].append(_read_fleet(topic, min(producers, _BUFFERS), sizes))
            shutil.rmtree(topic)
    written, read = _record(bench, "produce, by producers", writing), _record(bench, "read, by producers", reading)
    one, many = _fleet(sizes.fleets[0]), _fleet(sizes.fleets[-1])
    _require_flat(
        bench, f"produce, {many} against {one}", written[one], written[many], ("cpu", "bytes", "writes", "dollars")
    )
    _require_flat(bench, f"read, {many} against {one}", read[one], read[many])


def _fleet(number: int) -> str:
    return f"{number} producer{'s' if number > 1 else ''}"


@dataclass(frozen=True, slots=True)
class _Share:
    """What one of several producers has to do."""

    url: str
    calls: Path
    sizes: _Sizes
    producer: int
    producers: int

    @property
    def batches(self) -> int:
        return self.sizes.fleet_batches // self.producers

    def due(self, batch: int) -> float:
        """Seconds after the start: they take turns, each with a batch at a time."""
        return (batch * self.producers + self.producer) * self.sizes.batch_bytes / _FLEET_RATE


def _run_fleet(processes: ForkServerContext, topic: str, producers: int, sizes: _Sizes) -> Cost:
    pipes, running = [], []
    for number in range(producers):
        share = _Share(f"file://{topic}/p-{number % _BUFFERS}", Path(topic).parent / _CALLS, sizes, number, producers)
        ours, theirs = processes.Pipe()
        running.append(processes.Process(target=_produce_share, args=(share, theirs), daemon=True))
        running[-1].start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    start = time.monotonic() + 0.1
    for pipe in pipes:
        pipe.send(start)
    found: list[Cost] = [pipe.recv() for pipe in pipes]
    for process in running:
        process.join()
    # Each tells it for a gigabyte of its own, and all wrote as much.
    return Cost(*(statistics.mean(getattr(cost, name) for cost in found) for name in Cost.__slots__))


def _produce_share(share: _Share, pipe: Connection) -> None:
    store = Metered(open_store(share.url))
    calls = cycle(_load_calls(share.calls, share.sizes))
    with Producer(store, flush_size_bytes=share.sizes.batch_bytes, flush_interval=_PATIENT) as producer:
        for call in islice(calls, 3 * _CALLS_A_BATCH):  # the first ones pay for memory and a place in the manifest
            producer.produce(call)
        producer.flush().result()
        pipe.send("ready")
        start = pipe.recv()
        meter = Meter([store])
        for number in range(share.batches):
            time.sleep(max(0.0, start + share.due(number) - time.monotonic()))
            for call in islice(calls, _CALLS_A_BATCH):
                producer.produce(call)
            producer.flush().result()
        pipe.send(meter.cost(share.batches * share.sizes.batch_bytes))


def _read_fleet(topic: str, buffers: int, sizes: _Sizes) -> Cost:
    """Read all that a fleet wrote, one buffer after the other."""
    stores = [Metered(open_store(f"file://{topic}/p-{number}")) for number in range(buffers)]
    consumers = [Consumer(store, group="reader") for store in stores]
    batches = sum(len(consumer) for consumer in consumers)
    with ThreadPoolExecutor(_WORKERS) as pool:
        meter = Meter(stores)
        for consumer in consumers:
            _read_and_ack(consumer, pool, batches)
        cost = meter.cost(batches * sizes.batch_bytes)
    for consumer in consumers:
        consumer.close()
    return cost


# The events


def _make_calls(path: Path) -> None:
    """Write 16 MiB of events; beyond that they repeat, farther apart than zstd looks back."""
    from places import events  # noqa: PLC0415  (the processes started here need none of its clients)

    path.write_bytes(b"".join(events(_ENTRY_BYTES, 16 << 20)))


def _to_table(call: list[bytes]) -> pa.Table:
    return pa.table([pa.arange(0, len(call)), pa.array(call, pa.binary()).cast(pa.string())], schema=_SCHEMA)


def _load_calls(path: Path, sizes: _Sizes) -> list[list[bytes]]:
    """The events in calls of one size."""
    whole = path.read_bytes()
    entries = [whole[i : i + _ENTRY_BYTES] for i in range(0, len(whole), _ENTRY_BYTES)]
    each = sizes.entries_a_call
    calls = [entries[i : i + each] for i in range(0, len(entries) - each + 1, each)]
    assert _CALLS_A_BATCH * raw_size(calls[0]) == sizes.batch_bytes
    return calls
