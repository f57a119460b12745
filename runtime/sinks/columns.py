"""Rows in the columns of a table: what sinks do before they send anything."""

from __future__ import annotations

import pyarrow as pa


class DoesNotFit(Exception):
    """The rows cannot be in the table. It says what is wrong and what to do."""

    def __init__(self, reason: str, *, poison: bool = False) -> None:
        super().__init__(reason)
        self.poison = poison
        """Whether the values are at fault, so that other rows may fit. Else no rows of these columns fit."""


def fit(rows: pa.Table, wanted: pa.Schema, *, how_to_add: str) -> pa.Table:
    """Return the rows in the table's columns. Columns that the rows lack are null.

    Args:
        rows: what the decoder made.
        wanted: the table's columns.
        how_to_add: the call that adds a column to the table, for the message of an error.
    """
    unknown = [name for name in rows.column_names if name not in wanted.names]
    if unknown:
        raise DoesNotFit(
            f"the table has no column {', '.join(unknown)}: add it ({how_to_add}), or let the decoder leave it out"
        )
    return pa.table([_fit_column(rows, field) for field in wanted], schema=wanted)


def _fit_column(rows: pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if field.name not in rows.column_names:
        if not field.nullable:
            raise DoesNotFit(f"the table's column {field.name} must not be null, and the rows have no such column")
        return pa.nulls(rows.num_rows, field.type)
    column = rows[field.name]
    try:
        column[:0].cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise DoesNotFit(
            f"the table's column {field.name} is {field.type}, and the rows have {column.type}: let the decoder give "
            "what the table has, or write to another table"
        ) from None
    try:
        column = column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise DoesNotFit(f"column {field.name}: {error}", poison=True) from None
    if column.null_count and not field.nullable:
        raise DoesNotFit(
            f"the table's column {field.name} must not be null, and {column.null_count} rows are", poison=True
        )
    return column
