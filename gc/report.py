"""What a collection has done."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import islice
from typing import TYPE_CHECKING

from forebay.buffer.base.counted import counted
from forebay.buffer.base.names import LOWEST
from forebay.gc.sweep import REPORTED_FAILURES, Sweep

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from forebay.buffer.base.errors import StoreError


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What one collection did or, as a dry run, would have done."""

    url: str
    """The buffer or topic."""
    dry_run: bool
    deleted: int = 0
    """Objects deleted: batches, segments and cursors."""
    failed: Mapping[str, StoreError] = field(default_factory=dict)
    """Why objects could not be deleted, by key: the first thousand. A folder stands for a listing that failed."""
    failed_count: int = 0
    """How many could not. The next collection tries them again."""
    kept: int = 0
    """Batches that the manifest still lists."""
    trimmed: int = 0
    """Batches taken off the manifest, dropped ones included."""
    dropped_unread: int = 0
    """Batches that retention took off the manifest before every reader had read them."""
    expired_holds: tuple[str, ...] = ()
    """The ids of holds that ran out."""
    floor: str = LOWEST
    """Everything named below it is free to be deleted."""
    error: Exception | None = None
    """Of a topic's partition: why it could not be collected. The next collection tries again."""
    partitions: tuple[CollectionReport, ...] = ()
    """Of a topic: each partition's own report. The topic's is their sum, with keys from the topic's URL on."""

    @classmethod
    def of_sweep(cls, sweep: Sweep, **found: Any) -> Self:
        """Report what a sweep has deleted and, by name, the other fields."""
        return cls(
            sweep.url,
            sweep.dry_run,
            deleted=sweep.deleted,
            failed=sweep.failed,
            failed_count=sweep.failed_count,
            **found,
        )

    @classmethod
    def of_topic(cls, url: str, dry_run: bool, partitions: tuple[Self, ...]) -> Self:
        """Sum the partitions' reports up."""
        failed = (
            (f"{part.url}/{key}".removeprefix(f"{url}/"), why)
            for part in partitions
            for key, why in part.failed.items()
        )
        return cls(
            url,
            dry_run,
            deleted=sum(part.deleted for part in partitions),
            failed=dict(islice(failed, REPORTED_FAILURES)),
            failed_count=sum(part.failed_count for part in partitions),
            kept=sum(part.kept for part in partitions),
            trimmed=sum(part.trimmed for part in partitions),
            dropped_unread=sum(part.dropped_unread for part in partitions),
            expired_holds=tuple(hold for part in partitions for hold in part.expired_holds),
            floor=min(part.floor for part in partitions),
            partitions=partitions,
        )

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            **{known.name: getattr(self, known.name) for known in fields(self)},
            "failed": {key: str(error) for key, error in self.failed.items()},
            "expired_holds": list(self.expired_holds),
            "error": None if self.error is None else str(self.error),
            "partitions": [part.as_json() for part in self.partitions],
        }

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.url}: COULD NOT BE COLLECTED: {self.error}"
        did = "would have deleted" if self.dry_run else "deleted"
        parts = [
            f"{did} {counted(self.deleted, 'object')}",
            f"trimmed {counted(self.trimmed, 'batch')}",
            f"kept {self.kept}",
        ]
        if self.dropped_unread:
            parts.append(f"DROPPED {self.dropped_unread} UNREAD by retention")
        if self.expired_holds:
            parts.append(f"removed {counted(len(self.expired_holds), 'expired hold')}")
        if self.failed_count:
            parts.append(f"failed to delete {self.failed_count}")
        if errors := sum(part.error is not None for part in self.partitions):
            parts.append(f"COULD NOT COLLECT {errors} OF {len(self.partitions)} PARTITIONS")
        return f"{self.url}: {', '.join(parts)}"
