"""What a verification found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import IntEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from forebay.buffer.base.counted import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from forebay.buffer.base.errors import ForebayError

Kind: TypeAlias = Literal["missing", "corrupt", "contradictory", "orphaned"]


REPORTED_FINDINGS: Final = 1000


class Severity(IntEnum):
    """The worst that was found. `forebay verify` exits with the number."""

    OK = 0
    """Everything that is listed can be read. There may be orphans: uploads under way, or what a collection deletes."""
    DAMAGE = 1
    """Something that is listed cannot be read, or not as it was written."""
    UNREADABLE = 2
    """A partition of a topic could not be read, so nothing can be said of it."""


_VERDICTS: Final = {
    Severity.OK: "ok",
    Severity.DAMAGE: "DAMAGED",
    Severity.UNREADABLE: "NOT ALL COULD BE READ",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: Kind
    key: str
    """The object, relative to the URL that was verified."""
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a walk through a buffer, or through every partition of a topic, found."""

    url: str
    deep: bool
    """Whether every batch was fetched and decoded, or only looked for in a listing."""
    version: int | None
    """The manifest's; None if it could not be read, and of a topic."""
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
    findings: tuple[Finding, ...] = ()
    """The first thousand."""
    error: ForebayError | None = None
    """Of a topic's partition: why it could not be read."""
    partitions: tuple[VerifyReport, ...] = ()
    """Of a topic: each partition's own report. The topic's is their sum, with keys from the topic's URL on."""

    @classmethod
    def of_topic(cls, url: str, deep: bool, partitions: tuple[Self, ...], corrupt: Sequence[Finding] = ()) -> Self:
        """Sum the partitions' reports up, and add what is `corrupt` of the topic itself."""
        found = (
            replace(finding, key=f"{part.url.removeprefix(f'{url}/')}/{finding.key}")
            for part in partitions
            for finding in part.findings
        )
        counts = ("batches", "entries", "segments", "groups", "missing", "corrupt", "contradictory", "orphaned")
        sums = {name: sum(getattr(part, name) for part in partitions) for name in counts}
        sums["corrupt"] += len(corrupt)
        findings = tuple(islice(chain(corrupt, found), REPORTED_FINDINGS))
        return cls(url, deep, None, findings=findings, partitions=partitions, **sums)

    @property
    def severity(self) -> Severity:
        """The worst that was found. `forebay verify` exits with the number."""
        if self.error is not None or any(part.error is not None for part in self.partitions):
            return Severity.UNREADABLE
        if self.missing or self.corrupt or self.contradictory:
            return Severity.DAMAGE
        return Severity.OK

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            **{known.name: getattr(self, known.name) for known in fields(self)},
            "findings": [asdict(found) for found in self.findings],
            "error": None if self.error is None else str(self.error),
            "partitions": [part.as_json() for part in self.partitions],
            "severity": self.severity.name,
        }

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.url}: COULD NOT BE READ: {self.error}"
        verdict = _VERDICTS[self.severity]
        return (
            f"{self.url}: {verdict}: {counted(self.batches, 'batch')}, "
            f"{counted(self.segments, 'segment')} and {counted(self.groups, 'group')} "
            f"checked; {self.missing} missing, {self.corrupt} corrupt, {self.contradictory} contradictory, "
            f"{self.orphaned} orphaned"
        )
