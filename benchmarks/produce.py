"""How near does a producer come to zstd and the store alone, and what do durability, calls and memory cost?

- *Throughput*: elapsed time until all entries are durable, with default settings. For the ceiling, the same entries are
  ready as blocks in memory, as many as the producer made objects. As many threads as the producer has for uploads each
  compress a block in one step, and put it with the store's client alone. There is no manifest. A second case, *the
  least program*, gets calls, as a producer does: it checks types, collects lengths, joins bytes, and stores them as the
  ceiling does.
- *Time to durable*: at a fixed rate far below the maximum, against the sum of one flush interval and two round trips
  (an upload and a manifest write, measured in the same run).
- *Calls* of one entry and of ten: processor time of all threads, against the least that a call can consist of.
- *Memory*: the peak of a whole process, interpreter and libraries included, that produces as fast as it can into a
  store whose puts hang, or are slow.
- *Manifest writes*: four processes append to one buffer. A write that conflicts with another producer's has to be
  repeated.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from operator import countOf
from pathlib import Path
from threading import Lock, Semaphore, Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from forebay import Producer, ProducerLimits, Timeout, open_store
from forebay.buffer.format.batch import make_compressor, raw_size
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.write.settings import FLUSH_SIZE_BYTES
from forebay.testing import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness import Bench
    from places import Place

    from forebay.buffer.store import Data, ObjectStore, Outcome
    from forebay.buffer.write.accumulator import Entries

_UPLOADS = 4
_INTERVAL = 0.1
_BOUND = 256 << 20
_SLACK = 150 << 20
_HOLD_SECONDS = 8.0
_numbers = count()


def run(bench: Bench) -> None:
    from places import open_places  # noqa: PLC0415  (the processes started below need none of it)

    with open_places() as places:
        _calls(bench, places[0])  # first, in a process that is no larger than a service's
        for place in places:
            _throughput(bench, place)
        for place in places:
            _time_to_durable(bench, place)
        _requests(bench, places[0])
        for place in places:
            _manifest_writes(bench, place)
    _memory(bench)


# Throughput


def _throughput(bench: Bench, place: Place) -> None:
    for length, least in ((1024, 0.85), (100, 0.75)):
        shape = "1 KiB" if length == 1024 else "100 B"
        calls, total = _make_calls(length, (16 if bench.quick else 768) << 20)
        arrays = [pa.array(call, pa.binary()) for call in calls]
        block = b"".join(len(entry).to_bytes(4, "little") + entry for call in calls for entry in call)
        ideal = _Ideal(place, block)
        ceiling = "zstd + bare puts"

        def produce(calls: Sequence[Entries], threads: int, ideal: _Ideal = ideal) -> None:
            ideal.objects = _produce(place, calls, threads)

        ratios = bench.compare(
            f"{place.name}, {shape}",
            {
                ceiling: ideal.run,
                "the least program, lists": partial(_store_calls, place, calls),
                "the least program, Arrow": partial(_store_calls, place, arrays),
                "lists, 1 thread": lambda calls=calls: produce(calls, 1),
                "lists, 4 threads": lambda calls=calls: produce(calls, 4),
                "Arrow, 1 thread": lambda arrays=arrays: produce(arrays, 1),
                "Arrow, 4 threads": lambda arrays=arrays: produce(arrays, 4),
            },
            ceiling=ceiling,
            amount=total,
            rounds=5,
            rehearse=False,
        )
        for form in ("lists", "Arrow"):
            found = statistics.mean((ratios[f"{form}, 1 thread"], ratios[f"{form}, 4 threads"]))
            bench.require(f"produce, {place.name}, {shape}, {form}, of zstd + bare puts", found, least=least)
            share = ratios[f"{form}, 1 thread"] / ratios[f"the least program, {form}"]
            bench.require(f"produce, {place.name}, {shape}, {form}, 1 thread, of the least program", share, least=0.9)


def _make_calls(length: int, size: int) -> tuple[list[list[bytes]], int]:
    """Calls of 1,000 entries; beyond 16 MiB they repeat, farther apart than zstd looks back."""
    from places import events  # noqa: PLC0415

    entries = events(length, min(size, 16 << 20))
    at_once = 1000
    calls = [entries[i : i + at_once] for i in range(0, len(entries), at_once)]
    calls *= max(1, size // (16 << 20))
    return calls, sum(map(raw_size, calls))


class _Ideal:
    def __init__(self, place: Place, block: bytes) -> None:
        self._place = place
        self._block = memoryview(block)
        self.objects = max(1, len(block) >> 25)
        """How many objects the producer made when it last ran."""

    def run(self) -> None:
        run, size = next(_numbers), -(-len(self._block) // self.objects)

        def store(number: int) -> None:
            block = self._block[number * size : (number + 1) * size]
            self._place.put(f"{run}/{number}", make_compressor().compress(block))

        with ThreadPoolExecutor(_UPLOADS) as pool:
            list(pool.map(store, range(self.objects)))


def _store_calls(place: Place, calls: Sequence[Entries]) -> None:
    """Store calls as batches of the default size, with no more than that takes."""
    run, room = next(_numbers), Semaphore(_UPLOADS)
    parts: list[bytes] = []
    lengths, size = array("I"), 0

    def store(number: int, block: list[bytes]) -> None:
        try:
            place.put(f"{run}/{number}", make_compressor().compress(b"".join(block)))
        finally:
            room.release()

    with ThreadPoolExecutor(_UPLOADS) as pool:
        stored = []
        for call in [*calls, None]:
            if call is not None:
                data, found = _join(call)
                parts.append(data)
                lengths.extend(found)
                size += len(data) + 4 * len(found)
            if size >= FLUSH_SIZE_BYTES or (call is None and size):
                room.acquire()
                stored.append(pool.submit(store, len(stored), [*parts, lengths.tobytes()]))
                parts, lengths, size = [], array("I"), 0
    for each in stored:
        each.result()


def _join(call: Entries) -> tuple[bytes, array[int]]:
    """The bytes of a call's entries, and the length of each. Later changes of a list change neither."""
    if isinstance(call, pa.Array):
        _, offsets, data = call.buffers()
        lengths = array("I")
        lengths.frombytes(memoryview(pc.binary_length(call).buffers()[1])[: 4 * len(call)])
        ends = memoryview(offsets).cast("i")
        return bytes(memoryview(data)[ends[0] : ends[len(call)]]), lengths
    entries = tuple(call)
    assert countOf(map(type, entries), bytes) == len(entries)
    return b"".join(entries), array("I", map(len, entries))


