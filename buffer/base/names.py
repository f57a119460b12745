"""Names of batches and segments: ULIDs, whose text sorts by time and which the collector's floor is compared with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ulid import ULID

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock, Random

LOWEST: Final = "0" * 26
"""Below or equal to every ULID."""

_ULID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ULID_FILE: Final = re.compile(r"(?:^|/)([0-7][0-9A-HJKMNP-TV-Z]{25})(?:\.[a-z]+)?$")
_HIGHEST: Final = (1 << 128) - 1


def mint(clock: Clock, random: Random, *, above: str = LOWEST) -> str:
    """Return a new ULID of the present time, or above the floor if the clock is behind it."""
    value = clock.now_ms() << 80 | random.getrandbits(80)
    floor = int(ULID.from_str(above))
    if value <= floor:  # guard: make names above the floor whatever the clock says
        value = min(floor + 1 + random.getrandbits(64), _HIGHEST)
    return str(ULID.from_int(value))


def at_time(time_ms: int) -> str:
    """Return the lowest ULID of a moment."""
    return str(ULID.from_int(max(0, min(time_ms, (1 << 48) - 1)) << 80))


def time_ms(ulid: str) -> int:
    """Return the moment that a ULID was made at, in milliseconds since 1970."""
    return int(ULID.from_str(ulid)) >> 80


def is_ulid(text: str) -> bool:
    """Return whether a text is a ULID as `mint` writes it."""
    return _ULID.fullmatch(text) is not None


def ulid_in(key: str) -> str | None:
    """Return the ULID that an object is named by, or None if it is named by something else."""
    found = _ULID_FILE.search(key)
    return found.group(1) if found else None
