"""A compare-and-swap cell over one object: read, change, write only if nobody else has, again if somebody did.

It knows nothing of queues. Manifests and cursors are registers.

The hard part is a write whose answer did not come, or came wrong (rfcs/0001). The rules:

- After anything but *applied*, a conflict included, the object is read again and the caller is asked whether its change
  is in there: a client library's own retry can meet its own write and report a failed condition.
- A write made on version E is settled as *not applied* only by reading a version other than E without the change in it.
  While the read still shows E, the lost request may yet land; the change is tried on E again, so one of the two wins
  and the other fails on its condition.
- "Is my change in there?" must be answered from something only this writer could have written: an id, or a number of
  its own. Where that may be gone again the answer is "cannot tell", and then a write that was in doubt stays unknown.

This needs versions that never come back: the bytes must hold something that grows with every write, because a version
is a hash of the content on every S3 server known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from forebay.buffer.base.backoff import WriteSpacing, full_jitter
from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import Clock, Random, SystemClock, system_random
from forebay.buffer.base.errors import ForebayError, InvalidInput, NotFound, Timeout, Unavailable, Unknown
from forebay.buffer.base.reread import read_sound
from forebay.buffer.store.base import Applied, Data, InDoubt, NotApplied, ObjectStore, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_BACKOFF_BASE = 0.02
_BACKOFF_CAP = 1.0
_MOST_THROTTLED = 10_000
_THROTTLED_LONGER = 10
"""While the store throttles and any writer makes progress, an update may take this many times its time limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard an update tries before it gives up with a clear error."""

    max_attempts: int = 100
    """Reads and writes that failed or lost a race, together. Writes that the store throttled do not count."""
    max_seconds: float = 60.0
    """Checked between attempts: a request that hangs is ended by the store's own time-out. While the store throttles
    writes, this limits the time without progress by any writer, and the whole update may take ten times as long."""

    def __post_init__(self) -> None:
        check_whole(self.max_attempts, "max_attempts", least=1)
        check_seconds(self.max_seconds, "max_seconds")

    @classmethod
    def within(cls, seconds: float) -> Limits:
        """Return limits for `seconds`: the usual number of attempts, or more if the time allows more."""
        return cls(max(100, math.ceil(4 * seconds)), seconds)


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """The cell's content at one moment."""

    value: T | None
    """None while the object does not exist."""
    version: str | None
    """None while the object does not exist."""
    data: Data
    """The bytes that `value` was decoded from."""


class _NothingInDoubt:
    """No write of ours may still land."""


_NOTHING_IN_DOUBT = _NothingInDoubt()


