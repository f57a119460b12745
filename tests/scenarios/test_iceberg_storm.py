"""Exactly once into Iceberg under everything at once: kills, double starts, and faults of the catalog and both stores.

Meanwhile others write to the table, and old snapshots expire. The rows are counted by pyiceberg, and by DuckDB from the
files of the table's newest snapshot (rfcs/0011).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Queue
from random import Random

import duckdb
import pyarrow as pa
import pytest
from patience import PATIENCE
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from runtime_child import CONFIG, GROUP, TABLE, catalog_in

from forebay.buffer.base.errors import Unavailable
from forebay.buffer.producer import Producer
from forebay.runtime import Combining, Commit, Committed, Fatal, IcebergSink, Runtime, Source
from forebay.testing import WRITE_FAULTS, FaultyCatalog
from forebay.testing.commits import make_batch, make_commit

CHILD = Path(__file__).with_name("iceberg_child.py")
OTHERS = b"another writer's"


class Nursery:
    """Starts runtimes and kills them. See `iceberg_child.py`."""

    def __init__(self, source: str, target: str, ledger: Path) -> None:
        command = [sys.executable, str(CHILD), source, target, str(ledger)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def command(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def next_line(self) -> tuple[int, str]:
        pid, _, text = self._lines.get(timeout=PATIENCE).strip().partition(" ")
        assert not text.startswith("failed"), text
        return int(pid), text

    def start(self, seed: int) -> int:
        self.command(f"start {seed}")
        while True:
            pid, text = self.next_line()
            if text == "born":
                return pid  # its end, if it ends at once, is noticed by `watch`

    def watch(self, pid: int, commits: int, feed: Callable[[], None]) -> None:
        """Feed a runtime until it has made this number of attempts to commit, or has ended."""
        deadline = time.monotonic() + PATIENCE
        while commits:
            assert time.monotonic() < deadline, "the runtime does nothing"
            if self._lines.empty():
                feed()
                continue
            found, text = self.next_line()
            if found == pid and text in ("dies", "ended"):
                return
            commits -= found == pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so nobody else has this id
        self.command(f"reap {pid}")
        while self.next_line() != (pid, "reaped"):
            pass

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def feed(producer: Producer, produced: list[bytes]) -> None:
    """Produce one batch."""
    entries = [b"%08d" % number for number in range(len(produced), len(produced) + 20)]
    producer.produce(entries)
    producer.flush().wait()
    produced.extend(entries)


def disturb(catalog: Catalog, number: int) -> None:
    """Another program appends a row of its own, and lets old snapshots expire."""
    try:
        table = catalog.load_table(TABLE)
    except NoSuchTableError:
        return
    columns = table.schema().as_arrow()
    row = {"value": OTHERS, "sequence": 0, "index": 0, "ingestion_time": datetime(2026, 1, 1, tzinfo=UTC)}
    with suppress(CommitFailedException):  # a runtime that is still alive may commit at the same time
        with table.transaction() as change:
            change.set_properties({"owner": f"number {number}"})
        table.append(pa.Table.from_pylist([row], schema=columns))
        table.maintenance.expire_snapshots().older_than(datetime(2999, 1, 1, tzinfo=UTC)).commit()


def count_rows(catalog: Catalog) -> Counter[bytes]:
    scan = catalog.load_table(TABLE).scan()
    found: list[bytes] = scan.to_arrow()["value"].to_pylist()
    files = [task.file.file_path for task in scan.plan_files()]
    assert len(set(files)) == len(files), "a file is there twice"
    read = duckdb.execute("SELECT value, count(*) FROM read_parquet(?) GROUP BY value", [files]).fetchall()
    assert dict(read) == Counter(found), "DuckDB counts other rows than pyiceberg"
    return Counter(found)


def check_storm(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill runtimes at random; every other one still lives when the next one takes over. Returns the faults."""
    source, target, ledger = f"file://{folder}/source", f"file://{folder}/target", folder / "faults"
    random, nursery = Random(seed), Nursery(source, target, ledger)
    alive: list[int] = []
    produced: list[bytes] = []
    killed = 0
    with load_catalog("default", **catalog_in(target)) as catalog:
        try:
            with Producer(source) as producer:
                while killed < kills:
                    feed(producer, produced)
                    alive.append(nursery.start(seed * 1_000_000 + killed))
                    nursery.watch(alive[-1], random.randrange(1, 6), partial(feed, producer, produced))
                    while len(alive) > random.randrange(2):
                        nursery.kill(alive.pop(0))
                        killed += 1
                    if killed % 5 == 0:
                        disturb(catalog, killed)
            for pid in alive:
                nursery.kill(pid)
        finally:
            nursery.close()
        with IcebergSink(catalog, TABLE, combining=Combining(1 << 20, max_seconds=0.05)) as sink:
            Runtime([Source(source, group=GROUP, takeover=True)], sink, CONFIG).run(
                until_caught_up=True, show_progress=False
            )
        found = count_rows(catalog)
    found.pop(OTHERS, None)
    assert found == Counter(produced), "rows are lost or doubled"
    return Counter(ledger.read_text().splitlines())


