"""The runtime: reads sources with many workers and commits what they hold to a sink (rfcs/0007)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NoReturn

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput, NotFound
from forebay.buffer.base.lifecycle import refuse_pickle
from forebay.buffer.base.waiting import wait_for
from forebay.buffer.consumer import Consumer
from forebay.buffer.read.fetch import Batch
from forebay.runtime import progress
from forebay.runtime.config import RuntimeConfig
from forebay.runtime.source import Opening, Source
from forebay.runtime.stages.active_source import ActiveSource
from forebay.runtime.stages.pipeline import Pipeline
from forebay.runtime.stages.source_reader import SourceReader
from forebay.runtime.stages.unwritten_sources import SourceProbe, UnwrittenSources
from forebay.runtime.status import RuntimeStatus, SourceStatus, StageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import AuditTrail
    from forebay.buffer.producer import Producer
    from forebay.buffer.store import StoreUrl
    from forebay.runtime.contract import Decoder, Sink

_log = logging.getLogger("forebay.runtime")

_LAST_ACK_SECONDS: Final = 10.0
"""How long the last acknowledgements of a stop may take, beyond the drain."""
_RESERVED_FOR_EACH_RAW_BYTE: Final = 3
"""At most: object, block and entries of a batch that is being decoded."""


class Runtime:
    """Reads sources and commits them to a sink, until it is stopped. It runs once.

    Args:
        sources: buffers or topics, each a URL (for the unnamed consumer), a `Source`, or a `Consumer` that nobody has
            read from yet, which stays the caller's to close. If nothing was ever written to a source, the
            runtime waits for it, creates nothing, and logs a warning with its URL every minute.
        sink: where rows go; the caller's to close.
        config: how much is done at once, and within which memory.
        decoder: what makes rows of a batch; by default one row an entry, as `Batch.records`.
        dead_letters: a producer, the caller's to close, of the buffer that takes batches that cannot be committed.
            Without one, such a batch halts the runtime.
        events: an audit trail, which is told when a source is resumed, of every dead letter, and when a fence or
            anything else halts the runtime: one append each. None tells nobody.
        clock: where time comes from.
        random: what pauses are drawn from.
    """

    def __init__(
        self,
        sources: Iterable[StoreUrl | Source | Consumer],
        sink: Sink,
        config: RuntimeConfig | None = None,
        *,
        decoder: Decoder = Batch.records,
        dead_letters: Producer | None = None,
        events: AuditTrail | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._random = random or system_random()
        self.config = config or RuntimeConfig()
        needed = _RESERVED_FOR_EACH_RAW_BYTE * (sink.combining.target_bytes if sink.combining else 0)
        if needed > self.config.max_bytes:
            raise InvalidInput(
                f"the sink combines batches up to {needed // _RESERVED_FOR_EACH_RAW_BYTE} bytes: max_bytes must be at "
                f"least {needed}, not {self.config.max_bytes}"
            )
        self._events = events
        self._dead_letters_url = None if dead_letters is None else dead_letters.url
        self._pipeline = Pipeline(
            sink, self.config, decoder, dead_letters, events, clock=self._clock, random=self._random
        )
        self._given = list(sources)
        self._opened: list[tuple[StoreUrl | Source | Consumer, list[ActiveSource]]] = []
        self._unwritten = UnwrittenSources(self._pipeline, self._goes_on, self._join_written)
        self._until_caught_up = False
        self._state = "new"
        self._drain_until: float | None = None

    def run(self, *, until_caught_up: bool = False, show_progress: bool = True) -> RuntimeStatus:
        """Read and commit until `stop` is called; then return how far it came.

        Args:
            until_caught_up: end when all that was in the sources at the beginning is committed and acknowledged. A
                source that was never written to is then an error.
            show_progress: a live view if there is a terminal and `rich`, lines in the log `forebay.runtime` if not.

        Raises:
            Fenced: another process has taken over a source. Nothing was acknowledged since.
            Halted: a batch or the sink needs somebody to act. All that was committed before is acknowledged.
            NotFound: with `until_caught_up`, nothing was ever written to a source.
        """
        with self._pipeline.lock:
            if self._state not in ("new", "stopping"):
                raise InvalidInput(f"this runtime is {self._state}: a runtime runs once")
            self._until_caught_up = until_caught_up
            if self._state == "new":
                self._state = "running"
        try:
            self._pipeline.start()
            for source in self._given:
                if not self._join(source):
                    break  # it was stopped meanwhile
            with progress.show(self.status, self._clock, wanted=show_progress) as shown:
                self._wait(shown)
        except BaseException as error:  # noqa: BLE001 - raised again below, after everything was let go
            self._pipeline.fail(error)
        self._end()
        if self._pipeline.failure is not None:
            self._tell_failure(self._pipeline.failure)
            raise self._pipeline.failure
        return self.status()

    def stop(self, drain: float | None = None) -> None:
        """Ask the runtime to stop, and return at once: `run` returns when it has.

        It may be called from any thread, and from a signal handler.

        Args:
            drain: how many seconds commits that are under way may take to end; by default, `drain_seconds`.
        """
        seconds = self._drain_seconds(drain)
        with self._pipeline.lock:
            if self._state in ("new", "running", "stopping"):
                self._state = "stopping"
                self._drain_until = self._clock.monotonic() + seconds
                for source in list(self._pipeline.sources):
                    source.leave()
                self._pipeline.changed.notify_all()

    def add(self, source: StoreUrl | Source | Consumer) -> None:
        """Read one more source, from where its reader stands: its backlog first, in order.

        Raises:
            InvalidInput: it is read already, or the runtime has stopped.
        """
        with self._pipeline.lock:
            if self._state == "new":
                self._given.append(source)
                return
        if not self._join(source):
            raise InvalidInput(f"this runtime is {self._state}: nothing can be added to it")

    def remove(self, source: StoreUrl | Source | Consumer, drain: float | None = None) -> None:
        """Read a source no more: let what is under way of it end, acknowledge that, and let it go.

        Args:
            source: as it was given to `add`.
            drain: how many seconds its commits may take to end; by default, `drain_seconds`.

        Raises:
            InvalidInput: it is not being read.
        """
        seconds = self._drain_seconds(drain)
        with self._pipeline.lock:
            if self._unwritten.forget(source):
                return
            found = next((item for item in self._opened if item[0] is source or item[0] == source), None)
            if found is None:
                raise InvalidInput(f"{getattr(source, 'url', source)} is not a source of this runtime")
            self._opened.remove(found)
            _source, active = found
            for one in active:
                one.leave()
            self._wait_for(active, self._clock.monotonic() + seconds)
            for one in active:
                one.end()
            self._wait_for(active, self._clock.monotonic() + _LAST_ACK_SECONDS)
        self._let_go(*found)

    def status(self) -> RuntimeStatus:
        """Return what the runtime is doing, without asking the store."""
        pipeline = self._pipeline
        with pipeline.lock:
            return RuntimeStatus(
                state=self._state,
                sources=(
                    *(_describe(one) for _source, active in self._opened for one in active),
                    *(
                        SourceStatus(probe.url, probe.group, waits_for="nothing was ever written to it")
                        for probe in self._unwritten.sources
                    ),
                ),
                stages=tuple(
                    StageStatus(stage.name, stage.threads, stage.busy, len(stage))
                    for stage in (pipeline.fetching, pipeline.committing)
                ),
                batches=pipeline.admission.batches,
                max_batches=pipeline.admission.max_batches,
                bytes=pipeline.admission.bytes,
                max_bytes=pipeline.admission.max_bytes,
            )

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self, "make it in the process that runs it; a Source can be pickled")

    # Inside

    def _drain_seconds(self, drain: float | None) -> float:
        return self.config.drain_seconds if drain is None else check_seconds(drain, "drain", zero=True)

    def _goes_on(self) -> bool:
        return self._state == "running" and self._pipeline.failure is None

    def _join(self, source: StoreUrl | Source | Consumer) -> bool:
        """Open a source and let it take part, now or once it is there, unless the runtime is about to end."""
        if self._state != "running":
            return False
        probe = SourceProbe(source, self._clock)
        self._check_new([(probe.url, probe.group)])
        try:
            # guard: create nothing where nothing was written
            if not (self._until_caught_up and isinstance(source, Consumer)):
                probe.check_written()
        except NotFound as error:
            if error.bucket or self._until_caught_up:
                raise
            self._unwritten.add(probe)
            return True
        return self._open(source, source)

    def _join_written(self, probe: SourceProbe) -> None:
        """Open a source that was waited for, unless it was removed meanwhile."""
        with self._pipeline.lock:
            if probe not in self._unwritten.sources:
                return
        joined = self._open(probe.given, probe.written_late(), probe)
        with self._pipeline.lock:
            is_wanted = self._unwritten.forget(probe.given)
        if joined and not is_wanted:
            self.remove(probe.given)

    def _open(
        self,
        given: StoreUrl | Source | Consumer,
        source: StoreUrl | Source | Consumer,
        joining: SourceProbe | None = None,
    ) -> bool:
        """Open a source that is there, and let it take part under the name it was given by."""
        if isinstance(source, Consumer):
            consumers = [source]
        else:
            opening = Opening(source if isinstance(source, Source) else Source(source))
            self._check_new(opening.readers, joining)
            consumers = opening.open(clock=self._clock, random=self._random)
        active = [ActiveSource(found, self.config, self._pipeline.lock, self._clock) for found in consumers]
        with self._pipeline.lock:
            joins = self._goes_on()
            if joins:
                self._opened.append((given, active))
                for one in active:
                    self._pipeline.join(one)
                    SourceReader(one, self._pipeline, until_caught_up=self._until_caught_up).start()
        if not joins:
            self._let_go(given, active)
        elif self._events is not None:
            for found in consumers:
                self._events.record("runtime.resumed", found.url, group=found.reader.group, after=found.acked)
        return joins

    def _check_new(self, readers: list[tuple[str, str]], joining: SourceProbe | None = None) -> None:
        """Raise if a source is read already, which would fence ourselves, or takes what we cannot use of it."""
        with self._pipeline.lock:
            known = {(one.url, one.reader.group) for _source, active in self._opened for one in active}
            known.update((probe.url, probe.group) for probe in self._unwritten.sources if probe is not joining)
        twice = known.intersection(readers)
        if twice:
            raise InvalidInput(f"{min(twice)[0]} is read by this runtime already, for the same reader")
        if self._dead_letters_url in {url for url, _group in readers}:
            raise InvalidInput(
                f"{self._dead_letters_url} would get dead letters of its own, for ever: give them another buffer"
            )

    def _wait(self, log_progress: Callable[[], None] | None) -> None:
        """Wait for the end, and say now and then how it goes."""
        pipeline = self._pipeline
        pause = self.config.progress_seconds
        shown_at = self._clock.monotonic()
        with pipeline.changed:
            while not self._is_over():
                deadlines = [self._drain_until] if self._drain_until is not None else []
                if log_progress is not None:
                    deadlines.append(shown_at + pause)
                self._clock.wait_until(pipeline.changed, min(deadlines, default=None))
                if log_progress is not None and self._clock.monotonic() >= shown_at + pause:
                    shown_at = self._clock.monotonic()
                    log_progress()

    def _is_over(self) -> bool:
        if self._pipeline.failure is not None:
            return True
        if self._drain_until is not None:
            return not self._pipeline.sources or self._clock.monotonic() >= self._drain_until
        return self._until_caught_up and not self._pipeline.sources

    def _end(self) -> None:
        """Let commits that are under way end, acknowledge what is done, and let everything go."""
        pipeline = self._pipeline
        with pipeline.lock:
            self._state = "stopping"
        if pipeline.failure is not None:
            pipeline.committing.wait_until_idle(self._clock.monotonic() + self.config.drain_seconds)
        with pipeline.lock:
            for source in list(pipeline.sources):
                source.end()
            self._wait_for(list(pipeline.sources), self._clock.monotonic() + _LAST_ACK_SECONDS)
            pipeline.fetching.stop()
            pipeline.committing.stop()
            if pipeline.committing.busy:
                _log.warning("%d commits did not end in time, and may still arrive", pipeline.committing.busy)
            self._state = "stopped" if pipeline.failure is None else "failed"
        for given, active in self._opened:
            self._let_go(given, active)

    def _tell_failure(self, failure: BaseException) -> None:
        if self._events is None:
            return
        kind = "runtime.fenced" if isinstance(failure, Fenced) else "runtime.halted"
        for source in self.status().sources:
            self._events.record(
                kind, source.url, group=source.group, acked=source.acked, error=f"{type(failure).__name__}: {failure}"
            )

    def _wait_for(self, active: list[ActiveSource], deadline: float) -> None:
        wait_for(self._clock, self._pipeline.changed, lambda: all(one.over for one in active), deadline)

    def _let_go(self, given: StoreUrl | Source | Consumer, active: list[ActiveSource]) -> None:
        if isinstance(given, Consumer):
            return  # the caller's
        for one in active:
            try:
                one.consumer.close()
            except ForebayError as error:
                _log.warning("%s: letting go failed: %s", one.url, error)


def _describe(source: ActiveSource) -> SourceStatus:
    return SourceStatus(
        url=source.url,
        group=source.reader.group,
        committed=source.frontier.through,
        acked=source.frontier.acked,
        lag_batches=source.lag,
        lag_seconds=source.lag_seconds,
        batches=source.batches,
        bytes=source.bytes,
        commits=source.commits,
        rows=source.rows,
        bytes_read=source.bytes_read,
        dead_letters=source.dead_letters,
        waits_for="" if source.over else source.waits_for[1],
        over=source.over,
    )
