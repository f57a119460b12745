"""An Iceberg table."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import Corrupt, InvalidInput, Unavailable, Unsupported
from forebay.buffer.base.install import install_hint, installed_version
from forebay.buffer.format.parquet import dictionary_columns
from forebay.runtime.contract import (
    Answer,
    Combining,
    Commit,
    CommitIdentity,
    Committed,
    Fatal,
    MaybeCommitted,
    NotCommitted,
    Sink,
    SinkPlan,
)
from forebay.runtime.sinks.iceberg_position import FIRST, LAST, READER, Position, RolledBack, property_of, read_position
from forebay.runtime.sinks.parquet import COMBINING
from forebay.runtime.sinks.table_schema import ICEBERG, DoesNotFit, Meeting, meet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

    from forebay.buffer.base.clock import Random

_RELEASE: Final = "0.12."
"""The only release that is accepted: the sink needs private names, as no public call commits exactly once."""
_MAX_ATTEMPTS: Final = 4
"""Maximum number of attempts of one call while others write to the table too."""
FILE_MARK: Final = "forebay."
"""Names of files that the sink writes have this, then the commit's identity and the attempt."""
_SECRET_WORDS: Final = ("secret", "token", "credential", "password", "key", "authorization", "connection-string")
_USER: Final = re.compile(r"(?<=://)[^/\s]*@")
"""User and password in a URL."""
_CREATED_WITH: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Settings of a table that the sink creates: without them each commit costs more than the one before."""


class IcebergSink(Sink):
    """Appends to an Iceberg table, **exactly once**: each commit stores the reader's position too.

    The position is a table property and part of the snapshot's summary, and is written in the same commit as the rows.
    The commit requires that the table's newest snapshot is still the one that the sink read. So of two runtimes, of a
    retry and of a request that arrives late, only one is applied. pyiceberg's own retry is not used: it would append
    again after the position has moved. If the table was rolled back behind the position, the runtime halts (rfcs/0011).

    The sink creates the table and its namespace if there are none. For a partitioned table, create it yourself first.
    Columns of the table that the rows lack are null. Values are converted to the types of the table's columns if that
    does not change them; otherwise the rows are poison.

    Args:
        catalog: a catalog of pyiceberg, its name in pyiceberg's configuration, or its properties, such as
            `{"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///tmp/lake"}`. The property `name` is
            the catalog's name, `default` if there is none. A catalog that was given as an object is not closed.
        table: namespace and name, such as `web.clicks`.
        merge_schema: change the table's schema in the commit that adds the rows. The sink then adds columns and fields
            of structs, widens columns (int to long, float to double, decimals to more digits), and makes required
            columns optional if the rows may have nulls there. Otherwise a new column halts the runtime, and values that
            do not fit are poison.
        combining: how batches of a group are combined into one commit; None for one batch each. The default is one
            commit per minute, because each commit makes later commits more expensive.
        random: where the names of attempts come from.
    """

    in_order = True

    def __init__(
        self,
        catalog: Catalog | str | Mapping[str, Any],
        table: str,
        *,
        merge_schema: bool = False,
        combining: Combining | None = COMBINING,
        random: Random | None = None,
    ) -> None:
        _check_installed()
        if "." not in table:
            raise InvalidInput(f"{table!r} has no namespace: name the table as namespace.table, such as web.clicks")
        self.table = table
        self.combining = combining
        self._merge_schema = merge_schema
        self._catalog, self._owned = open_catalog(catalog)
        self._random = random or system_random()
        self._lock = Lock()
        self._seen: dict[str, Position] = {}

    def commit(self, commit: Commit) -> Answer:
        """Append the commit's rows in one snapshot of the table.

        If the process dies before the catalog has taken it, files are left that no snapshot names (`forebay iceberg
        orphans` removes them). If it dies after, or the answer is lost, the next look at the table finds the position.
        """
        # One at a time: sources share the table, and would only refuse each other's commits.
        with self._lock:
            attempt = _Attempt(commit, f"{self._random.getrandbits(32):08x}", merge_schema=self._merge_schema)
            try:
                return self._commit(attempt)
            except DoesNotFit as error:
                return Fatal(f"{self.table}: {error}", poison=error.poison, rows=error.rows)
            except (RolledBack, InvalidInput) as error:
                return Fatal(f"{self.table}: {error}")
            except (Corrupt, Unsupported):
                raise
            except Exception as error:  # noqa: BLE001 - catalogs and stores raise anything
                reason = self._describe(error)
                if not _is_trouble(error):
                    raise RuntimeError(reason) from None
                # guard: a commit that was sent may have been applied whatever was raised
                return MaybeCommitted(reason) if attempt.sent else NotCommitted(reason)

    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the table has come as far as this commit."""
        with self._lock:
            try:
                table = self._look()
                done = None if table is None else self._read_position(table.metadata, identity.reader)
            except RolledBack:
                return False  # `commit` says what is wrong
            except (Corrupt, Unsupported):
                raise
            except Exception as error:  # noqa: BLE001 - as above
                raise Unavailable(self._describe(error)) from None
        return done is not None and done.sequence >= identity.last

    def plan(self, schema: pa.Schema) -> SinkPlan:
        """Return whether the table would be created, and how rows of the schema differ from it.

        Raises:
            InvalidInput: an Iceberg table cannot have a column of the rows, or this table lacks one and may not get it.
            Unsupported: the table has format version 1.
            Unavailable: the catalog does not answer.
        """
        with self._lock:
            try:
                table = self._look()
                if table is None:
                    names = ", ".join(ICEBERG.columns(schema).names)
                    return SinkPlan("no table yet", (f"creates the table with the columns {names}",))
                meeting = _meet(table, schema, merge_schema=self._merge_schema)
            except (DoesNotFit, InvalidInput) as error:
                raise InvalidInput(f"{self.table}: {error}") from None
            except Unsupported:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                raise Unavailable(self._describe(error)) from None
        snapshot = table.current_snapshot()
        return meeting.plan(
            "a table without snapshots" if snapshot is None else f"a table at snapshot {snapshot.snapshot_id}"
        )

    def close(self) -> None:
        """Close the catalog, unless it was given as an object. Closing again does nothing."""
        if self._owned:
            self._catalog.close()

    def _commit(self, attempt: _Attempt) -> Answer:
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        identity = attempt.identity
        reason = ""
        for number in range(_MAX_ATTEMPTS):
            table = self._look() or self._create(attempt.rows.schema)
            done = self._read_position(table.metadata, identity.reader)
            # guard: check the position before every attempt
            if done is not None and done.sequence >= identity.first:
                return self._judge(identity, done)
            staged = attempt.stage(table, number)
            attempt.sent = True
            try:
                # guard: commit once, without the library's retry
                answer = self._catalog.commit_table(table, staged._requirements, staged._updates)  # noqa: SLF001
            except CommitFailedException as error:
                # Another writer was faster, or our own commit was, and a repeated request met it: look again.
                reason = self._describe(error)
                continue
            self._read_position(answer.metadata, identity.reader)
            self._trim(table, answer.metadata)
            return Committed()
        return MaybeCommitted(f"{_MAX_ATTEMPTS} attempts met commits of other writers, at last: {reason}")

    def _look(self) -> Table | None:
        """The table as it is now; None if there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415

        try:
            table = self._catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if table.format_version < 2:
            raise Unsupported(
                f"{self.table} has format version 1, whose snapshots have no sequence numbers: upgrade the table "
                "(pyiceberg: with table.transaction() as t: t.upgrade_table_version(2))"
            )
        return table

    def _create(self, schema: pa.Schema) -> Table:
        columns = ICEBERG.columns(schema)
        self._catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        return self._catalog.create_table_if_not_exists(self.table, columns, properties=dict(_CREATED_WITH))

    def _read_position(self, metadata: TableMetadata, reader: str) -> Position | None:
        """How far the reader has come, which must not be less than at an earlier look."""
        found = read_position(metadata, reader)
        seen = self._seen.get(reader)
        # guard: refuse a position that went back
        if seen is not None and (found is None or found.sequence < seen.sequence):
            raise Unavailable(
                f"{self.table}: the position was {seen} and is now {found}. Either the catalog gives an old state, or "
                "the table was restored or created again. If it was, stop this runtime and reset the group to the "
                "sequence that it should read next (forebay groups reset)"
            )
        if found is not None:
            self._seen[reader] = found
        return found

    def _judge(self, identity: CommitIdentity, done: Position) -> Answer:
        if done.sequence >= identity.last:
            return Committed()
        return Fatal(
            f"{self.table} holds batches up to {done} of {identity.reader}, in the middle of the commit of "
            f"{identity.first} to {identity.last}: another program has written to the table in this reader's name"
        )

    def _trim(self, table: Table, committed: TableMetadata) -> None:
        """Delete metadata files that the table's settings no longer keep, as pyiceberg does after its own commits."""
        with suppress(Exception):  # the commit is there, whatever becomes of old files
            self._catalog._delete_old_metadata(table.io, table.metadata, committed)  # noqa: SLF001

    def _describe(self, error: Exception) -> str:
        said = _without_secrets(_one_line(error), self._catalog.properties)
        return f"{self.table}: {type(error).__name__}: {said}"[:400]


