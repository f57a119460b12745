"""The examples, run as a reader would run them."""

from __future__ import annotations

import re
import runpy
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import uvicorn
from patience import PATIENCE, wait_for

from forebay import Consumer, ProducerLimits, open_store
from forebay.testing import Fault, FaultyStore

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        input=stdin, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/buffer"


def entries_at(url: str) -> list[bytes]:
    return [entry for batch in Consumer(url) for entry in batch.entries]


def test_plain_script_prints_what_it_wrote(url: str) -> None:
    assert run("plain_script.py", url).split("\n")[:2] == ['0 {"page": "/"}', '0 {"page": "/cart"}']
    assert entries_at(url) == []


def test_log_shipper_stores_every_line_the_last_one_without_an_end_too(url: str) -> None:
    lines = [f"line {i}".encode() for i in range(20_000)] + [b"", b"no newline"]
    run("log_shipper.py", url, stdin=b"\n".join(lines))
    assert entries_at(url) == lines


def post(port: int, body: bytes) -> int:
    """Send an event to the web service, and return the status of its answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", data=body, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_web_service_answers_when_the_event_is_durable_and_stops_cleanly(url: str) -> None:
    service = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "web_service.py"), url, "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert service.stderr is not None
        port = next(found[1] for line in service.stderr if (found := re.search(r"running on http://.*:(\d+)", line)))
        with ThreadPoolExecutor(8) as clients:
            statuses = list(clients.map(lambda i: post(int(port), b"event %d" % i), range(40)))
        assert statuses == [202] * 40
        service.send_signal(signal.SIGTERM)
        assert "Application shutdown complete" in service.stderr.read()
    finally:
        service.kill()
        service.wait()
    assert sorted(entries_at(url)) == sorted(b"event %d" % i for i in range(40))


@contextmanager
def web_service(buffer: object, **settings: Any) -> Iterator[int]:
    """The web service in a thread, on a port of its own."""
    app = runpy.run_path(str(EXAMPLES / "web_service.py"))["make_app"](buffer, **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_web_service_says_503_while_nobody_reads(url: str) -> None:
    with web_service(url, limits=ProducerLimits(backlog_bytes=1)) as port:
        assert post(port, b"stored") == 202
        assert post(port, b"refused") == 503
    assert entries_at(url) == [b"stored"]


def test_web_service_says_503_while_the_store_is_slow_and_keeps_what_it_took() -> None:
    store = FaultyStore(open_store("memory://web-service"), {0: Fault.STALL}, only={"put"})
    with web_service(store, limits=ProducerLimits(buffered_bytes=1)) as port, ThreadPoolExecutor(1) as client:
        taken = client.submit(post, port, b"taken")
        wait_for(lambda: store.faults[Fault.STALL])
        assert post(port, b"refused") == 503
        store.release()
        assert taken.result() == 202
    assert [entry for batch in Consumer(store) for entry in batch.entries] == [b"taken"]


def test_json_to_parquet_writes_every_event_once_however_often_it_runs(url: str, tmp_path: Path) -> None:
    for total in (1000, 2000):
        assert "1000 rows in 1 commit" in run("json_to_parquet.py", url, f"file://{tmp_path}/files")
        table = pq.read_table(tmp_path / "files")
        assert table.num_rows == total
        assert {"page", "user", "at", "ingestion_time", "ingestion_date"} == set(table.column_names)


def test_json_to_delta_writes_every_event_once_and_keeps_what_is_no_json(url: str, tmp_path: Path) -> None:
    table = f"file://{tmp_path}/table"
    assert run("json_to_delta.py", url, table) == "1000 rows at version 1; 1 dead letters\n"
    assert run("json_to_delta.py", url, table) == "2000 rows at version 2; 1 dead letters\n"
    assert entries_at(f"{url}-dead") == [b"this is no JSON"] * 2


def test_typed_to_iceberg_lands_every_event_once_and_duckdb_counts_them(url: str, tmp_path: Path) -> None:
    for visits in (400, 800):
        told = run("typed_to_iceberg.py", url, f"{tmp_path}/lake")
        assert told.splitlines() == [f"/ {visits}", f"/cart {visits // 2}", f"/pay {visits // 4}"]


def test_delta_new_column_adds_it_on_the_way_and_keeps_older_rows(url: str, tmp_path: Path) -> None:
    told = run("delta_new_column.py", url, f"file://{tmp_path}/table")
    assert told == "200 rows in the columns page, user, referrer; 100 have a referrer\n"


def test_events_to_function_counts_every_event(url: str) -> None:
    assert run("events_to_function.py", url).split("\n")[:3] == ["750 /", "750 /cart", "250 /checkout"]
