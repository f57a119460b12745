"""Calls of a typed producer as one table: what fits is kept exactly, what does not fit fails its own call."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_data import every_schema, rows_of

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.rows import Converted, Fitted, RowConverter
from forebay.buffer.format.schema import check_schema

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)
SCHEMA = check_schema(
    pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("flag", pa.bool_()),
            pa.field("tiny", pa.uint8()),
            pa.field("long", pa.int64()),
            pa.field("large", pa.uint64()),
            pa.field("float", pa.float32()),
            pa.field("double", pa.float64()),
            pa.field("text", pa.string()),
            pa.field("raw", pa.binary()),
            pa.field("pair", pa.binary(2)),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("at_ms", pa.timestamp("ms", "Europe/Berlin")),
            pa.field("local", pa.timestamp("us")),
            pa.field("price", pa.decimal128(6, 2)),
            pa.field(
                "items", pa.list_(pa.struct([pa.field("n", pa.int8(), nullable=False), pa.field("tag", pa.string())]))
            ),
            pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
            pa.field(
                "place",
                pa.struct([pa.field("lat", pa.float64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))]),
            ),
            pa.field("words", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("by_number", pa.map_(pa.int16(), pa.string())),
            pa.field("texts", pa.map_(pa.string(), pa.string())),
        ]
    )
)
CONVERTER = RowConverter(SCHEMA)


def convert(*calls: Any) -> Converted:
    return CONVERTER.convert(calls)


def fail(call: Any) -> str:
    """Convert a call between two good ones; return why it failed."""
    result = convert({"id": 1}, call, b'{"id": 2}')
    assert result.rows == [1, 0, 1]
    assert result.table.column("id").to_pylist() == [1, 2]
    assert list(result.failures) == [1]
    assert isinstance(result.failures[1], InvalidInput)
    return str(result.failures[1])


class NoOffset(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None


class Stamp(datetime):
    """As pandas has it: a datetime with more digits than a datetime has."""

    nanosecond = 1


# --- what does not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "wanted", "found"),
    [
        ("id", None, "int32 not null", "null"),
        ("id", True, "int32 not null", "bool True"),
        ("id", 1.0, "int32 not null", "float 1.0"),
        ("id", 1.5, "int32 not null", "float 1.5"),
        ("id", "1", "int32 not null", "str '1'"),
        ("id", Decimal(1), "int32 not null", "Decimal"),
        ("id", 2**31, "int32 not null", f"int {2**31}"),
        ("tiny", -1, "uint8", "int -1"),
        ("tiny", 256, "uint8", "int 256"),
        ("long", 2**63, "int64", f"int {2**63}"),
        ("large", 2**64, "uint64", f"int {2**64}"),
        ("flag", 1, "bool", "int 1"),
        ("flag", "true", "bool", "str 'true'"),
        ("double", 2**53 + 1, "double", f"int {2**53 + 1}"),
        ("double", True, "double", "bool True"),
        ("double", Decimal("0.1"), "double", "Decimal"),
        ("double", "1.5", "double", "str '1.5'"),
        ("float", 2**24 + 1, "float", f"int {2**24 + 1}"),
        ("float", 1e39, "float", r"float 1e\+39, which would become infinite"),
        ("float", -1e300, "float", r"float -1e\+300, which would become infinite"),
        ("text", 1, "string", "int 1"),
        ("text", b"x", "string", "bytes b'x'"),
        ("text", "\ud800", "string", "str"),
        ("raw", "x", "binary", "str 'x'"),
        ("pair", b"xyz", r"fixed_size_binary\[2\]", "bytes b'xyz'"),
        ("day", NOON, "date32", "datetime"),
        ("day", "2026-01-31", "date32", "str"),
        ("day", 5, "date32", "int 5"),
        ("at", NAIVE, "timestamp", "datetime .*, which has no zone"),
        ("at", datetime(2026, 1, 31, tzinfo=NoOffset()), "timestamp", "no offset"),
        (
            "at",
            datetime(2026, 1, 31, tzinfo=timezone(timedelta(microseconds=5))),
            "timestamp",
            "no offset in whole seconds",
        ),
        ("at", "2026-01-31T12:00:00Z", "timestamp", "str"),
        ("at", 5, "timestamp", "int 5"),
        ("at", date(2026, 1, 31), "timestamp", "date"),
        ("at", Stamp(2026, 1, 31, tzinfo=UTC), "timestamp", "Stamp"),
        ("at_ms", NOON.replace(microsecond=1), "timestamp", "would lose data"),
        ("at", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), "timestamp", "outside the years"),
        ("at_ms", datetime(9999, 12, 31, 23, 30, tzinfo=UTC), "timestamp", "outside the years"),
        ("local", NOON, "timestamp", "datetime .*, which has a zone"),
        ("price", 1.5, "decimal128", "float 1.5"),
        ("price", Decimal("1.555"), "decimal128", "Decimal"),
        ("price", Decimal(10000), "decimal128", "Decimal"),
        ("price", 10000, "decimal128", "int 10000"),
        ("price", Decimal("NaN"), "decimal128", "Decimal"),
        ("items", {"n": 1}, "list", "dict"),
        ("items", "ab", "list", "str 'ab'"),
        ("items", [1], "struct", "int 1"),
        ("words", ["a", None], "string not null", "null"),
        ("words", ["a", 1], "string not null", "int 1"),
        ("counts", {"a": None}, "int64 not null", "null"),
        ("counts", {"a": 1.5}, "int64 not null", "float 1.5"),
        ("counts", {1: 1}, "string not null", "int 1"),
        ("counts", [("a", 1), ("a", 2)], "map", "a key is there twice"),
        ("counts", [1], "map", "list"),
        ("texts", ["ab"], "map", r"list \['ab'\]: a pair is neither"),
        ("by_number", {40_000: "x"}, "int16 not null", "40000"),
        ("by_number", {"1": "x"}, "int16 not null", "str '1'"),
        ("place", [1.0], "struct", "list"),
        ("place", {}, "double not null", "null"),
        ("place", {"lat": 1, "at": NAIVE}, "timestamp", "no zone"),
        ("items", [{"n": 300}], "int8 not null", "300"),
    ],
)
def test_value_that_its_column_does_not_hold_exactly_fails_the_call(
    column: str, value: Any, wanted: str, found: str
) -> None:
    message = fail([{"id": 1}, {"id": 1, column: value}])
    assert message.startswith(f"row 1, column {column}")
    with pytest.raises(InvalidInput, match=f"(?s)expected .*{wanted}.*, found .*{found}"):
        raise InvalidInput(message)


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"id": 1, "Id": 1}, "Id"),
        ({"id": 1, "other": None}, "other"),
        ({"id": 1, 5: 1}, "5"),
        ({"id": 1, b"id": 1}, "b'id'"),
        ({"id": 1, "items": [{"n": 1, "x": 2}]}, "items.element.x"),
        ({"id": 1, "place": {"lat": 1.0, "lon": 2.0}}, "place.lon"),
    ],
)
def test_unknown_field_fails_the_call_at_every_depth(row: dict[Any, Any], path: str) -> None:
    assert fail([{"id": 1}, row]).startswith(f"row 1, column {path}: the schema has no column of this name; found ")


def test_missing_field_of_a_required_column_fails_the_call() -> None:
    assert fail({"text": "a"}) == "row 0, column id: expected int32 not null, found null"


def test_row_that_is_no_dict_fails_the_call() -> None:
    assert fail([{"id": 1}, [("id", 1)]]) == "row 1, expected a dict, found list [('id', 1)]"


@pytest.mark.parametrize(
    ("document", "path", "found"),
    [
        (b"", "", "truncated"),
        (b" ", "", "truncated"),
        (b"1", "", "int 1"),
        (b"null", "", "null"),
        (b'[{"id":1}]', "", "list"),
        (b'{"id":1}{"id":2}', "", "trailing characters"),
        (b'{"id":1}\n{"id":2}', "", "trailing characters"),
        (b'{"id":1} x', "", "trailing characters"),
        (b'{"id":1', "", "truncated"),
        (b'{"id":1,}', "", "malformed"),
        (b"{'id':1}", "", "malformed"),
        (b'\xef\xbb\xbf{"id":1}', "", "malformed"),
        (b'{"id":1}\x00', "", "trailing"),
        (b'{"id":1,"text":"\xff"}', "", "utf-8"),
        (b'{"id":1,"text":"\xed\xa0\x80"}', "", "utf-8"),
        (b'{"id":1,"text":"\\ud800"}', "", "malformed|truncated"),
        (b'{"id":1,"text":"a\nb"}', "", "malformed"),
        (b'{"id":1,"double":NaN}', "", "malformed"),
        (b'{"id":1,"double":Infinity}', "", "malformed"),
        (b'{"id":1,"double":1e400}', "", "out of range"),
        (b'{"id":1,"items":' + b"[" * 100_000, "", "recursion|Stack overflow"),  # the latter since Python 3.14
        (b'{"id":1,"other":1}', "other", "int 1"),
        (b'{"id":1,"place":{"lat":1,"lon":2}}', "place.lon", "int 2"),
        (b'{"text":"a"}', "id", "null"),
        (b'{"id":null}', "id", "null"),
        (b'{"id":1.0}', "id", "float 1.0"),
        (b'{"id":1e3}', "id", "float 1000.0"),
        (b'{"id":true}', "id", "bool True"),
        (b'{"id":"1"}', "id", "str '1'"),
        (b'{"id":2147483648}', "id", "2147483648"),
        (b'{"id":1,"tiny":256}', "tiny", "256"),
        (b'{"id":1,"large":18446744073709551616}', "large", "18446744073709551616"),
        (b'{"id":1,"flag":"true"}', "flag", "str 'true'"),
        (b'{"id":1,"double":9007199254740993}', "double", "9007199254740993"),
        (b'{"id":1,"float":1e39}', "float", "infinite"),
        (b'{"id":1,"text":1}', "text", "int 1"),
        (b'{"id":1,"raw":"not base64!"}', "raw", "base64"),
        (b'{"id":1,"pair":"eHl6"}', "pair", "length"),
        (b'{"id":1,"day":"2026-01-31T00:00:00"}', "day", "date"),
        (b'{"id":1,"at":"2026-01-31T12:00:00"}', "at", "zone offset"),
        (b'{"id":1,"at":"2026-01-31"}', "at", "zone offset"),
        (b'{"id":1,"at":"2026-01-31T12:00:00.1234567Z"}', "at", "1234567Z"),
        (b'{"id":1,"at":1769860800}', "at", "int 1769860800"),
        (b'{"id":1,"at":"0000-12-31T23:59:59Z"}', "at", "outside the years"),
        (b'{"id":1,"at_ms":"2026-01-31T12:00:00.1234Z"}', "at_ms", "lose data"),
        (b'{"id":1,"local":"2026-01-31T12:00:00Z"}', "local", "no zone offset"),
        (b'{"id":1,"price":1.555}', "price", "data loss"),
        (b'{"id":1,"price":"x"}', "price", "str 'x'"),
        (b'{"id":1,"items":[{"n":1},{"n":300}]}', r"items[1].n", "300"),
        (b'{"id":1,"counts":{"a":1.5}}', "counts.a", "float 1.5"),
        (b'{"id":1,"by_number":{"40000":"x"}}', "by_number", "40000|32767"),
        (b'{"id":1,"id":1}', "id", "twice"),
        (b'{"id":1,"text":"a","text":null}', "text", "twice"),
        (b'{"id" :1, "id":2}', "id", "twice"),
        (b'{"id":1,"\\u0069d":2}', "id", "twice"),
        (b'{"id":1,"text":"a\\u003ab","text":"c"}', "text", "twice"),
        (b'{"id":1,"text":"a:b\\":","text":"c"}', "text", "twice"),
        (b'{"id":1,"counts":{"a":1,"a":2}}', "a", "twice"),
        (b'{"id":1,"by_number":{"0":"x","-0":"y"}}', "0", "twice"),
        (b'{"id":1,"items":[{"n":1,"n":1}]}', "n", "twice"),
    ],
)
def test_document_that_does_not_fit_fails_the_call(document: bytes, path: str, found: str) -> None:
    message = fail([b'{"id": 1}', document])
    named = f"row 1, column {path}: "
    starts = (
        (f"{named}expected", f"{named}the schema has no column") if path else "row 1, expected exactly one JSON object"
    )
    assert message.startswith(starts)
    with pytest.raises(InvalidInput, match=f"(?s)[,;] found .*({found})"):
        raise InvalidInput(message)


def test_key_that_is_there_twice_is_found_beside_a_document_that_lacks_one() -> None:
    converter = RowConverter(pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64())]))
    result = converter.convert([b'{"a":1,"b":1,"b":2}', b'{"a":1}', b'{"a":1,"b":2}'])
    assert list(result.failures) == [0]


@pytest.mark.parametrize(
    "call", ["text", 5, None, [5], ["text"], ({"id": 1},), bytearray(b"{}"), {1}, [bytearray(b"{}")]]
)
def test_call_of_another_type_fails(call: Any) -> None:
    assert "rows must be a pyarrow Table" in fail(call)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"id": [1], "other": [1]}), "column other: the schema has no column of this name; found int64"),
        (pa.table({"text": ["a"]}), "column id: expected int32 not null, found no column of this name"),
        (pa.table({"id": pa.array([1, None])}), "row 1, column id: expected int32 not null, found null"),
        (pa.table({"id": [1, 2**31]}), "row 1, column id: expected int32 not null, found int64: .*2147483648"),
        (pa.table({"id": ["1"]}), "column id: expected int32 not null, found string"),
        (pa.table({"id": [1.0]}), "column id: expected int32 not null, found double"),
        (pa.table({"id": [1], "float": [1.5]}), "column float: expected float, found double"),
        (pa.table({"id": [1], "double": [2**53 + 1]}), "row 0, column double: expected double, found int64"),
        (pa.table({"id": [1], "text": [b"a"]}), "column text: expected string, found binary"),
        (pa.table({"id": [1], "at": [NAIVE]}), "column at: expected timestamp.*, found timestamp"),
        (pa.table({"id": [1], "local": [NOON]}), "column local: expected timestamp.*, found timestamp"),
        (pa.table({"id": [1], "day": [NAIVE]}), "column day: expected date32.*, found timestamp"),
        (
            pa.table({"id": [1, 1], "at": pa.array([0, 1], pa.timestamp("ns", "UTC"))}),
            "row 1, column at: expected timestamp.*lose data: 1",
        ),
        (
            pa.table({"id": [1, 1], "at": pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", "UTC"))}),
            "row 1, column at: expected timestamp.*, found a time outside the years 1 to 9999",
        ),
        (
            pa.table({"id": [1], "day": pa.array([2_932_897], pa.date32())}),
            "row 0, column day: expected date32.*, found a time outside the years 1 to 9999",
        ),
        (
            pa.table({"id": [1], "place": pa.array([{"lat": 1.0, "at": -(2**62)}], SCHEMA.field("place").type)}),
            "row 0, column place.at: expected timestamp.*, found a time outside the years 1 to 9999",
        ),
        (pa.table({"id": [1], "price": [Decimal("1.555")]}), "row 0, column price: expected decimal128"),
        (
            pa.table({"id": [1], "words": [["a", None]]}),
            "row 0, column words.element: expected string not null, found null",
        ),
        (
            pa.table({"id": [1], "words": pa.array([["a", None]], SCHEMA.field("words").type)}),
            "row 0, column words.element: expected string not null, found null",
        ),
        (
            pa.table({"id": [1], "place": [{"lat": 1.0, "lon": 2.0}]}),
            "column place.lon: the schema has no column of this name; found double",
        ),
        (pa.table([pa.array([1]), pa.array([1])], names=["id", "id"]), "column id: expected one column"),
        (
            pa.table(
                {
                    "id": [1],
                    "text": pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")),
                }
            ),
            "row 0, expected valid Arrow data, found .*UTF8",
        ),
    ],
    ids=range(22),
)
def test_arrow_data_that_does_not_fit_fails_the_call(table: pa.Table, said: str) -> None:
    calls = (table, *table.to_batches()) if table.num_columns == len(set(table.column_names)) else (table,)
    for call in calls:
        with pytest.raises(InvalidInput, match=f"(?s)^{said}"):
            raise InvalidInput(fail(call))


# --- what fits ------------------------------------------------------------------------------------------------------


class Level(IntEnum):
    HIGH = 7


class Colour(str, Enum):  # noqa: UP042 - what older code has
    RED = "red"


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("id", Level.HIGH, 7),
        ("text", Colour.RED, "red"),
        ("text", "", ""),
        ("text", "a\0b", "a\0b"),
        ("double", 2**53, float(2**53)),
        ("double", float("inf"), float("inf")),
        ("float", 0.1, 0.10000000149011612),
        ("float", float("-inf"), float("-inf")),
        ("float", 2**24, float(2**24)),
        ("large", 2**64 - 1, 2**64 - 1),
        ("raw", b"\xff\0", b"\xff\0"),
        ("raw", bytearray(b"\xff\0"), b"\xff\0"),
        ("pair", memoryview(b"\xff\0"), b"\xff\0"),
        ("price", 7, Decimal("7.00")),
        ("price", Decimal("1.500"), Decimal("1.50")),
        ("price", Decimal("-9999.99"), Decimal("-9999.99")),
        ("at", datetime(2026, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2026, 7, 1, 12, tzinfo=UTC)),
        (
            "at",
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
        ),
        (
            "at",
            datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        ),
        ("at_ms", NOON.replace(microsecond=123_000), NOON.replace(microsecond=123_000)),
        ("words", ("a", "b"), ["a", "b"]),
        ("counts", [("a", 1)], [("a", 1)]),
        ("counts", (["a", 1],), [("a", 1)]),
        ("counts", {}, []),
        ("counts", OrderedDict(a=1), [("a", 1)]),
        ("by_number", {-5: None}, [(-5, None)]),
        ("place", OrderedDict(lat=1), {"lat": 1.0, "at": None}),
        ("items", [None, {"n": 1}], [None, {"n": 1, "tag": None}]),
    ],
)
def test_value_of_a_dict_is_kept_exactly(column: str, value: Any, kept: Any) -> None:
    result = convert({"id": 1, column: value})
    assert not result.failures
    assert result.table.column(column).to_pylist() == [kept]


@pytest.mark.parametrize(
    ("column", "text", "kept"),
    [
        ("double", "1", 1.0),
        ("double", "0.1", 0.1),
        ("large", "18446744073709551615", 2**64 - 1),
        ("raw", '"/wA="', b"\xff\0"),
        ("price", "1.5", Decimal("1.50")),
        ("price", '"-9999.99"', Decimal("-9999.99")),
        ("price", "1e3", Decimal("1000.00")),
        ("day", '"2026-01-31"', date(2026, 1, 31)),
        ("at", '"2026-01-31T14:00:00.000001+02:00"', NOON.replace(microsecond=1)),
        ("at", '"2026-01-31T12:00:00.123456000Z"', NOON.replace(microsecond=123_456)),
        ("at_ms", '"2026-01-31T12:00:00.120000Z"', NOON.replace(microsecond=120_000)),
        ("local", '"2026-01-31T12:00:00"', NAIVE),
        ("text", '"a:b \\" : \\u003a \\\\"', 'a:b " : : \\'),
        ("text", "null", None),
        ("counts", '{"a:":1}', [("a:", 1)]),
        ("by_number", '{"-5":"x"}', [(-5, "x")]),
        ("place", '{"lat":1,"at":"2026-01-31T12:00:00Z"}', {"lat": 1.0, "at": NOON}),
        ("items", '[null,{"n":1}]', [None, {"n": 1, "tag": None}]),
    ],
)
def test_value_of_a_document_is_kept_exactly(column: str, text: str, kept: Any) -> None:
    document = f' {{ "id" : 1,\n"{column}":{text} }}\r\n'.encode()
    result = convert(document)
    assert not result.failures
    assert result.table.column(column).to_pylist() == [kept]


@pytest.mark.parametrize(
    ("column", "array", "kept"),
    [
        ("text", pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
        ("text", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("text", pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        ("text", pa.nulls(2), [None, None]),
        ("long", pa.array([1, 2], pa.uint8()), [1, 2]),
        ("tiny", pa.array([1, 255], pa.int64()), [1, 255]),
        ("double", pa.array([1, 2]), [1.0, 2.0]),
        ("double", pa.array([1.5, 2.5], pa.float32()), [1.5, 2.5]),
        ("day", pa.array([0, 86_400_000], pa.date64()), [date(1970, 1, 1), date(1970, 1, 2)]),
        (
            "at",
            pa.array([0, 1], pa.timestamp("s", "Asia/Tokyo")),
            [datetime(1970, 1, 1, 0, 0, s, tzinfo=UTC) for s in (0, 1)],
        ),
        ("words", pa.array([["a"], None], pa.large_list(pa.large_string())), [["a"], None]),
        ("words", pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2)), [["a", "b"], ["c", "d"]]),
        ("place", pa.array([{"lat": 1}, None]), [{"lat": 1.0, "at": None}, None]),
        ("counts", pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.int8())), [[("a", 1)], None]),
    ],
    ids=str,
)
def test_arrow_data_of_a_similar_type_is_kept_exactly(column: str, array: pa.Array, kept: list[Any]) -> None:
    table = pa.table({column: array, "id": pa.array([1, 2], pa.int64())})
    result = convert(table)
    assert not result.failures
    assert result.table.schema == SCHEMA
    assert result.table.column(column).to_pylist() == kept


def test_arrow_data_of_the_same_type_is_not_copied() -> None:
    table = pa.table({"id": pa.array([1], pa.int32()), "text": ["a"]})
    kept = convert(table).table.column("text").chunk(0)
    assert kept.buffers()[2].address == table.column("text").chunk(0).buffers()[2].address


def test_defaultdict_is_not_asked_for_what_it_does_not_hold() -> None:
    row: defaultdict[str, Any] = defaultdict(lambda: "made up", id=1)
    assert convert(row, {"id": 2, "text": "a"}).table.column("text").to_pylist() == [None, "a"]
    assert row == {"id": 1}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_come_back_as_they_were_given_in_every_form(data: st.DataObject) -> None:
    schema = check_schema(data.draw(every_schema))
    rows = data.draw(st.lists(rows_of(list(schema)), min_size=1, max_size=5))
    converter = RowConverter(schema)
    dicts = converter.convert(rows)
    assert not dicts.failures
    dicts.table.validate(full=True)
    given_back = pa.Table.from_pylist(dicts.table.to_pylist(), schema=schema)
    for column, again in zip(dicts.table.columns, given_back.columns, strict=True):
        assert column.combine_chunks().equals(again.combine_chunks())
    for row, kept in zip(rows, dicts.table.to_pylist(), strict=True):
        assert_same(row, kept)
    documents = converter.convert([msgspec.json.encode(row) for row in rows])
    assert not documents.failures
    assert documents.table.equals(dicts.table)
    assert converter.convert([dicts.table.slice(1)]).table.equals(dicts.table.slice(1))
    assert converter.convert(dicts.table.to_batches()).table.equals(dicts.table)


def assert_same(given: Any, kept: Any) -> None:
    """What was given is what was kept; fields that were not given are null."""
    if isinstance(given, dict) and isinstance(kept, list):
        assert_same(sorted(given.items()), sorted(kept))
    elif isinstance(given, dict):
        assert given.keys() <= kept.keys()
        for name, value in kept.items():
            assert_same(given.get(name), value)
    elif isinstance(given, list | tuple):
        assert len(given) == len(kept)
        for mine, theirs in zip(given, kept, strict=True):
            assert_same(mine, theirs)
    elif isinstance(given, datetime) and given.tzinfo is not None:
        # In different zones, Python never takes a time for equal if its zone has it twice, when summer time ends.
        assert given.astimezone(UTC) == kept.astimezone(UTC)
    else:
        assert given == kept


json_text = st.recursive(
    st.sampled_from(
        ["null", "true", "1", "-1.5", "1e400", "NaN", '"a"', '"a:b"', '"\\u003a"', '"\\":"', '"2026-01-31"', ""]
    ),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]")
        | st.lists(
            st.tuples(st.sampled_from(['"a"', '"b"', '"\\u0061"', '"a:"', "a"]), st.sampled_from([":", " : "]), inner),
            max_size=3,
        ).map(lambda pairs: "{" + ",".join(key + colon + value for key, colon, value in pairs) + "}")
    ),
    max_leaves=6,
)
SMALL = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())])


@settings(max_examples=400, deadline=None)
@given(st.lists(json_text.map(str.encode) | st.binary(max_size=8), min_size=1, max_size=4))
def test_documents_are_taken_if_and_only_if_a_plain_reading_takes_them(documents: list[bytes]) -> None:
    schema = check_schema(
        pa.schema([pa.field("a", SMALL), pa.field("b", pa.string()), pa.field("a:", pa.map_(pa.string(), pa.int64()))])
    )
    expected = [read_plainly(document) for document in documents]
    result = RowConverter(schema).convert(documents)
    assert [i not in result.failures for i in range(len(documents))] == [row is not None for row in expected]
    for row, kept in zip([row for row in expected if row is not None], result.table.to_pylist(), strict=True):
        assert_same(row, kept)


def read_plainly(document: bytes) -> Any:
    """The row that a document holds by the schema of the test above, or None."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    def is_small(value: Any) -> bool:
        whole = type(value) is dict and value.keys() <= {"a", "b"}
        return value is None or (
            whole and type(value.get("a", 1)) in {int, type(None)} and type(value.get("b", "")) in {str, type(None)}
        )

    try:
        row = json.loads(document.decode(), object_pairs_hook=unique)
    except ValueError:
        return None
    if type(row) is not dict or not row.keys() <= {"a", "b", "a:"} or not is_small(row.get("a")):
        return None
    counts = row.get("a:") or {}
    if type(row.get("b", "")) not in {str, type(None)} or type(row.get("a:", counts)) not in {dict, type(None)}:
        return None
    return row if all(type(count) in {int, type(None)} for count in counts.values()) else None


