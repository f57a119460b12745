"""Accumulates the calls of a typed producer, and converts a whole batch of them at once (rfcs/0010).

Converting one call costs as much as hundreds of rows, so calls wait as they were given. The thread that encodes and
uploads a batch converts it. A call that does not fit the schema then fails alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec
import pyarrow as pa

from forebay.buffer.base.errors import Closed, InvalidInput, Unavailable
from forebay.buffer.coordinator import Durability
from forebay.buffer.format.model import Metadata
from forebay.buffer.format.parquet import encode_rows
from forebay.buffer.format.rows import Fitted, RowConverter
from forebay.buffer.format.schema import present
from forebay.buffer.write.accumulator import (
    FLUSH_METADATA_BYTES,
    MAX_CALL_BYTES,
    METADATA_ITEM_BYTES,
    check_metadata,
    check_order,
)
from forebay.buffer.write.handle import ProduceHandle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.base.errors import ForebayError
    from forebay.buffer.format.batch import Compression, Version
    from forebay.buffer.format.rows import Converted

_log = logging.getLogger("forebay.producer")

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[dict[str, Any]] | dict[str, Any] | bytes | Sequence[bytes]"
"""What a call of a typed producer takes: an Arrow table or record batch, one or several dicts, or JSON documents."""

_VALUE_BYTES: Final = 64
"""About what a value in a dict takes beside its text."""
_CONVERTED_ROWS: Final = 128
"""Number of dicts in a call from which converting them costs less than copying them to convert them later."""
_COUNTED_BYTES: Final = 1 << 20
"""Size of an Arrow call from which its bytes are always counted exactly."""
_CALL_BYTES: Final = 200
"""About what a call takes beside its rows."""
_ROW_BYTES: Final = 200
"""About what a dict takes beside its values."""
_COLUMN_BYTES: Final = 640
"""About what a column of an Arrow table takes beside its values: most of what a table of a few rows takes."""
_COMPACT: Final = frozenset({pa.dictionary(pa.int8(), pa.string()).id, pa.null().id})
_TEXT: Final = frozenset({str, bytes})
_FIXED: Final = frozenset({int, float, bool, type(None)})
_UNCHANGING: Final = _TEXT | _FIXED | {date, datetime, Decimal}


@dataclass(frozen=True, slots=True)
class RowFormat:
    """What a typed producer writes."""

    schema: pa.Schema
    """What its calls have to fit."""
    stored: pa.Schema
    """The version that batches are stored in: it has all columns of `schema`."""
    ids: tuple[str, ...]
    """The ids of all versions up to that one."""

    @property
    def version(self) -> int:
        """The number of the version that batches are stored in."""
        return len(self.ids) - 1


class RowCall(msgspec.Struct, gc=False):
    """One call of `produce` with rows, on its way into a batch."""

    rows: Any
    """The rows as they were given, copied where they could change; None once they are converted."""
    count: int
    metadata: bytes
    time_ms: int
    raw_bytes: int
    """About what the rows take in a batch before compression."""
    memory: int
    """About what the call takes in memory."""
    number: int | None = None
    """The caller's own number for the call."""
    error: ForebayError | None = None
    """Why the call does not fit, once that is known."""

    def drop_entries(self) -> None:
        """Keep no more than the call's place in the order."""
        self.rows, self.count, self.raw_bytes, self.memory = None, 0, 0, len(self.metadata)
        self.error = None


class RowsHandle(ProduceHandle, eq=False, gc=False):
    """One call of `produce` with rows on its way. Its `outcome` is the call, before and after it is applied."""

    def standing(self, level: int) -> BaseException | bool:
        """True once `level` is reached, the error if it never will be, else False: certain only under the lock."""
        call = self.outcome
        # guard: a call that does not fit fails its own handle
        if level > Durability.APPLIED and isinstance(call, RowCall) and call.error is not None:
            return call.error
        return super().standing(level)

    @property
    def ingestion_time_ms(self) -> int | None:
        """The time that readers see for these rows; None until they are put into a batch, or if they do not fit."""
        call = self.outcome
        if self.epoch is None or not isinstance(call, RowCall) or call.count == 0 or call.error is not None:
            return None
        return call.time_ms


