"""The `forebay` command, as installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import forebay

COMMAND = Path(sys.executable).with_name("forebay")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/clicks"
    with forebay.Producer(url) as producer:
        producer.produce(b"x")
    return url


def test_help_lists_the_commands_and_no_command_is_an_error() -> None:
    assert "forebay verify URL" in run("--help").stdout
    assert run().returncode == 2
    unknown = run("sweep")
    assert unknown.returncode == 2
    assert "no command 'sweep'" in unknown.stderr


def test_commands_work_on_a_buffer(url: str) -> None:
    assert run("verify", url).returncode == 0
    collected = run("gc", url, "--dry-run", "--json")
    assert collected.returncode == 0, collected.stderr
    assert '"deleted": 0' in collected.stdout


def test_damage_is_told_by_the_exit_status(url: str, tmp_path: Path) -> None:
    (batch,) = (tmp_path / "clicks" / "data").glob("*.batch")
    batch.write_bytes(b"garbage")
    damaged = run("verify", url)
    assert damaged.returncode == 2
    assert batch.name in damaged.stdout


@pytest.mark.parametrize("command", ["gc", "verify"])
def test_wrong_url_is_one_line_with_a_hint(command: str) -> None:
    wrong = run(command, "clicks")
    assert wrong.returncode in {2, 3}
    assert len(wrong.stderr.strip().splitlines()) <= 2
