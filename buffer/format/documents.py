"""JSON documents as rows: msgspec decodes them, strictly, into structs that are made from the schema.

msgspec checks types, unknown keys, required keys, UTF-8 and that there is exactly one object, at twice the speed of
`pyarrow.json`. It does not see a key that is there twice: the last one wins. `Documents.build` finds such documents by
counting colons.
"""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Union

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, UnsetType

from forebay.buffer.format.columns import Fields, show
from forebay.buffer.format.fit import Misfit, UnknownColumn, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_encode: Final = msgspec.json.Encoder().encode
_MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_FEW_COLUMNS: Final = 32
"""Number of columns up to which the order of keys makes no difference to the time that counts."""
_MAX_ORDERS: Final = 16
"""Maximum number of decoders for one schema. Each takes milliseconds to make."""
_JOINED_DOCUMENTS: Final = 512
_COLON: Final = pa.Array.from_buffers(pa.int8(), 1, [None, pa.py_buffer(b":")])[0]
"""Made from bytes: when pyarrow converts a Python value, it imports pandas if that is installed."""
_SAYS_BOTH_TYPES: Final = re.compile(r"Expected `[^`]*`, got `[^`]*`")
_EXACT_DOUBLE: Final = Annotated[int, Meta(ge=-(2**53), le=2**53)]
_EXACT_FLOAT: Final = Annotated[int, Meta(ge=-(2**24), le=2**24)]
_PYTHON_TYPES: Final[dict[int, Any]] = {
    pa.bool_().id: bool,
    pa.float32().id: Union[_EXACT_FLOAT, float],  # noqa: UP007 - `|` does not take Annotated
    pa.float64().id: Union[_EXACT_DOUBLE, float],  # noqa: UP007
    pa.string().id: str,
    pa.binary().id: bytes,
    pa.binary(1).id: bytes,
    pa.date32().id: date,
    pa.timestamp("us").id: str,
    pa.decimal128(1).id: Decimal,
    pa.uint64().id: Annotated[int, Meta(ge=0)],
}


class Documents:
    """Makes the arrays of all columns from JSON documents."""

    def __init__(self, schema: pa.Schema) -> None:
        self._row = pa.field("", pa.struct(list(schema)), nullable=False)
        self._decoders: dict[tuple[str, ...], Callable[[bytes], Any]] = {(): _decoder_of(self._row)}
        self._fields = Fields(list(schema), "", "documents")
        self._is_flat = not any(pa.types.is_nested(kind) for kind in schema.types)
        self._has_numbers_as_keys = _has_numbers_as_keys(self._row.type)

    def build(self, documents: list[bytes]) -> list[pa.Array]:
        """Return one array for each column of the schema; every document is one row.

        Raises:
            Misfit: a document is not exactly one object, has a key twice, or has a value that does not fit.
        """
        try:
            rows = list(map(self._decoder_for(documents), documents))
        except _MALFORMED as error:
            said = "exactly one JSON object", str(error)
            raise (self._explain(documents[0]) if len(documents) == 1 else None) or Misfit("", *said) from error
        arrays = self._fields.build(rows)
        if self._may_repeat(documents, rows, arrays):  # guard: refuse a key that is there twice
            for document in documents:
                _check_keys(document, are_numbers=self._has_numbers_as_keys)
        return arrays

    def _decoder_for(self, documents: list[bytes]) -> Callable[[bytes], Any]:
        """Return a decoder whose fields have the order that the keys of the first document have.

        msgspec looks for a key where it found the one before, and further. In another order the time would grow with
        the square of the number of columns.
        """
        row = self._row.type
        if row.num_fields <= _FEW_COLUMNS or not documents:
            return self._decoders[()]
        try:
            keys = tuple(msgspec.json.decode(documents[0], type=dict[str, msgspec.Raw]))
        except _MALFORMED:
            return self._decoders[()]
        if keys not in self._decoders and len(self._decoders) < _MAX_ORDERS:
            place = {name: i for i, name in enumerate(keys)}
            order = sorted(range(row.num_fields), key=lambda i: place.get(row.field(i).name, len(keys)))
            self._decoders[keys] = _decoder_of(self._row, order)
        return self._decoders.get(keys, self._decoders[()])

    def _may_repeat(self, documents: list[bytes], rows: list[Any], arrays: list[pa.Array]) -> bool:
        """Return False if no document has a key twice, which it finds out by counting colons; else True.

        There are as many colons as keys, and those inside text. If every row has every column, the number of keys is
        known. Else the rows are encoded again: then they have each key once, and as many colons inside text as before,
        unless some were escaped.
        """
        colons = sum(map(_count_colons, _join(documents)))
        if self._is_flat and colons == len(rows) * len(arrays) and not any(array.null_count for array in arrays):
            return False
        escaped = any(b"\\u003" in piece and b"\\u003a" in piece.lower() for piece in _join(documents))
        return escaped or colons != _count_colons(_encode(rows))

    def _explain(self, document: bytes) -> Misfit | None:
        """Return what is wrong with a document that msgspec refuses."""
        try:
            _find_misfit(msgspec.json.decode(document), self._row, "")
        except _MALFORMED as malformed:
            return Misfit("", "exactly one JSON object", f"{show(document)}: {malformed}")
        except Misfit as misfit:
            return misfit
        return None


