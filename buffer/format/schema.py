"""The schema of a typed buffer: which columns it may have, how it may change, and how it is stored (rfcs/0010).

A schema is an Arrow schema in one normal form: the types that Parquet gives back without Arrow's own metadata, and that
Spark's Parquet reader accepts. `check_schema` makes the normal form or says why there is none:

    kept        bool, int8 to int64, uint8 to uint64, float, double, string, binary, fixed_size_binary, date32,
                decimal128, timestamp[ms] and timestamp[us] with or without a zone, list, struct, and map with keys
                that are strings or integers
    normalised  large_string and string_view to string; large_binary and binary_view to binary; every other list type to
                list; a dictionary to the type of its values; timestamp[s] to timestamp[ms]; date64 to date32; other
                decimals to decimal128; metadata of the schema and of its fields is dropped
    refused     timestamp[ns], time, duration, interval, half_float, null, union, run_end_encoded, extension types,
                decimals of more than 38 digits, and structs without fields

Columns, and fields of a struct, are matched by name. No two names may be equal without regard to case, and no name may
have a quote, a backslash or a control character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput, damaged
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.classes import schema_of
from forebay.buffer.format.fit import Misfit, describe, fit_column, is_any_list

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED: Final = ("_sequence", "_index", "_ingestion_time", "_call_metadata")
"""Columns that readers add to the user's."""
MAX_DEPTH: Final = 32
"""Maximum number of lists, structs and maps inside each other."""
_NAME: Final = re.compile(r'[^"\\\x00-\x1f]+')
_MAX_DIGITS: Final = 38
_SHOWN: Final = 5

Kind: TypeAlias = Literal["added", "widened", "nullability", "missing", "incompatible"]
"""How a column of a new schema differs from the old schema's.

    added         a new nullable column                                       evolves
    widened       a type that holds every value of the old one exactly        evolves
    nullability   required before, nullable now                               evolves
    missing       a nullable column that the new schema lacks; null in its rows
    incompatible  everything else, which is refused
"""

