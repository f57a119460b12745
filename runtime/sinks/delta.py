"""A Delta Lake table."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput, Unavailable, Unsupported
from forebay.buffer.store.open import parse_options
from forebay.buffer.store.options import NativeOptions, S3Options, redact
from forebay.buffer.store.urls import parse_url
from forebay.runtime.contract import Answer, Combining, Commit, CommitIdentity, Committed, Fatal, MaybeCommitted, Sink
from forebay.runtime.sinks.columns import DoesNotFit, fit
from forebay.runtime.sinks.parquet import COMBINING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from deltalake import DeltaTable

    from forebay.buffer.store.urls import Location

_OLDEST = (1, 6)
"""Older ones hold the interpreter's lock while they talk to the store, and so stop all other threads. Before 1.1, an
append looked at the table again by itself as it began, and never met who had been faster: rows were there twice."""
_COLOUR = re.compile(r"\x1b\[\d*m")
_BROKEN_RULE = "failed validation check"
"""What delta-rs says of rows that break a constraint of the table's; it has no type for that."""


class DeltaSink(Sink):
    """Appends to a Delta Lake table, **exactly once**: each version that is written says how far its reader has come.

    The reader is the transaction's application id, and the last sequence its version. A commit first looks whether the
    table has come so far already. If another process writes between that look and the commit, Delta's own check finds
    the same application id there, and refuses. So of two runtimes, of a retry and of a request that arrives late,
    one is applied. (A table whose property `delta.setTransactionRetentionDuration` is set forgets: set it to more than
    the longest time that a crashed runtime may be down.)

    The table is created if there is none; to have it partitioned, create it beforehand. Rows are cast to its columns.
    Columns of the table that the rows lack are null.

    Args:
        url: the table, such as `s3://lake/clicks-delta` or `file:///tmp/clicks-delta`.
        combining: how batches of a group are put together into one commit; None for one batch each.
        storage_options: credentials and endpoint, by the names that forebay's stores have.
    """

    in_order = True

    def __init__(
        self,
        url: str,
        *,
        combining: Combining | None = COMBINING,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_installed()
        location = parse_url(url)
        self.url = location.url
        self.combining = combining
        self._options = _parse_options(location, dict(storage_options or {}))
        self._lock = Lock()
        self._table: DeltaTable | None = None

    def commit(self, commit: Commit) -> Answer:
        """Append the commit's rows in one version of the table.

        If the process dies before the version is written, data files are left that no version names, which `VACUUM`
        takes; if it dies after, or the answer is lost, the next look at the table finds the version.
        """
        identity = commit.identity
        # One at a time: sources share the table's state, which must not move between the look and the commit.
        with self._lock:
            try:
                table = self._look() or self._create(commit.table.schema)
                done = table.transaction_version(identity.reader)
                # guard: check the transaction version before the append
                if done is not None and done >= identity.first:
                    return self._judge(identity, done)
                rows = fit(
                    commit.table, pa.schema(table.schema().to_arrow()), how_to_add="DeltaTable.alter.add_columns"
                )
                self._append(table, identity, rows.combine_chunks())  # or delta-rs writes them in another order
            except DoesNotFit as error:
                return Fatal(f"{self.url}: {error}", poison=error.poison)
            except Exception as error:  # noqa: BLE001  (delta-rs raises bare ones)
                return self._judge_failure(error)
        return Committed()

    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the table has come as far as this commit."""
        with self._lock:
            try:
                table = self._look()
                done = None if table is None else table.transaction_version(identity.reader)
            except Exception as error:  # noqa: BLE001  (as above)
                raise Unavailable(self._judge_failure(error).reason) from None
        return done is not None and done >= identity.last

    def _look(self) -> DeltaTable | None:
        """The table as it is now; None if there is none."""
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        if self._table is None:
            try:
                self._table = DeltaTable(self.url, storage_options=self._storage_options())
            except TableNotFoundError:
                return None
        else:
            self._table.update_incremental()
        return self._table

    def _create(self, schema: pa.Schema) -> DeltaTable:
        from deltalake import DeltaTable, Schema  # noqa: PLC0415

        try:
            Schema.from_arrow(schema)
        except Exception as error:  # noqa: BLE001  (as above)
            raise DoesNotFit(f"a Delta table cannot have these columns: {_one_line(error)}") from None
        self._table = DeltaTable.create(self.url, schema=schema, mode="ignore", storage_options=self._storage_options())
        return self._table

    def _append(self, table: DeltaTable, identity: CommitIdentity, rows: pa.Table) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake  # noqa: PLC0415

        transaction = Transaction(identity.reader, identity.last)
        # guard: put the transaction into the commit itself
        write_deltalake(table, rows, mode="append", commit_properties=CommitProperties(app_transactions=[transaction]))

    def _judge(self, identity: CommitIdentity, done: int) -> Answer:
        if done >= identity.last:
            return Committed()
        return Fatal(
            f"{self.url} holds batches up to {done} of {identity.reader}, in the middle of the commit of "
            f"{identity.first} to {identity.last}: another program has written to the table in this reader's name"
        )

    def _judge_failure(self, error: Exception) -> MaybeCommitted | Fatal:
        """What an exception means for the commit that it ended, or may seem to have ended.

        A version whose answer was lost looks like somebody else's, and what follows a commit (checkpoints, cleaning up)
        may fail too: only the next look tells. What is no trouble with the store or with other writers is no answer.
        """
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        self._table = None
        text = _one_line(error)
        reason = f"{self.url}: {text[:300] if self._options is None else redact(text, self._options)}"
        if _BROKEN_RULE in text:
            return Fatal(reason, poison=True)
        if isinstance(error, CommitFailedError | OSError):
            return MaybeCommitted(reason)
        raise RuntimeError(reason) from None

    def _storage_options(self) -> dict[str, str]:
        if self._options is None:
            return {}
        config = (
            self._options.config if isinstance(self._options, NativeOptions) else self._options.object_store_config()
        )
        given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}
        return {
            "allow_http": "true",
            "conditional_put": "etag",
            "connect_timeout": f"{round(self._options.connect_timeout * 1000)}ms",
            "max_retries": str(self._options.max_attempts - 1),
            **given,
        }


def _check_installed() -> None:
    try:
        found = version("deltalake")
    except PackageNotFoundError:
        found = "none"
    if found == "none" or tuple(map(int, found.split(".")[:2])) < _OLDEST:
        raise Unsupported(
            f"a Delta sink needs deltalake {_OLDEST[0]}.{_OLDEST[1]} or newer, and {found} is installed: "
            "pip install --upgrade deltalake"
        )


def _parse_options(location: Location, given: dict[str, Any]) -> S3Options | NativeOptions | None:
    if location.scheme == "memory":
        raise Unsupported(f"{location.url}: a Delta table can be at file:///…, s3://…, gs://… or az://…")
    if location.takes_options:
        # obstore, like delta-rs, reads no profiles, and knows none of what goes to botocore alone.
        return parse_options(location, {**given, "client": "obstore"})
    if given:
        raise InvalidInput(f"{location.url}: file:// takes no storage options, got {', '.join(sorted(given))}")
    return None


def _one_line(error: Exception) -> str:
    return " ".join(_COLOUR.sub("", str(error)).split())