def _produce(place: Place, calls: Sequence[Entries], threads: int) -> int:
    """Make all calls durable, and return how many batches that took."""
    store = place.open(f"run-{next(_numbers)}")
    with Producer(store, limits=ProducerLimits(concurrent_uploads=_UPLOADS)) as producer:

        def feed(share: Sequence[Entries]) -> None:
            for call in share:
                producer.produce(call)

        feeders = [Thread(target=feed, args=(calls[i::threads],)) for i in range(threads)]
        for feeder in feeders:
            feeder.start()
        for feeder in feeders:
            feeder.join()
    return Queue(store).read().count


# Time to durable, calls, requests


def _time_to_durable(bench: Bench, place: Place) -> None:
    """Call a hundred times a second, and see when each call is durable."""
    store = place.open(f"run-{next(_numbers)}")
    bench.progress(f"time to durable, {place.name}")
    entries = [os.urandom(100) for _ in range(10)]
    seconds: list[float] = []

    def timed(producer: Producer) -> None:
        start = time.perf_counter()
        producer.produce(entries).add_done_callback(lambda _: seconds.append(time.perf_counter() - start))

    trips = _round_trips(store)
    with Producer(store) as producer:
        producer.produce(entries).result()
        due = time.perf_counter()
        for _ in range(100 if bench.quick else 800):
            due += 0.01
            time.sleep(max(0.0, due - time.perf_counter()))
            timed(producer)
    trips += _round_trips(store)
    trip = statistics.median(trips)
    cuts = statistics.quantiles(seconds, n=100)
    ceiling = "interval + 2 round trips"
    bench.record(
        f"time to durable, {place.name}",
        {ceiling: [_INTERVAL + 2 * trip], "p50": [cuts[49]], "p90": [cuts[89]], "p99": [cuts[98]]},
        ceiling=ceiling,
    )
    bench.note(
        f"time to durable, {place.name}: p50 {cuts[49] * 1e3:.0f} ms, p90 {cuts[89] * 1e3:.0f} ms, p99 "
        f"{cuts[98] * 1e3:.0f} ms; interval {_INTERVAL * 1e3:.0f} ms, round trip {trip * 1e3:.1f} ms"
    )