_HINTS: Final = {
    "time": "use int64 or string",
    "duration": "use int64 and say the unit in the column's name",
    "month_day_nano": "use int64 and say the unit in the column's name",
    "halffloat": "use float",
    "null": "give it the type that its values will have",
    "extension": "use the type that it is stored as",
}
_SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED: Final = (pa.uint8(), pa.uint16(), pa.uint32())
_PLAIN: Final = frozenset(
    {
        *(pa.bool_(), *_SIGNED, *_UNSIGNED, pa.uint64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("ms"), pa.timestamp("us")),
    }
)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two schemas."""

    path: str
    """The column, and inside nested types the way to the field: `order.items.element.price`."""
    kind: Kind
    """What the difference is."""
    old: str
    """The type in the old schema as text; empty for an added column."""
    new: str
    """The type in the new schema as text; empty for a missing column."""
    why: str = ""
    """Why it is refused; empty if it is not."""

    @property
    def evolves(self) -> bool:
        """Whether the old schema has to change to hold such rows."""
        return self.kind in {"added", "widened", "nullability"}

    def __str__(self) -> str:
        types = " to ".join(filter(None, (self.old, self.new)))
        return f"column {self.path}: {self.kind}, {types}{': ' * bool(self.why)}{self.why}"


# --- one schema -----------------------------------------------------------------------------------------------------


def check_schema(schema: pa.Schema | type) -> pa.Schema:
    """Return the schema that a buffer will hold: the given one in normal form, or the one that a class describes.

    Raises:
        InvalidInput: a buffer cannot hold it. The message names the column, and says what to use instead.
    """
    if isinstance(schema, type):
        schema = schema_of(schema)
    if not isinstance(schema, pa.Schema):
        raise InvalidInput(f"schema must be a pyarrow.Schema or a class with fields, not {type(schema).__name__}")
    if not len(schema):
        raise InvalidInput("the schema has no columns; give it at least one")
    for name in schema.names:
        if name.casefold() in RESERVED:
            raise InvalidInput(f"column {name}: readers add a column of this name themselves; choose another name")
    return normalise(schema)


def normalise(schema: pa.Schema) -> pa.Schema:
    """Return a schema in normal form. It may have the columns that readers add, as rows for a table do.

    Raises:
        InvalidInput: there is no normal form. The message names the column, and says what to use instead.
    """
    normal = pa.schema(_normal_fields(schema, "", 0))
    for field in normal:
        _check_zones(field.type, field.name)
    return normal


def _normal_fields(fields: Iterable[pa.Field], prefix: str, depth: int) -> list[pa.Field]:
    seen: dict[str, str] = {}
    normal: list[pa.Field] = []
    for field in fields:
        path = prefix + field.name
        if not _NAME.fullmatch(field.name):
            raise InvalidInput(
                f"column {path!r}: a name must not be empty, nor have a quote, a backslash or a control character"
            )
        same = seen.setdefault(field.name.casefold(), field.name)
        if len(seen) == len(normal):
            difference = "twice" if same == field.name else f"as {same} and as {field.name}, which differ only in case"
            raise InvalidInput(
                f"column {path}: the name is there {difference}, and Spark could not tell them apart; "
                "rename one of them"
            )
        normal.append(pa.field(field.name, _normal_type(field.type, path, depth), nullable=field.nullable))
    return normal


def _normal_type(kind: pa.DataType, path: str, depth: int) -> pa.DataType:  # noqa: C901, PLR0911 - a table of types
    if kind in _PLAIN:
        return kind
    if depth > MAX_DEPTH:
        raise InvalidInput(f"column {path}: types may be nested {MAX_DEPTH} deep at most")
    types = pa.types
    if types.is_dictionary(kind):
        return _normal_type(kind.value_type, path, depth + 1)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_fixed_size_binary(kind) and kind.byte_width > 0:
        return kind
    if types.is_date64(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return _normal_timestamp(kind, path)
    if types.is_decimal(kind) and kind.precision <= _MAX_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_struct(kind) and kind.num_fields:
        return pa.struct(_normal_fields(kind, f"{path}.", depth + 1))
    if types.is_map(kind):
        return _normal_map(kind, path, depth)
    if is_any_list(kind):
        return pa.list_(_element(kind.value_type, f"{path}.element", depth, nullable=kind.value_field.nullable))
    raise InvalidInput(f"column {path}: {kind} cannot be stored so that Spark reads it{_hint(kind)}")


def _element(kind: pa.DataType, path: str, depth: int, *, nullable: bool) -> pa.Field:
    return pa.field("element", _normal_type(kind, path, depth + 1), nullable=nullable)


def _normal_map(kind: pa.MapType, path: str, depth: int) -> pa.DataType:
    key = _normal_type(kind.key_type, f"{path}.key", depth + 1)
    if key != pa.string() and not pa.types.is_integer(key):
        raise InvalidInput(f"column {path}.key: the keys of a map must be strings or integers, not {key}")
    value = _normal_type(kind.item_type, f"{path}.value", depth + 1)
    return pa.map_(key, pa.field("value", value, nullable=kind.item_field.nullable))


def _normal_timestamp(kind: pa.TimestampType, path: str) -> pa.DataType:
    if kind.unit == "ns":
        raise InvalidInput(f"column {path}: Spark cannot read {kind}; use {pa.timestamp('us', kind.tz)}")
    return pa.timestamp("ms", kind.tz) if kind.unit == "s" else kind


def _check_zones(kind: pa.DataType, path: str) -> None:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.lib.string_to_tzinfo(kind.tz)
        except (pa.ArrowException, LookupError, ValueError, OSError) as error:
            raise InvalidInput(f"column {path}: {kind.tz!r} is not a time zone known here; use UTC") from error
    for i in range(kind.num_fields):
        _check_zones(kind.field(i).type, f"{path}.{kind.field(i).name}")


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"; use decimal128 of at most {_MAX_DIGITS} digits, with a scale from 0 up to the number of digits"
    if pa.types.is_struct(kind):
        return ", since it has no fields; give it one, or leave it out"
    text = "extension" if isinstance(kind, pa.BaseExtensionType) else str(kind)
    return next((f"; {hint}" for start, hint in _HINTS.items() if text.startswith(start)), "; use another type")


# --- two schemas ----------------------------------------------------------------------------------------------------


def compare_schemas(old: pa.Schema, new: pa.Schema) -> list[SchemaChange]:
    """Return how `new` differs from `old`, in the order of `old`, then of what `new` adds. Both are in normal form.

    The order of columns is no difference. Widened are: integers to wider ones of the same sign, up to int64 and uint32,
    and unsigned to wider signed ones; int8, int16 and int32 to double; float to double; decimals to more digits at the
    same scale. What else would be exact is refused where Spark's Parquet reader fails on such files or reads them wrong
    (uint32 to uint64 or to double). int64 to double is refused on both counts. A column that is nullable in `old` and
    required in `new` is refused, since rows without a value may already be there.
    """
    changes: list[SchemaChange] = []
    _meet_fields(list(old), list(new), "", changes)
    return changes


def widen(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema that holds the rows of both: the columns of `old`, then what `new` adds.

    Raises:
        InvalidInput: `new` is incompatible with `old`. The message names the columns and both types.
    """
    changes: list[SchemaChange] = []
    fields = _meet_fields(list(old), list(new), "", changes)
    refused = [change for change in changes if change.kind == "incompatible"]
    if refused:
        more = f", and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise InvalidInput(
            f"this schema does not fit the present one: {'; '.join(map(str, refused[:_SHOWN]))}{more}. Keep the "
            "present type, or add a column with a new name"
        )
    return pa.schema(fields)


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether `new` is another type than `old`, without fields, that holds every value of `old` exactly."""
    if old in _SIGNED:
        later = _SIGNED[_SIGNED.index(old) + 1 :]
        return new in later or (new == pa.float64() and old != pa.int64())
    if old in _UNSIGNED:
        at = _UNSIGNED.index(old) + 1
        return new in _UNSIGNED[at:] or new in _SIGNED[at:]
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return bool(old == pa.float32() and new == pa.float64())


def _meet_fields(old: list[pa.Field], new: list[pa.Field], prefix: str, changes: list[SchemaChange]) -> list[pa.Field]:
    """Return the fields that hold the rows of both, and append what differs to `changes`."""
    theirs = {field.name: field for field in new}
    fields = []
    for field in old:
        path, other = prefix + field.name, theirs.pop(field.name, None)
        if other is not None:
            fields.append(_meet(field, other, path, changes))
            continue
        fields.append(field)
        if field.nullable:
            changes.append(SchemaChange(path, "missing", describe(field), ""))
        else:
            changes.append(
                SchemaChange(path, "incompatible", describe(field), "", "it is required, so every row has it")
            )
    names = {field.name.casefold(): field.name for field in old}
    for field in theirs.values():
        path, same = prefix + field.name, names.get(field.name.casefold())
        if same is not None:
            why = f"it differs from {same} only in case"
        else:
            why = "" if field.nullable else "a new column must be nullable, since older rows do not have it"
        changes.append(SchemaChange(path, "incompatible" if why else "added", "", describe(field), why))
        fields.append(field)
    return fields


def _meet(old: pa.Field, new: pa.Field, path: str, changes: list[SchemaChange]) -> pa.Field:
    if old.equals(new):
        return old
    if old.nullable != new.nullable:
        why = "" if new.nullable else "it is nullable; rows without a value may already be there"
        change = SchemaChange(path, "incompatible" if why else "nullability", describe(old), describe(new), why)
        changes.append(change)
    nullable = old.nullable or new.nullable
    return pa.field(old.name, _meet_types(old.type, new.type, path, changes), nullable=nullable)


def _meet_types(old: pa.DataType, new: pa.DataType, path: str, changes: list[SchemaChange]) -> pa.DataType:
    types = pa.types
    if old == new:
        return old
    if types.is_struct(old) and types.is_struct(new):
        return pa.struct(_meet_fields(list(old), list(new), f"{path}.", changes))
    if types.is_list(old) and types.is_list(new):
        return pa.list_(_meet(old.value_field, new.value_field, f"{path}.element", changes))
    if types.is_map(old) and types.is_map(new) and old.key_type == new.key_type:
        return pa.map_(old.key_type, _meet(old.item_field, new.item_field, f"{path}.value", changes))
    if widens(old, new):
        changes.append(SchemaChange(path, "widened", str(old), str(new)))
        return new
    narrower = "it would be narrower" if widens(new, old) else "it does not hold every value of the old type exactly"
    changes.append(SchemaChange(path, "incompatible", str(old), str(new), narrower))
    return old


def present(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of one version of a schema as another version of it, or a part of that, shows them.

    Columns and fields that the rows lack are null; what `schema` lacks is left out; types are converted where
    every value survives. Columns of the wanted type are not copied.

    Raises:
        InvalidInput: a value does not survive, or is missing from a required column. The message names the column.
    """
    if table.schema.equals(schema):
        return table.replace_schema_metadata(None) if table.schema.metadata else table
    at = {name: i for i, name in enumerate(table.column_names)}
    columns = []
    for field in schema:
        if field.name in at:
            try:
                columns.append(fit_column(table.column(at[field.name]), field, drop=True))
            except Misfit as misfit:
                raise InvalidInput(str(misfit)) from misfit
        elif field.nullable:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            raise InvalidInput(
                f"column {field.name}: it is required, and the rows do not have it"
                "; add it, or leave the column out of columns"
            )
    return pa.Table.from_arrays(columns, schema=schema)


