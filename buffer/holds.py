"""Holds: what a job plans to read, or has stored and not listed yet, stays until the job is done (rfcs/0005).

A hold is written into the manifest's head, so no trim and no sweep that was decided without it can follow. A thread
renews it by raising a counter. If that fails (the machine slept, or the store was out of reach), the collector removes
the hold `ttl` seconds after it first saw the last counter, by the store's time. Then the job gets `Fenced`: it must
stop, and may run again under a new hold. No entry is lost. The job's wall clock does not matter.

A job of many processes plans in one of them, which hands the hold over: the others keep it by its ticket.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from contextlib import suppress
from threading import Condition, RLock, Thread
from typing import TYPE_CHECKING, NoReturn, overload

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base import names
from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Closed, Fenced, ForebayError, InvalidInput, Unavailable
from forebay.buffer.base.lifecycle import refuse_pickle, shows_unopened
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.head import Hold
from forebay.buffer.manifest.topic import IsTopic
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic.holds import HeldTopic, hold_partitions
from forebay.buffer.topic.topic import Topic, check_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Self

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor

_log = logging.getLogger("forebay.holds")

_RENEWALS_IN_A_TTL = 3
_JITTER = 0.25
"""Share of its pause that each process which keeps a shared hold waits less at most, so that not all look at once."""
_MOST_SECONDS = 1e9
"""Maximum time to live in seconds, about 30 years."""


class Ticket(Struct, frozen=True):
    """What other processes know a hold by. Pickles; may be sent anywhere."""

    hold_id: str
    ttl: float
    renewals: int
    """The counter of renewals that the process which handed it over saw last."""
    renewed_ms: int
    """When that process last renewed it, by its wall clock. Only a hint: if it is not recent, a look comes first."""


def check_ttl(value: Any, name: str) -> float:
    """Return a time to live in seconds that a hold may have, or raise `InvalidInput` that names it."""
    seconds = check_seconds(value, name)
    if seconds > _MOST_SECONDS:
        raise InvalidInput(f"{name} must be at most {_MOST_SECONDS:g} seconds, not {seconds:g}")
    return seconds


@overload
def hold(
    url: StoreUrl,
    *,
    from_: str | int | datetime = ...,
    upto: str | int | datetime | None = ...,
    ttl: float = ...,
    purpose: str = ...,
    storage_options: Mapping[str, Any] | None = ...,
    manifest_path: str = ...,
    clock: Clock | None = ...,
    random: Random | None = ...,
) -> HeldRange: ...
@overload
def hold(
    url: Topic, *, from_: str | datetime = ..., upto: str | datetime | None = ..., ttl: float = ..., purpose: str = ...
) -> HeldTopic: ...
def hold(
    url: StoreUrl | Topic,
    *,
    from_: str | int | datetime = "earliest",
    upto: str | int | datetime | None = None,
    ttl: float = 300.0,
    purpose: str = "",
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
    random: Random | None = None,
) -> HeldRange | HeldTopic:
    """Return a range of batches that is not trimmed until it is closed, by `close` or at the end of a `with`.

    Of a topic it is a `HeldTopic`: the range in every partition, all of them or none. Where types are checked, give
    `Topic(url)` instead of the URL, which does not tell a checker what stands there.

    Args:
        url: the buffer or topic, or its store if it is open already.
        from_: the first batch: `earliest`, `latest` (what is yet to come), a sequence, or a time.
        upto: the last batch: a sequence, or a time, before which its entries were taken in. None is the last one there.
            Batches behind it are kept as well; `descriptors` leaves them out. A topic has no sequences of its own.
        ttl: seconds, by the store's clock, after which the collector removes the hold if it is not renewed. It is
            renewed three times within that.
        purpose: shown to whoever wonders what holds the collector back.
        storage_options: credentials, endpoint and client of the store.
        manifest_path: the manifest's key below `url`.
        clock: its monotonic time decides when to renew the hold.
        random: what its id is drawn from.

    Raises:
        InvalidInput: `ttl` is not a positive, finite number of seconds, or there is no such range.
        NotFound: there is no such buffer.
        Trimmed: `from_` is gone.
        Unsupported: the buffer is of version 1.
    """
    if not isinstance(url, Topic):
        queue = _open(url, storage_options, manifest_path, clock, random)
        try:
            return _hold_range(_Lease(queue, ttl, clock or SystemClock()), from_, upto, purpose)
        except IsTopic:
            url = Topic(queue.store, clock=clock, random=random)
    topic, first, last = url, check_place(from_), check_place(_or_latest(upto))

    def hold_partition(number: int) -> HeldRange:
        lease = _Lease(topic.open_queue(number, "hold"), ttl, topic.clock or SystemClock())
        return _hold_range(lease, first, last, purpose)

    return hold_partitions(topic, hold_partition)


def hold_range(
    queue: Queue,
    *,
    from_: str | int | datetime = "earliest",
    upto: str | int | datetime | None = None,
    ttl: float = 300.0,
    purpose: str = "",
) -> HeldRange:
    """Return a hold as `hold` does, of one buffer. If its manifest was read already, this sends a write and no read."""
    return _hold_range(_Lease(queue, ttl, SystemClock()), from_, upto, purpose)


def _hold_range(
    lease: _Lease, from_: str | int | datetime, upto: str | int | datetime | None, purpose: str
) -> HeldRange:
    queue = lease.queue
    if queue.last_seen() is None:
        queue.read_existing()

    def wanted(head: Head) -> Hold:
        first = queue.sequence_of(from_, state=head)
        if first > head.next_sequence or queue.end_of(_or_latest(upto), state=head) < first:
            raise InvalidInput(
                f"{queue.url}: there is nothing from {from_!r} up to {_or_latest(upto)!r}; batches are numbered from "
                f"{head.first_sequence} to {head.next_sequence - 1}"
            )
        return Hold(first, None, 0, purpose)

    head = lease.take(wanted)  # guard: plan from the head that took the hold
    try:
        end = queue.end_of(_or_latest(upto), state=head)
    except ForebayError:
        with suppress(ForebayError):
            lease.release()
        raise
    return HeldRange(lease, head, head.holds[lease.hold_id].first_sequence or 0, end - 1)


def hold_uploads(
    url: StoreUrl,
    *,
    ttl: float = 86_400.0,
    purpose: str = "",
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
    random: Random | None = None,
) -> HeldUploads:
    """Return a floor: no object named above it is swept until this is closed, listed or not.

    For a job whose tasks store batches that it lists at its end: `names.mint(clock, random, above=held.floor)`. A task
    whose clock is behind mints above the floor all the same. The buffer is made if there is none; the settings are
    those of `hold`.

    Raises:
        Unsupported: the buffer is of version 1.
    """
    queue = _open(url, storage_options, manifest_path, clock, random)
    clock = clock or SystemClock()

    def wanted(head: Head) -> Hold:
        return Hold(None, max(head.lowest_new_name, names.at_time(clock.now_ms())), 0, purpose)

    lease = _Lease(queue, ttl, clock)
    return HeldUploads(lease, lease.take(wanted).holds[lease.hold_id].floor or names.LOWEST)


def keep_hold(
    url: StoreUrl,
    ticket: Ticket,
    *,
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
    random: Random | None = None,
) -> KeptHold:
    """Return a hold that another process handed over, renewed from here as well until this is closed.

    No request is sent before a renewal is due, and a process writes nothing if another has renewed the hold. So a
    thousand tasks of a job write hardly more often than one. `random` varies this process's pause.
    """
    lease = _Lease(_open(url, storage_options, manifest_path, clock, None), ticket.ttl, clock or SystemClock())
    lease.join(ticket, random or system_random())
    return KeptHold(lease)


class _Held:
    """A hold as its job sees it: in force until it is closed, or lost."""

    def __init__(self, lease: _Lease) -> None:
        self._lease = lease
        self.hold_id = lease.hold_id
        """By which the manifest knows it."""

    def check(self) -> None:
        """Return if the hold is in force.

        Raises:
            Fenced: it expired and was removed: what it kept may be gone. Run the job again under a new hold.
            Closed: it was closed, or handed over.
        """
        self._lease.check()

    def hand_over(self) -> Ticket:
        """Renew it here no more, and return what other processes can keep it by (`keep_hold`).

        It is theirs then: if nobody keeps it, it expires.
        """
        return self._lease.hand_over()

    def close(self) -> None:
        """Let go. Closing again does nothing.

        Raises:
            Fenced: it had expired before.
            StoreError: the manifest could not be written; the hold stays until it expires.
        """
        self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ForebayError:
            if error is None:
                raise
            # The block's own error says more than what came of it.
            _log.warning("%s: letting go after an error failed", self._lease.name, exc_info=True)

    @shows_unopened
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lease.name}, {self._lease.state}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self, "it renews itself in its own process. Pass on what workers read, such as descriptors")

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)  # missing if the constructor failed
        if lease is not None and lease.stop():
            warnings.warn(
                f"{self!r} was not closed: use `with` or close(). It keeps the collector back until it expires",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class HeldRange(_Held):
    """A range of batches that stays until this is closed."""

    def __init__(self, lease: _Lease, head: Head, first: int, last: int) -> None:
        super().__init__(lease)
        self._head = head
        self.first = first
        """The first sequence held."""
        self.last = last
        """The last sequence of the range, one below `first` if it is empty; fixed when the hold was made."""

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __bool__(self) -> bool:
        return True  # an empty range is still held

    def descriptors(self, first: int | None = None, limit: int | None = None) -> Iterator[BatchDescriptor]:
        """Yield the range's batches in order, from sequence `first` on, `limit` of them at most.

        They are read piece by piece, and each piece checks that the hold is in force.

        Raises:
            Fenced: the hold expired and was removed.
        """
        at = self.first if first is None else first
        if at < self.first or (limit is not None and limit < 0):
            raise InvalidInput(f"{self._lease.name} starts at {self.first}: asked for {limit} batches from {at}")
        end = self.last + 1 if limit is None else min(at + limit, self.last + 1)
        return descriptors_between(self._lease.queue, at, end, state=self._head, check=self.check)


class HeldUploads(_Held):
    """A floor above which objects may wait to be listed until this is closed."""

    def __init__(self, lease: _Lease, floor: str) -> None:
        super().__init__(lease)
        self.floor = floor
        """A ULID: whatever is minted above it is not swept."""


class KeptHold(_Held):
    """A hold of a job, as one of its processes keeps it."""

    def close(self) -> None:
        """Renew it from here no more. It stays: others may keep it, or it expires."""
        self._lease.stop()

    def renew(self) -> None:
        """Check now, by a read of the manifest, that the hold is in force. Writes only if a renewal is due.

        Raises:
            Fenced: it expired and was removed.
        """
        self._lease.renew()


class _Lease:
    """One hold in the head, and the thread that renews it."""

    def __init__(self, queue: Queue, ttl: float, clock: Clock) -> None:
        self._ttl = ttl = check_ttl(ttl, "ttl")
        self.queue = queue
        self.hold_id = queue.new_id()
        self.name = f"hold {self.hold_id} of {queue.url}"
        self.state = "in force"
        self._clock = clock
        self._process = os.getpid()
        self._writing = RLock()
        self._waking = Condition()
        self._over = False
        self._shared = False
        self._ttl_ms = math.ceil(ttl * 1000)  # guard: round a hold TTL up to a whole millisecond
        self._pause = ttl / _RENEWALS_IN_A_TTL
        self._renewals = 0
        self._seen_at = 0.0
        """When this process first saw that counter, by its monotonic clock. A renewal is due one pause later."""
        self._renewed_at = 0.0
        """A moment at or before the last renewal, by the same clock. The hold is in force for `ttl` after it."""
        self._looked_at = -math.inf
        """When this process last looked at the hold or wrote it, by the same clock."""

    def join(self, ticket: Ticket, random: Random) -> None:
        """Renew what another process took."""
        self._shared = True
        self.hold_id = ticket.hold_id
        self.name = f"hold {self.hold_id} of {self.queue.url}"
        self._pause *= 1 - _JITTER * random.random()
        # Only wall clocks tell how old the last renewal is, and they may be wrong. So a ticket that seems fresh starts
        # a timer here. Any other, even one from the future, means a look before the job goes on.
        # guard: check the hold before continuing if clocks disagree
        is_fresh = abs(self._clock.now_ms() - ticket.renewed_ms) < self._ttl_ms / _RENEWALS_IN_A_TTL
        self._note(ticket.renewals, self._clock.monotonic() - (0.0 if is_fresh else 2 * self._ttl))
        self._start_renewing()

    def hand_over(self) -> Ticket:
        self.check()
        with self._writing:
            self.stop()
            self.state = "handed over"
            age = self._clock.monotonic() - self._renewed_at
            return Ticket(self.hold_id, self._ttl, self._renewals, self._clock.now_ms() - int(age * 1000))

    def take(self, wanted: Callable[[Head], Hold]) -> Head:
        """Write the hold, and return the head that holds it."""
        self._note(0, self._clock.monotonic())

        def change(head: Head) -> Head:
            return head.with_hold(self.hold_id, replace(wanted(head), ttl_ms=self._ttl_ms))

        head = self.queue.change_head(change, lambda head: self.hold_id in head.holds)
        self._start_renewing()
        return head

    def check(self) -> None:
        if self._over:
            raise Closed(f"{self.name} was {'handed over' if self.state == 'handed over' else 'closed'}")
        if self.state == "lost":
            raise self._gone()
        # guard: renew the hold before continuing after a sleep
        if self._clock.monotonic() >= self._renewed_at + self._ttl:
            self.renew()  # nobody did in time, so it may be gone: this finds out

    def renew(self) -> None:
        """Raise the counter, or find that another process did, or raise `Fenced` if the hold is gone."""
        with self._writing:
            if self._over:
                return
            began = self._clock.monotonic()
            counter = 0

            def change(head: Head) -> Head | None:
                nonlocal counter
                counter = 0
                found = self._find_in(head)
                if self._shared and not self._is_due(found):
                    return None
                counter = found.renewals + 1
                return head.with_hold(self.hold_id, found.renew(self._ttl_ms))

            def is_mine(head: Head) -> bool:
                found = head.holds.get(self.hold_id)
                # The counter only grows, and another process may have raised it further.
                return found is not None and found.renewals >= counter

            try:
                found = self._look() if self._shared else None
                if found is None or self._is_due(found):
                    found = self._find_in(self.queue.change_head(change, is_mine))
            except Fenced:
                self.state = "lost"
                raise
            if counter:
                self._note(found.renewals, began)
            elif found.renewals != self._renewals:
                # Another process has raised it, after our last look if that was not long ago.
                renewed_at = self._looked_at if self._follows() else began
                self._note(found.renewals, began)
                self._renewed_at = renewed_at
            self._looked_at = began

    def _look(self) -> Hold | None:
        """Return the hold by a conditional read; None if the store did not answer."""
        try:
            state = self.queue.read()
        except Unavailable:
            return None
        return self._find_in(state) if isinstance(state, Head) else None

    def _find_in(self, head: Head) -> Hold:
        found = head.holds.get(self.hold_id)
        if found is None:
            raise self._gone()  # guard: a renewal never restores a lost hold
        return found

    def release(self) -> None:
        if os.getpid() != self._process:
            return  # the parent's to close
        with self._writing:
            if not self.stop():
                return
            if self.state == "lost":
                raise self._gone()
            self.state = "closed"

            def change(head: Head) -> Head:
                if self.hold_id not in head.holds:
                    self.state = "lost"
                    raise self._gone()
                return head.without_hold(self.hold_id)

            self.queue.read()  # a write on an old head would meet a conflict, and then could not tell who removed it
            self.queue.change_head(change, lambda head: self.hold_id not in head.holds)

    def stop(self) -> bool:
        """Renew no more; return whether it was renewed until now."""
        if self._process != os.getpid():
            return False  # the thread, and perhaps the lock, stayed with the parent
        with self._waking:
            before, self._over = self._over, True
            self._waking.notify_all()
        return not before

    def _start_renewing(self) -> None:
        Thread(target=self._keep_renewing, name=self.name, daemon=True).start()

    def _is_due(self, found: Hold) -> bool:
        """Whether this process, which shares the hold with others, should renew it."""
        if not self._follows() and found.stamp_ms is not None:  # guard: renew a stamped hold at the first look
            return True  # a collector has begun to count, and we do not know when
        # guard: renew a shared hold only when it is due
        return found.renewals == self._renewals and self._clock.monotonic() >= self._seen_at + self._pause

    def _follows(self) -> bool:
        """Whether this process has looked at the hold lately, so that it knows how old a renewal can be."""
        return self._clock.monotonic() - self._looked_at <= self._ttl - self._ttl / _RENEWALS_IN_A_TTL

    def _note(self, renewals: int, seen_at: float) -> None:
        self._renewals = renewals
        self._seen_at = self._renewed_at = seen_at

    def _keep_renewing(self) -> None:
        due = self._seen_at + self._pause
        while self._wait_until(due):
            try:
                self.renew()
                due = self._seen_at + self._pause
            except Fenced:
                _log.exception("%s is lost; its job must stop", self.name)
                return
            except BaseException:  # noqa: BLE001 - without this thread the hold would expire and nobody would know why
                _log.warning("%s could not be renewed; trying again", self.name, exc_info=True)
                due = self._clock.monotonic() + self._pause / 4

    def _wait_until(self, deadline: float) -> bool:
        """Wait, and return whether the hold is still wanted."""
        with self._waking:
            while not self._over and self._clock.wait_until(self._waking, deadline):
                pass
            return not self._over

    def _gone(self) -> Fenced:
        return Fenced(
            f"{self.name} expired and was removed, because it was not renewed for {self._ttl:g} s: what it kept may be "
            "gone. Stop, and run the job again under a new hold"
        )


def _open(
    url: StoreUrl,
    storage_options: Mapping[str, Any] | None,
    manifest_path: str,
    clock: Clock | None,
    random: Random | None,
) -> Queue:
    store = open_store(url, storage_options)
    return Queue(store, manifest_path, role="hold", clock=clock, random=random)


def _or_latest(upto: str | int | datetime | None) -> str | int | datetime:
    return "latest" if upto is None else upto
