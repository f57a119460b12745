"""Small values of a consumer: how far it is behind, and how it runs a collector."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.buffer.base.checks import check_seconds


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind, as of the manifest just read."""

    batches: int
    """Batches appended and not acknowledged here."""
    seconds: float
    """The age of the oldest of them by its ingestion time; 0 if there is none, or none that tells its time."""


@dataclass(frozen=True, slots=True)
class Collect:
    """How a consumer runs a collector beside itself: see `forebay.gc.Collector`."""

    interval: float = 300.0
    """Seconds between two collections."""
    grace: float = 600.0
    """Maximum time in seconds between the upload of a batch and its append. Younger objects are not deleted."""

    def __post_init__(self) -> None:
        check_seconds(self.interval, "interval")
        check_seconds(self.grace, "grace", zero=True)
