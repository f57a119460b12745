"""Decoding a typed batch: its rows in the newest schema that the descriptor names, or in the one asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from forebay.buffer.base.errors import Corrupt, InvalidInput, Unsupported
from forebay.buffer.format.batch import DecodedBatch
from forebay.buffer.format.parquet import DecodedRows, decode_rows
from forebay.buffer.format.schema import check_schema, present
from forebay.buffer.manifest.schemas import Schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor, BatchSchema
    from forebay.buffer.store.base import Data, ObjectStore

Columns: TypeAlias = "Sequence[str] | pa.Schema"
"""Names of the columns to decode, in order; or a schema to show the rows in."""


class RowReader:
    """Decodes the typed batches of one buffer. It pickles, and keeps the schemas that it has read."""

    def __init__(self, store: ObjectStore, columns: Columns | None, *, clock: Clock) -> None:
        """Read rows.

        Args:
            store: the buffer's store.
            columns: what to decode; None is all columns of the newest schema.
            clock: what pauses between two reads of a damaged schema sleep on.

        Raises:
            InvalidInput: `columns` is neither, or a schema that no buffer can have.
        """
        if isinstance(columns, pa.Schema):
            columns = check_schema(columns)
        elif columns is not None:
            if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
                raise InvalidInput(f"columns must be a list of names or an Arrow schema, not {columns!r}")
            columns = tuple(columns)
            if not columns or len(set(columns)) != len(columns):
                raise InvalidInput(f"columns must name at least one column, and none twice; got {list(columns)}")
        self.columns = columns
        self._schemas = Schemas(store, clock=clock)

    def load(self, schema: BatchSchema) -> None:
        """Read the schemas that a batch needs, if they are not here yet.

        Raises:
            Corrupt: one is damaged or missing.
            StoreError: one could not be read.
        """
        self._schemas.load(schema.written)
        if not isinstance(self.columns, pa.Schema):
            self._schemas.load(schema.newest)

    def decode(
        self, descriptor: BatchDescriptor, data: Data, location: str, *, step_bytes: int | None = None
    ) -> DecodedRows:
        """Return the rows of a batch whose schemas were loaded. What `step_bytes` means is what `decode_rows` says.

        Raises:
            Corrupt: the bytes are not the batch that the manifest describes.
            InvalidInput: there is no such column, or the rows cannot be shown in the schema asked for.
        """
        if descriptor.schema is None or descriptor.facts is None:
            raise Corrupt(f"batch {location}: its listing names no schema; restore the manifest")
        written = self._schemas.load(descriptor.schema.written)
        shown = self._shown(descriptor.schema)
        facts = descriptor.facts
        table = decode_rows(
            data,
            written,
            records=facts.records,
            raw_bytes=facts.raw_bytes,
            columns=shown.names,
            step_bytes=step_bytes,
            location=location,
        )
        return DecodedRows(present(table, shown), facts.raw_bytes)

    def _shown(self, schema: BatchSchema) -> pa.Schema:
        columns = self.columns
        if isinstance(columns, pa.Schema):
            return columns
        newest = self._schemas.load(schema.newest)
        if columns is None:
            return newest
        missing = [name for name in columns if name not in newest.names]
        if missing:
            raise InvalidInput(f"there is no column {', '.join(missing)}; the columns are {', '.join(newest.names)}")
        return pa.schema([newest.field(name) for name in columns])


def entries_of(decoded: DecodedBatch | DecodedRows, location: str) -> DecodedBatch:
    """Return a batch that holds bytes, or raise `Unsupported` and say what a typed batch has instead."""
    if isinstance(decoded, DecodedRows):
        raise Unsupported(
            f"batch {location} holds rows of a schema: use batch.table, batch.records() or batch.entries. In a "
            "runtime, leave out the decoder"
        )
    return decoded


def rows_of(decoded: DecodedBatch | DecodedRows, location: str) -> DecodedRows:
    """Return a batch that holds rows, or raise `Unsupported` and say what a batch of bytes has instead."""
    if isinstance(decoded, DecodedBatch):
        raise Unsupported(f"batch {location} holds bytes: use batch.arrow, batch.records() or batch.entries")
    return decoded
