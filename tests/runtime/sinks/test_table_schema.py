"""Which column holds which Arrow type: the table in docs/parquet-and-delta.md, and what does not lose a value."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.schema import check_schema
from forebay.buffer.format.type_names import parse_type
from forebay.runtime.sinks.table_schema import DELTA, ICEBERG, DoesNotFit, TableFormat, fit_rows, meet

PAGE = Path(__file__).parents[3] / "docs" / "parquet-and-delta.md"
SAMPLES: dict[str, list[Any]] = {
    "bool": [True],
    "int8": [-128, 127],
    "int16": [-(2**15), 2**15 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "uint8": [255],
    "uint16": [2**16 - 1],
    "uint32": [2**32 - 1],
    "uint64": [2**64 - 1],
    "float": [0.5, float("inf")],
    "double": [0.1, float("-inf")],
    "string": ["ü", ""],
    "binary": [b"\x00\xff"],
    "fixed_size_binary[16]": [b"x" * 16],
    "date32": [date(2026, 1, 31)],
    "decimal128(9, 2)": [Decimal("1234567.89")],
    "timestamp[ms]": [datetime(2026, 1, 31, 12)],  # noqa: DTZ001 - it is naive
    "timestamp[us]": [datetime(2026, 1, 31, 12, 0, 0, 1)],  # noqa: DTZ001 - it is naive
    "timestamp[us, tz=Europe/Berlin]": [datetime(2026, 1, 31, 12, tzinfo=UTC)],
    "list<int32>": [[1, None], []],
    "struct<a: int32>": [{"a": 1}],
    "map<string, int64>": [[("a", 1)]],
}
KINDS = {name: parse_type(name) for name in SAMPLES}


def documented() -> list[list[str]]:
    """The rows of the page's table, below its heads."""
    lines = PAGE.read_text().split("| Arrow type |", 1)[1].split("\n\n", 1)[0].splitlines()
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]


def parquet_type(kind: pa.DataType) -> str:
    buffer = io.BytesIO()
    pq.write_table(pa.schema([("x", kind)]).empty_table(), buffer)
    column = pq.ParquetFile(buffer).schema.column(0)
    name = column.physical_type.replace("FIXED_LEN_BYTE_ARRAY", "FIXED")
    if name == "FIXED" and not pa.types.is_decimal(kind):
        return f"FIXED[{column.length}]"
    logical = json.loads(column.logical_type.to_json())
    details = {
        "Int": lambda: f"INT({logical['bitWidth']}, {'signed' if logical['isSigned'] else 'unsigned'})",
        "Decimal": lambda: f"DECIMAL({logical['precision']}, {logical['scale']})",
        "Timestamp": lambda: f"TIMESTAMP({logical['timeUnit']}{', UTC' * logical['isAdjustedToUTC']})",
        "None": str,
    }
    shown = details.get(logical["Type"], logical["Type"].upper)()
    return f"{name} {shown}".strip()


def delta_type(kind: pa.DataType) -> str:
    found = json.loads(Schema.from_arrow(DELTA.columns(pa.schema([("x", kind)]))).to_json())["fields"][0]["type"]
    if isinstance(found, str):
        return found
    inner = {"array": "elementType", "map": "valueType"}.get(found["type"])
    if inner is None:
        fields = [f"{field['name']}: {field['type']}" for field in found["fields"]]
        return f"struct<{', '.join(fields)}>"
    key = f"{found['keyType']}, " if "keyType" in found else ""
    return f"{found['type']}<{key}{found[inner]}>"


def iceberg_type(kind: pa.DataType) -> str:
    schema = _pyarrow_to_schema_without_ids(ICEBERG.columns(pa.schema([("x", kind)])))
    text = str(schema.fields[0].field_type)
    return re.sub(r"-1: (\w+): optional ", r"\1: ", text)


def test_types_on_the_page_are_those_that_the_sinks_write() -> None:
    nested = ("list", "struct", "map")
    made = [
        [
            name,
            name.partition("<")[0].upper() if name.startswith(nested) else parquet_type(kind),
            delta_type(kind),
            iceberg_type(kind),
        ]
        for name, kind in KINDS.items()
    ]
    assert documented() == made


@pytest.mark.parametrize("table_format", [DELTA, ICEBERG], ids=lambda table_format: table_format.name)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_value_of_a_typed_buffer_is_in_its_column_exactly(name: str, table_format: TableFormat) -> None:
    schema = check_schema(pa.schema([("x", KINDS[name])]))
    rows = pa.table({"x": pa.array([*SAMPLES[name], None], schema.field("x").type)})
    fitted = fit_rows(rows, table_format.columns(schema))
    assert [row["x"] for row in fitted.to_pylist()] == [*SAMPLES[name], None]


@pytest.mark.parametrize("table_format", [DELTA, ICEBERG], ids=lambda table_format: table_format.name)
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.timestamp("ns"), r"column x: Spark cannot read timestamp\[ns\]; use timestamp\[us\]"),
        (pa.time64("us"), r"column x: time64\[us\] cannot be stored so that Spark reads it; use int64 or string"),
        (pa.duration("s"), "use int64 and say the unit in the column's name"),
        (pa.null(), "give it the type that its values will have"),
        (pa.decimal256(50, 2), "use decimal128 of at most 38 digits"),
        (pa.list_(pa.float16()), r"column x.element: halffloat .*use float"),
    ],
    ids=str,
)
def test_type_without_a_column_is_refused_with_what_to_use(
    kind: pa.DataType, told: str, table_format: TableFormat
) -> None:
    with pytest.raises(InvalidInput, match=told):
        table_format.columns(pa.schema([("x", kind)]))


