"""Reading again what arrived damaged: one wrong answer does not mean that the stored object is damaged.

Every reader of stored bytes goes through `read_sound`: registers (heads, topic records, cursors), segments, batches and
catalog snapshots. Damage is reported, skipped or set aside as a dead letter only after it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.buffer.base.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock

_log = logging.getLogger("forebay.store")

T = TypeVar("T")

MAX_READS: Final = 3
"""Maximum number of times that an object is read before it counts as damaged."""
_FIRST_PAUSE: Final = 0.05
"""Seconds between the first read and the second. Each later pause is four times as long."""


def read_sound(read: Callable[[], T], clock: Clock, *, again: Callable[[], T] | None = None) -> T:
    """Return what `read` returns. If it raises `Corrupt`, pause and read again, `MAX_READS` times in all.

    Args:
        read: requests the object, checks it and decodes it. It raises `Corrupt` if the bytes are not sound.
        clock: what the pauses sleep on.
        again: what to call instead of `read` after the first time, where the first read was conditional or its bytes
            came from elsewhere. It must send a new, unconditional request.

    Raises:
        Corrupt: the last read was damaged, too.
    """
    for number in range(MAX_READS - 1):  # guard: read damaged data again
        try:
            return read()
        except Corrupt as error:
            _log.warning("reading again, because what arrived is damaged: %s", error)
            clock.sleep(_FIRST_PAUSE * 4**number)
            read = again or read
    return read()
