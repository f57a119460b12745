"""The two ends of a large backlog, each a process of its own, and what the load tests measure.

python load.py produce|consume URL bytes|rows BATCHES ENTRIES ENTRY_BYTES

A process writes a line with what it measured, now and then: JSON, to its standard output.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))  # for a process of its own
from kinds import BYTES, ROWS, values_of

from forebay.buffer.consumer import Consumer
from forebay.buffer.producer import Producer
from forebay.buffer.write.settings import ProducerLimits


def usage() -> dict[str, int]:
    """What this process holds: memory that is resident, open files, threads."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": pages * resource.getpagesize(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names alone
        "threads": threading.active_count(),
    }


def peak_rss() -> int:
    """The most memory that was ever resident, in bytes; `ru_maxrss` counts what there was before an exec, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def say(**told: Any) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def start(role: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process of this file."""
    command = [sys.executable, __file__, role, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told_by(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a process says until it ends, as it must, well."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    assert process.wait() == 0


def produce(url: str, holds: str, batches: str, entries: str, entry_bytes: str) -> None:
    """Produce batches of large entries that compress well: each has its number, and else one letter."""
    count, size = int(entries), int(entry_bytes)
    (kind,) = (kind for kind in (BYTES, ROWS) if kind.name == holds)
    with Producer(
        url,
        schema=kind.schema,
        flush_interval=3600,
        flush_size_bytes=count * size * 2,
        limits=ProducerLimits(buffered_bytes=3 * count * size),
    ) as out:
        for batch in range(int(batches)):
            filler = bytes([97 + batch % 26]) * (size - 16)
            values = pa.array([b"%016d" % (batch * count + i) + filler for i in range(count)], pa.binary())
            out.produce(values if kind is BYTES else pa.table([values], schema=kind.schema))
            out.flush()
            if batch % max(1, int(batches) // 40) == 0:
                say(done=batch, **usage())
    say(done=int(batches), peak=peak_rss(), **usage())


def consume(url: str, _holds: str, batches: str, entries: str, entry_bytes: str) -> None:
    """Read this number of batches with workers, a few ahead, and check that every entry is the next one."""
    total, count, size, done = int(batches), int(entries), int(entry_bytes), 0
    tick = threading.Event()
    with Consumer(url, group="load") as consumer, ThreadPoolExecutor(2) as workers:
        fetch = consumer.fetch_handle().fetch
        while done < total:
            descriptors = consumer.next_descriptors(4)
            if not descriptors:
                tick.wait(0.05)
                continue
            for batch in workers.map(fetch, descriptors):
                first, *_, last = values_of(batch)
                assert (len(batch), len(first)) == (count, size)
                assert [int(first[:16]), int(last[:16])] == [done * count, (done + 1) * count - 1]
                done += 1
                if done % max(1, total // 40) == 0:
                    say(done=done, behind=consumer.lag().batches, **usage())
                del batch
            consumer.ack_through(descriptors[-1].sequence)
            gc.collect()
    say(done=done, peak=peak_rss(), **usage())


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """The means of the first and of the last quarter, each of at least one value."""
    size = max(1, len(values) // 4)
    return sum(values[:size]) / size, sum(values[-size:]) / size


if __name__ == "__main__":
    ROLES = {"produce": produce, "consume": consume}
    ROLES[sys.argv[1]](*sys.argv[2:])
