"""What there is to know of a buffer at a glance: depth, sizes, rates, and how far behind every reader is.

Looking claims nothing and changes nothing. It costs the head, each group's cursor, and a segment only where a reader or
the oldest batch is so far back that the head does not tell its time and its place among the entries.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ulid import ULID

from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.base.names import LOWEST
from forebay.buffer.either.dispatch import buffers_at
from forebay.buffer.groups import describe_group
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.topic.topic import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay.buffer.format.model import BatchDescriptor, Facts
    from forebay.buffer.manifest import State
    from forebay.buffer.store import ObjectStore

RATE_SECONDS: Final = 60.0
"""Rates are means over the last minute, or over as much of it as the newest batches tell of."""
_LEAST_SPAN: Final = 1.0
"""A buffer's first batch is no rate yet: it is taken to be a second's."""


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
    """Taken in, over the last minute, by the facts of the newest batches; 0 if none is that new."""
    bytes_per_second: float | None
    """As stored, over the same time."""
    writes: int | None
    """Grows by one with every write of the manifest, whoever makes it."""
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

    @property
    def readers(self) -> tuple[GroupStats, ...]:
        """The unnamed consumer, if there is one, and every group."""
        return self.groups if self.unnamed is None else (self.unnamed, *self.groups)

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Total:
    """A topic's partitions together, or one buffer by itself. What one of them does not tell is None."""

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


def describe(store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock | None = None) -> BufferStats:
    """Return what there is to know of one buffer.

    Raises:
        NotFound: there is none.
        IsTopic: it is a topic's URL; see `describe_all`.
    """
    return Observer(store, manifest_path=manifest_path, clock=clock).look()


def describe_all(
    store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock | None = None
) -> list[BufferStats]:
    """Return what there is to know of the buffer at a URL, or of every partition of the topic there, in order.

    Raises:
        NotFound: there is neither.
    """
    buffers = buffers_at(store, manifest_path=manifest_path)
    return in_parallel(lambda buffer: describe(buffer, manifest_path=manifest_path, clock=clock), buffers)


