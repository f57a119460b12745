"""Frames from a driver's Python: planned here, under a hold that is kept here, read by Spark's own reader (rfcs/0008).

The rows of a typed buffer are Parquet files. If the session's Hadoop can open the store, they are listed to Spark's own
Parquet reader, which prunes columns and takes filters. Everything else goes through the format `forebay`. The log says
which way was taken and why. `DataFrame.explain` shows it too: `FileScan parquet`, or `BatchScan forebay`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.base.lifecycle import Closing
from forebay.buffer.format.schema import compare_schemas
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.read.ahead import size_of
from forebay.buffer.store import open_store
from forebay.buffer.topic.topic import close_all
from forebay.runtime.spark.hadoop import find_folder
from forebay.runtime.spark.options import refuse_memory
from forebay.runtime.spark.reading.plan import count_tasks
from forebay.runtime.spark.reading.rows import columns_of
from forebay.runtime.spark.session_holds import KeptHolds, is_stopped
from forebay.runtime.spark.snapshots import take_snapshot

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.store import ObjectStore
    from forebay.runtime.spark.snapshots import Part, Place, Snapshot

_log = logging.getLogger("forebay.spark")

MAX_FILES: Final = 20_000
"""Maximum number of files that are listed to Spark. Its plan holds all of them, and each costs it milliseconds."""
MIN_MEAN_BYTES: Final = 256 << 10
"""Minimum mean size of files that are listed to Spark, if there are many. With smaller ones the format is faster."""
_FEW_FILES: Final = 100

_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_FILES_PER_LISTING_TASK: Final = 32
_STRICT: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}
"""Reader options that win over the session's settings: no file is left out, and old dates stay as Arrow wrote them."""
_listing = Lock()


