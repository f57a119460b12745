"""Rows as JSON: what a producer of the same schema takes back as it was."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_data import every_schema, rows_of

from forebay.buffer.format.json_rows import rows_as_json
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.format.schema import check_schema

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@given(st.data())
@settings(max_examples=100)
def test_producer_takes_back_every_row_as_it_was(data: st.DataObject) -> None:
    schema = check_schema(data.draw(every_schema))
    converter = RowConverter(schema)
    given_rows = converter.convert([data.draw(st.lists(rows_of(list(schema)), min_size=1, max_size=5))])
    assert not given_rows.failures

    taken_back = converter.convert(rows_as_json(given_rows.table))

    assert not taken_back.failures
    assert taken_back.table.equals(given_rows.table)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (b"\xff", pa.binary(), "/w=="),
        (NOON, pa.timestamp("us", "Europe/Berlin"), "2026-01-31T12:00:00.000000Z"),
        (NOON.replace(tzinfo=None), pa.timestamp("s"), "2026-01-31T12:00:00"),
        (-(10**17), pa.timestamp("us"), "-1199-02-15T14:13:20.000000"),
        (10**7, pa.date32(), "29349-01-26"),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
        ("1.50", pa.decimal128(9, 2), "1.50"),
        (math.nan, pa.float64(), "NaN"),
        ([{"x": -math.inf}, None], pa.list_(pa.struct([("x", pa.float32())])), [{"x": "-Infinity"}, None]),
        ([(1, NOON), (2, None)], pa.map_(pa.int8(), pa.timestamp("ms")), {"1": "2026-01-31T12:00:00.000", "2": None}),
        ([("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int8()), [["a", 1], ["a", 2]]),
    ],
)
def test_values_that_json_does_not_know_are_shown_as_documented(value: Any, kind: pa.DataType, shown: Any) -> None:
    column = pa.array([value]).cast(kind) if isinstance(value, str) else pa.array([value], kind)
    (row,) = rows_as_json(pa.table({"x": column}))
    assert json.loads(row) == {"x": shown}


def test_slice_of_a_table_gives_only_its_rows() -> None:
    assert rows_as_json(pa.table({"x": [[1], [2], [3]]}).slice(1, 1)) == [b'{"x":[2]}']
