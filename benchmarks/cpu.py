"""Where does the processor time of a gigabyte go, which S3 client takes less of it, and how long do threads wait?

- *Parts*: each part of producing and consuming runs alone on the same bytes, and the whole runs too. All of them take
  turns, and the best round of each counts. The time of the whole minus the times of its parts is Python, threads and
  copies between the parts. All batches have one size, and all calls have 1,000 entries. Only the processor time of this
  process counts: not the server, the kernel's own threads or the disk.
- *Clients*: each of forebay's two S3 clients puts and gets objects of 8 MiB and of 2 kB, four at a time. A proxy counts
  the requests of each client while a buffer is written and read.
- *Threads*: the share of the time that each thread of a producer takes, and how long a thread waits for the
  interpreter's lock.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from places import events, open_places

from forebay import Consumer, Producer, open_store
from forebay.buffer.format.batch import decode_batch, encode_batch, make_compressor, raw_size
from forebay.buffer.format.checksum import crc32c
from forebay.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness import Bench, Clock
    from places import Place

    from forebay.buffer.store import ObjectStore
    from forebay.buffer.write.accumulator import Entries

_ENTRIES_A_CALL = 1000
_PATIENT = 3600.0
_FOOTER_BYTES = 7
_AT_ONCE = 4
_numbers = count()


def run(bench: Bench) -> None:
    with open_places() as places:
        for length in (1024, 100):
            _Parts(bench, places, length).run()
        _clients(bench, places[1:])
        for length in (1024, 100):
            _threads(bench, places[0], length)


def _shape(length: int) -> str:
    return "1 KiB" if length == 1024 else f"{length} B"


# Parts


class _Parts:
    """Entries of one length, produced and consumed whole and in parts."""

    def __init__(self, bench: Bench, places: Sequence[Place], length: int) -> None:
        self._bench = bench
        self._places = places
        self._shape = _shape(length)
        size = (1 if bench.quick else 8) << 20
        entries = events(length, size)
        self._calls = [entries[i : i + _ENTRIES_A_CALL] for i in range(0, len(entries), _ENTRIES_A_CALL)]
        self._arrays = [pa.array(call, pa.binary()) for call in self._calls]
        self._batch_bytes = raw_size(entries)
        self._batches = 4 if bench.quick else 16
        self._total = self._batches * self._batch_bytes
        self._entries = entries
        self._array = pa.array(entries, pa.binary())
        self._plain = bytes(encode_batch(entries, "none"))
        self._block = self._plain[:-_FOOTER_BYTES]
        self._decoded = decode_batch(self._plain)
        self._object = bytes(encode_batch(entries))

    def run(self) -> None:
        alone: dict[str, Callable[[], object]] = {
            "compress": lambda: make_compressor().compress(self._block),
            "encode a list": lambda: encode_batch(self._entries, "none"),
            "encode Arrow": lambda: encode_batch(self._array, "none"),
            "checksum": lambda: crc32c(self._object),
            "copy": partial(_copy, self._block),
            "decompress": self._decompress,
            "split": lambda: decode_batch(self._plain),
            "make bytes": lambda: list(self._decoded.entries),
        }
        cases: dict[str, Callable[[], object]] = {case: self._repeat(part) for case, part in alone.items()}
        for place in self._places:
            cases |= self._cases_of(place)
        group = f"{self._shape} entries"
        self._bench.compare(group, cases, ceiling="compress", amount=self._total, rounds=7, clock="cpu", rehearse=False)
        seconds = {row.case: min(row.seconds) / self._total * 1e9 for row in self._bench.rows if row.group == group}
        self._bench.figures[self._shape] = {"seconds": seconds, "shrunk": len(self._object) / self._batch_bytes}
        for place in self._places:
            for form in ("a list", "Arrow"):
                parts = [f"encode {form}", "compress", "checksum", f"{place.name}: put"]
                self._note(f"{place.name}: produce {form}", parts, seconds)
            read = [f"{place.name}: get", "checksum", "decompress", "split"]
            self._note(f"{place.name}: consume to Arrow", read, seconds)
            self._note(f"{place.name}: consume to bytes", [*read, "make bytes"], seconds)
        self._bench.note(f"{self._shape}, for comparison: one copy of all bytes {seconds['copy']:.2f}")

    def _repeat(self, part: Callable[[], object]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(self._batches):
                part()

        return repeat

    def _decompress(self) -> None:
        pa.Codec("zstd").decompress(memoryview(self._object)[:-_FOOTER_BYTES], decompressed_size=self._batch_bytes)

    def _cases_of(self, place: Place) -> dict[str, Callable[[], object]]:
        full = place.open(f"full-{next(_numbers)}")
        self._produce(full, self._calls)
        store = place.open(f"objects-{next(_numbers)}")
        store.put("object", self._object)
        return {
            f"{place.name}: put": self._repeat(lambda: store.put("object", self._object)),
            f"{place.name}: get": self._repeat(lambda: store.get("object")),
            f"{place.name}: produce a list": lambda: self._produce(place.open(f"r-{next(_numbers)}"), self._calls),
            f"{place.name}: produce Arrow": lambda: self._produce(place.open(f"r-{next(_numbers)}"), self._arrays),
            f"{place.name}: consume to Arrow": lambda: _consume(full, lambda batch: batch.arrow),
            f"{place.name}: consume to bytes": lambda: _consume(full, lambda batch: list(batch.entries)),
        }

    def _produce(self, store: ObjectStore, calls: Sequence[Entries]) -> None:
        with Producer(store, flush_size_bytes=self._batch_bytes, flush_interval=_PATIENT) as producer:
            for _ in range(self._batches):
                for call in calls:
                    producer.produce(call)

    def _note(self, whole: str, parts: Sequence[str], seconds: dict[str, float]) -> None:
        rest = seconds[whole] - sum(seconds[part] for part in parts)
        told = ", ".join(f"{part.rpartition(': ')[2]} {seconds[part]:.2f}" for part in parts)
        self._bench.note(f"{self._shape}, {whole}: {seconds[whole]:.2f} CPU s for each GB: {told}, rest {rest:.2f}")


def _copy(block: bytes) -> None:
    memoryview(pa.allocate_buffer(len(block))).cast("B")[:] = block


def _consume(store: ObjectStore, use: Callable[[Any], object]) -> None:
    with Consumer(store) as consumer:
        for batch in consumer:
            use(batch)


# Clients


def _clients(bench: Bench, places: Sequence[Place]) -> None:
    _compare_clients(bench, places, "8 MiB", os.urandom(8 << 20), objects=4 if bench.quick else 16)
    _compare_clients(bench, places, "2 kB", os.urandom(2000), objects=64 if bench.quick else 512)
    for place in places:
        _count_requests(bench, place)


def _compare_clients(bench: Bench, places: Sequence[Place], shown: str, data: bytes, *, objects: int) -> None:
    keys = [f"{shown}/{number}" for number in range(objects)]
    large = len(data) > 1 << 20
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        cases: dict[str, Callable[[], object]] = {}
        for place in places:
            store = place.store
            cases[f"{place.name}: put"] = partial(_all, pool, partial(_put, store, data), keys)
            cases[f"{place.name}: get"] = partial(_all, pool, store.get, keys)
            cases[f"{place.name}: put"]()
        if large:
            cases["SHA-256, which signs a body"] = partial(_all, pool, lambda _: hashlib.sha256(data), keys)
        clocks: tuple[Clock, ...] = ("wall", "cpu")
        for clock in clocks:
            bench.compare(
                f"objects of {shown}, four at a time, {clock} time",
                cases,
                ceiling=f"{places[0].name}: put",
                amount=objects * len(data) if large else objects,
                unit="MB" if large else "requests",
                rounds=5,
                clock=clock,
                rehearse=False,
            )
    rows = [row for row in bench.rows if row.group.startswith(f"objects of {shown},")]
    rates = {clock: {row.case: row.rate for row in rows if bench.clocks[row.group] == clock} for clock in clocks}
    bench.figures[f"objects of {shown}"] = rates


def _put(store: ObjectStore, data: bytes, key: str) -> None:
    store.put(key, data)


def _all(pool: ThreadPoolExecutor, do: Callable[[str], object], keys: Sequence[str]) -> None:
    for _ in pool.map(do, keys):
        pass


def _count_requests(bench: Bench, place: Place) -> None:
    """What a buffer of eight batches takes, as a server sees it."""
    assert place.options is not None
    with FaultProxy(place.options["endpoint_url"]) as proxy:
        store = open_store(f"{place.url}/counted", place.options | {"endpoint_url": proxy.endpoint_url})
        with Producer(store, flush_interval=_PATIENT) as producer:
            for _ in range(8):
                producer.produce([b"entry"] * _ENTRIES_A_CALL)
                producer.flush().result()
        with Consumer(store, group="reader") as consumer:
            for batch in consumer:
                consumer.ack_through(batch.sequence)
        requests = Counter(line.split()[0] for line in proxy.requests)
    bench.figures[f"requests, {place.name}"] = dict(requests)
    bench.note(f"{place.name}, eight batches written, read and acknowledged: {dict(requests)}")


# Threads


def _threads(bench: Bench, place: Place, length: int) -> None:
    entries = events(length, (1 if bench.quick else 8) << 20)
    calls = [entries[i : i + _ENTRIES_A_CALL] for i in range(0, len(entries), _ENTRIES_A_CALL)]
    rounds = 2 if bench.quick else 32
    name = f"threads, {_shape(length)} in lists"
    bench.progress(name)
    with _Lateness() as idle:
        time.sleep(0.2 if bench.quick else 1.0)
    with Producer(place.open(f"threads-{length}"), flush_size_bytes=raw_size(entries)) as producer, _Lateness() as busy:
        before = _thread_times()
        began = time.perf_counter()
        for _ in range(rounds):
            for call in calls:
                producer.produce(call)
        producer.flush().result()
        wall = time.perf_counter() - began
        spent = {role: seconds - before.get(role, 0.0) for role, seconds in _thread_times().items() if role != "watch"}
    total = sum(spent.values())
    shares = {role: seconds / total for role, seconds in spent.items() if seconds > total / 200}
    seconds = total / (rounds * raw_size(entries)) * 1e9
    told = ", ".join(f"{role} {share:.0%}" for role, share in shares.items())
    bench.note(f"{name}: {seconds:.2f} CPU s for each GB on {total / wall:.2f} processors: {told}")
    bench.note(
        f"{name}: a thread that wants the interpreter waits {busy.mean_ms:.2f} ms (p90 {busy.p90_ms:.2f} ms); with no "
        f"producer at work {idle.mean_ms:.2f} ms (p90 {idle.p90_ms:.2f} ms)"
    )
    bench.figures[name] = {"shares": shares, "waits_ms": busy.mean_ms, "idle_waits_ms": idle.mean_ms}


def _thread_times() -> dict[str, float]:
    """Processor seconds of each thread by what it does; threads of native code together."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        role = _role(names.get(int(task.name), "native threads"))
        found[role] = found.get(role, 0.0) + nanoseconds / 1e9
    return found


def _role(name: str) -> str:
    """What a producer's thread does, from its name; others keep theirs."""
    roles = {"MainThread": "caller", "forebay-apply": "apply", "forebay-flush": "flush"}
    return next((role for begin, role in roles.items() if name.startswith(begin)), name)


class _Lateness:
    """How late a thread is that sleeps for a moment: what it waits for a processor, and for the interpreter's lock."""

    _PAUSE = 0.002

    def __enter__(self) -> Self:
        self._late: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.is_set():
            began = time.perf_counter()
            time.sleep(self._PAUSE)
            self._late.append(time.perf_counter() - began - self._PAUSE)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def mean_ms(self) -> float:
        return 1e3 * statistics.mean(self._late)

    @property
    def p90_ms(self) -> float:
        return 1e3 * statistics.quantiles(self._late, n=10)[-1]
