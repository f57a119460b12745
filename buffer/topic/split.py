"""Splitting the rows of one call over the partitions of a topic, by a column (rfcs/0010)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.errors import ForebayError, InvalidInput
from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.topic.keys import partition_for

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Mapping, Sequence

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.write.handle import ProduceHandle
    from forebay.buffer.write.rows import Rows

_SHOWN: Final = 40


class SplitHandle:
    """The rows of one call on their way to several partitions; wait for it from threads or with `await`.

    The rows of one partition become durable together or not at all. Rows of different partitions do not: if `result`
    raises, `parts` tells which partitions have failed. The rows of the others are durable.
    """

    def __init__(self, parts: Mapping[int, ProduceHandle | ForebayError], clock: Clock) -> None:
        self.parts = parts
        """By partition: the handle of its rows, or why they were not queued (they are in the error's `write`)."""
        self._clock = clock

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return all(isinstance(part, ForebayError) or part.done() for part in self.parts.values())

    def result(self, timeout: float | None = None) -> None:
        """Return once all rows are durable. Waits for every partition before it raises the first error.

        Raises:
            Timeout: they were not in `timeout` seconds; they may still be.
            ForebayError: what kept the rows of one partition from it.
        """
        deadline = deadline_in(self._clock, timeout)
        failures: list[ForebayError] = []
        for part in self.parts.values():
            try:
                if isinstance(part, ForebayError):
                    raise part
                part.result(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
            except ForebayError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def __await__(self) -> Generator[asyncio.Future[None], None, None]:
        """Wait as `result` does without blocking the event loop."""
        failures: list[ForebayError] = []
        for part in self.parts.values():
            try:
                if isinstance(part, ForebayError):
                    raise part
                yield from part.__await__()
            except ForebayError as error:
                failures.append(error)
        if failures:
            raise failures[0]


def split_rows(rows: Rows, column: str, partitions: int, schema: pa.Schema) -> dict[int, Any]:
    """Return the rows of each partition, in their order, by the value that they have in a column.

    Text counts as its UTF-8 bytes, bytes as they are, and an integer as its decimal digits. In a JSON document the
    bytes of a binary column are base64 text, so that each form of a row goes to the same partition.

    Raises:
        InvalidInput: there is no such column; a row has no value there, or one of another type; or there are no rows.
    """
    if column not in schema.names:
        raise InvalidInput(f"there is no column {column}, which key_column names; there are {', '.join(schema.names)}")
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        try:
            found_tables = _split_table(rows, column, partitions)
        except MemoryError:
            raise
        except pa.ArrowException as error:
            raise InvalidInput(
                f"the rows cannot be split by column {column}, which must be text, bytes or integers: {error}"
            ) from error
        return _not_empty(found_tables)
    is_base64 = _is_binary(schema.field(column).type)
    listed: Sequence[Any] = rows if isinstance(rows, list | tuple) else [rows]
    found: dict[int, list[Any]] = {}
    for number, row in enumerate(listed):
        fields = _decode(row, number) if isinstance(row, bytes) else row
        if not isinstance(fields, dict):
            raise InvalidInput(f"row {number} must be a dict or a JSON object: the key is in its column {column}")
        value = fields.get(column)
        if is_base64 and isinstance(row, bytes) and isinstance(value, str):
            value = _decode_base64(value, column, number)  # guard: a document goes where the same row as a dict goes
        key = _key_of(value, column, number)
        found.setdefault(partition_for(key, partitions), []).append(row)
    return _not_empty(dict(sorted(found.items())))


def _not_empty(parts: dict[int, Any]) -> dict[int, Any]:
    if not parts:
        raise InvalidInput("the call has no rows: give it at least one")
    return parts


def _split_table(table: pa.Table, column: str, partitions: int) -> dict[int, pa.Table]:
    if table.column_names.count(column) != 1:
        raise InvalidInput(f"the rows have no column {column}; they have {', '.join(table.column_names)}")
    table.validate(full=True)  # to read or copy values whose offsets are wrong ends the process
    keys = table.column(column)
    if not pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_encode()
    keys = keys.unify_dictionaries()
    if keys.null_count:
        number = pc.index(keys.is_null(), value=True).as_py()
        raise InvalidInput(f"row {number} has no value in column {column}, which must hold its key")
    values = keys.chunk(0).dictionary.to_pylist() if keys.num_chunks else []
    places = pa.array([partition_for(_key_of(value, column, None), partitions) for value in values], pa.int32())
    of_rows = pa.chunked_array([places.take(chunk.indices) for chunk in keys.chunks], pa.int32())
    return {number: table.filter(pc.equal(of_rows, number)) for number in sorted(of_rows.unique().to_pylist())}


def _decode(document: bytes, number: int) -> Any:
    try:
        return msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"row {number} must be a JSON document: {error}") from error


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _decode_base64(text: str, column: str, number: int) -> bytes:
    try:
        return msgspec.convert(text, bytes)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"row {number}: the text in column {column} must be base64: {error}") from error


def _key_of(value: Any, column: str, number: int | None) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"row {number}: the text in column {column} must be valid Unicode: {error}") from error
    if isinstance(value, bytes):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    where = "a row" if number is None else f"row {number}"
    shown = "no value" if value is None else f"{type(value).__name__} {str(value)[:_SHOWN]}"
    raise InvalidInput(f"the key in column {column} must be text, bytes or an integer: {where} has {shown}")