class Observer:
    """A buffer that is looked at again and again: a head that has not changed costs a conditional read."""

    def __init__(self, store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._queue = Queue(store, manifest_path, role="observer", clock=self._clock)
        self.url = store.url

    def look(self) -> BufferStats:
        """Return what there is to know now.

        Raises:
            NotFound: there is no such buffer.
        """
        return self._queue.look_through(self._describe, self._queue.read_existing())

    def newest(self, limit: int) -> list[BatchDescriptor]:
        """Return the newest batches as of the last look, oldest first, `limit` at most."""
        state = self._queue.last_seen()
        if state is None:
            return []
        return self._queue.look_through(
            lambda found: self._find(found, max(found.first_sequence, found.next_sequence - limit), limit), state
        )

    def _find(self, state: State, first: int, limit: int = 1) -> list[BatchDescriptor]:
        if isinstance(state, Head):
            return self._queue.segments.descriptors(state, first, limit)
        return state.entries_after(first - 1, limit)

    def _describe(self, state: State) -> BufferStats:
        now_ms = self._clock.now_ms()
        head = state if isinstance(state, Head) else None
        retained = self._backlog(state, state.first_sequence, now_ms)
        recent = () if head is None else tuple(entry.facts for entry in head.tail)
        oldest, newest = self._find(state, state.first_sequence), self._find(state, state.next_sequence - 1)
        entry_rate, byte_rate = (None, None) if head is None else _rates(recent, now_ms)
        floor = None if head is None or head.gc_floor == LOWEST else head.gc_floor
        return BufferStats(
            url=self.url,
            version=1 if head is None else 2,
            buffer_id=None if head is None else head.buffer_id,
            first_sequence=state.first_sequence,
            next_sequence=state.next_sequence,
            taken_in=None if head is None else head.next_record,
            batches=retained.batches,
            entries=retained.entries,
            stored_bytes=retained.stored_bytes,
            raw_bytes=_raw_bytes(recent) if len(recent) == state.count else None,
            oldest_ms=oldest[0].first_time_ms if oldest else None,
            newest_ms=newest[0].last_time_ms if newest else None,
            age_seconds=retained.seconds if oldest else None,
            entries_per_second=entry_rate,
            bytes_per_second=byte_rate,
            writes=None if head is None else head.revision,
            dropped=0 if head is None else head.dropped,
            floor=floor,
            floor_ms=None if floor is None else ULID.from_str(floor).milliseconds,
            groups=() if head is None else self._describe_groups(head, now_ms),
            unnamed=self._describe_unnamed(state, now_ms),
            holds=() if head is None else _describe_holds(head, now_ms),
            lasting_writers=0 if head is None else head.lasting_writers,
        )

    def _describe_groups(self, head: Head, now_ms: int) -> tuple[GroupStats, ...]:
        store, clock = self._queue.store, self._clock
        groups = in_parallel(lambda name: describe_group(store, head, name, clock=clock), sorted(head.groups))
        return tuple(
            GroupStats(
                group.name,
                group.acked,
                group.epoch,
                group.alive,
                *self._backlog(head, head.next_sequence - group.waiting, now_ms),
            )
            for group in groups
        )

    def _describe_unnamed(self, state: State, now_ms: int) -> GroupStats | None:
        if state.epoch == 0:
            return None
        first = state.next_sequence - self._queue.waiting()
        return GroupStats("", self._queue.acked(), state.epoch, None, *self._backlog(state, first, now_ms))

    def _backlog(self, state: State, first: int, now_ms: int) -> _Backlog:
        found = self._find(state, first)
        if not found:
            return _Backlog(0, 0, 0, 0.0)
        entries = stored_bytes = None
        if isinstance(state, Head) and found[0].base_record is not None:
            # Counted from there on to the end: so every batch of it has its facts.
            entries = state.next_record - found[0].base_record
            stored_bytes = self._queue.segments.bytes_from(state, first)
        taken_in = found[0].first_time_ms
        seconds = None if taken_in is None else max(0.0, (now_ms - taken_in) / 1000)
        return _Backlog(state.next_sequence - first, entries, stored_bytes, seconds)


class _Backlog(NamedTuple):
    """The batches from one on, in the order of a group's lag."""

    batches: int
    entries: int | None
    stored_bytes: int | None
    seconds: float | None


def _rates(recent: Sequence[Facts | None], now_ms: int) -> tuple[float | None, float | None]:
    """Entries and stored bytes taken in per second; None if the newest batches have no facts."""
    facts = [known for known in recent if known is not None]
    if recent and not facts:
        return None, None
    end = max([now_ms, *(known.last_time_ms for known in facts)])  # a producer's clock may be ahead of ours
    begin = end - RATE_SECONDS * 1000
    told_since = min((known.first_time_ms for known in facts), default=begin)
    span = max(_LEAST_SPAN, (end - max(begin, told_since)) / 1000)
    counted = [known for known in facts if known.last_time_ms >= begin]
    return sum(known.records for known in counted) / span, sum(known.object_bytes for known in counted) / span


def _raw_bytes(recent: Sequence[Facts | None]) -> int | None:
    return _sum(None if facts is None else facts.raw_bytes for facts in recent)


def _describe_holds(head: Head, now_ms: int) -> tuple[HoldStats, ...]:
    return tuple(
        HoldStats(
            hold_id,
            hold.purpose,
            hold.first_sequence,
            ttl_seconds=hold.ttl_ms / 1000 if hold.ttl_ms else None,
            renewals=hold.renewals,
            expires_ms=hold.expiry_ms(),
            expired=hold.is_expired(now_ms),
        )
        for hold_id, hold in sorted(head.holds.items())
    )


def total(parts: Sequence[BufferStats]) -> Total:
    """Return the sum of a topic's partitions; of one buffer, itself."""
    readers = [group for part in parts for group in part.readers]
    return Total(
        taken_in=_sum(part.taken_in for part in parts),
        batches=sum(part.batches for part in parts),
        entries=_sum(part.entries for part in parts),
        stored_bytes=_sum(part.stored_bytes for part in parts),
        oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        newest_ms=max((part.newest_ms for part in parts if part.newest_ms is not None), default=None),
        age_seconds=max((part.age_seconds for part in parts if part.age_seconds is not None), default=None),
        entries_per_second=_sum(part.entries_per_second for part in parts),
        bytes_per_second=_sum(part.bytes_per_second for part in parts),
        writes=_sum(part.writes for part in parts),
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
        lag_entries=_sum(part.lag_entries for part in parts),
        lag_bytes=_sum(part.lag_bytes for part in parts),
        lag_seconds=max((part.lag_seconds for part in parts if part.lag_seconds is not None), default=None),
    )


_Number = TypeVar("_Number", int, float)


def _sum(numbers: Iterable[_Number | None]) -> _Number | None:
    """The sum, if all are known."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)