class _Attempt:
    """One call's rows, their files, and whether a commit of them may be under way."""

    def __init__(self, commit: Commit, name: str, *, merge_schema: bool) -> None:
        self.identity = commit.identity
        self.rows = commit.table
        self.sent = False
        self._merge_schema = merge_schema
        self._name = f"{FILE_MARK}{commit.identity.name}.{name}"
        self._files: list[DataFile] = []
        self._made_for: tuple[object, ...] | None = None

    def stage(self, table: Table, number: int) -> Transaction:
        """Return a transaction that appends the rows and moves the position, based on the table as it was looked at.

        The data files of an earlier attempt are used again: at most one of both attempts can be applied.
        """
        from pyiceberg.table.update import (  # noqa: PLC0415
            AssertCurrentSchemaId,
            AssertDefaultSpecId,
            AssertLastAssignedFieldId,
            AssertTableUUID,
        )

        identity = self.identity
        transaction = table.transaction()
        meeting = _meet(table, self.rows.schema, merge_schema=self._merge_schema)
        if meeting.changes:
            with transaction.update_schema() as change:
                change.union_by_name(meeting.columns)
        # guard: write the files again if the table's columns or partitions changed
        if self._made_for != _shape(table):
            self._files = self._write(transaction, meeting.fit(self.rows), number)
            self._made_for = _shape(table)
        update = transaction.update_snapshot(
            snapshot_properties={READER: identity.reader, FIRST: str(identity.first), LAST: str(identity.last)}
        )
        merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
        append = update.merge_append() if merges else update.fast_append()
        append.commit_uuid = cast("Any", f"{self._name}-{number}")  # typed as a UUID, and only part of names
        for file in self._files:
            append.append_data_file(file)
        append.commit()  # stages it
        position = Position(identity.last, append.snapshot_id, table.metadata.next_sequence_number())
        # guard: put the position into the commit itself
        transaction.set_properties(property_of(identity.reader, position))
        metadata = table.metadata
        transaction._requirements += (  # noqa: SLF001
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        ids = AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id})
        # guard: commit files only while columns have the ids that these were written with
        transaction._requirements += (ids,)  # noqa: SLF001
        return transaction

    def _write(self, transaction: Transaction, rows: pa.Table, number: int) -> list[DataFile]:
        """Write files of the columns that the table has after the transaction."""
        if not len(rows):
            return []
        io = transaction._table.io  # noqa: SLF001
        name = cast("Any", f"{self._name}-{number}")  # typed as a UUID, and only part of names
        return list(_exact_writer()(transaction.table_metadata, rows, io, write_uuid=name))


