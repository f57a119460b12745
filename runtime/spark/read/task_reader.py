"""What a reading task does: fetch and decode batches ahead of Spark, within a memory limit, and yield their rows."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import Corrupt, NotFound, Trimmed
from forebay.buffer.holds import keep_hold
from forebay.buffer.manifest import Queue
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.read.missing import check_still_listed
from forebay.runtime.spark.read.plan import size_of, stored_size_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.holds import KeptHold
    from forebay.buffer.read.fetch import Batch
    from forebay.runtime.spark.read.plan import Piece, SourceBuffer, Task
    from forebay.runtime.spark.read.rows import Rows

_log = logging.getLogger("forebay.spark")

_THREADS = 4
"""Maximum number of objects that a task fetches at once."""
_DECODED = 2
"""Maximum number of decoded batches: the one that Spark reads, and the next."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the pieces of a task. It can be pickled: Spark sends it to the tasks with the reader."""

    rows: Rows
    skip_corrupt: bool
    """Skip and count batches that are damaged, or that are missing although the manifest lists them."""
    skip_trimmed: bool = False
    """Skip and count batches that were trimmed before they could be read."""
    ahead_bytes: int = 64 << 20
    """Maximum memory of a task: decoded batches, and the stored bytes of objects that are fetched but not decoded. Two
    batches and their objects may exceed it. With twice as much, a batch has left the processor's caches by the time
    that Spark reads it, which took up to a tenth more processor time (rfcs/0008)."""
    ahead_objects: int = 4 * _THREADS
    """Maximum number of fetched but undecoded objects, regardless of size."""

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
        for descriptor, coming in self._fetch_ahead(piece):
            if held is not None:
                held.check()
            try:
                batch = _wait_for(coming, descriptor, piece.source, held)
            except (Corrupt, NotFound, Trimmed) as error:
                if not self._skips(error):
                    raise
                skipped += 1
                metrics.batches_skipped.add(1, {"buffer": piece.source.store.url})
                _log.warning("batch %d is skipped: %s", descriptor.sequence, error)
                continue
            yield from self.rows.slices(batch, piece.source.partition)
            del batch, coming  # before the next ones are fetched in its place
        if skipped:
            _log.warning("%s: %d of %d batches were skipped", piece.source.store.url, skipped, len(piece.batches))

    def _skips(self, error: Corrupt | NotFound | Trimmed) -> bool:
        if isinstance(error, Trimmed):
            return self.skip_trimmed
        return self.skip_corrupt and not (isinstance(error, NotFound) and error.bucket)

    def _fetch_ahead(self, piece: Piece) -> Iterator[tuple[BatchDescriptor, Future[Batch]]]:
        """Yield the batches in order. Those that follow are fetched meanwhile, as many as the limits allow."""
        fetcher = FetchHandle(piece.source.store)
        waiting = deque(piece.batches)
        reading: deque[tuple[BatchDescriptor, Future[bytes | memoryview]]] = deque()
        decoding: deque[tuple[BatchDescriptor, Future[Batch]]] = deque()
        held = 0
        readers = ThreadPoolExecutor(min(_THREADS, len(waiting)), thread_name_prefix="forebay-spark-read")
        decoder = ThreadPoolExecutor(1, thread_name_prefix="forebay-spark-decode")

        def decode(descriptor: BatchDescriptor, data: Future[bytes | memoryview]) -> Batch:
            return fetcher.decode(descriptor, data.result())

        try:
            while waiting or reading or decoding:
                while reading and len(decoding) < _DECODED:
                    descriptor, data = reading.popleft()
                    decoding.append((descriptor, decoder.submit(decode, descriptor, data)))
                    held += size_of(descriptor) - stored_size_of(descriptor)
                # guard: bound the number of objects read ahead
                fits = (
                    waiting
                    and len(reading) < self.ahead_objects
                    and held + stored_size_of(waiting[0]) <= self.ahead_bytes
                )
                if fits or (waiting and not reading):
                    descriptor = waiting.popleft()
                    reading.append((descriptor, readers.submit(fetcher.fetch_raw, descriptor)))
                    held += stored_size_of(descriptor)
                    continue
                yield decoding[0]
                held -= size_of(decoding.popleft()[0])
        finally:
            for pool in (readers, decoder):  # in this order: what is not read ends what waits for it
                pool.shutdown(cancel_futures=True)


def _wait_for(coming: Future[Batch], descriptor: BatchDescriptor, source: SourceBuffer, held: KeptHold | None) -> Batch:
    try:
        return coming.result()
    except NotFound as error:
        if held is not None and not error.bucket:
            held.renew()  # an expired hold says more than what came of it
        check_still_listed(descriptor, error, Queue(source.store, source.manifest_path, role="spark"))
        raise
