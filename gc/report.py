"""What a collection has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from forebay.buffer.names import LOWEST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from forebay.buffer.errors import StoreError


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What one collection did or, as a dry run, would have done."""

    url: str
    """The buffer."""
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

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        plain = asdict(self)
        plain["failed"] = {key: str(error) for key, error in self.failed.items()}
        plain["expired_holds"] = list(self.expired_holds)
        return plain

    def __str__(self) -> str:
        did = "would have deleted" if self.dry_run else "deleted"
        parts = [f"{did} {self.deleted} objects", f"trimmed {self.trimmed} batches", f"kept {self.kept}"]
        if self.dropped_unread:
            parts.append(f"DROPPED {self.dropped_unread} UNREAD by retention")
        if self.expired_holds:
            parts.append(f"let {len(self.expired_holds)} expired holds go")
        if self.failed_count:
            parts.append(f"failed to delete {self.failed_count}")
        return f"{self.url}: {', '.join(parts)}"
