"""How the rows of a frame are stored: which of its columns are what, checked before a task begins (rfcs/0008)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BinaryType, IntegralType, StringType

from forebay.buffer.base.errors import InvalidInput
from forebay.runtime.spark.types import arrow_schema, written_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from forebay.buffer.write.rows import RowFormat

_METADATA: Final = "_call_metadata"
_KEYS: Final = (BinaryType, StringType, IntegralType)


@dataclass(frozen=True)
class Frame:
    """What a writing task does with the columns of its rows. Pickles."""

    rows: RowFormat | None = None
    """What rows are stored in; None for a buffer of bytes, where column `value` is stored."""
    casts: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Columns of a typed buffer that Spark gives in another type, and the type that they are stored in."""
    key: str = "key"
    """The column that chooses the partition of a topic, if the rows have it."""
    metadata: str = "metadata"
    """The column that holds the metadata of a row, if the rows have it."""


def check_frame(
    schema: StructType, rows: RowFormat | None, key_column: str | None, *, url: str, partitions: int
) -> Frame:
    """Return how the rows of a frame are stored.

    Args:
        schema: of the frame.
        rows: what a typed buffer or topic stores; None for bytes.
        key_column: the column of a typed topic that chooses the partition; None for any partition.
        url: for messages.
        partitions: of the topic; 0 for a buffer.

    Raises:
        InvalidInput: a column does not fit. The message names it, what was expected and what was found.
    """
    if key_column is not None and (rows is None or not partitions):
        raise InvalidInput(
            f"{url}: the option keyColumn is for topics with a schema; "
            + ('in a topic of bytes the column "key" chooses the partition' if partitions else "this is a buffer")
            + ". Leave it out"
        )
    return _check_bytes(schema, url, partitions) if rows is None else _check_rows(schema, rows, key_column, url)


def _check_rows(schema: StructType, rows: RowFormat, key_column: str | None, url: str) -> Frame:
    held = rows.schema
    found = {each.name: each for each in schema}
    asked = arrow_schema(schema)
    casts = {}
    for name, each in found.items():
        if name == _METADATA:
            _expect(name, each.dataType, (BinaryType, StringType), "binary or string", url)
        elif name not in held.names:
            raise InvalidInput(
                f"{url}: there is no column {name}; the columns are {', '.join(held.names)}, and {_METADATA}: drop it, "
                "or evolve the buffer's schema"
            )
        else:
            given = asked.field(name).type
            try:
                stored = written_type(held.field(name), given)
            except InvalidInput as error:
                raise InvalidInput(f"{url}: {error}: cast it") from None
            if stored != given:
                casts[name] = stored
    missing = [each.name for each in held if not each.nullable and each.name not in found]
    if missing:
        raise InvalidInput(f"{url}: the frame has no column {missing[0]}, which is required: add it")
    if key_column is not None:
        if key_column not in found:
            raise InvalidInput(
                f"{url}: the frame has no column {key_column}, which keyColumn names: add it, or name another one"
            )
        _expect(key_column, found[key_column].dataType, _KEYS, "text, binary or an integer, for a key", url)
    return Frame(rows, casts, key_column or "", _METADATA)


def _check_bytes(schema: StructType, url: str, partitions: int) -> Frame:
    found = {each.name: each.dataType for each in schema.fields}
    known = ["value", "metadata", *(["key"] if partitions else [])]
    if "value" not in found:
        raise InvalidInput(
            f"{url}: there is no column value, which holds the entries, among {', '.join(found)}. For rows with "
            "columns of their own, first make a typed buffer: Producer(url, schema=…)"
        )
    if "key" in found and not partitions:
        raise InvalidInput(f'{url} is a buffer, and column key chooses a topic\'s partition: drop("key")')
    unknown = [name for name in found if name not in known]
    if unknown:
        raise InvalidInput(
            f"{url}: column {unknown[0]} has no place in a buffer, which takes {', '.join(known)}: drop it, or make it "
            'a part of value, as to_json(struct("*")) does'
        )
    for name, kind in found.items():
        _expect(name, kind, (BinaryType, StringType), "binary or string", url)
    return Frame()


def _expect(name: str, kind: DataType, kinds: tuple[type, ...], expected: str, url: str) -> None:
    if not isinstance(kind, kinds):
        raise InvalidInput(f"{url}: column {name} is {kind.simpleString()}; expected {expected}: cast it")
