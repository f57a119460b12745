"""Entries to the block of a version 1 batch and back, by Arrow's native code instead of a loop in Python.

A record block is `( len:u32, bytes )*`. A Parquet column of byte arrays, in the encoding that Parquet calls PLAIN, is
`( len:u32, bytes )*` as well: byte for byte the same thing. Every Arrow carries a fast and well-fuzzed reader for it.
So to read a block, we pass it off as the one page of the one column of a Parquet file:

    PAR1                                                                      4 bytes
    page header     "a data page: PLAIN, its number of values and bytes"     ~25 bytes
    the block       exactly as it was stored, still compressed if it was
    file footer     "one column `v`; its page starts at byte 4"              ~70 bytes
    footer length, PAR1                                                       8 bytes

and let Arrow open that. It decompresses and splits in one go, in memory of its own that it uses again. The two little
structures are Thrift's compact protocol, of which four rules are enough here:

- a field is one byte, `(its number - the number before) << 4 | its type`, and then its value;
- an integer is zigzag (`n` → `2n` where n ≥ 0), seven bits to a byte, lowest first, the top bit saying "more follows";
- text is its length and its bytes; a list is one byte, `how many << 4 | type of each`, and then the items;
- a struct is its fields and a zero byte.

Writing needs no such disguise: Arrow has a kernel that joins two columns row by row, and the joined column's data
buffer *is* the block.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MAX_PAGE_BYTES: Final = 2**31 - 1
"""Parquet keeps a page's size in a signed 32-bit integer."""

UNCOMPRESSED: Final = 0
ZSTD: Final = 6
"""Parquet's codes for the two compressions that we have."""


def write_block(values: pa.BinaryArray | pa.LargeBinaryArray, lengths: pa.UInt32Array) -> pa.Buffer:
    """Return the record block of `values`, whose lengths the caller has at hand. The values are copied once.

    The block must fit the offsets of the values' type. Memory may follow it.
    """
    prefixes = pa.Array.from_buffers(pa.binary(4), len(values), [None, lengths.buffers()[1]], offset=lengths.offset)
    block = pc.binary_join_element_wise(prefixes.cast(values.type), values, pa.scalar(b"", values.type))
    return block.buffers()[2] or pa.py_buffer(b"")


def read_page(page: memoryview, count: int, *, codec: int, raw_size: int) -> pa.BinaryArray:
    """Return the first `count` entries of a page that is `raw_size` bytes long once decompressed.

    What may follow them is not looked at, and `count` and `raw_size` are believed where memory is set aside: the
    caller compares. Raises what Arrow raises if the page does not hold them.
    """
    header = _page_header(count, raw_size, len(page))
    footer = _file_footer(count, len(header) + raw_size, len(header) + len(page), codec)
    # The one copy of the stored bytes: the header has to stand right before them.
    file = join_buffers(b"PAR1" + header, page, footer + len(footer).to_bytes(4, "little") + b"PAR1")
    column = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False).read(use_threads=False).column(0)
    # Less than a page's worth of bytes fits one Arrow array, so this joins nothing.
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.array([], pa.binary())])


def join_buffers(*parts: bytes | memoryview | pa.Buffer) -> pa.Buffer:
    """Return a copy of the parts, one after the other, in memory of Arrow's pool.

    The pool gives out warm memory again. `b"".join` asks the system for fresh pages each time, and from 32 MiB on the
    page faults cost more than reading the block.
    """
    whole = pa.allocate_buffer(sum(map(len, parts)))
    with memoryview(whole).cast("B") as view:
        end = 0
        for part in parts:
            start, end = end, end + len(part)
            view[start:end] = memoryview(part).cast("B")
    return whole


def _page_header(count: int, raw_size: int, stored_size: int) -> bytes:
    page = _struct(
        _int32(1, count),  # num_values
        _int32(1, 0),  # encoding: PLAIN
        _int32(1, 3),  # definition_level_encoding: RLE, of which a required column has none
        _int32(1, 3),  # repetition_level_encoding: the same
    )
    return _struct(
        _int32(1, 0),  # type: DATA_PAGE
        _int32(1, raw_size),  # uncompressed_page_size
        _int32(1, stored_size),  # compressed_page_size
        _field(2, _STRUCT, page),  # data_page_header (field 4, a CRC, is left out)
    )


def _file_footer(count: int, raw_size: int, stored_size: int, codec: int) -> bytes:
    root = _struct(
        _field(4, _TEXT, _text(b"r")),  # name
        _int32(1, 1),  # num_children
    )
    leaf = _struct(
        _int32(1, 6),  # type: BYTE_ARRAY
        _int32(2, 0),  # repetition_type: REQUIRED
        _field(1, _TEXT, _text(b"v")),  # name
    )
    column = _struct(
        _int32(1, 6),  # type: BYTE_ARRAY
        _field(1, _LIST, _list(_INT32, _varint(0))),  # encodings: PLAIN
        _field(1, _LIST, _list(_TEXT, _text(b"v"))),  # path_in_schema
        _int32(1, codec),  # codec
        _int64(1, count),  # num_values
        _int64(1, raw_size),  # total_uncompressed_size
        _int64(1, stored_size),  # total_compressed_size
        _int64(2, 4),  # data_page_offset: just after the first PAR1
    )
    chunk = _struct(
        _int64(2, 0),  # file_offset
        _field(1, _STRUCT, column),  # meta_data
    )
    group = _struct(
        _field(1, _LIST, _list(_STRUCT, chunk)),  # columns
        _int64(1, raw_size),  # total_byte_size
        _int64(1, count),  # num_rows
    )
    return _struct(
        _int32(1, 1),  # version
        _field(1, _LIST, _list(_STRUCT, root, leaf)),  # schema
        _int64(1, count),  # num_rows
        _field(1, _LIST, _list(_STRUCT, group)),  # row_groups
    )


_INT32, _INT64, _TEXT, _LIST, _STRUCT = 5, 6, 8, 9, 12


def _field(step: int, kind: int, value: bytes) -> bytes:
    return bytes([step << 4 | kind]) + value


def _int32(step: int, value: int) -> bytes:
    return _field(step, _INT32, _varint(2 * value))


def _int64(step: int, value: int) -> bytes:
    return _field(step, _INT64, _varint(2 * value))


def _text(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _list(kind: int, *items: bytes) -> bytes:
    return bytes([len(items) << 4 | kind]) + b"".join(items)


def _struct(*fields: bytes) -> bytes:
    return b"".join(fields) + b"\0"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
