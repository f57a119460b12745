"""`forebay run`: a runtime from a TOML file."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from patience import PATIENCE

import forebay
from forebay.buffer import Groups
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.process import this_process
from forebay.cli import main
from forebay.cli.job import read_job
from forebay.runtime import Combining
from forebay.testing import ManualClock

COMMAND = Path(sys.executable).with_name("forebay")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/clicks"
    with forebay.Producer(url) as producer:
        for number in range(10):
            producer.produce([json.dumps({"user": number, "page": "/"}).encode()]).result()
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


NESTED = {
    "id": "int64 not null",
    "items": "list<struct<sku: string, price: decimal128(9, 2)>>",
    "at": "timestamp[us, tz=UTC]",
}


@pytest.mark.parametrize("where", ["columns", "schema file"])
def test_job_lands_nested_json_of_typed_columns(tmp_path: Path, where: str) -> None:
    entry = {"id": 1, "items": [{"sku": "a", "price": "1.25"}, None], "at": "2026-01-31T13:00:00+01:00"}
    with forebay.Producer(f"file://{tmp_path}/orders") as producer:
        producer.produce(json.dumps(entry).encode())
    decoder = '[decoder]\nkind = "json"\nschema = "orders.json"\n'
    if where == "columns":
        lines = "".join(f'{name} = "{kind}"\n' for name, kind in NESTED.items())
        decoder = f'[decoder]\nkind = "json"\n[decoder.columns]\n{lines}'
    (tmp_path / "orders.json").write_text(json.dumps(NESTED))
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    assert main(["run", job(tmp_path, f"file://{tmp_path}/orders", sink + decoder), "--until-caught-up"]) == 0
    assert pq.read_table(tmp_path / "out").to_pylist() == [
        {
            "id": 1,
            "items": [{"sku": "a", "price": Decimal("1.25")}, None],
            "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        }
    ]


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


def test_job_copies_rows_into_a_new_buffer_that_follows_the_schema_of_the_source(tmp_path: Path) -> None:
    source, target = f"file://{tmp_path}/source", f"file://{tmp_path}/target"
    path = job(tmp_path, source, f'[sink]\nkind = "buffer"\nurl = "{target}"\nevolve = true\n')
    schema = pa.schema([("id", pa.int64())])
    for wider in (schema, schema.append(pa.field("page", pa.string()))):
        with forebay.Producer(source, schema=wider, evolve=True) as producer:
            producer.produce({"id": 1})
        assert main(["run", path, "--until-caught-up"]) == 0
        with forebay.Producer(target) as producer:
            assert producer.schema == wider


def test_storage_options_are_for_the_stores_that_take_some(tmp_path: Path, url: str) -> None:
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    letters = f'[dead_letters]\nurl = "file://{tmp_path}/dead"\n'
    path = job(tmp_path, url, sink + letters + '[storage_options]\nregion = "eu-central-1"\n')
    assert main(["run", path, "--until-caught-up"]) == 0
    assert pq.read_table(tmp_path / "out").num_rows == 10


def test_dead_letters_and_events_are_kept_where_the_job_says(tmp_path: Path, url: str) -> None:
    with forebay.Producer(url) as producer:
        producer.produce(b"no JSON").result()
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    letters = f'[dead_letters]\nurl = "file://{tmp_path}/dead"\n'
    events = str(tmp_path / "events.db")
    assert main(["run", job(tmp_path, url, sink + JSON + letters), "--until-caught-up", "--events", events]) == 0
    assert pq.read_table(tmp_path / "out").num_rows == 10
    assert [entry for batch in forebay.Consumer(f"file://{tmp_path}/dead") for entry in batch.entries] == [b"no JSON"]
    assert main(["objects", "history", events, "nothing"]) == 1


TYPED = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])


def test_typed_source_needs_no_decoder_and_its_dates_come_from_a_column_of_its_own(tmp_path: Path) -> None:
    source = f"file://{tmp_path}/typed"
    with forebay.Producer(source, schema=TYPED) as producer:
        producer.produce([{"id": 1, "at": datetime(2026, 1, 31, 12, tzinfo=UTC)}, {"id": 2}])
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\nby_date = "at"\n'
    assert main(["run", job(tmp_path, source, sink), "--until-caught-up"]) == 0
    landed = pq.read_table(tmp_path / "out")
    assert landed.column_names == ["id", "at", "at_date"]
    assert sorted(landed["id"].to_pylist()) == [1, 2]
    assert (tmp_path / "out" / "at_date=2026-01-31").is_dir()


def test_row_of_a_typed_source_that_the_table_refuses_becomes_a_letter_that_can_be_replayed(tmp_path: Path) -> None:
    source, letters = f"file://{tmp_path}/typed", f"file://{tmp_path}/dead"
    DeltaTable.create(f"{tmp_path}/table", schema=pa.schema([("id", pa.int32())]))
    with forebay.Producer(source, schema=pa.schema([("id", pa.int64())])) as producer:
        producer.produce([{"id": 1}, {"id": 1 << 40}, {"id": 3}])
    sink = f'[sink]\nkind = "delta"\nurl = "file://{tmp_path}/table"\nmerge_schema = true\n'
    path = job(tmp_path, source, sink + f'[dead_letters]\nurl = "{letters}"\n')
    assert main(["run", path, "--until-caught-up"]) == 0
    assert sorted(DeltaTable(f"{tmp_path}/table").to_pyarrow_table()["id"].to_pylist()) == [1, 3]
    assert [entry for batch in forebay.Consumer(letters) for entry in batch.entries] == [b'{"id":1099511627776}']
    forebay.Producer(f"{source}-again", schema=pa.schema([("id", pa.int64())])).close()
    assert main(["dead-letters", "replay", letters, "--to", f"{source}-again"]) == 0
    assert [entry for batch in forebay.Consumer(f"{source}-again") for entry in batch.entries] == [{"id": 1 << 40}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "Expected '='"),
        ("[sink]\nkind = 'parquet'\nurl = 'x'", "missing required field `sources`"),
        ("sources = []\n[sink]\nkind = 'parquet'", "names no source: add [[sources]]"),
        ("[[sources]]\nurl = 'memory://x'\nspeed = 1\n[sink]\nkind = 'parquet'", "unknown field `speed`"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'kafka'\nurl = 'x'", "not 'kafka'"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'parquet'", "[sink] has no url"),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='parquet'\nurl='x'\nevolve=true",
            "parquet has no setting evolve",
        ),
        ("[[sources]]\nurl='memory://x'\n[sink]\nkind='delta'\nurl='x'\nby_date=true", "delta has no setting by_date"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'icebrg'\ntable = 'a.b'", "not 'icebrg'"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'function'\nfunction = 'no.such:thing'", "cannot be loaded"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'function'\nfunction = 'json'", "module:function"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'iceberg'\ntable = 'a.b'", "[sink] has no catalog"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'iceberg'\ncatalog = 'x'", "[sink] has no table"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind='parquet'\nurl='x'\n[decoder]\nkind='json'", "needs columns"),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\ncolumns={a='int'}",
            "column a: position 1 of 'int'",
        ),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\nschema='x.xml'",
            "x.xml holds no schema",
        ),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\nschema='no.toml'",
            "must be beside the job",
        ),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\ncolumns={a='list<date32>'}",
            "column a: JSON text is not read into date32",
        ),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\ncolumns={a='timestamp[s, tz=X]'}",
            "there is no time zone 'X'",
        ),
        (
            "[[sources]]\nurl='memory://x'\n[sink]\nkind='x'\n[decoder]\nkind='json'\ncolumns={a='map<string, int8>'}",
            "column a: JSON conversion to map<string, int8> is not supported",
        ),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'x'\n[decoder]\nkind = 'avro'", "not 'avro'"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'x'\n[runtime]\nworkers = 3", "workers"),
        ("[[sources]]\nurl = 'memory://x'\n[sink]\nkind = 'x'\n[runtime]\nfetch_workers = 0", "fetch_workers"),
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
        page = urllib.request.urlopen(served[served.index("http://") :].strip()).read().decode()
        assert "forebay_runtime_rows" in page
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopped: 10 rows" in err
    assert not Groups(url).describe("etl").alive


def test_log_has_levels_and_information_of_forebay_alone(tmp_path: Path, url: str) -> None:
    (tmp_path / "my_sink.py").write_text(
        "import logging\n"
        "def take(commit):\n"
        "    logging.getLogger('botocore.credentials').info('found credentials')\n"
        "    logging.getLogger('botocore.credentials').warning('they expire soon')\n"
        "    logging.getLogger('forebay.runtime').info('all is well')\n"
    )
    path = job(tmp_path, url, '[sink]\nkind = "function"\nfunction = "my_sink:take"\n')
    done = subprocess.run(
        [COMMAND, "run", path, "--until-caught-up"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "found credentials" not in done.stderr
    for line in (" WARNING botocore.credentials: they expire soon\n", " INFO forebay.runtime: all is well\n"):
        assert line in done.stderr


def test_job_that_sets_only_the_seconds_of_combining_waits_no_longer(tmp_path: Path, url: str) -> None:
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\ncombine_seconds = 5\n'
    made = read_job(Path(job(tmp_path, url, sink)), {}).make_sink()
    assert made.combining == Combining(128 << 20, 5)


def test_signal_commits_what_waits_to_be_combined(tmp_path: Path, url: str) -> None:
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n[runtime]\nprogress_seconds = 0.05\n'
    process = subprocess.Popen([COMMAND, "run", job(tmp_path, url, sink)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert any("10 batches waiting for more to combine" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopped: 10 rows" in err
    assert pq.read_table(tmp_path / "out").num_rows == 10
    assert Groups(url).describe("etl").waiting == 0


def test_source_that_does_not_exist_is_waited_for_until_a_signal(tmp_path: Path) -> None:
    missing = tmp_path / "not-there"
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    process = subprocess.Popen(
        [COMMAND, "run", job(tmp_path, f"file://{missing}", sink)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        told = f" WARNING forebay.runtime: nothing was ever written to file://{missing}; waiting for it"
        assert any(told in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
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


def test_catalog_that_does_not_answer_at_the_start_is_tried_again_for_some_minutes(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    properties = f"{{ type = 'rest', uri = 'http://127.0.0.1:{port}' }}"
    sink = f"[sink]\nkind = 'iceberg'\ntable = 'web.clicks'\ncatalog = {properties}\n"
    clock = ManualClock()
    began = clock.monotonic()
    assert main(["run", job(tmp_path, url, sink), "--until-caught-up"], clock=clock) == 2
    *notes, error = capsys.readouterr().err.splitlines()
    assert clock.monotonic() - began == 300
    assert len(notes) == 60
    assert all("tried again in 5 s: catalog 'default' does not answer" in note for note in notes)
    assert error.startswith("error: catalog 'default' does not answer")


def test_takeover_does_not_wait_for_the_owner_of_the_group(tmp_path: Path, url: str) -> None:
    owner = forebay.Consumer(url, group="etl")
    sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
    assert main(["run", job(tmp_path, url, sink), "--until-caught-up", "--takeover"]) == 0
    assert pq.read_table(tmp_path / "out").num_rows == 10
    with pytest.raises(forebay.Fenced, match=f"took over group etl in process {this_process(SystemClock()).host}/"):
        owner.next_batch()


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_second_signal_does_not_wait_for_a_source_that_does_not_answer(tmp_path: Path, client: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        options = f'endpoint_url = "http://127.0.0.1:{silent.getsockname()[1]}"\nkey = "key"\nsecret = "secret"\n'
        sink = f'[sink]\nkind = "parquet"\nurl = "file://{tmp_path}/out"\n'
        forever = f'client = "{client}"\nread_timeout = 3600\n'
        path = job(tmp_path, "s3://lake/clicks", f"{sink}[storage_options]\n{options}{forever}")
        process = subprocess.Popen([COMMAND, "run", path], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                assert any("again to stop" in line for line in process.stderr)
                process.send_signal(signal.SIGTERM)
                assert process.wait() == 130
        finally:
            process.kill()
            process.communicate()
