"""From a batch to rows: raw entries, JSON, Arrow IPC. Anything that takes a batch and gives a table is a decoder.

A decoder is called once a batch, in a worker thread, and gives the same rows for the same batch each time. Bad data
raises `BadEntry`, which names the entries at fault; the runtime's poison policy decides what becomes of them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from forebay.buffer.base.checks import check_whole
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.batch import to_large_binary
from forebay.buffer.read.records import RECORDS_SCHEMA, records_schema
from forebay.runtime.bad_entries import BadEntry, find_bad, others
from forebay.runtime.json_kinds import find_wrong_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay.buffer.read.fetch import Batch
    from forebay.runtime.contract import Decoder

_BLOCK_BYTES = 1 << 20
_DEEP_BYTES = 10_000
"""An entry that is no longer cannot be nested deeply enough to exhaust the parser's stack."""
_LONGEST_REASON = 300
_ONE_OBJECT = r"(?s)\A[ \t\r\n]*\{.*\}[ \t\r\n]*\z"


def raw(batch: Batch) -> pa.Table:
    """Return the entries as they are, a row each: sequence, index, ingestion_time, metadata, value."""
    return batch.records()


def stored_rows(batch: Batch) -> pa.Table:
    """Return the rows of a typed batch as they are stored; of a batch of bytes, what `raw` returns."""
    return batch.records() if batch.schema is None else batch.table


def rows_schema(decoder: Decoder, stored: pa.Schema | None) -> pa.Schema | None:
    """Return the schema of the rows that a decoder makes; None if only its rows tell.

    Args:
        decoder: what makes the rows.
        stored: the schema of the buffer; None if it holds bytes.
    """
    if isinstance(decoder, JsonLines):
        return decoder.rows_schema
    if decoder is stored_rows and stored is not None:
        return stored
    return records_schema(stored) if decoder in (raw, stored_rows) else None


def arrow_ipc(batch: Batch) -> pa.Table:
    """Return the rows of entries that are Arrow IPC streams (`pyarrow.ipc.new_stream`), each of any number of rows.

    All entries of a batch need the same schema.

    Raises:
        BadEntry: entries are no such streams, or have another schema than most; it names all of them.
    """
    tables: dict[int, pa.Table] = {}
    reasons: dict[int, str] = {}
    for index, entry in enumerate(entry for chunk in batch.chunks for entry in chunk):
        try:
            with pa.ipc.open_stream(entry.as_buffer()) as stream:
                table = stream.read_all()
            table.validate(full=True)  # the reader believes offsets and lengths
            tables[index] = table
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reasons[index] = f"it is not an Arrow IPC stream: {error}"
    common = _most_common([table.schema for table in tables.values()])
    for index, table in tables.items():
        if not table.schema.equals(common):
            reasons[index] = f"it has the columns {_summary(table.schema)}, and most entries have {_summary(common)}"
    if reasons:
        raise _bad_entries(batch, reasons)
    return pa.concat_tables(tables.values()) if tables else pa.table({})


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

    Calling it raises `BadEntry` for entries that are no JSON objects, or have values that their columns cannot hold. It
    names all of them, unless they are more than about a thousand: then some of them with their neighbours.
    """

    def __init__(self, schema: pa.Schema, *, keep: Sequence[str] = (), piece_bytes: int = 64 << 20) -> None:
        unknown = set(keep) - (set(RECORDS_SCHEMA.names) - {"value"})
        if unknown:
            raise InvalidInput(f"keep may name sequence, index, ingestion_time and metadata, not {sorted(unknown)}")
        names = [*schema.names, *keep]
        if len(names) != len(set(names)):
            raise InvalidInput(f"every column needs a name of its own; found {', '.join(names)}")
        self.schema = schema
        self.keep: tuple[str, ...] = tuple(keep)
        self.rows_schema: Final = pa.schema([*schema, *(RECORDS_SCHEMA.field(name) for name in keep)])
        self._piece_bytes = check_whole(piece_bytes, "piece_bytes", least=1)
        for field in schema:
            _check_readable(field)

    def __call__(self, batch: Batch) -> pa.Table:
        """Return one row for each entry."""
        try:
            table = self._decode_all(batch.chunks)
        except _BadPiece as error:
            raise _bad_entries(batch, error.reasons) from None
        if self.keep:
            records = batch.records()
            for name in self.keep:
                table = table.append_column(records.schema.field(name), records[name])
        return table

    def decode(self, entries: Sequence[bytes] | pa.Array | pa.ChunkedArray) -> pa.Table:
        """Return one row for each entry, without a batch: to try a schema, or entries from elsewhere.

        Columns of `keep` are missing: they come from the batch.

        Raises:
            BadEntry: as `__call__` does, with the sequence 0.
            InvalidInput: these are no entries of bytes.
        """
        values = to_large_binary(entries)
        try:
            return self._decode_all([values])
        except _BadPiece as error:
            raise _bad_entries(None, error.reasons) from None

    def _decode_all(self, chunks: Sequence[pa.Array]) -> pa.Table:
        pieces, start = [self.schema.empty_table()], 0
        reasons: dict[int, str] = {}
        for piece in _pieces(chunks, self._piece_bytes):
            try:
                pieces.append(self._decode(piece))
            except _BadPiece as error:
                reasons |= {start + index: reason for index, reason in error.reasons.items()}
            start += len(piece)
        if reasons:
            raise _BadPiece(reasons)
        return pa.concat_tables(pieces)

    def _decode(self, entries: pa.Array) -> pa.Table:
        """The rows of one piece of a batch."""
        reasons = dict.fromkeys(_find_no_objects(entries), "it is not a JSON object, or it is nested too deeply")
        for find in (self._find_wrong_kinds, self._search):  # the cheaper one first
            good = [index for found in others(sorted(reasons), len(entries)) for index in found] if reasons else None
            rest = entries if good is None else entries.take(pa.array(good, pa.int64()))
            try:
                table = self._parse(rest)
                break
            except pa.ArrowInvalid as error:
                found = find(rest, str(error))
                reasons |= found if good is None else {good[index]: reason for index, reason in found.items()}
        if reasons:
            raise _BadPiece(reasons)
        return table

    def _find_wrong_kinds(self, entries: pa.Array, _reason: str) -> dict[int, str]:
        return find_wrong_kinds((entry.as_py() for entry in entries), self.schema)

    def _search(self, entries: pa.Array, reason: str) -> dict[int, str]:
        """The entries that cannot be parsed; there is one. An entry is bad on its own account, never by others."""

        def attempt(part: range) -> str | None:
            try:
                self._parse(entries[part.start : part.stop])
            except pa.ArrowInvalid as error:
                return str(error)
            return None

        return find_bad(attempt, len(entries), reason)

    def _parse(self, entries: pa.Array) -> pa.Table:
        """The rows of entries of which each begins and ends as an object does.

        Then a text made of all of them is right only where each of them is: a brace that closes and one that opens have
        only a top level between them. And with as many rows as entries, each is one object.
        """
        if not len(entries):
            return self.schema.empty_table()
        offsets = pa.array([0, len(entries)], pa.int32())
        line_end = pa.scalar(b"\n", pa.large_binary())
        text = pc.binary_join(pa.ListArray.from_arrays(offsets, entries), line_end)[0]
        longest = pc.max(pc.binary_length(entries)).as_py()
        table = pj.read_json(
            pa.BufferReader(text.as_buffer()),
            read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, longest + 1)),
            parse_options=pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(entries):
            raise pa.ArrowInvalid(f"{table.num_rows} JSON objects in {len(entries)} entries")
        table.validate(full=True)  # the parser takes any bytes for text
        return pa.table([table[name] for name in self.schema.names], schema=self.schema)


def _check_readable(field: pa.Field) -> None:
    for kind in _kinds_in(field.type):
        if pa.types.is_temporal(kind) and not pa.types.is_timestamp(kind):
            raise InvalidInput(
                f"column {field.name}: JSON text is not read into {kind}: use string, or timestamp[us, tz=UTC]"
            )
    try:
        pj.read_json(pa.BufferReader(b"{}"), parse_options=pj.ParseOptions(explicit_schema=pa.schema([field])))
    except pa.ArrowInvalid:
        pass  # it must not be null
    except pa.ArrowNotImplementedError as error:
        raise InvalidInput(f"column {field.name}: {error}; read it into another type, such as string") from None


def _kinds_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The type, and the types of everything in it."""
    yield kind
    for index in range(kind.num_fields):
        yield from _kinds_in(kind.field(index).type)


