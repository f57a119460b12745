"""The questions that a manifest of either version answers, so that few callers have to ask which version it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base.names import LOWEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import ClassVar, Literal

    from forebay.buffer.base.process import Process
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest.head_fields import Bucket, Group, Hold, Writer
    from forebay.buffer.manifest.nodes import Ref


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to acknowledge, until somebody else claims it."""

    epoch: int
    """One more than the previous owner's."""
    claim_id: str
    """Known only to the process that made the claim. Version 1 does not store it."""


class EitherVersion:
    """One state of a manifest: `Manifest` of version 1, or `Head` of version 2. Immutable: a change returns a new one.

    Where only version 2 has a feature, the default here is what version 1 answers: there are none, or none are known.
    """

    __slots__ = ()

    version: ClassVar[Literal[1, 2]]
    names_writers: ClassVar[bool]
    """Whether it names its writers, so that each can see who else appends."""

    @property
    def buffer_id(self) -> str:
        """The buffer's id. In version 1, which stores none, it is derived from the manifest's address."""
        raise NotImplementedError

    # Batches

    first_sequence: int
    """The lowest sequence that is retained; `next_sequence` if there is none."""
    next_sequence: int
    """The sequence that the next appended batch gets."""

    @property
    def count(self) -> int:
        """How many batches are retained."""
        return self.next_sequence - self.first_sequence

    @property
    def tail_start(self) -> int:
        """The first sequence that is listed in the manifest itself; lower ones are in sealed segments."""
        return self.first_sequence

    def tail_descriptors(self, first: int, limit: int) -> list[BatchDescriptor]:
        """Up to `limit` descriptors from sequence `first` on, which must not be below `tail_start`."""
        raise NotImplementedError

    @property
    def object_bytes(self) -> int:
        """The size of all retained batches whose size is known; a reference partly trimmed counts as a whole."""
        return 0

    @property
    def is_unwritten(self) -> bool:
        """Whether only an unnamed consumer wrote it, as version 1. The first producer still decides the format."""
        return False

    # The unnamed consumer

    @property
    def epoch(self) -> int:
        """The unnamed consumer's epoch; 0 if there never was one."""
        raise NotImplementedError

    @property
    def claim_id(self) -> str:
        """The id of the newest claim; empty if it was made in version 1, which stores none."""
        return ""

    @property
    def claimed_by(self) -> Process | None:
        """The process that made the newest claim; None if it is not known."""
        return None

    @property
    def acked(self) -> int | None:
        """The highest sequence up to which the unnamed consumer has acknowledged all; None if nothing is known."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """How many retained batches the unnamed consumer has not acknowledged."""
        return max(0, self.next_sequence - max(self.first_sequence, 0 if self.acked is None else self.acked + 1))

    def has_acked(self, through: int) -> bool:
        """Whether the unnamed consumer has acknowledged all batches up to and including `through`."""
        return self.acked is not None and self.acked >= through

    def following(self, after: int | None) -> int:
        """The sequence to read after `after`; if that is None, after what is acknowledged."""
        if after is None:
            after = self.acked
        return self.first_sequence if after is None else after + 1

    def is_held_by(self, claim: Claim) -> bool:
        """Whether a claim is the newest one. Claims made in version 1 have an empty id and are compared by epoch."""
        # guard: compare the epoch of a version 1 claim
        # guard: identify a version 1 claim by its epoch alone
        if self.epoch != claim.epoch:
            return False
        return self.claim_id in ("", claim.claim_id)

    # What only version 2 has

    refs: Sequence[Ref] = ()
    """The sealed listings, oldest first."""
    groups: Mapping[str, Group] = {}
    """The named readers."""
    holds: Mapping[str, Hold] = {}
    """What must not be trimmed or swept, by id."""
    writers: Mapping[str, Writer] = {}
    """How far each writer has come, by id, but for those in `writer_buckets`."""
    writer_buckets: Mapping[int, Bucket] = {}
    """The lasting writers that are not in `writers`, by `bucket_of` their id."""
    schemas: Sequence[str] = ()
    """The ids of all versions of a typed buffer's schema, oldest first; empty in a buffer of bytes."""
    dropped: int = 0
    """How many batches retention has removed unread."""
    gc_floor: str = LOWEST
    """Nothing named below it is listed, or ever will be."""

    @property
    def lowest_new_name(self) -> str:
        """The ULID below which nothing may be newly listed."""
        return LOWEST
