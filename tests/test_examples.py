"""The examples, run as a reader would run them."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from patience import PATIENCE

from forebay import Consumer

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


def test_web_service_answers_when_the_event_is_durable_and_stops_cleanly(url: str) -> None:
    service = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "web_service.py"), url, "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert service.stdout is not None
        port = service.stdout.readline().split()[-1]

        def post(body: bytes) -> int:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", data=body, timeout=PATIENCE) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                return refused.code

        with ThreadPoolExecutor(8) as clients:
            statuses = list(clients.map(post, [b"event %d" % i for i in range(40)]))
        assert statuses == [202] * 40
        service.send_signal(signal.SIGTERM)
        assert "everything is stored" in service.stdout.read()
        assert service.wait() == 0
    finally:
        service.kill()
        service.wait()
    assert sorted(entries_at(url)) == sorted(b"event %d" % i for i in range(40))


def test_json_to_parquet_writes_every_event_once_however_often_it_runs(url: str, tmp_path: Path) -> None:
    for total in (1000, 2000):
        assert "1000 rows in 1 commits" in run("json_to_parquet.py", url, f"file://{tmp_path}/files")
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
