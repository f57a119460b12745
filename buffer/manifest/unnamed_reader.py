"""The read side of the unnamed consumer, whose claim and frontier are in the manifest itself (rfcs/0004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.errors import Fenced, Unsupported
from forebay.buffer.format.model import BatchDescriptor, Reader
from forebay.buffer.manifest.either_version import Claim
from forebay.buffer.manifest.v1 import Manifest

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.buffer.base.process import Process
    from forebay.buffer.manifest.queue import Queue
    from forebay.buffer.manifest.state import State


class UnnamedReader:
    """What the unnamed consumer reads and acknowledges; a group's consumer has a `GroupReader` instead."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._early_ack: int | None = None

    def claim(self, process: Process | None = None) -> Claim:
        """Take over the read side, in the name of a process.

        Two rivals that read epoch e both write e + 1, so an epoch seen in the manifest never proves whose it is. In
        version 2 the claim id does; in version 1, after anything but a clear success, this claims again, above the
        epoch just read.
        """
        claim_id = self._queue.new_id()

        def take(state: State | None) -> State:
            state = state or self._unwritten()  # guard: a consumer that opens first leaves the format open
            return state.claim(claim_id, process)

        def is_mine(state: State) -> bool:
            return state.claim_id == claim_id  # guard: never take the epoch of a rival for our own

        return Claim(self._queue.update(take, is_mine).epoch, claim_id)

    def _unwritten(self) -> Manifest:
        """The manifest to create if there is none. It leaves the format to the first writer."""
        self._queue.empty_state()  # raises where the manifest was deleted
        return Manifest.empty(self._queue.url)

    def look(self, claim: Claim, after: int | None, limit: int) -> list[BatchDescriptor]:
        """Return up to `limit` batches after sequence `after` (if None, after what is acknowledged).

        Raises:
            Fenced: another consumer has made a claim since.
            Trimmed: they are gone.
        """
        state = self._queue.read()
        self._check_owner(state, claim)
        state = self._record_early_ack(state, claim)  # guard: record an early ack after the first write
        return self._queue.descriptors(state.following(after), limit, state=state)

    def ack(self, claim: Claim, through: int) -> None:
        """Record that all batches up to and including `through` are done. What is recorded already does nothing.

        Raises:
            Fenced: another consumer has made a claim since, and nothing was changed.
            Unknown: as `Fenced`, but it may have been recorded before that.
        """

        def done(state: State) -> bool | None:
            # If the claim changed hands, we cannot tell who recorded this ack.
            # guard: an unnamed ack recorded before a takeover is not fenced
            return state.has_acked(through) and (state.is_held_by(claim) or None)

        def change(state: State | None) -> State | None:
            state = state or self._queue.empty_state()
            self._check_owner(state, claim)
            return None if done(state) else state.ack(through)

        if self._queue.update(change, done).is_unwritten:
            # Nothing exists yet, and version 1 has no place for it. Kept until there is a head.
            self._early_ack = max(through, -1 if self._early_ack is None else self._early_ack)

    def _record_early_ack(self, state: State, claim: Claim) -> State:
        """Record what was acknowledged before the first write, once there is a place for it."""
        early = self._early_ack
        if early is None or state.is_unwritten:
            return state
        if state.version == 2:
            self.ack(claim, early)
            state = self._queue.last_seen() or state
        self._early_ack = None
        return state

    def plan(self, claim: Claim, ends: Collection[int]) -> None:  # noqa: ARG002 - as a group's
        """There is no place for it: only a group's cursor keeps plans."""
        raise Unsupported(f"{self._queue.url}: the unnamed consumer cannot record what it is about to do: name a group")

    def planned(self) -> tuple[int, ...]:
        """Nothing is ever recorded for the unnamed consumer."""
        return ()

    @property
    def reader(self) -> Reader:
        """The unnamed consumer of this buffer, as last seen here."""
        return Reader((self._queue.last_seen() or Manifest.empty(self._queue.url)).buffer_id)

    def release(self, claim: Claim) -> None:
        """Nothing to do: the next claim simply comes on top."""

    def acked(self) -> int | None:
        """Return the last sequence acknowledged, as last seen here; None if there is none that is known."""
        state = self._queue.last_seen()
        return None if state is None else state.acked

    def waiting(self) -> int:
        """Return how many batches were not acknowledged when the manifest was last read or written here."""
        state = self._queue.last_seen()
        return 0 if state is None else state.waiting

    @property
    def conflict_rate(self) -> float:
        """The share of the manifest's writes here, from 0 to 1, that met another writer."""
        return self._queue.conflict_rate

    def _check_owner(self, state: State, claim: Claim) -> None:
        if not state.is_held_by(claim):  # guard: check epoch and claim id of the unnamed consumer
            who = "" if state.claimed_by is None else f" in process {state.claimed_by}"
            raise Fenced(
                f"{self._queue.url}: another consumer opened this buffer{who}; this consumer must stop. It has changed "
                "nothing since then"
            )