@cache
def _exact_writer() -> Callable[..., Iterable[DataFile]]:
    """Return pyiceberg's `_dataframe_to_data_files`, changed in two ways.

    pyiceberg 0.12 makes an empty list of a null one if its elements are structs, and so for maps. And it fills
    dictionaries with values that hardly repeat. Its functions are copied with another projection and another writer:
    those of the module stay as they are, since the program may use them too.
    """
    from pyiceberg.io import pyarrow as files  # noqa: PLC0415
    from pyiceberg.io.fileformat import FileFormatFactory  # noqa: PLC0415

    class Projection(files.ArrowProjectionVisitor):
        def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
            return _keep_nulls(super().list(list_type, list_array, value_array), list_array)

        def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
            return _keep_nulls(super().map(map_type, map_array, key_result, value_result), map_array)

    class Writer(files.ParquetFormatWriter):
        def write(self, table: pa.Table) -> None:
            self._parquet_writer_kwargs["use_dictionary"] = dictionary_columns(table)
            super().write(table)

    class Parquet(files.ParquetFormatModel):
        def create_writer(self, *given: Any) -> Writer:
            return Writer(*given)

    class Formats:
        @staticmethod
        def get(name: Any) -> Any:
            model = FileFormatFactory.get(name)
            return Parquet() if isinstance(model, files.ParquetFormatModel) else model

    project = _copy(files._to_requested_schema, ArrowProjectionVisitor=Projection)  # noqa: SLF001
    write = _copy(files.write_file, _to_requested_schema=project, FileFormatFactory=Formats)
    exact: Callable[..., Iterable[DataFile]] = _copy(files._dataframe_to_data_files, write_file=write)  # noqa: SLF001
    return exact


