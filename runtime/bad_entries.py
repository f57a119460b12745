"""Finds the entries of a batch that cannot be decoded, by halving, with a bounded number of attempts (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MAX_ATTEMPTS: Final = 8192
"""Maximum number of attempts for one batch: enough to find a thousand bad entries among ten thousand."""

_SHOWN: Final = 5


class BadEntry(Corrupt):
    """Entries are not what their decoder expects. The message and `index` are those of the first."""

    def __init__(self, message: str, *, sequence: int, index: int, reasons: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.sequence = sequence
        """The batch it is in."""
        self.index = index
        """Its place in the batch that the decoder was given; the entries before it are good."""
        self.reasons: dict[int, str] = {} if reasons is None else dict(reasons)
        """Why each bad entry is refused, by its place. Empty if the decoder knows only of the first one: then the
        runtime looks for the others."""


def find_bad(
    attempt: Callable[[range], str | None], count: int, reason: str, max_attempts: int = MAX_ATTEMPTS
) -> dict[int, str]:
    """Return which of `count` entries are bad, each with the reason.

    Ranges that fail are halved until one entry is left, all ranges of one size before the smaller ones. When the
    attempts are used up, ranges that still fail count as bad as a whole. Entries that fail only together are not bad.

    Args:
        attempt: decodes a range of entries, and returns why that fails, or None if it does not.
        count: number of entries, at least one; all of them together fail.
        reason: why all of them together fail.
        max_attempts: maximum number of calls of `attempt`.
    """
    bad: dict[int, str] = {}
    failing = deque([(range(count), reason)])
    while failing:
        entries, reason = failing.popleft()
        if len(entries) == 1:
            bad[entries.start] = reason
        elif max_attempts < 2:  # guard: bound the search for bad entries
            bad |= dict.fromkeys(entries, f"one of entries {entries.start} to {entries.stop - 1}: {reason}")
        else:
            max_attempts -= 2
            middle = (entries.start + entries.stop) // 2
            for half in (range(entries.start, middle), range(middle, entries.stop)):
                problem = attempt(half)
                if problem is not None:
                    failing.append((half, problem))
    return dict(sorted(bad.items()))


def describe_entries(indexes: Sequence[int]) -> str:
    """Return ascending indexes as text for people."""
    if len(indexes) == 1:
        return f"entry {indexes[0]}"
    if indexes[-1] - indexes[0] + 1 == len(indexes):
        return f"entries {indexes[0]} to {indexes[-1]}"
    more = f" and {len(indexes) - _SHOWN} others" if len(indexes) > _SHOWN else ""
    return f"entries {', '.join(map(str, indexes[:_SHOWN]))}{more}"


def to_ranges(indexes: Iterable[int]) -> list[range]:
    """Return ascending indexes as ranges."""
    ranges: list[range] = []
    for index in indexes:
        if ranges and ranges[-1].stop == index:
            ranges[-1] = range(ranges[-1].start, index + 1)
        else:
            ranges.append(range(index, index + 1))
    return ranges


def others(bad: Iterable[int], count: int) -> list[range]:
    """Return the entries that are not bad as ranges."""
    ranges, start = [], 0
    for found in [*to_ranges(bad), range(count, count)]:
        if found.start > start:
            ranges.append(range(start, found.start))
        start = found.stop
    return ranges
