"""Python values as Arrow columns, strictly: a value that a column's type does not hold exactly is a `Misfit`.

Work is done per column, not per value: `set(map(type, values))` finds the Python types of a whole column at native
speed, and Arrow converts it. Python values come in two forms:

    dicts       what the caller passed: types are checked here
    documents   JSON that `documents.py` decoded into structs made from the schema: types were checked there, times are
                text, and a key that was not there is `UNSET`

What each type takes, beside None where the field is nullable:

    bool           bool
    integers       int within the type's range, not bool
    double         float, or int up to 2**53, which is exact. NaN and infinities are values.
    float          float, or int up to 2**24. A float is rounded to 32 bits, and refused if it would become infinite.
    string         str
    binary         bytes, bytearray or memoryview; in JSON base64 text
    date32         date, not datetime; in JSON "2026-01-31"
    timestamp      datetime; in JSON ISO 8601 text. It must have a zone or an offset if the column has a zone, and none
                   if the column has none. A fraction of a second that the unit cannot hold is refused, and a time
                   that is outside the years 1 to 9999 in the column's zone, which no reader could show.
    decimal128     Decimal or int; in JSON a number or text. A digit that the scale cannot hold is refused.
    list           list or tuple
    struct         dict without unknown keys
    map            dict, or list or tuple of pairs without a key that is there twice; in JSON an object
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import accumulate, chain, count
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from forebay.buffer.format.fit import Misfit, UnknownColumn, check_years, describe

if TYPE_CHECKING:
    from collections.abc import Callable

Source: TypeAlias = Literal["dicts", "documents"]
"""Where values come from: see above."""
Values: TypeAlias = list[Any]

_NONE: Final = type(None)
_REFUSED: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError, AttributeError)
"""What Arrow, and Python's own accessors, raise for a value of a wrong type or out of range."""
_MAX_SHOWN: Final = 80
_EXACT_FLOAT: Final = 2**24
_ZEROS: Final = re.compile(r"(\.\d{6})0+(?=\D|$)")


class Column:
    """Makes one Arrow array from the Python values of one field."""

    def __init__(self, field: pa.Field, path: str, source: Source, takes: tuple[type, ...]) -> None:
        self.field: pa.Field = field
        self.path: str = path
        self.source: Source = source
        self._takes = takes
        self._exact = frozenset(takes) | ({_NONE} if field.nullable else frozenset())

    def build(self, values: Values) -> pa.Array:
        """Return the values as an Arrow array of the field's type.

        Raises:
            Misfit: a value does not fit.
        """
        if self.source == "documents":
            return self._build_decoded(values)
        kinds = set(map(type, values))
        if not kinds <= self._exact:  # guard: refuse values of other types
            self._check_kinds(kinds, values)
        try:
            return _whole(self._convert(values))
        except MemoryError:  # guard: a lack of memory is no misfit, though Arrow's is an ArrowException
            raise
        except _REFUSED as error:
            raise self._misfit(values, error) from error

    def _build_decoded(self, values: Values) -> pa.Array:
        try:
            return _whole(self._convert(values))
        except MemoryError:
            raise
        except (Misfit, *_REFUSED) as error:
            if any(value is UNSET for value in values):
                return self._build_decoded([None if value is UNSET else value for value in values])
            if isinstance(error, Misfit):
                raise
            raise self._misfit(values, error) from error

    def _convert(self, values: Values) -> pa.Array:
        """Return the values as an array; raise what Arrow raises if they do not fit."""
        raise NotImplementedError

    def _check_kinds(self, kinds: set[type], values: Values) -> None:
        """Accept subclasses of the types that are taken, such as an IntEnum."""
        for kind in kinds - self._exact:
            subclass = issubclass(kind, self._takes) and kind is not bool
            if not subclass or (issubclass(kind, datetime) and (date in self._takes or hasattr(kind, "nanosecond"))):
                found = next(value for value in values if type(value) is kind)
                raise Misfit(self.path, describe(self.field), show(found))

    def _misfit(self, values: Values, error: Exception) -> Misfit:
        found = f"{show(values[0])}: {error}" if len(values) == 1 else str(error)
        return Misfit(self.path, describe(self.field), found)


class _Plain(Column):
    """What Arrow converts as strictly as this module does, once the Python types are right."""

    def _convert(self, values: Values) -> pa.Array:
        return pa.array(values, self.field.type)


