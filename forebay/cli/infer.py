"""The schema of JSON documents, chosen from the first of them.

Only what JSON itself tells apart is inferred: bool, int64, double, string, list and struct. Text stays text, also where
it looks like a time. Integers and other numbers in one column are double. Every column is nullable, since a later
document may lack it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.columns import show
from forebay.buffer.format.fit import Misfit
from forebay.buffer.format.schema import MAX_DEPTH, check_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES: Final = {
    type(None): pa.null(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}
_NUMBERS: Final = {pa.int64(), pa.float64()}
_INSTEAD: Final = "write the columns into a file and use --schema FILE"


def infer_schema(documents: Sequence[bytes], noun: str = "line") -> pa.Schema:
    """Return a schema that all these documents fit.

    Args:
        documents: each exactly one JSON object.
        noun: what messages call a document.

    Raises:
        InvalidInput: there is none. The message names the document, the column, and both types.
    """
    if not documents:
        raise InvalidInput(f"no schema can be inferred, since the input is empty; {_INSTEAD}")
    found: pa.DataType = pa.struct([])
    for number, document in enumerate(documents, 1):
        value = _decode(document, f"{noun} {number}")
        try:
            found = _merge(found, _type_of(value, "", 0), "")
        except Misfit as misfit:
            raise InvalidInput(f"no schema can be inferred: {noun} {number}, {misfit}; {_INSTEAD}") from misfit
    read = counted(len(documents), noun)
    unknown = _find_unknown(found, "")
    if unknown is not None:
        raise InvalidInput(
            f"no schema can be inferred from {read}: column {unknown} has no value except null, so its type is "
            f"unknown; {_INSTEAD}"
        )
    try:
        return check_schema(pa.schema(list(found)))
    except InvalidInput as error:
        raise InvalidInput(f"no schema can be inferred from {read}: {error}; or {_INSTEAD}") from error


def _find_unknown(kind: pa.DataType, path: str) -> str | None:
    """Return the path of the first column, field or element of which no value was seen; None if there is none."""
    if pa.types.is_null(kind):
        return path
    if pa.types.is_list(kind):
        return _find_unknown(kind.value_type, f"{path}.element")
    if pa.types.is_struct(kind):
        inside = f"{path}." if path else ""
        return next((at for field in kind if (at := _find_unknown(field.type, inside + field.name)) is not None), None)
    return None


def _decode(document: bytes, name: str) -> dict[str, Any]:
    why = ""
    try:
        value = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        value, why = None, f": {error}"
    if not isinstance(value, dict):
        raise InvalidInput(
            f"no schema can be inferred: {name} is not exactly one JSON object, but {show(document)}{why}; correct it, "
            "or leave out --infer to write bytes"
        )
    return value


def _type_of(value: Any, path: str, depth: int) -> pa.DataType:
    """Return the type of one value, with the type null for what it does not tell."""
    if depth > MAX_DEPTH:
        raise Misfit(path, f"values nested {MAX_DEPTH} deep at most", show(value))
    if isinstance(value, dict):
        inside = f"{path}." if path else ""
        return pa.struct([(name, _type_of(each, inside + name, depth + 1)) for name, each in value.items()])
    if isinstance(value, list):
        element: pa.DataType = pa.null()
        for each in value:
            element = _merge(element, _type_of(each, f"{path}.element", depth + 1), f"{path}.element")
        return pa.list_(element)
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise Misfit(path, "int64", show(value))
    return _TYPES[type(value)]


def _merge(old: pa.DataType, new: pa.DataType, path: str) -> pa.DataType:
    """Return the type that holds the values of both."""
    types = pa.types
    if old == new or types.is_null(new):
        return old
    if types.is_null(old):
        return new
    if {old, new} == _NUMBERS:
        return pa.float64()
    if types.is_struct(old) and types.is_struct(new):
        fields = {field.name: field.type for field in old}
        inside = f"{path}." if path else ""
        for field in new:
            fields[field.name] = _merge(fields.get(field.name, pa.null()), field.type, inside + field.name)
        return pa.struct(list(fields.items()))
    if types.is_list(old) and types.is_list(new):
        return pa.list_(_merge(old.value_type, new.value_type, f"{path}.element"))
    raise Misfit(path, str(old), str(new))
