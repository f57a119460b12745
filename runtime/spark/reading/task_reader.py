"""What a reading task does: fetch and decode batches ahead of Spark, within a memory limit, and yield their rows."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import Corrupt, InvalidInput, NotFound, Trimmed
from forebay.buffer.holds import keep_hold
from forebay.buffer.manifest import Queue
from forebay.buffer.read.ahead import AheadLimits, fetch_ahead
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.read.missing import check_still_listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.holds import Held
    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.read.threads import Coming
    from forebay.runtime.spark.reading.plan import Piece, SourceBuffer, Task
    from forebay.runtime.spark.reading.rows import Rows

_log = logging.getLogger("forebay.spark")

_AHEAD = AheadLimits(threads=4, batches=18, decoded=2, max_bytes=64 << 20)
"""Twice as much memory took up to a tenth more processor time (rfcs/0008)."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the pieces of a task. It can be pickled: Spark sends it to the tasks with the reader."""

    skip_corrupt: bool
    """Skip and count batches that are damaged, or that are missing although the manifest lists them."""
    skip_trimmed: bool = False
    """Skip and count batches that were trimmed before they could be read."""

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
                held = holds.get(piece.source.partition)
                if not task.rows.needs_objects and all(batch.facts is not None for batch in piece.batches):
                    yield from task.rows.listed(piece.batches, piece.source.partition)
                else:
                    yield from self._read_piece(task.rows, piece, held)

    def _read_piece(self, rows: Rows, piece: Piece, held: Held | None) -> Iterator[pa.RecordBatch]:
        skipped = 0
        fetcher = FetchHandle(piece.source.store, columns=rows.decoded)
        for descriptor, coming in fetch_ahead(fetcher, piece.batches, _AHEAD, name="forebay-spark"):
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
            yield from rows.slices(batch, piece.source.partition)
            del batch, coming  # before the next ones are fetched in its place
        if skipped:
            _log.warning("%s: %d of %d batches were skipped", piece.source.store.url, skipped, len(piece.batches))

    def _skips(self, error: Corrupt | NotFound | Trimmed) -> bool:
        if isinstance(error, Trimmed):
            return self.skip_trimmed
        return self.skip_corrupt and not (isinstance(error, NotFound) and error.bucket)


def _wait_for(coming: Coming[Batch], descriptor: BatchDescriptor, source: SourceBuffer, held: Held | None) -> Batch:
    try:
        return coming.result()
    except NotFound as error:
        if held is not None and not error.bucket:
            held.renew()  # an expired hold says more than what came of it
        check_still_listed(descriptor, error, Queue(source.store, source.manifest_path, role="spark"))
        raise
    except InvalidInput as error:
        raise InvalidInput(
            f"{source.store.url}, batch {descriptor.sequence}: {error}. The schema of the buffer is wider than that of "
            "the query: read it again, or start the stream again"
        ) from error