def test_killed_replaced_and_failed_at_random_a_table_holds_every_entry_once(tmp_path: Path) -> None:
    faults = check_storm(tmp_path, kills=4, seed=1)
    assert sum(faults.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_five_hundred_times_a_table_holds_every_entry_once(tmp_path: Path) -> None:
    faults = check_storm(tmp_path, kills=500, seed=2)
    assert sum(faults.values()) >= 500


# Faults only, without processes: many more of them in the same time


def commit_of(first: int, last: int) -> Commit:
    return make_commit(*(make_batch([b"%08d" % number], number) for number in range(first, last + 1)))


def ranges(random: Random, end: int) -> list[tuple[int, int]]:
    found, first = [], 0
    while first < end:
        last = min(first + random.randrange(4), end - 1)
        found.append((first, last))
        first = last + 1
    return found


def land(faulty: FaultyCatalog, wanted: list[tuple[int, int]], stop: threading.Event) -> None:
    """What a runtime does with a sink, at once and without pauses."""
    sink = IcebergSink(faulty, TABLE)
    for first, last in wanted:
        commit = commit_of(first, last)
        while not stop.is_set():
            try:
                if sink.check_committed(commit.identity):
                    break
                answer = sink.commit(commit)
            except (Unavailable, RuntimeError):
                continue
            assert not isinstance(answer, Fatal), answer
            if answer == Committed():
                break


def check_faults(folder: Path, rivals: int, faults: int, seed: int) -> int:
    """Several sinks commit the same ranges of the same reader, each with its own faults, until there were enough."""
    injected, rounds = 0, 0
    with load_catalog("default", **catalog_in(f"file://{folder}")) as catalog:
        while injected < faults:
            if rounds:
                catalog.drop_table(TABLE)
            wanted = ranges(Random(seed + rounds), 40)
            catalogs = [
                FaultyCatalog.seeded(catalog, 1000 * (seed + rounds) + number, rate=0.4, faults=WRITE_FAULTS)
                for number in range(rivals)
            ]
            stop = threading.Event()
            with ThreadPoolExecutor(rivals) as sinks:
                running = [sinks.submit(land, faulty, wanted, stop) for faulty in catalogs]
                try:
                    for future in running:
                        future.result()
                finally:
                    stop.set()
            for faulty in catalogs:
                faulty.land_late_requests()
                injected += faulty.faults.total()
            assert count_rows(catalog) == Counter(b"%08d" % number for number in range(40))
            rounds += 1
    return injected


def test_two_runtimes_at_once_with_a_catalog_that_fails_land_everything_once(tmp_path: Path) -> None:
    assert check_faults(tmp_path, rivals=2, faults=30, seed=1) >= 30


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_five_thousand_faults_of_the_catalog_lose_and_double_nothing(tmp_path: Path) -> None:
    assert check_faults(tmp_path, rivals=3, faults=5000, seed=2) >= 5000