class Register(Generic[T]):
    """One object as a cell. Safe to use from many threads; each call stands alone."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        *,
        decode: Callable[[bytes | memoryview], T],
        encode: Callable[[T], Data],
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.store = store
        self.key = key
        self.decode = decode
        self.encode = encode
        self.limits = limits
        self.clock: Final = clock or SystemClock()
        self.random: Final = random or system_random()
        self.spacing: Final = WriteSpacing()
        """Minimum time between two writes of this object, as learned from the store."""
        self._counters = Lock()
        self.writes: int = 0
        """How many writes were sent so far."""
        self.conflicts: int = 0
        """How many writes so far had their condition fail because another writer came first."""
        self.throttled: int = 0
        """How many writes the store has throttled so far."""
        self.waited: float = 0.0
        """How many seconds updates have waited so far because the store limits writes."""
        self.own_version: str | None = None
        """The version that this register's last write created."""

    @property
    def url(self) -> str:
        """The object's address, for messages."""
        return f"{self.store.url}/{self.key}"

    @property
    def conflict_rate(self) -> float:
        """The share of writes so far, from 0 to 1, whose condition failed because another writer came first."""
        with self._counters:
            return self.conflicts / self.writes if self.writes else 0.0

    def read(self, known: Snapshot[T] | None = None) -> Snapshot[T]:
        """Return what is there now, or `known` itself for the price of a conditional read if that is still it.

        Raises:
            Corrupt: what is there does not decode, also when it is read again.
        """
        # guard: repeat a damaged conditional read without the condition
        return read_sound(lambda: self._read(known), self.clock, again=self._read)

    def _read(self, known: Snapshot[T] | None = None) -> Snapshot[T]:
        try:
            if known is not None and known.version is not None:
                found = self.store.get_if_changed(self.key, known.version)
                if found is None:
                    return known
            else:
                found = self.store.get(self.key)
        except NotFound as error:
            if error.bucket:  # guard: a missing bucket is not a missing object
                raise  # of an object in a bucket that is not there, nobody can say that it is missing
            return Snapshot(None, None, b"")
        return Snapshot(self.decode(found.data), found.version, found.data)

    def update(
        self,
        change: Callable[[T | None], T | None],
        is_mine: Callable[[T], bool | None],
        *,
        known: Snapshot[T] | None = None,
    ) -> Snapshot[T]:
        """Apply `change` exactly once, and return the cell with the change in it.

        Args:
            change: takes the current value (None if the object is missing) and returns the new one, or None if there
                is nothing to change. It may run several times; what it raises ends the update with nothing applied.
            is_mine: whether a value holds this very change; asked after every attempt that was not clearly applied.
                None if the value can no longer tell.
            known: a snapshot to start from, to save a read. It may be out of date: whatever `change` decides on it
                against writing is decided again on a fresh read.

        Raises:
            Timeout: others kept coming first until the limits were reached. The change was not applied.
            Unavailable: the store could not be reached within the limits. The change was not applied.
            Unknown: the change may or may not have been applied, or may yet be.
        """
        return _Update(self, change, is_mine).run(known)

    def write(self, snapshot: Snapshot[T], data: Data) -> Outcome:
        """Write once, only if the cell is still as in `snapshot`; `update` finds out what the outcome means."""
        if snapshot.version is None:
            outcome = self.store.create(self.key, data)
        else:
            if data == snapshot.data:  # guard: refuse an update that writes the same bytes
                raise InvalidInput(f"{self.url}: an update must change the bytes, or it could not be told from none")
            outcome = self.store.replace(self.key, data, snapshot.version)
        with self._counters:
            self.writes += 1
            self.conflicts += isinstance(outcome, NotApplied) and outcome.condition_failed
            self.throttled += not isinstance(outcome, Applied) and outcome.throttled
        return outcome

    def wait_for_store(self, seconds: float) -> None:
        """Wait because the store limits how often this object may be written."""
        self.clock.sleep(seconds)
        with self._counters:
            self.waited += seconds


