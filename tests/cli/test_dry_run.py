"""`forebay run --dry-run`: says what a job would do, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import forebay
from forebay.buffer.topic import create_topic
from forebay.cli import main

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("page", pa.string())])


def write_job(tmp_path: Path, sink: str, source: str = "group = 'etl'") -> str:
    path = tmp_path / "job.toml"
    path.write_text(f"[[sources]]\nurl = 'file://{tmp_path}/source'\n{source}\n[sink]\n{sink}\n")
    return str(path)


def delta(tmp_path: Path, more: str = "") -> str:
    return f"kind = 'delta'\nurl = 'file://{tmp_path}/table'\n{more}"


def fill(tmp_path: Path, batches: int = 3) -> None:
    with forebay.Producer(f"file://{tmp_path}/source", schema=SCHEMA) as producer:
        for number in range(batches):
            producer.produce({"id": number, "page": "/"}).result()


def files(tmp_path: Path) -> dict[Path, bytes]:
    """Every file, and every folder as a file without bytes."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in sorted(tmp_path.rglob("*"))}


def test_everything_that_would_be_made_is_named_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    job = write_job(tmp_path, delta(tmp_path) + f"[dead_letters]\nurl = 'file://{tmp_path}/dead'\n")
    before = files(tmp_path)
    assert main(["run", job, "--dry-run"]) == 0
    assert files(tmp_path) == before
    assert capsys.readouterr().out.splitlines() == [
        f"sink: delta file://{tmp_path}/table",
        f"source: file://{tmp_path}/source",
        "  it has the columns id int64, page string",
        "  group etl would be created, and would read from sequence 0 on, 3 batches behind",
        "  target: no table yet",
        "  would change: creates the table with the columns id, page",
        f"dead letters: file://{tmp_path}/dead, which would be created",
        "nothing was changed",
    ]


def test_position_of_a_group_and_differences_of_a_table_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, 2)
    job = write_job(tmp_path, delta(tmp_path, "merge_schema = true"))
    assert main(["run", job, "--until-caught-up"]) == 0
    wider = pa.schema([*SCHEMA, pa.field("ref", pa.string())])
    with forebay.Producer(f"file://{tmp_path}/source", schema=wider, evolve=True) as producer:
        producer.produce({"id": 9, "ref": "ad"})
    before = files(tmp_path)
    capsys.readouterr()
    assert main(["run", job, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "  group etl would read from sequence 2 on, 1 batch behind\n" in told
    assert "  target: a table at version 1\n  would change: column ref: added, string\n" in told
    assert "dead letters: none; a row that cannot be used halts the runtime\n" in told
    assert files(tmp_path) == before
    assert main(["run", job, "--until-caught-up"]) == 0, "and so it is"
    assert DeltaTable(f"{tmp_path}/table").to_pyarrow_table().column_names == ["id", "page", "ref"]


def test_job_that_would_be_refused_is_refused_with_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    DeltaTable.create(f"{tmp_path}/table", schema=pa.schema([("id", pa.int64())]))
    job = write_job(tmp_path, delta(tmp_path))
    for arguments in (["--dry-run"], ["--until-caught-up"]):
        assert main(["run", job, *arguments]) == 2
        assert "the table has no column page: add it with merge_schema=True" in capsys.readouterr().err


def test_source_that_was_never_written_to_is_named_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, f"kind = 'parquet'\nurl = 'file://{tmp_path}/files'")
    before = files(tmp_path)
    assert main(["run", job, "--dry-run"]) == 0
    assert "nothing was ever written to it: the runtime would wait for it" in capsys.readouterr().out
    assert files(tmp_path) == before


def test_owner_of_the_group_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    job = write_job(tmp_path, f"kind = 'parquet'\nurl = 'file://{tmp_path}/files'")
    with forebay.Consumer(f"file://{tmp_path}/source", group="etl"):
        assert main(["run", job, "--dry-run"]) == 0
    assert "has the group, so the runtime would wait" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "found"),
    [("group = 'etl'\nfrom = 'latest'", (3, 0, True)), ("group = 'etl'\nfrom = 1", (1, 2, True)), ("", (0, 3, False))],
    ids=["latest", "a sequence", "no group"],
)
def test_new_reader_starts_where_the_job_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, found: tuple[int, int, bool]
) -> None:
    fill(tmp_path)
    job = write_job(tmp_path, f"kind = 'parquet'\nurl = 'file://{tmp_path}/files'", source)
    assert main(["run", job, "--dry-run", "--json"]) == 0
    ((reader,),) = [plan["readers"] for plan in json.loads(capsys.readouterr().out)["sources"]]
    assert (reader["next_sequence"], reader["batches_behind"], reader["is_new"]) == found


def test_partitions_of_a_topic_are_shown_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_topic(f"file://{tmp_path}/source", 3, schema=SCHEMA)
    job = write_job(tmp_path, delta(tmp_path), "group = 'etl'\npartitions = [0, 2]")
    before = files(tmp_path)
    assert main(["run", job, "--dry-run", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["sources"]
    assert len(plan["readers"]) == 2
    assert plan["columns"] == {"id": "int64", "page": "string"}
    assert files(tmp_path) == before
    assert main(["run", write_job(tmp_path, delta(tmp_path), "partitions = [3]"), "--dry-run"]) == 2


def iceberg(tmp_path: Path) -> str:
    return (
        "kind = 'iceberg'\ntable = 'web.clicks'\nmerge_schema = true\n[sink.catalog]\ntype = 'sql'\n"
        f"uri = 'sqlite:///{tmp_path}/catalog.db'\nwarehouse = 'file://{tmp_path}/lake'\n"
    )


def test_iceberg_table_and_its_catalog_are_not_made_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    job = write_job(tmp_path, iceberg(tmp_path))
    before = files(tmp_path)
    assert main(["run", job, "--dry-run"]) == 0
    assert files(tmp_path) == before
    told = capsys.readouterr().out
    assert told.startswith("sink: iceberg web.clicks\n")
    assert "would change: creates the table with the columns id, page\n" in told


def test_differences_of_an_iceberg_table_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    job = write_job(tmp_path, iceberg(tmp_path))
    assert main(["run", job, "--until-caught-up"]) == 0
    wider = pa.schema([*SCHEMA, pa.field("ref", pa.string())])
    forebay.Producer(f"file://{tmp_path}/source", schema=wider, evolve=True).close()
    before = files(tmp_path)
    capsys.readouterr()
    assert main(["run", job, "--dry-run"]) == 0
    assert "would change: column ref: added, string\n" in capsys.readouterr().out
    assert files(tmp_path) == before


def test_sink_that_cannot_tell_is_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    job = write_job(tmp_path, "kind = 'function'\nfunction = 'builtins:print'")
    assert main(["run", job, "--dry-run"]) == 0
    assert "the sink does not tell in advance what it would do" in capsys.readouterr().out
