"""From a key to a partition: the same in every process and every release (rfcs/0005)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_MULTIPLIER: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


def partition_for(key: bytes, partitions: int) -> int:
    """Return the number of the partition that a key belongs to.

    The key's BLAKE2b hash of 8 bytes, read as a little-endian number, through Lamping and Veach's jump consistent
    hash. With more partitions, a key stays where it was or moves to a new one; no two old ones exchange keys.
    """
    state = int.from_bytes(blake2b(key, digest_size=8).digest(), "little")
    partition, candidate = -1, 0
    while candidate < partitions:
        partition = candidate
        state = (state * _MULTIPLIER + 1) & _MASK
        candidate = int((partition + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return partition
