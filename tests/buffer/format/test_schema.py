"""Schemas of typed buffers: which are taken, how they may change, how rows show in another version, their bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_data import PLAIN, every_schema

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.format.schema import (
    MAX_DEPTH,
    RESERVED,
    SchemaChange,
    check_schema,
    compare_schemas,
    decode_schema,
    encode_schema,
    present,
    widen,
)

WHERE = "schemas/0123"


def one(kind: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("a", kind, nullable=nullable)])


def nest(kind: pa.DataType, levels: int) -> pa.DataType:
    for _ in range(levels):
        kind = pa.list_(pa.field("element", kind))
    return kind


# --- which schemas are taken ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_type_that_spark_reads_is_kept(kind: pa.DataType) -> None:
    assert check_schema(one(kind, nullable=False)) == one(kind, nullable=False)


@pytest.mark.parametrize(
    ("given_type", "normal"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.timestamp("s", "UTC"), pa.timestamp("ms", "UTC")),
        (pa.date64(), pa.date32()),
        (pa.decimal256(20, 3), pa.decimal128(20, 3)),
        (pa.large_list(pa.int8()), pa.list_(pa.int8())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_view(pa.large_string()), pa.list_(pa.string())),
        (pa.map_(pa.string(), pa.large_string(), keys_sorted=True), pa.map_(pa.string(), pa.string())),
    ],
    ids=str,
)
def test_type_that_parquet_gives_back_as_another_is_normalised_to_that(
    given_type: pa.DataType, normal: pa.DataType
) -> None:
    assert check_schema(one(given_type)).field("a").type == normal


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.timestamp("ns"), r"use timestamp\[us\]"),
        (pa.timestamp("ns", "UTC"), r"use timestamp\[us, tz=UTC\]"),
        (pa.timestamp("us", "Nowhere/Land"), "'Nowhere/Land' is not a time zone"),
        (pa.time32("ms"), "use int64 or string"),
        (pa.time64("us"), "use int64 or string"),
        (pa.duration("us"), "use int64"),
        (pa.month_day_nano_interval(), "use int64"),
        (pa.float16(), "use float"),
        (pa.null(), "give it the type"),
        (pa.struct([]), "it has no fields"),
        (pa.decimal256(39, 2), "at most 38 digits"),
        (pa.decimal128(10, -2), "scale from 0"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "run_end_encoded"),
        (pa.sparse_union([pa.field("x", pa.int8())]), "sparse_union"),
        (pa.uuid(), "use the type that it is stored as"),
        (pa.map_(pa.float64(), pa.int8()), "keys of a map must be strings or integers, not double"),
        (pa.dictionary(pa.int8(), pa.time32("s")), "use int64 or string"),
    ],
    ids=str,
)
def test_type_that_spark_does_not_read_is_refused_and_says_what_to_use(kind: pa.DataType, said: str) -> None:
    for schema, path in ((one(kind), "a"), (one(pa.list_(pa.struct([pa.field("x", kind)]))), "a.element.x")):
        with pytest.raises(InvalidInput, match=f"column {path}.*: .*{said}"):
            check_schema(schema)


@pytest.mark.parametrize("name", [*RESERVED, "_Sequence"])
def test_name_that_readers_add_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"column {name}: readers add"):
        check_schema(pa.schema([pa.field(name, pa.int8())]))


def test_reserved_name_inside_a_struct_is_taken() -> None:
    assert check_schema(one(pa.struct([pa.field("_index", pa.int8())])))


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("a", "A"), ("Straße", "STRASSE"), ("é", "É")],
    ids=["same", "case", "eszett", "accent"],
)
def test_names_that_do_not_differ_beyond_case_are_refused_at_every_depth(first: str, second: str) -> None:
    clash = [pa.field(first, pa.int8()), pa.field(second, pa.int8())]
    for schema in (pa.schema(clash), one(pa.struct(clash)), one(pa.map_(pa.string(), pa.struct(clash)))):
        with pytest.raises(InvalidInput, match=f"{second}: the name is there"):
            check_schema(schema)


def test_schema_without_columns_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no columns"):
        check_schema(pa.schema([]))


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a\nb", "\0"])
def test_name_that_json_would_escape_is_refused_at_every_depth(name: str) -> None:
    clash = pa.field(name, pa.int8())
    for schema in (pa.schema([clash]), one(pa.struct([clash]))):
        with pytest.raises(InvalidInput, match="nor have a quote, a backslash or a control character"):
            check_schema(schema)


def test_schema_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"pyarrow\.Schema or a class with fields, not dict"):
        check_schema({"a": "int64"})  # type: ignore[arg-type]


def test_types_may_be_nested_only_so_deep() -> None:
    check_schema(one(nest(pa.int8(), MAX_DEPTH)))
    with pytest.raises(InvalidInput, match=f"nested {MAX_DEPTH} deep at most"):
        check_schema(one(nest(pa.struct([pa.field("x", pa.int8())]), MAX_DEPTH + 1)))


def test_metadata_of_schema_and_fields_is_dropped() -> None:
    field = pa.field("a", pa.int8(), metadata={"PARQUET:field_id": "7"})
    normal = check_schema(pa.schema([field], metadata={"pandas": "{}"}))
    assert normal.metadata is None
    assert normal.field("a").metadata is None


def test_thousands_of_columns_with_any_name_are_taken() -> None:
    schema = pa.schema([pa.field(f"Größe {i} 🌍.`,;{{}}()=", pa.int64()) for i in range(2000)])
    assert check_schema(schema) == schema


@settings(max_examples=50, deadline=None)
@given(every_schema)
def test_normal_form_is_what_plain_parquet_gives_back(schema: pa.Schema) -> None:
    normal = check_schema(schema)
    assert check_schema(normal).equals(normal)
    sink = pa.BufferOutputStream()
    pq.write_table(normal.empty_table(), sink, store_schema=False)
    found = pq.read_schema(pa.BufferReader(sink.getvalue()))
    assert present(found.empty_table(), normal).schema.equals(normal)
    if "Europe/Berlin" not in str(normal):  # Parquet keeps no other zone than UTC
        assert found.equals(normal)


# --- how a schema may change ----------------------------------------------------------------------------------------

WIDENED = [
    *((pa.int8(), wide) for wide in (pa.int16(), pa.int32(), pa.int64(), pa.float64())),
    *((pa.int16(), wide) for wide in (pa.int32(), pa.int64(), pa.float64())),
    *((pa.int32(), wide) for wide in (pa.int64(), pa.float64())),
    *((pa.uint8(), wide) for wide in (pa.uint16(), pa.uint32(), pa.int16(), pa.int32(), pa.int64())),
    *((pa.uint16(), wide) for wide in (pa.uint32(), pa.int32(), pa.int64())),
    *((pa.uint32(), pa.int64()), (pa.float32(), pa.float64()), (pa.decimal128(5, 2), pa.decimal128(9, 2))),
]
LARGEST = {
    pa.int8(): 127,
    pa.int16(): 2**15 - 1,
    pa.int32(): 2**31 - 1,
    pa.uint8(): 255,
    pa.uint16(): 2**16 - 1,
    pa.uint32(): 2**32 - 1,
}


@pytest.mark.parametrize(("old", "new"), WIDENED, ids=str)
def test_type_widens_at_every_depth_and_its_values_stay(old: pa.DataType, new: pa.DataType) -> None:
    for around in (lambda kind: kind, lambda kind: pa.list_(pa.struct([pa.field("x", kind)]))):
        before, after = check_schema(one(around(old))), check_schema(one(around(new)))
        (change,) = compare_schemas(before, after)
        assert (change.kind, change.old, change.new, change.evolves) == ("widened", str(old), str(new), True)
        assert widen(before, after) == after
    value = LARGEST.get(old, 1)
    shown = present(pa.table({"a": pa.array([value, None], old)}), one(new))
    assert shown.column("a").to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((wide, narrow) for narrow, wide in WIDENED),
        *(
            (pa.int64(), pa.float64()),
            (pa.uint32(), pa.float64()),
            (pa.uint32(), pa.uint64()),
            (pa.int16(), pa.float32()),
        ),
        *((pa.int64(), pa.string()), (pa.string(), pa.binary()), (pa.bool_(), pa.int8()), (pa.uint8(), pa.int8())),
        *((pa.timestamp("us"), pa.timestamp("us", "UTC")), (pa.timestamp("ms"), pa.timestamp("us"))),
        *((pa.decimal128(5, 2), pa.decimal128(9, 3)), (pa.int8(), pa.list_(pa.field("element", pa.int8())))),
        *((pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int16(), pa.int8())), (pa.binary(2), pa.binary(3))),
    ],
    ids=str,
)
def test_type_that_does_not_hold_the_old_values_is_refused_and_both_are_named(
    old: pa.DataType, new: pa.DataType
) -> None:
    before, after = check_schema(one(old)), check_schema(one(new))
    (change,) = compare_schemas(before, after)
    assert (change.path, change.kind, change.old, change.new) == ("a", "incompatible", str(old), str(new))
    with pytest.raises(InvalidInput) as caught:
        widen(before, after)
    assert f"column a: incompatible, {old} to {new}" in str(caught.value)


def test_new_nullable_columns_come_last_and_missing_ones_stay() -> None:
    old = pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    new = pa.schema([pa.field("c", pa.int8()), pa.field("b", pa.string())])
    assert compare_schemas(old, new) == [
        SchemaChange("a", "missing", "int8", ""),
        SchemaChange("c", "added", "", "int8"),
    ]
    assert widen(old, new).names == ["a", "b", "c"]


def test_order_of_columns_is_no_change() -> None:
    old = pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    assert compare_schemas(old, pa.schema([old.field("b"), old.field("a")])) == []


def test_fields_of_nested_structs_follow_the_same_rules() -> None:
    def shape(*fields: pa.Field) -> pa.Schema:
        return check_schema(one(pa.map_(pa.string(), pa.list_(pa.struct(list(fields))))))

    old = shape(pa.field("x", pa.int8()), pa.field("gone", pa.string()))
    new = shape(pa.field("y", pa.bool_()), pa.field("x", pa.int64()))
    path = "a.value.element"
    assert compare_schemas(old, new) == [
        SchemaChange(f"{path}.x", "widened", "int8", "int64"),
        SchemaChange(f"{path}.gone", "missing", "string", ""),
        SchemaChange(f"{path}.y", "added", "", "bool"),
    ]
    assert widen(old, new) == shape(pa.field("x", pa.int64()), pa.field("gone", pa.string()), pa.field("y", pa.bool_()))


@pytest.mark.parametrize(
    ("old", "new", "path", "why"),
    [
        ([("a", True)], [("a", True), ("b", False)], "b", "must be nullable"),
        ([("a", True), ("b", False)], [("a", True)], "b", "every row has it"),
        ([("a", True)], [("a", False)], "a", "rows without a value may already be there"),
        ([("a", True)], [("a", True), ("A", True)], "A", "differs from a only in case"),
    ],
)
def test_change_that_old_or_new_rows_would_break_is_refused(
    old: list[tuple[str, bool]], new: list[tuple[str, bool]], path: str, why: str
) -> None:
    before, after = (pa.schema([pa.field(n, pa.int8(), nullable=nullable) for n, nullable in s]) for s in (old, new))
    (change,) = compare_schemas(before, after)
    assert (change.path, change.kind) == (path, "incompatible")
    with pytest.raises(InvalidInput, match=f"column {path}: incompatible, int8.*{why}"):
        widen(before, after)


def test_required_column_may_become_nullable() -> None:
    old, new = one(pa.int8(), nullable=False), one(pa.int8())
    assert compare_schemas(old, new) == [SchemaChange("a", "nullability", "int8 not null", "int8")]
    assert widen(old, new) == new


def test_many_incompatible_columns_are_counted_and_only_some_named() -> None:
    old = pa.schema([pa.field(f"c{i}", pa.int8()) for i in range(1500)])
    new = pa.schema([pa.field(f"c{i}", pa.string()) for i in range(1500)])
    with pytest.raises(InvalidInput, match=r"c4.*and 1495 more"):
        widen(old, new)


@settings(max_examples=60, deadline=None)
@given(every_schema, every_schema)
def test_widened_schema_takes_the_rows_of_both(old: pa.Schema, new: pa.Schema) -> None:
    old, new = check_schema(old), check_schema(new)
    assert compare_schemas(old, old) == []
    try:
        wider = widen(old, new)
    except InvalidInput:
        assert any(change.kind == "incompatible" for change in compare_schemas(old, new))
        return
    assert check_schema(wider) == wider
    assert {change.kind for change in compare_schemas(wider, new)} <= {"missing"}
    assert present(old.empty_table(), wider).schema == wider


# --- rows of one version in another ---------------------------------------------------------------------------------


def test_rows_that_have_the_schema_are_not_copied() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert present(table, table.schema) is table
    wider = present(table, table.schema.append(pa.field("c", pa.list_(pa.int8()))))
    assert wider.column("b").chunk(0).buffers()[2].address == table.column("b").chunk(0).buffers()[2].address
    assert wider.column("c").to_pylist() == [None, None]


def test_columns_that_are_not_asked_for_are_left_out_at_every_depth() -> None:
    table = pa.table({"a": [{"x": 1, "y": 2}, None], "b": [1, 2]})
    asked = one(pa.struct([pa.field("y", pa.int64())]))
    assert present(table, asked).to_pylist() == [{"a": {"y": 2}}, {"a": None}]


def test_nested_rows_show_new_fields_as_null_and_wider_types() -> None:
    old = pa.list_(pa.struct([pa.field("x", pa.int8()), pa.field("m", pa.map_(pa.string(), pa.float32()))]))
    new = pa.list_(
        pa.struct(
            [pa.field("new", pa.string()), pa.field("m", pa.map_(pa.string(), pa.float64())), pa.field("x", pa.int64())]
        )
    )
    rows = [[{"x": 1, "m": [("k", 0.5)]}, None], None, [], [{"x": None, "m": None}]]
    table = pa.table({"a": pa.array(rows, old)}).slice(1)
    assert present(table, one(new)).column("a").to_pylist() == [
        None,
        [],
        [{"new": None, "m": None, "x": None}],
    ]
    assert present(pa.table({"a": pa.array(rows, old)}), one(new)).column("a").to_pylist()[0] == [
        {"new": None, "m": [("k", 0.5)], "x": 1},
        None,
    ]


def test_narrower_type_is_shown_if_every_value_fits() -> None:
    table = pa.table({"a": [1, 300]})
    assert present(table.slice(0, 1), one(pa.int8())).column("a").to_pylist() == [1]
    with pytest.raises(InvalidInput, match=r"column a: expected int8, found int64: .*300"):
        present(table, one(pa.int8()))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([0], pa.timestamp("us")), pa.date32()),
        (pa.array(["a"]), pa.binary()),
    ],
    ids=str,
)
def test_rows_are_not_shown_in_a_type_of_another_kind(values: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="column a: expected"):
        present(pa.table({"a": values}), one(kind))


def test_required_column_that_rows_lack_or_leave_null_is_refused() -> None:
    for table in (pa.table({"b": [1]}), pa.table({"a": pa.array([None], pa.int8())})):
        with pytest.raises(InvalidInput, match="column a"):
            present(table, one(pa.int8(), nullable=False))


def test_required_field_below_a_null_struct_is_no_null() -> None:
    table = pa.table({"a": pa.array([{"x": 1}, None])})
    kind = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    assert present(table, one(kind)).column("a").to_pylist() == [{"x": 1}, None]
    with pytest.raises(InvalidInput, match=r"column a.x: expected int64 not null, found null"):
        present(pa.table({"a": pa.array([{"x": None}, None], pa.struct([pa.field("x", pa.int64())]))}), one(kind))


def test_zone_of_a_column_is_that_of_the_schema() -> None:
    table = pa.table({"a": pa.array([0], pa.timestamp("us", "UTC"))})
    shown = present(table, one(pa.timestamp("us", "Europe/Berlin")))
    assert shown.column("a")[0].as_py().isoformat() == "1970-01-01T01:00:00+01:00"


# --- bytes ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(every_schema)
def test_schema_comes_back_from_its_bytes(schema: pa.Schema) -> None:
    schema = check_schema(schema)
    data = encode_schema(schema)
    assert decode_schema(data, WHERE).equals(schema)
    assert encode_schema(decode_schema(data, WHERE)) == data
    assert json.loads(data)["columns"][0]["name"] == schema.names[0]


def test_bytes_of_a_schema_never_change() -> None:
    schema = check_schema(
        pa.schema(
            [
                pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
                pa.field("price", pa.decimal128(10, 2)),
                pa.field("tags", pa.map_(pa.string(), pa.list_(pa.struct([pa.field("id", pa.binary(4))])))),
            ],
            metadata={"pandas": "{}"},
        )
    )
    assert encode_schema(schema) == (
        b'{"version":1,"crc32c":254537015,"columns":[{"name":"at","type":{"type":"timestamp","unit":"us","zone":"UTC"},'
        b'"nullable":false},{"name":"price","type":{"type":"decimal","precision":10,"scale":2},"nullable":true},'
        b'{"name":"tags","type":{"type":"map","key":"string","value":{"type":"list","element":{"type":"struct","fields":['
        b'{"name":"id","type":{"type":"fixed","width":4},"nullable":true}]},"nullable":true},"nullable":true},'
        b'"nullable":true}]}'
    )


def encode_raw(columns: Any, **other: Any) -> bytes:
    """Bytes with a right checksum, whatever the columns are."""
    from forebay.buffer.format.checksum import crc32c

    body = json.dumps(columns, separators=(",", ":")).encode()
    head = {"version": 1, "crc32c": crc32c(body), **other}
    return json.dumps(head).encode()[:-1] + b',"columns":' + body + b"}"


def column(kind: Any, name: str = "a") -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True}


def deep(levels: int) -> Any:
    kind: Any = "int8"
    for _ in range(levels):
        kind = {"type": "list", "element": kind, "nullable": True}
    return kind


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        encode_raw([]),
        encode_raw({}),
        encode_raw([column("int8")], version=2),
        encode_raw([column("int8")], more=1),
        encode_raw([column("int7")]),
        encode_raw([column("time32")]),
        encode_raw([column("int8"), column("int8")]),
        encode_raw([column("int8"), column("int8", "A")]),
        encode_raw([column("int8", "")]),
        encode_raw([{**column("int8"), "more": 1}]),
        encode_raw([column({"type": "decimal", "precision": 99, "scale": 0})]),
        encode_raw([column({"type": "decimal", "precision": 2**70, "scale": 0})]),
        encode_raw([column({"type": "decimal", "precision": 5, "scale": -1})]),
        encode_raw([column({"type": "fixed", "width": 0})]),
        encode_raw([column({"type": "fixed", "width": -5})]),
        encode_raw([column({"type": "fixed", "width": 2**40})]),
        encode_raw([column({"type": "timestamp", "unit": "ns", "zone": None})]),
        encode_raw([column({"type": "struct", "fields": []})]),
        encode_raw([column({"type": "map", "key": "double", "value": "int8", "nullable": True})]),
        encode_raw([column(deep(MAX_DEPTH + 2))]),
        encode_raw([column(deep(300))]),
    ],
    ids=range(25),
)
def test_bytes_that_hold_no_schema_of_a_buffer_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=f"^{WHERE}: "):
        decode_schema(data, WHERE)


def test_raw_bytes_of_these_tests_are_those_of_a_schema() -> None:
    assert decode_schema(encode_raw([column("int8")]), WHERE) == one(pa.int8())
    assert decode_schema(encode_raw([column(deep(MAX_DEPTH))]), WHERE)


def test_schema_with_a_damaged_byte_is_corrupt() -> None:
    data = encode_schema(one(pa.int32()))
    with pytest.raises(Corrupt, match="checksum"):
        decode_schema(data.replace(b"int32", b"int64"), WHERE)


def test_zone_that_is_unknown_here_is_no_damage() -> None:
    kind = {"type": "timestamp", "unit": "us", "zone": "Mars/Olympus"}
    assert decode_schema(encode_raw([column(kind)]), WHERE).field("a").type.tz == "Mars/Olympus"


@settings(max_examples=300, deadline=None)
@given(every_schema, st.data())
def test_changed_bytes_are_corrupt_or_the_same_schema(schema: pa.Schema, data: st.DataObject) -> None:
    good = encode_schema(check_schema(schema))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]
    with suppress(Corrupt):
        assert decode_schema(bad, WHERE).equals(check_schema(schema))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["int8", "list", "struct", "us", "a", "timestamp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "type", "nullable", "fields", "element", "key", "value", "unit", "zone", "width", "scale"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(json_values, max_size=2) | json_values)
def test_forged_columns_with_a_right_checksum_are_a_schema_or_corrupt(columns: Any) -> None:
    with suppress(Corrupt):
        schema = decode_schema(encode_raw(columns), WHERE)
        assert check_schema(schema).equals(schema)


RACE = textwrap.dedent("""
    import sys
    import threading

    import pyarrow as pa

    from forebay.buffer.format.schema import decode_schema, encode_schema

    sys.setswitchinterval(1e-6)
    inner = pa.struct([pa.field("b", pa.int64())])
    data = encode_schema(pa.schema([pa.field("a", pa.list_(pa.field("element", inner)))]))
    start = threading.Barrier(16)


    def read():
        start.wait()
        assert decode_schema(data, "here").names == ["a"]


    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
""")


def test_threads_that_read_the_first_schema_at_once_do_not_crash_the_process() -> None:
    """In processes of their own: msgspec dereferences a null pointer where nothing prevents it, in one run of three."""
    running = [subprocess.Popen([sys.executable, "-c", RACE]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