def schema_of(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema(list(kinds.items()))


@pytest.mark.parametrize(
    ("table", "rows", "widened"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), True),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(9, 2), pa.decimal128(12, 3), False),
    ],
    ids=str,
)
def test_iceberg_widens_what_its_specification_allows_and_delta_nothing(
    table: pa.DataType, rows: pa.DataType, widened: bool
) -> None:
    iceberg = meet(schema_of(x=table), schema_of(x=rows), ICEBERG, merge=True)
    assert iceberg.columns.field("x").type == (rows if widened else table)
    assert bool(iceberg.changes) is widened
    for table_format, merge in ((DELTA, True), (ICEBERG, False)):
        unchanged = meet(schema_of(x=table), schema_of(x=rows), table_format, merge=merge)
        assert (unchanged.columns, unchanged.changes) == (schema_of(x=table), ())


def test_narrower_rows_are_no_difference() -> None:
    meeting = meet(schema_of(x=pa.int64(), y=pa.string()), schema_of(x=pa.int8()), ICEBERG, merge=True)
    assert (meeting.changes, meeting.others) == ((), ())


def test_required_column_becomes_nullable_in_iceberg_alone() -> None:
    required = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    assert meet(required, schema_of(x=pa.int64()), ICEBERG, merge=True).columns.field("x").nullable
    delta = meet(required, schema_of(x=pa.int64()), DELTA, merge=True)
    assert not delta.columns.field("x").nullable
    assert [str(found) for found in delta.others] == ["column x: nullable, int64 not null to int64"]


def test_names_inside_structs_that_differ_only_in_case_are_refused() -> None:
    table, rows = schema_of(x=pa.struct([("a", pa.int64())])), schema_of(x=pa.struct([("A", pa.int64())]))
    with pytest.raises(InvalidInput, match=r"column x\.A differs from the table's column x\.a only in case"):
        meet(table, rows, DELTA, merge=True)


def test_required_column_that_the_rows_lack_is_not_poison() -> None:
    with pytest.raises(DoesNotFit, match="the rows have no such column") as raised:
        meet(pa.schema([pa.field("x", pa.int64(), nullable=False)]), schema_of(y=pa.int64()), DELTA, merge=True)
    assert not raised.value.poison


def test_unsigned_integers_inside_other_types_fit_the_columns_that_were_made_for_them() -> None:
    kind = pa.struct([("x", pa.uint64()), ("y", pa.list_(pa.uint64()))])
    rows = pa.table({"c": pa.array([{"x": 2**64 - 1, "y": [1, None]}, None], kind)})
    fitted = fit_rows(rows, DELTA.columns(rows.schema))
    assert fitted["c"].to_pylist() == [{"x": Decimal(2**64 - 1), "y": [Decimal(1), None]}, None]


@pytest.mark.parametrize(
    ("rows", "table"),
    [
        (pa.int64(), pa.bool_()),
        (pa.float64(), pa.bool_()),
        (pa.int64(), pa.timestamp("us", "UTC")),
        (pa.int32(), pa.date32()),
        (pa.timestamp("us"), pa.int64()),
    ],
    ids=str,
)
def test_number_is_no_truth_value_and_no_time(rows: pa.DataType, table: pa.DataType) -> None:
    """Arrow makes true of 5, and counts milliseconds since 1970 as microseconds: the year would be 1970."""
    (difference,) = meet(schema_of(x=table), schema_of(x=rows), ICEBERG, merge=False).others
    assert difference.kind == "conflict"


@pytest.mark.parametrize(
    ("values", "kind", "wanted", "bad"),
    [
        ([0.5, 0.1, float("nan"), None], pa.float64(), pa.float32(), [1]),
        ([1, 1 << 60], pa.int64(), pa.float64(), [1]),
        ([datetime(2026, 1, 31), datetime(2026, 1, 31, 1)], pa.timestamp("us"), pa.date32(), [1]),  # noqa: DTZ001
        ([Decimal("1.5"), Decimal("0.1")], pa.decimal128(3, 1), pa.float32(), []),
        (["7", "x", "8", "y"], pa.string(), pa.int64(), [1, 3]),
        (["1e308", "1e309", "inf", "nan", None], pa.string(), pa.float64(), [1]),
    ],
    ids=["double to float", "int64 to double", "time to date", "decimal to float", "text to number", "text to double"],
)
def test_rows_whose_values_would_change_are_named(
    values: list[Any], kind: pa.DataType, wanted: pa.DataType, bad: list[int]
) -> None:
    rows = pa.table({"x": pa.array(values, kind)})
    if not bad:
        assert fit_rows(rows, schema_of(x=wanted)).num_rows == len(values)
        return
    with pytest.raises(DoesNotFit) as raised:
        fit_rows(rows, schema_of(x=wanted))
    assert list(raised.value.rows) == bad
    assert raised.value.poison
