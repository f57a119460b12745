"""A folder of Parquet files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.parquet import dictionary_columns
from forebay.buffer.store import StoreUrl, open_store
from forebay.runtime.contract import Answer, Combining, Commit, CommitIdentity, Committed, Fatal, Sink, SinkPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

COMBINING = Combining(target_bytes=128 << 20)
"""Files of tens of megabytes, a minute apart at most."""
_TIME = "ingestion_time"
_FOLDER_NAME = re.compile(r"[^/=]+")
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"


class ParquetSink(Sink):
    """Writes Parquet files whose names depend on their content, so a replay overwrites the same file: **exactly once**.

    A commit is one file, which appears whole or not at all. With `by_date`, a commit is one file for each date, and
    these appear one after the other. Several commits are written at once, in any order.

    Args:
        url: the folder, such as `s3://lake/clicks-parquet`, or its store if it is open already.
        by_date: put files into folders by date. The name of a column, such as `"ts"`: folders `ts_date=2026-01-31/` by
            that column, a date or a timestamp; a timestamp that has a time zone counts by its date in UTC. True:
            folders `ingestion_date=2026-01-31/` by the column `ingestion_time`, which `raw` and `JsonLines(…,
            keep=["ingestion_time"])` give. Rows without a value go to `…_date=__HIVE_DEFAULT_PARTITION__/`. The folder
            is not part of a commit's identity: do not change this setting before all commits are done.
        combining: how batches of a group are combined into one file; None for one batch each.
        storage_options: credentials, endpoint and client of the store.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        by_date: bool | str = False,
        combining: Combining | None = COMBINING,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = open_store(url, storage_options)
        self.url: str = self._store.url
        self.combining = combining
        self._date_column = _TIME if by_date is True else by_date or None
        self._folder = "ingestion_date" if by_date is True else f"{by_date}_date"
        if self._date_column is not None and not _FOLDER_NAME.fullmatch(self._date_column):
            raise InvalidInput(
                "by_date must be True, False or the name of a column without / and =, since folders are "
                f"named for it, not {by_date!r}"
            )

    def commit(self, commit: Commit) -> Answer:
        """Write the commit's files.

        If the process dies or an answer is lost on the way, some of them are there, and a replay writes all of them
        again under the same names, with the same rows.
        """
        name = _file_name(commit.identity)
        try:
            self._check_date_column(commit.table.schema)
        except InvalidInput as error:
            return Fatal(str(error))
        try:
            files = [(f"{folder}{name}", _encode(rows)) for folder, rows in self._split(commit.table)]
        except _UNFIT as error:
            return Fatal(f"{self.url}: these rows cannot be written as Parquet: {error}")
        for key, data in files:
            self._store.put(key, memoryview(data))
        return Committed()

    def plan(self, schema: pa.Schema) -> SinkPlan:
        """Return that files of these columns are written. Each file has the schema of its rows, so nothing conflicts.

        Raises:
            InvalidInput: Parquet has no such column, or files by date lack a date.
        """
        self._check_date_column(schema)
        try:
            _encode(schema.empty_table())
        except _UNFIT as error:
            raise InvalidInput(
                f"{self.url}: these columns cannot be written as Parquet: {error}"
                "; drop them, or cast them in the decoder"
            ) from None
        folders = "" if self._date_column is None else f" in folders {self._folder}=…/"
        return SinkPlan(f"a new Parquet file for each commit{folders}")

    def _check_date_column(self, schema: pa.Schema) -> None:
        name = self._date_column
        if name is None:
            return
        if name not in schema.names:
            what = "let the decoder keep it, or name another column" if name == _TIME else "name another column"
            raise InvalidInput(
                f"{self.url}: files by date need the column {name}, and the rows have {', '.join(schema.names)}: {what}"
                ' (by_date="…")'
            )
        kind = schema.field(name).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise InvalidInput(f"{self.url}: files by date need a timestamp or a date, and column {name} is {kind}")
        if self._folder in schema.names:
            raise InvalidInput(
                f"{self.url}: the folders are named {self._folder}, and the rows have a column of this name: readers "
                "could not tell them apart. Rename the column, or name another one (by_date)"
            )

    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the commit's file is there; by date False, as an identity does not tell the dates.

        That costs no more than writing the same files again.
        """
        if self._date_column is not None:
            return False
        name = _file_name(identity)
        return any(found.key == name for found in self._store.list(name))

    def _split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._date_column is None:
            yield "", table
            return
        times = table[self._date_column]
        if pa.types.is_timestamp(times.type) and times.type.tz is not None:
            times = times.cast(pa.timestamp(times.type.unit, "UTC"))
        dates = times.cast(pa.date32(), safe=False)
        for date in sorted(pc.unique(dates).to_pylist(), key=str):
            here = pc.is_null(dates) if date is None else pc.equal(dates, date)
            yield f"{self._folder}={_NO_DATE if date is None else date}/", table.filter(here)


def _file_name(identity: CommitIdentity) -> str:
    return f"{identity.name}.parquet"  # guard: derive the file name from the identity


def _encode(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd", use_dictionary=dictionary_columns(table))
    return out.getvalue()
