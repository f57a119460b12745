"""What a task does: fetch ahead of Spark's pull, within a bound of memory, decode, and yield rows."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer import metrics
from forebay.buffer.errors import Corrupt, NotFound, Trimmed
from forebay.buffer.fetch import FetchHandle
from forebay.buffer.holds import keep_hold
from forebay.buffer.manifest import Queue
from forebay.runtime.spark.plan import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from forebay.buffer.fetch import Batch
    from forebay.buffer.holds import KeptHold
    from forebay.buffer.model import BatchDescriptor
    from forebay.buffer.store import ObjectStore, StoredObject
    from forebay.runtime.spark.plan import Piece, Source, Task
    from forebay.runtime.spark.rows import Rows

_log = logging.getLogger("forebay.spark")

_THREADS = 4
_AHEAD_BYTES = 128 << 20
"""A task holds batches of so many bytes at most, counted as decoded: the one that Spark pulls from, which is, and those
behind it, which are not yet; or one batch, if that is larger."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How a task reads its pieces. Pickles: tasks get it with their reader."""

    rows: Rows
    skip_corrupt: bool
    """Go on without batches that are damaged, or missing though the manifest lists them, and count them."""
    skip_trimmed: bool = False
    """Go on without batches that were trimmed before they could be read, and count them."""

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's pieces, in order, keeping the job's holds meanwhile.

        Raises:
            Fenced: a hold of the job expired: what it planned to read may be gone.
            Corrupt: a batch is damaged.
            NotFound: a batch is missing.
            Trimmed: a batch was trimmed before it could be read.
        """
        with ExitStack() as stack:
            holds = {
                source.partition: stack.enter_context(
                    keep_hold(source.store, source.hold, manifest_path=source.manifest_path)
                )
                for source in task.sources
                if source.hold is not None
            }
            for piece in task.pieces:
                yield from self._read_piece(piece, holds.get(piece.source.partition))

    def _read_piece(self, piece: Piece, held: KeptHold | None) -> Iterator[pa.RecordBatch]:
        skipped = 0
        for descriptor, fetcher in _fetch_ahead(piece):
            if held is not None:
                held.check()
            try:
                batch = _fetch(fetcher, piece.source, descriptor, held)
            except (Corrupt, NotFound, Trimmed) as error:
                if not self._skips(error):
                    raise
                skipped += 1
                metrics.batches_skipped.add(1, {"buffer": piece.source.store.url})
                _log.warning("batch %d is skipped: %s", descriptor.sequence, error)
                continue
            yield from self.rows.slices(batch, piece.source.partition)
            del batch  # before the next ones are fetched in its place
        if skipped:
            _log.warning("%s: %d of %d batches were skipped", piece.source.store.url, skipped, len(piece.batches))

    def _skips(self, error: Corrupt | NotFound | Trimmed) -> bool:
        if isinstance(error, Trimmed):
            return self.skip_trimmed
        return self.skip_corrupt and not (isinstance(error, NotFound) and error.bucket)


class _ReadAhead(FetchHandle):
    """Reads objects ahead on threads of its own, and decodes each on the thread that asks for it.

    Spark gives a task one core, on which threads that decode ahead take turns with the one that hands over: four of
    them took about a fifth more processor time (rfcs/0008).
    """

    def __init__(self, store: ObjectStore, threads: int) -> None:
        super().__init__(store)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="forebay-spark")
        self._arriving: dict[int, Future[StoredObject]] = {}

    def start(self, descriptor: BatchDescriptor) -> None:
        """Begin to read what will be fetched later."""
        self._arriving[descriptor.sequence] = self._threads.submit(super()._read, descriptor)

    def stop(self) -> None:
        """Read nothing more."""
        self._threads.shutdown(cancel_futures=True)

    def _read(self, descriptor: BatchDescriptor) -> StoredObject:
        return self._arriving.pop(descriptor.sequence).result()


def _fetch_ahead(piece: Piece) -> Iterator[tuple[BatchDescriptor, FetchHandle]]:
    """Yield what to fetch next, and by what, while as many behind it as the memory allows are on their way."""
    fetcher = _ReadAhead(piece.source.store, min(_THREADS, len(piece.batches)))
    ahead: deque[BatchDescriptor] = deque()
    held = 0
    try:
        for descriptor in piece.batches:
            while ahead and held + size_of(descriptor) > _AHEAD_BYTES:
                yield ahead[0], fetcher
                held -= size_of(ahead.popleft())
            fetcher.start(descriptor)
            ahead.append(descriptor)
            held += size_of(descriptor)
        for descriptor in ahead:
            yield descriptor, fetcher
    finally:
        fetcher.stop()


def _fetch(fetcher: FetchHandle, source: Source, descriptor: BatchDescriptor, held: KeptHold | None) -> Batch:
    try:
        return fetcher.fetch(descriptor)
    except NotFound as error:
        if error.bucket:
            raise
        if held is not None:
            held.renew()  # an expired hold says more than what came of it
        first = Queue(source.store, source.manifest_path, role="spark").read().first_sequence
        if descriptor.sequence < first:
            raise Trimmed(
                f"{source.store.url}: batch {descriptor.sequence} was trimmed before it could be read; the first one "
                f"left is {first}",
                first=first,
            ) from None
        raise
