"""CRC32C of anything that holds bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    from forebay.buffer.store.base import Data

_PIECE_BYTES = 256 << 10


def crc32c(data: Data) -> int:
    """Return the checksum of the data."""
    if isinstance(data, bytes):
        return int(google_crc32c.value(data))
    # The library takes `bytes` alone. Pieces that fit the cache cost little to copy, where a copy of the whole would.
    view = memoryview(data).cast("B")
    checksum = 0
    for start in range(0, len(view), _PIECE_BYTES):
        checksum = google_crc32c.extend(checksum, bytes(view[start : start + _PIECE_BYTES]))
    return checksum
