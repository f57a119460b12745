"""Column types as text: what is accepted, what errors say, and that text and type go back and forth."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.schema import check_schema
from forebay.buffer.format.type_names import format_fields, format_type, parse_fields, parse_type, read_schema_file

UNITS = st.sampled_from(["s", "ms", "us", "ns"])
LEAVES = st.one_of(
    st.sampled_from(
        [
            pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float32(),
            pa.float64(), pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(),
            pa.binary_view(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
            pa.time64("ns"), pa.month_day_nano_interval(), pa.dictionary(pa.int8(), pa.string(), ordered=True),
        ]
    ),
    st.builds(pa.timestamp, UNITS, st.sampled_from([None, "UTC", "Europe/Berlin", "+01:00"])),
    st.builds(pa.duration, UNITS),
    st.builds(pa.binary, st.integers(0, 1000)),
    st.builds(pa.decimal32, st.integers(1, 9), st.integers(-5, 9)),
    st.builds(pa.decimal64, st.integers(1, 18), st.integers(-5, 9)),
    st.builds(pa.decimal128, st.integers(1, 38), st.integers(-5, 38)),
    st.builds(pa.decimal256, st.integers(1, 76), st.integers(-5, 38)),
)  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)


def make_field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, kind, nullable=nullable or pa.types.is_null(kind))


def nested(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(make_field, NAMES, children, st.booleans())
    return st.one_of(
        st.builds(pa.list_, fields),
        st.builds(pa.large_list, fields),
        st.builds(pa.list_view, fields),
        st.builds(pa.large_list_view, fields),
        st.builds(pa.list_, fields, st.integers(0, 9)),
        st.builds(pa.struct, st.lists(fields, max_size=3)),
        st.builds(pa.map_, LEAVES.filter(lambda kind: kind != pa.null()), children),
    )


PRINTED = [
    pa.list_,
    pa.large_list,
    lambda kind: pa.struct([("a b", kind), ("_c", kind)]),
    partial(pa.map_, pa.string()),
]
TYPES = st.recursive(LEAVES, nested, max_leaves=6)


@given(TYPES)
def test_every_type_comes_back_from_its_text(kind: pa.DataType) -> None:
    assert parse_type(format_type(kind)).equals(kind, check_metadata=True)


@given(st.recursive(LEAVES, lambda children: st.one_of(*(st.builds(make, children) for make in PRINTED)), max_leaves=6))
def test_text_that_arrow_prints_is_accepted(kind: pa.DataType) -> None:
    assert parse_type(str(kind)).equals(kind)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("list<int64>", pa.list_(pa.int64())),
        (" list < item : int64 > ", pa.list_(pa.int64())),
        ("decimal(9,2)", pa.decimal128(9, 2)),
        ("float64", pa.float64()),
        ("utf8", pa.string()),
        ("date32[day]", pa.date32()),
        ("timestamp[us,tz=UTC]", pa.timestamp("us", "UTC")),
        ("struct<>", pa.struct([])),
        ("map<string, list<int64>>", pa.map_(pa.string(), pa.list_(pa.int64()))),
        (
            "struct<id: int64 not null, `a:b`: struct<c d: list<double>>>",
            pa.struct(
                [
                    pa.field("id", pa.int64(), nullable=False),
                    ("a:b", pa.struct([("c d", pa.list_(pa.float64()))])),
                ]
            ),
        ),
    ],
)
def test_spellings_that_people_use_are_accepted(text: str, kind: pa.DataType) -> None:
    assert parse_type(text).equals(kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "position 1 of '': a type is missing; use a type such as bool, int8"),
        ("in64", "position 1 of 'in64': 'in64' is not a type; use a type such as"),
        ("list<in64>", "position 6 of 'list<in64>': 'in64' is not a type"),
        ("list<int64", "position 11 of 'list<int64': '>' is missing"),
        ("list", "position 5 of 'list': '<' is missing"),
        ("int64>", "position 6 of 'int64>': the type should end here"),
        ("timestamp", r"position 10 of 'timestamp': '\[' is missing"),
        ("timestamp[m]", "position 11 of .*: the unit of timestamp is s or ms or us or ns, not 'm'"),
        ("timestamp[us, UTC]", "position 15 of .*: 'tz' is missing"),
        ("decimal128(99, 2)", "position 12 of .*: precision should be between 1 and 38"),
        ("decimal128(x)", "position 12 of .*: a number is wanted"),
        ("struct<int64>", r"position 8 of .*: a name and a colon are wanted"),
        ("struct<a: int64 b: int64>", "position 17 of .*: ',' is missing"),
        ("fixed_size_binary[-1]", "position 19 of .*: a length cannot be negative"),
        ("dictionary<values=string, indices=string, ordered=0>", "position 35 of .*: indices of a dictionary"),
        ("struct<a: null not null>", "position 15 of .*: the type null holds only null"),
        ("map<null, int8>", "position 5 of .*: the key of a map is never null"),
        ("list<" * 200, "types are nested more than 100 deep"),
    ],
)
def test_text_that_names_no_type_is_refused_with_the_position(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_type(text)


@given(st.text(alphabet="listruc<>: ,`[]()map0128", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        kind = parse_type(text)
    except InvalidInput:
        return
    assert isinstance(kind, pa.DataType)


@pytest.mark.parametrize("kind", [pa.run_end_encoded(pa.int32(), pa.int8()), pa.dense_union([]), pa.uuid()])
def test_type_without_a_text_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="cannot be written as text"):
        format_type(kind)


def test_columns_keep_their_order_and_may_forbid_null() -> None:
    schema = parse_fields({"user": "int64 not null", "at": "timestamp[us, tz=UTC]", "tags": "list<string>"})
    assert schema == pa.schema(
        [
            pa.field("user", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    )


def test_error_in_a_column_names_the_column() -> None:
    with pytest.raises(InvalidInput, match="column tags: position 6 of 'list<txt>': 'txt' is not a type"):
        parse_fields({"user": "int64", "tags": "list<txt>"})
    with pytest.raises(InvalidInput, match="column user: the type must be text such as 'int64', not 64"):
        parse_fields({"user": 64})  # type: ignore[dict-item]


SCHEMA = pa.schema(
    [
        pa.field("user", pa.int64(), nullable=False),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(9, 2))]))),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
COLUMNS = {
    "user": "int64 not null",
    "items": "list<struct<sku: string, price: decimal128(9, 2)>>",
    "at": "timestamp[us, tz=UTC]",
}


def write_schema(path: Path) -> None:
    match path.suffix:
        case ".toml":
            path.write_text("".join(f'{name} = "{kind}"\n' for name, kind in COLUMNS.items()))
        case ".json":
            path.write_text(json.dumps(COLUMNS))
        case ".parquet":
            pq.write_table(SCHEMA.with_metadata({"pandas": "{}"}).empty_table(), path)
        case ".arrow":
            with pa.ipc.new_file(path, SCHEMA):
                pass
        case ".arrows":
            with pa.ipc.new_stream(path, SCHEMA):
                pass


@pytest.mark.parametrize("suffix", [".toml", ".json", ".parquet", ".arrow", ".arrows"])
def test_schema_is_read_from_files_that_people_have(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"orders{suffix}"
    write_schema(path)
    found = read_schema_file(path)
    assert found.equals(SCHEMA)
    assert found.metadata is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "user = ", "a.toml holds no schema: "),
        ("a.toml", "", "a.toml holds no schema: there are no columns"),
        ("a.toml", 'user = "in64"', "a.toml holds no schema: column user: position 1"),
        ("a.json", "[1]", "a.json holds no schema: there are no columns"),
        ("a.parquet", "text", "a.parquet holds no schema: "),
        ("a.arrow", "text", "a.arrow holds no schema: "),
        ("a.avsc", "{}", "a.avsc holds no schema: its name must end with .toml, .json, .parquet or .arrow"),
    ],
)
def test_file_without_a_schema_is_refused_by_its_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_schema_file(path)


def test_schema_in_normal_form_is_the_same_after_it_was_text() -> None:
    schema = check_schema(
        pa.schema(
            [pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.struct([("a", pa.int8())])))]
        )
    )
    columns = format_fields(schema)
    assert columns == {"id": "int64 not null", "tags": "list<struct<a: int8>>"}
    assert check_schema(parse_fields(columns)).equals(schema)
