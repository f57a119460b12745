"""`forebay demo`, as `make demo` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("forebay")


def test_demo_loses_and_doubles_nothing_and_what_it_keeps_can_be_looked_at(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [COMMAND, "demo", "--keep"], capture_output=True, text=True, timeout=380, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert ["in", "Parquet", "60,000", "0", "0"] in table
    assert ["seen", "by", "Spark", "60,000", "0", "0"] in table
    assert "killed      the first runtime" in done.stdout
    assert "collected   0 objects" not in done.stdout
    assert "proven: every event arrived once" in done.stdout
    printed = [line.split() for line in done.stdout.splitlines() if line.startswith("  forebay ")]
    assert len(printed) == 7
    for command in printed:
        if command[1] != "ui":  # which would go on
            subprocess.run([COMMAND, *command[1:]], capture_output=True, timeout=60, check=True)
