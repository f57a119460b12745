"""The queue that a manifest makes of stored batches: append, read, acknowledge, claim, each one compare-and-swap.

A manifest is of version 1 (`Manifest`) or 2 (`Head`). Which one is read from the object, each time: a buffer may be
migrated while its producers run.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from hashlib import blake2b
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_name, check_whole, parse_time
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import (
    Corrupt,
    Fenced,
    ForebayError,
    InvalidInput,
    NotFound,
    StoreError,
    Timeout,
    Unavailable,
    Unknown,
    Unsupported,
)
from forebay.buffer.format.model import Reader
from forebay.buffer.manifest.head import LASTING, MAX_WRITERS, BelowFloor, Head, bucket_of, trimmed
from forebay.buffer.manifest.head_fields import Writer
from forebay.buffer.manifest.pace import Pace
from forebay.buffer.manifest.register import DEFAULT_LIMITS, Limits, Register, Snapshot
from forebay.buffer.manifest.segments import Segments
from forebay.buffer.manifest.state import (
    OPENDATA_MANIFEST_PATH,
    Profile,
    State,
    check_no_remains,
    convert_unwritten,
    is_unwritten,
    read_state,
)
from forebay.buffer.manifest.v1 import Manifest
from forebay.buffer.manifest.writers import WriterBuckets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.batch import Version
    from forebay.buffer.format.model import BatchDescriptor, NewBatch
    from forebay.buffer.manifest.head_fields import Bucket
    from forebay.buffer.store.base import ObjectStore

_log = logging.getLogger("forebay.manifest")

T = TypeVar("T")

_HEAVY_BYTES = 256 << 10
"""A head larger than that holds much metadata: it is sealed sooner."""
_MOST_STALE_READS = 5
_QUIET_LOOKS = 32
"""Number of looks in a row that find a version 1 manifest unchanged, before its writer stops looking first."""
_MOST_SEALS = 8
"""Nodes that one append stores at most; ordinary ones store none or one."""
_MOST_REGISTRATIONS = 10
"""Maximum registrations in one append: other writers may displace this one between its registration and its append."""


class PlaceConsumed(Unknown):
    """An append in doubt whose place in the queue was consumed meanwhile: it can never be found out if it was applied.

    Only version 1 comes to this. Nothing of it is in the manifest any more. Whoever wants its entries read for certain
    appends them again, as another object: then they may be read twice.
    """


class _NotRegistered(ForebayError):
    """The head does not know this writer, yet or any more."""


class _BucketReplaced(ForebayError):
    """A bucket of writers is not the one that a change was made from."""


def _forget(writer_id: str, before: Bucket | None, after: Bucket | None, head: Head) -> Head:
    if head.writer_buckets.get(bucket_of(writer_id)) != before:
        raise _BucketReplaced("another process has replaced the bucket")
    return head.forget_writer(writer_id, after)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to acknowledge, until somebody else claims it."""

    epoch: int
    """One more than the owner's before."""
    claim_id: str
    """Known to the one who made the claim alone. Version 1 has no place for it."""


