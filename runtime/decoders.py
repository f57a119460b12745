"""From a batch to rows: raw entries, JSON, Arrow IPC. Anything that takes a batch and gives a table is a decoder.

A decoder is called once a batch, in a worker thread, and gives the same rows for the same batch each time. Bad data
raises `BadEntry`, which names the first entry that is at fault; the runtime's poison policy decides what becomes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from forebay.buffer.base.checks import check_whole
from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.read.fetch import RECORDS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay.buffer.read.fetch import Batch

_BLOCK_BYTES = 1 << 20
_DEEP_BYTES = 10_000
"""An entry that is no longer cannot be nested deeply enough to exhaust the parser's stack."""
_LINE_END = pa.scalar(b"\n", pa.large_binary())
_ONE_OBJECT = r"(?s)\A[ \t\r\n]*\{.*\}[ \t\r\n]*\z"


class BadEntry(Corrupt):
    """An entry is not what its decoder expects."""

    def __init__(self, message: str, *, sequence: int, index: int) -> None:
        super().__init__(message)
        self.sequence = sequence
        """The batch it is in."""
        self.index = index
        """Its place in the batch; the entries before it are good."""


def raw(batch: Batch) -> pa.Table:
    """Return the entries as they are, a row each: sequence, index, ingestion_time, metadata, value."""
    return batch.records()


def arrow_ipc(batch: Batch) -> pa.Table:
    """Return the rows of entries that are Arrow IPC streams (`pyarrow.ipc.new_stream`), each of any number of rows.

    All entries of a batch need the same schema.

    Raises:
        BadEntry: an entry is no such stream, or its schema differs from the first one's.
    """
    tables: list[pa.Table] = []
    for index, entry in enumerate(entry for chunk in batch.decoded.chunks for entry in chunk):
        try:
            with pa.ipc.open_stream(entry.as_buffer()) as stream:
                table = stream.read_all()
            table.validate(full=True)  # the reader believes offsets and lengths
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _bad_entry(batch, index, f"is no Arrow IPC stream: {error}") from error
        if tables and not table.schema.equals(tables[0].schema):
            problem = f"has the columns {_summary(table.schema)}, and entry 0 has {_summary(tables[0].schema)}"
            raise _bad_entry(batch, index, problem)
        tables.append(table)
    return pa.concat_tables(tables) if tables else pa.table({})