def _copy(function: Any, **replaced: Any) -> Any:
    """Return a function with other globals."""
    names = {**function.__globals__, **replaced}
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _keep_nulls(projected: Any, given: Any) -> Any:
    """Return lists or maps with the nulls that they had."""
    import pyarrow as pa  # noqa: PLC0415

    # guard: keep null lists and maps of structs
    if projected is None or projected.null_count == given.null_count:
        return projected
    offsets = projected.offsets.take(pa.arange(0, len(projected) + 1))  # Arrow takes no mask beside a slice of offsets
    if isinstance(projected, pa.MapArray):
        parts = projected.keys, projected.items, projected.type
        return pa.MapArray.from_arrays(offsets, *parts, mask=given.is_null())
    return type(projected).from_arrays(offsets, projected.values, projected.type, mask=given.is_null())


def open_catalog(catalog: Catalog | str | Mapping[str, Any], *, read_only: bool = False) -> tuple[Catalog, bool]:
    """Return a catalog of pyiceberg, and whether it was opened here.

    Args:
        catalog: the catalog, its name in pyiceberg's configuration, or its properties.
        read_only: create nothing. A catalog in an SQLite file that does not exist has no tables.
    """
    _check_installed()
    from pyiceberg.catalog import Catalog, load_catalog  # noqa: PLC0415

    if isinstance(catalog, Catalog):
        return catalog, False
    given = {} if isinstance(catalog, str) else dict(catalog)
    name = catalog if isinstance(catalog, str) else given.pop("name", "default")
    if read_only:
        given |= _without_creating(name, given)
    try:
        return load_catalog(name, **given), True
    except ValueError as error:
        said = _without_secrets(_one_line(error), given)
        raise InvalidInput(
            f"catalog {name!r} cannot be opened: {said}. Give its properties, such as type and uri, or put them into "
            "pyiceberg's configuration (.pyiceberg.yaml)"
        ) from None
    except Exception as error:
        if not _is_trouble(error):
            raise
        raise Unavailable(
            f"catalog {name!r} does not answer: {type(error).__name__}: {_one_line(error)[:400]}. Check its uri and "
            "credentials, and that it is running"
        ) from None


def _without_creating(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Properties with which a catalog makes neither a file nor tables of its own."""
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    uri = str({**(Config().get_catalog_config(name) or {}), **given}.get("uri", ""))
    path = uri.removeprefix("sqlite:///")
    return {"uri": "sqlite://"} if path != uri and not Path(path).exists() else {"init_catalog_tables": "false"}


def _shape(table: Table) -> tuple[object, ...]:
    metadata = table.metadata
    return metadata.table_uuid, metadata.current_schema_id, metadata.last_column_id, metadata.default_spec_id


def _meet(table: Table, rows: pa.Schema, *, merge_schema: bool) -> Meeting:
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    return meet(schema_to_pyarrow(table.schema(), include_field_ids=False), rows, ICEBERG, merge=merge_schema)


def _check_installed() -> None:
    found = installed_version("pyiceberg")
    if found is None or not found.startswith(_RELEASE):
        raise Unsupported(
            f"an Iceberg sink needs pyiceberg {_RELEASE}x, and {found or 'none'} is installed: "
            f"{install_hint('iceberg')}"
        )


def _is_trouble(error: Exception) -> bool:
    """Whether an error comes from the catalog or a store, and may be gone the next time."""
    from pyiceberg.exceptions import BadRequestError, ForbiddenError, RESTError, WaitingForLockException  # noqa: PLC0415

    if isinstance(error, Unavailable | OSError | WaitingForLockException):
        return True
    if isinstance(error, RESTError):
        return not isinstance(error, BadRequestError | ForbiddenError)
    try:
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415
    except ImportError:
        return False
    return isinstance(error, DBAPIError)


def _without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    for name, value in properties.items():
        if any(word in name.lower() for word in _SECRET_WORDS) and value:
            text = text.replace(str(value), "***")
    return _USER.sub("***@", text)  # guard: show no password of a catalog's URL


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
