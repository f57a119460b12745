"""Checks of what callers pass in, before anything of it can reach the bucket."""

from __future__ import annotations

import math
import operator
import re
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from forebay.buffer.base.errors import InvalidInput

MOST = 2**62
"""The largest whole number that is taken or stored: one more still fits where forebay stores it."""
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
"""A count in a stored object. A larger one is refused when it is read: no program counts that far."""
Signed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A number in a stored object that may be negative, such as milliseconds since 1970."""
MOST_SECONDS = 100 * 365 * 86_400.0
"""The longest time span, a hundred years. The system's clocks and locks take no more than about three hundred."""
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
        bound = f" and at most {most}" if whole is not None and whole > most else ""
        raise InvalidInput(f"{name} must be a whole number of at least {least}{bound}, not {_shown(value)}")
    return whole


def check_seconds(value: Any, name: str, *, least: float = 0.0, zero: bool = False) -> float:
    """Return a number of seconds as a `float`, or raise `InvalidInput` that names it.

    Infinity, NaN and more than a hundred years are refused.

    Args:
        value: what the caller passed.
        name: the parameter's name, for the error.
        least: the smallest number allowed.
        zero: whether 0 is allowed too.
    """
    seconds = _number(value)
    if seconds > MOST_SECONDS:
        raise InvalidInput(f"{name} must be at most {MOST_SECONDS:.0f} seconds (100 years), not {_shown(value)}")
    if not (seconds >= least and (seconds > 0 or (zero and seconds == 0))):
        bound = f" of at least {least}" if least else ""
        allowed = "0 or a positive number" if zero else "a positive number"
        raise InvalidInput(f"{name} must be {allowed} of seconds{bound}, not {_shown(value)}")
    return seconds


def check_timeout(value: Any, name: str = "timeout") -> float | None:
    """Return the seconds to wait at most, or None to wait without a limit. Below 0 counts as 0.

    Raises:
        InvalidInput: it is NaN, infinite, more than a hundred years, or no number.
    """
    if value is None:
        return None
    seconds = _number(value)
    if not seconds <= MOST_SECONDS:
        raise InvalidInput(f"{name} must be a number of seconds, or None to wait without a limit, not {_shown(value)}")
    return max(0.0, seconds)


def _shown(value: Any) -> str:
    """Return the value for a message. Python refuses to write an int of more than 4300 digits."""
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} of {value.bit_length()} bits"


def _number(value: Any) -> float:
    """Return an int or a float as a `float`; NaN for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.inf if value > 0 else -math.inf


def check_name(value: Any, what: str) -> str:
    """Return a name that can be part of a key on any store, or raise `InvalidInput` that says what a name is."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or value in {".", ".."}:
        raise InvalidInput(f"{what} must be 1 to 100 letters, digits, '.', '_' or '-', not {_shown(value)}")
    return value


def parse_time(moment: str | datetime) -> int:
    """Return a user's moment in milliseconds since 1970."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise InvalidInput(
                f"{moment!r} is not a position: use 'earliest', 'latest', a time such as 2026-01-31T12:00:00+00:00, "
                "or a sequence (an integer; not for a topic)"
            ) from None
    if not isinstance(moment, datetime):
        raise InvalidInput(f"a time must be a datetime or ISO 8601 text, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise InvalidInput(f"{moment.isoformat()} has no zone: add one, such as +00:00")
    return int(moment.timestamp() * 1000)
