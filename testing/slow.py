"""A store whose requests take as long as those of a store far away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.testing.faults import FaultyStore

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store.base import ObjectStore
    from forebay.testing.faults import Fault

_WRITES = frozenset({"put", "create", "replace", "delete"})


class SlowStore(FaultyStore):
    """Any store, with a delay before each request. `calls` counts the requests by their kind.

    Args:
        inner: the store that does the work.
        reads: seconds that a read or a listing takes longer.
        writes: seconds that a write or a deletion takes longer.
        clock: what the delay sleeps on.
    """

    def __init__(
        self, inner: ObjectStore, *, reads: float = 0.03, writes: float = 0.05, clock: Clock | None = None
    ) -> None:
        super().__init__(inner, clock=clock)
        self._reads = reads
        self._writes = writes

    def next_fault(self, kind: str) -> Fault | None:
        """Wait, and go on without a fault."""
        self._clock.sleep(self._writes if kind in _WRITES else self._reads)
        return super().next_fault(kind)