# --- many calls -----------------------------------------------------------------------------------------------------


def test_calls_of_all_kinds_become_one_table_in_order() -> None:
    table = pa.table({"id": [4, 5]})
    result = convert(
        {"id": 0},
        [{"id": 1}, {"id": 2}],
        b'{"id":3}',
        table,
        *table.to_batches(),
        [b'{"id":6}', b'{"id":7}'],
        [],
        {"id": 8},
    )
    assert result.table.column("id").to_pylist() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert result.rows == [1, 2, 1, 2, 2, 2, 0, 1]
    assert result.failures == {}
    assert result.table.schema == SCHEMA


def test_no_calls_give_an_empty_table() -> None:
    for calls in ([], [[]], [pa.table({"id": pa.array([], pa.int32())})]):
        result = convert(*calls)
        assert (result.table.num_rows, result.table.schema, result.rows) == (0, SCHEMA, [0] * len(calls))


def test_call_with_one_wrong_row_fails_as_a_whole() -> None:
    rows = [{"id": i} for i in range(10_000)]
    rows[9_999] = {"id": "x"}
    assert fail(rows) == "row 9999, column id: expected int32 not null, found str 'x'"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["dict", "dicts", "document", "documents", "arrow"]), st.booleans()), max_size=40
    )
)
def test_exactly_the_calls_at_fault_fail(kinds: list[tuple[str, bool]]) -> None:
    calls: list[Any] = []
    for i, (kind, good) in enumerate(kinds):
        row: dict[str, Any] = {"id": i} if good else {"id": i, "tiny": 1000}
        forms: dict[str, Any] = {
            "dict": row,
            "dicts": [{"id": i}, row],
            "document": json.dumps(row).encode(),
            "documents": [json.dumps(row).encode()],
            "arrow": pa.table({name: [value] for name, value in row.items()}),
        }
        calls.append(forms[kind])
    result = convert(*calls)
    assert set(result.failures) == {i for i, (_, good) in enumerate(kinds) if not good}
    assert result.rows == [(1 + (kind == "dicts")) * good for kind, good in kinds]
    expected = [i for i, (kind, good) in enumerate(kinds) for _ in range(1 + (kind == "dicts")) if good]
    assert result.table.column("id").to_pylist() == expected


