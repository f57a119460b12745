"""The versions of a typed buffer's schema, as a head or a topic's record names them: ids in order (rfcs/0010).

A history only grows. What two processes know of one history differs at most in length: one is the start of the other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Unsupported, damaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.buffer.format.model import NewBatch

TYPED_BATCHES: Final = "typed-batches"
"""The required feature of heads and records that name schemas."""
_ID: Final = re.compile("[0-9a-f]{32}")


def extend_history(known: tuple[str, ...], carried: Sequence[str], *, is_new: bool) -> tuple[str, ...]:
    """Return the history of a buffer after an append that carries the versions up to its own.

    Args:
        known: what the head names.
        carried: what the writer knows, up to the version that it writes in; empty for batches of bytes.
        is_new: whether nothing was ever appended to the buffer.

    Raises:
        Unsupported: the batches do not belong in this buffer.
    """
    carried = tuple(carried)
    # guard: refuse a batch of bytes in a typed buffer
    if known and not carried:
        raise Unsupported(
            "this buffer holds rows of a schema, and these are entries of bytes. If the producer was opened before the "
            "buffer got its schema, open a new one, and produce them again as rows"
        )
    # guard: refuse rows in a buffer that holds bytes
    if carried and not known and not is_new:
        raise Unsupported("this buffer holds entries of bytes, and these are rows of a schema: use another buffer")
    if known[: len(carried)] == carried:
        return known
    # guard: a history is only ever continued
    if carried[: len(known)] != known:
        raise Unsupported(
            "this buffer has other versions of its schema than the writer knows: open a new producer, and produce "
            "these rows again"
        )
    return carried


def check_listings(batches: Sequence[NewBatch], carried: Sequence[str]) -> None:
    """Raise `Unsupported` if a batch is in a version that its writer does not carry."""
    for batch in batches:
        # guard: list rows only in a version that the writer knows
        if (batch.schema is None) != (not carried) or (batch.schema is not None and batch.schema >= len(carried)):
            raise Unsupported(
                f"{batch.location} is in schema version {batch.schema}, and the producer knows "
                f"{len(carried)} versions; open a new producer, and produce it again"
            )


def check_history(schemas: Sequence[str], features: Sequence[str], location: str) -> None:
    """Raise `Corrupt` if the ids that a head or a record names cannot be: they become parts of keys."""
    if len(set(schemas)) != len(schemas) or not all(map(_ID.fullmatch, schemas)):
        raise damaged(f"{location}: it names {', '.join(map(repr, schemas[:9]))} as its schemas, which cannot be")
    if bool(schemas) != (TYPED_BATCHES in features):
        raise damaged(f"{location}: it names {len(schemas)} schemas and needs the features {', '.join(features)}")
