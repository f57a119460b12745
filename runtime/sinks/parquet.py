"""A folder of Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.buffer.store import StoreUrl, open_store
from forebay.runtime.contract import Answer, Combining, Commit, CommitIdentity, Committed, Fatal, Sink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

COMBINING = Combining(target_bytes=128 << 20)
"""Files of tens of megabytes, a minute apart at most."""
_TIME = "ingestion_time"
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"


class ParquetSink(Sink):
    """Writes Parquet files named for what they hold, so that a replay overwrites itself: **exactly once**.

    A commit is one file, which appears whole or not at all; by date it is one file for each date in it, and those of
    one commit appear one after the other. Several commits are written at once, in any order.

    Args:
        url: the folder, such as `s3://lake/clicks-parquet`, or its store if it is open already.
        by_date: put files into folders `ingestion_date=2026-01-31/` by the UTC date of the column `ingestion_time`,
            which the decoder has to give (`raw` does, `JsonLines(…, keep=["ingestion_time"])` does). Rows without a
            time go to `ingestion_date=__HIVE_DEFAULT_PARTITION__/`. Where a file belongs is not part of a commit's
            identity: do not change it while commits may be under way.
        combining: how batches of a group are put together into one file; None for one batch each.
        storage_options: credentials, endpoint and client of the store.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        by_date: bool = False,
        combining: Combining | None = COMBINING,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = open_store(url, storage_options)
        self.url = self._store.url
        self.combining = combining
        self._by_date = by_date

    def commit(self, commit: Commit) -> Answer:
        """Write the commit's files.

        If the process dies or an answer is lost on the way, some of them are there, and a replay writes all of them
        again under the same names, with the same rows.
        """
        name = _file_name(commit.identity)
        if self._by_date and _TIME not in commit.table.column_names:
            return Fatal(
                f"{self.url}: files by date need the column {_TIME}, and the rows have "
                f"{', '.join(commit.table.column_names)}: let the decoder keep it, or set by_date=False"
            )
        try:
            files = [(f"{folder}{name}", _encode(rows)) for folder, rows in self._split(commit.table)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            return Fatal(f"{self.url}: these rows cannot be written as Parquet: {error}")
        for key, data in files:
            self._store.put(key, memoryview(data))
        return Committed()

    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the commit's file is there; by date False, as an identity does not tell the dates.

        That costs no more than writing the same files again.
        """
        if self._by_date:
            return False
        name = _file_name(identity)
        return any(found.key == name for found in self._store.list(name))

    def _split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not self._by_date:
            yield "", table
            return
        dates = pc.cast(table[_TIME], pa.date32())
        for date in sorted(pc.unique(dates).to_pylist(), key=str):
            here = pc.is_null(dates) if date is None else pc.equal(dates, date)
            yield f"ingestion_date={_NO_DATE if date is None else date}/", table.filter(here)


def _file_name(identity: CommitIdentity) -> str:
    return f"{identity.name}.parquet"  # guard: derive the file name from the identity


def _encode(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()