def _round_trips(store: ObjectStore) -> list[float]:
    found = []
    for number in range(20):
        start = time.perf_counter()
        store.put(f"trip-{number % 2}", os.urandom(2000))
        found.append(time.perf_counter() - start)
    return found


def _calls(bench: Bench, place: Place) -> None:
    """How many calls a core can make, all threads and the storing included, beside the least there is to a call."""
    store = place.open(f"run-{next(_numbers)}")
    entry, amount = os.urandom(100), 20_000 if bench.quick else 200_000

    def each(entries: Entries) -> None:
        with Producer(store) as producer:
            for _ in range(amount):
                producer.produce(entries)

    def least() -> None:
        calls, blocks = _Least(), []
        for _ in range(0, amount, 1000):
            for _ in range(1000):
                calls.take(entry)
            blocks.append(b"".join([call.entry for call in calls.taken]))
            calls.taken.clear()
        place.put(f"{next(_numbers)}", zstandard.compress(b"".join(blocks)))

    group, floor = "calls", "a lock, an object and a list"
    cases = {floor: least, "one entry": lambda: each(entry), "a list of ten": lambda: each([entry] * 10)}
    bench.compare(group, cases, ceiling=floor, amount=amount, unit="calls", rounds=5, clock="cpu", rehearse=False)
    rates = {row.case: row.rate for row in bench.rows if row.group == group}
    bench.require("calls of one 100-byte entry, of 400,000 a second and core", rates["one entry"] / 400_000, least=1)


class _Least:
    """What no producer can do without: read the clock, make something to hold on to, and queue it under a lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.taken: list[_Taken] = []

    def take(self, entry: bytes) -> _Taken:
        taken = _Taken(entry, time.time_ns())
        with self._lock:
            self.taken.append(taken)
        return taken


class _Taken:
    __slots__ = ("entry", "time_ns")

    def __init__(self, entry: bytes, time_ns: int) -> None:
        self.entry = entry
        self.time_ns = time_ns


def _requests(bench: Bench, place: Place) -> None:
    calls, total = _make_calls(1024, (64 if bench.quick else 512) << 20)
    counted = FaultyStore(place.open(f"run-{next(_numbers)}"))
    with Producer(counted) as producer:
        for call in calls:
            producer.produce(call)
    each = {kind: number * 1e9 / total for kind, number in sorted(counted.calls.items())}
    listed = ", ".join(f"{kind} {number:.0f}" for kind, number in each.items())
    bench.note(f"requests for each GB of 1-KiB entries: {sum(each.values()):.0f} ({listed})")


# Four processes, one manifest


def _manifest_writes(bench: Bench, place: Place) -> None:
    run = f"run-{next(_numbers)}"
    calls = 50 if bench.quick else 400
    bench.progress(f"four producers, {place.name}")
    store = place.open(run)
    told = json.dumps({"url": store.url, "options": place.options, "calls": calls})
    workers = [_start("share", told) for _ in range(4)]
    found = [json.loads(_finish(worker)) for worker in workers]
    queue = Queue(store)
    head = queue.read()
    assert isinstance(head, Head)
    fetcher = FetchHandle(store)
    landed = [entry for batch in queue.descriptors(0, head.count) for entry in fetcher.fetch(batch).entries]
    expected = {f"{each['process']}-{number}".encode() for each in found for number in range(calls)}
    every = len(landed) == len(expected) and set(landed) == expected
    # A writer numbers its appends, and each append is one group commit.
    writes, commits = sum(each["writes"] for each in found), sum(writer.number for writer in head.writers.values())
    name = f"four producers, {place.name}"
    bench.require(f"{name}: every append landed, once", float(every), least=1)
    bench.require(f"{name}: 1.5 times the group commits, of the manifest writes", 1.5 * commits / writes, least=1)
    bench.note(f"{name}: {writes} manifest writes for {commits} group commits of {head.count} batches")


def share(told: str) -> None:
    """Append to a buffer that other processes append to as well; print what it took."""
    given = json.loads(told)
    process = os.getpid()
    store = _CountedWrites(open_store(given["url"], given["options"]), "manifest")
    with Producer(store) as producer:
        for number in range(given["calls"]):
            producer.produce(f"{process}-{number}".encode())
            time.sleep(0.02)
    print(json.dumps({"process": process, "writes": store.writes}))


class _CountedWrites(FaultyStore):
    """Counts the writes of one object, those that met another's included."""

    def __init__(self, inner: ObjectStore, key: str) -> None:
        super().__init__(inner)
        self._key = key
        self.writes = 0

    def create(self, key: str, data: Data) -> Outcome:
        self.writes += key == self._key
        return super().create(key, data)

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        self.writes += key == self._key
        return super().replace(key, data, version)


