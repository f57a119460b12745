"""Fetches batches ahead of their reader, in order, within limits on their number and memory."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.read.threads import Coming, FetchThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.fetch import Batch, FetchHandle

_UNKNOWN_BYTES: Final = 16 << 20
"""Assumed size of a batch of version 1, whose manifest does not tell."""

P = TypeVar("P")
"""What the reader knows a batch by."""


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """How far to fetch ahead of the reader."""

    threads: int
    """Number of objects that are read at once."""
    batches: int
    """Maximum number of batches that are being read, decoded or handed over, regardless of size."""
    decoded: int = 2
    """Maximum number of decoded batches, including the one handed over."""
    decoders: int = 1
    """Number of batches that are decoded at once."""
    max_bytes: float = math.inf
    """Maximum memory of all of them, decoded batches as they are decoded and the others as they are stored. Where
    batches are larger, the decoded ones and one more object."""
    step_bytes: int | None = None
    """About how many bytes of rows become a chunk of a typed batch's table; None for large chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """How far the iteration over a consumer fetches ahead of the program."""

    batches: int = 32
    """Maximum number of batches that are being fetched or wait to be handed over. With 0, a batch is looked for and
    fetched only when the program asks for it."""
    max_bytes: int = 32 << 20
    """Maximum memory of these batches in bytes: one of them as it is decoded, the others as they are stored. The batch
    that was handed over does not count, nor does the object of a batch while it is decoded. Where batches are larger:
    one decoded batch and one more object."""
    max_age: float = 1.0
    """Maximum time in seconds between the beginning of the last look at the manifest or cursor and the moment at which
    a batch is handed over. It limits how long a consumer reads on after another one has taken over."""

    def __post_init__(self) -> None:
        check_whole(self.batches, "batches")
        check_whole(self.max_bytes, "max_bytes", least=1)
        check_seconds(self.max_age, "max_age")

    @property
    def limits(self) -> AheadLimits:
        """The same for a `FetchWindow`."""
        threads = min(self.batches, _MAX_READS) or 1
        return AheadLimits(threads, self.batches, decoded=1, max_bytes=self.max_bytes, step_bytes=_STEP_BYTES)


_MAX_READS: Final = 16
"""Maximum number of objects that one consumer reads at once."""
_STEP_BYTES: Final = 2 << 20
"""Arrow doubles an array while it grows, and its allocator keeps the smaller ones: with a whole batch in one array, a
consumer of texts of 1 KiB took 60 MiB more, and as much time."""


class Fetch(Generic[P]):
    """One batch on its way."""

    __slots__ = ("batch", "data", "descriptor", "fetcher", "is_late", "place")

    def __init__(self, place: P, fetcher: FetchHandle, descriptor: BatchDescriptor) -> None:
        self.place: Final = place
        """What the reader knows it by."""
        self.fetcher: Final = fetcher
        self.descriptor: Final = descriptor
        self.batch: Coming[Batch] = Coming()
        """Gives the batch, or raises what `FetchHandle.fetch` does."""
        self.data: Coming[tuple[bytes | memoryview, float]] | None = None
        """Gives the object, and how many seconds it took to read it; None once it is being decoded."""
        self.is_late: bool = False
        """For the reader: whether it has put off handing over this batch before."""


