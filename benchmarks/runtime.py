"""How near does the runtime come to bare gets and zstd alone, or to its sink; does it keep to its memory, and rest?

- *Reading*: a backlog of batches of 16 MiB to a sink that does nothing, and to Parquet files. The ceiling knows what
  objects to read: as many threads as there are workers each get an object with the bare client and decompress it. It
  looks at no manifest, splits nothing into entries, checks no checksum, records and acknowledges nothing. Beside it a
  serial consumer, as one would write it first. Opening a consumer is not counted: a runtime does that once.
- *A slow sink*: commits of 50 ms each, against as many times the rate of one as there are commit workers.
- *A stalled sink*: 100,000 batches wait and no commit ever ends: the peak of the process's memory against its budget
  and 150 MiB, and the share of a processor that waiting takes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from places import events, open_places

from forebay import Consumer, Producer, open_store
from forebay.buffer.format.batch import encode_batch, raw_size
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.manifest import Queue
from forebay.runtime import CallableSink, Combining, ParquetSink, Runtime, RuntimeConfig, Source
from forebay.runtime.decoders import raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Bench
    from places import Place

    from forebay import Batch
    from forebay.buffer.store import ObjectStore
    from forebay.runtime import Commit, Decoder, Sink

_WORKERS = (1, 2, 4, 8)
_FOOTER_BYTES = 7
_CEILING = "bare gets + zstd"
_NULL = "null sink"
_ROUNDS = 3
_PAUSE = 0.05
_BUDGET = 128 << 20
_SLACK = 150 << 20
_numbers = count()


def run(bench: Bench) -> None:
    with open_places() as places:
        for place in places:
            for length in (1024, 100):
                _Reading(bench, place, length).run()
        _slow_sink(bench, places[0])
    _stalled_sink(bench)


def _do_nothing(_commit: Commit) -> None:
    """The null sink."""


class _Reading:
    """One backlog, read in every way."""

    def __init__(self, bench: Bench, place: Place, length: int) -> None:
        self._bench = bench
        self._place = place
        self._name = f"{place.name}, {'1 KiB' if length == 1024 else f'{length} B'}"
        self._folder = f"runtime-{length}"
        self._store = place.open(self._folder)
        entries = events(length, (2 if bench.quick else 16) << 20)
        self._raw_bytes = len(entries) * (length + 4)
        self._count = 8 if bench.quick else 96
        with Producer(self._store) as producer:
            for _ in range(self._count):
                producer.produce(entries)
                producer.flush().result()
        listed = Queue(self._store).descriptors(0, self._count)
        self._keys = [f"{self._folder}/{batch.location}" for batch in listed]
        self._total = self._raw_bytes * self._count

    def run(self) -> None:
        shares = []
        for workers in _WORKERS:
            target = self._place.open(f"{self._folder}-parquet-{workers}")
            null, parquet = CallableSink(_do_nothing), ParquetSink(target, combining=Combining(64 << 20))
            with ThreadPoolExecutor(workers) as pool:
                cases: dict[str, Callable[[], object]] = {
                    _CEILING: partial(self._ideal, pool),
                    _NULL: partial(self._read, _open_groups(self._store), workers, null, _entries_alone),
                }
                if self._place.name == "file":
                    cases["null sink, all columns"] = partial(self._read, _open_groups(self._store), workers, null, raw)
                    cases["Parquet"] = partial(self._read, _open_groups(self._store), workers, parquet, raw)
                if workers == 1:
                    cases["serial consumer"] = partial(self._read_serially, _open_groups(self._store))
                found = self._bench.compare(
                    f"{self._name}, {workers} workers",
                    cases,
                    ceiling=_CEILING,
                    amount=self._total,
                    rounds=_ROUNDS,
                    rehearse=False,
                )
            shares.append(found[_NULL])
        self._bench.require(
            f"{self._name}, null sink, of the ceiling (median of {_WORKERS} workers)",
            statistics.median(shares),
            least=0.85,
        )

    def _ideal(self, pool: ThreadPoolExecutor) -> None:
        zstd, size = pa.Codec("zstd"), self._raw_bytes

        def read(key: str) -> int:
            frame = memoryview(self._place.get(key))[:-_FOOTER_BYTES]
            return len(zstd.decompress(frame, decompressed_size=size))

        assert sum(pool.map(read, self._keys)) == self._total

    def _read(self, consumers: list[Consumer], workers: int, sink: Sink, decoder: Decoder) -> None:
        config = RuntimeConfig(fetch_workers=workers, commit_workers=workers, max_bytes=1 << 30)
        runtime = Runtime([consumers.pop()], sink, config, decoder=decoder)
        assert runtime.run(until_caught_up=True, show_progress=False).bytes_read == self._total

    def _read_serially(self, consumers: list[Consumer]) -> None:
        consumer = consumers.pop()
        for batch in consumer:
            _entries_alone(batch)
            consumer.ack_through(batch.sequence)


def _open_groups(store: ObjectStore) -> list[Consumer]:
    """A group of its own for each round, which then has everything before it."""
    return [Consumer(store, group=f"bench-{next(_numbers)}") for _ in range(_ROUNDS)]


def _entries_alone(batch: Batch) -> pa.Table:
    return batch.records(columns=["value"])


def _slow_sink(bench: Bench, place: Place) -> None:
    """Slow commits: the rate of many commit workers against that of one."""

    def commit(_commit: Commit) -> None:
        time.sleep(_PAUSE)

    def read(consumers: list[Consumer], workers: int) -> None:
        config = RuntimeConfig(commit_workers=workers)
        Runtime([consumers.pop()], CallableSink(commit), config).run(until_caught_up=True, show_progress=False)

    for workers in (1, 4, 8):
        batches = (5 if bench.quick else 40) * workers
        store = place.open(f"runtime-slow-{workers}")
        Queue(store).append([_put(store, number, [f"{number}".encode()] * 100) for number in range(batches)])
        ceiling = f"{workers} x one alone"
        found = bench.compare(
            f"commits of {1000 * _PAUSE:.0f} ms, {workers} at once",
            {
                ceiling: partial(time.sleep, _PAUSE * batches / workers),
                "runtime": partial(read, _open_groups(store), workers),
            },
            ceiling=ceiling,
            amount=batches,
            unit="commits",
            rounds=_ROUNDS,
            rehearse=False,
        )
        bench.require(f"a slow sink, {workers} commits at once, of {ceiling}", found["runtime"], least=0.9)


def _put(store: ObjectStore, number: int, entries: list[bytes]) -> NewBatch:
    data = bytes(encode_batch(entries))
    store.put(_location(number), data)
    time_ms = 1_700_000_000_000 + number
    facts = Facts(len(data), raw_size(entries), len(entries), crc32c(data), time_ms, time_ms)
    return NewBatch(_location(number), (Metadata(0, time_ms, b"svc=web"),), facts)


def _location(number: int) -> str:
    return f"data/{number:026}.batch"


def _stalled_sink(bench: Bench) -> None:
    """In a process of its own, so that the peak is its own too."""
    batches = 2_000 if bench.quick else 100_000
    bench.progress(f"a stalled sink and {batches:,} batches waiting")
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        url = f"file://{folder}/buffer"
        _append_backlog(open_store(url), batches)
        shown = subprocess.run([sys.executable, __file__, url], capture_output=True, text=True, check=True)
    found = json.loads(shown.stdout)
    peak, under_way, share = found["peak"], found["under_way"], found["cpu"] / found["seconds"]
    bench.note(
        f"stalled sink, {batches:,} batches waiting: a peak of {peak >> 20} MiB with a budget of {_BUDGET >> 20}, "
        f"{found['before'] >> 20} of them before there was a runtime; {under_way >> 20} MiB counted as under way; "
        f"waiting takes {share:.2%} of a processor"
    )
    bench.require("a stalled sink: budget + 150 MiB, of the peak", (_BUDGET + _SLACK) / peak, least=1)
    bench.require("a stalled sink: 1 % of a processor, of what waiting takes", 0.01 / max(1e-5, share), least=1)


def _append_backlog(store: ObjectStore, batches: int) -> None:
    """Batches of 1 MiB; beyond those that the budget lets in, they are only listed."""
    entries = events(1024, 1 << 20)
    listed = [_put(store, number, entries) for number in range(256)]
    queue = Queue(store)
    queue.append(listed)
    for start in range(len(listed), batches, 1000):
        numbers = range(start, min(batches, start + 1000))
        queue.append([NewBatch(_location(number), listed[0].metadata, listed[0].facts) for number in numbers])


def stall(url: str) -> None:
    """Run with a sink that never ends a commit; print the peak of memory and the processor time of waiting."""
    forever = threading.Event()
    sink = CallableSink(lambda _commit: _wait(forever))
    before = _peak_memory()
    runtime = Runtime([Source(url, group="etl")], sink, RuntimeConfig(max_bytes=_BUDGET))
    threading.Thread(target=runtime.run, kwargs={"show_progress": False}, daemon=True).start()
    settled = 0
    while settled < 10:  # until nothing moves any more
        time.sleep(0.1)
        fetching, _committing = runtime.status().stages
        settled = settled + 1 if runtime.status().batches and not fetching.busy + fetching.waiting else 0
    cpu, began = time.process_time(), time.perf_counter()
    time.sleep(5)
    found = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - began}
    found |= {"before": before, "peak": _peak_memory(), "under_way": runtime.status().bytes}
    print(json.dumps(found), flush=True)
    os._exit(0)  # its sink would not let it stop


def _wait(event: threading.Event) -> None:
    event.wait()


def _peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    from memory import NoPandas

    sys.meta_path.insert(0, NoPandas())  # forebay does not need it, and pyarrow imports it if it is there
    stall(sys.argv[1])