def test_one_call_at_fault_among_many_thousands_is_found() -> None:
    for calls in ([{"id": i} for i in range(20_000)], [b'{"id":%d}' % i for i in range(20_000)]):
        at_fault: list[Any] = list(calls)
        at_fault[12_345] = type(calls[0])()  # an empty dict, an empty document
        result = convert(*at_fault)
        assert list(result.failures) == [12_345]
        assert result.table.column("id").to_pylist() == [i for i in range(20_000) if i != 12_345]


def test_many_small_calls_make_few_chunks() -> None:
    batch = pa.record_batch({"id": pa.array([1], pa.int32())})
    assert convert(*[batch] * 5000).table.column("id").num_chunks == 1


def test_a_thousand_columns_convert_in_any_order_of_keys() -> None:
    names = [f"Spalte ä {i}" for i in range(1000)]
    converter = RowConverter(pa.schema([pa.field(name, pa.int64()) for name in names]))
    rows = [{name: i for i, name in enumerate(order)} for order in (names, sorted(names), names[::-1], names[500:501])]
    expected = [{name: row.get(name) for name in names} for row in rows]
    assert converter.convert(rows).table.to_pylist() == expected
    documents = [json.dumps(row).encode() for row in rows]
    assert converter.convert(documents).table.to_pylist() == expected
    for document, row in zip(documents, expected, strict=True):
        assert converter.convert([document]).table.to_pylist() == [row]


