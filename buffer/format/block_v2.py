"""Entries to the block of a version 2 batch and back: all their bytes one after the other, then a length for each.

    block = bytes*, len:u32*

Arrow holds a `binary` array just so, but for running totals in place of lengths. So reading copies no entry: the array
stands on the block's own memory. Writing copies each entry once, into its place.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Lengths: TypeAlias = "array[int]"
"""Entries' lengths as the block has them: unsigned, of four bytes, and little-endian as on all machines with wheels of
Arrow."""

_FEW: Final = 300
"""Maximum number of values that Python adds up faster than Arrow."""

MAX_ARRAY_BYTES: Final = 2**31 - 1
"""Where the 32-bit offsets of Arrow's `binary` end."""


def lengths_of(entries: Iterable[bytes] | pa.Array) -> Lengths:
    """Return each entry's length; `OverflowError` if one has 4 GiB or more."""
    if not isinstance(entries, pa.Array):
        return array("I", map(len, entries))
    found = pc.binary_length(entries)
    if found.type == pa.int64():
        found = found.cast(pa.uint32())  # those of a `binary` array are int32: the same bytes, so they need no cast
    lengths = array("I")
    if len(found):
        lengths.frombytes(found.buffers()[1].slice(4 * found.offset, 4 * len(found)))
    return lengths


def total_of(lengths: Lengths) -> int:
    """Return the lengths' sum."""
    if len(lengths) < _FEW:
        return sum(lengths)
    return int(pc.sum(column_of(lengths)).as_py())


def bytes_of(values: pa.BinaryArray | pa.LargeBinaryArray) -> memoryview:
    """Return the bytes of all entries of an array without nulls, one after the other, in the array's own memory."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return memoryview(b"")
    wide = pa.int64() if pa.types.is_large_binary(values.type) else pa.int32()
    bounds = pa.Array.from_buffers(wide, len(values) + 1, [None, offsets], offset=values.offset)
    return memoryview(data).cast("B")[bounds[0].as_py() : bounds[len(values)].as_py()]


def to_array(data: memoryview, lengths: Lengths) -> pa.BinaryArray | pa.LargeBinaryArray:
    """Return the entries as an array that stands on `data`; a `binary` array if their version 1 block fits one."""
    small = len(data) + 4 * len(lengths) < MAX_ARRAY_BYTES
    kind, number = (pa.binary(), pa.int32()) if small else (pa.large_binary(), pa.int64())
    offsets = _running_totals(column_of(lengths).cast(number))
    return pa.Array.from_buffers(kind, len(lengths), [None, offsets.buffers()[1], pa.py_buffer(data)])


def column_of(lengths: Lengths) -> pa.UInt32Array:
    """Return the lengths as an array that stands on their memory."""
    return pa.Array.from_buffers(pa.uint32(), len(lengths), [None, pa.py_buffer(lengths)])


def read_columns(block: pa.Buffer, count: int) -> Iterator[pa.BinaryArray]:
    """Yield the `count` entries of a block, which has room for their lengths, as arrays below 2 GiB that stand on it.

    Raises:
        ArrowInvalid: the lengths do not add up to what there is, or an entry is 2 GiB long or longer.
    """
    end = block.size - 4 * count
    data = block.slice(0, end)
    if end > MAX_ARRAY_BYTES:
        yield from _read_in_parts(data, pa.Array.from_buffers(pa.uint32(), count, [None, block.slice(end)]))
        return
    lengths = pa.Array.from_buffers(pa.int32(), count, [None, block.slice(end)])
    if count and pc.min(lengths).as_py() < 0:  # guard: refuse lengths that overflow
        raise pa.ArrowInvalid("an entry of 2 GiB or more")
    offsets = _running_totals(lengths)
    _check_total(offsets[count].as_py(), end)
    yield pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], data])


def _read_in_parts(data: pa.Buffer, lengths: pa.UInt32Array) -> Iterator[pa.BinaryArray]:
    offsets = _running_totals(lengths.cast(pa.int64()))
    _check_total(offsets[len(lengths)].as_py(), data.size)
    start = 0
    while start < len(lengths):
        base = offsets[start].as_py()
        rows = range(start, len(lengths))
        stop = start + bisect_right(rows, base + MAX_ARRAY_BYTES, key=lambda row: offsets[row + 1].as_py())
        if stop == start:
            raise pa.ArrowInvalid("an entry of 2 GiB or more")
        part = pc.subtract(offsets.slice(start, stop - start + 1), base).cast(pa.int32())
        values = data.slice(base, part[stop - start].as_py())
        yield pa.Array.from_buffers(pa.binary(), stop - start, [None, part.buffers()[1], values])
        start = stop


def _running_totals(lengths: pa.Int32Array | pa.Int64Array) -> pa.Int32Array | pa.Int64Array:
    """Arrow's offsets: the lengths' sums, from 0 on. `ArrowInvalid` where one is too large for its type."""
    # The lengths may lie at any address; joined to the zero they are copied to one that Arrow's kernels can count on.
    return pc.cumulative_sum_checked(pa.concat_arrays([pa.arange(0, 1).cast(lengths.type), lengths]))


def _check_total(found: int, expected: int) -> None:
    if found != expected:  # guard: refuse lengths that do not add up to the bytes
        raise pa.ArrowInvalid(f"lengths that add up to {found}, and {expected} bytes")
