"""The statistics of a buffer or topic: depth, sizes, rates, and how far behind every reader is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forebay.buffer.base.process import Process


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One reader of a buffer: a group, or the unnamed consumer."""

    name: str
    """Empty for the unnamed consumer."""
    acked: int | None
    """The last sequence acknowledged; None if there is none."""
    epoch: int
    alive: bool | None
    """Whether a consumer has the group: one that claimed it and has not closed. A killed one stays alive until the
    next. None for the unnamed consumer, of which nothing tells."""
    lag_batches: int
    """Retained batches that it has not acknowledged."""
    lag_entries: int | None
    """Entries in them; None if not every one of them tells."""
    lag_bytes: int | None
    """Their size as stored; None if not every one of them tells."""
    lag_seconds: float | None
    """The age of the oldest of them; 0 if it is caught up, None if that batch does not tell its time."""
    owner: Process | None = None
    """The process that has it, or that last opened the unnamed consumer; None if there is none, or it is not known."""


@dataclass(frozen=True, slots=True)
class HoldStats:
    """Something that the collector has to leave alone until it expires."""

    hold_id: str
    purpose: str
    first_sequence: int | None
    """The lowest batch that is held; None if it holds uploads alone."""
    ttl_seconds: float | None
    """How long it lives without a renewal; None if an older release took it."""
    renewals: int
    """Number of renewals so far."""
    expires_ms: int | None
    """The store's time from which a collector removes it unless it is renewed; None if no collector has seen its last
    renewal yet."""
    expired: bool
    """Whether it has expired, by this machine's clock: the next collection removes it."""


@dataclass(frozen=True, slots=True)
class BufferStats:
    """A buffer at one moment. What its manifest's version or its batches do not tell is None."""

    url: str
    version: int
    """Of the manifest: 1 or 2."""
    buffer_id: str | None
    first_sequence: int
    """The lowest sequence that is retained."""
    next_sequence: int
    """The sequence that the next batch will have."""
    taken_in: int | None
    """Entries ever listed, as far as they were counted."""
    batches: int
    """Depth: batches that are listed and not trimmed."""
    entries: int | None
    """Entries in them."""
    stored_bytes: int | None
    """Their size as stored."""
    raw_bytes: int | None
    """Their size before compression; None as well where older batches are sealed into segments, which are not read."""
    oldest_ms: int | None
    """When the oldest retained entry was taken in."""
    newest_ms: int | None
    """When the newest entry was taken in."""
    age_seconds: float | None
    """The age of the oldest retained entry."""
    entries_per_second: float | None
    """Taken in, mean of the last minute, sealed batches included; 0 if no batch is that new."""
    bytes_per_second: float | None
    """As stored, over the same time."""
    writes: int | None
    """Number of writes of the manifest, by all processes."""
    dropped: int
    """Batches that retention removed unread, so far."""
    floor: str | None
    """Nothing named below it is listed, or ever will be; None before the first collection."""
    floor_ms: int | None
    """The floor's moment."""
    groups: tuple[GroupStats, ...]
    """By name."""
    unnamed: GroupStats | None
    """The unnamed consumer; None if there never was one."""
    holds: tuple[HoldStats, ...]
    lasting_writers: int = 0
    """Producers with a lasting name whose last number is remembered."""
    schemas: tuple[str, ...] = ()
    """The ids of all versions of its schema, oldest first; empty in a buffer of bytes. An entry is a row if there are
    any. `forebay.buffer.either.schemas.schema_versions` reads them."""

    @property
    def readers(self) -> tuple[GroupStats, ...]:
        """The unnamed consumer, if there is one, and every group."""
        return self.groups if self.unnamed is None else (self.unnamed, *self.groups)

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic at one moment."""

    url: str
    topic_id: str
    """Random, made once."""
    partitions: tuple[BufferStats, ...]
    groups: Mapping[str, str]
    """By name, where each one started: `earliest`, `latest` or a time."""
    schemas: tuple[str, ...] = ()
    """The ids of all versions of its schema, oldest first; empty in a topic of bytes. Partitions follow with their next
    append."""


@dataclass(frozen=True, slots=True)
class Total:
    """The sums over a topic's partitions, or over one buffer. A sum is None if one of them does not tell its part."""

    taken_in: int | None
    batches: int
    entries: int | None
    stored_bytes: int | None
    oldest_ms: int | None
    newest_ms: int | None
    age_seconds: float | None
    entries_per_second: float | None
    bytes_per_second: float | None
    writes: int | None
    dropped: int
    lasting_writers: int
    groups: tuple[GroupStats, ...]
    """The unnamed consumer, of an empty name, and every group. Of several partitions, lags are sums and `lag_seconds`
    the longest; they have no sequence in common, so `acked` is None, and `epoch` is the highest."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def total(parts: Sequence[BufferStats]) -> Total:
    """Return the sum of a topic's partitions; of one buffer, itself."""
    readers = [group for part in parts for group in part.readers]
    return Total(
        taken_in=sum_known(part.taken_in for part in parts),
        batches=sum(part.batches for part in parts),
        entries=sum_known(part.entries for part in parts),
        stored_bytes=sum_known(part.stored_bytes for part in parts),
        oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        newest_ms=max((part.newest_ms for part in parts if part.newest_ms is not None), default=None),
        age_seconds=max((part.age_seconds for part in parts if part.age_seconds is not None), default=None),
        entries_per_second=sum_known(part.entries_per_second for part in parts),
        bytes_per_second=sum_known(part.bytes_per_second for part in parts),
        writes=sum_known(part.writes for part in parts),
        dropped=sum(part.dropped for part in parts),
        lasting_writers=sum(part.lasting_writers for part in parts),
        groups=parts[0].readers
        if len(parts) == 1
        else tuple(
            _total_group(name, [group for group in readers if group.name == name])
            for name in sorted({group.name for group in readers})
        ),
    )


def _total_group(name: str, parts: Sequence[GroupStats]) -> GroupStats:
    alive = [part.alive for part in parts if part.alive is not None]
    return GroupStats(
        name,
        acked=None,
        epoch=max(part.epoch for part in parts),
        alive=any(alive) if alive else None,
        lag_batches=sum(part.lag_batches for part in parts),
        lag_entries=sum_known(part.lag_entries for part in parts),
        lag_bytes=sum_known(part.lag_bytes for part in parts),
        lag_seconds=max((part.lag_seconds for part in parts if part.lag_seconds is not None), default=None),
        owner=next((part.owner for part in parts if part.owner is not None), None),
    )


Number = TypeVar("Number", int, float)


def sum_known(numbers: Iterable[Number | None]) -> Number | None:
    """The sum, if all are known."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)