def row_bytes_of(kind: pa.Schema | pa.DataType) -> float:
    """Return what a row, or a value, takes in an Arrow table at least, however little it holds."""
    if isinstance(kind, pa.Schema):
        return sum(1 / 8 + row_bytes_of(field.type) for field in kind)
    if pa.types.is_struct(kind):
        return sum(1 / 8 + row_bytes_of(kind.field(i).type) for i in range(kind.num_fields))
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return 4.0  # an offset


def check_rows(
    rows: Rows, metadata: bytes, time_ms: int, *, converter: RowConverter, row_bytes: float = 0.0
) -> RowCall:
    """Return the call of a typed producer, with a copy of what the caller may change.

    Whether the rows fit the schema is found out later, with all others of the batch. Only a long list of dicts is
    converted now: that takes no longer than to copy it. So is a table that has dictionaries, a column of the type null,
    or no column: its rows may be far larger in a batch. `row_bytes` is what a row takes in a batch at least.

    Raises:
        InvalidInput: it can never be stored, and the message says why.
    """
    metadata = check_metadata(metadata)
    count, error = 1, None
    kept: Any = rows
    beside = 0  # the memory that a call takes beside `size`
    if type(rows) is dict:
        row, size = _copy_row(rows)
        kept, beside = [row], _ROW_BYTES
    elif isinstance(rows, bytes):
        size = len(rows)
        kept = [rows]
    elif isinstance(rows, pa.Table | pa.RecordBatch):
        count = rows.num_rows
        try:
            kept, size, beside = _keep_table(rows)
        except pa.ArrowException:  # after converting, Arrow can copy every type; or it is known what is not valid
            found = converter.convert([rows])
            table, size, beside = _keep_table(found.table)
            kept, error = Fitted(table), found.failures.get(0)
        beside += _COLUMN_BYTES * rows.num_columns
    elif isinstance(rows, list | tuple):
        count = len(rows)
        if count >= _CONVERTED_ROWS and type(rows[0]) is dict:
            found = converter.convert([list(rows)])
            kept, size, error = Fitted(found.table), found.table.nbytes, found.failures.get(0)
            beside = _COLUMN_BYTES * found.table.num_columns
        else:
            kept, size = _copy_rows(rows)
            beside = _ROW_BYTES * count if kept and type(kept[0]) is dict else 0
    else:
        raise InvalidInput(
            "rows must be an Arrow table or record batch, a dict or a list of dicts, or JSON documents as bytes or a "
            f"list of bytes, not {type(rows).__name__}"
        )
    if count == 0:
        raise InvalidInput("the call has no rows: give it at least one")
    size = max(size, int(count * row_bytes))  # guard: count the columns that a row lacks
    if size > MAX_CALL_BYTES:
        raise InvalidInput(
            f"{count} rows of about {size} bytes in one call; the most is {MAX_CALL_BYTES}: split them over several "
            "calls"
        )
    # guard: count the memory that a typed call takes beside its values
    memory = size + beside + _CALL_BYTES + len(metadata)
    return RowCall(kept, count, metadata, time_ms, size, memory, error=error)


def _keep_table(rows: pa.Table | pa.RecordBatch) -> tuple[pa.Table | pa.RecordBatch, int, int]:
    """Return the rows, copied if a slice would keep much more in memory, their size, and the memory beside that.

    Raises:
        ArrowException: the rows are not valid, or would be copied and have a type that Arrow does not copy; or they
            may be far smaller than they are in a batch.
    """
    # guard: count what the rows of a table take in a batch
    if not rows.num_columns or any(map(_is_compact, rows.schema.types)):
        raise pa.ArrowNotImplementedError("convert these rows to know their size")
    rows.validate()  # to count the bytes of a slice whose offsets are wrong ends the process
    size = _size_of(rows)
    beside = rows.get_total_buffer_size() - size
    if beside <= size:
        return rows, size, beside
    rows.validate(full=True)  # to copy values whose offsets are wrong ends it too
    return rows.take(pa.arange(0, rows.num_rows)), size, 0


def _is_compact(kind: pa.DataType) -> bool:
    """Return whether values of a type may be far smaller than those of the type that they are stored in."""
    if kind.num_fields:
        return any(_is_compact(kind.field(i).type) for i in range(kind.num_fields))
    return kind.id in _COMPACT


