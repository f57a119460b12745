"""The interface to a consumer's stored claim and frontier: in a group's cursor, or in the manifest if it is unnamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.buffer.base.process import Process
    from forebay.buffer.format.model import BatchDescriptor, Reader
    from forebay.buffer.manifest import Claim


class ReadSide(Protocol):
    """The stored half of a consumer: its claim, and what is acknowledged."""

    def claim(self, process: Process | None = None) -> Claim:
        """Take over from the previous consumer, in the name of a process."""

    def look(self, claim: Claim, after: int | None, limit: int) -> list[BatchDescriptor]:
        """Return up to `limit` batches after a sequence; if that is None, after what is acknowledged.

        Raises:
            Fenced: another consumer has taken over.
            Trimmed: retention dropped the first of them.
        """

    def ack(self, claim: Claim, through: int) -> None:
        """Record durably that all batches up to a sequence are done."""

    def plan(self, claim: Claim, ends: Collection[int]) -> None:
        """Record durably where ranges end that are about to be worked on."""

    def planned(self) -> tuple[int, ...]:
        """Return the recorded ends that are not acknowledged, as last seen."""

    @property
    def reader(self) -> Reader:
        """Who reads."""

    def release(self, claim: Claim) -> None:
        """Record that the consumer has closed."""

    def acked(self) -> int | None:
        """Return the last sequence acknowledged, as last seen."""

    def waiting(self) -> int:
        """Return how many batches were not acknowledged, as last seen."""

    @property
    def conflict_rate(self) -> float:
        """The share of writes that met another writer."""
