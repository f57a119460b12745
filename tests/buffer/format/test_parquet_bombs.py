"""Small Parquet files that claim, or decompress to, far more than the manifest says: `Corrupt`, within bounded memory.

Each file is decoded by a process of its own whose memory is limited. Without the checks of `parquet_pages.py` most of
them end that process, or make it allocate gigabytes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))  # tests here share what is beside them
from thrift import BINARY, I32, I64, LIST, STRUCT, Struct, read_footer, with_footer, write_struct, write_varint

from forebay.buffer.base.errors import Corrupt
from forebay.buffer.format.parquet import decode_rows, encode_rows

Page = tuple[Struct, bytes]
Bomb = tuple[bytes, pa.Schema, int]
GIB = 1 << 30
LIMIT_BYTES = 3 * GIB // 2
"""Address space of the process that decodes: pyarrow alone maps more than half of it."""
PEAK_BYTES = 200 << 20
"""Maximum memory that Arrow may have allocated at one time for any of these files."""
RAW_BYTES = 4000
TEXT = pa.schema([pa.field("t", pa.string(), nullable=False)])
NUMBER = pa.schema([pa.field("t", pa.int64(), nullable=False)])
LISTS = pa.schema([pa.field("t", pa.list_(pa.field("element", pa.bool_())))])
SAMPLES = {TEXT: ["x"], NUMBER: [1], LISTS: [[True]]}


def build(schema: pa.Schema, pages: list[Page], rows: int, values: int | None = None, groups: int = 1) -> Bomb:
    """Return a file whose only column has these pages, in each of its row groups."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([SAMPLES[schema]], schema=schema), sink, compression="zstd", store_schema=False)
    footer = read_footer(bytes(sink.getvalue()))
    body, places = b"PAR1", []
    for header, data in pages:
        places.append(len(body))
        body += write_struct(header) + data
    group = footer[4][1][1][0]
    chunk = group[1][1][1][0]
    meta = {number: field for number, field in chunk[3][1].items() if number not in {11, 12, 13}}
    if len(pages) > 1:
        meta[11] = I64, places[0]
    meta |= {
        5: (I64, rows if values is None else values),
        6: (I64, 1000),
        7: (I64, len(body) - 4),
        9: (I64, places[-1]),
    }
    chunk = {2: (I64, 0), 3: (STRUCT, meta)}
    group = {1: (LIST, (STRUCT, [chunk])), 2: (I64, 1000), 3: (I64, rows)}
    footer[3] = I64, rows * groups
    footer[4] = LIST, (STRUCT, [group] * groups)
    return with_footer(body + bytes(4) + b"PAR1", {**footer, 4: footer[4]}), schema, rows * groups


