"""Yields the descriptors of a range of the manifest, however long, and keeps few of them in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue, State

PIECE: Final = 1000
"""Maximum number of descriptors that are read, and kept in memory, at once."""


def descriptors_between(
    queue: Queue, first: int, end: int, *, state: State, check: Callable[[], None] | None = None
) -> Iterator[BatchDescriptor]:
    """Yield the batches of a manifest from sequence `first` to before `end`, read piece by piece.

    Args:
        queue: the buffer's manifest.
        first: the first sequence.
        end: the sequence after the last one.
        state: the manifest as it was read.
        check: called before each piece is read; may raise.

    Raises:
        Trimmed: the rest of the range was trimmed meanwhile.
        Corrupt: the manifest does not list all of them.
    """
    while first < end:
        if check is not None:
            check()
        found = queue.descriptors(first, min(PIECE, end - first), state=state)
        if not found:
            raise Corrupt(
                f"{queue.url} no longer lists batch {first}: the manifest was replaced, or set back to an "
                "older version. Restore the newest one"
            )
        yield from found
        first += len(found)
