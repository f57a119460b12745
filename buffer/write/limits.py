"""How much a producer may hold and do at once."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.buffer.base.checks import check_whole
from forebay.buffer.base.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """Limits of a `Producer` or a `TopicProducer`."""

    buffered_calls: int = 1000
    """Maximum number of calls that wait to be put into a batch, for each partition; then `produce` blocks."""
    buffered_bytes: int = 256 << 20
    """Maximum memory for entries that are not durable yet, of all partitions together; then `produce` blocks.

    A call larger than that goes in alone.
    """
    concurrent_uploads: int = 4
    """Maximum number of batches that are encoded and uploaded at once, for each partition."""
    backlog_bytes: int | None = None
    """Maximum size of the batches that the buffer retains; then `produce` raises `Backpressure`. None: no limit.

    In a topic it counts for each partition. Native buffers only.
    """

    def __post_init__(self) -> None:
        for name in ("buffered_calls", "buffered_bytes", "concurrent_uploads"):
            object.__setattr__(self, name, check_whole(getattr(self, name), name, least=1))
        if self.backlog_bytes is not None:
            object.__setattr__(self, "backlog_bytes", check_whole(self.backlog_bytes, "backlog_bytes", least=1))


def check_limits(limits: ProducerLimits | None) -> ProducerLimits:
    """Return the limits, or the defaults for None; raise `InvalidInput` if they are of another type."""
    if limits is None:
        return ProducerLimits()
    if not isinstance(limits, ProducerLimits):
        raise InvalidInput(f"limits must be ProducerLimits(…), not {type(limits).__name__}")
    return limits
