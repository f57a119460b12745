"""A store whose requests take as long as those of a distant store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.testing.faults import FaultyStore

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store.base import ObjectStore
    from forebay.testing.faults import Fault

_WRITES = frozenset({"put", "create", "replace", "delete"})


class SlowStore(FaultyStore):
    """A wrapper that adds a delay before each request of any store. `calls` counts the requests by their kind.

    Args:
        inner: the wrapped store.
        reads: seconds of delay before a read or a listing.
        writes: seconds of delay before a write or a deletion.
        clock: what the delay sleeps on.
    """

    def __init__(
        self, inner: ObjectStore, *, reads: float = 0.03, writes: float = 0.05, clock: Clock | None = None
    ) -> None:
        super().__init__(inner, clock=clock)
        self._reads = reads
        self._writes = writes

    def next_fault(self, kind: str) -> Fault | None:
        """Wait for the delay, then inject no fault."""
        self._clock.sleep(self._writes if kind in _WRITES else self._reads)
        return super().next_fault(kind)
