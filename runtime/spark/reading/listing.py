"""Which batches a batch read has to read: what the manifests list in a range, and a hold that keeps it (rfcs/0008)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import parse_time
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Denied, InvalidInput, Trimmed
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.groups import describe_group
from forebay.buffer.holds import hold_range
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.topic import Topic
from forebay.buffer.topic.topic import in_parallel
from forebay.runtime.spark.options import naming_credentials
from forebay.runtime.spark.reading.plan import Piece, SourceBuffer
from forebay.runtime.spark.reading.times import TimeRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue, State
    from forebay.buffer.manifest.lease import Ticket
    from forebay.buffer.store import ObjectStore


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Which part of a buffer or topic is read. Without any of these, all of it.

    Raises:
        InvalidInput: there are two beginnings or two ends, or a time that cannot be read.
    """

    first: int | None = None
    """The first sequence."""
    last: int | None = None
    """The last sequence."""
    since: str | None = None
    """A time: entries taken in at it or later."""
    until: str | None = None
    """A time: entries taken in before it."""
    group: str | None = None
    """A group: from where it stands. It does not move."""

    def __post_init__(self) -> None:
        if sum(found is not None for found in (self.first, self.since, self.group)) > 1:
            raise InvalidInput("options startingSequence, startingTime and group exclude each other; give one of them")
        if self.last is not None and self.until is not None:
            raise InvalidInput("options endingSequence and endingTime exclude each other; give one of them")
        _ = self.times  # raises if a time cannot be read

    @property
    def times(self) -> TimeRange:
        """Which rows belong to it, by their ingestion time."""
        return TimeRange(*(None if text is None else parse_time(text) for text in (self.since, self.until)))


@dataclass(frozen=True, slots=True)
class Source:
    """A buffer or topic whose manifest, or record, was just read."""

    found: Queue | Topic
    schema: pa.Schema | None
    """The newest schema of a typed buffer or topic; None if it holds bytes, or nothing yet."""


def open_source(store: ObjectStore, manifest_path: str, *, must_exist: bool) -> Source:
    """Return what is at a store.

    Raises:
        NotFound: `must_exist` is set, and there is neither a buffer nor a topic.
        Corrupt: its schema is damaged or missing.
    """
    with naming_credentials():
        found = open_buffer_or_topic(store, manifest_path, must_exist=must_exist, role="spark")
    seen = found.record if isinstance(found, Topic) else found.last_seen()
    ids = () if seen is None else seen.schemas
    return Source(found, Schemas(store, clock=SystemClock()).load(ids[-1]) if ids else None)


def list_batches(source: Source, wanted: ReadRange, *, hold_seconds: float) -> list[Piece]:
    """Return the batches of a range in a buffer, or in each partition of a topic, and take holds on them.

    Batches that are empty, or have no entry in the range of time, are left out.

    Args:
        source: the buffer or topic.
        wanted: the range.
        hold_seconds: how long the holds last if nobody renews them; with 0, and in version 1, there are none.

    Raises:
        InvalidInput: there is no such range.
        Trimmed: its beginning is gone.
        Denied: holds need the right to write.
    """
    found = source.found
    if not isinstance(found, Topic):
        return [_list(0, found, wanted, hold_seconds)]
    if wanted.first is not None or wanted.last is not None:
        raise InvalidInput(
            f"{found.url} is a topic, where a sequence is another batch in each partition: "
            "use startingTime and endingTime, or the URL of one partition"
        )
    return in_parallel(
        lambda number: _list(number, found.open_queue(number, "spark"), wanted, hold_seconds), range(found.partitions)
    )


def list_parts(source: Source, parts: Sequence[tuple[int, int]]) -> list[Piece]:
    """Return the batches of a buffer, or of each partition of a topic, that somebody else has planned and holds.

    Args:
        source: the buffer or topic.
        parts: of each partition, the first sequence and the sequence after the last one.

    Raises:
        Trimmed: they are gone, since nobody holds them any more.
    """

    def list_part(number: int) -> Piece:
        queue = source.found.open_queue(number, "spark") if isinstance(source.found, Topic) else source.found
        first, end = parts[number]
        listed = descriptors_between(queue, first, end, state=queue.last_seen() or queue.read_existing())
        kept = tuple(batch for batch in listed if not _is_empty(batch))
        return Piece(SourceBuffer(queue.store, number, queue.manifest_path), kept)

    return in_parallel(list_part, range(len(parts)))


def _list(number: int, queue: Queue, wanted: ReadRange, hold_seconds: float) -> Piece:
    try:
        batches, ticket = _look(queue, wanted, hold_seconds)
    except Trimmed as error:
        raise Trimmed(f"{queue.store.url}: {error}", first=error.first) from error
    times = wanted.times
    kept = (batch for batch in batches if not _is_empty(batch) and times.meets(batch))
    return Piece(SourceBuffer(queue.store, number, queue.manifest_path, ticket), tuple(kept))


def _look(queue: Queue, wanted: ReadRange, hold_seconds: float) -> tuple[list[BatchDescriptor], Ticket | None]:
    """Return the batches of the range, and the ticket of the hold that keeps them, if there is one."""
    state = queue.last_seen() or queue.read_existing()
    from_, upto = _bounds(queue, state, wanted)
    if state.version == 1 or hold_seconds == 0:
        first, end = queue.sequence_of(from_, state=state), queue.end_of(upto, state=state)
        return queue.descriptors(first, max(0, end - first), state=state), None
    try:
        held = hold_range(queue, from_, upto, ttl=hold_seconds, purpose="a batch read by Spark")
    except Denied as error:
        raise Denied(
            f"{error}. A batch read writes a hold into the manifest. If you may only read, set the option holdSeconds=0"
        ) from error
    with held:
        return list(held.descriptors()), held.hand_over()


def _bounds(queue: Queue, state: State, wanted: ReadRange) -> tuple[str | int, str | int]:
    """Return the first place and the last one, as the manifest takes them."""
    # Version 1 knows no times: then it is all of it, and what the metadata of each batch tells decides.
    since, until = (wanted.since, wanted.until) if state.version != 1 else (None, None)
    from_: str | int = "earliest" if since is None else since
    if wanted.group is not None:
        group = describe_group(queue.store, queue.as_head(state), wanted.group)
        from_ = group.start if group.acked is None else group.acked + 1
    elif wanted.first is not None:
        from_ = wanted.first
    upto: str | int = "latest" if until is None else until
    return from_, upto if wanted.last is None else wanted.last


def _is_empty(batch: BatchDescriptor) -> bool:
    return batch.facts is not None and batch.facts.records == 0
