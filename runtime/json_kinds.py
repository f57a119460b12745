"""Finds JSON entries whose values have another kind than their columns, such as text for a number.

Arrow's reader refuses them too, but names no entry, and finding each by halving takes a few parses. This takes a few
microseconds for each entry of a batch that was refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Check: TypeAlias = Callable[[Any], str | None]

_NUMBER: Final = (int, float)
_TEXT: Final = (str,)
_SIMPLE: Final = (
    ("null", types.is_null, ()),
    ("true or false", types.is_boolean, (bool,)),
    ("a number", types.is_floating, _NUMBER),
    ("text", types.is_string, _TEXT),
    ("text", types.is_large_string, _TEXT),
    ("text", types.is_binary, _TEXT),
    ("text", types.is_large_binary, _TEXT),
    ("text", types.is_timestamp, _TEXT),
    ("a number or text", types.is_decimal, (*_NUMBER, *_TEXT)),
)
_NAMES: Final = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def find_wrong_kinds(entries: Iterable[bytes], schema: pa.Schema) -> dict[int, str]:
    """Return which entries certainly do not fit the schema, each with the reason.

    The other entries may be wrong in other ways: they may be no JSON, or a number may be too large for its column.
    """
    check = _check_object("", schema)
    found: dict[int, str] = {}
    for index, entry in enumerate(entries):
        try:
            problem = check(msgspec.json.decode(entry))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if problem is not None:
            found[index] = problem
    return found


def _check_field(path: str, field: pa.Field) -> Check:
    """What checks a value of this column, and says what is wrong with it."""
    kind = field.type
    check: Check
    allowed: tuple[type, ...]
    if types.is_struct(kind):
        check, wanted, allowed = _check_object(f"{path}.", kind), "an object", (dict,)
    elif types.is_integer(kind):
        check, wanted, allowed = _check_integer(path, kind), "a number", _NUMBER
    elif types.is_list(kind):
        check, wanted, allowed = _check_items(f"{path}[]", kind.value_field), "a list", (list,)
    else:
        found = next((known for known in _SIMPLE if known[1](kind)), None)
        if found is None:
            return lambda _value: None
        check, wanted, allowed = (lambda _value: None), found[0], found[2]

    def check_value(value: Any) -> str | None:
        if value is None:
            return None if field.nullable else f"column {path}: expected {wanted} ({kind}), found null"
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            return f"column {path}: expected {wanted} ({kind}), found {_NAMES[type(value)]}"
        return check(value)

    return check_value


def _check_object(prefix: str, fields: Iterable[pa.Field]) -> Check:
    checks = [(field.name, _check_field(f"{prefix}{field.name}", field)) for field in fields]

    def check(value: dict[str, Any]) -> str | None:
        for name, check_value in checks:
            problem = check_value(value.get(name))
            if problem is not None:
                return problem
        return None

    return check


def _check_integer(path: str, kind: pa.DataType) -> Check:
    signed = types.is_signed_integer(kind)
    low, high = (
        (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1) if signed else (0, (1 << kind.bit_width) - 1)
    )

    def check(value: float) -> str | None:
        fits = isinstance(value, int) and low <= value <= high
        return None if fits else f"column {path}: expected {kind}, found {value}"

    return check


def _check_items(path: str, field: pa.Field) -> Check:
    check_value = _check_field(path, field)

    def check(values: list[Any]) -> str | None:
        return next((problem for value in values if (problem := check_value(value)) is not None), None)

    return check
