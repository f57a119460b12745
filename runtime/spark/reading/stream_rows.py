"""The columns of a stream: those that its frame has, also when the buffer's schema changes (rfcs/0008)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.format.schema import compare_schemas
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.topic import Topic
from forebay.runtime.spark.reading.rows import Rows
from forebay.runtime.spark.reading.times import TimeRange
from forebay.runtime.spark.types import spark_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from forebay.buffer.format.schema import SchemaChange
    from forebay.buffer.manifest import Queue

_log = logging.getLogger("forebay.spark")


class StreamRows:
    """Makes the rows of a stream's micro-batches."""

    def __init__(self, asked: StructType) -> None:
        self._asked = asked
        self._ids: Sequence[str] = ()
        self._schema_id: str | None = None
        self._rows: Rows | None = None

    @property
    def schema_id(self) -> str | None:
        """The newest schema at the last look, for the checkpoint; None for bytes."""
        return self._ids[-1] if self._ids else None

    def resume(self, schema_id: str | None) -> None:
        """Take note of the schema that the checkpoint has, if there was no look yet."""
        if self._rows is None:
            self._schema_id = schema_id

    def look(self, source: Queue | Topic) -> Rows:
        """Return what makes the rows, by the schema of the buffer or topic as last seen.

        If the schema has changed since the last look, or since the checkpoint, a warning says what the query does not
        show of it.

        Raises:
            InvalidInput: a column that the query asks for is not there, or has another type.
        """
        seen = source.record if isinstance(source, Topic) else source.last_seen()
        ids = () if seen is None else seen.schemas
        if self._rows is None or ids != self._ids:
            schemas = Schemas(source.store, clock=SystemClock())
            newest = schemas.load(ids[-1]) if ids else None
            self._rows = Rows(self._asked, TimeRange(), newest, is_topic=isinstance(source, Topic))
            self._ids = ids
            if newest is not None and self._schema_id is not None and self._schema_id in ids[:-1]:
                self._warn(source.store.url, compare_schemas(schemas.load(self._schema_id), newest), newest)
            self._schema_id = self.schema_id
        return self._rows

    def _warn(self, url: str, changes: Sequence[SchemaChange], newest: pa.Schema) -> None:
        asked = {field.name: field.dataType for field in self._asked}
        names = [change.path.partition(".")[0] for change in changes]
        hidden = [
            str(change)
            for change, name in zip(changes, names, strict=True)
            if name not in asked or spark_type(newest.field(name).type) != asked[name]
        ]
        if hidden:
            _log.warning(
                "%s: its schema has changed: %s. This query keeps the columns that it started with: to see others, "
                "start it again, with another schema() if it has one",
                url,
                "; ".join(hidden),
            )
