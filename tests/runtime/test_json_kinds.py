"""Values of the wrong kind: what this finds, Arrow's reader refuses too, so no good entry is put aside."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.runtime.json_kinds import find_wrong_kinds

LEAVES = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.binary(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.date32(), pa.time64("us"),
    pa.duration("s"),
]  # fmt: skip
TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda children: st.one_of(
        st.builds(pa.list_, children), st.builds(lambda kind: pa.struct([("a", kind), ("b", pa.int64())]), children)
    ),
    max_leaves=3,
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-300, 300),
        st.floats(allow_nan=False),
        st.sampled_from([1.0, 1e3, 0.0, -0.0, 2**63, 2**64, 10**30]),
        st.text(max_size=3),
        st.sampled_from(["2026-01-31T12:00:00Z", "1.25"]),
    ),
    lambda children: st.one_of(st.lists(children, max_size=2), st.dictionaries(st.sampled_from("abc"), children)),
    max_leaves=4,
)


@given(TYPES, VALUES, st.booleans())
def test_entry_that_is_found_is_refused_by_arrow(kind: pa.DataType, value: Any, nullable: bool) -> None:
    schema = pa.schema([pa.field("x", kind, nullable=nullable or pa.types.is_null(kind))])
    entry = json.dumps({"x": value}).encode()
    if not find_wrong_kinds([entry], schema):
        return
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        pj.read_json(pa.BufferReader(entry), parse_options=options)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("int64", '"7"', "column x: expected a number (int64), found text"),
        ("int64", "true", "column x: expected a number (int64), found true or false"),
        ("int64", "1.5", "column x: expected int64, found 1.5"),
        ("int8", "300", "column x: expected int8, found 300"),
        ("uint8", "-1", "column x: expected uint8, found -1"),
        ("string", "7", "column x: expected text (string), found a number"),
        ("bool_", "0", "column x: expected true or false (bool), found a number"),
    ],
)
def test_reason_says_what_is_there_and_what_is_wanted(kind: str, value: str, reason: str) -> None:
    schema = pa.schema([("x", getattr(pa, kind)())])
    assert find_wrong_kinds([b"{}", f'{{"x": {value}}}'.encode()], schema) == {1: reason}


def test_place_in_nested_values_is_named() -> None:
    schema = pa.schema([("items", pa.list_(pa.struct([("sku", pa.string())])))])
    entries = [b'{"items": [{"sku": "a"}, null, {"sku": 1}]}', b'{"items": {"sku": "a"}}', b'{"items": [[]]}']
    kind = schema.field("items").type
    assert find_wrong_kinds(entries, schema) == {
        0: "column items[].sku: expected text (string), found a number",
        1: f"column items: expected a list ({kind}), found an object",
        2: f"column items[]: expected an object ({kind.value_type}), found a list",
    }


def test_entries_that_are_no_json_are_left_to_the_parser() -> None:
    entries = [b'{"x": ', b"\xff", b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"]
    assert find_wrong_kinds(entries, pa.schema([("x", pa.int64())])) == {}
