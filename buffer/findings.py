"""What a verification found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from typing import Any

Kind: TypeAlias = Literal["missing", "corrupt", "contradictory", "orphaned"]


class Severity(IntEnum):
    """The worst that was found."""

    OK = 0
    ORPHANS = 1
    """Objects that the manifest does not list: uploads under way, or garbage that a collection will delete."""
    DAMAGE = 2
    """Something that is listed cannot be read, or not as it was written."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: Kind
    key: str
    """The object, relative to the buffer's URL."""
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a walk through a buffer found."""

    url: str
    deep: bool
    """Whether every batch was fetched and decoded, or only looked for in a listing."""
    version: int | None
    """The manifest's; None if it could not be read."""
    batches: int = 0
    """Listed in the manifest and checked."""
    entries: int = 0
    """Decoded; 0 unless deep."""
    segments: int = 0
    groups: int = 0
    missing: int = 0
    corrupt: int = 0
    contradictory: int = 0
    """Out of order, listed twice, or at odds with what another object says."""
    orphaned: int = 0
    findings: tuple[Finding, ...] = field(default=())
    """The first thousand."""

    @property
    def severity(self) -> Severity:
        """The worst that was found."""
        if self.missing or self.corrupt or self.contradictory:
            return Severity.DAMAGE
        return Severity.ORPHANS if self.orphaned else Severity.OK

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {**asdict(self), "findings": [asdict(found) for found in self.findings], "severity": self.severity.name}

    def __str__(self) -> str:
        verdict = {Severity.OK: "ok", Severity.ORPHANS: "ok, with orphans", Severity.DAMAGE: "DAMAGED"}[self.severity]
        return (
            f"{self.url}: {verdict}: {self.batches} batches, {self.segments} segments and {self.groups} groups "
            f"checked; {self.missing} missing, {self.corrupt} corrupt, {self.contradictory} contradictory, "
            f"{self.orphaned} orphaned"
        )
