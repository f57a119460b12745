"""One source at work: the thread that looks, cuts, records and acknowledges (rfcs/0007)."""

from __future__ import annotations

import logging
from collections import deque
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.errors import Closed, Timeout, Unavailable, Unknown
from forebay.buffer.base.waiting import POLL_FLOOR
from forebay.runtime.stages.admission import Sizes
from forebay.runtime.stages.frontier import Frontier
from forebay.runtime.stages.portions import Cutter, Portion

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.consumer import Consumer
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.runtime.stages.pipeline import Pipeline

_log = logging.getLogger("forebay.runtime")

TRANSIENT: Final = (Unavailable, Unknown, Timeout)
"""Of a read, an ack or a record, each of which may be repeated: the store's trouble, which passes."""
RETRY_BASE: Final = 0.1
RETRY_CAP: Final = 30.0


class Reading:
    """A source: its consumer, its portions, its frontier."""

    def __init__(self, consumer: Consumer, pipeline: Pipeline, *, until_caught_up: bool) -> None:
        self.consumer = consumer
        self.reader = consumer.reader
        self.url = consumer.url
        self.fetcher = consumer.fetch_handle()
        self.sizes = Sizes()
        self.frontier = Frontier(pipeline.config.ack_every, pipeline.config.ack_seconds)
        self.ready: deque[Portion] = deque()
        self.in_order: deque[Portion] = deque()
        """Admitted portions that wait for their turn, if the sink asks for order."""
        self.committing = False
        """Whether one of them has its turn."""
        self.batches = self.bytes = 0
        self.obstacle = ""
        self.trouble = ""
        """Why the store has to be asked again."""
        self.rows = self.commits = self.dead_letters = self.bytes_read = 0
        self.leaving = False
        """Nothing more is read or admitted: it ends when all that is under way has."""
        self.ending = False
        """It ends now, with a last ack of what is done."""
        self.may_ack = True
        self.over = False
        self.wake = Condition(pipeline.lock)
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._until_caught_up = until_caught_up
        self._caught_up = False
        self._begun = False
        self._cutter = Cutter((), None, 1, self.sizes.raw_bytes)
        self._unrecorded: list[Portion] = []
        self._replayed_through = -1
        self._mark = 0
        self._look_at = 0.0
        self._poll_delay = POLL_FLOOR
        self._troubles = 0
        self._not_before = 0.0

    def start(self) -> None:
        """Begin."""
        Thread(target=self._run, name=f"forebay-source-{self.url}", daemon=True).start()

    def expect(self, portion: Portion) -> list[int]:
        """How much memory each batch of a portion will take."""
        return [self.sizes.expect(descriptor) for descriptor in portion.descriptors]

    def leave(self) -> None:
        """Read no more; whoever calls holds the lock."""
        self.leaving = True
        self.ready.clear()
        self.wake.notify()

    def end(self) -> None:
        """Wait for nothing more; whoever calls holds the lock."""
        self.leave()
        self.ending = True

    @property
    def attributes(self) -> dict[str, str]:
        """Of its metrics."""
        return {"buffer": self.url, "group": self.reader.group}

    @property
    def lag(self) -> int:
        """Batches that are not acknowledgeable, as of the last look."""
        through = self.frontier.through
        return self.consumer.end - through - 1 if through is not None else len(self.consumer)

    @property
    def lag_seconds(self) -> float:
        """How long the first of them has waited, where it tells its time."""
        first = self.frontier.first or (self.ready[0] if self.ready else None)
        if first is None or not first.descriptors[0].metadata:
            return 0.0
        return max(0.0, (self._clock.now_ms() - first.descriptors[0].metadata[0].ingestion_time_ms) / 1000)

    @property
    def waits_for(self) -> tuple[str, str]:
        """What would let it go on: a word for metrics, and a sentence for people."""
        first = self.frontier.first
        if self.trouble:
            return "store", self.trouble
        if first is not None and first.trouble:
            return ("fetch" if first.missing else "sink"), first.trouble
        if self.ready:
            return "room", self.obstacle
        if first is not None:
            return ("fetch", "batches are fetched and recorded") if first.missing else ("sink", "the sink commits")
        if self._cutter:
            return "more", f"{len(self._cutter)} batches wait for more to combine"
        return ("data", "there are no new batches") if self._caught_up else ("store", "the manifest is read")

    # The thread

    def _run(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                self._try(step)
        except BaseException as error:  # noqa: BLE001 - it is raised by run()
            if not (self.ending and isinstance(error, Closed)):  # by whoever would not wait any longer
                self._pipeline.fail(error)
        finally:
            with self._pipeline.lock:
                self.over = True
                self._pipeline.forget(self)

    def _next_step(self) -> Callable[[], None] | None:
        """Wait for something to do, and return it; None at the end."""
        with self.wake:
            while True:
                step, deadline = self._choose(self._clock.monotonic())
                if step is not None:
                    return step
                if self._is_finished():
                    return None
                began, (reason, _) = self._clock.monotonic(), self.waits_for
                self._clock.wait_until(self.wake, deadline)
                waited = self._clock.monotonic() - began
                metrics.runtime_waiting.add(waited, {**self.attributes, "reason": reason})

    def _choose(self, now: float) -> tuple[Callable[[], None] | None, float | None]:
        """Something to do, or until when there may be nothing."""
        frontier, cutter = self.frontier, self._cutter
        if self._is_finished():
            return (self._ack if frontier.unacked and self.may_ack else None), None
        if now < self._not_before:
            return None, self._not_before
        steps: list[tuple[float | None, Callable[[], None]]] = []
        if self.may_ack:
            steps.append((frontier.due, self._ack))
        if self._unrecorded and self._pipeline.failure is None:
            steps.append((0.0, self._record))
        elif not self._begun:
            steps.append((0.0, self._begin))
        elif not self.leaving:
            steps.append((cutter.due, self._cut_short))
            if not self.ready and not (self._until_caught_up and self._caught_up):
                steps.append((self._look_at, self._look))
        due = [(at, number) for number, (at, _step) in enumerate(steps) if at is not None]
        if not due:
            return None, None
        at, number = min(due)
        return (steps[number][1], None) if at <= now else (None, at)

    def _is_finished(self) -> bool:
        if self.ending:
            return True
        if len(self.frontier):
            return False
        if self.leaving:
            return True
        nothing_left = not (self._cutter or self._unrecorded or self.ready)
        return self._until_caught_up and self._caught_up and nothing_left

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except TRANSIENT as error:
            if self.ending:
                _log.warning(
                    "%s: the last acknowledgement failed; what it covers will be replayed: %s", self.url, error
                )
                self.may_ack = False
                return
            pause = full_jitter(self._pipeline.random, self._troubles, RETRY_BASE, RETRY_CAP)
            _log.warning("%s: trying again in %.1f s: %s", self.url, pause, error)
            with self.wake:
                self.trouble = f"the store: {error}"
                self._troubles += 1
                self._not_before = self._clock.monotonic() + pause
        else:
            self.trouble, self._troubles = "", 0

    # Its steps

    def _begin(self) -> None:
        """Find out what is there already, and what the consumer before may have committed of it."""
        self.consumer.lag()  # a look at the manifest
        self._mark = self.consumer.end
        planned = self.consumer.planned
        self._replayed_through = max(planned, default=-1) if self.reader.group else self._mark - 1
        combining = self._pipeline.sink.combining if self.reader.group else None
        most = max(1, self._pipeline.config.max_batches // 2)
        # guard: replay recorded ranges with the same boundaries
        self._cutter = Cutter(planned, combining, most, self.sizes.raw_bytes)
        self._begun = True

    def _look(self) -> None:
        found = self.consumer.next_descriptors(self._pipeline.config.descriptors_per_look)
        now = self._clock.monotonic()
        self._caught_up = not found or (self._until_caught_up and found[-1].sequence + 1 >= self._mark)
        if found:
            self._look_at, self._poll_delay = now, POLL_FLOOR
        else:
            self._look_at = now + self._poll_delay
            self._poll_delay = min(2 * self._poll_delay, self._pipeline.config.max_poll_interval)
        cut = self._cutter.add(found, now)
        if self._caught_up and self._until_caught_up:
            cut += self._cutter.close()
        self._offer(cut)

    def _cut_short(self) -> None:
        """Wait no longer for more to combine."""
        self._offer(self._cutter.close())

    def _offer(self, cut: list[list[BatchDescriptor]]) -> None:
        """Let portions be admitted and fetched, while they are recorded."""
        portions = [
            Portion(self.reader, descriptors, replay=descriptors[-1].sequence <= self._replayed_through)
            for descriptors in cut
        ]
        with self._pipeline.lock:
            if not self.leaving:
                self._unrecorded += portions
                self.ready += portions
                self._pipeline.admit()

    def _record(self) -> None:
        """Record where the portions end, and only then let them be committed: whoever comes next must know of them."""
        if self.reader.group:
            self.consumer.plan([portion.identity.last for portion in self._unrecorded])
        with self._pipeline.lock:
            recorded, self._unrecorded = self._unrecorded, []
            for portion in recorded:
                self._pipeline.arrive(self, portion)

    def _ack(self) -> None:
        through = self.frontier.through
        if through is None:
            return
        began = self._clock.monotonic()
        self.consumer.ack_through(through)
        metrics.runtime_ack_duration.record(self._clock.monotonic() - began, self.attributes)
        with self._pipeline.lock:
            self.frontier.mark_acked(through)
            self.measure()

    def measure(self) -> None:
        """Show how far behind it is."""
        metrics.runtime_lag_batches.set(max(0, self.lag), self.attributes)
        metrics.runtime_lag_seconds.set(self.lag_seconds, self.attributes)
