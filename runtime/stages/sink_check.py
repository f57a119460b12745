"""Checks before a runtime reads a source whether the sink can take its rows, so that a conflict is reported at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import InvalidInput, Timeout, Unavailable, Unknown
from forebay.runtime.contract import Sink
from forebay.runtime.decoders import rows_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from forebay.runtime.contract import Decoder

_log = logging.getLogger("forebay.runtime")


def check_sink(
    sink: Sink, decoder: Decoder, stored: Callable[[], pa.Schema | None], url: str, *, has_letters: bool
) -> None:
    """Return if the sink may be able to commit the rows of a source.

    Args:
        sink: the sink that the rows go to.
        decoder: the decoder that makes the rows.
        stored: returns the schema of the source; None if it holds bytes.
        url: the source's URL, for messages.
        has_letters: whether rows that do not fit become dead letters.

    Raises:
        InvalidInput, Unsupported: no row could ever be committed, and none would become a dead letter.
    """
    if type(sink).plan is Sink.plan:
        return
    try:
        schema = rows_schema(decoder, stored())
        plan = None if schema is None else sink.plan(schema)
    except (Unavailable, Timeout, Unknown) as error:
        _log.warning("%s: the sink was not checked before the start: %s", url, error)
        return
    if plan is None:
        return
    if plan.conflicts and not has_letters:  # guard: refuse rows that no column takes before anything is read
        raise InvalidInput(
            f"{url}: no row fits into the target: {'; '.join(plan.conflicts)}. Let the decoder give what the target "
            "has, or write to another target"
        )
    for text in plan.conflicts:
        _log.warning("%s: no row fits into the target, so all become dead letters: %s", url, text)
    for text in plan.warnings:
        _log.warning("%s: some values may not fit into the target: %s", url, text)
    for text in plan.changes:
        _log.info("%s: the first commit changes the target: %s", url, text)
