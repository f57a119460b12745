"""The settings of producers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.batch import DEFAULT_LEVEL, check_compression
from forebay.buffer.format.parquet import DEFAULT_ROWS_LEVEL
from forebay.buffer.store.retry import RETRY_SECONDS

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.batch import Compression

FLUSH_INTERVAL: Final = 0.1
"""Default time in seconds between two flushes of a producer of bytes."""
ROWS_FLUSH_INTERVAL: Final = 1.0
"""The same for a typed producer: at 0.1 s, a quiet service would make 36,000 small Parquet files an hour."""
FLUSH_SIZE_BYTES: Final = 8 << 20
"""Default size of a batch before compression: a quarter of `ProducerLimits.buffered_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """How much a `Producer` or a `TopicProducer` may hold and do at once."""

    buffered_calls: int = 1000
    """Maximum number of calls that wait to be put into a batch, for each partition; then `produce` blocks."""
    buffered_bytes: int = 32 << 20
    """Maximum memory for entries that are not durable yet, of all partitions together; then `produce` blocks.

    A call larger than that goes in alone.
    """
    concurrent_uploads: int = 4
    """Maximum number of batches that are encoded and uploaded at once, for each partition.

    All partitions of a topic share 24 threads, or one more than this number, if that is more.
    """
    backlog_bytes: int | None = None
    """Maximum size of the batches that the buffer retains; then `produce` raises `Backpressure`. None: no limit.

    In a topic it counts for each partition. Native buffers only.
    """

    def __post_init__(self) -> None:
        for name in ("buffered_calls", "buffered_bytes", "concurrent_uploads"):
            object.__setattr__(self, name, check_whole(getattr(self, name), name, least=1))
        if self.backlog_bytes is not None:
            object.__setattr__(self, "backlog_bytes", check_whole(self.backlog_bytes, "backlog_bytes", least=1))


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings whose defaults differ between bytes and rows."""

    flush_interval: float
    compression_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a buffer is written. `Producer` and `TopicProducer` describe the fields to their callers."""

    flush_interval: float | None
    """None for the default: `FLUSH_INTERVAL`, or `ROWS_FLUSH_INTERVAL` in a typed buffer."""
    flush_size_bytes: int
    compression: Compression = "zstd"
    compression_level: int | None = None
    """None for the default: `DEFAULT_LEVEL`, or `DEFAULT_ROWS_LEVEL` in a typed buffer."""
    grace: float = 600.0
    retry_timeout: float = RETRY_SECONDS
    limits: ProducerLimits = field(default_factory=ProducerLimits)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=system_random)

    def __post_init__(self) -> None:
        if self.flush_interval is not None:
            check_seconds(self.flush_interval, "flush_interval")
        check_whole(self.flush_size_bytes, "flush_size_bytes", least=1)
        check_compression(self.compression, DEFAULT_LEVEL if self.compression_level is None else self.compression_level)
        check_seconds(self.grace, "grace")
        check_seconds(self.retry_timeout, "retry_timeout")
        if not isinstance(self.limits, ProducerLimits):
            raise InvalidInput(f"limits must be ProducerLimits(…), not {type(self.limits).__name__}")

    def resolve(self, *, typed: bool) -> ResolvedSettings:
        """The settings that depend on what a buffer holds."""
        interval, level = self.flush_interval, self.compression_level
        if interval is None:
            interval = ROWS_FLUSH_INTERVAL if typed else FLUSH_INTERVAL
        if level is None:
            level = DEFAULT_ROWS_LEVEL if typed else DEFAULT_LEVEL
        return ResolvedSettings(interval, level)
