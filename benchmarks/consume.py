"""How near does a consumer come to the store's client and zstd alone, and what does a look at the manifest cost?

- *Reading*: a backlog of 96 batches of 16 MiB, read with default settings. The time includes opening and closing the
  consumer. The ceiling already knows which objects to read. It has as many threads as the consumer has workers (one
  thread for `next_batch`). Each thread gets an object with the store's client alone, and decompresses it with
  `zstandard`. It reads no manifest, checks no checksum, and does not split a batch into entries. A second case is the
  same with Arrow's zstd, into memory of Arrow's pool, as forebay does it. The difference from forebay is mostly the
  cost of splitting a block into entries (codec.py).
- *Polling*: a look at a manifest of 10,000 batches that has not changed. It is compared with reading the manifest and
  all its listings.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard
from places import events, open_places

from forebay import Consumer, Producer
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.manifest import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from harness import Bench
    from places import Place

    from forebay import Batch
    from forebay.buffer.manifest import Profile

_WORKERS = (2, 4, 8)
_FOOTER_BYTES = 7


def run(bench: Bench) -> None:
    with open_places() as places:
        for place in places:
            for length, least in ((1024, 0.9), (100, 0.8)):
                _Reading(bench, place, length, least).run()
        for place in places:
            for profile in ("native", "opendata"):
                _poll(bench, place, profile)


class _Reading:
    """One backlog, read in every way."""

    def __init__(self, bench: Bench, place: Place, length: int, least: float) -> None:
        self._bench = bench
        self._least = least
        self._place = place
        self._name = f"{place.name}, {'1 KiB' if length == 1024 else f'{length} B'}"
        folder = f"read-{length}"
        self._store = place.open(folder)
        entries = events(length, (2 if bench.quick else 16) << 20)
        self._raw_bytes = len(entries) * (length + 4)
        self._count = 4 if bench.quick else 96
        with Producer(self._store) as producer:
            for _ in range(self._count):
                producer.produce(entries)
                producer.flush().result()
        listed = Queue(self._store).descriptors(0, self._count)
        self._keys = [f"{folder}/{batch.location}" for batch in listed]
        self._total = self._raw_bytes * self._count

    def run(self) -> None:
        serial = self._compare("serial", 1, {"next_batch to Arrow": _to_arrow, "next_batch to bytes": _to_bytes})
        self._bench.require(
            f"{self._name}, serial to Arrow, of one thread's ceiling", serial["next_batch to Arrow"], least=0.7
        )
        shares = []
        for workers in _WORKERS:
            cases = {"workers to Arrow": _to_arrow, "workers to bytes": _to_bytes}
            shares.append(self._compare(f"{workers} workers", workers, cases)["workers to Arrow"])
        self._bench.require(
            f"{self._name}, workers to Arrow, of the ceiling (median of {_WORKERS})",
            statistics.median(shares),
            least=self._least,
        )

    def _compare(self, how: str, threads: int, uses: dict[str, Callable[[Batch], object]]) -> dict[str, float]:
        ceiling = "bare gets + zstd"
        with ThreadPoolExecutor(threads) as pool:
            read = self._read_serially if threads == 1 else partial(self._read_with_workers, pool)
            return self._bench.compare(
                f"{self._name}, {how}",
                {
                    ceiling: partial(self._ideal, pool, zstandard.decompress),
                    "the same, Arrow's zstd": partial(self._ideal, pool, self._arrow_zstd),
                    **{case: partial(read, use) for case, use in uses.items()},
                },
                ceiling=ceiling,
                amount=self._total,
                rounds=3,
                rehearse=False,
            )

    def _ideal(self, pool: ThreadPoolExecutor, decompress: Callable[[memoryview], Sized]) -> None:
        def read(key: str) -> int:
            return len(decompress(memoryview(self._place.get(key))[:-_FOOTER_BYTES]))

        assert sum(pool.map(read, self._keys)) == self._total

    def _arrow_zstd(self, frame: memoryview) -> Sized:
        return pa.Codec("zstd").decompress(frame, decompressed_size=self._raw_bytes)

    def _read_serially(self, use: Callable[[Batch], object]) -> None:
        with Consumer(self._store) as consumer:
            read = sum(1 for batch in consumer if use(batch))
        assert read == self._count

    def _read_with_workers(self, pool: ThreadPoolExecutor, use: Callable[[Batch], object]) -> None:
        with Consumer(self._store) as consumer:
            fetch = consumer.fetch_handle().fetch
            found = list(pool.map(lambda batch: bool(use(fetch(batch))), consumer.next_descriptors(self._count)))
        assert found == [True] * self._count


def _to_arrow(batch: Batch) -> object:
    return batch.arrow


def _to_bytes(batch: Batch) -> object:
    return list(batch.entries)


def _poll(bench: Bench, place: Place, profile: Profile) -> None:
    count = 1_000 if bench.quick else 10_000
    store = place.open(f"poll-{profile}")
    writer = Queue(store, profile=profile)
    for start in range(0, count, 500):
        writer.append([_batch(number) for number in range(start, start + 500)])
    reader = Queue(store)
    assert len(reader.descriptors(0, count)) == count
    looks, reading = 20, "read it all"

    def read() -> None:
        for _ in range(looks):
            # A queue of its own each time: one that stays open keeps what it has read.
            assert len(Queue(store).descriptors(0, count)) == count

    def poll() -> None:
        for _ in range(looks):
            reader.read()

    cases = {reading: read, "look again": poll}
    found = bench.compare(
        f"{place.name}, {profile}, {count:,} batches", cases, ceiling=reading, amount=looks, unit="looks", rounds=5
    )
    bench.require(f"{place.name}, {profile}: looks in the time of reading it once", found["look again"], least=10)


def _batch(number: int) -> NewBatch:
    time_ms = 1_700_000_000_000 + number
    return NewBatch(
        f"data/{number:026}.batch",
        (Metadata(0, time_ms, b"svc=web"),),
        Facts(20_000_000, 64_000_000, 60_000, number, time_ms, time_ms),
    )
