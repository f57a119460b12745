"""A process with runtimes is killed at random while a producer goes on: nothing is lost or doubled (rfcs/0007)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from forebay.buffer.errors import NotFound
from forebay.buffer.groups import Groups
from forebay.buffer.producer import Producer

CHILD = textwrap.dedent("""
    import os, sys, threading
    from forebay.runtime import CallableSink, Combining, DeltaSink, ParquetSink, Runtime, RuntimeConfig, Source

    url, out, ending = sys.argv[1], sys.argv[2], sys.argv[3] == "end"
    config = RuntimeConfig(
        ack_seconds=0.05, ack_every=3, max_poll_interval=0.05, descriptors_per_look=4, max_batches=16
    )
    combining = Combining(1500, max_seconds=0.1)
    log = os.open(f"{out}/seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def see(commit):
        rows = " ".join(value.decode() for value in commit.table["value"].to_pylist())
        os.write(log, f"{commit.identity.first} {rows}\\n".encode())

    sinks = {
        "callable": CallableSink(see),
        "parquet": ParquetSink(f"file://{out}/parquet", combining=combining),
        "delta": DeltaSink(f"file://{out}/delta", combining=combining),
    }
    failed = []

    def run(group, sink):
        try:
            Runtime([Source(url, group=group)], sink, config).run(until_caught_up=ending, show_progress=False)
        except BaseException as error:
            failed.append(f"{group}: {error!r}")

    threads = [threading.Thread(target=run, args=item) for item in sinks.items()]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    print(failed, flush=True)
""")


class Service:
    """Produces numbered entries for as long as the test goes on."""

    def __init__(self, url: str) -> None:
        self.durable = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with Producer(self._url, flush_interval=0.02) as producer:
            while not self._stop.wait(0.01):
                entries = [f"{number}".encode() for number in range(self.durable, self.durable + 20)]
                producer.produce(entries).result(timeout=60)
                self.durable += len(entries)


def start(url: str, folder: Path, mode: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, str(folder), mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        pytest.fail(child.communicate()[1])
    return child


def seen_lines(folder: Path) -> list[list[int]]:
    whole = (folder / "seen").read_text() if (folder / "seen").exists() else ""
    return [[int(word) for word in line.split()] for line in whole.splitlines()]


def check_not_ahead(url: str, folder: Path) -> None:
    """What is acknowledged was seen, or is in a file."""
    try:
        done = {state.name: range(0 if state.acked is None else state.acked + 1) for state in Groups(url).list()}
    except NotFound:
        return
    seen = {line[0] for line in seen_lines(folder)}
    assert set(done.get("callable", ())) <= seen
    ranges = [path.stem.rpartition(".")[2].split("-") for path in (folder / "parquet").glob("*.parquet")]
    filed = {number for first, last in ranges for number in range(int(first), int(last) + 1)}
    assert set(done.get("parquet", ())) <= filed


def check_kills(folder: Path, kills: int, seed: int) -> None:
    url = f"file://{folder}/buffer"
    random = Random(seed)
    service = Service(url)
    try:
        for _ in range(kills):
            child = start(url, folder, "go on")
            threading.Event().wait(random.uniform(0.0, 0.6))
            child.kill()
            child.wait()
            check_not_ahead(url, folder)
    finally:
        service.stop()
    out, trouble = start(url, folder, "end").communicate(timeout=100)
    assert out == "[]\n", trouble
    expected = list(range(service.durable))
    files = [pq.read_table(path)["value"].to_pylist() for path in (folder / "parquet").glob("*.parquet")]
    assert sorted(int(value) for values in files for value in values) == expected
    table = DeltaTable(str(folder / "delta")).to_pyarrow_table(columns=["value"])
    assert sorted(map(int, table["value"].to_pylist())) == expected
    counted = Counter(number for line in seen_lines(folder) for number in line[1:])
    assert sorted(counted) == expected, "the callable sees each at least once"
    assert [state.waiting for state in Groups(url).list()] == [0, 0, 0]


def test_killed_at_random_parquet_and_delta_hold_everything_once_and_a_function_sees_everything(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=10, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_a_hundred_times_parquet_and_delta_hold_everything_once(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=100, seed=2)
