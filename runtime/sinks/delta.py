"""A Delta Lake table."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput, Unavailable, Unsupported
from forebay.buffer.store.open import parse_options
from forebay.buffer.store.options import NativeOptions, S3Options, redact
from forebay.buffer.store.urls import parse_url
from forebay.runtime.contract import (
    Answer,
    Combining,
    Commit,
    CommitIdentity,
    Committed,
    Fatal,
    MaybeCommitted,
    Sink,
    SinkPlan,
)
from forebay.runtime.sinks.parquet import COMBINING
from forebay.runtime.sinks.table_schema import DELTA, DoesNotFit, Meeting, meet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from deltalake import DeltaTable

    from forebay.buffer.store.urls import Location

_OLDEST = (1, 6)
"""Older ones hold the interpreter's lock while they talk to the store, and so stop all other threads. Before 1.1, an
append read the table again when it began, and did not notice a faster writer: rows were there twice."""
_COLOUR = re.compile(r"\x1b\[\d*m")
_BROKEN_RULE = "failed validation check"
"""What delta-rs says of rows that break a constraint of the table's; it has no type for that."""
_UNKNOWN_FEATURES = "Unsupported table features"
"""What delta-rs says of a table that it cannot write to; it has no type for that, and calls it a failed commit."""


class DeltaSink(Sink):
    """Appends to a Delta Lake table, **exactly once**: each version that is written records the reader's position.

    The reader is the transaction's application id, and the last sequence its version. A commit first checks whether the
    table already has this sequence. If another process writes between that check and the commit, Delta's own check
    finds the same application id there, and refuses. So of two runtimes, of a retry and of a request that arrives late,
    only one is applied. (A table with the property `delta.setTransactionRetentionDuration` forgets positions: set it to
    more than the longest time that a crashed runtime may be down.)

    If there is no table, the sink creates it, in a version without rows. For a partitioned table, create it yourself
    first. Columns of the table that the rows lack are null. Values are converted to the types of the table's columns if
    that does not change them; otherwise the rows are poison.

    Args:
        url: the table, such as `s3://lake/clicks-delta` or `file:///tmp/clicks-delta`.
        merge_schema: add columns, and fields of structs, that the rows have and the table does not, in the version that
            adds the rows. Otherwise such rows halt the runtime. Types of columns never change: delta-rs cannot do
            that.
        combining: how batches of a group are combined into one commit; None for one batch each.
        storage_options: credentials and endpoint, by the names that forebay's stores have.
    """

    in_order = True

    def __init__(
        self,
        url: str,
        *,
        merge_schema: bool = False,
        combining: Combining | None = COMBINING,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_installed()
        location = parse_url(url)
        self.url: str = location.url
        self.combining = combining
        self._merge_schema = merge_schema
        self._options = _parse_options(location, dict(storage_options or {}))
        self._lock = Lock()
        self._table: DeltaTable | None = None

    def commit(self, commit: Commit) -> Answer:
        """Append the commit's rows in one version of the table.

        If the process dies before the version is written, data files are left that no version names, which `VACUUM`
        takes. If it dies after, or the answer is lost, the next look at the table finds the version.
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
                rows = self._meet(commit.table.schema, table).fit(commit.table)
                self._append(table, identity, rows.combine_chunks())  # or delta-rs writes them in another order
            except DoesNotFit as error:
                return Fatal(f"{self.url}: {error}", poison=error.poison, rows=error.rows)
            except InvalidInput as error:
                return Fatal(f"{self.url}: {error}")
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

    def plan(self, schema: pa.Schema) -> SinkPlan:
        """Return whether the table would be created, and how rows of the schema differ from it.

        Raises:
            InvalidInput: a Delta table cannot have a column of the rows, or this table lacks one and may not get it.
            Unsupported: delta-rs cannot open the table, or cannot write to it.
            Unavailable: the store does not answer.
        """
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        with self._lock:
            try:
                table = self._look()
                if table is None:
                    columns = DELTA.columns(schema)
                    return SinkPlan("no table yet", (f"creates the table with the columns {', '.join(columns.names)}",))
                _check_writable(table)
                meeting = self._meet(schema, table)
            except (DoesNotFit, InvalidInput) as error:
                raise InvalidInput(f"{self.url}: {error}") from None
            except OSError as error:
                raise Unavailable(self._reason(error)) from None
            except DeltaError as error:
                raise Unsupported(
                    f"{self._reason(error)}. delta-rs, which writes to Delta tables for forebay, cannot write to this "
                    "one: write to another table, or drop the table's feature that delta-rs does not know"
                ) from None
        return meeting.plan(f"a table at version {table.version()}")

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
        from deltalake import DeltaTable  # noqa: PLC0415

        columns = DELTA.columns(schema)
        self._table = DeltaTable.create(
            self.url, schema=columns, mode="ignore", storage_options=self._storage_options()
        )
        return self._table

    def _meet(self, schema: pa.Schema, table: DeltaTable) -> Meeting:
        return meet(_columns(table), schema, DELTA, merge=self._merge_schema)

    def _append(self, table: DeltaTable, identity: CommitIdentity, rows: pa.Table) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake  # noqa: PLC0415

        transaction = Transaction(identity.reader, identity.last)
        schema_mode: Literal["merge"] | None = None if rows.schema.equals(_columns(table)) else "merge"
        commit = CommitProperties(app_transactions=[transaction])
        # guard: put the transaction into the commit itself
        write_deltalake(table, rows, mode="append", schema_mode=schema_mode, commit_properties=commit)

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
        reason = self._reason(error)
        if _BROKEN_RULE in str(error):
            return Fatal(reason, poison=True)
        if _UNKNOWN_FEATURES in str(error):
            return Fatal(reason)
        if isinstance(error, CommitFailedError | OSError):
            return MaybeCommitted(reason)
        raise RuntimeError(reason) from None

    def _reason(self, error: Exception) -> str:
        text = " ".join(_COLOUR.sub("", str(error)).split())
        return f"{self.url}: {text[:300] if self._options is None else redact(text, self._options)}"

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
        raise Unsupported(f"a Delta table must be at file:///…, s3://…, gs://… or az://…, not at {location.url}")
    if location.takes_options:
        # obstore, like delta-rs, reads no profiles, and knows none of what goes to botocore alone.
        return parse_options(location, {**given, "client": "obstore"})
    if given:
        raise InvalidInput(
            f"{location.url}: file:// takes no storage options, got {', '.join(sorted(given))}; leave them out"
        )
    return None


def _columns(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _check_writable(table: DeltaTable) -> None:
    """Raise what delta-rs raises when it writes to such a table.

    It says only in a commit which features it does not know. So this commits to an empty table of the same features.
    """
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415

    protocol, metadata = table.protocol(), table.metadata()
    if not protocol.writer_features:
        return
    actions = [
        {
            "protocol": {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                **({} if protocol.min_reader_version < 3 else {"readerFeatures": protocol.reader_features or []}),
                "writerFeatures": protocol.writer_features,
            }
        },
        {
            "metaData": {
                "id": str(metadata.id),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": table.schema().to_json(),
                "partitionColumns": metadata.partition_columns,
                "configuration": metadata.configuration,
            }
        },
    ]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
        write_deltalake(DeltaTable(folder), _columns(table).empty_table(), mode="append")
