"""Describes a buffer or topic. Claims nothing and changes nothing.

A look reads the head and the cursor of each group. It reads a segment only for a batch that is in the head no more: the
oldest batch, the one that a reader reads next, or the first one of the last minute, from which rates are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ulid import ULID

from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.base.names import LOWEST
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.groups import describe_group
from forebay.buffer.inspect.stats import BufferStats, GroupStats, HoldStats, TopicStats, sum_known
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.topic.topic import Topic, in_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import State
    from forebay.buffer.store import ObjectStore, StoreUrl

RATE_SECONDS: Final = 60.0
"""Rates are means over the last minute, or since the oldest retained entry if that is younger."""
_LEAST_SPAN: Final = 1.0
"""Shortest time to divide by, in seconds: a buffer's first batch is no rate yet."""


def describe(store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock | None = None) -> BufferStats:
    """Return what there is to know of one buffer.

    Raises:
        NotFound: there is none.
        IsTopic: it is a topic's URL; see `describe_all`.
    """
    return Observer(store, manifest_path=manifest_path, clock=clock).look()


def describe_topic(
    url: StoreUrl, *, storage_options: Mapping[str, Any] | None = None, clock: Clock | None = None
) -> TopicStats:
    """Return what there is to know of a topic, by a look at every partition.

    Raises:
        NotFound: there is none.
        InvalidInput: it is a buffer's URL.
    """
    topic = Topic(url, storage_options=storage_options, clock=clock)
    partitions = in_parallel(lambda partition: describe(partition, clock=clock), topic.stores())
    record = topic.record
    return TopicStats(topic.url, record.topic_id, tuple(partitions), dict(record.groups), record.schemas)


def describe_all(
    store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock | None = None
) -> list[BufferStats]:
    """Return what there is to know of the buffer at a URL, or of every partition of the topic there, in order.

    Raises:
        NotFound: there is neither.
    """
    return buffer_or_topic(
        lambda: [describe(store, manifest_path=manifest_path, clock=clock)],
        lambda: list(describe_topic(store, clock=clock).partitions),
    )


class Observer:
    """A buffer that is looked at again and again: a head that has not changed costs a conditional read."""

    def __init__(self, store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._queue = Queue(store, manifest_path, role="observer", clock=self._clock)
        self.url: str = store.url

    def look(self) -> BufferStats:
        """Return what there is to know now.

        Raises:
            NotFound: there is no such buffer.
        """
        return self._queue.look_through(self._describe, self._queue.read_existing())

    @property
    def schemas(self) -> tuple[str, ...]:
        """The ids of all versions of the buffer's schema as of the last look, oldest first; none for bytes."""
        state = self._queue.last_seen()
        return () if state is None else tuple(state.schemas)

    def newest(self, limit: int) -> list[BatchDescriptor]:
        """Return the newest batches as of the last look, oldest first, `limit` at most."""
        state = self._queue.last_seen()
        if state is None:
            return []
        return self._queue.look_through(
            lambda found: self._queue.segments.descriptors(found, found.next_sequence - limit, limit), state
        )

    def _find(self, state: State, sequence: int) -> list[BatchDescriptor]:
        return self._queue.segments.descriptors(state, sequence, 1)

    def _describe(self, state: State) -> BufferStats:
        now_ms = self._clock.now_ms()
        head = state if isinstance(state, Head) else None
        retained = self._backlog(state, state.first_sequence, now_ms)
        recent = () if head is None else tuple(entry.facts for entry in head.tail)
        raw_bytes = (None if facts is None else facts.raw_bytes for facts in recent)
        oldest, newest = self._find(state, state.first_sequence), self._find(state, state.next_sequence - 1)
        entry_rate, byte_rate = (None, None) if head is None else self._rates(head, newest, now_ms)
        floor = None if state.gc_floor == LOWEST else state.gc_floor
        return BufferStats(
            url=self.url,
            version=state.version,
            buffer_id=None if head is None else head.buffer_id,
            first_sequence=state.first_sequence,
            next_sequence=state.next_sequence,
            taken_in=None if head is None else head.next_record,
            batches=retained.batches,
            entries=retained.entries,
            stored_bytes=retained.stored_bytes,
            raw_bytes=sum_known(raw_bytes) if len(recent) == state.count else None,
            oldest_ms=oldest[0].first_time_ms if oldest else None,
            newest_ms=newest[0].last_time_ms if newest else None,
            age_seconds=retained.seconds if oldest else None,
            entries_per_second=entry_rate,
            bytes_per_second=byte_rate,
            writes=None if head is None else head.revision,
            dropped=state.dropped,
            floor=floor,
            floor_ms=None if floor is None else ULID.from_str(floor).milliseconds,
            groups=() if head is None else self._describe_groups(head, now_ms),
            unnamed=self._describe_unnamed(state, now_ms),
            holds=_describe_holds(state, now_ms),
            lasting_writers=0 if head is None else head.lasting_writers,
            schemas=tuple(state.schemas),
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
                owner=group.owner,
            )
            for group in groups
        )

    def _describe_unnamed(self, state: State, now_ms: int) -> GroupStats | None:
        if state.epoch == 0:
            return None
        first = state.next_sequence - state.waiting
        backlog = self._backlog(state, first, now_ms)
        return GroupStats("", state.acked, state.epoch, None, *backlog, owner=state.claimed_by)

    def _backlog(self, state: State, first: int, now_ms: int) -> _Backlog:
        found = self._find(state, first)
        if not found:
            return _Backlog(0, 0, 0, 0.0)
        entries = stored_bytes = None
        if found[0].base_record is not None:
            # Counted from there on to the end: so every batch of it has its facts.
            head = self._queue.as_head(state)
            entries = head.next_record - found[0].base_record
            stored_bytes = self._queue.segments.bytes_from(head, first)
        taken_in = found[0].first_time_ms
        seconds = None if taken_in is None else max(0.0, (now_ms - taken_in) / 1000)
        return _Backlog(state.next_sequence - first, entries, stored_bytes, seconds)

    def _rates(self, head: Head, newest: Sequence[BatchDescriptor], now_ms: int) -> tuple[float | None, float | None]:
        """Entries and stored bytes taken in per second; None if the newest batch has no facts."""
        if not newest:
            return 0.0, 0.0
        if newest[0].facts is None:
            return None, None
        end = max(now_ms, newest[0].facts.last_time_ms)  # a producer's clock may be ahead of ours
        begin = end - int(RATE_SECONDS * 1000)
        segments = self._queue.segments
        first = segments.sequence_at(head, begin)
        found = self._find(head, first)
        if not found:
            return 0.0, 0.0
        if found[0].base_record is None or found[0].first_time_ms is None:
            return None, None
        is_all = first == head.first_sequence  # what was before is unknown: never there, or trimmed
        span = max(_LEAST_SPAN, (end - max(begin, found[0].first_time_ms if is_all else begin)) / 1000)
        return (head.next_record - found[0].base_record) / span, segments.bytes_from(head, first) / span


class _Backlog(NamedTuple):
    """The batches from one on, in the order of a group's lag."""

    batches: int
    entries: int | None
    stored_bytes: int | None
    seconds: float | None


def _describe_holds(state: State, now_ms: int) -> tuple[HoldStats, ...]:
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
        for hold_id, hold in sorted(state.holds.items())
    )
