"""What a runtime is doing, as values: for people, for tests and for a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage."""

    name: str
    threads: int
    busy: int
    """Threads at work."""
    waiting: int
    """Items that wait for a thread, or for their time to be tried again."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source, as of its last look at the manifest."""

    url: str
    group: str
    """Empty for the unnamed consumer."""
    committed: int | None = None
    """The last sequence up to which everything is committed, by this runtime; None if nothing is."""
    acked: int | None = None
    """The last sequence that was acknowledged durably, by this runtime; None if none was."""
    lag_batches: int = 0
    """Batches that are there and not committed."""
    lag_seconds: float = 0.0
    """The age of the oldest of them that was read; 0 if there is none, or it does not tell its time."""
    batches: int = 0
    """Batches under way."""
    bytes: int = 0
    """Memory that they take."""
    found_entries: int = 0
    """Entries of the batches found in the manifest, fetched or not; batches of version 1 tell no number."""
    fetched_rows: int = 0
    """Rows fetched and decoded, committed or not."""
    commits: int = 0
    rows: int = 0
    """Rows committed."""
    bytes_read: int = 0
    """Before compression."""
    dead_letters: int = 0
    waits_for: str = ""
    """What would let it go on; empty once it is over."""
    over: bool = False
    """Whether it has ended."""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A runtime at one moment."""

    state: str
    """`new`, `running`, `stopping`, `stopped` or `failed`."""
    sources: tuple[SourceStatus, ...]
    stages: tuple[StageStatus, ...]
    batches: int
    """Batches under way, of all sources."""
    max_batches: int
    bytes: int
    """Memory that they take."""
    max_bytes: int

    @property
    def commits(self) -> int:
        """Commits of all sources so far."""
        return sum(source.commits for source in self.sources)

    @property
    def found_entries(self) -> int:
        """Entries of the batches found in all manifests so far, fetched or not."""
        return sum(source.found_entries for source in self.sources)

    @property
    def fetched_rows(self) -> int:
        """Rows fetched and decoded of all sources so far, committed or not."""
        return sum(source.fetched_rows for source in self.sources)

    @property
    def rows(self) -> int:
        """Rows committed of all sources so far."""
        return sum(source.rows for source in self.sources)

    @property
    def bytes_read(self) -> int:
        """Bytes read of all sources so far, before compression."""
        return sum(source.bytes_read for source in self.sources)

    @property
    def lag_batches(self) -> int:
        """Batches of all sources that are not committed."""
        return sum(source.lag_batches for source in self.sources)