def _find_no_objects(entries: pa.Array) -> list[int]:
    """The entries that do not begin and end as an object does, or that could exhaust the parser's stack.

    Arrow's parser dies of a `null` at the start of a text and of brackets nested some ten thousand deep.
    """
    found: list[int] = []
    if not pc.all(pc.and_(pc.starts_with(entries, b"{"), pc.ends_with(entries, b"}"))).as_py():
        found = pc.indices_nonzero(pc.invert(pc.match_substring_regex(entries, _ONE_OBJECT))).to_pylist()
    for index in pc.indices_nonzero(pc.greater(pc.binary_length(entries), _DEEP_BYTES)).to_pylist():
        entry = entries[index : index + 1]
        openings = pc.add(pc.count_substring(entry, b"{"), pc.count_substring(entry, b"["))[0].as_py()
        if openings > _DEEP_BYTES and not _is_shallow(entry[0].as_py()):
            found.append(index)
    return sorted(set(found))


def _is_shallow(entry: bytes) -> bool:
    try:
        msgspec.json.decode(entry)
    except RecursionError:
        return False
    except msgspec.DecodeError:
        return True  # Arrow's parser stops there too, and says what is wrong
    return True


def _pieces(chunks: Sequence[pa.Array], size: int) -> Iterator[pa.Array]:
    """The entries in pieces of about `size` bytes, with offsets that a joined text cannot overflow."""
    for chunk in chunks:
        rows = max(1, len(chunk) * size // max(1, chunk.nbytes))
        for start in range(0, len(chunk), rows):
            yield chunk[start : start + rows].cast(pa.large_binary())


class _BadPiece(Exception):
    def __init__(self, reasons: dict[int, str]) -> None:
        self.reasons = reasons


def _bad_entries(batch: Batch | None, reasons: dict[int, str]) -> BadEntry:
    reasons = {index: reason[:_LONGEST_REASON] for index, reason in sorted(reasons.items())}
    index = next(iter(reasons))
    if batch is None:
        place, sequence = f"entry {index}", 0
    else:
        stored = index if batch.kept is None else batch.kept[index].as_py()
        place, sequence = f"batch {batch.sequence}, entry {stored} of {batch.location},", batch.sequence
    message = f"{place} is not what was expected: {reasons[index]}"
    return BadEntry(message, sequence=sequence, index=index, reasons=reasons)


def _most_common(schemas: list[pa.Schema]) -> pa.Schema | None:
    """The schema that most have; the first of them if there are several."""
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0] if schemas else None
    texts = [schema.to_string(show_field_metadata=False, show_schema_metadata=False) for schema in schemas]
    return schemas[texts.index(Counter(texts).most_common(1)[0][0])]


def _summary(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
