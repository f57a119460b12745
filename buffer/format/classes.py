"""The schema of a class: a dataclass, a msgspec Struct, a TypedDict or a NamedTuple (rfcs/0010)."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec.inspect as mi
import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput

_TYPES: Final[dict[type[mi.Type], pa.DataType]] = {
    mi.BoolType: pa.bool_(),
    mi.IntType: pa.int64(),
    mi.FloatType: pa.float64(),
    mi.StrType: pa.string(),
    mi.BytesType: pa.binary(),
    mi.DateType: pa.date32(),
    mi.DateTimeType: pa.timestamp("us", "UTC"),
}
_Class: TypeAlias = mi.DataclassType | mi.StructType | mi.TypedDictType | mi.NamedTupleType
_List: TypeAlias = mi.ListType | mi.VarTupleType
_ADVICE: Final = "give an Arrow schema (pyarrow.schema) instead of the class"


def schema_of(given: type) -> pa.Schema:
    """Return the schema that a class describes. A column is nullable if its type allows None.

    Raises:
        InvalidInput: a field has a type that no column has. The message names the field.
    """
    try:
        found = mi.type_info(given)
    except (TypeError, NameError, AttributeError) as error:
        raise InvalidInput(f"{given.__name__} describes no columns: {error}; {_ADVICE}") from error
    if not isinstance(found, _Class):
        raise InvalidInput(f"{given.__name__} is not a class with fields; {_ADVICE}")
    return pa.schema(_fields_of(found, "", ()))


def _fields_of(found: _Class, prefix: str, around: tuple[type, ...]) -> list[pa.Field]:
    if found.cls in around:
        raise InvalidInput(f"column {prefix[:-1]}: {found.cls.__name__} contains itself; {_ADVICE}")
    inside = (*around, found.cls)
    return [_field_of(each.encode_name, each.type, prefix, inside) for each in found.fields]


def _field_of(name: str, kind: mi.Type, prefix: str, around: tuple[type, ...]) -> pa.Field:
    path, nullable = prefix + name, False
    if isinstance(kind, mi.Metadata):
        kind = kind.type
    if isinstance(kind, mi.UnionType):
        types = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        nullable = len(types) < len(kind.types)
        if len(types) != 1:
            raise _refusal(path, kind)
        kind = types[0]
    if isinstance(kind, _Class):
        return pa.field(name, pa.struct(_fields_of(kind, f"{path}.", around)), nullable)
    if isinstance(kind, _List):
        return pa.field(name, pa.list_(_field_of("element", kind.item_type, f"{path}.", around)), nullable)
    if isinstance(kind, mi.DictType):
        key = _field_of("key", kind.key_type, f"{path}.", around)
        return pa.field(name, pa.map_(key.type, _field_of("value", kind.value_type, f"{path}.", around)), nullable)
    if type(kind) not in _TYPES:
        raise _refusal(path, kind)
    return pa.field(name, _TYPES[type(kind)], nullable)


def _refusal(path: str, kind: mi.Type) -> InvalidInput:
    why = "needs a precision and a scale" if isinstance(kind, mi.DecimalType) else "has no type of a column"
    return InvalidInput(f"column {path}: {type(kind).__name__.removesuffix('Type')} {why}; {_ADVICE}")
