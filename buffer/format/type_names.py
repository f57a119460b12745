"""Column types as text: parses and formats Arrow types, and reads schemas from files.

The text is what Arrow prints, so a printed schema can be pasted: `int64`, `timestamp[us, tz=UTC]`, `decimal128(9, 2)`,
`list<string>`, `struct<id: int64 not null, tags: list<string>>`. Names that have other characters than letters, digits,
spaces and the like are quoted with backquotes: struct<`a:b`: int64>.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SIMPLE: Final = (
    "null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "halffloat", "float",
    "double", "string", "binary", "large_string", "large_binary", "string_view", "binary_view", "date32", "date64",
    "month_day_nano_interval",
)  # fmt: skip
_ALIASES: Final = {
    "boolean": "bool",
    "float16": "halffloat",
    "float32": "float",
    "float64": "double",
    "utf8": "string",
    "large_utf8": "large_string",
}
_MAKE_SIMPLE: Final = {
    "bool": pa.bool_,
    "halffloat": pa.float16,
    "float": pa.float32,
    "double": pa.float64,
    **{name: getattr(pa, name) for name in _SIMPLE if hasattr(pa, name) and name != "bool"},
}
_UNITS: Final = {
    "date32": ("day",),
    "date64": ("ms",),
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "timestamp": ("s", "ms", "us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
}
_DECIMALS: Final = {
    "decimal": pa.decimal128,
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
_LISTS: Final = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
_IS_LIST: Final = {
    **{name: getattr(pa.types, f"is_{name}") for name in _LISTS},
    "fixed_size_list": pa.types.is_fixed_size_list,
}
_SUGGESTED: Final = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float, double, string, binary, date32, "
    "timestamp[us], timestamp[us, tz=UTC], decimal128(9, 2), fixed_size_binary[16], list<string>, map<string, int64> "
    "or struct<id: int64, tags: list<string>>"
)
"""What typed buffers accept. The text may name other types too, which rows for a table can have."""
_ITEM_NAMES: Final = {"item", "element"}
"""What Arrow and Parquet call the items of a list. Types that differ only in this name are equal, so it is left out."""
_MAX_DEPTH: Final = 100
"""Maximum depth of nested types. A deeper one is a mistake, and would exhaust the stack."""

_WORD: Final = re.compile(r"[A-Za-z_0-9]+")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_ZONE: Final = re.compile(r"[^\]]+")
_PLAIN_NAME: Final = re.compile(r"[^<>,:`\[\]()\s](?:[^<>,:`\[\]()]*[^<>,:`\[\]()\s])?")
_NAME: Final = re.compile(rf"(?:`((?:[^`]|``)*)`|({_PLAIN_NAME.pattern}))\s*:")

_ARROW_SUFFIXES: Final = {".arrow", ".arrows", ".feather", ".ipc"}
_PARQUET_SUFFIXES: Final = {".parquet", ".pq"}


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type that the text names.

    Raises:
        InvalidInput: it names none; the message says at which position, and suggests types.
    """
    parser = _Parser(text)
    found = parser.read_type()
    parser.end()
    return found


def format_type(kind: pa.DataType) -> str:
    """Return the text that `parse_type` turns into this type.

    Raises:
        InvalidInput: the type has no such text, as unions and extension types.
    """
    text = _format(kind)
    try:
        is_same = parse_type(text) == kind
    except InvalidInput:
        is_same = False
    if not is_same:
        raise InvalidInput(f"the type {kind} cannot be written as text; use a type such as {_SUGGESTED}")
    return text


