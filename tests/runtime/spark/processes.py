"""Waiting for what another process does."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[Any] | None = None, seconds: float = 600) -> None:
    """Return once it holds; fail if the process has ended before, or if it takes too long."""
    pause = threading.Event()
    for _ in range(int(seconds * 20)):
        if condition():
            return
        assert process is None or process.poll() is None, f"the process ended with {process and process.returncode}"
        pause.wait(0.05)
    raise AssertionError(f"it did not happen in {seconds} s")