def _decoder_of(row: pa.Field, order: Iterable[int] | None = None) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(_struct_of(list(row.type), order)).decode


def _type_of(field: pa.Field) -> Any:
    """Return the type that msgspec decodes a field's values into."""
    kind, types = field.type, pa.types
    python: Any
    if types.is_struct(kind):
        python = _struct_of(list(kind))
    elif types.is_list(kind):
        python = list[_type_of(kind.value_field)]  # type: ignore[misc]
    elif types.is_map(kind):
        python = dict[_type_of(kind.key_field), _type_of(kind.item_field)]  # type: ignore[misc]
    elif types.is_fixed_size_binary(kind):
        python = Annotated[bytes, Meta(min_length=kind.byte_width, max_length=kind.byte_width)]
    elif types.is_integer(kind) and kind != pa.uint64():
        most = 2 ** (kind.bit_width - types.is_signed_integer(kind)) - 1
        python = Annotated[int, Meta(ge=-most - 1 if types.is_signed_integer(kind) else 0, le=most)]
    else:
        python = _PYTHON_TYPES[kind.id]
    return Union[python, None] if field.nullable else python  # noqa: UP007


def _struct_of(fields: list[pa.Field], order: Iterable[int] | None = None) -> type[msgspec.Struct]:
    """Return a struct type for rows. Field i is called `f<i>`, in whichever order the fields are."""
    members: list[Any] = []
    for i in range(len(fields)) if order is None else order:
        kind = _type_of(fields[i])
        members.append((f"f{i}", Union[kind, UnsetType], UNSET) if fields[i].nullable else (f"f{i}", kind))  # noqa: UP007
    names = {f"f{i}": field.name for i, field in enumerate(fields)}
    return msgspec.defstruct("Row", members, rename=names, kw_only=True, forbid_unknown_fields=True, gc=False)


def _find_misfit(value: Any, field: pa.Field, path: str) -> None:
    """Raise `Misfit` for the first value inside a decoded document that does not fit the field."""
    kind, types = field.type, pa.types
    if value is None and field.nullable:
        return
    nested = types.is_struct(kind) or types.is_map(kind)
    if isinstance(value, dict) and nested:
        children = (
            {each.name: each for each in kind} if types.is_struct(kind) else dict.fromkeys(value, kind.item_field)
        )
        for name in (*value, *(children.keys() - value.keys())):
            inside = f"{path}.{name}" if path else name
            if name not in children:
                raise UnknownColumn(inside, show(value[name]))
            _find_misfit(value.get(name), children[name], inside)
        if types.is_struct(kind):
            return
    elif isinstance(value, list) and types.is_list(kind):
        for i, each in enumerate(value):
            _find_misfit(each, kind.value_field, f"{path}[{i}]")
        return
    try:
        msgspec.convert(value, _type_of(field), str_keys=True)
    except msgspec.ValidationError as error:
        # Of the wrong kind altogether: msgspec would only say again, in its own words, what both types are.
        why = "" if _SAYS_BOTH_TYPES.fullmatch(str(error)) else f": {error}"
        raise Misfit(path, describe(field) if path else "exactly one JSON object", f"{show(value)}{why}") from error


def _join(documents: list[bytes]) -> Iterator[bytes]:
    """Yield the documents, many in one piece. A piece is small, so that it stays in the processor's cache."""
    for start in range(0, len(documents), _JOINED_DOCUMENTS):
        yield b"\n".join(documents[start : start + _JOINED_DOCUMENTS])


def _count_colons(data: bytes) -> int:
    """Return how many colons there are. Arrow counts them several times as fast as `bytes.count`."""
    values = pa.Array.from_buffers(pa.int8(), len(data), [None, pa.py_buffer(data)])
    return int(pc.equal(values, _COLON).true_count)


def _has_numbers_as_keys(kind: pa.DataType) -> bool:
    """Return whether there is a map inside a type whose keys are integers."""
    if pa.types.is_map(kind) and pa.types.is_integer(kind.key_type):
        return True
    return any(_has_numbers_as_keys(kind.field(i).type) for i in range(kind.num_fields))


def _check_keys(document: bytes, *, are_numbers: bool) -> None:
    """Raise `Misfit` if a key is there twice. If keys may be numbers, -0 is 0: msgspec takes no other second form."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for text, _value in pairs:
            key = "0" if are_numbers and text == "-0" else text  # guard: refuse a number that is a key twice
            if key in seen:
                raise Misfit(key, "each key once", "it twice")
            seen.add(key)

    json.loads(document, object_pairs_hook=check, parse_int=str, parse_float=str)