def _size_of(rows: pa.Table | pa.RecordBatch) -> int:
    """Return about what the rows take: exactly if they are large, or part of something larger.

    To count exactly takes 35 to 60 µs. The size of the buffers is known at once, and is the same unless the rows are a
    slice, which the first column shows.
    """
    total: int = rows.get_total_buffer_size()
    if total <= _COUNTED_BYTES and rows.num_columns:
        first = rows.column(0)
        if first.get_total_buffer_size() <= 2 * first.nbytes:
            return total
    return int(rows.nbytes)


def _copy_rows(rows: Sequence[Any]) -> tuple[list[Any], int]:
    # guard: copy the list of rows at the start of the call
    rows = list(rows)
    kinds = set(map(type, rows))
    if kinds <= {bytes}:
        return rows, sum(map(len, rows)) + _VALUE_BYTES * len(rows)
    if kinds <= {dict}:
        return _copy_dicts(rows)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidInput(f"rows must all be dicts or all be bytes; found {found}")


def _copy_dicts(rows: list[dict[str, Any]]) -> tuple[list[Any], int]:
    # Native loops over all values: a loop in Python over each row would cost as much as converting the rows.
    copied = list(map(dict.copy, rows))  # guard: copy each row at the start of the call
    values = list(chain.from_iterable(map(dict.values, copied)))
    kinds = list(map(type, values))
    if _UNCHANGING.issuperset(kinds):
        texts = compress(values, map(_TEXT.__contains__, kinds))
        return copied, _VALUE_BYTES * len(values) + sum(map(len, texts))
    pairs = list(map(_copy_row, copied))
    return [row for row, _ in pairs], sum(size for _, size in pairs)


