"""Reads one source: a thread takes batches from the manifest, builds portions, records them and acknowledges them.

rfcs/0007 gives the order of these steps and the reasons.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import Closed
from forebay.buffer.base.waiting import POLL_FLOOR
from forebay.runtime.stages.pipeline import RETRY_BASE, RETRY_CAP, TRANSIENT
from forebay.runtime.stages.portions import Portion, PortionBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.runtime.stages.active_source import ActiveSource
    from forebay.runtime.stages.pipeline import Pipeline

_log = logging.getLogger("forebay.runtime")


class SourceReader:
    """The thread that reads a source and acknowledges what is committed.

    Args:
        source: what to read.
        pipeline: fetches and commits the portions that this builds.
        until_caught_up: stop after the batches that exist at the start.
    """

    def __init__(self, source: ActiveSource, pipeline: Pipeline, *, until_caught_up: bool) -> None:
        self._source = source
        self._consumer = source.consumer
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._until_caught_up = until_caught_up
        self._begun = False
        self._unrecorded: list[Portion] = []
        self._replayed_through = self._recorded_through = -1
        self._end_at_start = 0
        self._look_at = 0.0
        self._poll_delay = POLL_FLOOR
        self._troubles = 0
        self._not_before = 0.0

    def start(self) -> None:
        """Start the thread."""
        Thread(target=self._run, name=f"forebay-source-{self._source.url}", daemon=True).start()

    def _run(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                self._try(step)
        except BaseException as error:  # noqa: BLE001 - it is raised by run()
            # The consumer may be closed before the last ack has ended.
            if not (self._source.ending and isinstance(error, Closed)):
                self._pipeline.fail(error)
        finally:
            self._pipeline.forget(self._source)

    def _next_step(self) -> Callable[[], None] | None:
        """Wait until a step is due, and return it; None if the source has ended."""
        source = self._source
        with source.wake:
            while True:
                step, deadline = self._choose(self._clock.monotonic())
                if step is not None:
                    return step
                if self._is_finished():
                    return None
                began, (reason, _) = self._clock.monotonic(), source.waits_for
                self._clock.wait_until(source.wake, deadline)
                waited = self._clock.monotonic() - began
                metrics.runtime_waiting.add(waited, {**source.attributes, "reason": reason})

    def _choose(self, now: float) -> tuple[Callable[[], None] | None, float | None]:
        """Return the step that is due now, or None and the time when one will be due."""
        source, frontier = self._source, self._source.frontier
        if self._is_finished():
            return (self._ack if frontier.unacked and source.may_ack else None), None
        if now < self._not_before:
            return None, self._not_before
        steps: list[tuple[float | None, Callable[[], None]]] = []
        if source.may_ack:
            steps.append((frontier.due, self._ack))
        if self._unrecorded and self._pipeline.failure is None:
            steps.append((0.0, self._record))
        elif not self._begun:
            steps.append((0.0, self._begin))
        elif not source.leaving:
            steps.append((source.builder.due, self._close_portion))
            if not source.ready and not (self._until_caught_up and source.caught_up):
                steps.append((self._look_at, self._look))
        elif source.builder.may_close:
            steps.append((0.0, self._close_portion))  # guard: commit at a stop what waits to be combined
        due = [(at, number) for number, (at, _step) in enumerate(steps) if at is not None]
        if not due:
            return None, None
        at, number = min(due)
        return (steps[number][1], None) if at <= now else (None, at)

    def _is_finished(self) -> bool:
        source = self._source
        if source.ending:
            return True
        if source.frontier.first is not None:
            return False
        waiting = bool(self._unrecorded or source.ready)
        if source.leaving:
            is_cut_off = source.has_gap or self._pipeline.failure is not None
            return is_cut_off or not (waiting or source.builder.may_close)
        return self._until_caught_up and source.caught_up and not (waiting or source.builder)

    def _try(self, step: Callable[[], None]) -> None:
        source = self._source
        try:
            step()
        except TRANSIENT as error:
            if source.ending:
                _log.warning(
                    "%s: the last acknowledgement failed; what it covers will be replayed: %s", source.url, error
                )
                source.may_ack = False
                return
            pause = full_jitter(self._pipeline.random, self._troubles, RETRY_BASE, RETRY_CAP)
            _log.warning("%s: trying again in %.1f s: %s", source.url, pause, error)
            with source.wake:
                source.trouble = f"the store: {error}"
                self._troubles += 1
                self._not_before = self._clock.monotonic() + pause
        else:
            source.trouble, self._troubles = "", 0

    # Its steps

    def _begin(self) -> None:
        """Find out which batches exist, and which of them the previous consumer may have committed."""
        source, config = self._source, self._pipeline.config
        self._consumer.lag()  # reads the manifest
        self._end_at_start = self._consumer.end
        planned, acked = self._consumer.planned, self._consumer.acked
        after = -1 if acked is None else acked
        self._recorded_through = max(planned, default=after)
        self._replayed_through = max(planned, default=-1) if source.reader.group else self._end_at_start - 1
        combining = self._pipeline.sink.combining if source.reader.group else None
        max_batches = max(1, config.max_batches // 2)
        # guard: replay recorded ranges with the same boundaries
        source.builder = PortionBuilder(planned, combining, max_batches, source.sizes.raw_bytes, after=after)
        self._begun = True

    def _look(self) -> None:
        """Take the next batches from the manifest."""
        source, config = self._source, self._pipeline.config
        found = self._consumer.next_descriptors(config.descriptors_per_look)
        now = self._clock.monotonic()
        source.found_entries += sum(descriptor.facts.records for descriptor in found if descriptor.facts)
        source.caught_up = not found or (self._until_caught_up and found[-1].sequence + 1 >= self._end_at_start)
        if found:
            self._look_at, self._poll_delay = now, POLL_FLOOR
        else:
            self._look_at = now + self._poll_delay
            self._poll_delay = min(2 * self._poll_delay, config.max_poll_interval)
        complete = source.builder.add(found, now)
        if source.builder.trimmed:
            trimmed, source.builder.trimmed = source.builder.trimmed, 0
            _log.warning("%s: %s were trimmed after they were found", source.url, counted(trimmed, "batch"))
        if source.caught_up and self._until_caught_up:
            complete += source.builder.close()
        self._offer(complete)

    def _close_portion(self) -> None:
        """Close the incomplete portion: stop waiting for more batches to combine."""
        self._offer(self._source.builder.close())

    def _offer(self, complete: list[list[BatchDescriptor]]) -> None:
        """Queue portions for admission. They may be fetched while they are being recorded."""
        source = self._source
        portions = [
            Portion(
                source.reader,
                descriptors,
                replay=descriptors[-1].sequence <= self._replayed_through,
                first=source.builder.first_of(descriptors),
            )
            for descriptors in complete
        ]
        with self._pipeline.lock:
            if not source.has_gap:  # guard: commit nothing behind what was dropped
                self._unrecorded += portions
                source.ready += portions
                self._pipeline.admit()

    def _record(self) -> None:
        """Record where the portions end, then let them be committed: the next consumer needs the same boundaries."""
        if self._source.reader.group:
            self._consumer.plan(self._ends())
        self._recorded_through = max(self._recorded_through, self._unrecorded[-1].identity.last)
        with self._pipeline.lock:
            recorded, self._unrecorded = self._unrecorded, []
            for portion in recorded:
                self._pipeline.arrive(self._source, portion)

    def _ends(self) -> list[int]:
        """Return what to record. A range begins after the end before it, so what retention left out is a range too."""
        ends = []
        through = self._recorded_through
        for portion in self._unrecorded:
            first, last = portion.identity.first, portion.identity.last
            if first > through + 1:
                ends.append(first - 1)  # guard: record where a range begins that follows trimmed batches
            ends.append(last)
            through = max(through, last)
        return ends

    def _ack(self) -> None:
        source = self._source
        through = source.frontier.through
        if through is None:
            return
        began = self._clock.monotonic()
        self._consumer.ack_through(through)
        metrics.runtime_ack_duration.record(self._clock.monotonic() - began, source.attributes)
        with self._pipeline.lock:
            source.frontier.mark_acked(through)
            source.measure()
