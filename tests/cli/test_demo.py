"""`forebay demo`, as `make demo` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("forebay")


def run_demo(folder: Path, *command: str) -> tuple[str, str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "proven: every event arrived once" in done.stdout
    assert "killed      the first runtime" in done.stdout
    return done.stdout, done.stderr


def test_demo_loses_and_doubles_nothing_and_what_it_keeps_can_be_looked_at(tmp_path: Path) -> None:
    out, err = run_demo(tmp_path, str(COMMAND), "demo", "--keep")
    assert err == "", "no log line stands between the demo's own"
    table = [line.split() for line in out.splitlines()]
    assert ["in", "Parquet", "60,000", "0", "0"] in table
    assert ["seen", "by", "Spark", "60,000", "0", "0"] in table
    assert "collected   0 objects" not in out
    printed = [line for line in out.splitlines() if line.startswith(f"  {COMMAND} ")]
    assert len(printed) == 7
    shown = {}
    for line in printed:
        name = line.split()[1]
        if name != "ui":  # which would go on
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
            shown[name] = done.stdout
    assert len(shown["tail"].splitlines()) == 3
    assert "audit" in shown["groups"]
    assert " 0 batches" not in shown["stat"]


def test_demo_without_spark_says_so_and_does_the_rest(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from forebay.cli import main; sys.exit(main(['demo']))"
    out, _ = run_demo(tmp_path, sys.executable, "-c", program)
    assert "Spark is not installed" in out
    assert "seen by Spark" not in out
    assert list(tmp_path.iterdir()) == []
