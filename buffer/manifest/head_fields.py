"""What the head of a manifest keeps of readers, holds and writers (rfcs/0005)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.checks import Signed, Whole  # noqa: TC001 - msgspec reads the annotations
from forebay.buffer.base.process import Process  # noqa: TC001 - msgspec reads the annotations


class Owner(Struct, frozen=True, array_like=True):
    """The unnamed consumer."""

    epoch: int
    claim_id: str
    """Random; only the process that made the claim knows it."""
    acked: Whole | None
    """The highest sequence up to which all is acknowledged; None if nothing is."""
    process: Process | None = None
    """The process that made the claim; None if an older release wrote this."""


class Group(Struct, frozen=True, array_like=True):
    """A named reader, as the head knows it; its frontier is in a cursor object."""

    generation: str
    """Of this name's present life: random, known beforehand to the one who made it alone."""
    start: Whole
    """The first sequence it reads."""


class Hold(Struct, frozen=True, array_like=True):
    """Something that must not be trimmed or swept until it expires.

    It expires a time to live after the collector first saw its counter of renewals, by the store's time. No clock of
    its holder matters.
    """

    first_sequence: Whole | None
    """The lowest sequence still needed; None if it holds uploads alone."""
    floor: str | None
    """The lowest ULID of uploads that are not listed yet; None if it holds listings alone."""
    expires_ms: Signed
    """Only of holds that an older release took (`ttl_ms` is 0): when it expires. 0 in all others."""
    purpose: str
    ttl_ms: Whole = 0
    """How long it lives without a renewal. 0 if an older release took it."""
    renewals: Whole = 0
    """Raised by one with every renewal; never goes down."""
    stamp_ms: Signed | None = None
    """The store's time when a collector first saw this value of `renewals`; None if none has seen it yet."""

    def renew(self, ttl_ms: int) -> Hold:
        """The hold with its counter raised, which no collector has seen yet."""
        # guard: a renewal raises the counter and clears the stamp
        return replace(self, expires_ms=0, ttl_ms=ttl_ms, renewals=self.renewals + 1, stamp_ms=None)

    def expiry_ms(self) -> int | None:
        """The store's time from which a collector removes it; None if no collector has begun to count."""
        if self.ttl_ms == 0:
            return self.expires_ms
        # guard: an unstamped hold does not expire
        return None if self.stamp_ms is None else self.stamp_ms + self.ttl_ms

    def is_expired(self, now_ms: int) -> bool:
        """Whether a collector removes it at this time of the store."""
        expiry_ms = self.expiry_ms()
        return expiry_ms is not None and expiry_ms <= now_ms

    def needs_stamp(self, now_ms: int) -> bool:
        """Whether it has no stamp yet, or a stamp in the future, from a store clock that was wrong."""
        # guard: replace a stamp that lies in the future
        return self.ttl_ms > 0 and (self.stamp_ms is None or self.stamp_ms > now_ms)


class Writer(Struct, frozen=True, array_like=True):
    """How far a writer has come."""

    number: Whole
    """Of its last append."""
    revision: Whole
    """The head's revision at that append: the least recent writer is forgotten, or sealed, first."""
    sealed: bool = False
    """Whether its bucket has its name, too."""


class Bucket(Struct, frozen=True, array_like=True):
    """A reference to the lasting writers of one bucket."""

    name: str
    """The ULID that the object is named by."""
    count: Whole
    """How many writers it holds."""
