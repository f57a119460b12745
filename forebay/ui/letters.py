"""How many dead letters there are, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base.errors import Corrupt, NotFound
from forebay.buffer.inspect.stats import total
from forebay.runtime.dead_letter import DeadLetter

if TYPE_CHECKING:
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.ui.subject import Subject

_SHOWN: Final = 5
_LONGEST_TEXT: Final = 500


class Letters:
    """A dead-letter buffer."""

    def __init__(self, subject: Subject) -> None:
        self.url = subject.url
        self._subject = subject

    def look(self) -> dict[str, Any]:
        """Return how many there are, and the newest of them. A buffer that is not there yet has none."""
        try:
            parts = self._subject.look()
        except NotFound as error:
            if error.bucket:
                raise
            return {"url": self.url, "batches": 0, "entries": 0, "newest": []}  # the first dead letter makes it
        summed = total([part.stats for part in parts if part.stats is not None])
        newest = [_show(found.batch) for found in self._subject.newest(_SHOWN)]
        return {"url": self.url, "batches": summed.batches, "entries": summed.entries, "newest": newest}


def _show(batch: BatchDescriptor) -> dict[str, Any]:
    shown: dict[str, Any] = {"time_ms": batch.last_time_ms, "group": "", "sequence": None, "error": ""}
    try:
        letter = DeadLetter.parse(batch.metadata[0].payload if batch.metadata else b"")
    except Corrupt:
        return shown  # counted all the same: somebody put it there by hand
    return {**shown, "group": letter.group, "sequence": letter.sequence, "error": letter.error[:_LONGEST_TEXT]}
