"""Parquet files that lie: each is `Corrupt`, and none is misread."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.buffer.base.errors import Corrupt
from forebay.buffer.format.parquet import decode_rows, encode_rows

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
TABLE = pa.table([list(range(100)), ["a text", None] * 50], schema=SCHEMA)
FILE = bytes(encode_rows(TABLE))


def decode(data: bytes, *, records: int = 100, raw_bytes: int = TABLE.nbytes, schema: pa.Schema = SCHEMA) -> pa.Table:
    return decode_rows(data, schema, records=records, raw_bytes=raw_bytes, location="s3://lake/data/x.parquet")


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_schema=False, **options)
    return bytes(sink.getvalue())


def test_sound_file_is_read() -> None:
    assert decode(FILE).equals(TABLE)


@pytest.mark.parametrize("records", [0, 99, 101, 2**40])
def test_other_number_of_rows_than_the_manifest_says_is_corrupt(records: int) -> None:
    with pytest.raises(Corrupt, match=f"100 rows; the manifest says {records}"):
        decode(FILE, records=records)


@pytest.mark.parametrize(
    "other",
    [
        TABLE.rename_columns(["id", "other"]),
        TABLE.select(["id"]),
        TABLE.select(["text", "id"]),
        TABLE.append_column("more", TABLE["text"]),
        TABLE.set_column(0, "id", TABLE["id"].cast(pa.int32())),
        TABLE.set_column(0, "id", TABLE["id"]),  # nullable
        TABLE.set_column(1, "text", TABLE["text"].cast(pa.binary())),
    ],
    ids=["renamed", "fewer", "other order", "more", "narrower", "nullable", "binary"],
)
def test_other_schema_than_the_version_says_is_corrupt(other: pa.Table) -> None:
    with pytest.raises(Corrupt, match="its columns are"):
        decode(written(other))


def test_arrow_schema_in_the_file_is_not_believed() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE.set_column(1, "text", TABLE["text"].dictionary_encode()), sink, compression="zstd")
    with pytest.raises(Corrupt, match="its columns are"):
        decode(bytes(sink.getvalue()))


def test_file_that_decodes_to_more_than_the_manifest_says_is_corrupt_before_all_of_it_is_decoded() -> None:
    """A dictionary makes a small file of a large table."""
    bomb = pa.table({"text": pa.array(["x" * 1000] * 300_000)})
    data = written(bomb)
    assert len(data) < 100_000
    with pytest.raises(Corrupt, match="more than"):
        decode_rows(data, bomb.schema, records=300_000, raw_bytes=1 << 20)


def test_encrypted_file_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="encrypted"):
        decode(FILE[:-4] + b"PARE")


def test_text_that_is_not_utf_8_is_corrupt() -> None:
    schema = pa.schema([pa.field("text", pa.string())])
    table = pa.table([["aaaaaaaa"]], schema=schema)
    data = bytes(encode_rows(table, "none"))
    assert data.count(b"aaaaaaaa") >= 1
    with pytest.raises(Corrupt):
        decode_rows(data.replace(b"aaaaaaaa", b"\xff\xfe" * 4), schema, records=1, raw_bytes=table.nbytes)


@pytest.mark.parametrize("end", [0, 1, 4, 8, 11, 12, len(FILE) // 2, len(FILE) - 9, len(FILE) - 1])
def test_truncated_file_is_corrupt(end: int) -> None:
    with pytest.raises(Corrupt, match=r"x\.parquet is corrupt"):
        decode(FILE[:end])


@pytest.mark.parametrize("length", [0, 1, len(FILE), 2**31 - 1, 2**32 - 1])
def test_footer_length_that_lies_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt):
        decode(FILE[:-8] + length.to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + bytes(100) + b"PAR1", bytes(1000)])
def test_bytes_that_are_no_parquet_file_are_corrupt(damage: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(damage)


def check_harmless(data: bytes) -> None:
    """The only table that may come out has the rows and columns that the manifest describes."""
    try:
        table = decode(data)
    except Corrupt:
        return
    assert table.num_rows == 100
    assert table.schema.equals(SCHEMA)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_file_gives_a_table_or_corrupt(data: Any) -> None:
    mutated = bytearray(FILE)
    for _ in range(data.draw(st.integers(1, 8))):
        mutated[data.draw(st.integers(0, len(FILE) - 1))] = data.draw(st.integers(0, 255))
    check_harmless(bytes(mutated))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_footer_gives_a_table_or_corrupt(data: Any) -> None:
    start = len(FILE) - 8 - int.from_bytes(FILE[-8:-4], "little")
    mutated = bytearray(FILE)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(start, len(FILE) - 9))] = data.draw(st.integers(0, 255))
    check_harmless(bytes(mutated))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(FILE)), st.integers(0, len(FILE)), st.binary(max_size=64))
def test_spliced_file_gives_a_table_or_corrupt(start: int, end: int, middle: bytes) -> None:
    check_harmless(FILE[:start] + middle + FILE[end:])
