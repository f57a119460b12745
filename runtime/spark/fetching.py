"""What a task does: fetch and decode ahead of Spark's pull, within a bound of memory, and yield rows."""

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
    from forebay.runtime.spark.plan import Piece, Source, Task
    from forebay.runtime.spark.rows import Rows

_log = logging.getLogger("forebay.spark")

_THREADS = 4
_AHEAD_BYTES = 128 << 20
"""A task holds so many bytes of decoded batches at most, the one that Spark pulls from included; or one batch, if that
is larger."""


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
        for descriptor, fetched in _fetch_ahead(piece):
            if held is not None:
                held.check()
            try:
                batch = _result(piece.source, descriptor, fetched, held)
            except (Corrupt, NotFound, Trimmed) as error:
                if not self._skips(error):
                    raise
                skipped += 1
                metrics.batches_skipped.add(1, {"buffer": piece.source.store.url})
                _log.warning("batch %d is skipped: %s", descriptor.sequence, error)
                continue
            yield from self.rows.slices(batch, piece.source.partition)
            del batch, fetched  # before the next ones are fetched in its place
        if skipped:
            _log.warning("%s: %d of %d batches were skipped", piece.source.store.url, skipped, len(piece.batches))

    def _skips(self, error: Corrupt | NotFound | Trimmed) -> bool:
        if isinstance(error, Trimmed):
            return self.skip_trimmed
        return self.skip_corrupt and not (isinstance(error, NotFound) and error.bucket)


def _fetch_ahead(piece: Piece) -> Iterator[tuple[BatchDescriptor, Future[Batch]]]:
    """Yield every batch in order while the next ones are on their way, as many as the memory allows."""
    fetcher = FetchHandle(piece.source.store)
    ahead: deque[tuple[BatchDescriptor, Future[Batch]]] = deque()
    held = 0
    workers = ThreadPoolExecutor(min(_THREADS, len(piece.batches)), thread_name_prefix="forebay-spark")
    try:
        for descriptor in piece.batches:
            while ahead and held + size_of(descriptor) > _AHEAD_BYTES:
                yield ahead[0]
                held -= size_of(ahead.popleft()[0])
            ahead.append((descriptor, workers.submit(fetcher.fetch, descriptor)))
            held += size_of(descriptor)
        while ahead:
            yield ahead[0]
            ahead.popleft()
    finally:
        workers.shutdown(cancel_futures=True)


def _result(source: Source, descriptor: BatchDescriptor, fetched: Future[Batch], held: KeptHold | None) -> Batch:
    try:
        return fetched.result()
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
