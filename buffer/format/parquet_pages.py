"""What the pages of a Parquet file claim, checked before Arrow allocates memory by it (rfcs/0010).

Arrow's reader believes page headers: a file of 175 bytes makes it allocate 2 GiB. If every row refers to one long value
in a dictionary, it allocates that value once for each row of a step. This module reads the footer and the page headers
of the wanted columns itself, and compares them with what the manifest says of the batch.

Footer and headers are structs of Thrift's compact protocol (`block_v1.py` writes it and lists its rules).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from forebay.buffer.format.block_v1 import read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_SLACK_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 1 << 26
"""Memory that the values of one dictionary may take in one step, if the batch is not larger anyway."""
_CODECS: Final = (0, 6)
"""None, and zstd."""
_BYTE_ARRAY: Final = 6
_DICTIONARY: Final = 2
_DATA_HEADERS: Final = {0: 5, 3: 8}
"""By the type of a data page: the field of its header that says how many values it has."""

# Thrift's types.
_INTS: Final = frozenset({4, 5, 6})
_BINARY, _LIST, _STRUCT = 8, 9, 12
_FIXED: Final = {1: 0, 2: 0, 3: 1, 7: 8}


@dataclass(frozen=True, slots=True)
class Claims:
    """What the manifest says of a batch."""

    records: int
    raw_bytes: int

    @property
    def most_bytes(self) -> int:
        """Maximum size of all pages once they are decompressed: Parquet stores an int8 in four bytes."""
        return 4 * self.raw_bytes + _SLACK_BYTES

    @property
    def most_values(self) -> int:
        """Maximum number of values in one column: inside a list, one takes a bit at least."""
        return self.records + 8 * self.raw_bytes


def check_pages(data: memoryview, columns: Collection[str], claims: Claims, step_rows: int) -> int:
    """Return the number of rows to decode in one step, at most `step_rows`, so that a step stays within memory.

    Raises:
        ValueError: the file claims more than a batch of this size can have, or contradicts itself.
        IndexError: it ends too early.
    """
    wanted = {name.encode() for name in columns}
    groups = _get(_read_footer(data), 4, (_STRUCT, []))[1]
    size = 0
    for group in groups:
        for chunk in _get(group, 1, (_STRUCT, []))[1]:
            meta = _get(chunk, 3, {})
            if _get(meta, 3, (_BINARY, [b""]))[1][0] in wanted:
                size, longest = _check_chunk(data, meta, claims, size)
                # guard: make steps small if a dictionary has long values
                step_rows = min(step_rows, max(_STEP_BYTES, 2 * claims.raw_bytes) // max(1, longest))
    return max(1, step_rows)


def _check_chunk(data: memoryview, meta: dict[int, Any], claims: Claims, total: int) -> tuple[int, int]:
    """Check the pages of one column in a row group.

    Returns:
        The size of all pages so far once they are decompressed (`total` is that of those before), and the length of the
        longest value in the dictionary, if it may matter.
    """
    longest = values = 0
    codec = _get(meta, 4, 0)
    if codec not in _CODECS:
        raise ValueError(f"a column is compressed by codec {codec}")
    for header, page in _walk_pages(data, meta):
        kind, size = _get(header, 1, -1), _get(header, 2, -1)
        total += size
        # guard: bound what the pages of a typed batch decompress to
        if size < 0 or total > claims.most_bytes:
            raise ValueError(f"its pages claim {total} bytes; the manifest says {claims.raw_bytes} for all rows")
        if kind == _DICTIONARY:
            count, is_text = _get(_get(header, 7, {}), 1, -1), _get(meta, 1, -1) == _BYTE_ARRAY
            # A text takes its length's four bytes at least.
            if not 0 <= count * (4 if is_text else 1) <= size:  # guard: bound the values of a dictionary
                raise ValueError(f"a dictionary of {size} bytes claims {count} values")
            if is_text:
                longest = _longest(page, count, codec, size, claims)
        elif kind in _DATA_HEADERS:
            values += _get(_get(header, _DATA_HEADERS[kind], {}), 1, -1)
    if not 0 <= values <= claims.most_values:  # guard: bound the values of a column
        raise ValueError(f"a column claims {values} values; the manifest says {claims.records} rows")
    return total, longest


def _longest(page: memoryview, count: int, codec: int, size: int, claims: Claims) -> int:
    """Return an upper bound of the length of a dictionary's values; exact if rows of that length would be too large."""
    most = size - 4 * count
    if most * claims.records <= max(_STEP_BYTES, 2 * claims.raw_bytes):
        return most
    values = read_page(page, count, codec=codec, raw_size=size)
    return pc.max(pc.binary_length(values)).as_py() or 0


def _walk_pages(data: memoryview, meta: dict[int, Any]) -> Iterator[tuple[dict[int, Any], memoryview]]:
    """Yield the header and the stored bytes of each page of a column in a row group."""
    start = _get(meta, 9, -1)
    if 0 < (dictionary := _get(meta, 11, 0)) < start:
        start = dictionary
    end = start + _get(meta, 7, -1)
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"a column lies from byte {start} to {end} of {len(data)}")
    while start < end:
        reader = _Reader(data, start)
        header = reader.struct()
        start = reader.at + _get(header, 3, -1)
        if not reader.at <= start <= end:
            raise ValueError("a page ends after its column")
        yield header, data[reader.at : start]


def _read_footer(data: memoryview) -> dict[int, Any]:
    size = int.from_bytes(data[-8:-4], "little")
    if not 0 < size <= len(data) - 12:
        raise ValueError(f"a footer of {size} bytes in a file of {len(data)}")
    return _Reader(bytes(data[-8 - size : -8]), 0).struct()


def _get(struct: dict[int, Any], number: int, default: Any) -> Any:
    """Return a field of a struct if it has the type of `default`."""
    found = struct.get(number, default)
    if type(found) is not type(default):
        raise ValueError(f"field {number} has another type than Parquet says")
    return found


class _Reader:
    """Reads structs as dicts from a field's number to its value, and lists as the type and the values."""

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self._data, self.at = data, at

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > 8:
            raise ValueError("structs inside each other, deeper than Parquet has them")
        found: dict[int, Any] = {}
        number = 0
        while header := self._data[self.at]:
            self.at += 1
            number = number + (header >> 4) if header >> 4 else self._int()
            found[number] = self._value(header & 15, depth)
        self.at += 1
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTS:
            return self._int()
        if kind == _BINARY:
            size = self._varint()
            self.at += size
            return bytes(self._data[self.at - size : self.at])
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _LIST:
            header = self._data[self.at]
            self.at += 1
            size = header >> 4 if header >> 4 < 15 else self._varint()
            if size > len(self._data):
                raise ValueError(f"a list of {size} in a file of {len(self._data)} bytes")
            of = header & 15
            return of, [self._value(3 if of in {1, 2} else of, depth + 1) for _ in range(size)]
        if kind not in _FIXED:
            raise ValueError(f"a field of type {kind}, which Parquet does not have")
        self.at += _FIXED[kind]
        return None

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _int(self) -> int:
        value = self._data[self.at]
        if value < 0x80:
            self.at += 1
        else:
            value = self._varint()
        return value >> 1 ^ -(value & 1)