def compress(data: bytes, zeros: int = 0) -> bytes:
    """Return zeros, and then data, compressed."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        for _ in range(zeros >> 20):
            stream.write(bytes(1 << 20))
        stream.write(data)
    return bytes(out.getvalue())


def data_page(values: int, size: int, stored: bytes, encoding: int = 0) -> Page:
    described = {1: (I32, values), 2: (I32, encoding), 3: (I32, 3), 4: (I32, 3)}
    return {1: (I32, 0), 2: (I32, size), 3: (I32, len(stored)), 5: (STRUCT, described)}, stored


def dictionary_page(values: int, size: int, stored: bytes) -> Page:
    described = {1: (I32, values), 2: (I32, 0)}
    return {1: (I32, 2), 2: (I32, size), 3: (I32, len(stored)), 7: (STRUCT, described)}, stored


def run_of(value: int, count: int) -> bytes:
    """Return a run of one number below 256, as Parquet encodes levels and indexes."""
    return write_varint(count << 1) + bytes([value])


def page_of_gigabytes() -> Bomb:
    return build(NUMBER, [data_page(100, GIB, compress(b"", GIB))], 100)


def page_that_claims_gigabytes() -> Bomb:
    return build(TEXT, [data_page(100, 2**31 - 1, compress(bytes(400)))], 100)


def page_with_more_content_than_it_claims() -> Bomb:
    return build(TEXT, [data_page(100, 400, compress(b"", GIB))], 100)


def page_of_negative_size() -> Bomb:
    return build(TEXT, [data_page(100, -5, compress(bytes(400)))], 100)


def page_that_claims_more_values_than_rows() -> Bomb:
    return build(TEXT, [data_page(2**31 - 1, 400, compress(bytes(400)))], 100, 2**31 - 1)


def dictionary_of_one_long_value() -> Bomb:
    """Every row refers to it: 64 GiB from 250 bytes."""
    indexes = b"\x01" + run_of(0, 65_536)
    dictionary = dictionary_page(1, (1 << 20) + 4, compress((1 << 20).to_bytes(4, "little") + bytes(1 << 20)))
    return build(TEXT, [dictionary, data_page(65_536, len(indexes), compress(indexes), 8)], 65_536)


def dictionary_that_claims_more_values_than_it_has() -> Bomb:
    indexes = b"\x01" + run_of(0, 100)
    dictionary = dictionary_page(2**31 - 1, 8, compress(bytes(8)))
    return build(TEXT, [dictionary, data_page(100, len(indexes), compress(indexes), 8)], 100)


def row_with_a_list_of_a_billion() -> Bomb:
    count = 10**9
    levels = [run_of(0, 1) + run_of(1, count - 1), run_of(2, count)]
    page = b"".join(len(level).to_bytes(4, "little") + level for level in levels)
    return build(LISTS, [data_page(count, len(page), compress(page))], 1, count)


def more_row_groups_than_rows() -> Bomb:
    file, schema, _ = build(TEXT, [data_page(100, 400, compress(bytes(400)))], 0, groups=10_000)
    footer = read_footer(file)
    return with_footer(file, {**footer, 3: (I64, 100)}), schema, 100


def as_many_row_groups_as_rows() -> Bomb:
    return build(TEXT, [data_page(1, 4, compress(bytes(4)))], 1, groups=10_000)


def map_with_a_null_key() -> Bomb:
    """Arrow ends the process if it is made to hold one."""
    kind = pa.list_(pa.field("key_value", pa.struct([("key", pa.string()), ("value", pa.int64())])))
    sink = pa.BufferOutputStream()
    table = pa.table({"t": pa.array([[{"key": None, "value": 1}]], kind)})
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    file = bytes(sink.getvalue())
    footer = read_footer(file)
    outer, repeated, entry, key, value = footer[2][1][1][1:]
    is_map = {6: (I32, 1), 10: (STRUCT, {2: (STRUCT, {})})}
    elements = [footer[2][1][1][0], {**outer, **is_map}, {**entry, 3: (I32, 2), 4: (BINARY, b"key_value")}, key, value]
    assert repeated[4] == (BINARY, b"list")
    schema = pa.schema([pa.field("t", pa.map_(pa.string(), pa.int64()))])
    return with_footer(file, {**footer, 2: (LIST, (STRUCT, elements))}), schema, 1


BOMBS: dict[str, Callable[[], Bomb]] = {
    bomb.__name__: bomb
    for bomb in (
        page_of_gigabytes,
        page_that_claims_gigabytes,
        page_with_more_content_than_it_claims,
        page_of_negative_size,
        page_that_claims_more_values_than_rows,
        dictionary_of_one_long_value,
        dictionary_that_claims_more_values_than_it_has,
        row_with_a_list_of_a_billion,
        more_row_groups_than_rows,
        as_many_row_groups_as_rows,
        map_with_a_null_key,
    )
}


def explode(name: str) -> None:
    """Decode a bomb in this process, within limited memory, and say what came of it."""
    data, schema, rows = BOMBS[name]()
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    try:
        decode_rows(data, schema, records=rows, raw_bytes=RAW_BYTES)
    except Corrupt as error:
        sys.stdout.write(f"{pa.default_memory_pool().max_memory()} {error}")


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_corrupt_within_bounded_memory(name: str) -> None:
    ran = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    peak, _, said = ran.stdout.partition(" ")
    assert "is corrupt" in said, "it was read"
    assert int(peak) < PEAK_BYTES


@pytest.mark.parametrize("length", [1, 1000, 1 << 20])
def test_long_value_in_a_dictionary_is_read(length: int) -> None:
    table = pa.table({"t": ["x" * length, "y"] * 50_000}) if length < 1 << 20 else pa.table({"t": ["x" * length] * 64})
    found = decode_rows(encode_rows(table), table.schema, records=len(table), raw_bytes=table.nbytes)
    assert found.equals(table)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int16(), pa.bool_(), pa.binary(1)])
def test_narrow_values_that_parquet_stores_in_more_bytes_are_read(kind: pa.DataType) -> None:
    values = [
        bytes([i % 256]) if kind == pa.binary(1) else bool(i % 3) if kind == pa.bool_() else i % 100
        for i in range(200_000)
    ]
    table = pa.table({"a": pa.array(values, kind), "l": pa.array([[value] for value in values], pa.list_(kind))})
    assert decode_rows(encode_rows(table), table.schema, records=len(table), raw_bytes=table.nbytes).num_rows == 200_000


TABLE = pa.table({"id": list(range(100)), "text": ["a text", None] * 50, "many": [[1, 2], None] * 50})
FILE = bytes(encode_rows(TABLE))
NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 100, 2**31 - 1, 2**31, 2**62, 2**63 - 1])


def numbers_in(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the way to each number in a footer."""
    if isinstance(value, dict):
        return [found for number, (_, field) in value.items() for found in numbers_in(field, (*path, number, 1))]
    if isinstance(value, tuple):
        return [found for i, each in enumerate(value[1]) for found in numbers_in(each, (*path, 1, i))]
    return [path] if isinstance(value, int) else []


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_footer_with_other_numbers_gives_a_table_or_corrupt(data: st.DataObject) -> None:
    footer = read_footer(FILE)
    for way in data.draw(st.lists(st.sampled_from(numbers_in(footer)), min_size=1, max_size=3)):
        place: object = footer
        for step in way[:-1]:
            place, before = place[step], place  # type: ignore[index]
        assert before is not None
        field = list(place) if isinstance(place, tuple) else place
        field[way[-1]] = data.draw(NUMBERS)  # type: ignore[index]
        if isinstance(place, tuple):
            before[way[-2]] = tuple(field)  # type: ignore[index, arg-type]
    try:
        found = decode_rows(with_footer(FILE, footer), TABLE.schema, records=100, raw_bytes=TABLE.nbytes)
    except Corrupt:
        return
    assert found.num_rows == 100
    assert found.schema.equals(TABLE.schema)


if __name__ == "__main__":
    explode(sys.argv[1])
