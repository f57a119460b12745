"""Decodes a batch, and separates the entries that cannot be decoded from those that can (rfcs/0007)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Timeout, Unavailable, Unknown
from forebay.runtime.bad_entries import MAX_ATTEMPTS, BadEntry, find_bad, others

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from forebay.buffer.read.fetch import Batch
    from forebay.runtime.contract import Decoder

NOT_THE_DATA: Final = (MemoryError, Unavailable, Unknown, Timeout)
"""Errors of a decoder that say nothing about the batch: this machine, or a service that the decoder calls, failed."""
_MAX_ROUNDS: Final = 3
"""Maximum number of searches for bad entries. If the rest is still refused, the whole batch counts as bad."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding a batch: rows, and the entries that could not be decoded."""

    batch: Batch | None
    """The batch with the entries that could be decoded; None if there are none."""
    table: pa.Table | None
    """Their rows."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why each of the other entries could not be decoded, by its index in the original batch."""


def isolate(decoder: Decoder, batch: Batch, error: Exception, *, max_attempts: int = MAX_ATTEMPTS) -> Decoded:
    """Return what can be decoded of a batch of one or more entries that the decoder refused with an error.

    The rows always come from one call of the decoder, with a batch of the good entries. A decoder that raises
    `BadEntry` names the bad entries. After any other exception, they are found by giving the decoder parts of the
    batch. If no set of bad entries is found without which the rest can be decoded, the whole batch is bad.

    Raises:
        MemoryError, Unavailable, Unknown, Timeout: this machine, or a service that the decoder calls, failed.
    """
    places: Sequence[int] = range(len(batch))
    reasons: dict[int, str] = {}
    rest = batch
    problem = error
    for _ in range(_MAX_ROUNDS):
        found = _find(decoder, rest, problem, max_attempts)
        if not found:
            break
        reasons |= {places[index]: reason for index, reason in found.items()}
        good = others(sorted(reasons), len(batch))
        if not good:
            return Decoded(None, None, reasons)
        places = [index for entries in good for index in entries]
        rest = batch.select(good)
        try:
            return Decoded(rest, decoder(rest), reasons)
        except NOT_THE_DATA:
            raise
        except Exception as raised:  # noqa: BLE001 - a decoder may raise anything
            problem = raised
    return Decoded(None, None, dict.fromkeys(range(len(batch)), describe(error)))


def describe(error: Exception) -> str:
    """Return an error as text."""
    return f"{type(error).__name__}: {error}"


def _find(decoder: Decoder, batch: Batch, error: Exception, max_attempts: int) -> dict[int, str]:
    """Return the bad entries of a batch that the decoder refused, by index, with the reasons."""

    def attempt(entries: range) -> str | None:
        try:
            decoder(batch.select([entries]))
        except NOT_THE_DATA:
            raise
        except Exception as raised:  # noqa: BLE001 - a decoder may raise anything
            return describe(raised)
        return None

    named = error.reasons if isinstance(error, BadEntry) else {}
    found = dict(named) or find_bad(attempt, len(batch), describe(error), max_attempts)
    if not found and isinstance(error, BadEntry):
        found = {error.index: describe(error)}
    return {index: reason for index, reason in found.items() if 0 <= index < len(batch)}
