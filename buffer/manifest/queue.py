"""The queue that a manifest makes of stored batches: reading, appending and changing it by compare-and-swap.

A manifest is of version 1 (`Manifest`) or 2 (`Head`). Which one is read from the object, each time: a buffer may be
migrated while its producers run.
"""

from __future__ import annotations

from datetime import datetime
from threading import RLock
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_name, check_whole, parse_time
from forebay.buffer.base.clock import Clock, Random, SystemClock, system_random
from forebay.buffer.base.errors import (
    Corrupt,
    Fenced,
    ForebayError,
    InvalidInput,
    NotFound,
    Timeout,
    Unavailable,
    Unknown,
    Unsupported,
    damaged,
)
from forebay.buffer.manifest.head import LASTING, MAX_WRITERS, Head, is_lasting, trimmed
from forebay.buffer.manifest.head_fields import Owner, Writer
from forebay.buffer.manifest.pace import Pace
from forebay.buffer.manifest.register import DEFAULT_LIMITS, Limits, Register, Snapshot
from forebay.buffer.manifest.sealing import Sealing
from forebay.buffer.manifest.segments import Segments
from forebay.buffer.manifest.state import OPENDATA_MANIFEST_PATH, Profile, State, check_no_remains, read_state
from forebay.buffer.manifest.v1 import Manifest
from forebay.buffer.manifest.writers import WriterBuckets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.buffer.format.batch import Version
    from forebay.buffer.format.model import BatchDescriptor, NewBatch
    from forebay.buffer.store.base import ObjectStore

T = TypeVar("T")

_MOST_STALE_READS = 5
_QUIET_LOOKS = 32
"""Number of looks in a row that find a version 1 manifest unchanged, before its writer stops looking first."""
_MOST_REGISTRATIONS = 10
"""Maximum registrations in one append: other writers may displace this one between its registration and its append."""


class PlaceConsumed(Unknown):
    """An append in doubt whose place in the queue was consumed meanwhile: it can never be found out if it was applied.

    Only version 1 comes to this. Nothing of it is in the manifest any more. A caller that wants its entries read for
    certain appends them again, as another object: then they may be read twice.
    """