class _Float(Column):
    """Floats of 32 bits."""

    def _convert(self, values: Values) -> pa.Array:
        if set(map(type, values)) - {float, _NONE}:
            large = (value for value in values if isinstance(value, int) and not -_EXACT_FLOAT <= value <= _EXACT_FLOAT)
            if (found := next(large, None)) is not None:
                raise Misfit(self.path, describe(self.field), f"{show(found)}, which is not exact as a float")
        doubles = pa.array(values, pa.float64())
        floats = doubles.cast(pa.float32())
        if pc.sum(pc.is_inf(floats)) != pc.sum(pc.is_inf(doubles)):
            found = next(value for value in values if value is not None and math.isfinite(value) and _overflows(value))
            raise Misfit(self.path, describe(self.field), f"{show(found)}, which would become infinite")
        return floats


class _Timestamp(Column):
    """Moments: converted in microseconds, since Arrow truncates datetimes to anything coarser without a word."""

    def _convert(self, values: Values) -> pa.Array:
        zone = self.field.type.tz
        if self.source == "documents":
            return self._checked(_parse_times(pa.array(values, pa.string()), pa.timestamp("us", zone)))
        there = [value for value in values if value is not None]
        zones = set(map(attrgetter("tzinfo"), there))
        if zones & {None} if zone is not None else zones - {None}:  # guard: refuse a datetime without its zone
            found = next(value for value in there if (value.tzinfo is None) == (zone is not None))
            has = "has no zone" if zone is not None else "has a zone"
            raise Misfit(self.path, describe(self.field), f"{show(found)}, which {has}")
        for each in zones - {None}:
            _check_offset(each, there)
        return self._checked(pa.array(values, pa.timestamp("us", zone)))

    def _checked(self, times: pa.Array) -> pa.Array:
        times = times.cast(self.field.type)
        check_years(times, self.field, self.path)
        return times


class _Struct(Column):
    """Dicts, or decoded documents."""

    def __init__(self, field: pa.Field, path: str, source: Source) -> None:
        super().__init__(field, path, source, (dict,))
        self._fields = Fields(list(field.type), f"{path}.", source)

    def _convert(self, values: Values) -> pa.Array:
        there = [value for value in values if value is not None]
        if self.source == "dicts":
            there = plain_dicts(there)
        array = pa.StructArray.from_arrays(self._fields.build(there), fields=list(self.field.type))
        return array if len(there) == len(values) else array.take(_places(values))


class _List(Column):
    """Lists of anything."""

    def __init__(self, field: pa.Field, path: str, source: Source) -> None:
        super().__init__(field, path, source, (list, tuple))
        self._element = make_column(field.type.value_field, f"{path}.element", source)

    def _convert(self, values: Values) -> pa.Array:
        offsets, mask, there = _flatten(values)
        elements = self._element.build(list(chain.from_iterable(there)))
        return pa.ListArray.from_arrays(offsets, elements, type=self.field.type, mask=mask)


class _Map(Column):
    """Dicts, or lists of pairs."""

    def __init__(self, field: pa.Field, path: str, source: Source) -> None:
        super().__init__(field, path, source, (dict, list, tuple))
        self._key = make_column(field.type.key_field, f"{path}.key", source)
        self._value = make_column(field.type.item_field, f"{path}.value", source)

    def _convert(self, values: Values) -> pa.Array:
        listed = [value for value in values if isinstance(value, list | tuple)]
        if not all(isinstance(pair, list | tuple) for pair in chain.from_iterable(listed)):
            raise ValueError("a pair is neither a tuple nor a list")  # to `dict`, a text of two letters is a pair too
        maps = [dict(value) if isinstance(value, list | tuple) else value for value in values]
        offsets, mask, there = _flatten(maps)
        if sum(map(len, there)) != sum(len(value) for value in values if value is not None):
            raise ValueError("a key is there twice")
        keys = self._key.build(list(chain.from_iterable(there)))
        items = self._value.build(list(chain.from_iterable(each.values() for each in there)))
        return pa.MapArray.from_arrays(offsets, keys, items, type=self.field.type, mask=mask)


