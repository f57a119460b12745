"""Which process has claimed something: host, process id and time. It is for people; no decision depends on it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import Signed, Whole  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has claimed something."""

    host: str
    pid: Whole
    since_ms: Signed
    """When it made the claim, by its own wall clock."""

    def __str__(self) -> str:
        return f"{self.host}/{self.pid} since {_as_time(self.since_ms)}"


def this_process(clock: Clock) -> Process:
    """Return the calling process, with the present time. A forked child gets its own process id."""
    host = socket.gethostname().encode("ascii", "backslashreplace").decode()
    return Process(host, os.getpid(), clock.now_ms())


def _as_time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # another process may have written any number
        return f"{time_ms} ms"