def parse_fields(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of columns that are given as name and type, in their order.

    A type may end with `not null`.

    Raises:
        InvalidInput: a type is wrong; the message names the column and the position.
    """
    fields = []
    for name, text in columns.items():
        if not isinstance(text, str):
            raise InvalidInput(f"column {name}: the type must be text such as 'int64', not {text!r}")
        try:
            parser = _Parser(text)
            kind, nullable = parser.read_type_and_null()
            parser.end()
        except InvalidInput as error:
            raise InvalidInput(f"column {name}: {error}") from None
        fields.append(pa.field(name, kind, nullable=nullable))
    return pa.schema(fields)


def format_fields(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a schema as name and type, from which `parse_fields` makes the schema again."""
    return {field.name: f"{format_type(field.type)}{'' if field.nullable else ' not null'}" for field in schema}


def read_schema_file(path: Path) -> pa.Schema:
    """Return the schema that a file holds, by the file's suffix.

    - `.toml`: a line for each column, such as `user = "int64 not null"`.
    - `.json`: an object of columns, such as `{"user": "int64 not null"}`.
    - `.parquet`: the schema of that file's rows.
    - `.arrow`, `.feather`, `.ipc`: the schema of an Arrow IPC file or stream.

    Raises:
        InvalidInput: the file holds no schema.
        OSError: it cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".toml":
            return _parse_columns(tomllib.loads(path.read_text()))
        if suffix == ".json":
            return _parse_columns(json.loads(path.read_text()))
        if suffix in _PARQUET_SUFFIXES:
            return _without_metadata(pq.read_schema(path))
        if suffix in _ARROW_SUFFIXES:
            return _without_metadata(_read_arrow_schema(path))
    except (ValueError, pa.ArrowException) as error:  # of TOML, JSON and UTF-8 too
        raise InvalidInput(
            f"{path} holds no schema: {error}; correct the file, or use a .toml, .json, "
            ".parquet or .arrow file that has one"
        ) from error
    raise InvalidInput(f"{path} holds no schema: its name must end with .toml, .json, .parquet or .arrow")


def _is_zone(name: str) -> bool:
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        return True
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a name that is not found is a KeyError
        return name == "UTC"  # where no zones are installed
    return True


def _parse_columns(columns: Any) -> pa.Schema:
    if not isinstance(columns, dict) or not columns:
        raise InvalidInput("there are no columns: give each a name and a type, such as user and int64")
    return parse_fields(columns)


def _read_arrow_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        try:
            return pa.ipc.open_file(file).schema
        except pa.ArrowInvalid:
            file.seek(0)
            return pa.ipc.open_stream(file).schema


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    """The same columns, without what pandas, Parquet and others note beside them."""
    return pa.schema([field.remove_metadata() for field in schema])


class _Parser:
    """Reads a type from a text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read_type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"types are nested more than {_MAX_DEPTH} deep")
        start = self._at
        found = self._match(_WORD)
        word = _ALIASES.get(found, found)
        if word not in _READERS:
            raise self._error(f"{found!r} is not a type" if found else "a type is missing", start)
        kind = _READERS[word](self, word)
        self._depth -= 1
        return kind

    def read_type_and_null(self) -> tuple[pa.DataType, bool]:
        """A type, and whether null is allowed."""
        kind = self.read_type()
        start = self._at
        if not self._skip("not"):
            return kind, True
        self._expect("null")
        if pa.types.is_null(kind):
            raise self._error("the type null holds only null", start)
        return kind, False

    def end(self) -> None:
        """Check that the text ends here."""
        self._skip_space()
        if self._at < len(self._text):
            raise self._error("the type should end here")

    def read_simple(self, word: str) -> pa.DataType:
        if word in _UNITS and self._skip("["):
            self._read_unit(word)
            self._expect("]")
        return _MAKE_SIMPLE[word]()

    def read_time(self, word: str) -> pa.DataType:
        self._expect("[")
        unit = self._read_unit(word)
        zone = None
        if word == "timestamp" and self._skip(","):
            self._expect("tz")
            self._expect("=")
            self._skip_space()
            start = self._at
            zone = self._match(_ZONE).strip()
            if not _is_zone(zone):
                raise self._error(
                    f"there is no time zone {zone!r}: write UTC, +01:00 or a name like Europe/Berlin", start
                )
        self._expect("]")
        make: Callable[..., pa.DataType] = getattr(pa, word)
        return make(unit) if zone is None else make(unit, zone)

    def _read_unit(self, word: str) -> str:
        self._skip_space()
        start, unit = self._at, self._match(_WORD)
        if unit not in _UNITS[word]:
            raise self._error(f"the unit of {word} is {' or '.join(_UNITS[word])}, not {unit!r}", start)
        return unit

    def read_decimal(self, word: str) -> pa.DataType:
        self._expect("(")
        start, precision = self._at, self._read_number()
        scale = self._read_number() if self._skip(",") else 0
        self._expect(")")
        try:
            return _DECIMALS[word](precision, scale)
        except ValueError as error:
            raise self._error(str(error), start) from None

    def read_list(self, word: str) -> pa.DataType:
        return _LISTS[word](self._read_item())

    def read_fixed_size_list(self, _word: str) -> pa.DataType:
        return pa.list_(self._read_item(), self.read_length())

    def read_length(self) -> int:
        self._expect("[")
        start, length = self._at, self._read_number()
        if length < 0:
            raise self._error("a length cannot be negative", start)
        self._expect("]")
        return length

    def read_struct(self, _word: str) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while not self._skip(">"):
            if fields:
                self._expect(",")
            name = self._read_name()
            if name is None:
                raise self._error("a name and a colon are wanted, as in struct<id: int64>")
            fields.append(self._read_field(name))
        return pa.struct(fields)

    def read_map(self, _word: str) -> pa.DataType:
        self._expect("<")
        start, key = self._at, self.read_type()
        if pa.types.is_null(key):
            raise self._error("the key of a map is never null", start)
        self._expect(",")
        value = self._read_field("value")
        self._expect(">")
        return pa.map_(key, value)

    def read_dictionary(self, _word: str) -> pa.DataType:
        self._expect("<")
        for word in ("values", "="):
            self._expect(word)
        values = self.read_type()
        for word in (",", "indices", "="):
            self._expect(word)
        start, indices = self._at, self.read_type()
        for word in (",", "ordered", "="):
            self._expect(word)
        ordered = self._read_number()
        self._expect(">")
        try:
            return pa.dictionary(indices, values, ordered=bool(ordered))
        except (TypeError, pa.ArrowException):
            raise self._error("indices of a dictionary are integers", start) from None

    def _read_item(self) -> pa.Field:
        """The element of a list in angle brackets, with or without its name."""
        self._expect("<")
        name = self._read_name()
        item = self._read_field("item" if name is None else name)
        self._expect(">")
        return item

    def _read_field(self, name: str) -> pa.Field:
        kind, nullable = self.read_type_and_null()
        return pa.field(name, kind, nullable=nullable)

    def _read_name(self) -> str | None:
        """A name and the colon after it; None if there is none."""
        self._skip_space()
        found = _NAME.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        quoted, plain = found.groups()
        return plain if quoted is None else quoted.replace("``", "`")

    def _read_number(self) -> int:
        found = self._match(_NUMBER)
        if not found:
            raise self._error("a number is wanted")
        return int(found)

    def _match(self, pattern: re.Pattern[str]) -> str:
        """Read what the pattern matches here; empty if it does not."""
        self._skip_space()
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _skip(self, wanted: str) -> bool:
        """Read a word or sign if it is next, and return whether it was."""
        self._skip_space()
        is_next = self._text.startswith(wanted, self._at)
        self._at += len(wanted) * is_next
        return is_next

    def _skip_space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _expect(self, wanted: str) -> None:
        if not self._skip(wanted):
            raise self._error(f"{wanted!r} is missing")

    def _error(self, problem: str, at: int | None = None) -> InvalidInput:
        at = self._at if at is None else at
        return InvalidInput(f"position {at + 1} of {self._text!r}: {problem}; use a type such as {_SUGGESTED}")


