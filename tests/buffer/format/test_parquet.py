"""The batch of a typed buffer: rows to a Parquet file and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typed_data import EVERY_TYPE

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.format.parquet import RowEntries, decode_rows, encode_rows
from forebay.buffer.format.schema import check_schema


def decode(data: memoryview, table: pa.Table, **settings: Any) -> pa.Table:
    return decode_rows(data, table.schema, records=table.num_rows, raw_bytes=table.nbytes, **settings)


@pytest.mark.parametrize(("kind", "values"), [case[1:] for case in EVERY_TYPE], ids=[case[0] for case in EVERY_TYPE])
def test_rows_of_every_type_come_back_as_they_were(kind: pa.DataType, values: list[Any]) -> None:
    schema = check_schema(pa.schema([pa.field("column", kind)]))
    table = pa.table([pa.array(values, schema.field(0).type)], schema=schema)
    assert decode(encode_rows(table), table).equals(table)


def test_required_column_stays_required() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    table = pa.table([[1, 2], ["a", None]], schema=schema)
    assert decode(encode_rows(table), table).schema.equals(schema)


def test_thousand_columns_come_back() -> None:
    table = pa.table({f"column {i}": [i, None] for i in range(1000)})
    assert decode(encode_rows(table), table).equals(table)


def test_more_rows_than_one_step_come_back_in_order() -> None:
    table = pa.table({"n": pa.array(range(200_000))})
    assert decode(encode_rows(table), table).equals(table)


def test_chunks_have_about_as_many_bytes_as_asked_for() -> None:
    table = pa.table({"text": [f"{i:01000}" for i in range(10_000)]})
    found = decode(encode_rows(table), table, step_bytes=4 << 20)
    assert found.equals(table)
    assert [round(chunk.nbytes / (4 << 20), 1) for chunk in found["text"].chunks[:-1]] == [1.0, 1.0]


def test_chunks_of_long_rows_have_2048_rows_all_the_same() -> None:
    table = pa.table({"text": [f"{i:01000}" for i in range(5000)]})
    found = decode(encode_rows(table), table, step_bytes=1)
    assert [len(chunk) for chunk in found["text"].chunks] == [2048, 2048, 904]


@pytest.mark.parametrize("rows", [5000, 6000, 9000, 15_000])
def test_file_holds_little_memory_beside_its_bytes(rows: int) -> None:
    table = pa.table({"text": [f"{i:01000}" for i in range(rows)]})
    before = pa.total_allocated_bytes()
    data = encode_rows(table, "none")
    assert pa.total_allocated_bytes() - before <= 1.25 * len(data)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_file_is_plain_parquet_for_everyone_else(compression: Any) -> None:
    table = pa.table({"id": [1, 2], "text": ["a", None]})
    data = encode_rows(table, compression)
    assert pq.read_table(pa.BufferReader(data)).equals(table)


def test_file_has_statistics_dictionaries_and_page_checksums() -> None:
    table = pa.table({"page": ["/a", "/b"] * 500})
    data = encode_rows(table)
    column = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert (column.statistics.min, column.statistics.max) == ("/a", "/b")
    assert column.has_dictionary_page
    damaged = bytearray(data)
    damaged[column.dictionary_page_offset + column.total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)


def test_only_the_columns_asked_for_are_decoded() -> None:
    table = pa.table({"a": [1, 2], "b.c": ["x", "y"], "b": [{"c": 1}, {"c": 2}]})
    data = encode_rows(table)
    assert decode(data, table, columns=["b.c"]).equals(table.select(["b.c"]))
    assert decode(data, table, columns=["a"]).equals(table.select(["a"]))


def test_one_column_is_decoded_if_none_of_those_asked_for_is_there() -> None:
    """A reader of a newer version shows nulls; it needs to know how many."""
    table = pa.table({"a": [1, 2], "b": [3, 4]})
    assert decode(encode_rows(table), table, columns=["new"]).num_rows == 2


def test_damaged_column_that_was_not_asked_for_does_no_harm() -> None:
    table = pa.table({"a": ["x" * 100] * 100, "b": ["y" * 100] * 100})
    data = encode_rows(table, "none")
    damaged = bytearray(data)
    end = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).total_compressed_size
    damaged[4:end] = bytes(end - 4)
    with pytest.raises(Corrupt):
        decode(memoryview(damaged), table)
    assert decode(memoryview(damaged), table, columns=["b"]).equals(table.select(["b"]))


def test_entries_are_dicts_made_when_asked_for() -> None:
    entries = RowEntries(pa.table({"n": pa.array(range(10_000))}))
    assert len(entries) == 10_000
    assert entries[0] == {"n": 0}
    assert entries[-1] == {"n": 9999}
    assert entries[5:7] == [{"n": 5}, {"n": 6}]
    assert entries[::5000] == [{"n": 0}, {"n": 5000}]
    assert [row["n"] for row in entries] == list(range(10_000))
    with pytest.raises(IndexError):
        entries[10_000]


ITEM = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
OUTER = pa.struct([pa.field("item", ITEM, nullable=False), pa.field("flag", pa.bool_(), nullable=False)])
NULL_ITEM = pa.StructArray.from_arrays(
    [pa.array([1, None, 3]), pa.array(["a", None, "c"])], fields=list(ITEM), mask=pa.array([False, True, False])
)


@pytest.mark.parametrize(
    "column",
    [
        NULL_ITEM,
        NULL_ITEM.slice(1),
        pa.StructArray.from_arrays(
            [NULL_ITEM, pa.array([True, None, False])], fields=list(OUTER), mask=pa.array([False, True, False])
        ),
        pa.ListArray.from_arrays([0, 2, 2, 3], NULL_ITEM),
        pa.ListArray.from_arrays([0, 2, 2, 3], NULL_ITEM).slice(1),
        pa.MapArray.from_arrays([0, 1, 3], ["k", "l", "m"], NULL_ITEM),
    ],
    ids=["struct", "slice", "struct of struct", "list", "slice of list", "map"],
)
def test_null_struct_with_required_fields_is_stored(column: pa.Array) -> None:
    """Its fields are null as well, which pyarrow's Parquet writer takes for missing values."""
    field = pa.field("a", column.type)
    table = pa.table([column], schema=check_schema(pa.schema([field])))
    decoded = decode(encode_rows(table), table)
    assert decoded.to_pylist() == table.to_pylist()


