"""Keeps one hold in the head: takes it, renews it, shares it with other processes, lets it go (rfcs/0005)."""

from __future__ import annotations

import logging
import math
import os
import sys
from threading import RLock
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import Closed, Fenced, InvalidInput, Unavailable
from forebay.buffer.base.renewals import Renewal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.manifest import Head, Queue, State
    from forebay.buffer.manifest.head_fields import Hold

_log = logging.getLogger("forebay.holds")

_RENEWALS_IN_A_TTL = 3
_JITTER = 0.25
"""Each process that shares a hold shortens its pause by up to this fraction, so that they do not all look at once."""
_MOST_SECONDS = 1e9
"""Maximum time to live in seconds, about 30 years."""


class Ticket(Struct, frozen=True):
    """What other processes keep a hold by. Pickles; may be sent anywhere."""

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


def ttl_ms(ttl: float) -> int:
    """Return a hold's time to live in milliseconds. At least 1: 0 means a hold of an older release."""
    return math.ceil(check_ttl(ttl, "ttl") * 1000)  # guard: round a hold TTL up to a whole millisecond


class Lease:
    """One hold in the head, which is renewed until it is released, handed over or lost."""

    def __init__(self, queue: Queue, ttl: float, clock: Clock, *, hold_id: str | None = None) -> None:
        """Make the lease of a new hold, to `take`, or of the hold of that id, to `join`."""
        self._ttl_ms = ttl_ms(ttl)
        self._ttl = ttl
        self.queue = queue
        self.hold_id: str = hold_id or queue.new_id()
        self.name: str = f"hold {self.hold_id} of {queue.url}"
        self.state: str = "in force"
        self._clock = clock
        self._process = os.getpid()
        self._writing = RLock()
        self._shared = False
        self._pause = ttl / _RENEWALS_IN_A_TTL
        self._renewal = Renewal(clock, self._pause / 4, self._renew_in_time)
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
        self._pause *= 1 - _JITTER * random.random()
        # Only wall clocks tell how old the last renewal is, and they may be wrong. So a ticket that seems fresh starts
        # a timer here. Any other, even one from the future, means a look before the job goes on.
        # guard: check the hold before continuing if clocks disagree
        is_fresh = abs(self._clock.now_ms() - ticket.renewed_ms) < self._ttl_ms / _RENEWALS_IN_A_TTL
        self._note(ticket.renewals, self._clock.monotonic() - (0.0 if is_fresh else 2 * self._ttl))
        self._renewal.start(self._seen_at + self._pause)

    def hand_over(self) -> Ticket:
        """Stop renewing the hold here, and return the ticket that others join by."""
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
        self._renewal.start(self._seen_at + self._pause)
        return head

    def check(self) -> None:
        """Raise `Closed` or `Fenced` unless the hold is in force. Renews it first if nobody did in time."""
        if self._renewal.is_stopped:
            raise Closed(
                f"{self.name} was {'handed over' if self.state == 'handed over' else 'closed'}; open a new hold"
            )
        if self.state == "lost":
            raise self._gone()
        # guard: renew the hold before continuing after a sleep
        if self._clock.monotonic() >= self._renewed_at + self._ttl:
            self.renew()  # nobody did in time, so it may be gone: this finds out

    def renew(self) -> None:
        """Raise the counter, or find that another process did, or raise `Fenced` if the hold is gone."""
        with self._writing:
            if self._renewal.is_stopped:
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
                self._note(found.renewals, began)
                self._renewed_at = self._looked_at if self._follows() else began
            self._looked_at = began

    def _look(self) -> Hold | None:
        """Return the hold by a conditional read; None if the store did not answer."""
        try:
            state = self.queue.read()
        except Unavailable:
            return None
        return self._find_in(state)

    def _find_in(self, state: State) -> Hold:
        found = state.holds.get(self.hold_id)
        if found is None:
            raise self._gone()  # guard: a renewal never restores a lost hold
        return found

    def release(self) -> None:
        """Remove the hold, unless other processes share it: then only stop renewing it here."""
        if os.getpid() != self._process:
            return  # the parent's to close
        # guard: send nothing while the interpreter ends: s3fs would never answer, and the hold expires
        if self._shared or sys.is_finalizing():
            self.stop()
            return
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
        # In a forked child the parent renews it.
        return self._process == os.getpid() and self._renewal.stop()

    def abandon(self) -> bool:
        """As `stop`, for a finalizer, which must not wait for a lock."""
        return self._process == os.getpid() and self._renewal.abandon()

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

    def _renew_in_time(self) -> float | None:
        """Renew the hold when that is due, and return when the next renewal is due; None if the hold is lost."""
        try:
            self.renew()
        except Fenced:
            _log.exception("%s is lost; its job must stop", self.name)
            return None
        except BaseException:  # noqa: BLE001 - whatever happened, without another try the hold would expire
            _log.warning("%s could not be renewed; trying again", self.name, exc_info=True)
            return self._clock.monotonic() + self._pause / 4
        return self._seen_at + self._pause

    def _gone(self) -> Fenced:
        return Fenced(
            f"{self.name} expired and was removed, because it was not renewed for {self._ttl:g} s: what it kept may be "
            "gone. Stop, and run the job again under a new hold"
        )
