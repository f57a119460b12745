"""Groups: named readers of one buffer, each with a start, a fence and a frontier of its own (rfcs/0005).

The head of the manifest knows a group's generation and start. Everything that moves is in the cursor object of that
generation, so that readers never write where writers write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.checks import NAME, Whole, check_name
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Fenced, InvalidInput, NotFound, damaged
from forebay.buffer.base.process import Process  # noqa: TC001 - msgspec reads the annotations
from forebay.buffer.format.model import Reader
from forebay.buffer.manifest import Claim, Head, Queue
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.register import Register, Snapshot
from forebay.buffer.manifest.state import CURSORS
from forebay.buffer.store import ObjectStore, StoreUrl, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest.head_fields import Group

_CURSOR_KEY: Final = re.compile(rf"{CURSORS}/({NAME.pattern})/([0-9a-f]{{32}})")


class Cursor(Struct, frozen=True, array_like=True, tag="cursor"):
    """One state of a group's cursor."""

    buffer_id: str
    epoch: Whole
    claim_id: str
    """Of the consumer that reads; empty once it has let go."""
    acked: Whole | None
    """The highest sequence up to which all is acknowledged; None if nothing is."""
    number: Whole  # guard: refuse an impossible number in a cursor
    """Grows with every write, so that no two states are the same bytes."""
    planned: tuple[Whole, ...] = ()
    """Where the ranges end that may be on their way to a sink, in order; the first begins after `acked` (rfcs/0007)."""
    owner: Process | None = None
    """The process that made the last claim; None if it is not known."""


@dataclass(frozen=True, slots=True)
class CursorState:
    """Identifies one state of a group's cursor."""

    generation: str | None
    """None if the group does not exist."""
    number: int | None
    """None if there is no cursor."""


def check_group_name(name: str) -> str:
    """Return the name if it can be a group's, or raise `InvalidInput`."""
    return check_name(name, "a group's name")


def cursor_key(name: str, generation: str) -> str:
    """The key of a group's cursor."""
    return f"{CURSORS}/{name}/{generation}"


def parse_cursor_key(key: str) -> tuple[str, str] | None:
    """The group and the generation whose cursor a key is; None if it is no cursor's."""
    found = _CURSOR_KEY.fullmatch(key)
    return None if found is None else (found.group(1), found.group(2))


def open_cursor(
    store: ObjectStore, name: str, generation: str, *, clock: Clock | None = None, random: Random | None = None
) -> Register[Cursor]:
    """Return the register that holds a group's cursor. A missing one means that the group is at its start."""
    key = cursor_key(name, generation)
    return Register(
        store,
        key,
        decode=lambda data: unpack(data, Cursor, f"{store.url}/{key}"),
        encode=pack,
        clock=clock,
        random=random,
    )


