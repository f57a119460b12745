"""The state of one source while a runtime reads it. All stages read and change it (rfcs/0007)."""

from __future__ import annotations

from collections import deque
from threading import Condition
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.counted import counted
from forebay.runtime.stages.admission import Sizes
from forebay.runtime.stages.frontier import Frontier
from forebay.runtime.stages.portions import PortionBuilder

if TYPE_CHECKING:
    from threading import RLock

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.consumer import Consumer
    from forebay.runtime.config import RuntimeConfig
    from forebay.runtime.stages.portions import Portion


class ActiveSource:
    """A source that is being read: its consumer, its portions, its frontier and its counters.

    The runtime's lock guards all of it.
    """

    def __init__(self, consumer: Consumer, config: RuntimeConfig, lock: RLock, clock: Clock) -> None:
        self.consumer = consumer
        self.reader: Final = consumer.reader
        self.url: str = consumer.url
        self.fetcher: Final = consumer.fetch_handle()
        self.sizes: Final = Sizes()
        self.builder: PortionBuilder = PortionBuilder((), None, 1, self.sizes.raw_bytes)
        """Holds the batches that wait for more to combine."""
        self.ready: deque[Portion] = deque()
        self.in_order: deque[Portion] = deque()
        """Admitted portions that wait to be committed one after the other, if the sink requires order."""
        self.committing = False
        """Whether a portion of `in_order` is being committed."""
        self.frontier: Final = Frontier(config.ack_every, config.ack_seconds)
        self.batches = self.bytes = 0
        self.obstacle = ""
        self.trouble = ""
        """Why the last read, record or ack failed; empty if it did not."""
        self.found_entries = self.fetched_rows = self.rows = self.commits = self.dead_letters = self.bytes_read = 0
        self.caught_up = False
        """Whether the last look at the manifest found nothing more to read."""
        self.leaving: bool = False
        """Whether reading has stopped. The source ends once all its portions in progress have ended."""
        self.has_gap: bool = False
        """Whether batches that were read have been dropped, so that nothing after them may be committed."""
        self.ending: bool = False
        """Whether the source ends now, after a last ack of what is committed."""
        self.may_ack = True
        self.over = False
        self.wake: Final = Condition(lock)
        """Wakes the source's reader."""
        self._clock = clock

    def expect(self, portion: Portion) -> list[int]:
        """Return how much memory each batch of a portion will take."""
        return [self.sizes.expect(descriptor) for descriptor in portion.descriptors]

    def leave(self) -> None:
        """Stop reading, and drop the portions that wait for room. The caller holds the lock."""
        self.leaving = True
        self.has_gap |= bool(self.ready)
        self.ready.clear()
        self.wake.notify()

    def end(self) -> None:
        """Stop reading, and end the source without waiting for its portions. The caller holds the lock."""
        self.leave()
        self.ending = True

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of its metrics."""
        return {"buffer": self.url, "group": self.reader.group}

    @property
    def lag(self) -> int:
        """Number of batches that cannot be acknowledged yet, as of the last look."""
        through = self.frontier.through
        return self.consumer.end - through - 1 if through is not None else len(self.consumer)

    @property
    def lag_seconds(self) -> float:
        """Age in seconds of the first batch that cannot be acknowledged yet; 0 if there is none or it has no time."""
        portion = self.frontier.first or (self.ready[0] if self.ready else None)
        first = self.builder.first if portion is None else portion.descriptors[0]
        if first is None or first.first_time_ms is None:
            return 0.0
        return max(0.0, (self._clock.now_ms() - first.first_time_ms) / 1000)

    @property
    def waits_for(self) -> tuple[str, str]:
        """What the source waits for: a word for metrics, and a text for people."""
        first = self.frontier.first
        if self.trouble:
            return "store", self.trouble
        if first is not None and first.trouble:
            return ("fetch" if first.missing else "sink"), first.trouble
        if self.ready:
            return "room", self.obstacle
        if first is not None:
            return ("fetch", "batches are fetched and recorded") if first.missing else ("sink", "the sink commits")
        if self.builder:
            due = self.builder.due
            limit = "" if due is None else f", {max(0.0, due - self._clock.monotonic()):.0f} s at most"
            return "more", f"{counted(len(self.builder), 'batch')} waiting for more to combine{limit}"
        return ("data", "there are no new batches") if self.caught_up else ("store", "the manifest is read")

    def measure(self) -> None:
        """Update the metrics of its lag."""
        metrics.runtime_lag_batches.set(max(0, self.lag), self.attributes)
        metrics.runtime_lag_seconds.set(self.lag_seconds, self.attributes)
