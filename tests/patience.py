"""How long a test waits before it calls something hung, and the way to wait for what nothing signals."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

PATIENCE = 600.0
"""Seconds, as pytest's own limit. Only a hang takes this long: a test must pass on a slow machine under full load."""


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> Any:
    """What the condition returns once that is true. Fails if the process ends first, or after `PATIENCE`."""
    pause, seconds = threading.Event(), 0.002
    for _ in range(int(PATIENCE / seconds)):
        if found := condition():
            return found
        assert process is None or process.poll() is None, f"the process ended with {process and process.returncode}"
        pause.wait(seconds)
    raise AssertionError(f"it did not happen in {PATIENCE:.0f} s")
