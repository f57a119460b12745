"""Which batches a job reads, and in how many tasks: packed by bytes, from the manifest's facts alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.read.ahead import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest.lease import Ticket
    from forebay.buffer.store import ObjectStore
    from forebay.runtime.spark.options import Options
    from forebay.runtime.spark.reading.rows import Rows

SIZING_OPTIONS = ("maxPartitionBytes", "minPartitions")
_MAX_PARTITION_BYTES = 256 << 20
_MOST_PARTITION_BYTES = 1 << 30
"""No task has more than this, unless a single batch has."""
_WORTH_A_TASK = 32 << 20
"""A task costs Spark about a tenth of a second, in which this much could be read."""
_TASKS_PER_CORE = 2
_LEAST_BYTES = 256 << 10
"""What a batch counts for at least if its object is read: a request takes about as long as reading this much."""
_LISTED_ROW_BYTES = 32
"""What a row counts for if the manifest alone tells its columns."""


@dataclass(frozen=True, slots=True)
class SourceBuffer:
    """A buffer that a job reads, which may be a topic's partition. It can be pickled; credentials are sealed."""

    store: ObjectStore
    partition: int
    manifest_path: str
    hold: Ticket | None = None
    """The hold that keeps the batches while the job runs. None if the job has no hold."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one source, in order."""

    source: SourceBuffer
    batches: tuple[BatchDescriptor, ...]


class Task(InputPartition):
    """What one task reads: pieces, one after the other."""

    def __init__(self, rows: Rows, pieces: Sequence[Piece], sources: Sequence[SourceBuffer]) -> None:
        super().__init__(None)
        self.rows = rows
        """Makes its rows."""
        self.pieces: Final = tuple(pieces)
        self.sources: Final = tuple(sources)
        """All that the job reads: each task keeps the holds of all, since others may wait long for their turn."""

    def __repr__(self) -> str:
        return f"Task({counted(sum(len(piece.batches) for piece in self.pieces), 'batch')})"


@dataclass(frozen=True, slots=True)
class Sizing:
    """How much a task gets."""

    max_partition_bytes: int
    """Maximum bytes of entries in a task, before compression. A task has at least one batch."""
    min_partitions: int | None
    """Minimum number of tasks, if there are enough batches. None is two per core, but no tiny ones."""

    @classmethod
    def of(cls, options: Options) -> Sizing:
        """What the options say."""
        most = options.whole("maxPartitionBytes", least=1) or _MAX_PARTITION_BYTES
        if most > _MOST_PARTITION_BYTES:
            raise InvalidInput(f"option maxPartitionBytes must be at most {_MOST_PARTITION_BYTES} (1 GiB), not {most}")
        return cls(most, options.whole("minPartitions", least=1))

    def pack(self, pieces: Iterable[Piece], rows: Rows) -> list[Task]:
        """Cut what is to be read into tasks of about the same size, each a run of batches in order."""
        pieces = list(pieces)
        sources = [piece.source for piece in pieces]
        found = [(piece.source, batch, _weigh(batch, rows)) for piece in pieces for batch in piece.batches]
        total = sum(size for _source, _batch, size in found)
        count = self._count(total)
        tasks: list[list[tuple[SourceBuffer, BatchDescriptor]]] = []
        before, current, filled = 0, -1, 0
        for source, batch, size in found:
            # By its middle, so that a large one goes where most of it would.
            number = (before + size // 2) * count // max(1, total)
            if number != current or filled + size > _MOST_PARTITION_BYTES:
                tasks.append([])
                current, filled = number, 0
            tasks[-1].append((source, batch))
            before, filled = before + size, filled + size
        return [Task(rows, _pieces(found), sources) for found in tasks]

    def _count(self, total: int) -> int:
        needed = -(-total // self.max_partition_bytes)
        if self.min_partitions is not None:
            return max(1, needed, self.min_partitions)
        # Spark tells a data source nothing of its cluster; the machine that plans is the best guess there is.
        return max(needed, count_tasks(total, os.cpu_count() or 1))


def count_tasks(total: int, cores: int) -> int:
    """Return in how many tasks it pays to read a number of bytes on a number of cores."""
    return max(1, min(_TASKS_PER_CORE * cores, -(-total // _WORTH_A_TASK)))


def _weigh(batch: BatchDescriptor, rows: Rows) -> int:
    """What a batch counts for, in bytes before compression."""
    facts = batch.facts
    if facts is not None and not rows.needs_objects:
        return facts.records * _LISTED_ROW_BYTES
    return max(_LEAST_BYTES, size_of(batch))


def _pieces(found: list[tuple[SourceBuffer, BatchDescriptor]]) -> list[Piece]:
    runs = [list(run) for _partition, run in groupby(found, key=lambda pair: pair[0].partition)]
    return [Piece(run[0][0], tuple(batch for _source, batch in run)) for run in runs]
