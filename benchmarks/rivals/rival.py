"""What every rival does, and what several of them share."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL = 0.1
"""Seconds between flushes, where time to durable is measured."""
THREADS = 4
"""Number of threads that upload, as in a producer by default, and of threads that read."""


class Rival(ABC):
    """One way to hand events over: written and read in one process each."""

    threads = 1
    """Flushes under way at once."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self.folder = folder
        """A place of its own, as a URL."""
        self.options = options
        """forebay's storage options; empty on a folder."""

    @abstractmethod
    def append(self, entries: list[bytes]) -> None:
        """Make one flush durable."""

    @abstractmethod
    def read(self) -> int:
        """Read everything into Arrow, and return how many entries that was."""

    def write(self, calls: Iterator[list[bytes]], calls_each: int) -> None:
        """Make all calls durable, `calls_each` of them in each flush."""
        with ThreadPoolExecutor(self.threads) as pool:
            flushes = iter(lambda: list(islice(calls, calls_each)), [])
            waiting = [pool.submit(self.append, list(chain.from_iterable(flush))) for flush in flushes]
        for flush in waiting:
            flush.result()

    def write_paced(self, calls: Iterator[list[bytes]], record: Callable[[float], None]) -> None:
        """Make calls durable as they come, a flush each interval, and record when each call began once it is."""
        taken: list[tuple[float, list[bytes]]] = []
        lock, ended = Lock(), Event()

        def flush_often() -> None:
            last, due = False, time.perf_counter()
            while not last:
                due = max(due + INTERVAL, time.perf_counter())
                last = ended.wait(due - time.perf_counter())
                with lock:
                    flush = taken.copy()
                    taken.clear()
                if flush:
                    self.append([entry for _, call in flush for entry in call])
                for began, _ in flush:
                    record(began)

        flusher = Thread(target=flush_often)
        flusher.start()
        for call in calls:
            with lock:
                taken.append((time.perf_counter(), call))
        ended.set()
        flusher.join()

    def server_use(self) -> tuple[float, int]:
        """Processor seconds and peak memory of a server that the user would have to run."""
        return 0.0, 0

    def close(self) -> None:  # noqa: B027  (most have nothing open)
        """Let go of what was opened."""


def make_table(entries: list[bytes]) -> pa.Table:
    """A flush as Arrow has it."""
    return pa.table({"value": pa.array(entries, pa.binary())})


def encode(entries: list[bytes]) -> pa.Buffer:
    """A flush as a Parquet file, without what unlike events only waste time on."""
    data = pa.BufferOutputStream()
    pq.write_table(
        make_table(entries), data, compression="zstd", compression_level=3, use_dictionary=False, write_statistics=False
    )
    return data.getvalue()


def decode(data: Any) -> int:
    """Read such a file into Arrow, and return how many entries it holds."""
    entries: int = pq.read_table(pa.BufferReader(data), use_threads=False).num_rows
    return entries


def put_synced(path: Path, data: Any) -> None:
    """A file that is there as a whole or not at all, and survives a crash: what forebay's own store promises."""
    hidden = path.with_name(f".{path.name}.tmp")
    with hidden.open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
    hidden.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def peak_memory(process: int) -> int:
    """The most that a process has had in memory, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
