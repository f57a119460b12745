"""Why is this batch missing? The manifest listed it, and fetching its object raised `NotFound`.

- The bucket is missing (`NotFound.bucket`).
- Another consumer took over and acknowledged it, so that the collector could delete it: `Fenced`.
- Retention dropped it: `Trimmed`, or the reader skips it.
- Somebody deleted it by mistake: `NotFound`.

Only a second look at the manifest tells which. A consumer looks with its claim: `Consumer.look_again`, or
`Consumer.check_missing` for a batch that it has handed out already. All other readers compare the batch with the first
sequence left: `check_still_listed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.errors import Trimmed

if TYPE_CHECKING:
    from forebay.buffer.base.errors import NotFound
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue


def check_still_listed(missing: BatchDescriptor, error: NotFound, queue: Queue) -> None:
    """Return if a batch whose object a reader without a claim did not find should be there.

    Raises:
        NotFound: `error`, as the bucket is missing.
        Trimmed: retention dropped the batch.
    """
    if error.bucket:
        raise error
    first = queue.read().first_sequence
    if missing.sequence < first:
        raise Trimmed(
            f"batch {missing.sequence} of {queue.store.url} was trimmed before it could be read; read "
            f"from {first} on, which is the first one left",
            first=first,
        ) from None