class _NotRegistered(ForebayError):
    """The head does not know this writer, yet or any more."""


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
        self.clock: Final = clock or SystemClock()
        self._clock = self.clock
        self.segments: Final = Segments(store, clock=self._clock, random=self._random)
        self._register: Register[State] = Register(
            store,
            manifest_path,
            decode=lambda data: read_state(data, f"{store.url}/{manifest_path}"),
            encode=lambda state: state.to_bytes(),
            limits=limits,
            clock=clock,
            random=random,
        )
        self.writer_id: str = self.new_id() if writer_id is None else LASTING + check_name(writer_id, "writer_id")
        self.pace: Final = Pace(self.writer_id, spacing=self._register.spacing, clock=self._clock)
        self._number = 0
        self.buckets: Final = WriterBuckets(store, clock=self._clock, random=self._random)
        self._sealing = Sealing(self.url, self.segments, self.buckets, self.writer_id)
        self._attributes = {"buffer": store.url, "role": role}
        self._lock = RLock()
        self._known: Snapshot[State] | None = None
        self._undisturbed = True
        self._attempt_seconds = 0.0
        self._seen = False
        self._looked_for_remains = False
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
            return self._remember(self._register.read(self._known))

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

    def last_head(self) -> Head | None:
        """Return the head as it was last read or written here; None if that was a manifest of version 1, or none."""
        state = self.last_seen()
        return state if isinstance(state, Head) else None

    def descriptors(self, first: int, limit: int, *, state: State | None = None) -> list[BatchDescriptor]:
        """Return up to `limit` batches from sequence `first` on: of `state`, or else of the manifest as it is now.

        Raises:
            Trimmed: `first` is gone.
        """

        def find(current: State) -> list[BatchDescriptor]:
            if first < current.first_sequence:
                raise trimmed(first, current.first_sequence)
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
                if state == before:
                    break
        raise damaged(f"{self.url}: it refers to a segment that is not there ({missing})") from missing

    def sequence_of(self, place: str | int | datetime, *, state: State) -> int:
        """Return the sequence that `earliest`, `latest`, a sequence, or a time (ISO 8601 or a datetime) stands for."""
        if place == "earliest":
            return state.first_sequence
        if place == "latest":
            return state.next_sequence
        if not isinstance(place, str | datetime):
            return check_whole(place, "a sequence")
        moment = parse_time(place)
        return self.look_through(lambda found: self.segments.sequence_at(self.as_head(found), moment), state)

    def end_of(self, place: str | int | datetime, *, state: State) -> int:
        """Return the sequence after the last one of a range up to `place`, all that there is at most.

        A sequence belongs to the range itself. Up to a time it holds every batch with an entry taken in before then.
        """
        if isinstance(place, int) or place in {"earliest", "latest"}:
            return min(self.sequence_of(place, state=state) + 1, state.next_sequence)
        moment = parse_time(place)
        return self.look_through(lambda found: self.segments.end_before(self.as_head(found), moment), state)

    # Appending

    def append(
        self,
        batches: Sequence[NewBatch],
        *,
        number: int | None = None,
        let_go: str | None = None,
        version: Version = 1,
        schemas: Sequence[str] = (),
    ) -> range:
        """Add stored batches to the end, in order and all at once, and return their sequences.

        `number` is what the manifest remembers of this writer, higher than before; by default it counts appends.
        `let_go` is a hold that kept them until now, and that the same write ends. `version` is the newest format that
        one of them is stored in. `schemas` are the ids of all versions up to the one that rows are in; empty for bytes.

        Raises:
            Unsupported: the manifest is of version 1, whose readers know no newer batches; or the buffer holds bytes
                and these are rows, or the reverse, or rows of another schema. Nothing was appended.
            BelowFloor: a batch is named below the collector's floor; nothing was appended.
            Fenced: another process has appended under this writer's name; nothing was appended.
            Unknown: they may or may not have been appended, or may yet be. Never append them again by the same name.
            PlaceConsumed: as `Unknown`, and no later look can tell.
        """
        if not batches:
            raise InvalidInput(f"there are no batches to append to {self.url}; give at least one")
        with self._lock:
            self.seal_if_due()
            number = self._number + 1 if number is None else number
            if number <= self._number:  # guard: append under no number that was used
                raise InvalidInput(f"{self.url}: number {number} follows {self._number}; give a higher one")
            for _ in range(_MOST_REGISTRATIONS):
                try:
                    added = self._append(tuple(batches), number, let_go, version, schemas)
                except _NotRegistered:
                    self.register_writer()
                    continue
                if (head := self.last_head()) is not None:
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
            head = self.as_head(state)
            # guard: registering a writer must not reset its number
            return None if self.find_writer(head) else self._sealing.apply(head).register_writer(self.writer_id)

        with self._lock:
            if is_lasting(self.writer_id):
                self.read()
                self.seal_if_due()
            self.update(register, lambda state: self.find_writer(state) is not None)

    def find_writer(self, state: State) -> Writer | None:
        """Return this writer's last append as the manifest or its bucket knows it; see `WriterBuckets.find`."""
        return self.buckets.find(state, self.writer_id)

    def resume(self) -> int:
        """Return the number of this writer's last append, 0 if there is none; appends go on from it.

        For a writer whose name outlives its process. What a process before it had sent and not heard of may still
        arrive: then the number is another, and an append decided by this one is refused with `Fenced`.
        """
        with self._lock:
            try:
                writer = self.find_writer(self.as_head(self.read()))
            except Unavailable:
                writer = self.find_writer(self.as_head(self.read()))
            self._number = 0 if writer is None else writer.number
            return self._number

    def _append(
        self,
        batches: tuple[NewBatch, ...],
        number: int,
        let_go: str | None,
        version: Version,
        schemas: Sequence[str],
    ) -> range:
        locations = [batch.location for batch in batches]
        tried: State | None = None
        place = 0
        consumed = False

        def add(state: State | None) -> State:
            nonlocal tried, place, consumed
            tried, consumed = self.as_written(state or self.empty_state()), False
            place = tried.next_sequence
            if isinstance(tried, Manifest):
                if version != 1:  # guard: refuse newer batch formats in a version 1 manifest
                    raise Unsupported(
                        f"{self.url} is a buffer of version 1 now, and these batches are of version {version}: "
                        "open a new producer, and produce them again"
                    )
                return tried.append(batches)
            head = tried if let_go is None else tried.without_hold(let_go)
            return self._add_to_head(head, batches, number, schemas)

        def is_mine(state: State) -> bool | None:
            nonlocal consumed
            if state.names_writers and tried is not None and tried.names_writers:
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
            return state.names_writers and any(
                found.location == locations[0] for found in self.descriptors(place, 1, state=state)
            )

        try:
            self.update(add, is_mine)
        except Unknown as error:
            if consumed:
                raise PlaceConsumed(
                    f"{self.url}: the append of {locations[0]} was in doubt, and what stood at its place, sequence "
                    f"{place}, has been consumed meanwhile"
                    "; read before you append it again"
                ) from error
            # Its number is used up: nothing may be appended under it again.
            self._number = number
            raise
        self._number = number
        self._sealing.note_written()
        return range(place, place + len(batches))

    def _add_to_head(self, head: Head, batches: tuple[NewBatch, ...], number: int, schemas: Sequence[str]) -> Head:
        writer = self.find_writer(head)
        if writer is None:
            raise _NotRegistered(f"{self.url}: writer {self.writer_id} is not registered")
        if writer.number > self._number:  # guard: fence a lasting writer whose number has moved on
            raise Fenced(
                f"{self.url}: another producer of the name {self.writer_id} has come to number {writer.number}, and "
                f"this one knew of {self._number}: open a new one, and repeat what follows its last_number"
            )
        try:
            return self._sealing.apply(head).append(
                batches, self.writer_id, number, sealed=writer.sealed, schemas=schemas
            )
        except Unsupported as error:
            raise Unsupported(f"{self.url}: {error}") from None

    def seal_if_due(self) -> None:
        """Store older listings or idle writers that are due to be sealed, for the next write to refer to."""
        head, known = self.last_head(), self._known
        if head is not None and known is not None:
            self._sealing.store_due(head, len(known.data))

    # Changing

    def change_head(self, change: Callable[[Head], Head | None], is_mine: Callable[[Head], bool | None]) -> Head:
        """Apply a change to the head of a version 2 buffer, which is made if there is none.

        Raises:
            Unsupported: the buffer is of version 1.
        """
        changed = self.update(
            lambda state: change(self.as_head(state)),
            lambda state: is_mine(state) if isinstance(state, Head) else False,
        )
        return self.as_head(changed)

    def migrate(self, convert: Callable[[Manifest], Head], buffer_id: str) -> Head:
        """Replace a version 1 manifest by the head of `buffer_id` made from it, and return what is there then.

        A head that is there already stays.
        """

        def change(state: State | None) -> State | None:
            if state is None:
                raise NotFound(f"{self.url} is not there any more; restore it")
            return None if isinstance(state, Head) else convert(state)

        return self.as_head(self.update(change, lambda state: state.buffer_id == buffer_id))

    def as_head(self, state: State | None) -> Head:
        """Return the head that a write of this role starts from; see `as_written`.

        Raises:
            Unsupported: the buffer is of version 1.
        """
        state = self.as_written(state or self.empty_state())
        if isinstance(state, Manifest):
            raise Unsupported(f"{self.url} is of version 1, which has no groups, holds or facts: migrate it first")
        return state

    def as_written(self, state: State) -> State:
        """Return the state that a write of this role starts from.

        That is `state` itself, but for an unwritten manifest: it becomes an empty head, unless the profile is
        `opendata` (rfcs/0005). The write stores both changes at once, or neither.
        """
        # guard: never convert for the opendata profile
        if self._profile == "opendata" or not state.is_unwritten:
            return state
        # The epoch stays, so the consumer that claimed it keeps its claim. Version 1 has no claim id: it stays empty.
        # guard: keep the claim when converting the manifest
        return Head(buffer_id=self.new_id(), owner=Owner(state.epoch, "", None))

    def update(self, change: Callable[[State | None], State | None], is_mine: Callable[[State], bool | None]) -> State:
        """Apply a change exactly once, and return the manifest with the change in it; see `Register.update`."""

        def change_or_create(state: State | None) -> State | None:
            changed = change(state)
            if state is None and changed is not None:
                # guard: check for leftovers before making a new manifest
                check_no_remains(self.store, self.manifest_path)
            return changed

        with self._lock:
            began = self._clock.monotonic()
            # A sole writer saves the read before its write. Among several that would be a conflict nearly every time,
            # so after a conflict a writer reads first, until it finds the manifest unchanged and without other writers.
            if self._known is not None and (self.pace.seconds() or not self._undisturbed):
                before = self._known
                try:
                    self.read()
                except Unavailable:
                    self._known = None  # the update below reads it, again and again if need be
                self._quiet_looks = self._quiet_looks + 1 if self._known is before else 0
                # A head names its writers, so one look is enough. A manifest of version 1 does not, so it takes many.
                self._undisturbed = self._quiet_looks >= (1 if self._names_writers() else _QUIET_LOOKS)
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
                if not self._names_writers():
                    self.pace.note_conflicts(met, self._attempt_seconds)
                metrics.manifest_writes.add(self._register.writes - writes, self._attributes)
                metrics.manifest_conflicts.add(met, self._attributes)

    def _names_writers(self) -> bool:
        state = self.last_seen()
        return state is None or state.names_writers

    def _remember(self, snapshot: Snapshot[State]) -> State:
        self._known = snapshot
        self._seen |= snapshot.value is not None
        return snapshot.value or self.empty_state()

    def empty_state(self) -> State:
        """Return what a missing manifest stands for.

        Raises:
            Corrupt: it was deleted.
        """
        if self._seen:  # guard: a manifest that was seen cannot be missing
            raise Corrupt(f"{self.url} was there and is not there any more. Restore it, or open the buffer anew")
        if self._profile == "opendata":
            return Manifest.empty(self.url)
        if not self._looked_for_remains:
            check_no_remains(self.store, self.manifest_path)  # guard: leftovers prove that a missing head once existed
            self._looked_for_remains = True
        return Head(buffer_id=self.new_id())
