"""CRC32C of anything that holds bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

if TYPE_CHECKING:
    from forebay.buffer.store.base import Data


def crc32c(data: Data) -> int:
    """Return the checksum of the data."""
    # google_crc32c rejects memoryview but accepts a pyarrow Buffer.
    return int(google_crc32c.value(data if isinstance(data, bytes) else pa.py_buffer(data)))
