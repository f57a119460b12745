"""The words of the domain, as values: what a batch is called and what is known of it without fetching it.

They are msgspec structs, so that a version 2 manifest holds them as they are. They cannot refer to each other in a
circle, so the garbage collector need not look at them: a plan may have hundreds of thousands.
"""

from __future__ import annotations

from msgspec import Struct

from forebay.buffer.base.checks import Signed, Whole  # noqa: TC001 - msgspec reads the annotations


class Metadata(Struct, frozen=True, array_like=True, gc=False):
    """What a producer attached to one call, and the entries of the batch that it covers."""

    start_index: Whole
    """The first entry it covers; it covers all up to the next one's `start_index`."""
    ingestion_time_ms: Signed
    """When the producer took the entries in, in milliseconds since 1970."""
    payload: bytes
    """Opaque to forebay."""


class Facts(Struct, frozen=True, array_like=True, gc=False):
    """What is known of a batch without opening it."""

    object_bytes: Whole
    """The stored object's size."""
    raw_bytes: Whole
    """The size of its record block before compression."""
    records: Whole
    """How many entries it holds."""
    crc32c: Whole
    """The stored object's checksum."""
    first_time_ms: Signed
    """The earliest ingestion time in it."""
    last_time_ms: Signed
    """The latest ingestion time in it."""


class NewBatch(Struct, frozen=True, array_like=True, gc=False):
    """A stored batch, as a manifest lists it; its sequence follows from its place there."""

    location: str
    """The batch object's key, relative to the buffer's URL: never used before."""
    metadata: tuple[Metadata, ...] = ()
    """In the order of `start_index`."""
    facts: Facts | None = None
    """None for batches that come from a version 1 manifest, which knows none."""
    schema: Whole | None = None
    """The version of the buffer's schema that its rows are in, counted from 0; None for a batch of bytes."""


class Reader(Struct, frozen=True):
    """Who reads a buffer: the same for every process that goes on with the reading, another after a reset."""

    source: str
    """The buffer: its id, that moves with it; of a version 1 buffer, which has none, a hash of its URL. 32 digits."""
    group: str = ""
    """The group; empty for the unnamed consumer."""
    generation: str = ""
    """Which of the group's lives: another one after a reset, or after it was deleted and made again."""


class BatchSchema(Struct, frozen=True, gc=False):
    """Which schemas a reader of a typed batch needs: ids of objects in `schemas/`."""

    written: str
    """The version that the rows are stored in."""
    newest: str
    """The newest version of the manifest that the descriptor was made from: rows are shown in it."""


class BatchDescriptor(Struct, frozen=True, gc=False):
    """Everything a worker needs to fetch one batch without reading the manifest. Pickles; may be sent anywhere."""

    sequence: int
    """The number the manifest gave the batch: contiguous, from 0, never reused."""
    location: str
    """The batch object's key, relative to the buffer's URL."""
    metadata: tuple[Metadata, ...] = ()
    """In the order of `start_index`; empty if the producer attached none."""
    facts: Facts | None = None
    """What the manifest knows of the batch; None in version 1."""
    base_record: int | None = None
    """The number of its first entry in the whole log, counted from 0; None in version 1."""
    schema: BatchSchema | None = None
    """The schemas of a typed batch; None for a batch of bytes."""

    @property
    def size(self) -> int | None:
        """The object's bytes, where the manifest knows them."""
        return None if self.facts is None else self.facts.object_bytes

    @property
    def first_time_ms(self) -> int | None:
        """When the first of its entries was taken in; None if nothing tells."""
        if self.facts is not None:
            return self.facts.first_time_ms
        return min((item.ingestion_time_ms for item in self.metadata), default=None)

    @property
    def last_time_ms(self) -> int | None:
        """When the last of its entries was taken in; None if nothing tells."""
        if self.facts is not None:
            return self.facts.last_time_ms
        return max((item.ingestion_time_ms for item in self.metadata), default=None)
