"""`forebay iceberg`: files that failed commits left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from forebay.cli import main
from forebay.runtime.sinks import IcebergSink
from forebay.testing import Fault, FaultyCatalog
from forebay.testing.commits import make_batch, make_commit

TABLE = "lake.clicks"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """A table with three files that a failed attempt left behind."""
    found = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    commit = make_commit(make_batch([b"x"]))
    with load_catalog("default", **found) as catalog:
        IcebergSink(FaultyCatalog(catalog, {0: Fault.DROP}, only=["commit_table"]), TABLE).commit(commit)
        IcebergSink(catalog, TABLE).commit(commit)
    return [argument for name, value in found.items() for argument in ("--property", f"{name}={value}")]


def test_orphans_are_shown_and_nothing_is_deleted_unless_asked(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["iceberg", "orphans", TABLE, *options, "--older-than", "0"]) == 0
        assert f"{TABLE}: 3 orphans (--delete deletes them), 0 too young, 0 that" in capsys.readouterr().out


def test_orphans_are_deleted_when_asked(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["iceberg", "orphans", TABLE, *options, "--older-than", "0", "--delete"]) == 0
    assert f"{TABLE}: 3 files deleted" in capsys.readouterr().out
    assert main(["iceberg", "orphans", TABLE, *options, "--older-than", "0"]) == 0
    assert f"{TABLE}: 0 orphans" in capsys.readouterr().out


def test_young_files_are_kept_by_default(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["iceberg", "orphans", TABLE, *options, "--delete", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["fate"] for line in lines] == ["young"] * 3
    assert all(Path(line["location"].removeprefix("file://")).exists() for line in lines)


def test_mistyped_catalog_is_an_error_and_creates_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "catlog.db"
    assert main(["iceberg", "orphans", TABLE, "--property", "type=sql", "--property", f"uri=sqlite:///{missing}"]) == 2
    assert "has no table lake.clicks: check the table's name" in capsys.readouterr().err
    assert not missing.exists()


def test_catalog_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["iceberg", "orphans", TABLE]) == 2
    assert "there is no catalog: give --catalog NAME, or its --property" in capsys.readouterr().err
    assert main(["iceberg", "orphans", TABLE, "--property", "uri"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err
