"""`forebay dead-letters`: list, show and replay what a runtime put aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forebay
from forebay.cli import main

JOB = """\
[[sources]]
url = "{folder}/clicks"
group = "etl"
[sink]
kind = "parquet"
url = "{folder}/out"
[decoder]
kind = "json"
columns = {{ user = "{kind}" }}
[dead_letters]
url = "{folder}/dead"
"""


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Where a job has put two lines of five aside."""
    folder = f"file://{tmp_path}"
    lines = [b'{"user": 1}', b'{"user": "x"}', b'{"user": 2}', b"\x1b[2J no JSON", b'{"user": 3}']
    with forebay.Producer(f"{folder}/clicks") as producer:
        producer.produce(lines, b"svc=web")
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(folder=folder, kind="int64"))
    assert main(["run", str(job), "--until-caught-up"]) == 0
    capsys.readouterr()
    return folder


def test_list_shows_where_each_letter_comes_from_and_why(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", "list", f"{folder}/dead"]) == 0
    heads, first, second = capsys.readouterr().out.splitlines()
    assert heads.split() == ["letter", "time", "source", "group", "batch", "entries", "reason"]
    assert f"{folder}/clicks  etl        0  entry 1  column user: expected a number (int64), found text" in first
    assert second.split()[0] == "0.1"
    assert "entry 3" in second
    assert main(["dead-letters", "list", f"{folder}/dead", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(found["letter"], found["source"], found["batch"], found["entries"]) for found in shown] == [
        ("0.0", f"{folder}/clicks", 0, "entry 1"),
        ("0.1", f"{folder}/clicks", 0, "entry 3"),
    ]


def test_show_prints_the_entry_and_the_reason(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", "show", f"{folder}/dead", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "reason:     it is not a JSON object" in out
    assert "entry 3:\n\\x1b[2J no JSON\n" in out, "what could take over a terminal is escaped"
    assert main(["dead-letters", "show", f"{folder}/dead", "0.0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["index"], shown["value"]) == (1, '{"user": "x"}')


def test_replay_writes_entries_back_once(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", "replay", f"{folder}/dead", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == f"letter 0.0: 1 entry to {folder}/clicks (dry run)"
    assert "would have replayed 2 letters, 2 entries" in told.err
    assert main(["dead-letters", "replay", f"{folder}/dead"]) == 0
    assert "replayed 2 letters, 2 entries" in capsys.readouterr().err
    assert main(["dead-letters", "replay", f"{folder}/dead", "--json"]) == 0
    assert capsys.readouterr() == ("", "replayed 0 letters, 0 entries\n")
    found = [row for batch in forebay.Consumer(f"{folder}/clicks") for row in batch.records().to_pylist()]
    assert [(row["value"], row["metadata"]) for row in found[5:]] == [
        (b'{"user": "x"}', b"svc=web"),
        (b"\x1b[2J no JSON", b"svc=web"),
    ]


def test_replay_writes_named_letters_to_another_buffer(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", "replay", f"{folder}/dead", "0.0", "--to", f"{folder}/mended", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == f"{folder}/mended"
    assert [entry for batch in forebay.Consumer(f"{folder}/mended") for entry in batch.entries] == [b'{"user": "x"}']


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "{folder}/dead", "7.0"], "no letter 7.0"),
        (["list", "{folder}/nothing"], "nothing"),
        (["replay", "{folder}/dead", "--to", "{folder}/dead"], "holds the dead letters themselves"),
        (["replay", "{folder}/dead", "9.9"], "no letter 9.9"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    folder: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead-letters", *(argument.format(folder=folder) for argument in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_replay_to_a_source_that_is_gone_creates_nothing(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clicks").rename(tmp_path / "moved")
    assert main(["dead-letters", "replay", f"{folder}/dead"]) == 2
    assert "error" in capsys.readouterr().err
    assert not (tmp_path / "clicks").exists()
    (tmp_path / "moved").rename(tmp_path / "clicks")
    assert main(["dead-letters", "replay", f"{folder}/dead"]) == 0
    assert "replayed 2 letters" in capsys.readouterr().err


def test_buffer_without_letters_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with forebay.Producer(f"file://{tmp_path}/clicks") as producer:
        producer.produce(b"x")
    assert main(["dead-letters", "list", f"file://{tmp_path}/clicks"]) == 0
    assert capsys.readouterr().out == "no dead letters\n"
