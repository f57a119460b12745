"""The settings of a runtime."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.waiting import POLL_FLOOR


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """How much a runtime does at once, how much memory it may take, and how often it acknowledges."""

    fetch_workers: int = 4
    """Batches fetched and decoded at once, over all sources."""
    commit_workers: int = 4
    """Commits under way at once, over all sources. A sink that asks for order gets one at a time of each source."""
    max_batches: int = 1024
    """Batches read and not yet acknowledgeable, over all sources: also the most that a crash can replay. A combined
    commit has at most half as many."""
    max_bytes: int = 512 << 20
    """Memory for batches on their way, over all sources: exact where the manifest tells sizes (version 2)."""
    descriptors_per_look: int = 64
    """Batches taken from the manifest by one read of it."""
    ack_every: int = 64
    """A source's frontier is acknowledged once it has moved by so many commits …"""
    ack_seconds: float = 1.0
    """… or so many seconds after it moved."""
    max_poll_interval: float = 2.0
    """While there is nothing to read, a source is looked at after at most so many seconds."""
    max_failures: int = 10
    """The runtime halts when one commit has raised an exception (not an answer, nor an error of forebay's that says
    what it means) so many times."""
    drain_seconds: float = 30.0
    """How long the last commits may take when the runtime stops: of what is under way or waits to be combined."""
    progress_seconds: float = 10.0
    """A line of progress is logged so often, where there is no terminal for a live view."""

    def __post_init__(self) -> None:
        for name in (
            "fetch_workers", "commit_workers", "max_batches", "max_bytes", "descriptors_per_look", "ack_every",
            "max_failures",
        ):  # fmt: skip
            check_whole(getattr(self, name), name, least=1)
        for name in ("ack_seconds", "drain_seconds", "progress_seconds"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.max_poll_interval, "max_poll_interval", least=POLL_FLOOR)
