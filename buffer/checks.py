"""Checks of what callers pass in, before anything of it can reach the bucket."""

from __future__ import annotations

import math
import operator
import re
from datetime import datetime
from typing import Any

from forebay.buffer.errors import InvalidInput

MOST = 2**63 - 1
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""What groups and lasting writers may be called."""


def check_whole(value: Any, name: str, *, least: int = 0, most: int = MOST) -> int:
    """Return a whole number within bounds as an `int`, or raise `InvalidInput` that names it.

    A float, even 1.0, is refused: it would be written as one, and no reader would take it.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool) or not least <= whole <= most:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}")
    return whole


def check_seconds(value: Any, name: str, *, least: float = 0.0, zero: bool = False) -> float:
    """Return a positive number of seconds of at least `least`, or 0 if `zero` allows it, or raise `InvalidInput`."""
    seconds = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if zero and seconds == 0:
        return 0.0
    if not (math.isfinite(seconds) and seconds > 0 and seconds >= least):
        bound = f" of at least {least}" if least else ""
        raise InvalidInput(f"{name} must be a positive number of seconds{bound}, not {value!r}")
    return float(seconds)


def check_name(value: Any, what: str) -> str:
    """Return a name that can be part of a key on any store, or raise `InvalidInput` that says what a name is."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or value in {".", ".."}:
        raise InvalidInput(f"{what} is 1 to 100 letters, digits, '.', '_' or '-', not {value!r}")
    return value


def parse_time(moment: str | datetime) -> int:
    """Return a user's moment in milliseconds since 1970."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise InvalidInput(
                f"{moment!r} is neither 'earliest', 'latest', a sequence nor a time such as 2026-01-31T12:00:00+00:00"
            ) from None
    if not isinstance(moment, datetime):
        raise InvalidInput(f"a time is a datetime or ISO 8601 text, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise InvalidInput(f"{moment.isoformat()} has no zone: add one, such as +00:00")
    return int(moment.timestamp() * 1000)