def test_null_in_a_required_field_of_a_struct_that_is_there_is_never_stored_as_a_value() -> None:
    column = pa.StructArray.from_arrays(
        [pa.array([1, None, None]), pa.array(["a", "b", None])], fields=list(ITEM), mask=pa.array([False, False, True])
    )
    with pytest.raises(InvalidInput, match="non-nullable"):
        encode_rows(pa.table({"a": column}))


def test_column_whose_values_hardly_repeat_is_written_without_a_dictionary() -> None:
    rows = range(5000)
    inside = pa.struct({"x": pa.list_(pa.string()), "y": pa.map_(pa.string(), pa.int64())})
    table = pa.table(
        {
            "distinct": [f"/{row}" for row in rows],
            "repeats": [f"/{row % 100}" for row in rows],
            "nested": pa.array([{"x": [str(row)], "y": [("k", row)]} for row in rows], inside),
        }
    )
    group = pq.ParquetFile(pa.BufferReader(encode_rows(table))).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {column.path_in_schema: column.has_dictionary_page for column in columns} == {
        "distinct": False,
        "repeats": True,
        "nested.x.list.element": True,
        "nested.y.key_value.key": True,
        "nested.y.key_value.value": True,
    }


def test_few_rows_are_written_with_dictionaries() -> None:
    table = pa.table({"distinct": [f"/{row}" for row in range(1000)]})
    footer = pq.ParquetFile(pa.BufferReader(encode_rows(table))).metadata
    assert footer.row_group(0).column(0).has_dictionary_page
