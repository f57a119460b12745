"""Buffers on a Spark cluster: the data source `forebay`, and frames that a driver plans itself (rfcs/0008).

    read          a frame of a buffer or topic: the fast way for typed ones
    hold          the same for several frames, which all show the same moment
    count         the number of entries, by the manifest alone
    register      makes `forebay` known explicitly; `spark.read.format("forebay")` finds it where forebay is installed
    ensure_java   called before a session is started, finds a Java if the machine has none

Builds on `forebay.buffer`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import Unsupported
from forebay.runtime.spark.java import ensure_java
from forebay.runtime.spark.python import SparkPython, check_python
from forebay.runtime.spark.versions import check_sources

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

    from forebay.buffer.base.clock import Clock
    from forebay.runtime.spark.frames import HeldFrames

__all__ = ["count", "ensure_java", "hold", "read", "register"]


def register(spark: SparkSession) -> None:
    """Make `forebay` known to a session as a data source.

    Raises:
        Unsupported: Spark is older than 4.0, or the Python that it starts for tasks has no forebay. The message says
            what to do.
    """
    check_sources()
    # A session of Spark Connect has no context here: its Python is on the server.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        check_python(SparkPython(context.pythonExec))
    # Here, so that `import forebay.runtime.spark` works without Spark and says so only where Spark is used.
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from forebay.runtime.spark.source import ForebaySource  # noqa: PLC0415

    try:
        spark.dataSource.register(ForebaySource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0, if it found the format before
            raise


def read(
    spark: SparkSession,
    url: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    start: str | int | datetime | None = None,
    end: str | int | datetime | None = None,
    records: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    hold_for: float = 3600.0,
    clock: Clock | None = None,
) -> DataFrame:
    """Return a frame of what a buffer or topic holds now: its columns, or `value` if it holds bytes.

    The Parquet files of a typed buffer are read by Spark's own reader, if the session's Hadoop can open the store.
    Otherwise the frame goes through the format `forebay`. The logger `forebay.spark` says at level INFO which and why.

    A hold keeps the batches from the collector until the session stops, and no longer than `hold_for`. This process
    renews it. A frame that is used later fails if a batch is gone.

    Args:
        spark: the session.
        url: the buffer or topic.
        columns: names of the columns to read, in order; None is all of the newest schema.
        start: the first batch: a sequence, or a time; None is the oldest batch there.
        end: the last batch: a sequence, or a time, before which its entries were taken in; None is the newest batch
            there. Batches are read whole, as by `read_range`. A topic has no sequences of its own.
        records: add the columns that tell where a row comes from, such as `_sequence`. This uses the format.
        storage_options: credentials, endpoint and client of the store.
        hold_for: seconds after which the hold ends; 0 reads without one, and with rights to read alone.
        clock: decides when the hold is renewed and when it ends.

    Raises:
        InvalidInput: there is no such column or range, or the URL is one of memory.
        NotFound: there is no such buffer.
        Trimmed: `start` is gone.
        Denied: a hold needs the right to write.
    """
    from forebay.runtime.spark.frames import open_frames  # noqa: PLC0415 - imports Spark

    holds = check_seconds(hold_for, "hold_for", zero=True) > 0
    frames = open_frames(spark, url, start=start, hold=holds, storage_options=storage_options, clock=clock)
    with ExitStack() as stack:
        stack.enter_context(frames)  # lets go if this fails
        frame = frames.read(columns, start=start, end=end, records=records)
        stack.pop_all()
    frames.keep(hold_for)
    return frame


def hold(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> HeldFrames:
    """Return a hold on what a buffer or topic holds now. Its `read` gives frames, which all show this moment.

    Close it, or use `with`, when no frame is used any more. This process renews it.

    Args:
        spark: the session.
        url: the buffer or topic.
        storage_options: credentials, endpoint and client of the store.
        clock: decides when the hold is renewed.

    Raises:
        NotFound: there is no such buffer.
        Denied: a hold needs the right to write.
        Unsupported: the buffer is of version 1, which has no holds.
    """
    from forebay.runtime.spark.frames import open_frames  # noqa: PLC0415 - imports Spark

    frames = open_frames(spark, url, storage_options=storage_options, clock=clock)
    if not frames.is_held:
        raise Unsupported(f"{url}: a buffer of version 1 has no holds: use read, or migrate it")
    return frames


def count(
    url: str | os.PathLike[str],
    *,
    start: str | int | datetime | None = None,
    end: str | int | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Return how many entries, or rows, a buffer or topic holds, by its manifest alone: no batch is read.

    Args:
        url: the buffer or topic.
        start: the first batch, as for `read`.
        end: the last batch, as for `read`.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        NotFound: there is no such buffer.
        Trimmed: `start` is gone.
        Unsupported: the manifest does not tell, since batches of version 1 are in the range.
    """
    from forebay.runtime.spark.snapshots import count_entries  # noqa: PLC0415 - Spark imports this module for each plan

    return count_entries(url, start, end, storage_options)