class Fields:
    """Makes the arrays of all columns of a schema, or of all fields of a struct."""

    def __init__(self, fields: list[pa.Field], prefix: str, source: Source) -> None:
        self._columns = [make_column(field, prefix + field.name, source) for field in fields]
        self._names = {field.name for field in fields}
        self._prefix, self._source = prefix, source

    def build(self, rows: Values) -> list[pa.Array]:
        """Return one array for each field of the rows: dicts or decoded documents, and no None among them.

        Raises:
            Misfit: a value does not fit, or a key is unknown.
        """
        if self._source == "dicts":
            return [column.build(values) for column, values in self._pick(rows)]
        getters = (attrgetter(f"f{i}") for i in range(len(self._columns)))
        return [column.build(list(map(get, rows))) for column, get in zip(self._columns, getters, strict=True)]

    def _pick(self, rows: Values) -> list[tuple[Column, Values]]:
        """Return the values of each field, and None where a row has none."""
        try:
            columns = [(column, list(map(itemgetter(column.field.name), rows))) for column in self._columns]
        except KeyError:
            there = set().union(*rows)
        else:
            if sum(map(len, rows)) == len(rows) * len(columns):
                return columns  # every row has every field, and no other
            there = set().union(*rows)
        unknown = there - self._names
        if unknown:  # guard: refuse unknown fields
            name = next(name for row in rows for name in row if name in unknown)
            found = next(row[name] for row in rows if name in row)
            path = f"{self._prefix}{name if isinstance(name, str) else repr(name)}"
            raise UnknownColumn(path, show(found))
        nothing = [None] * len(rows)
        return [
            (column, [row.get(name) for row in rows] if (name := column.field.name) in there else nothing)
            for column in self._columns
        ]


def make_column(field: pa.Field, path: str, source: Source) -> Column:
    """Return what makes arrays of the field's type."""
    kind, types = field.type, pa.types
    nested: dict[Callable[[pa.DataType], bool], type[_Struct | _List | _Map]] = {
        types.is_struct: _Struct,
        types.is_list: _List,
        types.is_map: _Map,
    }
    for is_kind, column in nested.items():
        if is_kind(kind):
            return column(field, path, source)
    if types.is_timestamp(kind):
        return _Timestamp(field, path, source, (datetime,))
    if types.is_float32(kind):
        return _Float(field, path, source, (float, int))
    return _Plain(field, path, source, _PYTHON_TYPES[kind.id])


_PYTHON_TYPES: Final[dict[int, tuple[type, ...]]] = {
    pa.bool_().id: (bool,),
    **{pa.type_for_alias(f"{sign}int{bits}").id: (int,) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    pa.float64().id: (float, int),
    pa.string().id: (str,),
    pa.binary().id: (bytes, bytearray, memoryview),
    pa.binary(1).id: (bytes, bytearray, memoryview),
    pa.date32().id: (date,),
    pa.decimal128(1).id: (Decimal, int),
}


def plain_dicts(rows: Values) -> Values:
    """Return the rows as dicts of no subclass: a defaultdict would make up values that are not there.

    Raises:
        Misfit: a row is no dict.
    """
    if set(map(type, rows)) <= {dict}:
        return rows
    for row in rows:
        if not isinstance(row, dict):
            raise Misfit("", "a dict", show(row))
    return list(map(dict, rows))


def show(value: object) -> str:
    """Return a value and its type for a message."""
    if value is None:
        return "null"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a caller's class raises, the message is about the column
        text = "…"
    return f"{type(value).__name__} {text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + '…'}"


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return an array, which Arrow gives in several pieces if its values exceed 2 GiB."""
    if isinstance(array, pa.ChunkedArray):
        raise ValueError("the values of one column exceed 2 GiB")  # noqa: TRY004 - the size is wrong, not the type
    return array


def _overflows(value: float) -> bool:
    return bool(pc.is_inf(pa.scalar(float(value), pa.float64()).cast(pa.float32())).as_py())


def _places(values: Values) -> pa.Array:
    """Return the index of each value among those that are not None; null for None."""
    counter = count()
    return pa.array([None if value is None else next(counter) for value in values], pa.int64())


def _flatten(values: Values) -> tuple[pa.Array, pa.Array | None, Values]:
    """Return offsets and mask of a list array, and the values that are not null."""
    there = [value for value in values if value is not None]
    if len(there) == len(values):
        return pa.array(accumulate(map(len, values), initial=0), pa.int32()), None, there
    lengths = (0 if value is None else len(value) for value in values)
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.array(accumulate(lengths, initial=0), pa.int32()), mask, there


def _parse_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        # Arrow refuses more than six digits of a second, even if the others are zeros.
        shorter = [text and _ZEROS.sub(r"\1", text) for text in texts.to_pylist()]
        return pa.array(shorter, pa.string()).cast(kind)


def _check_offset(zone: Any, values: Values) -> None:
    """Refuse what Arrow gets wrong: offsets that are no whole seconds, and zones that know no offset."""
    if isinstance(zone, timezone):
        offset = zone.utcoffset(None)
        unknown = None
    else:
        offset = timedelta(0)
        unknown = next((value for value in values if value.tzinfo is zone and value.utcoffset() is None), None)
    if offset.microseconds or unknown is not None:
        raise ValueError(f"the zone {zone!r} has no offset in whole seconds")