class GroupReader:
    """The read side of a group. The first one creates the group; its consumers own it one after the other.

    Args:
        queue: a view of the buffer's manifest.
        name: the group.
        start: where a group starts that does not exist yet.
        check_claim: called with the state that a claim would replace, before each attempt to write the claim. What it
            raises ends the claim, and nothing is changed.
        clock: where time comes from.
        random: what ids and pauses are drawn from.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        *,
        start: str | int | datetime = "earliest",
        check_claim: Callable[[CursorState], None] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._queue = queue
        self._name = check_group_name(name)
        self._check_claim = check_claim
        self._clock = clock or SystemClock()
        generation = ""

        def register(head: Head) -> Head | None:
            nonlocal generation
            if name in head.groups:
                return None
            # A new one for each attempt: the group of an earlier attempt may have been used and deleted meanwhile.
            # guard: use a new generation for each attempt to create a group
            generation = queue.new_id()
            return head.with_group(name, generation, queue.sequence_of(start, state=head))

        head = queue.change_head(register, lambda head: name in head.groups)
        self._group: Group = head.groups[name]
        self.is_new: bool = self._group.generation == generation
        """Whether the group did not exist before, and this has made it."""
        self._buffer_id = head.buffer_id
        self._register = open_cursor(queue.store, name, self._group.generation, clock=clock, random=random)
        self._known: Snapshot[Cursor] | None = None
        self._number = 0
        self.written_at: float = 0.0
        """When the last write of the cursor here began, by the monotonic clock."""
        self._noting = Lock()

    def claim(self, process: Process | None = None) -> Claim:
        """Take the group over from the consumer before, in the name of a process.

        Raises:
            ForebayError: whatever `check_claim` raised; nothing was changed.
        """
        claim_id = self._queue.new_id()

        def take(cursor: Cursor | None) -> Cursor:
            if self._check_claim is not None:
                number = None if cursor is None else cursor.number
                self._check_claim(CursorState(self._group.generation, number))  # guard: check before every claim
            cursor = self._checked(cursor) or Cursor(self._buffer_id, 0, "", None, 0)
            number = cursor.number + 1
            return replace(cursor, epoch=cursor.epoch + 1, claim_id=claim_id, number=number, owner=process)

        # guard: confirm a group claim by its claim id
        cursor = self._update(take, lambda cursor: cursor.claim_id == claim_id, None)
        return Claim(0 if cursor is None else cursor.epoch, claim_id)

    def check(self, claim: Claim) -> None:
        """Raise `Fenced` if another consumer has claimed the group since."""
        cursor = self._note(self._register.read(self._known)).value
        self._check_owner(self._checked(cursor), claim)

    def renew(self, claim: Claim) -> None:
        """Write the cursor with a higher number, so that standbys see that its consumer lives (rfcs/0005).

        Raises:
            Fenced: another consumer has claimed the group since, and nothing was changed.
        """
        before = 0

        def change(cursor: Cursor | None) -> Cursor | None:
            nonlocal before
            self._check_owner(cursor, claim)
            if cursor is None:
                return None
            before = cursor.number
            return replace(cursor, number=before + 1)

        # Any write under our claim shows that we live.
        self._update(change, lambda cursor: cursor.claim_id == claim.claim_id and cursor.number > before, self._known)

    def look(self, claim: Claim, after: int | None, limit: int) -> list[BatchDescriptor]:
        """Return up to `limit` batches after sequence `after` (if None, after what is acknowledged).

        Raises:
            Fenced: another consumer has claimed the group since, or it was reset or deleted.
            Trimmed: they are gone.
        """
        cursor = self._checked(self._note(self._register.read(self._known)).value)
        self._check_owner(cursor, claim)
        state = self._queue.read()
        # guard: check the generation of the group on every read
        if state.groups.get(self._name) != self._group:
            raise Fenced(f"{self._queue.url}: group {self._name} was reset or deleted; this consumer must stop")
        if after is None:
            after = self._group.start - 1 if cursor is None or cursor.acked is None else cursor.acked
        return self._queue.descriptors(after + 1, limit, state=state)

    def ack(self, claim: Claim, through: int) -> None:
        """Record that all batches up to and including `through` are done. What is recorded already does nothing.

        Raises:
            Fenced: another consumer has claimed the group since, and nothing was changed.
            Unknown: as `Fenced`, but it may have been recorded before that.
        """
        start = self._group.start

        def done(cursor: Cursor) -> bool | None:
            # Batches below the group's start need no acknowledgement, even if a seek has read them.
            acked = start - 1 if cursor.acked is None else cursor.acked
            # If the claim changed hands, we cannot tell who recorded this ack.
            # guard: a group ack recorded before a takeover is not fenced
            return acked >= through and (cursor.claim_id == claim.claim_id or None)

        def change(cursor: Cursor | None) -> Cursor | None:
            self._check_owner(cursor, claim)
            if cursor is None or done(cursor):
                return None
            planned = tuple(end for end in cursor.planned if end > through)
            return replace(cursor, acked=through, planned=planned, number=cursor.number + 1)

        self._update(change, done, self._known)

    def plan(self, claim: Claim, ends: Collection[int]) -> None:
        """Record where ranges end that are about to be worked on, until they are acknowledged. Known ones do nothing.

        Raises:
            Fenced: another consumer has claimed the group since, and nothing was changed.
        """

        def missing(cursor: Cursor) -> set[int]:
            acked = -1 if cursor.acked is None else cursor.acked
            return {end for end in ends if end > acked}.difference(cursor.planned)

        def change(cursor: Cursor | None) -> Cursor | None:
            self._check_owner(cursor, claim)
            if cursor is None or not missing(cursor):
                return None
            planned = tuple(sorted(missing(cursor).union(cursor.planned)))
            return replace(cursor, planned=planned, number=cursor.number + 1)

        def done(cursor: Cursor) -> bool | None:
            return not missing(cursor) and (cursor.claim_id == claim.claim_id or None)

        self._update(change, done, self._known)

    def planned(self) -> tuple[int, ...]:
        """Return where ranges end that a consumer of the group may have worked on, as last seen here."""
        cursor = self._known.value if self._known else None
        return () if cursor is None else cursor.planned

    @property
    def reader(self) -> Reader:
        """The group, in its present generation."""
        return Reader(self._buffer_id, self._name, self._group.generation)

    def release(self, claim: Claim) -> None:
        """Let the group go, so that it can be reset or deleted without force. Nothing happens if we are fenced."""

        def let_go(cursor: Cursor | None) -> Cursor | None:
            # guard: release a group only while it is still ours
            if cursor is None or cursor.claim_id != claim.claim_id:
                return None
            return replace(cursor, claim_id="", number=cursor.number + 1)

        self._update(let_go, lambda cursor: cursor.claim_id != claim.claim_id, self._known)

    def acked(self) -> int | None:
        """Return the last sequence acknowledged, as last seen here; None if there is none."""
        cursor = self._known.value if self._known else None
        acked = None if cursor is None else cursor.acked
        return (self._group.start - 1 if self._group.start else None) if acked is None else acked

    def waiting(self) -> int:
        """Return how many batches were not acknowledged when the manifest was last read here."""
        head = self._queue.last_seen()
        acked = self.acked()
        return 0 if head is None else max(0, head.next_sequence - (0 if acked is None else acked + 1))

    @property
    def conflict_rate(self) -> float:
        """The share of this reader's cursor writes, from 0 to 1, that met another writer."""
        return self._register.conflict_rate

    def _update(
        self,
        change: Callable[[Cursor | None], Cursor | None],
        is_mine: Callable[[Cursor], bool | None],
        known: Snapshot[Cursor] | None,
    ) -> Cursor | None:
        began = self._clock.monotonic()
        found = self._note(self._register.update(change, is_mine, known=known))
        number = 0 if found.value is None else found.value.number
        if number > self._number:
            self._number, self.written_at = number, began
        return found.value

    def _note(self, snapshot: Snapshot[Cursor]) -> Snapshot[Cursor]:
        """Keep a snapshot, unless another thread has a newer one: an ack may end during a look that began before it."""
        cursor = snapshot.value
        with self._noting:
            known = self._known
            is_older = known and known.value and cursor and cursor.number < known.value.number
            if not is_older:
                self._known = snapshot
        return snapshot

    def _check_owner(self, cursor: Cursor | None, claim: Claim) -> None:
        if cursor is None or cursor.claim_id != claim.claim_id:  # guard: fence a group consumer by its claim id
            what = (
                f"group {self._name} was taken over by another consumer, reset or deleted"
                if cursor is None or cursor.owner is None
                else f"another consumer took over group {self._name} in process {cursor.owner}"
            )
            raise Fenced(f"{self._register.url}: {what}; this consumer must stop. It has changed nothing since then")

    def _checked(self, cursor: Cursor | None) -> Cursor | None:
        # guard: a cursor must carry the id of its buffer
        if cursor is not None and cursor.buffer_id != self._buffer_id:
            raise damaged(f"{self._register.url} belongs to buffer {cursor.buffer_id}; this one is {self._buffer_id}")
        return cursor


