"""Yields batches in order while threads fetch the next ones, within limits on their number and memory."""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.fetch import Batch, FetchHandle

_UNKNOWN_BYTES: Final = 16 << 20
"""Assumed size of a batch of version 1, whose manifest does not tell."""


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """How far to fetch ahead of the reader."""

    threads: int
    """Number of objects that are read at once."""
    batches: int
    """Maximum number of batches that are being read, decoded or handed over, regardless of size."""
    decoded: int = 2
    """Maximum number of decoded batches, including the one handed over."""
    max_bytes: float = math.inf
    """Maximum memory of all of them, decoded batches as they are decoded and the others as they are stored. Where
    batches are larger, the decoded ones and one more object."""


def fetch_ahead(
    fetcher: FetchHandle, batches: Iterable[BatchDescriptor], limits: AheadLimits, *, name: str
) -> Iterator[tuple[BatchDescriptor, Future[Batch]]]:
    """Yield the batches in order, while as many of the next ones as the limits allow are on their way.

    The future of the batch that is handed over gives the batch, or raises what `FetchHandle.fetch` does. An error of
    one batch does not stop the others. Many threads read, and one decodes: what is decoded long before it is used has
    left the processor's caches (rfcs/0008). The names of the threads begin with `name`.
    """
    source = iter(batches)
    following = next(source, None)
    reading: deque[tuple[BatchDescriptor, Future[bytes | memoryview]]] = deque()
    decoding: deque[tuple[BatchDescriptor, Future[Batch]]] = deque()
    held = 0
    readers = ThreadPoolExecutor(limits.threads, thread_name_prefix=f"{name}-read")
    decoder = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-decode")

    def decode(descriptor: BatchDescriptor, data: Future[bytes | memoryview]) -> Batch:
        return fetcher.decode(descriptor, data.result())

    try:
        while following is not None or decoding:
            # guard: bound the number of batches fetched ahead
            has_room = len(reading) + len(decoding) < limits.batches
            if following and has_room and (not reading or held + stored_size_of(following) <= limits.max_bytes):
                reading.append((following, readers.submit(fetcher.fetch_raw, following)))
                held += stored_size_of(following)
                following = next(source, None)
            else:
                yield decoding[0]
                held -= size_of(decoding.popleft()[0])
            while reading and len(decoding) < limits.decoded:
                descriptor, data = reading.popleft()
                decoding.append((descriptor, decoder.submit(decode, descriptor, data)))
                held += size_of(descriptor) - stored_size_of(descriptor)
    finally:
        for pool in (readers, decoder):  # in this order: a read that is cancelled ends the decoding that waits for it
            pool.shutdown(cancel_futures=True)


def size_of(batch: BatchDescriptor) -> int:
    """The bytes of a batch's entries before compression, as far as the manifest knows."""
    return _UNKNOWN_BYTES if batch.facts is None else batch.facts.raw_bytes


def stored_size_of(batch: BatchDescriptor) -> int:
    """The bytes of a batch's object, as far as the manifest knows."""
    return _UNKNOWN_BYTES if batch.facts is None else batch.facts.object_bytes