def test_wide_document_that_is_no_object_fails_alone() -> None:
    converter = RowConverter(pa.schema([pa.field(f"c{i}", pa.int64()) for i in range(100)]))
    assert list(converter.convert([b"[1]", b'{"c5":1}', b"{"]).failures) == [0, 2]


def test_value_that_cannot_be_shown_still_names_its_column() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    assert fail({"id": Shy()}) == "row 0, column id: expected int32 not null, found Shy …"


def test_whatever_a_callers_class_raises_fails_its_own_call() -> None:
    class Broken(tzinfo):
        def utcoffset(self, _: datetime | None) -> timedelta | None:
            raise KeyError("no such zone")

    assert fail([{"id": 1}, {"id": 1, "at": NOON.replace(tzinfo=Broken())}]).endswith("'no such zone'")


@pytest.mark.parametrize("column", ["id", "large", "double", "price", "other"])
def test_number_of_many_digits_fails_its_own_call(column: str) -> None:
    assert fail(b'{"id":1,"%s":%s}' % (column.encode(), b"9" * 10_000)).startswith("row 0, ")


def test_long_value_is_shortened_in_the_message() -> None:
    assert len(fail({"id": "x" * 1_000_000})) < 200


def test_call_that_was_converted_to_another_schema_is_checked_again() -> None:
    wanted = check_schema(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]))
    narrower, other = pa.table({"id": pa.array([1], pa.int32())}), pa.table({"price": [2]})
    found = RowConverter(wanted).convert([Fitted(narrower), Fitted(other)])
    assert found.table.to_pylist() == [{"id": 1, "text": None}]
    assert found.rows == [1, 0]
    assert "price" in str(found.failures[1])


def test_rows_of_tables_without_columns_are_counted_as_often_as_they_are_stored() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    schema = check_schema(pa.schema([pa.field("id", pa.int64())]))
    found = RowConverter(schema).convert([batch, pa.Table.from_batches([batch])])
    assert found.rows == [3, 3]
    assert found.table["id"].to_pylist() == [None] * 6