_READERS: Final[dict[str, Callable[[_Parser, str], pa.DataType]]] = {
    **dict.fromkeys(_UNITS, _Parser.read_time),
    **dict.fromkeys(_MAKE_SIMPLE, _Parser.read_simple),
    **dict.fromkeys(_DECIMALS, _Parser.read_decimal),
    **dict.fromkeys(_LISTS, _Parser.read_list),
    "fixed_size_list": _Parser.read_fixed_size_list,
    "fixed_size_binary": lambda parser, _word: pa.binary(parser.read_length()),
    "struct": _Parser.read_struct,
    "map": _Parser.read_map,
    "dictionary": _Parser.read_dictionary,
}
"""By its first word, what reads the rest of a type."""


def _format(kind: pa.DataType) -> str:
    """The text of a type. Of a type that has none, Arrow's own, which `parse_type` refuses."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(map(_format_field, kind))}>"
    if pa.types.is_map(kind) and not kind.keys_sorted:
        return f"map<{_format(kind.key_type)}, {_format_nullable(kind.item_field)}>"
    for name, is_list in _IS_LIST.items():
        if is_list(kind):
            field = kind.value_field
            item = _format_nullable(field) if field.name in _ITEM_NAMES else _format_field(field)
            return f"{name}<{item}>{f'[{kind.list_size}]' if name == 'fixed_size_list' else ''}"
    if pa.types.is_dictionary(kind):
        return f"dictionary<values={_format(kind.value_type)}, indices={kind.index_type}, ordered={kind.ordered:d}>"
    return str(kind)


def _format_nullable(field: pa.Field) -> str:
    return f"{_format(field.type)}{'' if field.nullable else ' not null'}"


def _format_field(field: pa.Field) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else f"`{field.name.replace('`', '``')}`"
    return f"{name}: {_format_nullable(field)}"
