"""The columns of a stream: those that its frame has, also when the buffer's schema changes (rfcs/0008)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.format.schema import compare_schemas
from forebay.buffer.topic import Topic
from forebay.runtime.spark.read.listing import newest_schema
from forebay.runtime.spark.read.rows import Rows
from forebay.runtime.spark.read.times import TimeRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from forebay.buffer.manifest import Queue

_log = logging.getLogger("forebay.spark")


class StreamRows:
    """Makes the rows of a stream's micro-batches."""

    def __init__(self, asked: StructType) -> None:
        self._asked = asked
        self._ids: Sequence[str] | None = None
        self._schema: pa.Schema | None = None
        self._rows: Rows | None = None

    def look(self, source: Queue | Topic) -> Rows:
        """Return what makes the rows, by the schema of the buffer or topic as last seen.

        If the schema has changed since the last look, a warning says what the query does not show.

        Raises:
            InvalidInput: a column that the query asks for is not there, or has another type.
        """
        seen = source.record if isinstance(source, Topic) else source.last_seen()
        ids = () if seen is None else seen.schemas
        if self._rows is None or ids != self._ids:
            before, after = self._schema, newest_schema(source)
            self._rows = Rows(self._asked, TimeRange(), after)
            self._ids, self._schema = ids, after
            if before is not None and after is not None:
                _log.warning(
                    "%s: its schema has changed: %s. This query keeps the columns that it started with: start it again "
                    "to see others",
                    source.store.url,
                    "; ".join(map(str, compare_schemas(before, after))),
                )
        return self._rows
