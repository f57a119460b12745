"""The runtime: reads sources with many workers and commits what they hold to a sink (rfcs/0007)."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput, NotFound
from forebay.buffer.base.lifecycle import refuse_pickle
from forebay.buffer.base.waiting import POLL_FLOOR, wait_for
from forebay.buffer.consumer import Consumer
from forebay.buffer.store import ObjectStore
from forebay.runtime import progress
from forebay.runtime.config import RuntimeConfig
from forebay.runtime.decoders import stored_rows
from forebay.runtime.source import Source
from forebay.runtime.stages.active_source import ActiveSource
from forebay.runtime.stages.awaited_sources import AwaitedSource, AwaitedSources
from forebay.runtime.stages.heartbeat import Heartbeat
from forebay.runtime.stages.pipeline import Pipeline
from forebay.runtime.stages.sink_check import check_sink
from forebay.runtime.stages.source_reader import SourceReader
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
"""How long the last acknowledgements of a stop may take, beyond the drain; and a source that is being opened."""
_RESERVED_FOR_EACH_RAW_BYTE: Final = 3
"""At most: object, block and entries of a batch that is being decoded."""


@dataclass(frozen=True, slots=True, eq=False)
class _OpenSource:
    """A source that takes part."""

    given: StoreUrl | Source | Consumer
    active: list[ActiveSource]
    """One for each buffer that it stands for."""
    heartbeat: Heartbeat
    """Of the first of them, whose cursor is the lease of the group."""


class Runtime:
    """Reads sources and commits them to a sink, until it is stopped. It runs once.

    Args:
        sources: buffers or topics, each a URL (for the unnamed consumer), a `Source`, or a `Consumer` that nothing was
            read from yet, which the caller closes. If nothing was ever written to a source, the runtime waits for it,
            creates nothing, and logs a warning with its URL every minute. If another process owns the group of a
            source, the runtime waits as a standby until that process has stopped or died.
        sink: where rows go; the caller closes it.
        config: how much is done at once, and within which memory.
        decoder: turns a batch into rows. By default each entry is a row, as in `Batch.records`, and the rows of a typed
            batch stay as they are. A decoder of bytes on a typed buffer stops the runtime.
        dead_letters: a producer of the buffer for entries that cannot be committed; the caller closes it.
            Without one, such an entry halts the runtime.
        events: an audit trail, which records when a source is resumed, every dead letter, and when a fence or
            anything else halts the runtime: one append each. None records nothing.
        clock: where time comes from.
        random: what pauses are drawn from.
    """

    def __init__(
        self,
        sources: Iterable[StoreUrl | Source | Consumer],
        sink: Sink,
        config: RuntimeConfig | None = None,
        *,
        decoder: Decoder = stored_rows,
        dead_letters: Producer | None = None,
        events: AuditTrail | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._random = random or system_random()
        self.config: Final = config or RuntimeConfig()
        needed = _RESERVED_FOR_EACH_RAW_BYTE * (sink.combining.target_bytes if sink.combining else 0)
        if needed > self.config.max_bytes:
            raise InvalidInput(
                f"max_bytes must be at least {needed}, not {self.config.max_bytes}, since the sink "
                f"combines batches up to {needed // _RESERVED_FOR_EACH_RAW_BYTE} bytes"
            )
        self._events = events
        self._decoder = decoder
        self._dead_letters_url = None if dead_letters is None else dead_letters.url
        self._pipeline = Pipeline(
            sink, self.config, decoder, dead_letters, events, clock=self._clock, random=self._random
        )
        if isinstance(sources, str | os.PathLike | ObjectStore | Source | Consumer):
            raise InvalidInput(f"sources must be a list, not {type(sources).__name__}: put it into brackets")
        self._given = list(sources)
        self._opened: list[_OpenSource] = []
        self._awaited = AwaitedSources(self._pipeline, self._goes_on, self._look)
        self._opening = 0
        self._until_caught_up = False
        self._state = "new"
        self._drain_until: float | None = None

    def run(self, *, until_caught_up: bool = False, show_progress: bool = True) -> RuntimeStatus:
        """Read and commit until `stop` is called; then return how far it came.

        Args:
            until_caught_up: end when all that was in the sources at the beginning is committed and acknowledged. A
                source that was never written to is then an error, and so is a group whose owner lives. From an owner
                that is gone it takes over, after 30 seconds without a sign of life.
            show_progress: a live view if there is a terminal and `rich`, lines in the log `forebay.runtime` if not.

        Raises:
            Fenced: another process has taken over a source, and nothing was acknowledged since. With
                `until_caught_up`, also if another process has the group of a source and lives.
            Halted: a batch or the sink needs somebody to act. All that was committed before is acknowledged.
            InvalidInput, Unsupported: the sink can never commit the rows of a source, and nothing of it was read.
            NotFound: with `until_caught_up`, nothing was ever written to a source.
        """
        with self._pipeline.lock:
            if self._state not in ("new", "stopping"):
                raise InvalidInput(f"this runtime is {self._state}, and a runtime runs once; make a new one")
            self._until_caught_up = until_caught_up
            if self._state == "new":
                self._state = "running"
        try:
            self._pipeline.start()
            with progress.show(self.status, self._clock, wanted=show_progress) as shown:
                for source in self._given:
                    if not self._join(source):
                        break  # it was stopped meanwhile
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

        Nothing more is read. What is under way is committed, and also what waits for more to combine. This may be
        called from any thread, and from a signal handler.

        Args:
            drain: how many seconds these commits may take; by default, `drain_seconds`.
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
            raise InvalidInput(f"this runtime is {self._state}, and takes no more sources; make a new one")

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
            if self._awaited.forget(source):
                return
            found = next((item for item in self._opened if item.given is source or item.given == source), None)
            if found is None:
                raise InvalidInput(
                    f"{getattr(source, 'url', source)} is not a source of this runtime; pass it as it was given to add"
                )
            self._opened.remove(found)
            for one in found.active:
                one.leave()
            self._wait_for(found.active, self._clock.monotonic() + seconds)
            for one in found.active:
                one.end()
            self._wait_for(found.active, self._clock.monotonic() + _LAST_ACK_SECONDS)
        _let_go(found)

    def status(self) -> RuntimeStatus:
        """Return what the runtime is doing, without asking the store."""
        pipeline = self._pipeline
        with pipeline.lock:
            return RuntimeStatus(
                state=self._state,
                sources=(
                    *(_describe(one) for opened in self._opened for one in opened.active),
                    *(SourceStatus(one.url, one.group, waits_for=one.waits_for) for one in self._awaited.sources),
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
        """Open a source and let it take part, now or once it can be read, unless the runtime is about to end."""
        if self._state != "running":
            return False
        awaited = AwaitedSource(source, self._clock)
        self._check_new(awaited)
        joined = self._look(awaited, POLL_FLOOR)
        if joined is None:
            self._awaited.add(awaited)
        return joined is not False

    def _look(self, awaited: AwaitedSource, pause: float) -> bool | None:
        """Let a source take part if it can be read now.

        Returns None if it has to be waited for, and False if the runtime is about to end.
        """
        try:
            # guard: create nothing where nothing was written
            if not (self._until_caught_up and isinstance(awaited.given, Consumer)):
                awaited.check_written()
        except NotFound as error:
            if error.bucket or self._until_caught_up:
                raise
            awaited.wait_for_write()
            return None
        self._check_new(awaited)
        if not awaited.waits_for.startswith("standby"):
            self._check_sink(awaited)
        if not awaited.check_free(pause, may_wait=not self._until_caught_up):
            return None
        with self._pipeline.lock:
            if not self._goes_on():
                return False
            self._opening += 1
        try:
            return self._open(awaited)
        finally:
            with self._pipeline.lock:
                self._opening -= 1
                self._pipeline.changed.notify_all()

    def _open(self, awaited: AwaitedSource) -> bool | None:
        """Open a source that is there and has no owner, and let it take part under the name it was given by."""
        heartbeat = Heartbeat(self._clock, self._pipeline.fail)
        with ExitStack() as stopping:
            stopping.callback(heartbeat.stop)
            consumers = awaited.open(heartbeat.start, clock=self._clock, random=self._random)
            if consumers is None:
                return None
            stopping.pop_all()
        active = [ActiveSource(found, self.config, self._pipeline.lock, self._clock) for found in consumers]
        opened = _OpenSource(awaited.given, active, heartbeat)
        with self._pipeline.lock:
            was_removed = awaited.waits_for != "" and not self._awaited.forget(awaited.given)
            joins = self._goes_on() and not was_removed
            if joins:
                self._opened.append(opened)
                for one in active:
                    self._pipeline.join(one)
                    SourceReader(one, self._pipeline, until_caught_up=self._until_caught_up).start()
        if not joins:
            _let_go(opened)
        elif self._events is not None:
            for found in consumers:
                self._events.record("runtime.resumed", found.url, group=found.reader.group, after=found.acked)
        return joins

    def _check_new(self, awaited: AwaitedSource) -> None:
        """Raise if a source is read already, which would fence ourselves, or takes what we cannot use of it."""
        readers = awaited.readers
        with self._pipeline.lock:
            known = {(one.url, one.reader.group) for opened in self._opened for one in opened.active}
            known.update(reader for other in self._awaited.sources if other is not awaited for reader in other.readers)
        twice = known.intersection(readers)
        if twice:
            raise InvalidInput(
                f"source {min(twice)[0]} is read by this runtime already, by the same reader; leave it "
                "out, or name another group"
            )
        if self._dead_letters_url in {url for url, _group in readers}:
            raise InvalidInput(
                f"the dead letters of {self._dead_letters_url} would go into the same buffer again and "
                "again; use another buffer for them"
            )

    def _check_sink(self, awaited: AwaitedSource) -> None:
        if not isinstance(awaited.given, Consumer):
            letters = self._dead_letters_url is not None
            check_sink(self._pipeline.sink, self._decoder, awaited.read_schema, awaited.url, has_letters=letters)

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
        return self._until_caught_up and not self._pipeline.sources and not self._awaited.sources

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
            # What is being opened finds that the runtime is about to end, and lets go of the group again.
            wait_for(
                self._clock, pipeline.changed, lambda: not self._opening, self._clock.monotonic() + _LAST_ACK_SECONDS
            )
            self._state = "stopped" if pipeline.failure is None else "failed"
        for opened in self._opened:
            _let_go(opened)

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


def _let_go(opened: _OpenSource) -> None:
    opened.heartbeat.stop()
    if isinstance(opened.given, Consumer):
        return  # the caller's
    # guard: release the lease of a group last
    for one in reversed(opened.active):
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
        found_entries=source.found_entries,
        fetched_rows=source.fetched_rows,
        commits=source.commits,
        rows=source.rows,
        bytes_read=source.bytes_read,
        dead_letters=source.dead_letters,
        waits_for="" if source.over else source.waits_for[1],
        over=source.over,
    )
