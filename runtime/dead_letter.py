"""Dead letters: batches that cannot be committed, kept in a buffer of their own with the reason (rfcs/0007)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from forebay.buffer.base.errors import Corrupt, ForebayError, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from forebay.buffer.format.model import BatchDescriptor, Reader
    from forebay.buffer.producer import Producer
    from forebay.buffer.read.fetch import Batch, FetchHandle


_MAX_ERROR: Final = 4000
"""Characters of an error that are kept: metadata is in the manifest, which everyone reads."""


class Halted(ForebayError):
    """The runtime cannot go on by itself: see to what it says, and start it again. Nothing is lost meanwhile."""


class DeadLetter(msgspec.Struct, frozen=True):
    """What the metadata of a dead letter says, as JSON; the entries beside it are the batch's own."""

    url: str
    """The buffer that the batch is in."""
    source: str
    """The buffer's id."""
    group: str
    """The reader; empty for the unnamed consumer."""
    generation: str
    """Which of the group's lives."""
    sequence: int
    """The batch."""
    location: str
    """The batch's object."""
    first_entry: int | None
    """The range of entries that is kept here, both included. None if the object is no batch: then the one entry here is
    the object's bytes, or empty if it is missing."""
    last_entry: int | None
    error: str
    """Why."""

    @classmethod
    def parse(cls, metadata: bytes) -> DeadLetter:
        """Return what the metadata of a dead letter says.

        Raises:
            Corrupt: it is none.
        """
        try:
            return msgspec.json.decode(metadata, type=cls)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"this metadata is not a dead letter's: {error}") from error


def keep(
    producer: Producer,
    descriptor: BatchDescriptor,
    batch: Batch | None,
    *,
    reader: Reader,
    fetcher: FetchHandle,
    error: str,
) -> None:
    """Make a batch durable as a dead letter; one that could not be decoded as the bytes of its object.

    Repeating it, after an error or by another process, keeps it twice.
    """
    entries: Sequence[bytes] | pa.Array
    if batch is not None and len(batch):
        entries, last = batch.arrow, len(batch) - 1
    else:
        entries, last = [_read_object(fetcher, descriptor)], None
    letter = DeadLetter(
        url=fetcher.store.url,
        source=reader.source,
        group=reader.group,
        generation=reader.generation,
        sequence=descriptor.sequence,
        location=descriptor.location,
        first_entry=None if last is None else 0,
        last_entry=last,
        error=error[:_MAX_ERROR],
    )
    # guard: wait until a dead letter is durable
    producer.produce(entries, metadata=msgspec.json.encode(letter)).result()


def _read_object(fetcher: FetchHandle, descriptor: BatchDescriptor) -> bytes:
    try:
        return bytes(fetcher.store.get(descriptor.location).data)
    except NotFound:
        return b""
