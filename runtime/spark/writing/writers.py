"""A DataFrame into a buffer or a topic: tasks store batches, the driver lists all of them at once (rfcs/0008).

Spark makes these objects in several processes, and hands them from one to the other pickled. A batch writer goes on to
the tasks and to the commit, a stream writer is made anew for each. So they hold nothing that has to be closed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from forebay.buffer.base.checks import check_name
from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import Closed, ForebayError, InvalidInput
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.manifest.lease import check_ttl
from forebay.buffer.topic import Topic
from forebay.buffer.topic.schemas import open_topic_format
from forebay.buffer.topic.topic import in_parallel
from forebay.buffer.write.formats import open_format
from forebay.runtime.spark.options import Options, naming_credentials
from forebay.runtime.spark.shipping import Shipped
from forebay.runtime.spark.writing.commit import EpochCommitter, EpochRecord, commit_job
from forebay.runtime.spark.writing.frame import check_frame
from forebay.runtime.spark.writing.task_writer import TaskWriter
from forebay.runtime.spark.writing.write_job import WriteJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from forebay.buffer.format.model import NewBatch

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0: the source refuses to write streams there
        DataSourceStreamArrowWriter = object

_log = logging.getLogger("forebay.spark")

LEASE_SECONDS: Final = 86_400.0
FLUSH_SIZE_BYTES: Final = 64 << 20
_OPTIONS: Final = ("leaseSeconds", "flushSizeBytes", "keyColumn", "manifestPath")
_STREAM_OPTIONS: Final = (*_OPTIONS, "writerId", "checkpointLocation")  # the last is Spark's own, handed to everyone
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class Stored(WriterCommitMessage):
    """What a task has stored."""

    batches: tuple[tuple[int, NewBatch], ...]
    """Each with its partition, in the order of the rows."""
    query_id: str | None = None
    """The streaming query that the task belongs to."""


class BatchWriter(Shipped, DataSourceArrowWriter):
    """Writes a DataFrame: all of its rows can be read at the end, or none (in a topic, of each partition)."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        hold_id = f"{system_random().getrandbits(128):032x}"
        self._job = _plan(Options(given, _OPTIONS), schema, hold_id)
        if overwrite:
            raise InvalidInput(f'{self._job.store.url}: a buffer is only ever appended to: use mode("append")')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Store one task's rows."""
        return _store(self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the job's rows readable, by one append."""
        commit_job(self._job, _gather(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Let the collector have what was stored. It is not deleted here: an append in doubt may have listed it."""
        _in_all_partitions(self._job, self._job.end)


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Writes a streaming DataFrame: each epoch once, whatever is replayed."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options(given, _STREAM_OPTIONS)
        writer_id = options.text("writerId")
        if writer_id is None:
            raise InvalidInput(
                f"{options.url}: a stream needs the option writerId: set it to a name that stays the same across "
                "restarts, by which forebay writes each micro-batch once"
            )
        self._writer_id = check_name(writer_id, "writerId")
        self._job = _plan(options, schema, f"spark.{writer_id}")
        if overwrite:
            raise InvalidInput(f'{self._job.store.url}: a buffer is only ever appended to: use outputMode("append")')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Store one task's rows."""
        return _store(self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Make an epoch's rows readable, unless they are."""
        query_ids = _query_ids(messages)
        if query_ids:
            EpochCommitter(self._job, self._writer_id).commit(EpochRecord(query_ids.pop(), batchId, _gather(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Let the collector have what was stored, unless a replay is going to list it."""
        if not EpochCommitter(self._job, self._writer_id).is_recorded(batchId, _query_ids(messages)):
            _in_all_partitions(self._job, self._job.let_go)


def _plan(options: Options, schema: StructType, hold_id: str) -> WriteJob:
    store = options.open_store()
    with naming_credentials():
        found = open_buffer_or_topic(store, options.manifest_path, role="spark")
    if isinstance(found, Topic):
        partitions, rows = found.partitions, open_topic_format(found, None, evolve=False)
    else:
        partitions, rows = 0, open_format(found, found.last_seen() or found.read())
    frame = check_frame(schema, rows, options.text("keyColumn"), url=store.url, partitions=partitions)
    return WriteJob(
        store,
        partitions,
        hold_id,
        check_ttl(options.seconds("leaseSeconds", LEASE_SECONDS), "leaseSeconds"),
        options.whole("flushSizeBytes", least=1) or FLUSH_SIZE_BYTES,
        options.manifest_path,
        frame,
    )


def _store(job: WriteJob, rows: Iterator[pa.RecordBatch]) -> Stored:
    context = TaskContext.get()
    if context is None:
        raise Closed(
            f"{job.store.url}: rows are written by the tasks of Spark, and this is the driver: use "
            "df.write or df.writeStream"
        )
    return Stored(TaskWriter(job, context.partitionId()).store(rows), context.getLocalProperty(_QUERY_ID))


def _gather(messages: Sequence[WriterCommitMessage | None]) -> tuple[tuple[int, NewBatch], ...]:
    """Return what all tasks have stored, in the order of Spark's partitions."""
    return tuple(found for message in messages if isinstance(message, Stored) for found in message.batches)


def _query_ids(messages: Sequence[WriterCommitMessage | None]) -> set[str | None]:
    """Return the id of the query, which all of its tasks were told; nothing if all of them failed."""
    return {message.query_id for message in messages if isinstance(message, Stored)}


def _in_all_partitions(job: WriteJob, let_go: Callable[[int], None]) -> None:
    """Let go wherever a task may have stored something: those that failed have left no message."""
    try:
        in_parallel(let_go, range(max(job.partitions, 1)))
    except ForebayError:
        _log.warning("%s: what a failed job stored is held until its lease is over", job.store.url, exc_info=True)
