"""Rates between looks: how fast batches and entries come in and are acknowledged, how often the manifest is written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.inspect.stats import BufferStats

WINDOW_SECONDS: Final = 30.0
"""Readers acknowledge by the hundred and producers list by the flush: over less than that a rate is a saw."""

Rate: TypeAlias = float | None
"""Per second; None if it is not known: at the first look, or because the manifest does not tell."""


@dataclass(frozen=True, slots=True)
class Flow:
    """How fast something goes."""

    batches: Rate = None
    entries: Rate = None

    def as_json(self) -> list[Rate]:
        """The two, in this order."""
        return [self.batches, self.entries]


@dataclass(frozen=True, slots=True)
class Rates:
    """What came of the time between two looks."""

    taken_in: Flow
    done: dict[str, Flow]
    """Of every reader."""
    writes: Rate


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers that only grow, as long as it is the same buffers and the same readers."""

    moment: float
    buffers: tuple[str | None, ...]
    listed: int
    taken_in: int | None
    writes: int | None
    done: dict[str, tuple[int, int | None]]
    """For each reader, batches and entries that it is through with."""


class Meter:
    """Tells rates over the last seconds from what is counted at each look."""

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
            Flow(_rate(then.listed, now.listed, seconds), _rate(then.taken_in, now.taken_in, seconds)),
            {name: _flow(then.done.get(name), done, seconds) for name, done in now.done.items()},
            _rate(then.writes, now.writes, seconds),
        )


def _count(parts: Sequence[BufferStats], moment: float) -> _Counts:
    done: dict[str, tuple[int, int | None]] = {}
    for part in parts:
        for reader in part.readers:
            batches, entries = done.get(reader.name, (0, 0))
            batches += part.next_sequence - reader.lag_batches
            known = entries is not None and part.taken_in is not None and reader.lag_entries is not None
            entries = (entries or 0) + (part.taken_in or 0) - (reader.lag_entries or 0) if known else None
            done[reader.name] = batches, entries
    return _Counts(
        moment,
        tuple(part.buffer_id for part in parts),
        sum(part.next_sequence for part in parts),
        None if any(part.taken_in is None for part in parts) else sum(part.taken_in or 0 for part in parts),
        None if any(part.writes is None for part in parts) else sum(part.writes or 0 for part in parts),
        done,
    )


def _flow(then: tuple[int, int | None] | None, now: tuple[int, int | None], seconds: float) -> Flow:
    if then is None:
        return Flow()
    return Flow(_rate(then[0], now[0], seconds), _rate(then[1], now[1], seconds))


def _rate(then: int | None, now: int | None, seconds: float) -> Rate:
    # Less than before: a group was reset. How fast it went meanwhile, nobody knows.
    if then is None or now is None or now < then or seconds <= 0:
        return None
    return round((now - then) / seconds, 3)
