"""What a scenario's entries are: bytes, or rows of a schema. A test that takes a `Kind` holds for buffers of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pytest


@dataclass(frozen=True)
class Kind:
    """One kind of entry."""

    name: str
    schema: pa.Schema | None
    """What a producer or `create_topic` is given as `schema`."""

    def make(self, value: bytes) -> Any:
        """Return an entry that holds a value, as `produce` takes it."""
        return value if self.schema is None else {"value": value}

    def read(self, batch: Any) -> list[bytes]:
        """Return the values of a batch's entries, in order."""
        return list(batch.entries) if self.schema is None else [row["value"] for row in batch.entries]

    def read_all(self, batches: Iterable[Any]) -> list[bytes]:
        """Return the values of all batches, in order."""
        return [value for batch in batches for value in self.read(batch)]


BYTES: Final = Kind("bytes", None)
ROWS: Final = Kind("rows", pa.schema([pa.field("value", pa.binary(), nullable=False)]))
KINDS: Final = pytest.mark.parametrize("kind", [BYTES, ROWS], ids=lambda kind: kind.name)