class Queue:
    """One role's view of a manifest: a producer, a consumer and a collector each open their own, and say which.

    Safe to use from many threads: one request of a role is under way at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest_path: str = "manifest",
        *,
        profile: Profile = "native",
        role: str = "reader",
        writer_id: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        if profile not in ("native", "opendata"):
            raise InvalidInput(f"profile must be 'native' or 'opendata', not {profile!r}")
        self.store = store
        self.manifest_path = manifest_path
        self._profile = profile
        self._random = random or system_random()
        self._clock = clock or SystemClock()
        self.segments = Segments(store, clock=self._clock, random=self._random)
        self._register: Register[State] = Register(
            store,
            manifest_path,
            decode=lambda data: read_state(data, f"{store.url}/{manifest_path}"),
            encode=lambda state: state.to_bytes(),
            limits=limits,
            clock=clock,
            random=random,
        )
        self.writer_id = self.new_id() if writer_id is None else LASTING + check_name(writer_id, "writer_id")
        self.pace = Pace(self.writer_id, spacing=self._register.spacing, clock=self._clock)
        self._number = 0
        self.buckets = WriterBuckets(store, clock=self._clock, random=self._random)
        self._missing_bucket = ""
        self._seals: list[Callable[[Head], Head]] = []
        self._attributes = {"buffer": store.url, "role": role}
        self._lock = RLock()
        self._known: Snapshot[State] | None = None
        self._undisturbed = True
        self._attempt_seconds = 0.0
        self._seen = False
        self._looked_for_remains = False
        self._early_ack: int | None = None
        self._quiet_looks = 0

    @property
    def url(self) -> str:
        """The manifest's address, for messages."""
        return self._register.url

    @property
    def conflict_rate(self) -> float:
        """The share of this role's manifest writes, from 0 to 1, that found another writer there first."""
        return self._register.conflict_rate

    def new_id(self) -> str:
        """Return a random id that nobody else has."""
        return f"{self._random.getrandbits(128):032x}"

    # Reading

    def read(self) -> State:
        """Return the manifest as it is now; one that has not changed since the last look costs a conditional read."""
        with self._lock:
            known = self._known
            snapshot = self._register.read() if known is None else self._register.read_if_changed(known)
            return self._remember(snapshot)

    def read_existing(self) -> State:
        """Return the manifest as it is now.

        Raises:
            NotFound: there is none; a missing manifest is an empty one to who writes, and a wrong URL to who reads.
        """
        with self._lock:
            state = self.read()
            if self.last_seen() is None:
                raise NotFound(
                    f"{self.url} is not there: nothing was ever written to this buffer, or its URL is wrong: "
                    f"{self._hint_of_missing()}"
                )
            return state

    def _hint_of_missing(self) -> str:
        if any(found.key == OPENDATA_MANIFEST_PATH for found in self.store.list(OPENDATA_MANIFEST_PATH)):
            return f"OpenData Buffer's manifest is at {OPENDATA_MANIFEST_PATH}: pass that as the manifest path"
        return "check the URL"

    def last_seen(self) -> State | None:
        """Return the manifest as it was last read or written here."""
        known = self._known
        return None if known is None else known.value

    def descriptors(self, first: int, limit: int, *, state: State | None = None) -> list[BatchDescriptor]:
        """Return up to `limit` batches from sequence `first` on: of `state`, or else of the manifest as it is now.

        Raises:
            Trimmed: `first` is gone.
        """

        def find(current: State) -> list[BatchDescriptor]:
            if first < current.first_sequence:
                raise trimmed(first, current.first_sequence)
            if isinstance(current, Manifest):
                return current.entries_after(first - 1, limit)
            return self.segments.descriptors(current, first, limit)

        return self.look_through(find, self.read() if state is None else state)

    def look_through(self, find: Callable[[State], T], state: State) -> T:
        """Return what `find` finds in a state's segments, which may be swept meanwhile: then in a newer state."""
        for _ in range(_MOST_STALE_READS):
            try:
                return find(state)
            except NotFound as error:
                # Trimmed and swept since that head was read, or really missing: a fresh look tells.
                missing, before, state = error, state, self.read()
                # guard: retry a missing segment with a fresh head
                if isinstance(before, Head) and isinstance(state, Head) and state.revision == before.revision:
                    break
        raise Corrupt(f"{self.url}: it refers to a segment that is not there ({missing})") from missing

    def sequence_of(self, place: str | int | datetime, *, state: State) -> int:
        """Return the sequence that `earliest`, `latest`, a sequence, or a time (ISO 8601 or a datetime) stands for."""
        if place == "earliest":
            return state.first_sequence
        if place == "latest":
            return state.next_sequence
        if not isinstance(place, str | datetime):
            return check_whole(place, "a sequence")
        moment = parse_time(place)
        return self.look_through(lambda found: self.segments.sequence_at(self._as_head(found), moment), state)

    def end_of(self, place: str | int | datetime, *, state: State) -> int:
        """Return the sequence after the last one of a range up to `place`, all that there is at most.

        A sequence belongs to the range itself. Up to a time it holds every batch with an entry taken in before then.
        """
        if isinstance(place, int) or place in {"earliest", "latest"}:
            last = self.sequence_of(place, state=state)
            return min(last + 1, state.next_sequence)
        moment = parse_time(place)
        return self.look_through(lambda found: self.segments.end_before(self._as_head(found), moment), state)

    # Appending

    def append(
        self,
        batches: Sequence[NewBatch],
        *,
        number: int | None = None,
        let_go: str | None = None,
        version: Version = 1,
    ) -> range:
        """Add stored batches to the end, in order and all at once, and return their sequences.

        `number` is what the manifest remembers of this writer, higher than before; by default it counts appends.
        `let_go` is a hold that kept them until now, and that the same write ends. `version` is the newest format that
        one of them is stored in.

        Raises:
            Unsupported: the manifest is of version 1, whose readers know no newer batches; nothing was appended.
            BelowFloor: a batch is named below the collector's floor; nothing was appended.
            Fenced: another process has appended under this writer's name; nothing was appended.
            Unknown: they may or may not have been appended, or may yet be. Never append them again by the same name.
            PlaceConsumed: as `Unknown`, and no later look can tell.
        """
        if not batches:
            raise InvalidInput(f"{self.url}: there is nothing to append")
        with self._lock:
            self._seal_if_due()
            for _ in range(_MOST_REGISTRATIONS):
                try:
                    added = self._append(
                        tuple(batches), self._number + 1 if number is None else number, let_go, version
                    )
                except _NotRegistered:
                    self.register_writer()
                    continue
                if isinstance(head := self.last_seen(), Head):
                    self.pace.note(head, self._attempt_seconds)
                return added
        raise Timeout(
            f"{self.url}: this writer was forgotten {_MOST_REGISTRATIONS} times between its registration and its "
            f"append, because more than {MAX_WRITERS} producers append at once; nothing was appended. Try again, or "
            "spread the producers over the partitions of a topic"
        )

    def register_writer(self) -> None:
        """Register this writer in the manifest before its first append. If it is missing later, it was forgotten.

        Raises:
            Backpressure: the manifest has no room for another lasting writer; nothing was written.
        """

        def register(state: State | None) -> State | None:
            head = self._as_head(state)
            # guard: registering a writer must not reset its number
            return None if self.find_writer(head) else self._sealed(head).register_writer(self.writer_id)

        with self._lock:
            if self.is_lasting:
                self.read()
                self._seal_if_due()
            self._update(register, lambda state: isinstance(state, Head) and self.find_writer(state) is not None)

    @property
    def is_lasting(self) -> bool:
        """Whether this writer's name outlives its process."""
        return self.writer_id.startswith(LASTING)

    def find_writer(self, head: Head) -> Writer | None:
        """Return this writer's last append, from the head or from its bucket; None if it is in neither.

        Raises:
            Unavailable: its bucket was replaced since the head was read: read the head again.
            Corrupt: its bucket is damaged or missing.
        """
        writer = head.writers.get(self.writer_id)
        if writer is not None or not self.is_lasting:  # guard: look for a lasting writer in its bucket
            return writer
        bucket = bucket_of(self.writer_id)
        try:
            number = self.buckets.load(head, bucket).get(self.writer_id)
        except NotFound as error:
            name = head.writer_buckets[bucket].name
            if name == self._missing_bucket:
                raise Corrupt(f"{self.url}: it refers to a bucket of writers that is not there ({error})") from error
            self._missing_bucket = name
            raise Unavailable(f"{self.url}: a bucket of writers was replaced while it was read ({error})") from error
        return None if number is None else Writer(number, 0, sealed=True)

    def resume(self) -> int:
        """Return the number of this writer's last append, 0 if there is none; appends go on from it.

        For a writer whose name outlives its process. What a process before it had sent and not heard of may still
        arrive: then the number is another, and an append decided by this one is refused with `Fenced`.
        """
        with self._lock:
            try:
                writer = self.find_writer(self._as_head(self.read()))
            except Unavailable:
                writer = self.find_writer(self._as_head(self.read()))
            self._number = 0 if writer is None else writer.number
            return self._number

    def forget_writer(self, name: str) -> bool:
        """Remove a lasting writer from the manifest, and return whether it was there.

        A producer of that name counts as new from then on: its repeats are stored again.
        """
        writer_id = LASTING + check_name(name, "writer_id")
        bucket = bucket_of(writer_id)
        was_there = False
        for _ in range(_MOST_STALE_READS):
            head = self._as_head(self.read_existing())
            before = head.writer_buckets.get(bucket)
            numbers = self.look_through(lambda head: dict(self.buckets.load(self._as_head(head), bucket)), head)
            if writer_id not in head.writers and writer_id not in numbers:
                return was_there  # removed by an attempt whose answer was lost, if not by another process
            was_there = True
            after = before
            if numbers.pop(writer_id, None) is not None:
                after = self.buckets.save(head, bucket, numbers) if numbers else None

            def is_mine(head: Head, after: Bucket | None = after) -> bool:
                return writer_id not in head.writers and head.writer_buckets.get(bucket) == after

            with suppress(_BucketReplaced, BelowFloor):
                self.change_head(partial(_forget, writer_id, before, after), is_mine)
                return True
        raise Timeout(f"{self.url}: other writers kept changing the manifest; {name!r} was not removed. Try again")

    def lasting_writers(self) -> dict[str, int]:
        """Return the number of every lasting writer's last append, by name. Reads every bucket."""
        head = self._as_head(self.read_existing())

        def find(head: State) -> dict[str, int]:
            head = self._as_head(head)
            sealed = [self.buckets.load(head, bucket) for bucket in head.writer_buckets]
            in_head = {known: w.number for known, w in head.writers.items() if known.startswith(LASTING)}
            found = {known: number for numbers in sealed for known, number in numbers.items()} | in_head
            return {known.removeprefix(LASTING): found[known] for known in sorted(found)}

        return self.look_through(find, head)

    def _append(self, batches: tuple[NewBatch, ...], number: int, let_go: str | None, version: Version) -> range:
        locations = [batch.location for batch in batches]
        tried: State | None = None
        place = 0
        consumed = False

        def add(state: State | None) -> State:
            nonlocal tried, place, consumed
            tried, consumed = self.as_written(state or self._empty()), False
            place = tried.next_sequence
            if isinstance(tried, Manifest):
                if version != 1:  # guard: refuse newer batch formats in a version 1 manifest
                    raise Unsupported(
                        f"{self.url} was made a buffer of version 1 by somebody else, and these batches are of version "
                        f"{version}: open a new producer, and produce them again"
                    )
                return tried.append(batches)
            head = tried if let_go is None else tried.without_hold(let_go)
            return self._add_to_head(head, batches, number)

        def is_mine(state: State) -> bool | None:
            nonlocal consumed
            if isinstance(state, Head) and isinstance(tried, Head):
                writer = self.find_writer(state)
                # guard: find a lost append by the number of its writer
                # guard: an append of a forgotten writer is unknown
                return None if writer is None else writer.number >= number
            # guard: look for our own location before appending again
            if isinstance(state, Manifest) and state.lists_any(locations):
                return True
            consumed = state.first_sequence > place  # guard: detect that the place was already consumed
            if consumed:
                return None
            # Written on version 1 and found migrated: it is where it was put, or nowhere.
            # guard: look for an append in doubt at its place after migration
            return isinstance(state, Head) and any(
                found.location == locations[0] for found in self.descriptors(place, 1, state=state)
            )

        try:
            self._update(add, is_mine)
        except Unknown as error:
            if consumed:
                raise PlaceConsumed(
                    f"{self.url}: the append of {locations[0]} was in doubt, and what stood at its place, sequence "
                    f"{place}, has been consumed meanwhile"
                ) from error
            # Its number is used up: nothing may be appended under it again.
            self._number = number
            raise
        self._number = number
        self._seals = []
        return range(place, place + len(batches))

    def _add_to_head(self, head: Head, batches: tuple[NewBatch, ...], number: int) -> Head:
        writer = self.find_writer(head)
        if writer is None:
            raise _NotRegistered(f"{self.url}: writer {self.writer_id} is not registered")
        if writer.number > self._number:  # guard: fence a lasting writer whose number has moved on
            raise Fenced(
                f"{self.url}: another producer of the name {self.writer_id} has come to number {writer.number}, and "
                f"this one knew of {self._number}: open a new one, and repeat what follows its last_number"
            )
        return self._sealed(head).append(batches, self.writer_id, number, sealed=writer.sealed)

    def _seal_if_due(self) -> None:
        head = self.last_seen()
        if not isinstance(head, Head):
            return
        still_due, self._seals = self._seals, []
        for seal in still_due:  # of an append that failed
            head = self._seal(head, seal)
        heavy = self._known is not None and len(self._known.data) > _HEAVY_BYTES
        if head.plan_seal(heavy=heavy) is None and not head.is_writer_seal_due():
            return  # nothing is due at anybody's turn, and finding out the turn costs more than this
        turn = head.seal_turn(self.writer_id)  # guard: writers take turns at sealing
        try:
            while len(self._seals) < _MOST_SEALS and (node := head.plan_seal(heavy=heavy, turn=turn)) is not None:
                ref = self.segments.store_node(node, above=head.lowest_new_name)
                head = self._seal(head, partial(Head.seal, ref=ref, children=node.refs))
            planned = head.plan_writer_seal(self.writer_id) if head.is_writer_seal_due(turn) else {}
            for bucket, idle in planned.items():
                before = head.writer_buckets.get(bucket)
                numbers = {**self.buckets.load(head, bucket), **{known: w.number for known, w in idle.items()}}
                after = self.buckets.save(head, bucket, numbers)
                seal = partial(Head.seal_writers, bucket=bucket, before=before, after=after, idle=idle)
                head = self._seal(head, seal)
        except (StoreError, Corrupt):
            # The append does not need it, and the next one will try again.
            _log.warning("%s: sealing older entries or idle writers failed", self.url, exc_info=True)

    def _seal(self, head: Head, seal: Callable[[Head], Head]) -> Head:
        sealed = seal(head)
        if sealed is not head:
            self._seals.append(seal)
        return sealed

    def _sealed(self, head: Head) -> Head:
        return reduce(lambda head, seal: seal(head), self._seals, head)

    # The unnamed consumer

    def claim(self) -> Claim:
        """Take over the read side.

        Two rivals that read epoch e both write e + 1, so an epoch seen in the manifest never proves whose it is. In
        version 2 the claim id does; in version 1, after anything but a clear success, this claims again, above the
        epoch just read.
        """
        claim_id = self.new_id()

        def take(state: State | None) -> State:
            state = state or self._unwritten()  # guard: a consumer that opens first leaves the format open
            return state.claim(claim_id) if isinstance(state, Head) else state.claim()

        def is_mine(state: State) -> bool:
            # guard: never take the epoch of a rival for our own
            return isinstance(state, Head) and state.owner is not None and state.owner.claim_id == claim_id

        return Claim(self._update(take, is_mine).epoch, claim_id)

    def look(self, claim: Claim, after: int | None, limit: int) -> list[BatchDescriptor]:
        """Return up to `limit` batches after sequence `after` (if None, after what is acknowledged).

        Raises:
            Fenced: another consumer has made a claim since.
            Trimmed: they are gone.
        """
        state = self.read()
        self._check_owner(state, claim)
        state = self._record_early_ack(state, claim)  # guard: record an early ack after the first write
        if after is None:
            acked = state.owner.acked if isinstance(state, Head) and state.owner else None
            after = state.first_sequence - 1 if acked is None else acked
        elif isinstance(state, Manifest):
            after = max(after, state.first_sequence - 1)  # version 1 forgets what was consumed
        return self.descriptors(after + 1, limit, state=state)

    def acked(self) -> int | None:
        """Return the last sequence acknowledged, as last seen here; None if there is none that is known."""
        state = self.last_seen()
        if isinstance(state, Manifest):
            return state.first_sequence - 1 if state.first_sequence else None
        return state.owner.acked if state is not None and state.owner is not None else None

    def waiting(self) -> int:
        """Return how many batches were not acknowledged when the manifest was last read or written here."""
        state = self.last_seen()
        if state is None:
            return 0
        acked = self.acked()
        return max(0, state.next_sequence - max(state.first_sequence, 0 if acked is None else acked + 1))

    def release(self, claim: Claim) -> None:
        """Nothing to do: the next claim simply comes on top."""

    def plan(self, claim: Claim, ends: Collection[int]) -> None:  # noqa: ARG002 - as a group's
        """There is no place for it: only a group's cursor keeps plans."""
        raise Unsupported(f"{self.url}: the unnamed consumer cannot record what it is about to do: name a group")

    def planned(self) -> tuple[int, ...]:
        """Nothing is ever recorded for the unnamed consumer."""
        return ()

    @property
    def reader(self) -> Reader:
        """The unnamed consumer of this buffer, as last seen here."""
        state = self.last_seen()
        if isinstance(state, Head):
            return Reader(state.buffer_id)
        return Reader(blake2b(self.url.encode(), digest_size=16).hexdigest())

    def ack(self, claim: Claim, through: int) -> None:
        """Record that all batches up to and including `through` are done. What is recorded already does nothing.

        Raises:
            Fenced: another consumer has made a claim since, and nothing was changed.
            Unknown: as `Fenced`, but it may have been recorded before that.
        """

        def done(state: State) -> bool | None:
            if isinstance(state, Manifest):
                is_recorded = state.count == 0 or state.first_sequence > through
                is_ours = state.epoch == claim.epoch
            else:
                owner = state.owner
                is_recorded = owner is not None and owner.acked is not None and owner.acked >= through
                is_ours = _owns(state, claim)
            # Under another's claim it may be ours, of before that, or theirs.
            return is_recorded and (is_ours or None)  # guard: an unnamed ack recorded before a takeover is not fenced

        def change(state: State | None) -> State | None:
            state = state or self._empty()
            self._check_owner(state, claim)
            if done(state):
                return None
            return state.ack(through) if isinstance(state, Head) else state.dequeue(through)

        if is_unwritten(self._update(change, done)):
            # Nothing exists yet, and version 1 has no place for it. Kept until there is a head.
            self._early_ack = max(through, -1 if self._early_ack is None else self._early_ack)

    def _record_early_ack(self, state: State, claim: Claim) -> State:
        """Record what was acknowledged before the first write, once there is a place for it."""
        early = self._early_ack
        if early is None or is_unwritten(state):
            return state
        if isinstance(state, Head):
            self.ack(claim, early)
            state = self.last_seen() or state
        self._early_ack = None
        return state

    def _check_owner(self, state: State, claim: Claim) -> None:
        if not _owns(state, claim):  # guard: check epoch and claim id of the unnamed consumer
            raise Fenced(
                f"{self.url}: another consumer opened this buffer (epoch {state.epoch}, ours was {claim.epoch}); "
                "this one must stop, and has changed nothing since"
            )

    # Changing a version 2 head

    def change_head(self, change: Callable[[Head], Head | None], is_mine: Callable[[Head], bool | None]) -> Head:
        """Apply a change to the head of a version 2 buffer, which is made if there is none.

        Raises:
            Unsupported: the buffer is of version 1.
        """
        changed = self._update(
            lambda state: change(self._as_head(state)),
            lambda state: is_mine(state) if isinstance(state, Head) else False,
        )
        return self._as_head(changed)

    def migrate(self, convert: Callable[[Manifest], Head], buffer_id: str) -> Head:
        """Replace a version 1 manifest by the head of `buffer_id` made from it, and return what is there then.

        A head that is there already stays.
        """

        def change(state: State | None) -> State | None:
            if state is None:
                raise NotFound(f"{self.url} is not there any more")
            return None if isinstance(state, Head) else convert(state)

        migrated = self._update(change, lambda state: isinstance(state, Head) and state.buffer_id == buffer_id)
        return self._as_head(migrated)

    def _as_head(self, state: State | None) -> Head:
        state = self.as_written(state or self._empty())
        if isinstance(state, Manifest):
            raise Unsupported(f"{self.url} is of version 1, which has no groups, holds or facts: migrate it first")
        return state

    def as_written(self, state: State) -> State:
        """Return the state that a write of this role starts from.

        That is `state` itself, but for an unwritten manifest: it becomes an empty head, unless the profile is
        `opendata` (rfcs/0005). The write stores both changes at once, or neither.
        """
        # guard: never convert for the opendata profile
        if self._profile == "opendata" or not isinstance(state, Manifest) or not is_unwritten(state):
            return state
        return convert_unwritten(state, self.new_id())

    # Inside

    def _update(self, change: Callable[[State | None], State | None], is_mine: Callable[[State], bool | None]) -> State:
        def change_or_create(state: State | None) -> State | None:
            if state is None:
                # guard: check for leftovers before making a new manifest
                check_no_remains(self.store, self.manifest_path)
            return change(state)

        with self._lock:
            began = self._clock.monotonic()
            # A sole writer saves the read before its write. Among several that would be a conflict nearly every time,
            # so whoever met one looks first, until it finds the manifest as it left it and no other writers in it.
            if self._known is not None and (self.pace.seconds() or not self._undisturbed):
                before = self._known
                try:
                    self.read()
                except Unavailable:
                    self._known = None  # the update below reads it, again and again if need be
                self._quiet_looks = self._quiet_looks + 1 if self._known is before else 0
                self._undisturbed = self._is_alone_again()
            writes, conflicts = self._register.writes, self._register.conflicts
            throttled, waited = self._register.throttled, self._register.waited
            try:
                return self._remember(self._register.update(change_or_create, is_mine, known=self._known))
            finally:
                met = self._register.conflicts - conflicts
                self._undisturbed &= met == 0
                self._quiet_looks = 0 if met else self._quiet_looks
                # The time spent waiting for the store's limit is not part of how long an attempt takes.
                seconds = self._clock.monotonic() - began - (self._register.waited - waited)
                self._attempt_seconds = seconds / (1 + met + self._register.throttled - throttled)
                if isinstance(self.last_seen(), Manifest):
                    self.pace.note_conflicts(met, self._attempt_seconds)
                metrics.manifest_writes.add(self._register.writes - writes, self._attributes)
                metrics.manifest_conflicts.add(met, self._attributes)

    def _is_alone_again(self) -> bool:
        """Whether enough looks in a row found no change, so that the next write needs no look first.

        A head names its writers, so one look is enough. A manifest of version 1 does not, so it takes many.
        """
        return self._quiet_looks >= (_QUIET_LOOKS if isinstance(self.last_seen(), Manifest) else 1)

    def _remember(self, snapshot: Snapshot[State]) -> State:
        self._known = snapshot
        self._seen |= snapshot.value is not None
        return snapshot.value or self._empty()

    def _empty(self) -> State:
        """What a missing manifest stands for."""
        if self._seen:  # guard: a manifest that was seen cannot be missing
            raise Corrupt(f"{self.url} was there and is gone: somebody deleted it. Restore it, or open the buffer anew")
        if self._profile == "opendata":
            return Manifest.empty(self.url)
        if not self._looked_for_remains:
            check_no_remains(self.store, self.manifest_path)  # guard: leftovers prove that a missing head once existed
            self._looked_for_remains = True
        return Head(buffer_id=self.new_id())

    def _unwritten(self) -> Manifest:
        """The manifest that an unnamed consumer creates if there is none. It leaves the format to the first writer."""
        self._empty()  # raises where the manifest was deleted
        return Manifest.empty(self.url)


def _owns(state: State, claim: Claim) -> bool:
    """Whether a claim is the newest one. Claims made in version 1 have an empty id and are compared by epoch."""
    # guard: compare the epoch of a version 1 claim
    # guard: identify a version 1 claim by its epoch alone
    if state.epoch != claim.epoch:
        return False
    owner = state.owner if isinstance(state, Head) else None
    return owner is None or owner.claim_id in ("", claim.claim_id)
