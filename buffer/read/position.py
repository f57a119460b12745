"""The position of a consumer in its process: which batches it has handed out (rfcs/0004)."""

from __future__ import annotations

import logging
from threading import RLock
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from forebay.buffer.format.model import BatchDescriptor

_log = logging.getLogger("forebay.consumer")


class Found:
    """Batches that one look found after a position. They are handed out once, and that can be undone."""

    __slots__ = ("after", "descriptors", "is_handed_out")

    def __init__(self, after: int | None, descriptors: list[BatchDescriptor]) -> None:
        self.after: int | None = after
        """The position that the look started from."""
        self.descriptors: Final = descriptors
        """What it found, in order; may be empty."""
        self.is_handed_out: bool = False


class ReadPosition:
    """How far a consumer has handed out batches. Safe to use from several threads.

    An interrupt, such as `KeyboardInterrupt`, may come between any two instructions. So each method changes the
    position itself last, and can be repeated.
    """

    def __init__(self, url: str, last: int | None) -> None:
        self.last = last
        """The last sequence that was handed out or skipped. None: start after what is acknowledged."""
        self.skipped: int = 0
        """Number of batches that were trimmed before they could be handed out."""
        self._url = url
        self._lock = RLock()
        self._first: int | None = None  # handed out since the consumer was opened, or since the last seek
        self._lost: int | None = None
        self._gaps: dict[int, int] = {}

    def hand_out(self, found: Found) -> bool:
        """Move over batches that were found, unless another thread has moved since that look."""
        first, last = found.descriptors[0].sequence, found.descriptors[-1].sequence
        with self._lock:
            if self.last != found.after:  # guard: hand a batch out once across threads
                return False
            found.is_handed_out = True
            if self._first is None:
                self._first = first
            self.last = last
        metrics.descriptors_handed_out.add(last - first + 1, {"buffer": self._url})
        return True

    def undo(self, found: Found) -> None:
        """Move back over batches that an interrupt kept from being returned, if they were handed out."""
        with self._lock:
            if not found.is_handed_out:
                return
            found.is_handed_out = False
            first, last = found.descriptors[0].sequence, found.descriptors[-1].sequence
            if self.last in (found.after, last):
                self.last = found.after
                if self._first == first:
                    self._first = None
            elif self._lost is None or self._lost > first:
                # Another thread has read further. No acknowledgement may pass a batch that no caller got.
                self._lost = first

    def hand_out_through(self, first: int, last: int) -> None:
        """Move over batches that were found, unless the position is beyond them. Repeating it does nothing."""
        with self._lock:
            if self._first is None:
                self._first = first
            if self.last is None or self.last < last:
                self.last = last
                metrics.descriptors_handed_out.add(last - first + 1, {"buffer": self._url})

    def skip(self, after: int | None, missing: int, first: int) -> None:
        """Move over the trimmed batches from `missing` to before `first`, and count them once.

        Nothing happens if another thread has moved since a look from the position `after` missed them.
        """
        with self._lock:
            if self.last != after:
                return
            self._gaps[missing] = first
            self.skipped += first - missing
            self.last = first - 1
        _log.warning("%s: %d batches were trimmed unread; going on at %d", self._url, first - missing, first)

    def seek(self, first: int) -> None:
        """Continue at a sequence. Batches handed out earlier can no longer be acknowledged."""
        with self._lock:
            self.last = first - 1
            self._first = None
            self._lost = None
            self._gaps.clear()

    def check_handed_out(self, sequence: int) -> int:
        """Return the first sequence that was handed out, if this one was too.

        Raises:
            InvalidInput: it was not, or an earlier one was lost by an interrupt.
        """
        first, last = self._first, self.last
        # guard: acknowledge only what was handed out
        if first is None or last is None or not first <= sequence <= last:
            raise InvalidInput(
                f"batch {sequence} of {self._url} was never handed out: acknowledge only what this consumer has read"
            )
        if self._lost is not None and sequence >= self._lost:  # guard: refuse acks past a batch lost to an interrupt
            raise InvalidInput(
                f"{self._url}: batch {sequence} cannot be acknowledged, because the call that read batch {self._lost} "
                "was interrupted while another thread read on: open a new consumer, which reads it again"
            )
        return first

    def skip_gaps(self, sequence: int) -> int:
        """Return the first sequence from this one on that was not skipped."""
        # guard: skip consecutive gaps when acknowledging in order
        while sequence in self._gaps:  # one gap may begin where another ends
            sequence = self._gaps[sequence]
        return sequence
