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
    """Maximum number of batches in progress over all sources, which is also the most that a crash can replay. A
    combined commit has at most half as many."""
    max_bytes: int = 512 << 20
    """Maximum memory for batches in progress, over all sources. It is exact if the manifest has sizes (version 2)."""
    descriptors_per_look: int = 64
    """Maximum number of batches that one read of the manifest returns."""
    ack_every: int = 64
    """Number of commits after which a source acknowledges …"""
    ack_seconds: float = 1.0
    """… and maximum time between a commit and its acknowledgement."""
    max_poll_interval: float = 2.0
    """Maximum time between two reads of a source's manifest while there is nothing to read."""
    max_failures: int = 10
    """The runtime halts when one commit has raised this many exceptions. A sink's answers do not count, and neither do
    forebay's own errors that say whether the commit happened."""
    drain_seconds: float = 30.0
    """Maximum time for commits to finish when the runtime stops, including batches that wait to be combined."""
    progress_seconds: float = 10.0
    """Time between two lines of progress in the log, if there is no terminal for a live view."""

    def __post_init__(self) -> None:
        for name in (
            "fetch_workers", "commit_workers", "max_batches", "max_bytes", "descriptors_per_look", "ack_every",
            "max_failures",
        ):  # fmt: skip
            check_whole(getattr(self, name), name, least=1)
        for name in ("ack_seconds", "drain_seconds", "progress_seconds"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.max_poll_interval, "max_poll_interval", least=POLL_FLOOR)
