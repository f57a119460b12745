"""Decides which portions may be fetched now, within a budget of batches and bytes (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from forebay.buffer.base.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.fetch import Batch
    from forebay.runtime.stages.portions import Portion

_REMEMBERED: Final = 16
_FIRST_RAW_BYTES: Final = 64 << 20
"""Assumed size of a batch in bytes, before compression, while no size is known."""


class Sizes:
    """Estimates how much memory the batches of one source take, from the manifest's facts or from recent batches."""

    def __init__(self) -> None:
        self._raw: deque[int] = deque(maxlen=_REMEMBERED)
        self._growth: deque[float] = deque(maxlen=_REMEMBERED)

    def raw_bytes(self, descriptor: BatchDescriptor) -> int:
        """Return how many bytes a batch holds before compression, known or estimated."""
        if descriptor.facts is not None:
            return descriptor.facts.raw_bytes
        return max(self._raw, default=_FIRST_RAW_BYTES)

    def expect(self, descriptor: BatchDescriptor) -> int:
        """Return how much memory a batch will take at most, while it is decoded or after."""
        raw = self.raw_bytes(descriptor)
        stored = descriptor.size
        return max((raw if stored is None else stored) + 2 * raw, int(raw * max(self._growth, default=1.0)))

    def learn(self, batch: Batch, held: int) -> None:
        """Record how much memory a batch really took, for later estimates."""
        raw = batch.decoded.raw_bytes
        self._raw.append(raw)
        self._growth.append(held / max(1, raw))


def held_bytes(batch: Batch, table: pa.Table) -> int:
    """Return how much memory a batch and its rows hold; buffers that they share count once."""
    arrays: list[pa.Array] = [*batch.decoded.chunks]
    arrays += [chunk for column in table.columns for chunk in column.chunks]
    buffers = {found.address: found.size for array in arrays for found in array.buffers() if found is not None}
    return sum(buffers.values())


class Applicant(Protocol):
    """A source, as admission sees it."""

    ready: deque[Portion]
    """Portions that wait to be admitted, in order."""
    batches: int
    """Batches of this source that count against the budget."""
    bytes: int
    """Bytes of this source that count against the budget."""
    obstacle: str
    """Why its next portion has to wait; empty if it does not."""

    def expect(self, portion: Portion) -> list[int]:
        """Return how much memory each batch of a portion will take."""


S = TypeVar("S", bound=Applicant)


class Admission(Generic[S]):
    """The budget of batches and bytes, shared fairly by all sources. The caller holds the runtime's lock."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self.max_batches = max_batches
        self.max_bytes = max_bytes
        self.batches: int = 0
        self.bytes: int = 0
        self._turns: deque[S] = deque()

    def join(self, source: S) -> None:
        """Let a source take part."""
        self._turns.append(source)

    def leave(self, source: S) -> None:
        """Remove a source, and take back what it holds."""
        self._turns.remove(source)
        self._count(source, -source.batches, -source.bytes)

    def admit(self) -> Iterable[tuple[S, Portion]]:
        """Yield the portions that may be fetched now, one of each source in turn."""
        idle = 0
        while idle < len(self._turns):
            source = self._turns[0]
            if source.ready:
                sizes = source.expect(source.ready[0])
                source.obstacle = self._find_obstacle(source, len(sizes), sum(sizes))
                if not source.obstacle:
                    portion = source.ready.popleft()
                    portion.reserved = sizes
                    self._count(source, len(sizes), sum(sizes))
                    idle = -1
                    yield source, portion
                elif not source.batches:
                    return  # it stays first: otherwise smaller portions of other sources could always go before it
            self._turns.rotate(-1)
            idle += 1

    def correct(self, source: S, portion: Portion, index: int, held: int) -> None:
        """Replace the estimate for a batch by the number of bytes that it really holds."""
        self._count(source, 0, held - portion.reserved[index])
        portion.reserved[index] = held

    def free_bytes(self, source: S, portion: Portion) -> None:
        """Give the bytes of a finished portion back to the budget."""
        self._count(source, 0, -sum(portion.reserved))
        portion.reserved = []

    def free_batches(self, source: S, count: int) -> None:
        """Give batches that the frontier has passed back to the budget."""
        self._count(source, -count, 0)

    def _count(self, source: S, batches: int, size: int) -> None:
        self.batches += batches
        self.bytes += size
        source.batches += batches
        source.bytes += size

    def _find_obstacle(self, source: S, batches: int, size: int) -> str:
        if not self.batches:
            return ""  # regardless of its size: otherwise a large portion would wait for ever
        left, left_bytes = self.max_batches - self.batches - batches, self.max_bytes - self.bytes - size
        if left < 0:  # guard: enforce the batch budget
            return f"{counted(self.batches, 'batch')} under way, and max_batches is {self.max_batches}"
        if left_bytes < 0:  # guard: enforce the byte budget
            return f"{_mib(self.bytes)} are under way, it needs {_mib(size)}, and max_bytes is {_mib(self.max_bytes)}"
        # Keep room for other sources if one source holds much and its commits take long.
        if len(self._turns) > 1 and source.batches:
            if source.batches + batches > 2 * left:  # guard: leave room for other sources
                return f"it has {counted(source.batches, 'batch')} under way, and others need room too"
            if source.bytes + size > 2 * left_bytes:
                return f"it has {_mib(source.bytes)} under way, and others need room too"
        return ""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
