"""Rows of a schema that grows while old and new producers are at work. Each row names the version of its producer.

A reader can tell from a row alone whether anything of it was lost or changed: columns that its producer had are the
function of its value that `make_row` gives them, and the others are null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

VERSIONS = 4
"""Number of schemas. Each one adds a nullable column, and the second one also widens the type of `length`.

So a producer may come to the buffer with any of them, whichever of the others were there before.
"""


def schema_of(version: int) -> pa.Schema:
    """Return a version of the schema, counted from 0."""
    return pa.schema(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("version", pa.int8(), nullable=False),
            pa.field("length", pa.int64() if version else pa.int16()),
            *(pa.field(f"added_{number}", pa.string()) for number in range(1, version + 1)),
        ]
    )


def make_row(value: bytes, version: int) -> dict[str, Any]:
    """Return the row that a producer of a version writes for a value."""
    added = {f"added_{number}": f"{number} {value.decode()}" for number in range(1, version + 1)}
    return {"value": value, "version": version, "length": len(value), **added}


def read_rows(batch: Any) -> list[bytes]:
    """Return the values of a batch.

    Raises:
        AssertionError: its schema is no version, or a row is not as its producer wrote it.
    """
    shown = len(batch.table.column_names) - 3
    assert batch.table.schema.equals(schema_of(shown)), batch.table.schema
    for row in batch.entries:
        assert row["version"] <= shown
        missing = {f"added_{number}": None for number in range(row["version"] + 1, shown + 1)}
        assert row == {**make_row(row["value"], row["version"]), **missing}
    return [row["value"] for row in batch.entries]
