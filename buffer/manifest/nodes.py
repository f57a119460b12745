"""Sealed objects that a head refers to: segments, index nodes over segments, and buckets of writers (rfcs/0005)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.checks import Signed, Whole  # noqa: TC001 - msgspec reads the annotations
from forebay.buffer.base.errors import InvalidInput, damaged
from forebay.buffer.base.names import ulid_in
from forebay.buffer.format.model import BatchDescriptor, BatchSchema, NewBatch
from forebay.buffer.store.base import check_key

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ref(Struct, frozen=True, array_like=True):
    """A sealed run of listings: a segment (level 0), or an index node over references of the level below."""

    name: str
    """The ULID that the object is named by."""
    level: Whole
    first_sequence: Whole
    count: Whole
    first_record: Whole | None
    """None if the records before it were never counted (they come from version 1)."""
    object_bytes: Whole
    """Of all its batches."""
    lowest: str
    """The smallest ULID of anything reachable through it, itself included."""
    first_time_ms: Signed | None
    last_time_ms: Signed | None
    highest: str | None = None
    """The largest ULID of anything reachable through it, itself included; None if an older release made it."""

    @property
    def end(self) -> int:
        """The sequence after its last."""
        return self.first_sequence + self.count

    def meets(self, first: str, last: str) -> bool:
        """Whether something reachable through it may have a name from `first` to `last`."""
        return self.lowest <= last and (self.highest is None or self.highest >= first)


class Node(Struct, frozen=True, array_like=True, tag="node"):
    """A sealed object: listings at level 0, references above."""

    buffer_id: str
    level: Whole
    first_sequence: Whole
    first_record: Whole | None
    entries: tuple[NewBatch, ...]
    """The listings, named as in rfcs/0005; none above level 0."""
    refs: tuple[Ref, ...]

    def refer(self, name: str) -> Ref:
        """The reference to this node, stored under `name`."""
        highest: str | None = None
        if self.level == 0:
            names = [ulid for listing in self.entries if (ulid := ulid_in(listing.location))]
            highest = max([name, *names])
            starts = [listing.facts.first_time_ms for listing in self.entries if listing.facts]
            ends = [listing.facts.last_time_ms for listing in self.entries if listing.facts]
            sizes = sum(listing.facts.object_bytes for listing in self.entries if listing.facts)
            count = len(self.entries)
        else:
            names = [ref.lowest for ref in self.refs]
            known = [ref.highest for ref in self.refs if ref.highest is not None]
            if len(known) == len(self.refs):
                highest = max([name, *known])
            starts = [ref.first_time_ms for ref in self.refs if ref.first_time_ms is not None]
            ends = [ref.last_time_ms for ref in self.refs if ref.last_time_ms is not None]
            sizes = sum(ref.object_bytes for ref in self.refs)
            count = sum(ref.count for ref in self.refs)
        return Ref(
            name,
            self.level,
            self.first_sequence,
            count,
            self.first_record,
            sizes,
            min([name, *names]),
            min(starts, default=None),
            max(ends, default=None),
            highest,
        )

    def is_behind(self, ref: Ref) -> bool:
        """Whether a reference, perhaps one that an older release made, stands for this node."""
        found = self.refer(ref.name)
        return ref == (found if ref.highest is not None else replace(found, highest=None))

    def describe(self, schemas: Sequence[str]) -> list[BatchDescriptor]:
        """The descriptors of a segment's listings; `schemas` are those of the head that refers to it."""
        found = []
        base = self.first_record
        for sequence, listing in enumerate(self.entries, self.first_sequence):
            found.append(describe(sequence, listing, base, schemas))
            base = None if base is None or listing.facts is None else base + listing.facts.records
        return found


class WriterNode(Struct, frozen=True, array_like=True, tag="writers"):
    """A sealed object: lasting writers of one bucket and the numbers of their last appends."""

    buffer_id: str
    bucket: Whole
    numbers: dict[str, Whole]


class NodeNeeded(Exception):
    """A trim goes through this reference, so its node has to be read first."""

    def __init__(self, ref: Ref) -> None:
        super().__init__(ref.name)
        self.ref = ref


def describe(sequence: int, listing: NewBatch, base_record: int | None, schemas: Sequence[str] = ()) -> BatchDescriptor:
    """The descriptor of a listed batch; `schemas` are the versions that its manifest has."""
    try:
        check_key(listing.location)
    except InvalidInput as error:
        raise damaged(f"the manifest's listing for sequence {sequence} names no object: {error}") from error
    if listing.schema is None and not schemas:
        return BatchDescriptor(sequence, listing.location, listing.metadata, listing.facts, base_record)
    # guard: a listing names a schema version that the head has
    if listing.schema is None or listing.schema >= len(schemas) or listing.facts is None:
        raise damaged(
            f"the manifest's listing for sequence {sequence} names schema version {listing.schema}, of {len(schemas)}"
        )
    schema = BatchSchema(schemas[listing.schema], schemas[-1])
    return BatchDescriptor(sequence, listing.location, listing.metadata, listing.facts, base_record, schema)
