"""The queue that a manifest makes of stored batches: append, read, dequeue, claim, each one compare-and-swap."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

from forebay.buffer import metrics
from forebay.buffer.errors import Fenced, InvalidInput, Unknown
from forebay.buffer.manifest.v1 import Manifest
from forebay.buffer.register import DEFAULT_LIMITS, Limits, Register, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.buffer.clock import Clock, Random
    from forebay.buffer.model import BatchDescriptor, NewBatch
    from forebay.buffer.store.base import ObjectStore


class PlaceConsumed(Unknown):
    """An append in doubt whose place in the queue was consumed meanwhile: it can never be found out if it was applied.

    Nothing of it is in the manifest any more. Whoever wants its entries read for certain appends them again, as another
    object: then they may be read twice.
    """


class Queue:
    """One role's view of a manifest: a producer, a consumer and a collector each open their own, and say which.

    Safe to use from many threads: one request of a role is under way at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest_path: str = "manifest",
        *,
        role: str = "reader",
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        url = f"{store.url}/{manifest_path}"
        self._empty = Manifest.empty(url)
        self._register: Register[Manifest] = Register(
            store,
            manifest_path,
            decode=lambda data: Manifest(data, url),
            encode=lambda manifest: manifest.data,
            limits=limits,
            clock=clock,
            random=random,
        )
        self._attributes = {"buffer": store.url, "role": role}
        self._lock = RLock()
        self._known: Snapshot[Manifest] | None = None
        self._undisturbed = True

    @property
    def url(self) -> str:
        """The manifest's address, for messages."""
        return self._register.url

    @property
    def conflict_rate(self) -> float:
        """The share of this role's manifest writes, from 0 to 1, that found another writer there first."""
        return self._register.conflict_rate

    def __len__(self) -> int:
        """How many batches waited when the manifest was last read or written here."""
        known = self._known
        return known.value.count if known is not None and known.value is not None else 0

    def __bool__(self) -> bool:
        return True  # an empty queue is still a queue

    def read(self) -> Manifest:
        """Return the manifest as it is now; one that has not changed since the last look costs a conditional read."""
        with self._lock:
            known = self._known
            return self._remember(self._register.read() if known is None else self._register.read_if_changed(known))

    def append(self, batches: Sequence[NewBatch]) -> range:
        """Add stored batches to the end, in order and all at once, and return their sequences.

        Raises:
            Unknown: they may or may not have been appended, or may yet be. Never append them again by the same name.
            PlaceConsumed: as `Unknown`, and no later look can tell.
        """
        if not batches:
            raise InvalidInput(f"{self.url}: there is nothing to append")
        locations = [batch.location for batch in batches]
        place = 0
        consumed = False

        def add(manifest: Manifest | None) -> Manifest:
            nonlocal place
            manifest = manifest or self._empty
            place = manifest.next_sequence
            return manifest.append(batches)

        def is_mine(manifest: Manifest) -> bool | None:
            nonlocal consumed
            if manifest.lists_any(locations):
                return True
            consumed = manifest.first_sequence > place
            return None if consumed else False

        try:
            self._update(add, is_mine)
        except Unknown as error:
            if consumed:
                raise PlaceConsumed(
                    f"{self.url}: the append of {locations[0]} was in doubt, and what stood at its place, sequence "
                    f"{place}, has been consumed meanwhile"
                ) from error
            raise
        return range(place, place + len(batches))

    def entries_after(self, sequence: int | None, limit: int, *, epoch: int) -> list[BatchDescriptor]:
        """Return up to `limit` batches after `sequence` (from the oldest waiting if None), for the owner of `epoch`.

        Raises:
            Fenced: another consumer has claimed a higher epoch.
        """
        manifest = self.read()
        self._check_owner(manifest, epoch)
        return manifest.entries_after(sequence, limit)

    def dequeue(self, through: int, *, epoch: int) -> None:
        """Remove the batches up to and including sequence `through`. Removing what is gone already does nothing.

        Raises:
            Fenced: another consumer has claimed a higher epoch, and nothing was removed.
        """

        def drop(manifest: Manifest | None) -> Manifest | None:
            manifest = manifest or self._empty
            self._check_owner(manifest, epoch)
            if manifest.count == 0 or manifest.first_sequence > through:
                return None
            return manifest.dequeue(through)

        self._update(drop, lambda manifest: manifest.epoch == epoch and manifest.first_sequence > through)

    def claim_epoch(self) -> int:
        """Take over the read side, and return the epoch that is ours now.

        Two rivals that read epoch e both write e + 1, so an epoch seen in the manifest never proves whose it is: after
        anything but a clear success this claims again, above the epoch just read.
        """
        claimed = self._update(
            lambda manifest: (manifest or self._empty).claim(),
            lambda _manifest: False,
        )
        return claimed.epoch

    def _check_owner(self, manifest: Manifest, epoch: int) -> None:
        if manifest.epoch != epoch:
            raise Fenced(
                f"{self.url}: another consumer opened this buffer (its epoch is {manifest.epoch}, ours was {epoch}); "
                "this one must stop, and has changed nothing since"
            )

    def _update(
        self, change: Callable[[Manifest | None], Manifest | None], is_mine: Callable[[Manifest], bool | None]
    ) -> Manifest:
        with self._lock:
            # A sole writer saves the read before its write. Among several that would be a conflict nearly every time,
            # so whoever met one looks first, until it finds the manifest as it left it.
            if self._known is not None and not self._undisturbed:
                before = self._known
                self.read()
                self._undisturbed = self._known is before
            writes, conflicts = self._register.writes, self._register.conflicts
            try:
                return self._remember(self._register.update(change, is_mine, known=self._known))
            finally:
                met = self._register.conflicts - conflicts
                self._undisturbed &= met == 0
                metrics.manifest_writes.add(self._register.writes - writes, self._attributes)
                metrics.manifest_conflicts.add(met, self._attributes)

    def _remember(self, snapshot: Snapshot[Manifest]) -> Manifest:
        self._known = snapshot
        return snapshot.value or self._empty