@dataclass(frozen=True, slots=True)
class GroupState:
    """What there is to know of a group."""

    name: str
    generation: str
    start: int
    """The first sequence of this generation."""
    acked: int | None
    """The last sequence acknowledged; None if there is none."""
    epoch: int
    alive: bool
    """Whether a consumer has it: one that claimed it and has not closed. A killed one stays alive until the next."""
    waiting: int
    """Batches not acknowledged."""
    owner: Process | None = None
    """The process that has it; None if none has, or if it is not known."""


class Groups:
    """The groups of a buffer, for looking and for tidying."""

    def __init__(
        self,
        url: StoreUrl,
        *,
        manifest_path: str = "manifest",
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        store = open_store(url, storage_options)
        self._queue = Queue(store, manifest_path, role="groups", clock=clock, random=random)
        self._clock, self._random = clock, random

    def list(self) -> list[GroupState]:
        """Return every group, by name."""
        head = self._head()
        return [describe_group(self._queue.store, head, name, clock=self._clock) for name in sorted(head.groups)]

    def describe(self, name: str) -> GroupState:
        """Return one group.

        Raises:
            NotFound: there is none of that name.
        """
        return describe_group(self._queue.store, self._head(), name, clock=self._clock)

    def reset(self, name: str, to: str | int | datetime, *, force: bool = False) -> GroupState:
        """Let a group read again from another place, back or forth; its consumer, if any, is fenced.

        Raises:
            InvalidInput: a consumer has it, and `force` is not set.
            Trimmed: that place is gone.
        """
        before = self._check_free(name, force=force)
        generation = self._queue.new_id()

        def change(head: Head) -> Head:
            group = head.groups.get(name)
            if group is None or group.generation != before.generation:  # guard: reset only the generation that was read
                raise InvalidInput(
                    f"{self._queue.url}: group {name} was changed while it was being read; look at it again, "
                    "then repeat the call"
                )
            return head.with_group(name, generation, self._queue.sequence_of(to, state=head))

        def is_mine(head: Head) -> bool:
            return name in head.groups and head.groups[name].generation == generation

        changed = self._queue.change_head(change, is_mine)
        return describe_group(self._queue.store, changed, name, clock=self._clock)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Forget a group, so that it holds nothing back any more; its consumer, if any, is fenced.

        Raises:
            InvalidInput: a consumer has it, and `force` is not set.
        """
        before = self._check_free(name, force=force)

        def gone(head: Head) -> bool:
            return name not in head.groups or head.groups[name].generation != before.generation

        self._queue.change_head(lambda head: None if gone(head) else head.without_group(name), gone)

    def _head(self) -> Head:
        return self._queue.change_head(lambda _head: None, lambda _head: False)

    def _check_free(self, name: str, *, force: bool) -> GroupState:
        state = self.describe(name)
        if state.alive and not force:
            raise InvalidInput(
                f"{self._queue.url}: a consumer owns group {name}: close that consumer first. If its process is dead, "
                "use --force (in Python: force=True)"
            )
        if state.alive:  # guard: fence the consumer before its group is deleted
            self._fence(name, state.generation)
        return state

    def _fence(self, name: str, generation: str) -> None:
        """Take the group from its consumer, whose acks look at the cursor alone, before the head forgets the cursor."""
        claim_id = self._queue.new_id()
        open_cursor(self._queue.store, name, generation, clock=self._clock, random=self._random).update(
            lambda cursor: (
                None
                if cursor is None
                else replace(cursor, epoch=cursor.epoch + 1, claim_id=claim_id, number=cursor.number + 1, owner=None)
            ),
            lambda cursor: cursor.claim_id == claim_id,
        )


def no_such_group(url: str, name: str, known: Iterable[str]) -> NotFound:
    """Return the error for a group that a buffer or topic does not have, with the groups that it has instead."""
    names = ", ".join(sorted(known))
    instead = f"its groups are: {names}" if names else "it has no groups"
    return NotFound(f"{url} has no group {name!r}; {instead}")


def describe_group(store: ObjectStore, head: Head, name: str, *, clock: Clock | None = None) -> GroupState:
    """Return one group of a head, by a look at its cursor.

    Raises:
        NotFound: the head has none of that name.
    """
    group = head.groups.get(check_group_name(name))
    if group is None:
        raise no_such_group(store.url, name, head.groups)
    cursor = open_cursor(store, name, group.generation, clock=clock).read().value
    acked = None if cursor is None else cursor.acked
    following = group.start if acked is None else acked + 1
    alive = cursor is not None and cursor.claim_id != ""
    return GroupState(
        name=name,
        generation=group.generation,
        start=group.start,
        acked=acked,
        epoch=0 if cursor is None else cursor.epoch,
        alive=alive,
        waiting=max(0, head.next_sequence - max(following, head.first_sequence)),
        owner=cursor.owner if cursor is not None and alive else None,
    )
