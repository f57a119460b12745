"""How many batches a second does a group read from a store far away, and does its memory stay within the budget?

The store is in memory, with 30 ms for each read and 50 ms for each write: about what S3 takes from another region. A
default producer makes ten batches a second, so a reader below that falls behind for ever. The backlog is of batches of
1 KB, so that only requests count. *One by one* is a look, a get and a durable ack for each batch, as without reading
ahead. For the memory, a process reads 64 batches of 8 MiB that do not compress, slowly, so that its budget is always
used up. It tells the most that Arrow's pool ever held, which all batches are in, and by how much the process grew. The
budget does not count the batch that was handed over, nor the object of the batch that is being decoded.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay import Consumer, Producer, ReadAhead
from forebay.buffer import TopicConsumer, create_topic
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic
from forebay.testing import SlowStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Bench

    from forebay.buffer.store import ObjectStore

_PARTITIONS = 4
_SERIAL = "one by one, ack_through"


def run(bench: Bench) -> None:
    store = MemoryStore("memory://keep-up/buffer")
    topic = MemoryStore("memory://keep-up/topic")
    count = 100 if bench.quick else 1000
    _fill(store, count)
    create_topic(topic, _PARTITIONS)
    for number in range(_PARTITIONS):
        _fill(Topic(topic).partition(number), count // _PARTITIONS)
    cases: dict[str, tuple[ObjectStore, int, Callable[[SlowStore, str, int], int]]] = {
        _SERIAL: (store, 40, _read_serially),
        "for, ack": (store, count, _read_and_ack),
        "for, ack_through": (store, min(count, 300), _read_and_ack_through),
        "async for, ack": (store, count, _read_async),
        f"topic of {_PARTITIONS}, ack": (topic, count, _read_topic),
    }
    rounds = 1 if bench.quick else 3
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    gets: dict[str, float] = {}
    for number in range(rounds):
        for case, (inner, wanted, read) in cases.items():
            bench.progress(f"{case}, round {number + 1} of {rounds}")
            slow = SlowStore(inner)
            began = time.perf_counter()
            found = read(slow, f"{read.__name__}-{number}", wanted)
            seconds[case].append((time.perf_counter() - began) / found)
            gets[case] = (slow.calls["get"] + slow.calls["get_if_changed"]) / found
    bench.record("batches each second, from opening to closing", seconds, ceiling=_SERIAL)
    rates = {row.case: row.rate for row in bench.rows}
    for case, rate in rates.items():
        bench.note(f"{case}: {rate:,.0f} batches/s, {gets[case]:.2f} GETs a batch")
        if case != _SERIAL:
            bench.require(f"{case}: batches a second", rate, least=15 if "through" in case else 100)
            bench.require(f"{case}: batches for 1.1 GETs", 1.1 / gets[case], least=1.0)
    _memory(bench)


def _fill(store: ObjectStore, count: int) -> None:
    data = encode_batch([b"0" * 1000], "none")
    facts = Facts(len(data), 1004, 1, crc32c(data), 0, 0)
    keys = [f"data/{number:026}.batch" for number in range(count)]
    for key in keys:
        store.put(key, data)
    Queue(store).append([NewBatch(key, (), facts) for key in keys])


def _read_serially(store: SlowStore, group: str, wanted: int) -> int:
    with Consumer(store, group=group) as consumer:
        for _ in range(wanted):
            batch = consumer.next_batch()
            assert batch is not None
            consumer.ack_through(batch.sequence)
    return wanted


def _read_and_ack(store: SlowStore, group: str, wanted: int) -> int:
    with Consumer(store, group=group) as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)
        assert batch.sequence + 1 == wanted
    return wanted


def _read_and_ack_through(store: SlowStore, group: str, wanted: int) -> int:
    first = Queue(store.inner).read().next_sequence - wanted
    with Consumer(store, group=group, from_=first) as consumer:
        for batch in consumer:
            consumer.ack_through(batch.sequence)
        assert batch.sequence - first + 1 == wanted
    return wanted


def _read_async(store: SlowStore, group: str, wanted: int) -> int:
    async def read() -> int:
        found = 0
        async with Consumer(store, group=group) as consumer:
            async for batch in consumer:
                consumer.ack(batch.sequence)
                found += 1
        return found

    found = asyncio.run(read())
    assert found == wanted
    return found


def _read_topic(store: SlowStore, group: str, wanted: int) -> int:
    found = 0
    with TopicConsumer(store, group=group) as consumer:
        for partition, batch in consumer:
            consumer.ack(partition, batch.sequence)
            found += 1
    assert found == wanted
    return found


# Memory

_BATCH_BYTES = 8 << 20
_BUDGET = 64 << 20


def _memory(bench: Bench) -> None:
    bench.progress("memory")
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/buffer"
        random = Random(0)
        with Producer(url) as producer:
            for _ in range(24 if bench.quick else 64):
                producer.produce(random.randbytes(_BATCH_BYTES))
                producer.flush().result()
        program = "import sys, keep_up; keep_up.read_slowly(sys.argv[1])"
        found = subprocess.run(
            [sys.executable, "-c", program, url], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    figures = json.loads(found.stdout)
    allocated, grown = figures["allocated"], figures["peak"] - figures["before"]
    bench.note(
        f"memory: a budget of {_BUDGET >> 20} MiB took {allocated / 2**20:.0f} MiB of Arrow's pool, and the process "
        f"grew by {grown / 2**20:.0f} MiB"
    )
    bench.require("the budget and two batches, of the pool", (_BUDGET + 2 * _BATCH_BYTES) / allocated, least=1.0)


def read_slowly(url: str) -> None:
    """Read a backlog in this process, each batch after the budget is used up; print the peak of memory."""
    with Consumer(url, group="memory", read_ahead=ReadAhead(max_bytes=_BUDGET)) as consumer:
        batch = consumer.next_batch()
        before = _peak_memory()
        consumer.seek(0)
        for batch in consumer:
            time.sleep(0.05)
            consumer.ack(batch.sequence)
    allocated = pa.default_memory_pool().max_memory()
    print(json.dumps({"before": before, "peak": _peak_memory(), "allocated": allocated}))


def _peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
