"""What a user of the coordinator brings: a delta that takes writes, and a flusher that stores it."""

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
    """How far a write has come; each level includes those before it."""

    APPLIED = 1
    """It is in the current delta, in its place in the order."""
    WRITTEN = 2
    """Its delta, and every delta before it, came back from `Flusher.flush_delta`."""
    DURABLE = 3
    """Its delta, and every delta before it, came back from `Flusher.flush_storage`."""


@dataclass(frozen=True, slots=True)
class Stamped(Generic[T_co]):
    """A value of one delta, with the epochs of the writes in that delta."""

    epochs: range
    """The epochs, contiguous with those of the deltas before and after."""
    value: T_co
    """What the delta became: a reader in a view, a receipt on the way to storage."""


class Delta(Protocol[WriteT_contra, ResultT_co, FrozenT_co, ReaderT_co]):
    """Writes gathered in memory until they are flushed together. One thread at a time calls it."""

    def apply(self, write: WriteT_contra, /) -> ResultT_co:
        """Take one write in; what is returned reaches the write's handle.

        To refuse it, raise and leave the delta as it was: the handle gets the error and the epoch stays used.
        """

    def size(self) -> int:
        """An estimate of what is held, in the unit of `CoordinatorConfig.flush_size`. Called after every write."""

    def reader(self) -> ReaderT_co:
        """What a view shows of this delta: it sees each write as soon as it is applied, from any thread."""

    def freeze(self) -> tuple[FrozenT_co, Self]:
        """What to flush, and the delta that follows, which carries on whatever must outlive this one."""


class Flusher(Protocol[FrozenT_contra, ReceiptT]):
    """Stores frozen deltas, in two stages.

    Either stage may raise `DeltaRejected` to fail the deltas it was given and no others; any other exception is fatal:
    it reaches everyone who waits, and the coordinator stops.
    """

    def flush_delta(self, frozen: FrozenT_contra, epochs: range, shrink: Callable[[int], None], /) -> ReceiptT:
        """Write one delta and return its receipt, which views show as `snapshot`.

        Call `shrink` with what the delta costs from now on, as soon as it costs less than its writes did.
        As many as `max_concurrent_flushes` threads call it at once, each with a delta of its own.
        """

    def flush_storage(self, written: Sequence[Stamped[ReceiptT]], /) -> Mapping[range, Exception]:
        """Make everything written durable; return the error of each delta that could not be, by its epochs.

        Gets the receipts not yet durable, in order and without a gap; none, if durability was asked for with nothing
        new. One call at a time. Receipts are kept until then, so a coordinator without `durable_flushes` should ask now
        and again.
        """
