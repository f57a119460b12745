"""Where a test's buffer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay.buffer.store import ObjectStore, open_store


@dataclass(frozen=True)
class Place:
    """Where one test's buffer is, and what it takes to reach it from Python and from Spark."""

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """For `spark.read.options(**place.options)`."""
        return {"url": self.url, **{f"storage.{name}": str(value) for name, value in self.storage_options.items()}}

    def open(self) -> ObjectStore:
        return open_store(self.url, self.storage_options)