# Memory


def _memory(bench: Bench) -> None:
    kinds = [(form, data, how) for form in ("list", "Arrow") for data in ("random", "text") for how in ("hang", "slow")]
    for form, data, how in kinds[::4] if bench.quick else kinds:
        name = f"memory, {form} of {data} bytes, {_HOW[how]}"
        bench.progress(name)
        found = json.loads(_finish(_start("hold", json.dumps({"form": form, "data": data, "how": how}))))
        peak, before, held = (found[key] >> 20 for key in ("peak", "before", "held"))
        bench.require(f"{name}: bound + 150 MiB, of the peak", (_BOUND + _SLACK) / found["peak"], least=1)
        bench.note(f"{name}: peak {peak} MiB, {before} MiB before there was a producer; {held} MiB counted as buffered")


_HOW = {"hang": "puts hang", "slow": "puts take a second"}


def hold(told: str) -> None:
    """Produce as fast as the store lets, which is hardly; print the peak of memory."""
    given = json.loads(told)
    store = Drain(open_store("memory://held"), 3600.0 if given["how"] == "hang" else 1.0)
    calls = _endless_calls(given["form"], given["data"])
    next(calls)
    before, held = peak_memory(), 0
    producer = Producer(store, limits=ProducerLimits(buffered_bytes=_BOUND))
    until = time.perf_counter() + _HOLD_SECONDS
    with suppress(Timeout):
        while time.perf_counter() < until:
            producer.produce(next(calls), timeout=_HOLD_SECONDS / 2)
            held = max(held, producer.buffered_bytes)
    print(json.dumps({"before": before, "peak": peak_memory(), "held": held}), flush=True)
    os._exit(0)  # its store would not let it close


class Drain(FaultyStore):
    """Takes its time over a batch and then forgets it: what is measured is the producer's memory, not the store's."""

    def __init__(self, inner: ObjectStore, seconds: float) -> None:
        super().__init__(inner)
        self._seconds = seconds

    def put(self, key: str, data: Data) -> str:
        if not key.startswith("data/"):
            return super().put(key, data)  # the schema of a typed buffer
        time.sleep(self._seconds)
        return f"{key}, {len(data)} bytes"


def _endless_calls(form: str, data: str) -> Iterator[Entries]:
    """Calls of 1,024 entries of 1 KiB, made on the way: nothing but the producer keeps them."""
    for number in count():
        if data == "random":
            whole = os.urandom(1 << 20)
        else:
            whole = b"".join(b'{"number": %d, "of": %d}\n' % (i, number) for i in range(40_000))[: 1 << 20]
        entries = [whole[i : i + 1024] for i in range(0, len(whole), 1024)]
        del whole
        yield entries if form == "list" else pa.array(entries, pa.binary())
        del entries


def peak_memory() -> int:
    """The most memory that this process has had in use, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _start(name: str, told: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, name, told], stdout=subprocess.PIPE, text=True)


def _finish(worker: subprocess.Popen[str]) -> str:
    out, _ = worker.communicate(timeout=120)
    if worker.returncode:
        raise RuntimeError(f"a measured process ended with status {worker.returncode}")
    return out


if __name__ == "__main__":
    from memory import NoPandas

    sys.meta_path.insert(0, NoPandas())  # forebay does not need it, and pyarrow imports it if it is there
    {"share": share, "hold": hold}[sys.argv[1]](sys.argv[2])
