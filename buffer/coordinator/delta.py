"""What a user of the coordinator provides: a delta that takes writes, and a flusher that stores it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

WriteT = TypeVar("WriteT")
ResultT = TypeVar("ResultT")
FrozenT = TypeVar("FrozenT")
ReaderT = TypeVar("ReaderT")
ReceiptT = TypeVar("ReceiptT")
T_co = TypeVar("T_co", covariant=True)
WriteT_contra = TypeVar("WriteT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)
FrozenT_co = TypeVar("FrozenT_co", covariant=True)
FrozenT_contra = TypeVar("FrozenT_contra", contravariant=True)
ReaderT_co = TypeVar("ReaderT_co", covariant=True)


class Durability(IntEnum):
    """How far a write has been processed. Each level includes the lower ones."""

    APPLIED = 1
    """It is in the current delta, in its place in the order."""
    WRITTEN = 2
    """`Flusher.flush_delta` has returned for its delta and every delta before it."""
    DURABLE = 3
    """`Flusher.flush_storage` has returned for its delta and every delta before it."""


@dataclass(frozen=True, slots=True)
class Stamped(Generic[T_co]):
    """A value of one delta, with the epochs of the writes in that delta."""

    epochs: range
    """The epochs, contiguous with those of the deltas before and after."""
    value: T_co
    """The delta's reader in a view, or its receipt in `flush_storage`."""


class Delta(Protocol[WriteT_contra, ResultT_co, FrozenT_co, ReaderT_co]):
    """Writes gathered in memory until they are flushed together. One thread at a time calls it."""

    def apply(self, write: WriteT_contra, /) -> ResultT_co:
        """Add one write, and return the result for its handle.

        To refuse the write, raise an exception and leave the delta unchanged. The handle gets the error, and the
        write's epoch is not used again.
        """

    def size(self) -> int:
        """Return an estimate of its size, in the unit of `CoordinatorConfig.flush_size`. Called after every write."""

    def reader(self) -> ReaderT_co:
        """Return what views show of this delta. It shows each write as soon as that is applied, to any thread."""

    def freeze(self) -> tuple[FrozenT_co, Self]:
        """Return what to flush, and the next delta, with any state that must outlive this one."""


class Flusher(Protocol[FrozenT_contra, ReceiptT]):
    """Stores frozen deltas, in two stages.

    Either stage may raise `DeltaRejected` to fail the deltas it was given and no others. Any other exception stops the
    coordinator, and every waiting caller gets the error.
    """

    def flush_delta(self, frozen: FrozenT_contra, epochs: range, shrink: Callable[[int], None], /) -> ReceiptT:
        """Write one delta and return its receipt, which views show as `snapshot`.

        As soon as the delta costs less than its writes did, call `shrink` with its new cost. Up to
        `max_concurrent_flushes` threads call this method at once, each with a different delta.
        """

    def flush_storage(self, written: Sequence[Stamped[ReceiptT]], /) -> Mapping[range, Exception]:
        """Make everything written durable. Return the error of each delta that failed, by its epochs.

        `written` has the receipts that are not durable yet, in order. It is empty if a durable flush was requested and
        nothing is new. Only one call runs at a time. Receipts stay in memory until this call, so without
        `durable_flushes` the caller should request durable flushes from time to time.
        """