# --- a schema as bytes ----------------------------------------------------------------------------------------------

_VERSION: Final = 1
_NAMES: Final = {
    "bool": pa.bool_(),
    **{str(kind): kind for kind in (*_SIGNED, *_UNSIGNED, pa.uint64())},
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
}


class _Field(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    type: _Type
    nullable: bool


class _Timestamp(msgspec.Struct, tag="timestamp", forbid_unknown_fields=True):
    unit: Literal["ms", "us"]
    zone: str | None


class _Decimal(msgspec.Struct, tag="decimal", forbid_unknown_fields=True):
    precision: int
    scale: int


class _Fixed(msgspec.Struct, tag="fixed", forbid_unknown_fields=True):
    width: int


class _List(msgspec.Struct, tag="list", forbid_unknown_fields=True):
    element: _Type
    nullable: bool


class _Map(msgspec.Struct, tag="map", forbid_unknown_fields=True):
    key: _Type
    value: _Type
    nullable: bool


class _Fields(msgspec.Struct, tag="struct", forbid_unknown_fields=True):
    fields: list[_Field]


_Type = str | _Timestamp | _Decimal | _Fixed | _List | _Map | _Fields


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    crc32c: int
    columns: msgspec.Raw


# Made here, since msgspec crashes if two threads use a type for the first time at once (`manifest/envelope.py`).
_decode_stored: Final = msgspec.json.Decoder(_Stored).decode
_decode_columns: Final = msgspec.json.Decoder(list[_Field]).decode


def encode_schema(schema: pa.Schema) -> bytes:
    """Return a schema in normal form as bytes: a JSON document, the same for equal schemas in every release.

        {"version": 1, "crc32c": …, "columns": [{"name": …, "type": …, "nullable": …}, …]}

    The checksum is that of the bytes of the array behind `columns`. It does not depend on Arrow's own encoding.
    """
    columns = msgspec.json.encode([_to_stored(field) for field in schema])
    return msgspec.json.encode(_Stored(_VERSION, crc32c(columns), msgspec.Raw(columns)))


def decode_schema(data: bytes, location: str) -> pa.Schema:
    """Return the schema that the bytes hold.

    Raises:
        Corrupt: they are damaged, or hold something else, or a schema that no buffer can have; `location` is named.
    """
    try:
        stored = _decode_stored(data)
        if stored.version != _VERSION:
            raise damaged(f"{location}: it is a schema of version {stored.version}; expected version {_VERSION}")
        found = crc32c(bytes(stored.columns))
        if found != stored.crc32c:  # guard: verify the checksum of schemas
            raise damaged(f"{location}: its checksum is {found:08x}, and {stored.crc32c:08x} was written")
        schema = pa.schema([_from_stored(field) for field in _decode_columns(stored.columns)])
        normal = pa.schema(_normal_fields(schema, "", 0))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise damaged(f"{location}: it does not hold a schema: {error}") from error
    except (InvalidInput, pa.ArrowException, LookupError, ValueError) as error:
        raise damaged(f"{location}: no buffer can have the schema that it holds: {error}") from error
    if not len(normal) or not normal.equals(schema):
        raise damaged(f"{location}: the schema that it holds has no columns, or is not in normal form")
    return normal


def _to_stored(field: pa.Field) -> _Field:
    return _Field(field.name, _to_type(field.type), field.nullable)


def _to_type(kind: pa.DataType) -> _Type:  # noqa: PLR0911 - a table of types
    types = pa.types
    if types.is_timestamp(kind):
        return _Timestamp(kind.unit, kind.tz)
    if types.is_decimal(kind):
        return _Decimal(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return _Fixed(kind.byte_width)
    if types.is_map(kind):
        return _Map(_to_type(kind.key_type), _to_type(kind.item_type), kind.item_field.nullable)
    if types.is_list(kind):
        return _List(_to_type(kind.value_type), kind.value_field.nullable)
    if types.is_struct(kind):
        return _Fields([_to_stored(field) for field in kind])
    return next(name for name, plain in _NAMES.items() if plain == kind)


def _from_stored(field: _Field) -> pa.Field:
    return pa.field(field.name, _from_type(field.type), nullable=field.nullable)


def _from_type(kind: _Type) -> pa.DataType:  # noqa: PLR0911 - a table of types
    match kind:
        case _Timestamp():
            return pa.timestamp(kind.unit, kind.zone)
        case _Decimal():
            return pa.decimal128(kind.precision, kind.scale)
        case _Fixed():
            return pa.binary(kind.width)
        case _List():
            return pa.list_(pa.field("element", _from_type(kind.element), nullable=kind.nullable))
        case _Map():
            return pa.map_(_from_type(kind.key), pa.field("value", _from_type(kind.value), nullable=kind.nullable))
        case _Fields():
            return pa.struct([_from_stored(field) for field in kind.fields])
    return _NAMES[kind]
