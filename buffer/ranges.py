"""Reading a range of a buffer without claiming or acknowledging anything: for inspection and for batch jobs."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from forebay.buffer.errors import InvalidInput, NotFound
from forebay.buffer.fetch import FetchHandle
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head import trimmed
from forebay.buffer.store import ObjectStore, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from datetime import datetime
    from typing import Any

    from forebay.buffer.clock import Clock
    from forebay.buffer.fetch import Batch
    from forebay.buffer.manifest import State
    from forebay.buffer.model import BatchDescriptor

_PIECE = 1000


def read_range(
    url: str | ObjectStore,
    first: str | int | datetime | None = None,
    last: str | int | datetime | None = None,
    *,
    threads: int = 4,
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
) -> Iterator[Batch]:
    """Return the batches from `first` to `last`, both included, in order, fetched a few ahead.

    The range is fixed by this call. Nothing keeps it from being trimmed meanwhile: `hold` does.

    Args:
        url: the buffer, or its store if it is open already.
        first: a sequence, a time, `earliest` or `latest`; None is the oldest batch there.
        last: a sequence, or a time, before which its entries were taken in; None is the newest batch there.
        threads: batches fetched at once, and held in memory ahead of the caller.
        storage_options: credentials, endpoint and client of the store.
        manifest_path: the manifest's key below `url`.
        clock: what fetching is timed by.

    Raises:
        NotFound: there is no such buffer.
        Trimmed: `first` is gone, or, while reading, the rest of the range.
        Unsupported: a time, in a buffer of version 1, which knows none.
    """
    if threads < 1:
        raise InvalidInput(f"threads must be at least 1, not {threads}")
    store = url if isinstance(url, ObjectStore) else open_store(url, storage_options)
    queue = Queue(store, manifest_path, role="range", clock=clock)
    state = queue.read_existing()
    start = queue.sequence_of("earliest" if first is None else first, state=state)
    if start < state.first_sequence:
        raise trimmed(start, state.first_sequence)
    end = queue.end_of("latest" if last is None else last, state=state)
    return _fetch_in_order(queue, FetchHandle(store, clock=clock), _plan(queue, state, start, end), threads)


def _plan(queue: Queue, state: State, at: int, end: int) -> Iterator[BatchDescriptor]:
    while at < end:
        found = queue.descriptors(at, min(_PIECE, end - at), state=state)
        yield from found
        at += len(found)


def _fetch_in_order(
    queue: Queue, fetcher: FetchHandle, plan: Iterator[BatchDescriptor], threads: int
) -> Iterator[Batch]:
    ahead: deque[tuple[BatchDescriptor, Future[Batch]]] = deque()
    workers = ThreadPoolExecutor(threads, thread_name_prefix="forebay-range")
    try:
        for descriptor in plan:
            ahead.append((descriptor, workers.submit(fetcher.fetch, descriptor)))
            if len(ahead) == threads:
                yield _result(queue, *ahead.popleft())
        while ahead:
            yield _result(queue, *ahead.popleft())
    finally:
        workers.shutdown(cancel_futures=True)


def _result(queue: Queue, descriptor: BatchDescriptor, fetched: Future[Batch]) -> Batch:
    try:
        return fetched.result()
    except NotFound:
        first = queue.read().first_sequence
        if descriptor.sequence < first:
            raise trimmed(descriptor.sequence, first) from None
        raise
