"""Rates between looks: how fast batches and entries come in and are acknowledged, how often the manifest is written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from forebay.buffer.inspect.stats import sum_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.inspect.stats import BufferStats

WINDOW_SECONDS: Final = 30.0
"""Seconds over which a rate is taken. Acks and appends come in bursts: over less time, the rate would jump."""

Rate: TypeAlias = float | None
"""Per second; None if it is not known: at the first look, or because the manifest does not tell."""


Flow: TypeAlias = list[Rate]
"""Batches per second, then entries per second."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates between two looks."""

    taken_in: Flow
    done: dict[str, Flow]
    """Of every reader."""
    writes: Rate


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts at one look. They only grow while the buffers and the readers stay the same."""

    moment: float
    buffers: tuple[str | None, ...]
    listed: int
    taken_in: int | None
    writes: int | None
    done: dict[str, tuple[int, int | None]]
    """For each reader, the batches and entries that it has acknowledged."""


class Meter:
    """Computes the rates of the last seconds from the counts of each look."""

    def __init__(self) -> None:
        self._counts: deque[_Counts] = deque()

    def measure(self, parts: Sequence[BufferStats], moment: float) -> Rates:
        """Return the rates up to now, `moment` by a clock that never goes back."""
        now = _count(parts, moment)
        if self._counts and self._counts[-1].buffers != now.buffers:
            self._counts.clear()  # partitions were added, or it is another buffer now
        self._counts.append(now)
        while len(self._counts) > 2 and self._counts[1].moment <= moment - WINDOW_SECONDS:
            self._counts.popleft()
        then = self._counts[0]
        seconds = now.moment - then.moment
        return Rates(
            [_rate(then.listed, now.listed, seconds), _rate(then.taken_in, now.taken_in, seconds)],
            {
                name: [_rate(*counts, seconds) for counts in zip(then.done.get(name, (None, None)), done, strict=True)]
                for name, done in now.done.items()
            },
            _rate(then.writes, now.writes, seconds),
        )


def _count(parts: Sequence[BufferStats], moment: float) -> _Counts:
    done: dict[str, tuple[int, int | None]] = {}
    for part in parts:
        for reader in part.readers:
            batches, entries = done.get(reader.name, (0, 0))
            batches += part.next_sequence - reader.lag_batches
            lag = None if reader.lag_entries is None else -reader.lag_entries
            done[reader.name] = batches, sum_known([entries, part.taken_in, lag])
    return _Counts(
        moment,
        tuple(part.buffer_id for part in parts),
        sum(part.next_sequence for part in parts),
        sum_known(part.taken_in for part in parts),
        sum_known(part.writes for part in parts),
        done,
    )


def _rate(then: int | None, now: int | None, seconds: float) -> Rate:
    # Less than before: a group was reset. Its rate in this time is not known.
    if then is None or now is None or now < then or seconds <= 0:
        return None
    return round((now - then) / seconds, 3)
