"""The head of a version 2 manifest: everything that one compare-and-swap decides (rfcs/0005).

Values here are immutable and know no store; every change returns a new head with the next revision.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.errors import Backpressure, Fenced, InvalidInput, Trimmed
from forebay.buffer.base.names import LOWEST, ulid_in
from forebay.buffer.format.model import BatchDescriptor, NewBatch  # noqa: TC001 - msgspec reads the annotations
from forebay.buffer.manifest.either_version import EitherVersion
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head_fields import Bucket, Group, Hold, Owner, Writer
from forebay.buffer.manifest.nodes import Node, NodeNeeded, Ref, describe
from forebay.buffer.manifest.schema_history import TYPED_BATCHES, check_listings, extend_history
from forebay.buffer.store.base import check_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from forebay.buffer.base.process import Process

KEPT_LISTINGS: Final = 64
"""Number of newest listings that stay in the head when older ones are sealed; sealing starts at twice this number."""
FANOUT: Final = 8
"""Number of references of one level that become one of the next. More would make fewer nodes and a longer head."""
MAX_SEGMENT_LISTINGS: Final = 4096
"""Maximum number of listings in one segment."""
MAX_WRITERS: Final = 256
"""Maximum number of writers without a lasting name that a head remembers; the least recent is forgotten first."""
LASTING: Final = "="
"""What the id of a lasting writer starts with; those of others are random."""
KEPT_LASTING: Final = 128
"""Lasting writers that stay in the head when idle ones are sealed into buckets; sealing starts at twice this number."""
MAX_LASTING: Final = 4096
"""Maximum number of lasting writers in a head. It is reached only if buckets cannot be stored for a long time."""
WRITER_BUCKETS: Final = 64
_BUCKETS_AT_ONCE: Final = 4
"""Maximum number of buckets that one append seals: a read and a write each."""
_SEAL_TURNS: Final = 3
"""How many writers wait for their own turn to seal; all others wait for this many turns."""
SEALED_WRITERS: Final = "sealed-writers"
REFERENCE_FLOOR: Final = "reference-floor"
COUNTED_HOLDS: Final = "counted-holds"
KNOWN_FEATURES: Final[frozenset[str]] = frozenset({SEALED_WRITERS, REFERENCE_FLOOR, COUNTED_HOLDS, TYPED_BATCHES})
"""Names that `required_features` may hold: fields that a release must know to keep the promises (rfcs/0005)."""


class Head(EitherVersion, Struct, frozen=True, array_like=True, tag="head"):
    """One state of a version 2 manifest."""

    version: ClassVar[Literal[1, 2]] = 2
    names_writers: ClassVar[bool] = True

    buffer_id: str
    revision: int = 0
    required_features: tuple[str, ...] = ()
    first_sequence: int = 0
    """The lowest sequence that is retained."""
    next_sequence: int = 0
    next_record: int = 0
    gc_floor: str = LOWEST
    """Nothing named below it is listed, or ever will be."""
    owner: Owner | None = None
    groups: dict[str, Group] = {}
    holds: dict[str, Hold] = {}
    writers: dict[str, Writer] = {}
    dropped: int = 0
    """Batches that retention removed unread, so far."""
    refs: tuple[Ref, ...] = ()
    """Sealed listings, oldest first."""
    tail: tuple[NewBatch, ...] = ()
    """The newest listings, oldest first."""
    reference_floor: str = LOWEST
    """Nothing named below it may be newly referred to; what is listed already may be named below it."""
    swept: str = LOWEST
    """Unlisted objects named below it have been deleted."""
    writer_buckets: dict[int, Bucket] = {}
    """The lasting writers that are not in `writers`, by `bucket_of` their id."""
    schemas: tuple[str, ...] = ()
    """The ids of all versions of the schema, oldest first; empty in a buffer of bytes (rfcs/0010)."""

    @property
    def lowest_new_name(self) -> str:
        """The ULID below which nothing may be newly listed."""
        return max(self.gc_floor, self.reference_floor)  # guard: new names must also be above the reference floor

    @property
    def lasting_writers(self) -> int:
        """How many lasting writers are remembered, in the head and in buckets."""
        in_head = sum(is_lasting(known) and not writer.sealed for known, writer in self.writers.items())
        return in_head + sum(bucket.count for bucket in self.writer_buckets.values())

    @property
    def tail_start(self) -> int:
        """The sequence of the tail's first listing."""
        return self.next_sequence - len(self.tail)

    @property
    def epoch(self) -> int:
        """The unnamed consumer's epoch."""
        return self.owner.epoch if self.owner else 0

    @property
    def claim_id(self) -> str:
        """The id of the unnamed consumer's newest claim."""
        return self.owner.claim_id if self.owner else ""

    @property
    def claimed_by(self) -> Process | None:
        """The process that made the unnamed consumer's newest claim."""
        return self.owner.process if self.owner else None

    @property
    def acked(self) -> int | None:
        """The highest sequence up to which the unnamed consumer has acknowledged all."""
        return self.owner.acked if self.owner else None

    @property
    def object_bytes(self) -> int:
        """The size of all retained batches whose size is known; a reference partly trimmed counts as a whole."""
        sealed = sum(ref.object_bytes for ref in self.refs)
        return sealed + sum(listing.facts.object_bytes for listing in self.tail if listing.facts)

    def to_bytes(self) -> bytes:
        """The object as stored."""
        return pack(self)

    def _next(self, **changes: object) -> Head:
        return replace(self, revision=self.revision + 1, **changes)  # guard: raise the revision with every write

    def _requiring(self, feature: str) -> tuple[str, ...]:
        """The required features with this one among them: sorted, each once. None is ever taken out."""
        return tuple(sorted({*self.required_features, feature}))

    # Writers

    def register_writer(self, writer_id: str) -> Head:
        """Remember a writer before its first append, so that its absence later means that it was forgotten.

        The caller has found it neither here nor in its bucket: a writer that is known would lose its number.

        Raises:
            Backpressure: there is no room for another lasting writer.
        """
        return self._next(writers=self._with_writer(writer_id, Writer(0, self.revision + 1)))

    def append(
        self,
        batches: tuple[NewBatch, ...],
        writer_id: str,
        number: int,
        *,
        sealed: bool = False,
        schemas: Sequence[str] = (),
    ) -> Head:
        """List batches at the end.

        Args:
            batches: what to list.
            writer_id: who appends.
            number: what the head remembers of the writer.
            sealed: whether a writer that is not in the head is in its bucket.
            schemas: ids of all versions up to the one that the writer writes in; empty for batches of bytes.

        Raises:
            BelowFloor: a batch is named below the floor for new names, and may have been swept.
            Backpressure: there is no room for another lasting writer.
            Unsupported: the buffer holds bytes and these are rows, or the reverse, or rows of another schema.
        """
        check_listings(batches, schemas)
        for batch in batches:
            check_key(batch.location)
            ulid = ulid_in(batch.location)
            if ulid is not None and ulid < self.lowest_new_name:  # guard: refuse to append a name below the floor
                raise BelowFloor(self.lowest_new_name)
        known = self.writers.get(writer_id)
        writer = Writer(number, self.revision + 1, sealed if known is None else known.sealed)
        return self._next(
            next_sequence=self.next_sequence + len(batches),
            next_record=self.next_record + sum(batch.facts.records for batch in batches if batch.facts),
            tail=self.tail + batches,
            writers=self._with_writer(writer_id, writer),
            **self._history(schemas),
        )

    def evolve(self, schemas: Sequence[str]) -> Head:
        """The head with the versions that it lacks of a history.

        Raises:
            Unsupported: this is not the history of the buffer.
        """
        return self._next(**self._history(schemas))

    def _history(self, schemas: Sequence[str]) -> dict[str, object]:
        """What changes in the head of a buffer whose history of schemas is this one."""
        history = extend_history(self.schemas, schemas, is_new=self.next_sequence == 0)
        if history is self.schemas:
            return {}
        # An older release would drop the ids when it writes the head, and rows could not be decoded.
        # guard: make older releases refuse a typed buffer
        return {"schemas": history, "required_features": self._requiring(TYPED_BATCHES)}

    def _with_writer(self, writer_id: str, writer: Writer) -> dict[str, Writer]:
        writers = {**self.writers, writer_id: writer}
        if len(writers) <= MAX_WRITERS:
            return writers
        if is_lasting(writer_id) and sum(map(is_lasting, writers)) > MAX_LASTING:
            raise Backpressure(
                f"the manifest has no room for another lasting writer: {MAX_LASTING} are in it, and moving idle ones "
                "out of it keeps failing. See the log for the reason, or remove old names: forebay writers forget"
            )
        # Only a lasting writer comes back after its process has ended, so it is sealed and never forgotten.
        # guard: never forget a lasting writer
        unnamed = [known for known in writers if not is_lasting(known) and known != writer_id]
        surplus = len(unnamed) + (not is_lasting(writer_id)) - MAX_WRITERS
        for known in sorted(unnamed, key=lambda known: writers[known].revision)[: max(0, surplus)]:
            del writers[known]
        return writers

    def is_writer_seal_due(self, turn: int = 0) -> bool:
        """Whether idle lasting writers should move into buckets now; `turn` is as for `plan_seal`."""
        least = 2 * KEPT_LASTING + turn * (KEPT_LASTING // 4)
        return len(self.writers) > least and sum(map(is_lasting, self.writers)) > least

    def plan_writer_seal(self, writer_id: str) -> dict[int, dict[str, Writer]]:
        """Return the idle lasting writers to move into buckets next, by bucket; never the writer that asks."""
        lasting = [known for known in self.writers if is_lasting(known) and known != writer_id]
        idle = sorted(lasting, key=lambda known: self.writers[known].revision)[: max(0, len(lasting) - KEPT_LASTING)]
        fullest = Counter(map(bucket_of, idle)).most_common(_BUCKETS_AT_ONCE)
        return {
            bucket: {known: self.writers[known] for known in idle if bucket_of(known) == bucket}
            for bucket, _ in fullest
        }

    def seal_writers(self, bucket: int, before: Bucket | None, after: Bucket, idle: Mapping[str, Writer]) -> Head:
        """The head with `idle` writers replaced by their stored bucket; unchanged if the bucket was replaced meanwhile.

        A writer that has appended since stays. If one of them was forgotten since, nothing is sealed: the stored object
        would bring its name back. The caller's own change raises the revision.

        Args:
            bucket: which one.
            before: the reference that the stored object was made from; None if there was none.
            after: the reference to the stored object.
            idle: the writers added to it, as they were.
        """
        # guard: replace only the bucket this one was made from
        # guard: refuse a bucket object named below the floor
        if self.writer_buckets.get(bucket) != before or after.name < self.lowest_new_name:
            return self
        if not idle.keys() <= self.writers.keys():  # guard: refuse a bucket that names a forgotten writer
            return self
        # guard: keep a writer in the head if it appended meanwhile
        writers = {
            known: replace(writer, sealed=True) if known in idle else writer
            for known, writer in self.writers.items()
            if idle.get(known) != writer
        }
        return replace(
            self,
            writers=writers,
            writer_buckets={**self.writer_buckets, bucket: after},
            required_features=self._requiring(SEALED_WRITERS),
        )

    def forget_writer(self, writer_id: str, after: Bucket | None) -> Head:
        """The head without a writer; `after` is its bucket without it, or None if no bucket is left or needed."""
        writers = {known: writer for known, writer in self.writers.items() if known != writer_id}
        buckets = dict(self.writer_buckets)
        buckets.pop(bucket_of(writer_id), None)
        if after is not None:
            if after.name < self.lowest_new_name:
                raise BelowFloor(self.lowest_new_name)
            buckets[bucket_of(writer_id)] = after
        return self._next(writers=writers, writer_buckets=buckets)

    # Sealing

    def plan_seal(self, *, heavy: bool = False, turn: int = 0) -> Node | None:
        """What the next appender should store as a node first, if anything.

        Args:
            heavy: the head is heavy with metadata, so more is sealed.
            turn: the appender's place among those that may seal (`seal_turn`); later ones wait for more listings.
        """
        run = self._last_run()
        if len(run) >= FANOUT + turn:
            run = run[:FANOUT]
            return Node(self.buffer_id, run[0].level + 1, run[0].first_sequence, run[0].first_record, (), run)
        kept = 1 if heavy else KEPT_LISTINGS
        if len(self.tail) < 2 * kept + turn * ((kept + 1) // 2):
            return None
        listings = self.tail[: min(len(self.tail) - kept, MAX_SEGMENT_LISTINGS)]
        # Records are counted from a segment's first one, so a listing whose records are not counted ends a segment.
        uncounted = next((i for i in range(len(listings), 0, -1) if listings[i - 1].facts is None), len(listings))
        return Node(self.buffer_id, 0, self.tail_start, self._base_records()[0], listings[:uncounted], ())

    def _last_run(self) -> tuple[Ref, ...]:
        start = len(self.refs)
        while start and self.refs[start - 1].level == self.refs[-1].level:
            start -= 1
        return self.refs[start:]

    def seal_turn(self, writer_id: str) -> int:
        """A writer's place, from 0, among those that appended lately: all of them work out the same order."""
        lately = {known for known, writer in self.writers.items() if self.revision - writer.revision < KEPT_LISTINGS}
        order = sorted(lately | {writer_id}, key=lambda known: _hash(f"{self.tail_start} {known}"))
        return min(order.index(writer_id), _SEAL_TURNS)

    def seal(self, ref: Ref, children: tuple[Ref, ...] = ()) -> Head:
        """The head with a stored node in the place of what it holds, or as it is if that no longer stands there.

        The caller's own change raises the revision. `children` are the references in an index node.
        """
        if ref.name < self.lowest_new_name:  # guard: refuse to seal a segment named below the floor
            return self
        if ref.level == 0:
            # guard: seal only entries that are still in the tail
            if self.tail_start != ref.first_sequence or len(self.tail) < ref.count:
                return self
            return replace(self, refs=(*self.refs, ref), tail=self.tail[ref.count :])
        first = next((i for i, known in enumerate(self.refs) if known.first_sequence == ref.first_sequence), 0)
        end = first + len(children)
        # The very same nodes: others that hold the same listings would be newly referred to, whatever their names.
        if not children or self.refs[first:end] != children:  # guard: an index node must match its references exactly
            return self
        return replace(self, refs=(*self.refs[:first], ref, *self.refs[end:]))

    # The unnamed consumer

    def claim(self, claim_id: str, process: Process | None = None) -> Head:
        """Make a claim of the unnamed consumer."""
        return self._next(owner=Owner(self.epoch + 1, claim_id, self.acked, process))

    def ack(self, through: int) -> Head:
        """Move the unnamed consumer's frontier; listings stay until the collector trims them."""
        if self.owner is None:
            raise Fenced("no consumer has claimed this buffer since its manifest was made; this consumer must stop")
        return self._next(owner=replace(self.owner, acked=through))

    # Groups and holds

    def with_group(self, name: str, generation: str, start: int) -> Head:
        """Make a group, or give it a new life, that reads from `start`."""
        if not 0 <= start <= self.next_sequence:
            raise InvalidInput(f"start must be a sequence from 0 to {self.next_sequence}, not {start}")
        if start < self.first_sequence:  # guard: refuse a group that starts below what is retained
            raise trimmed(start, self.first_sequence)
        return self._next(groups={**self.groups, name: Group(generation, start)})

    def without_group(self, name: str) -> Head:
        """Forget a group."""
        return self._next(groups={known: group for known, group in self.groups.items() if known != name})

    def with_hold(self, hold_id: str, hold: Hold) -> Head:
        """Add a hold, or renew it."""
        # An older release would drop the counter when it writes the head, and remove the hold at once.
        # guard: make older releases refuse a head with a counted hold
        features = self._requiring(COUNTED_HOLDS) if hold.ttl_ms else self.required_features
        # guard: refuse a hold on what is already trimmed
        if hold.first_sequence is not None and hold.first_sequence < self.first_sequence:
            raise trimmed(hold.first_sequence, self.first_sequence)
        return self._next(holds={**self.holds, hold_id: hold}, required_features=features)

    def without_hold(self, hold_id: str) -> Head:
        """Let go of a hold."""
        return self._next(holds={known: hold for known, hold in self.holds.items() if known != hold_id})

    # Collecting

    @property
    def lowest(self) -> str | None:
        """The smallest ULID that can be reached; None if there is none."""
        listed = [ulid for listing in self.tail if (ulid := ulid_in(listing.location))]
        return min([*listed, *(ref.lowest for ref in self.refs)], default=None)

    def trim(self, point: int, nodes: Mapping[str, Node]) -> Head:
        """Drop everything below a sequence. A reference that reaches below it is replaced by what is left of its node.

        Raises:
            NodeNeeded: that node is not among those given.
        """
        point = min(max(point, self.first_sequence), self.next_sequence)
        refs: list[Ref] = []
        pending = list(reversed(self.refs))
        while pending:
            ref = pending.pop()
            if ref.end <= point:
                continue
            if ref.first_sequence >= point or ref.level == 0:
                refs.append(ref)
            elif ref.name not in nodes:
                raise NodeNeeded(ref)
            else:
                pending.extend(reversed(nodes[ref.name].refs))
        kept = self.tail[max(0, point - self.tail_start) :]
        return replace(self, first_sequence=point, refs=tuple(refs), tail=kept)

    def collect(
        self,
        *,
        point: int,
        dropped: int,
        expired: Collection[str],
        floor: str,
        nodes: Mapping[str, Node],
        stamps: Mapping[str, int] | None = None,
    ) -> Head | None:
        """What the collector writes: trimmed below `point`, without expired holds, both floors raised towards `floor`.

        Neither floor goes down, or above the floor of a remaining hold. `gc_floor` also stays at or below the smallest
        name that is still reachable. `stamps` maps each hold that gets a stamp to the store's time. None if nothing
        would change.

        Raises:
            NodeNeeded: a node to trim through is not among those given.
        """
        trimmed_head = self.trim(point, nodes)
        holds = {hold_id: hold for hold_id, hold in self.holds.items() if hold_id not in expired}
        holds |= {hold_id: replace(holds[hold_id], stamp_ms=stamp_ms) for hold_id, stamp_ms in (stamps or {}).items()}
        # guard: a hold keeps the floor below its uploads
        held = (hold.floor for hold in holds.values() if hold.floor is not None)
        reference_floor = max(self.lowest_new_name, min([floor, *held]))  # guard: the floor never goes down
        lowest = trimmed_head.lowest
        # guard: keep the floor at or below the lowest reachable name
        gc_floor = max(self.gc_floor, reference_floor if lowest is None else min(reference_floor, lowest))
        features = self._requiring(REFERENCE_FLOOR) if reference_floor > gc_floor else self.required_features
        collected = replace(
            trimmed_head,
            holds=holds,
            dropped=self.dropped + dropped,
            gc_floor=gc_floor,
            reference_floor=reference_floor,
            required_features=features,
        )
        return None if collected == self else replace(collected, revision=self.revision + 1)

    def with_swept(self, swept: str) -> Head | None:
        """Record up to which name unlisted objects have been deleted; None if that is known."""
        return self._next(swept=swept) if swept > self.swept else None

    def touch(self) -> Head:
        """The same, one revision on: a write that only makes the store say what time it is."""
        return self._next()

    # Reading

    def tail_descriptors(self, first: int, limit: int) -> list[BatchDescriptor]:
        """Up to `limit` descriptors from sequence `first` on, which must be in the tail."""
        start = first - self.tail_start
        bases = self._base_records()
        return [
            describe(self.tail_start + i, self.tail[i], bases[i], self.schemas)
            for i in range(start, min(start + limit, len(self.tail)))
        ]

    def _base_records(self) -> list[int | None]:
        """The number of each tail listing's first record; None from the last uncounted listing backwards."""
        bases: list[int | None] = []
        base: int | None = self.next_record
        for listing in reversed(self.tail):
            base = None if base is None or listing.facts is None else base - listing.facts.records
            bases.append(base)
        bases.reverse()
        return bases


class BelowFloor(InvalidInput):
    """An object is named below the collector's floor for new names: store it again under a name above `floor`."""

    def __init__(self, floor: str) -> None:
        super().__init__(f"an object is named below the collector's floor {floor} and may have been swept")
        self.floor = floor


def trimmed(asked: int, first: int) -> Trimmed:
    """The error for who asks for what is gone."""
    return Trimmed(f"batch {asked} was trimmed; read from {first} on, which is the first one left", first=first)


def bucket_of(writer_id: str) -> int:
    """The bucket that a lasting writer is sealed into."""
    return int(_hash(writer_id)[:2], 16) % WRITER_BUCKETS


def is_lasting(writer_id: str) -> bool:
    """Whether a writer's id outlives its process."""
    return writer_id.startswith(LASTING)


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()
