"""Spark on an S3 server behind a bad network: answers get lost, drivers are killed, and counts are exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from bad_network import bad_network
from fault_job import ROWS
from patience import wait_for
from read_job import frontier_of
from spark_kinds import SCHEMAS, fill, make, values_in
from spark_place import Place

from forebay.buffer.groups import Groups
from forebay.buffer.store import ObjectStore
from forebay.testing.proxy import FaultProxy
from forebay.testing.servers import SeaweedServer

pytestmark = pytest.mark.matrix

SEED = 22
KILLS = 6
LONG = (pytest.mark.slow, pytest.mark.timeout(2400))
BATCHES = 20
"""Batches that are added in each life of the driver, of five entries each."""


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def acknowledged(store: ObjectStore) -> int:
    """How many batches the stream has acknowledged; 0 before its group exists."""
    return frontier_of(store) if any(group.name == "etl" for group in Groups(store).list()) else 0


def has_moved_on(running: subprocess.Popen[bytes], store: ObjectStore, batches: int) -> bool:
    """Whether the stream has acknowledged more than this number of batches, or the driver has ended."""
    return acknowledged(store) > batches or running.poll() is not None


@contextmanager
def driver(place: Place, folder: Path, life: int, last: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A driver with a session of its own, killed at the end with all that it started."""
    job = Path(__file__).with_name("fault_job.py")
    with (folder / f"log-{life}").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, str(job), json.dumps(place.options), str(folder), str(life), last],
            start_new_session=True,
            stderr=log,
        )
        try:
            yield started
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def ended_by_the_network(folder: Path, life: int) -> None:
    """A driver may give up: a store out of reach, or a write in doubt. No other error is one of the network's."""
    log = (folder / f"log-{life}").read_text(errors="replace")
    assert "Unavailable" in log or "Unknown" in log, log[-3000:]


@pytest.mark.parametrize(
    ("kind", "kills"), [("bytes", 1), *(pytest.param(kind, KILLS, marks=LONG) for kind in SCHEMAS)]
)
def test_killed_drivers_on_a_bad_network_lose_and_double_nothing(
    weed: SeaweedServer, tmp_path: Path, kind: str, kills: int
) -> None:
    random = Random(SEED)
    direct = Place(f"s3://tests/faults-{os.getpid()}-{kind}-{kills}", weed.storage_options)
    streamed, written = (Place(f"{direct.url}-{name}", weed.storage_options) for name in ("streamed", "written"))
    make(streamed, kind)
    make(written, kind)
    store = direct.open()
    total = 0
    with FaultProxy(weed.endpoint_url, bad_network(SEED)) as proxy:
        through = {**weed.storage_options, "endpoint_url": proxy.endpoint_url, "read_timeout": 2.0}
        place = Place(direct.url, through)
        for life in range(kills):
            numbers = range(total, total + 5 * BATCHES)
            fill(
                direct, kind, ([b"%d" % number for number in numbers[at : at + 5]] for at in range(0, len(numbers), 5))
            )
            total += len(numbers)
            with driver(place, tmp_path, life) as running:
                wait_for(partial(has_moved_on, running, store, life * BATCHES))
                threading.Event().wait(random.uniform(0, 4))  # which moment the kill meets
                if running.poll() is not None:
                    ended_by_the_network(tmp_path, life)
        for life in range(kills, kills + 20):
            with driver(place, tmp_path, life, "last") as running:
                if running.wait() == 0:
                    break
                ended_by_the_network(tmp_path, life)
        else:
            pytest.fail("the network ended 20 drivers in a row")
        assert len(proxy.answered) < len(proxy.requests), "requests were lost"

    assert sorted(map(int, values_in(streamed))) == list(range(total)), "each row was streamed once"
    assert frontier_of(store) * 5 == total, "all of it is acknowledged"

    reads = lines(tmp_path / "read")
    assert f"{total} True" in reads
    assert all(read.endswith("True") for read in reads), "each batch read had every row in front of its end once"

    entries = values_in(written)
    assert len(set(entries)) == len(entries), "no row was written twice"
    counts = Counter(entry.decode().rpartition("-")[0] for entry in entries)
    assert set(counts.values()) == {ROWS}, "each job's rows are all there, or none"
    started, reported = lines(tmp_path / "started"), lines(tmp_path / "written")
    assert set(reported) <= set(counts) <= set(started), "what was reported as written is there"
