"""Which objects a listing showed, in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.buffer.store import ObjectInfo

_U64: Final = 2**64 - 1


class Inventory:
    """The objects of a listing by their keys: seventeen bytes for each, however long its key is.

    Keys are kept as 64-bit hashes. Of ten million, two fall together once in three hundred thousand runs.
    """

    def __init__(self, listing: Iterable[ObjectInfo]) -> None:
        hashes, sizes = array("Q"), array("Q")
        for found in listing:
            hashes.append(hash(found.key) & _U64)
            sizes.append(found.size)
        order = pc.sort_indices(_as_arrow(hashes))
        self._hashes = _sorted(hashes, order)
        self._sizes = _sorted(sizes, order)
        self._marked = bytearray(len(hashes))
        self.unmarked: int = len(hashes)
        """How many have not been marked yet."""

    def size_of(self, key: str) -> int | None:
        """Return an object's size; None if it was not listed."""
        place = self._place(key)
        return None if place is None else int(self._sizes[place])

    def mark(self, key: str) -> bool:
        """Note that an object is accounted for, and return whether it was already."""
        place = self._place(key)
        if place is None:
            return False
        before = bool(self._marked[place])
        self._marked[place] = True
        self.unmarked -= not before
        return before

    def is_unmarked(self, key: str) -> bool:
        """Whether an object was listed and nobody accounted for it."""
        place = self._place(key)
        return place is not None and not self._marked[place]

    def _place(self, key: str) -> int | None:
        wanted = hash(key) & _U64
        place = bisect_left(self._hashes, wanted)
        return place if place < len(self._hashes) and self._hashes[place] == wanted else None


def _as_arrow(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.uint64(), len(numbers), [None, pa.py_buffer(numbers)])


def _sorted(numbers: array[int], order: pa.Array) -> memoryview:
    return memoryview(_as_arrow(numbers).take(order).buffers()[1]).cast("B").cast("Q")[: len(numbers)]