class _Update(Generic[T]):
    """One call of `Register.update`: its attempts, and which version it may have written on without knowing."""

    def __init__(
        self, register: Register[T], change: Callable[[T | None], T | None], is_mine: Callable[[T], bool | None]
    ) -> None:
        self._register = register
        self._change = change
        self._is_mine = is_mine
        self._in_doubt: str | _NothingInDoubt | None = _NOTHING_IN_DOUBT
        self._answer_lost = False
        self._last_trouble = ""
        self._throttled = 0
        self._waited = 0.0
        self._retry_after = 0.0
        self._tried_on: str | None = None

    def run(self, known: Snapshot[T] | None) -> Snapshot[T]:
        try:
            return self._run(known)
        except Unknown:
            raise
        except ForebayError as error:
            if self._in_doubt is _NOTHING_IN_DOUBT:  # guard: report errors as unknown while a write is in doubt
                raise
            raise Unknown(
                f"{self._register.url}: a write may or may not have been applied ({self._last_trouble}), "
                f"and reading it back failed: {error}. Read before repeating it"
            ) from error

    def _run(self, known: Snapshot[T] | None) -> Snapshot[T]:
        register, clock, limits = self._register, self._register.clock, self._register.limits
        if left := register.spacing.left(clock.monotonic()):
            self._wait_for_store(left)
            known = None
        began = clock.monotonic()
        deadline, latest = began + limits.max_seconds, began + _THROTTLED_LONGER * limits.max_seconds
        unreachable: Unavailable | None = None
        failed = 0
        while failed < limits.max_attempts and self._throttled < _MOST_THROTTLED:
            throttled, tried_on = self._throttled, self._tried_on
            try:
                if (done := self._attempt(known)) is not None:
                    return done
                unreachable = None
            except Unavailable as error:
                unreachable, self._last_trouble = error, self._last_trouble or str(error)
            known = None
            if self._throttled > throttled:  # guard: throttled writes use up no attempts
                if throttled and self._tried_on != tried_on:
                    # guard: cap the deadline extension of a throttled update
                    deadline = min(latest, clock.monotonic() + limits.max_seconds)  # another writer got on
                self._wait_for_store(register.spacing.pause(register.random, self._throttled, self._retry_after))
            else:
                failed += 1
                if failed < limits.max_attempts:
                    clock.sleep(full_jitter(register.random, failed - 1, _BACKOFF_BASE, _BACKOFF_CAP))
            if clock.monotonic() >= deadline:
                break
        return self._give_up(unreachable)

    def _attempt(self, known: Snapshot[T] | None) -> Snapshot[T] | None:
        """Read, change and write once; None where it has to be tried again."""
        if known is not None:
            new = self._change_if_current(known)
            if new is not None:
                return self._write(known, new)
        snapshot = self._register.read()
        if self._settle(snapshot):
            return snapshot
        new = self._change(snapshot.value)
        if new is None:
            return snapshot if self._in_doubt is _NOTHING_IN_DOUBT else None
        return self._write(snapshot, new)

    def _change_if_current(self, known: Snapshot[T]) -> T | None:
        try:
            return self._change(known.value)
        except ForebayError:
            # guard: retry a refusal based on an old snapshot with a fresh read
            return None  # perhaps only because `known` is old: a fresh read decides

    def _write(self, snapshot: Snapshot[T], value: T) -> Snapshot[T] | None:
        register = self._register
        data = register.encode(value)
        outcome = register.write(snapshot, data)
        if isinstance(outcome, Applied):
            register.own_version = outcome.version
            register.spacing.note_applied(
                register.clock.monotonic(), throttled=self._throttled > 0, waited=self._waited
            )
            return Snapshot(value, outcome.version, data)
        self._last_trouble = outcome.reason
        if outcome.throttled:
            if not self._throttled:
                register.spacing.note_throttled(alone=snapshot.version == register.own_version)
            self._throttled += 1
            self._retry_after = outcome.retry_after
            self._tried_on = snapshot.version
            if isinstance(outcome, NotApplied):
                return None  # the store has certainly not taken it, and never will
        self._in_doubt = snapshot.version  # guard: check for our own change after a plain conflict too
        self._answer_lost |= isinstance(outcome, InDoubt)
        return None

    def _wait_for_store(self, seconds: float) -> None:
        self._waited += seconds
        self._register.wait_for_store(seconds)

    def _settle(self, snapshot: Snapshot[T]) -> bool:
        """Whether the snapshot shows the change. Another version without it ends the doubt."""
        if self._in_doubt is _NOTHING_IN_DOUBT:
            return False
        mine = False if snapshot.value is None else self._is_mine(snapshot.value)
        if mine:
            return True
        if mine is None and self._answer_lost:
            raise Unknown(
                f"{self._register.url}: a write may or may not have been applied ({self._last_trouble}), "
                "and others have written since; read before repeating it"
            )
        if snapshot.version != self._in_doubt:  # guard: keep a write in doubt while its version is still there
            self._in_doubt = _NOTHING_IN_DOUBT
            self._answer_lost = False
        return False

    def _give_up(self, unreachable: Unavailable | None) -> Snapshot[T]:
        if unreachable is not None:
            raise unreachable
        snapshot = self._register.read()
        if self._settle(snapshot):
            return snapshot
        url = self._register.url
        if self._in_doubt is not _NOTHING_IN_DOUBT:
            raise Unknown(f"{url}: a write may yet be applied ({self._last_trouble}); read before repeating it")
        if self._throttled:
            raise Timeout(
                f"{url}: the store limits writes to one object, and throttled {self._throttled} writes of this update "
                f"({self._last_trouble}); nothing was applied. Spread the writers over more partitions"
            )
        raise Timeout(
            f"{url}: the object changed before each attempt to write it ({self._last_trouble}); "
            "nothing was applied. Try again, or spread the writers over more partitions"
        )