def _copy_row(row: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a copy that shares nothing that can change, and about what it takes in memory."""
    copied = dict(row)
    size = _VALUE_BYTES * len(copied)
    for name, value in copied.items():
        kind = type(value)
        if kind is str or kind is bytes:
            size += len(value)
        elif kind not in _FIXED:
            copied[name], more = _copy_value(value)
            size += more
    return copied, size


def _copy_value(value: Any) -> tuple[Any, int]:
    if isinstance(value, dict):
        return _copy_row(value)
    if isinstance(value, list | tuple):
        parts = [_copy_value(part) for part in value]
        return [part for part, _ in parts], _VALUE_BYTES * len(parts) + sum(size for _, size in parts)
    if isinstance(value, bytearray | memoryview):
        return bytes(value), len(value)
    return value, len(value) if isinstance(value, str | bytes) else 0


@dataclass(slots=True)
class FilledRows:
    """The calls of one batch, and, once they are prepared, its rows."""

    format: RowFormat
    converter: RowConverter
    calls: list[RowCall] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    """Known once the batch is prepared."""
    metadata_bytes: int = 0
    """About what the metadata takes in the manifest."""
    count: int = 0
    raw_bytes: int = 0
    """About what the rows take, and exactly once the batch is prepared."""
    number: int | None = None
    """Of the last call that is stored, where the caller numbers them; known once the batch is prepared."""
    gap: ForebayError | None = None
    """Why a numbered call after those that are stored was left out; None if there is none."""
    table: pa.Table | None = None
    lacks_a_call: bool = False
    """A call that the caller has numbered is not in it, and calls after that may be."""
    version: ClassVar[Version] = 2
    ending: ClassVar[str] = ".parquet"

    @property
    def schema(self) -> int:
        """The version of the schema that the batch is in."""
        return self.format.version

    def prepare(self) -> None:
        """Convert the calls into rows. A call that does not fit gets its error, and is left out.

        Raises:
            InvalidInput: the rows cannot be converted.
            Unavailable: memory ran short while a call was put into this batch.
        """
        calls, self.calls = self.calls, []
        if self.lacks_a_call:
            raise Unavailable("memory ran short while a call was put into this batch: produce its rows again")
        fitting = [call for call in calls if call.error is None]
        given = [call.rows for call in fitting]
        try:
            found = self.converter.convert(given)
            del given  # the rows are in memory a second time now
            _check_count(found)
            table = present(found.table, self.format.stored)
        except MemoryError:  # Arrow's own is an ArrowException too
            raise
        except pa.ArrowException as error:
            raise InvalidInput(
                f"these rows cannot be converted into the schema of the buffer: {error}; correct them"
            ) from error
        finally:
            for call in calls:
                call.rows = None  # its handle may live long
        self.count = self.raw_bytes = 0
        for at, call in enumerate(fitting):
            call.error = found.failures.get(at)
        self._end_at_gap(calls)
        rows = {id(call): found.rows[at] for at, call in enumerate(fitting)}
        for call in calls:
            if call.error is None:
                self._note(call, rows[id(call)])
        table = table.slice(0, self.count)  # all of it, unless there is a gap: then what comes before
        self.raw_bytes = table.nbytes
        self.table = table
        errors = [call.error for call in calls if call.error is not None]
        if errors:
            _log.warning(
                "%d of %d calls do not fit the schema and were left out: %s", len(errors), len(calls), errors[0]
            )

    def _end_at_gap(self, calls: list[RowCall]) -> None:
        """Let no numbered call follow one that does not fit: its number would count as durable."""
        for at, call in enumerate(calls):
            if call.error is not None and call.number is not None:
                self.gap = call.error  # guard: store no numbered call after one that does not fit
                for later in calls[at + 1 :]:
                    later.error = later.error or Closed(
                        f"an earlier call does not fit the schema, so this one was not stored: open a new producer and "
                        f"repeat from call {call.number} on ({call.error})"
                    )
                return

    def _note(self, call: RowCall, rows: int) -> None:
        last = self.metadata[-1] if self.metadata else None
        if last is None or last.ingestion_time_ms != call.time_ms or last.payload != call.metadata:
            self.metadata.append(Metadata(self.count, call.time_ms, call.metadata))
        self.count += rows
        self.number = call.number

    def encode(self, compression: Compression, level: int) -> memoryview:
        """Return the batch object. The rows are let go of."""
        table, self.table = self.table, None
        if table is None:
            raise InvalidInput("this batch was not prepared")
        try:
            data = encode_rows(table, compression, level)
        except OSError as error:  # it writes into memory: only zstd fails so, where it gets none
            raise MemoryError(str(error)) from error
        del table
        # Other threads made these rows, and their allocator would keep the memory for them.
        pa.default_memory_pool().release_unused()
        return data


def _check_count(found: Converted) -> None:
    """Raise `InvalidInput` if rows are missing: the manifest would list more than the batch has."""
    if found.table.num_rows != sum(found.rows):  # guard: never store a batch that lacks rows
        raise InvalidInput(
            f"these calls have {sum(found.rows)} rows, of which {found.table.num_rows} were converted, so none was "
            "stored: this is a fault of forebay; report it with the schemas of the calls"
        )


class RowAccumulator:
    """Fills one batch of rows after the other. To the coordinator it is the current delta."""

    def __init__(self, flush_size_bytes: int, rows: RowFormat) -> None:
        self._flush_size_bytes = flush_size_bytes
        self._format = rows
        self._converter = RowConverter(rows.schema)
        self._batch = FilledRows(rows, self._converter)
        self._last: RowCall | None = None
        self._last_number = 0

    def apply(self, call: RowCall) -> RowCall:
        """Add a call, and return it: its handle finds its time, or its error, there."""
        if not call.count:
            return call  # only its place in the order matters
        if call.number is not None:
            self._last_number = check_order(call.number, self._last_number)
        batch, last = self._batch, self._last
        try:
            batch.calls.append(call)
            batch.count += call.count
            batch.raw_bytes += call.raw_bytes
            if last is None or last.time_ms != call.time_ms or last.metadata != call.metadata:
                batch.metadata_bytes += len(call.metadata) + METADATA_ITEM_BYTES
                self._last = call
        except BaseException:
            batch.lacks_a_call |= call.number is not None  # guard: list no later row after a call that was left out
            raise
        return call

    def size(self) -> int:
        """The batch's size before compression, or enough to be flushed if its metadata is due."""
        if self._batch.metadata_bytes >= FLUSH_METADATA_BYTES:
            return max(self._batch.raw_bytes, self._flush_size_bytes)
        return self._batch.raw_bytes

    def reader(self) -> RowAccumulator:
        """The accumulator itself: nobody reads a producer's rows from its views."""
        return self

    def freeze(self) -> tuple[FilledRows, RowAccumulator]:
        """What to store, and this accumulator with an empty batch."""
        filled, self._batch, self._last = self._batch, FilledRows(self._format, self._converter), None
        return filled, self
