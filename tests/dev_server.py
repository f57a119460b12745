"""Starts `forebay dev` as a user would, and reads the settings that it prints."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

COMMAND = Path(sys.executable).with_name("forebay")


class DevServer:
    """A `forebay dev` that is up, and what it has printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [COMMAND, "dev", "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)},
            # A shell that runs the tests in the background has them ignore Ctrl-C, and what they start as well.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (it takes no lock)
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        self.printed = "".join(lines)

    @property
    def environment(self) -> dict[str, str]:
        return dict(re.findall(r"^  export (\w+)=(\S+)$", self.printed, re.MULTILINE))

    @property
    def storage_options(self) -> dict[str, Any]:
        found: dict[str, Any] = ast.literal_eval(self.printed.partition("storage_options = ")[2].splitlines()[0])
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()
