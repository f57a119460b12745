"""`forebay run`: a runtime from a TOML file."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import forebay
from forebay.buffer import Groups
from forebay.cli import main

COMMAND = Path(sys.executable).with_name("forebay")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/clicks"
    with forebay.Producer(url) as producer:
        for number in range(10):
            producer.produce([json.dumps({"user": number, "page": "/"}).encode()]).result(timeout=30)
    return url


def job(folder: Path, url: str, rest: str) -> str:
    path = folder / "job.toml"
    path.write_text(f'[[sources]]\nurl = "{url}"\ngroup = "etl"\n{rest}')
    return str(path)


JSON = '[decoder]\nkind = "json"\ncolumns = { user = "int64", page = "string" }\n'


def test_job_lands_json_in_parquet(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    path = job(tmp_path, url, sink + JSON + "[runtime]\nfetch_workers = 2\n")
    assert main(["run", path, "--until-caught-up", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 10, "commits": 1, "bytes": 280, "behind": 0}
    assert pq.read_table(tmp_path / "out")["user"].to_pylist() == list(range(10))
    assert Groups(url).describe("etl").waiting == 0


def test_job_copies_into_a_buffer_and_calls_a_function(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = f'[sink]\nkind = "buffer"\nurl = "file://{tmp_path}/copy"\n'
    assert main(["run", job(tmp_path, url, copy), "--until-caught-up"]) == 0
    (tmp_path / "my_sink.py").write_text("seen = []\ndef take(commit):\n    seen.append(len(commit))\n")
    monkeypatch.chdir(tmp_path)
    call = '[sink]\nkind = "function"\nfunction = "my_sink:take"\nin_order = true\n'
    assert main(["run", job(tmp_path, f"file://{tmp_path}/copy", call), "--until-caught-up"]) == 0
    assert sum(sys.modules["my_sink"].seen) == 10


def test_storage_options_are_for_the_stores_that_take_some(tmp_path: Path, url: str) -> None:
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    letters = f'[dead_letters]\nurl = "file://{tmp_path}/dead"\n'
    path = job(tmp_path, url, sink + letters + '[storage_options]\nregion = "eu-central-1"\n')
    assert main(["run", path, "--until-caught-up"]) == 0
    assert pq.read_table(tmp_path / "out").num_rows == 10


def test_dead_letters_and_events_are_kept_where_the_job_says(tmp_path: Path, url: str) -> None:
    with forebay.Producer(url) as producer:
        producer.produce(b"no JSON").result(timeout=30)
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    letters = f'[dead_letters]\nurl = "file://{tmp_path}/dead"\n'
    events = str(tmp_path / "events.db")
    assert main(["run", job(tmp_path, url, sink + JSON + letters), "--until-caught-up", "--events", events]) == 0
    assert pq.read_table(tmp_path / "out").num_rows == 10
    assert [entry for batch in forebay.Consumer(f"file://{tmp_path}/dead") for entry in batch.entries] == [b"no JSON"]
    assert main(["objects", "history", events, "nothing"]) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "Expected '='"),
        ("[sink]\nkind = 'parquet'\nurl = 'x'", "missing required field `sources`"),
        ("sources = []\n[sink]\nkind = 'parquet'", "there is no [[sources]]"),
        ("[[sources]]\nurl = 'memory://x'\nspeed = 1\n[sink]\nkind = 'parquet'", "unknown field `speed`"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'kafka'\nurl = 'x'", "not 'kafka'"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'parquet'", "needs url"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'function'\nfunction = 'no.such:thing'", "cannot be loaded"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'function'\nfunction = 'json'", "module:function"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind='parquet'\nurl='x'\n[decoder]\nkind='json'", "needs columns"),
        ("[[sources]]\nurl='m://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\ncolumns={a='int'}", "type 'int'"),
        ("[[sources]]\nurl = 'm://x'\n[sink]\nkind = 'x'\n[decoder]\nkind = 'avro'", "not 'avro'"),
        ("[[sources]]\nurl = 'm://x'\n[sink]\nkind = 'x'\n[runtime]\nworkers = 3", "workers"),
        ("[[sources]]\nurl = 'm://x'\n[sink]\nkind = 'x'\n[runtime]\nfetch_workers = 0", "fetch_workers"),
    ],
)
def test_job_that_cannot_be_is_told_in_a_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert main(["run", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert told in line


def test_signal_stops_it_after_what_is_under_way_and_metrics_are_served(tmp_path: Path, url: str) -> None:
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\ncombine_bytes = 1\n'
    process = subprocess.Popen(
        [COMMAND, "run", job(tmp_path, url, sink), "--metrics-port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        served = next(line for line in process.stderr if "http://" in line)
        while Groups(url).list() == [] or Groups(url).describe("etl").waiting:
            assert process.poll() is None
        page = urllib.request.urlopen(served[served.index("http://") :].strip(), timeout=60).read().decode()
        assert "forebay_runtime_rows" in page
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopped: 10 rows" in err
    assert not Groups(url).describe("etl").alive


def test_source_that_does_not_exist_is_waited_for_until_a_signal(tmp_path: Path) -> None:
    missing = tmp_path / "not-there"
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    process = subprocess.Popen(
        [COMMAND, "run", job(tmp_path, f"file://{missing}", sink)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert any(f"nothing was ever written to file://{missing}; waiting for it" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert not missing.exists()


def test_run_until_caught_up_refuses_a_source_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "not-there"
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    assert main(["run", job(tmp_path, f"file://{missing}", sink), "--until-caught-up"]) == 2
    assert f"error: file://{missing}" in capsys.readouterr().err
    assert not missing.exists()


def test_second_signal_does_not_wait_for_a_source_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        options = f'endpoint_url = "http://127.0.0.1:{silent.getsockname()[1]}"\nkey = "key"\nsecret = "secret"\n'
        sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
        path = job(tmp_path, "s3://lake/clicks", f"{sink}[storage_options]\n{options}")
        process = subprocess.Popen([COMMAND, "run", path], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                assert any("once more" in line for line in process.stderr)
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) == 130
        finally:
            process.kill()
            process.communicate()