class FetchWindow(Generic[P]):
    """The batches that come next, each being read or decoded already, in order and within limits.

    Many threads read, and few decode: what is decoded long before it is used has left the processor's caches
    (rfcs/0008). An error of one batch does not stop the others. The caller holds a lock.

    Args:
        limits: how far to fetch ahead.
        name: what the names of the threads begin with.
        tell: called by a thread each time that a batch is there, or cannot be had.
    """

    def __init__(self, limits: AheadLimits, *, name: str, tell: Callable[[], None] | None = None) -> None:
        self._limits = limits
        self._tell = tell
        self._fetches: deque[Fetch[P]] = deque()
        self._left_behind: list[tuple[BatchDescriptor, Coming[Any]]] = []
        """What was cleared while a thread was at it. It takes memory until the thread has ended it."""
        self._readers = FetchThreads(limits.threads, f"{name}-read")
        self._decoder = FetchThreads(limits.decoders, f"{name}-decode")

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def first(self) -> Fetch[P] | None:
        """The batch that comes next; None if there is none."""
        return self._fetches[0] if self._fetches else None

    def has_room(self, descriptor: BatchDescriptor) -> bool:
        """Whether the limits allow to fetch one more batch."""
        # guard: bound the number of batches fetched ahead
        if len(self._fetches) >= self._limits.batches:
            return False
        if len(self._fetches) <= self._limits.decoded and not self._left_behind:
            return True
        self._left_behind = [(left, work) for left, work in self._left_behind if not work.done()]
        waiting = [descriptor, *(fetch.descriptor for fetch in self._fetches), *(left for left, _ in self._left_behind)]
        # Those that take the most memory count as decoded: each of them will be, sooner or later.
        growth = nlargest(self._limits.decoded, (size_of(batch) - stored_size_of(batch) for batch in waiting))
        # guard: bound the memory of batches fetched ahead
        return sum(map(stored_size_of, waiting)) + sum(growth) <= self._limits.max_bytes or not self._fetches

    def add(self, place: P, fetcher: FetchHandle, descriptor: BatchDescriptor) -> None:
        """Begin to fetch one more batch, after the others."""
        fetch = Fetch(place, fetcher, descriptor)
        if self._tell is not None:
            fetch.batch.when_done(self._tell)
        fetch.data = self._readers.submit(partial(_read, fetcher, descriptor))
        if len(self._fetches) < self._limits.decoded:
            self._decode(fetch)
        self._fetches.append(fetch)  # last: an interrupt before leaves nothing here that never comes

    def pop(self) -> None:
        """Forget the first batch, which the reader has, and decode one more."""
        fetches = self._fetches  # `close` may put an empty one in its place meanwhile
        if len(fetches) > self._limits.decoded:
            self._decode(fetches[self._limits.decoded])
        if fetches:
            fetches.popleft()

    def clear(self) -> None:
        """Forget all batches, and stop fetching them. A read that has begun goes on until it ends."""
        fetches, self._fetches = self._fetches, deque()
        for fetch in list(fetches):
            work: Coming[Any] = fetch.data or fetch.batch
            if not work.cancel() and not work.done():
                self._left_behind.append((fetch.descriptor, work))
            fetch.batch.cancel()

    def close(self, timeout: float | None = None) -> None:
        """Forget all batches and let the threads end; see `FetchThreads.close`. Needs no lock."""
        self.clear()
        for threads in (self._readers, self._decoder):
            threads.close(timeout)

    def _decode(self, fetch: Fetch[P]) -> None:
        """Decode a batch as soon as its object is here."""
        data = fetch.data
        if data is None:
            return

        def start() -> None:
            step_bytes = self._limits.step_bytes
            try:
                self._decoder.run(fetch.batch, partial(_decode, fetch.fetcher, fetch.descriptor, data, step_bytes))
            except Exception as error:  # an interrupt is the caller's: the reader discards the batch
                fetch.batch.fail(error)  # guard: a batch that no thread can decode raises why
                raise
            fetch.data = None  # the object is not needed any more once it is decoded

        data.when_done(start)


def _read(fetcher: FetchHandle, descriptor: BatchDescriptor) -> tuple[bytes | memoryview, float]:
    began = fetcher.clock.monotonic()
    return fetcher.fetch_raw(descriptor), fetcher.clock.monotonic() - began


def _decode(
    fetcher: FetchHandle,
    descriptor: BatchDescriptor,
    coming: Coming[tuple[bytes | memoryview, float]],
    step_bytes: int | None,
) -> Batch:
    data, seconds = coming.result()
    began = fetcher.clock.monotonic()
    batch = fetcher.decode(descriptor, data, step_bytes=step_bytes)
    seconds += fetcher.clock.monotonic() - began
    metrics.fetch_duration.record(seconds, {"buffer": fetcher.store.url})
    return batch


def fetch_ahead(
    fetcher: FetchHandle, batches: Iterable[BatchDescriptor], limits: AheadLimits, *, name: str
) -> Iterator[tuple[BatchDescriptor, Coming[Batch]]]:
    """Yield the batches in order, while as many of the next ones as the limits allow are on their way.

    What is yielded with each descriptor gives the batch, or raises what `FetchHandle.fetch` does. An error of
    one batch does not stop the others. The names of the threads begin with `name`.
    """
    source = iter(batches)
    following = next(source, None)
    window: FetchWindow[BatchDescriptor] = FetchWindow(limits, name=name)
    try:
        while following is not None or window:
            if following is not None and window.has_room(following):
                window.add(following, fetcher, following)
                following = next(source, None)
            elif (first := window.first) is not None:
                yield first.place, first.batch
                del first  # the batch must not stay here while the next ones are fetched in its place
                window.pop()
    finally:
        window.close()


def size_of(batch: BatchDescriptor) -> int:
    """The bytes of a batch's entries before compression, as far as the manifest knows."""
    return _UNKNOWN_BYTES if batch.facts is None else batch.facts.raw_bytes


def stored_size_of(batch: BatchDescriptor) -> int:
    """The bytes of a batch's object, as far as the manifest knows."""
    return _UNKNOWN_BYTES if batch.facts is None else batch.facts.object_bytes
