"""How many dead letters there are, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base.errors import NotFound
from forebay.buffer.inspect.stats import total
from forebay.runtime.letters import letters_in

if TYPE_CHECKING:
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.ui.subject import Subject

_SHOWN: Final = 5
_LONGEST_TEXT: Final = 500


class Letters:
    """A dead-letter buffer."""

    def __init__(self, subject: Subject) -> None:
        self.url: str = subject.url
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
        newest = [shown for found in self._subject.newest(_SHOWN) for shown in _show(found.batch)][:_SHOWN]
        return {"url": self.url, "batches": summed.batches, "entries": summed.entries, "newest": newest}


def _show(batch: BatchDescriptor) -> list[dict[str, Any]]:
    """The letters in a batch, newest first."""
    letters = letters_in(batch)
    if not letters:  # counted too: somebody put it there by hand
        return [{"time_ms": batch.last_time_ms, "group": "", "sequence": None, "place": "", "error": ""}]
    return [
        {
            "time_ms": kept.time_ms,
            "group": kept.letter.group,
            "sequence": kept.letter.sequence,
            "place": kept.letter.place,
            "error": kept.letter.error[:_LONGEST_TEXT],
        }
        for kept in reversed(letters)
    ]