class JsonLines:
    """Decodes entries that are one JSON object each into rows of a schema.

    The schema is given and not guessed, since a table has one for all its batches. Fields that the schema does not name
    are left out; fields that an object does not have are null. Text such as `2026-01-31T12:00:00Z` becomes a timestamp
    and `1.25` a decimal where the schema says so; Arrow's reader makes no dates or times of day of text.

    Args:
        schema: the columns. Maps, dictionaries and other types that Arrow's JSON reader does not make are refused.
        keep: columns to add from the entry's record: `sequence`, `index`, `ingestion_time`, `metadata`.
        piece_bytes: entries are parsed in pieces of about this size, so that decoding takes little memory beside the
            rows.

    Calling it raises `BadEntry` for an entry that is no JSON object, or has a value that its column cannot hold.
    """

    def __init__(self, schema: pa.Schema, *, keep: Sequence[str] = (), piece_bytes: int = 64 << 20) -> None:
        unknown = set(keep) - (set(RECORDS_SCHEMA.names) - {"value"})
        if unknown:
            raise InvalidInput(f"keep may name sequence, index, ingestion_time and metadata, not {sorted(unknown)}")
        names = [*schema.names, *keep]
        if len(names) != len(set(names)):
            raise InvalidInput(f"every column needs a name of its own; found {', '.join(names)}")
        self.schema = schema
        self.keep = tuple(keep)
        self._piece_bytes = check_whole(piece_bytes, "piece_bytes", least=1)
        try:
            self._parse(pa.array([b"{}"], pa.large_binary()))
        except pa.ArrowNotImplementedError as error:
            raise InvalidInput(f"JSON cannot be read into this schema: {error}") from None
        except pa.ArrowInvalid:
            pass  # it has columns that must not be null

    def __call__(self, batch: Batch) -> pa.Table:
        """Return one row for each entry."""
        pieces, start = [self.schema.empty_table()], 0
        for piece in _pieces(batch, self._piece_bytes):
            pieces.append(self._decode(batch, piece, start))
            start += len(piece)
        table = pa.concat_tables(pieces)
        if self.keep:
            records = batch.records()
            for name in self.keep:
                table = table.append_column(records.schema.field(name), records[name])
        return table

    def _decode(self, batch: Batch, entries: pa.Array, start: int) -> pa.Table:
        """The rows of one piece of the batch, which starts at entry `start`."""
        suspect = _first_that_is_no_object(entries)
        good = entries if suspect is None else entries[:suspect]
        try:
            table = self._parse(good)
        except pa.ArrowInvalid:
            suspect = self._search(good)
        if suspect is None:
            return table
        problem = self._problem(entries[suspect : suspect + 1])
        raise _bad_entry(batch, start + suspect, f"is not what was expected: {problem}")

    def _search(self, entries: pa.Array) -> int:
        """The first entry that cannot be parsed; there is one. An entry is bad on its own account, never by others."""
        low, high = 0, len(entries)  # the entries before `low` are good, and one of those from there to `high` is bad
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._parse(entries[low:middle])
                low = middle
            except pa.ArrowInvalid:
                high = middle
        return low

    def _problem(self, entry: pa.Array) -> str:
        if _first_that_is_no_object(entry) is not None:
            return "it is no JSON object, or nested too deeply"
        try:
            self._parse(entry)
        except pa.ArrowInvalid as error:
            return str(error)
        return "it holds more than one JSON object"

    def _parse(self, entries: pa.Array) -> pa.Table:
        """The rows of entries of which each begins and ends as an object does.

        Then a text made of all of them is right only where each of them is: a brace that closes and one that opens have
        only a top level between them. And with as many rows as entries, each is one object.
        """
        if not len(entries):
            return self.schema.empty_table()
        offsets = pa.array([0, len(entries)], pa.int32())
        text = pc.binary_join(pa.ListArray.from_arrays(offsets, entries), _LINE_END)[0]
        longest = pc.max(pc.binary_length(entries)).as_py()
        table = pj.read_json(
            pa.BufferReader(text.as_buffer()),
            read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, longest + 1)),
            parse_options=pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(entries):
            raise pa.ArrowInvalid(f"{len(entries)} entries hold {table.num_rows} JSON values")
        table.validate(full=True)  # the parser takes any bytes for text
        return pa.table([table[name] for name in self.schema.names], schema=self.schema)


def _first_that_is_no_object(entries: pa.Array) -> int | None:
    """The first entry that does not begin and end as an object does, or that could exhaust the parser's stack.

    Arrow's parser dies of a `null` at the start of a text and of brackets nested some ten thousand deep.
    """
    if not pc.all(pc.and_(pc.starts_with(entries, b"{"), pc.ends_with(entries, b"}"))).as_py():
        wrong = pc.index(pc.match_substring_regex(entries, _ONE_OBJECT), value=False).as_py()
        if wrong >= 0:
            return int(wrong)
    for index in pc.indices_nonzero(pc.greater(pc.binary_length(entries), _DEEP_BYTES)).to_pylist():
        entry = entries[index : index + 1]
        openings = pc.add(pc.count_substring(entry, b"{"), pc.count_substring(entry, b"["))[0].as_py()
        if openings > _DEEP_BYTES and not _is_shallow(entry[0].as_py()):
            return int(index)
    return None


def _is_shallow(entry: bytes) -> bool:
    try:
        msgspec.json.decode(entry)
    except RecursionError:
        return False
    except msgspec.DecodeError:
        return True  # Arrow's parser stops there too, and says what is wrong
    return True


def _pieces(batch: Batch, size: int) -> Iterator[pa.Array]:
    """The entries in pieces of about `size` bytes, with offsets that a joined text cannot overflow."""
    for chunk in batch.decoded.chunks:
        rows = max(1, len(chunk) * size // max(1, chunk.nbytes))
        for start in range(0, len(chunk), rows):
            yield chunk[start : start + rows].cast(pa.large_binary())


def _bad_entry(batch: Batch, index: int, problem: str) -> BadEntry:
    where = f"batch {batch.sequence}, entry {index} of {batch.location}"
    return BadEntry(f"{where}, {problem[:300]}", sequence=batch.sequence, index=index)


def _summary(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