class HeldFrames(Closing):
    """A buffer or topic that is kept from the collector, so that Spark can read it several times."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        storage_options: Mapping[str, Any],
        snapshot: Snapshot,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock
        self._spark = spark
        self._url = url
        self._storage_options = storage_options
        self._snapshot = snapshot

    def read(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: Place | None = None,
        end: Place | None = None,
        records: bool = False,
    ) -> DataFrame:
        """Return a frame of what was there when the hold was taken. The arguments are those of `read`.

        Raises:
            Fenced: the hold expired and was removed: take a new one.
            Closed: the hold was closed.
        """
        for held in self._snapshot.holds:
            held.check()
        parts = self._snapshot.between(start, end)
        return self._frame(parts, self._columns(columns, records=records), records=records)

    def close(self) -> None:
        """Let go. Closing again does nothing.

        Raises:
            Fenced: the hold had expired before.
        """
        failures = close_all(self._snapshot.holds)
        if failures:
            raise failures[0]

    @property
    def is_held(self) -> bool:
        """Whether there is a hold. Version 1 has none."""
        return bool(self._snapshot.holds)

    def keep(self, seconds: float) -> None:
        """Let go when the session has stopped, after a number of seconds at the latest."""
        if self.is_held:
            KeptHolds(self._snapshot.holds, lambda: is_stopped(self._spark), seconds, clock=self._clock)

    def _columns(self, names: Sequence[str] | None, *, records: bool) -> StructType:
        """Return the columns to read, as Spark names them."""
        schema = self._snapshot.schema
        found = {field.name: field for field in columns_of(schema)}
        own = ["value"] if schema is None else schema.names
        added = [name for name in found if name not in own]
        if isinstance(names, str):
            raise InvalidInput(f"columns must be a list of names, not {names!r}")
        wanted = list(own if names is None else names)
        missing = [name for name in wanted if name not in own]
        if missing:
            hint = f". records=True adds {', '.join(added)}" if set(missing) & set(added) else ""
            raise InvalidInput(
                f"there is no column {', '.join(map(str, missing))}; the columns are {', '.join(own)}{hint}"
            )
        if not wanted or len(set(wanted)) != len(wanted):
            raise InvalidInput(f"columns must name at least one column, and none twice; got {wanted}")
        return StructType([found[name] for name in (*wanted, *(added if records else ()))])

    def _frame(self, parts: list[Part], columns: StructType, *, records: bool) -> DataFrame:
        listed = [(part.queue.store, batch) for part in parts for batch in part.batches()]
        if not listed:
            _log.info("%s: there is nothing to read", self._url)
            return self._spark.createDataFrame([], columns)
        try:
            reason = self._why_not(listed, records=records)
            if reason is None:
                return self._listed(listed, columns)
        except Unsupported as error:
            reason = str(error)
        _log.info("%s: %s through the format forebay: %s", self._url, counted(len(listed), "batch"), reason)
        return self._formatted(parts, listed, columns)

    def _why_not(self, listed: list[tuple[ObjectStore, BatchDescriptor]], *, records: bool) -> str | None:
        """Return why the files are not listed to Spark; None if they may be."""
        if self._snapshot.schema is None:
            return "it holds bytes"
        if records:
            return "only the format adds the columns of records"
        if len(listed) > MAX_FILES:
            return f"Spark is given {MAX_FILES} files at most"
        mean = sum(batch.size or 0 for _store, batch in listed) // len(listed)
        if len(listed) > _FEW_FILES and mean < MIN_MEAN_BYTES:
            return f"the files have {mean} bytes on average; from {MIN_MEAN_BYTES} on, Spark's own reader is faster"
        if self._has_wider_decimals(batch for _store, batch in listed):  # guard: let no filter of a wider decimal fail
            return "Spark's own reader fails if a filter has more digits than an older file's decimals"
        return None

    def _has_wider_decimals(self, batches: Iterable[BatchDescriptor]) -> bool:
        """Return whether a decimal has more digits in the newest schema than in the schema of a batch."""
        newest = self._snapshot.schema
        if newest is None or "decimal" not in str(newest):
            return False
        schemas = Schemas(open_store(self._url, self._storage_options), clock=self._clock or SystemClock())
        written = {batch.schema.written for batch in batches if batch.schema is not None}
        changes = chain.from_iterable(compare_schemas(schemas.load(each), newest) for each in written)
        return any(change.kind == "widened" and change.new.startswith("decimal") for change in changes)

    def _listed(self, listed: list[tuple[ObjectStore, BatchDescriptor]], columns: StructType) -> DataFrame:
        """Return a frame that Spark's own reader reads.

        Raises:
            Unsupported: the session's Hadoop cannot open the store.
        """
        folder = find_folder(self._spark, self._url, self._storage_options)
        root = open_store(self._url, self._storage_options).url
        paths = [f"{folder.url}{store.url.removeprefix(root)}/{batch.location}" for store, batch in listed]
        # guard: a missing or damaged file is an error, whatever the session says
        reader = self._spark.read.schema(columns).options(**_STRICT, **folder.options)
        with _bounded_listing(self._spark, len(paths)):
            frame = reader.parquet(*paths)
        _log.info("%s: %d batches by Spark's own Parquet reader", self._url, len(paths))
        return frame

    def _formatted(
        self, parts: list[Part], listed: list[tuple[ObjectStore, BatchDescriptor]], columns: StructType
    ) -> DataFrame:
        options = {"plannedParts": json.dumps([(part.first, part.end) for part in parts])}
        context = getattr(self._spark, "sparkContext", None)  # a session of Spark Connect has none
        if context is not None:
            total = sum(size_of(batch) for _store, batch in listed)
            options["minPartitions"] = str(count_tasks(total, context.defaultParallelism))
        for name, value in self._storage_options.items():
            options[f"storage.{name}"] = json.dumps(value) if isinstance(value, Mapping | bool) else str(value)
        return self._spark.read.format("forebay").schema(columns).options(**options).load(self._url)


def open_frames(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    start: Place | None = None,
    hold: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> HeldFrames:
    """Return what a buffer or topic holds now, from `start` on, for Spark to read."""
    given = dict(storage_options or {})
    store = open_store(url, given)
    # A relative path means another folder in another process. The URL of an Azure account says more than the store's.
    text = url if isinstance(url, str) and not store.url.startswith("file:") else store.url
    refuse_memory({"url": text})
    return HeldFrames(spark, text, given, take_snapshot(store, start, hold=hold, clock=clock), clock=clock)


@contextmanager
def _bounded_listing(spark: SparkSession, files: int) -> Iterator[None]:
    """Have Spark look for the files in few tasks. By default it starts one for each file (rfcs/0008)."""
    tasks = max(1, min(2 * spark.sparkContext.defaultParallelism, -(-files // _FILES_PER_LISTING_TASK)))
    with _listing:
        before = spark.conf.get(_LISTING, None)
        spark.conf.set(_LISTING, str(tasks))
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_LISTING)
            else:
                spark.conf.set(_LISTING, before)
