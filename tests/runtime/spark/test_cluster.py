"""A standalone cluster, master and workers as processes, on a real S3 server: every job loses an executor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import cluster
from cluster_job import ROWS
from read_job import frontier_of
from spark_kinds import SCHEMAS, fill, make, values_in
from spark_place import Place
from write_job import head_of

from forebay.testing.servers import SeaweedServer

pytestmark = pytest.mark.matrix

BATCHES = [[b"%02d-%02d" % (number, entry) for entry in range(50)] for number in range(12)]
ENTRIES = [entry for batch in BATCHES for entry in batch]


class Cluster:
    """A cluster that runs the jobs of cluster_job.py on one S3 server."""

    def __init__(self, master: str, folder: Path, server: SeaweedServer) -> None:
        self._master = master
        self._folder = folder
        self._server = server

    def place(self, name: str) -> Place:
        return Place(f"s3://tests/cluster-{os.getpid()}-{name}", self._server.storage_options)

    def run(self, job: str, place: Place, folder: Path) -> str:
        """Run a job, one of whose executors is killed. Return what it wrote; no secret is in anything that it shows."""
        (folder / "events").mkdir()
        ran = subprocess.run(
            [
                *(sys.executable, Path(__file__).with_name("cluster_job.py")),
                *(self._master, json.dumps(place.options), folder, job),
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, "".join(ran.stderr.partition("Traceback")[1:])[:3000]
        assert "Command exited with code 137" in ran.stderr, "an executor was killed"
        events = "".join(path.read_text(errors="replace") for path in (folder / "events").rglob("*") if path.is_file())
        assert "SparkListenerSQLExecutionStart" in events, "what the UI shows is in the event log"
        logs = [path.read_text(errors="replace") for path in (self._folder / "work").rglob("stderr")]
        assert logs, "the executors have logs"
        assert self._server.storage_options["secret"] not in "".join([ran.stdout, ran.stderr, events, *logs])
        return ran.stdout


@pytest.fixture(scope="module")
def clustered(weed: SeaweedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder) as master:
        yield Cluster(master, folder, weed)


def test_executor_killed_while_it_reads_loses_no_row(clustered: Cluster, tmp_path: Path) -> None:
    place = clustered.place("read")
    fill(place, "bytes", BATCHES)
    assert "BatchScan forebay" in clustered.run("read", place, tmp_path)
    assert json.loads((tmp_path / "found").read_text()) == [entry.decode() for entry in ENTRIES]


def test_executor_killed_while_it_writes_loses_and_doubles_no_row(clustered: Cluster, tmp_path: Path) -> None:
    place = clustered.place("write")
    clustered.run("write", place, tmp_path)
    assert values_in(place) == [b"%d" % number for number in range(ROWS)]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_executor_killed_while_it_streams_loses_and_doubles_no_row(
    clustered: Cluster, kind: str, tmp_path: Path
) -> None:
    source, copy = clustered.place(kind), clustered.place(f"{kind}-streamed")
    fill(source, kind, BATCHES)
    make(copy, kind)
    clustered.run("stream", source, tmp_path)
    assert sorted(values_in(copy)) == ENTRIES
    assert head_of(copy.open()).next_record == len(ENTRIES)
    assert frontier_of(source.open()) == len(BATCHES)
