"""What a driver reads: a range of one state of a manifest, or of each partition's in a topic, held or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Denied, Unsupported
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.holds import hold_range
from forebay.buffer.manifest.head import trimmed
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.store import open_store
from forebay.buffer.topic.holds import hold_topic
from forebay.buffer.topic.topic import Topic, check_place, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any, TypeAlias

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.holds import HeldRange
    from forebay.buffer.manifest import Queue, State
    from forebay.buffer.store import ObjectStore, StoreUrl

    Place: TypeAlias = str | int | datetime

_TTL: Final = 600.0
"""Seconds after which the collector removes the hold of a driver that died."""
_PURPOSE: Final = "a read by a Spark driver"


@dataclass(frozen=True, slots=True)
class Part:
    """A range of one buffer, as its manifest was at one moment."""

    queue: Queue
    state: State
    first: int
    """The first sequence."""
    end: int
    """The sequence after the last one."""

    def between(self, start: Place | None, end: Place | None) -> Part:
        """Return the part from `start` to `end`, both included. A time as `end` is not included.

        Raises:
            Trimmed: `start` is gone.
        """
        first = self.first if start is None else self.queue.sequence_of(start, state=self.state)
        if first < self.first:
            raise trimmed(first, self.first)
        last = self.end if end is None else min(self.end, self.queue.end_of(end, state=self.state))
        return replace(self, first=first, end=max(first, last))

    def batches(self) -> Iterator[BatchDescriptor]:
        """Yield the batches that have entries, in order."""
        for batch in descriptors_between(self.queue, self.first, self.end, state=self.state):
            if batch.facts is None or batch.facts.records:
                yield batch

    def count(self) -> int | None:
        """Return how many entries there are; None if the manifest does not tell, as in version 1."""
        bases = (self._base(self.first), self._base(self.end))
        return None if bases[0] is None or bases[1] is None else bases[1] - bases[0]

    def _base(self, sequence: int) -> int | None:
        """Return the number of entries in front of a batch, counted from the buffer's beginning."""
        if self.state.version == 1:
            return None
        if sequence == self.state.next_sequence:
            return self.queue.as_head(self.state).next_record
        return self.queue.descriptors(sequence, 1, state=self.state)[0].base_record


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A buffer or topic at one moment."""

    is_topic: bool
    parts: tuple[Part, ...]
    """The buffer, or each partition of the topic."""
    holds: tuple[HeldRange, ...]
    """What keeps each part; empty if nothing does."""
    schema: pa.Schema | None
    """The newest schema that a batch may have been written in; None for entries of bytes."""

    def between(self, start: Place | None, end: Place | None) -> list[Part]:
        """Return the range from `start` to `end` of each part.

        Raises:
            InvalidInput: it is a topic, where a sequence is another batch in each partition.
            Trimmed: `start` is gone.
        """
        if self.is_topic:
            start, end = (None if place is None else check_place(place) for place in (start, end))
        return in_parallel(lambda part: part.between(start, end), self.parts)


def take_snapshot(
    store: ObjectStore, start: Place | None = None, *, hold: bool, clock: Clock | None = None
) -> Snapshot:
    """Return what a buffer or topic holds now.

    Args:
        store: the buffer or topic.
        start: the first batch that a hold keeps; None is the oldest.
        hold: keep it from the collector. A buffer of version 1 has no holds.
        clock: decides when holds are renewed.

    Raises:
        NotFound: there is neither a buffer nor a topic.
        Trimmed: `start` is gone.
        Denied: a hold needs the right to write.
    """
    found = open_buffer_or_topic(store, must_exist=True, role="spark")
    from_ = "earliest" if start is None else start
    holds = _hold(found, from_, clock) if hold else ()
    if isinstance(found, Topic):
        queues = [found.open_queue(number, "spark") for number in range(len(holds) or found.partitions)]
    else:
        queues = [found]
    parts = (
        [Part(queue, held.head, held.first, held.last + 1) for queue, held in zip(queues, holds, strict=True)]
        if holds
        else in_parallel(_look, queues)
    )
    # guard: read the schemas after the batches, so that no batch is of a newer version
    ids = found.refresh().schemas if isinstance(found, Topic) else parts[0].state.schemas
    newest = Schemas(store, clock=SystemClock()).load(ids[-1]) if ids else None
    return Snapshot(isinstance(found, Topic), tuple(parts), holds, newest)


def _hold(found: Queue | Topic, from_: Place, clock: Clock | None) -> tuple[HeldRange, ...]:
    if not isinstance(found, Topic) and found.read().version == 1:
        return ()
    try:
        if isinstance(found, Topic):
            return hold_topic(found, from_, "latest", ttl=_TTL, purpose=_PURPOSE).partitions
        return (hold_range(found, from_, "latest", ttl=_TTL, purpose=_PURPOSE, clock=clock),)
    except Denied as error:
        raise Denied(
            f"{error}. Spark's driver writes a hold into the manifest. If you may only read, use "
            "`forebay.runtime.spark.read` with hold_for=0"
        ) from error


def count_entries(
    url: StoreUrl, start: Place | None, end: Place | None, storage_options: Mapping[str, Any] | None
) -> int:
    """Return how many entries a buffer or topic has; `forebay.runtime.spark.count` explains it."""
    snapshot = take_snapshot(open_store(url, storage_options), hold=False)
    counts = [part.count() for part in snapshot.between(start, end)]
    known = [found for found in counts if found is not None]
    if len(known) < len(counts):
        raise Unsupported(f"{url}: the manifest does not tell how many entries batches of version 1 have: read them")
    return sum(known)


def _look(queue: Queue) -> Part:
    state = queue.last_seen() or queue.read_existing()
    return Part(queue, state, state.first_sequence, state.next_sequence)
