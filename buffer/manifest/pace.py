"""How long a producer leaves between two of its appends, so that those of the others find room in between."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from forebay.buffer.base.backoff import WriteSpacing
from forebay.buffer.base.clock import Clock, SystemClock

if TYPE_CHECKING:
    from forebay.buffer.manifest.head import Head

# An append is lost if another one lands between its read and its write: in half the time that the two take together.
# With five such halves to each other writer, about one append in five is, and hardly ever twice in a row (rfcs/0004).
_ATTEMPTS_APART = 2.5
_MOST_SECONDS = 2.0
_MOST_THROTTLED_SECONDS = 30.0
_REMEMBERED_SECONDS = 60.0
# Where a writer cannot know the others: in balance at one conflict in about four writes.
_LEAST_SECONDS = 0.001
_LONGER = 1.5
_SHORTER = 0.88
_APPENDS_BACK = 3
_ATTEMPTS_KEPT = 5


class Pace:
    """One writer's share of a manifest that several write.

    Everybody reads in the head who else appends, and comes to the same share without asking anybody. Who is alone has
    nothing to wait for, unless the store limits the writes of one object: then all writers share that limit.
    """

    def __init__(self, writer_id: str, *, spacing: WriteSpacing | None = None, clock: Clock | None = None) -> None:
        """Make the pace of a writer; `spacing` is how far apart the store wants the manifest's writes."""
        self._writer_id = writer_id
        self._spacing = spacing or WriteSpacing()
        self._clock = clock or SystemClock()
        self._others: dict[str, tuple[int, float]] = {}
        self._revisions: deque[int] = deque(maxlen=_APPENDS_BACK)
        self._attempts: deque[float] = deque(maxlen=_ATTEMPTS_KEPT)
        self._seconds = 0.0

    def seconds(self) -> float:
        """What to leave between the beginnings of two appends."""
        if not self._spacing.seconds:
            return self._seconds
        # A throttled writer appends seldom, so it is remembered for longer than others.
        recently = self._clock.monotonic() - _REMEMBERED_SECONDS
        share = self._spacing.seconds * (1 + sum(seen > recently for _, seen in self._others.values()))
        # Counted from the beginning of an append, which may have waited long for its own turn.
        return max(self._seconds, self._spacing.last_waited + min(_MOST_THROTTLED_SECONDS, share))

    def note_conflicts(self, conflicts: int, seconds: float) -> None:
        """Learn from a write of version 1, which names no writers: how often it met another, and how long one try took.

        Each conflict makes the pause longer, up to a bound; each write without one, shorter, down to none.
        """
        self._attempts.append(seconds)
        attempt = median(self._attempts)
        if conflicts:
            longer = max(self._seconds * _LONGER**conflicts, _ATTEMPTS_APART * attempt)
            self._seconds = min(_MOST_SECONDS, longer)
        else:
            shorter = self._seconds * _SHORTER
            self._seconds = shorter if shorter > max(attempt / 2, _LEAST_SECONDS) else 0.0

    def note(self, head: Head, seconds: float) -> None:
        """Learn from an append: the head with it, and how long one attempt at it took."""
        since = self._revisions[0] if self._revisions else head.revision
        others = sum(writer.revision > since for name, writer in head.writers.items() if name != self._writer_id)
        if self._spacing.seconds:  # else nobody asks for them, and there may be hundreds
            self._remember_others(head)
        self._revisions.append(head.revision)
        self._attempts.append(seconds)
        # The median, since one attempt that hung says nothing about the next.
        self._seconds = min(_MOST_SECONDS, _ATTEMPTS_APART * others * median(self._attempts))

    def _remember_others(self, head: Head) -> None:
        """Note when each other writer was last seen to have written."""
        now, known = self._clock.monotonic(), self._others
        self._others = {
            name: known[name] if name in known and known[name][0] == writer.revision else (writer.revision, now)
            for name, writer in head.writers.items()
            if name != self._writer_id
        }
