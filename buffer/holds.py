"""Holds: what a job plans to read, or has stored and not listed yet, stays until the job is done (rfcs/0005).

A hold is written into the manifest's head, so no trim and no sweep that was decided without it can follow. A thread
renews it by raising a counter. If that fails (the machine slept, or the store was out of reach), the collector removes
the hold `ttl` seconds after it first saw the last counter, by the store's time. Then the job gets `Fenced`: it must
stop, and may run again under a new hold. No entry is lost. The job's wall clock does not matter.

A job of many processes plans in one of them, which hands the hold over: the others keep it by its ticket.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.buffer.base import names
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head_fields import Hold
from forebay.buffer.manifest.lease import Lease, ttl_ms
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.store import StoreUrl, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any, ClassVar

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Head
    from forebay.buffer.manifest.lease import Ticket


class Held(Closing):
    """A hold as its job sees it: in force until it is closed, or lost."""

    _INSTEAD: ClassVar[str] = "it renews itself in its own process. Pass on what workers read, such as descriptors"

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def hold_id(self) -> str:
        """The hold's id in the manifest."""
        return self._lease.hold_id

    def check(self) -> None:
        """Return if the hold is in force.

        Raises:
            Fenced: it expired and was removed: what it kept may be gone. Run the job again under a new hold.
            Closed: it was closed, or handed over.
        """
        self._lease.check()

    def renew(self) -> None:
        """Renew the hold now. If other processes keep it too, this only reads the manifest unless a renewal is due.

        Raises:
            Fenced: it expired and was removed.
        """
        self._lease.renew()

    def hand_over(self) -> Ticket:
        """Stop renewing the hold here, and return the ticket that other processes keep it by (`keep_hold`).

        If no process keeps it, it expires.
        """
        return self._lease.hand_over()

    def close(self) -> None:
        """Let go. Closing again does nothing.

        A hold that another process handed over stays: this process stops renewing it, others may keep it.

        Raises:
            Fenced: it had expired before.
            StoreError: the manifest could not be written; the hold stays until it expires.
        """
        self._lease.release()

    @shows_unopened
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lease.name}, {self._lease.state}>"

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)  # missing if the constructor failed
        if lease is not None and lease.abandon():
            warnings.warn(
                f"{self!r} was not closed: use `with` or close(). It keeps the collector back until it expires",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class HeldRange(Held):
    """A range of batches that stays until this is closed."""

    def __init__(self, lease: Lease, head: Head, first: int, last: int) -> None:
        super().__init__(lease)
        self.head = head
        """The head that has the hold: the range is read from it."""
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
        return descriptors_between(self._lease.queue, at, end, state=self.head, check=self.check)


def hold_range(
    queue: Queue,
    from_: str | int | datetime,
    upto: str | int | datetime,
    *,
    ttl: float,
    purpose: str,
    clock: Clock | None = None,
) -> HeldRange:
    """Return a range of batches of one buffer that is not trimmed until it is closed. `forebay.hold` explains it.

    The queue has read the manifest already. So a missing buffer was noticed, and is not made here.
    """
    lease = Lease(queue, ttl, clock or SystemClock())

    def wanted(head: Head) -> Hold:
        first = queue.sequence_of(from_, state=head)
        if first > head.next_sequence or queue.end_of(upto, state=head) < first:
            listed = f"batches are numbered from {head.first_sequence} to {head.next_sequence - 1}"
            raise InvalidInput(
                f"{queue.url}: there is nothing from {from_!r} up to {upto!r}; "
                f"{listed if head.first_sequence < head.next_sequence else 'no batch is listed'}: choose another range"
            )
        return Hold(first, None, 0, purpose)

    head = lease.take(wanted)  # guard: plan from the head that took the hold
    try:
        end = queue.end_of(upto, state=head)
    except ForebayError:
        with suppress(ForebayError):
            lease.release()
        raise
    return HeldRange(lease, head, head.holds[lease.hold_id].first_sequence or 0, end - 1)


def keep_hold(
    url: StoreUrl,
    ticket: Ticket,
    *,
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
    random: Random | None = None,
) -> Held:
    """Return a hold that another process handed over, renewed from here as well until this is closed.

    No request is sent before a renewal is due, and a process writes nothing if another has renewed the hold. So a
    thousand tasks of a job write hardly more often than one. `random` varies this process's pause.
    """
    queue = Queue(open_store(url, storage_options), manifest_path, role="hold", clock=clock)
    lease = Lease(queue, ticket.ttl, clock or SystemClock(), hold_id=ticket.hold_id)
    lease.join(ticket, random or system_random())
    return Held(lease)


class HeldUploads:
    """A floor for uploads, shared by the processes of a job: nothing named above it is swept before it is listed.

    The first process that asks for the floor makes the hold, and the buffer if there is none. Each process names its
    objects above the floor: `names.mint(clock, random, above=uploads.floor())`. The append that lists them ends the
    hold (`Queue.append(let_go=…)`).

    No thread renews it, because no process need live as long as the job: asking for the floor renews the hold if that
    is due.

    Args:
        queue: the buffer's manifest.
        hold_id: what all processes of the job know the hold by.
        ttl: seconds, by the store's clock, after which the collector removes the hold if it is not renewed.
        purpose: shown to operators who look for what holds the collector back.
        clock: its monotonic time decides when to look at the hold again.
    """

    def __init__(
        self, queue: Queue, hold_id: str, *, ttl: float, purpose: str = "", clock: Clock | None = None
    ) -> None:
        self._queue = queue
        self._hold_id = hold_id
        self._ttl_ms = ttl_ms(ttl)
        self._purpose = purpose
        self._clock = clock or SystemClock()
        self._floor = names.LOWEST
        self._look_at = self._clock.monotonic()
        self._renewals: int | None = None
        """The counter that this process saw last; None before its first look."""

    def floor(self) -> str:
        """Return the floor, a ULID. Looks at the hold if a quarter of its time to live has passed since the last look.

        Raises:
            Fenced: the job has ended: a mark without a floor is in the hold's place.
            Unsupported: the buffer is of version 1.
        """
        if self._clock.monotonic() >= self._look_at:
            began = self._clock.monotonic()
            head = self._queue.change_head(self._keep, lambda head: self._keep(head) is None)
            found = head.holds[self._hold_id]
            self._floor, self._renewals = found.floor or names.LOWEST, found.renewals
            self._look_at = began + self._ttl_ms / 4000  # last, so that a look that failed is made again
        return self._floor

    def let_go(self) -> None:
        """End the hold, if it is there."""

        def change(head: Head) -> Head | None:
            return head.without_hold(self._hold_id) if self._hold_id in head.holds else None

        self._queue.change_head(change, lambda head: self._hold_id not in head.holds)

    def _keep(self, head: Head) -> Head | None:
        """Return the head with the hold made or renewed; None if neither is due."""
        found = head.holds.get(self._hold_id)
        if found is None:
            floor = max(head.lowest_new_name, names.at_time(self._clock.now_ms()))
            return head.with_hold(self._hold_id, Hold(None, floor, 0, self._purpose, self._ttl_ms))
        if found.floor is None:  # guard: refuse to continue after the job has failed
            raise Fenced(
                f"{self._queue.url}: the job that this task belongs to has failed meanwhile"
                ", or has ended its hold; this task must stop"
            )
        # A stamp: the collector has begun to count. An unchanged counter: no other process has renewed it since the
        # last look. A hold of an older release expires by a wall clock, so it is turned into one that does not.
        # guard: renew the job hold when it is due
        is_due = found.stamp_ms is not None or found.renewals == self._renewals or found.ttl_ms == 0
        return head.with_hold(self._hold_id, found.renew(self._ttl_ms)) if is_due else None
