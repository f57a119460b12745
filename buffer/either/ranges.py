"""Reads a range of a buffer or topic. Claims and acknowledges nothing: for inspection and for batch jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from forebay.buffer.base.errors import InvalidInput, Trimmed
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.read.ahead import AheadLimits
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.read.listed_range import ListedRange
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic.batches import PartitionBatch
from forebay.buffer.topic.topic import Topic, check_place, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.read.typed import Columns


@overload
def read_range(
    url: StoreUrl,
    first: str | int | datetime | None = ...,
    last: str | int | datetime | None = ...,
    *,
    columns: Columns | None = ...,
    threads: int = ...,
    storage_options: Mapping[str, Any] | None = ...,
    manifest_path: str = ...,
    clock: Clock | None = ...,
) -> Iterator[Batch]: ...
@overload
def read_range(
    url: Topic,
    first: str | datetime | None = ...,
    last: str | datetime | None = ...,
    *,
    columns: Columns | None = ...,
    threads: int = ...,
) -> Iterator[PartitionBatch]: ...
def read_range(
    url: StoreUrl | Topic,
    first: str | int | datetime | None = None,
    last: str | int | datetime | None = None,
    *,
    columns: Columns | None = None,
    threads: int = 4,
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
) -> Iterator[Batch] | Iterator[PartitionBatch]:
    """Return the batches from `first` to `last`, in order, fetched a few ahead.

    For a topic, each batch comes with its partition, one partition after the other. A type checker cannot tell from a
    URL whether it is a buffer or a topic: pass `Topic(url)` for a topic.

    This call fixes the range. It does not keep the collector from deleting its batches: use `hold` for that.

    Args:
        url: the buffer or topic, or its store if it is open already.
        first: a sequence, a time, `earliest` or `latest`; None is the oldest batch.
        last: a sequence (included), or a time (not included); None is the newest batch. For a topic, use times: a
            sequence belongs to one partition.
        columns: for a typed buffer or topic: names of the columns to decode, or a schema in which to return rows; None
            is all columns of the newest schema.
        threads: maximum number of batches that are fetched at once and held in memory.
        storage_options: credentials, endpoint and client of the store.
        manifest_path: the manifest's key below `url`.
        clock: what fetching is timed by.

    Raises:
        NotFound: there is no such buffer.
        Trimmed: `first` is gone, or, while reading, the rest of the range.
        Unsupported: a time, in a buffer of version 1, which does not store times.
    """
    if threads < 1:
        raise InvalidInput(f"threads must be at least 1, not {threads}")
    first, last = "earliest" if first is None else first, "latest" if last is None else last
    if isinstance(url, Topic):
        return _read_topic(url, first, last, columns, threads)
    store = open_store(url, storage_options)
    return buffer_or_topic(
        lambda: _read(
            ListedRange(Queue(store, manifest_path, role="range", clock=clock), first, last), columns, threads, clock
        ),
        lambda: _read_topic(Topic(store, clock=clock), first, last, columns, threads),
    )


def _read_topic(
    topic: Topic, first: str | int | datetime, last: str | int | datetime, columns: Columns | None, threads: int
) -> Iterator[PartitionBatch]:
    since, until = check_place(first), check_place(last)
    ranges = in_parallel(
        lambda number: ListedRange(topic.open_queue(number, "range"), since, until), range(topic.refresh().partitions)
    )
    return _by_partition(ranges, columns, threads, topic.clock)


def _by_partition(
    ranges: list[ListedRange], columns: Columns | None, threads: int, clock: Clock | None
) -> Iterator[PartitionBatch]:
    for number, found in enumerate(ranges):
        try:
            for batch in _read(found, columns, threads, clock):
                yield PartitionBatch(number, batch)
        except Trimmed as error:
            raise Trimmed(f"partition {number}: {error}", first=error.first) from error


def _read(found: ListedRange, columns: Columns | None, threads: int, clock: Clock | None) -> Iterator[Batch]:
    fetcher = FetchHandle(found.queue.store, columns=columns, clock=clock)
    limits = AheadLimits(threads=threads, batches=threads)
    return found.fetch(found.descriptors(), fetcher, limits, name="forebay-range")
