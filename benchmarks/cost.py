"""How many requests does a batch take from producer to sink, by flush interval and producers, and what do they cost?

Producers and a runtime at work on one buffer, whose store answers each request after 50 ms, as S3 does, and counts it.
How large a batch is changes nothing about that: it is one PUT and one GET. What a terabyte costs is computed from it.

    python benchmarks cost          measure; results go to benchmarks/results/cost.json
    python benchmarks/cost.py       write the tables of docs/settings.md from those results
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any

from forebay import Producer
from forebay.buffer.manifest import Queue
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector
from forebay.runtime import CallableSink, Runtime, Source
from forebay.testing import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from harness import Bench

# S3 Standard in us-east-1, as published in 2025. CHECK THEM: https://aws.amazon.com/s3/pricing/
DOLLARS_PER_1000_WRITES = 0.005
"""PUT, COPY, POST and LIST."""
DOLLARS_PER_1000_READS = 0.0004
"""GET and HEAD, those answered with "not modified" included. Deleting is free."""
DOLLARS_PER_GB_MONTH = 0.023

INTERVALS = (0.1, 1.0, 10.0)
PRODUCERS = (1, 4, 16)
PRODUCERS_BY_SIZE = 4
SIZES = (64 << 10, 1 << 20, 8 << 20, 64 << 20)
"""Of a batch, before compression."""
COLLECT_EVERY = 300.0
_TERABYTE = 10**12
_GIGABYTE = 10**9
_MONTH = 30 * 86_400

_WRITES = frozenset({"put", "create", "replace", "list"})
_READS = frozenset({"get", "get_if_changed"})

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE / "results" / "cost.json"
PAGE = _HERE.parent / "docs" / "settings.md"
BEGIN, END = "<!-- from benchmarks/cost.py -->", "<!-- end -->"


# Measuring


def run(bench: Bench) -> None:
    cells = []
    for interval in (0.1,) if bench.quick else INTERVALS:
        for producers in (1, 4) if bench.quick else PRODUCERS:
            bench.progress(f"{producers} producers that flush every {interval:g} s")
            cell = _measure(interval, producers, flushes=20 if bench.quick else max(5, int(8 / interval)))
            cells.append(cell)
            writes, reads = _per_batch(cell)
            bench.note(
                f"{interval:>4g} s, {producers:>2} producers: {writes:.2f} writes and {reads:.2f} reads a batch, "
                f"of {cell['batches']} batches"
            )
    bench.progress("a reader with nothing to read, and a collection")
    idle = _measure_idle(2.0 if bench.quick else 20.0)
    bench.note(f"nothing to read: {sum(idle['reader'].values())} requests in {idle['seconds']:g} s")
    bench.figures = {"cells": cells, "idle": idle}
    (alone, *_) = cells
    needed = 2 * alone["batches"] / _split(alone["writers"])[0]
    bench.require("one producer: a put and an append for each batch, against all its writes", needed, least=0.9)


def _measure(interval: float, producers: int, *, flushes: int) -> dict[str, Any]:
    """Requests of all producers and of a runtime that follows them, over about `flushes` flushes of each producer."""
    store = MemoryStore(f"memory://cost-{interval}-{producers}")
    writers = [_slow(store) for _ in range(producers)]
    opened = [Producer(writer, flush_interval=interval) for writer in writers]
    # Producers of a fleet do not flush in step.
    random, at = Random(producers), 0.0
    for begins, producer in zip(sorted(random.uniform(0, interval) for _ in opened), opened, strict=True):
        time.sleep(begins - at)
        at = begins
        producer.produce(b"hello")
        producer.flush().wait()
    with _reading(store) as (reader, acked):
        began = Queue(store).read().next_sequence
        _wait_for(lambda: acked() == began - 1)
        before = [_counts(writers), _counts([reader])]
        deadline = time.monotonic() + flushes * interval
        while time.monotonic() < deadline:
            for producer in opened:
                producer.produce(b"event")
            time.sleep(interval / 4)
        for producer in opened:
            producer.close()
        ended = Queue(store).read().next_sequence
        _wait_for(lambda: acked() == ended - 1)
        writing, reading = (
            dict(_counts(found) - earlier) for found, earlier in zip((writers, [reader]), before, strict=True)
        )
    return {
        "interval": interval,
        "producers": producers,
        "batches": ended - began,
        "writers": writing,
        "reader": reading,
    }


def _measure_idle(seconds: float) -> dict[str, Any]:
    """Requests of a runtime with nothing to read, and of one collection."""
    store = MemoryStore("memory://cost-idle")
    with Producer(store) as producer:
        producer.produce(b"hello")
    with _reading(store) as (reader, acked):
        _wait_for(lambda: acked() == 0)
        time.sleep(5)  # until it polls as seldom as it ever does
        before = _counts([reader])
        time.sleep(seconds)
        reading = dict(_counts([reader]) - before)
    collector = _slow(store)
    Collector(collector).collect_once()
    return {"seconds": seconds, "reader": reading, "collection": dict(collector.calls)}


@contextmanager
def _reading(inner: MemoryStore) -> Iterator[tuple[FaultyStore, Callable[[], int | None]]]:
    """A runtime in a thread that reads the buffer to nowhere: its store, and how far it has acknowledged."""
    store = _slow(inner)
    with CallableSink(lambda _commit: None) as sink:
        runtime = Runtime([Source(store, group="lake")], sink)
        thread = Thread(target=runtime.run, kwargs={"show_progress": False})
        thread.start()
        try:
            yield store, lambda: next((source.acked for source in runtime.status().sources), None)
        finally:
            runtime.stop()
            thread.join()


def _slow(store: MemoryStore) -> FaultyStore:
    return FaultyStore.seeded(store, 0, rate=1.0, faults=[Fault.DELAY])


def _counts(stores: list[FaultyStore]) -> Counter[str]:
    return sum((store.calls for store in stores), Counter())


def _wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "the runtime has not caught up"
        time.sleep(0.02)


# Computing


def _split(counts: Mapping[str, int]) -> tuple[int, int]:
    """How many count as writes, and how many as reads; deleting is neither."""
    writes = sum(count for kind, count in counts.items() if kind in _WRITES)
    return writes, sum(count for kind, count in counts.items() if kind in _READS)


def _per_batch(cell: Mapping[str, Any]) -> tuple[float, float]:
    writes, reads = (sum(pair) for pair in zip(_split(cell["writers"]), _split(cell["reader"]), strict=True))
    return writes / cell["batches"], reads / cell["batches"]


def dollars(writes: float, reads: float) -> float:
    """The price of a number of requests."""
    return writes / 1000 * DOLLARS_PER_1000_WRITES + reads / 1000 * DOLLARS_PER_1000_READS


def make_tables(figures: Mapping[str, Any]) -> str:
    """The tables of the page, from what was measured."""
    parts = (_by_fleet(figures), _by_size(figures), _by_time(figures))
    return "\n\n".join("\n".join(part) for part in parts)


def _by_fleet(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "Dollars per month, if every producer always has something to flush:"
    yield ""
    yield "| `flush_interval` | " + " | ".join(f"{count} producer{'s' * (count > 1)}" for count in PRODUCERS) + " |"
    yield f"| --- |{' --- |' * len(PRODUCERS)}"
    for interval in INTERVALS:
        row = [cell for cell in figures["cells"] if cell["interval"] == interval]
        yield f"| {interval:g} s | {' | '.join(f'${dollars_a_month(cell):,.0f}' for cell in row)} |"


def dollars_a_month(cell: Mapping[str, Any]) -> float:
    """What producers cost that always have something to flush, with the group that reads it."""
    flushes = cell["producers"] * _MONTH / cell["interval"]
    return dollars(*(n * flushes for n in _per_batch(cell)))


def _by_size(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"Dollars per TB, and millions of requests, by the size of a batch ({PRODUCERS_BY_SIZE} producers):"
    yield ""
    yield f"| `flush_interval` | {' | '.join(_size(size) for size in SIZES)} |"
    yield f"| --- |{' --- |' * len(SIZES)}"
    for cell in figures["cells"]:
        if cell["producers"] != PRODUCERS_BY_SIZE:
            continue
        writes, reads = _per_batch(cell)
        counts = [(writes * _TERABYTE / size, reads * _TERABYTE / size) for size in SIZES]
        shown = [f"${dollars(*both):,.2f} ({sum(both) / 1e6:.2f} M)" for both in counts]
        yield f"| {cell['interval']:g} s | {' | '.join(shown)} |"


def _by_time(figures: Mapping[str, Any]) -> Iterator[str]:
    idle = figures["idle"]
    writes, reads = (count * _MONTH / idle["seconds"] for count in _split(idle["reader"]))
    collecting = (count * _MONTH / COLLECT_EVERY for count in _split(idle["collection"]))
    yield "Dollars per month, independent of what is written:"
    yield ""
    yield "| what | per month |"
    yield "| --- | --- |"
    yield f"| a group with nothing to read, polling every 2 s | ${dollars(writes, reads):,.2f} |"
    yield f"| a collector every {COLLECT_EVERY / 60:g} minutes | ${dollars(*collecting):,.2f} |"
    yield f"| 1 TB that is kept all the time | ${_TERABYTE / _GIGABYTE * DOLLARS_PER_GB_MONTH:,.2f} |"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def put_tables(page: str, tables: str, begin: str = BEGIN) -> str:
    """The page with its tables replaced."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    PAGE.write_text(put_tables(PAGE.read_text(), make_tables(json.loads(RESULTS.read_text())["figures"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
