"""Waits for sources that nothing was ever written to, without creating anything there (rfcs/0007)."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import NotFound, NotReady
from forebay.buffer.base.waiting import POLL_FLOOR, wait_for
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.store import StoreUrl, open_store
from forebay.runtime.source import Source
from forebay.runtime.stages.pipeline import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock
    from forebay.runtime.stages.pipeline import Pipeline

_log = logging.getLogger("forebay.runtime")

_WARN_SECONDS: Final = 60.0
"""Time between two warnings about the same source."""


class SourceProbe:
    """Checks whether anything was ever written to a source, without creating anything."""

    def __init__(self, given: StoreUrl | Source | Consumer, clock: Clock) -> None:
        self.given = given
        self._clock = clock
        self._warned_at: float | None = None
        if isinstance(given, Consumer):
            self.url, self.group = given.url, given.reader.group
            return
        source = given if isinstance(given, Source) else Source(given)
        store = open_store(source.url, source.storage_options)
        self.url, self.group = store.url, source.group or ""
        self._source = replace(source, url=store)
        self._queue = Queue(store, role="runtime", clock=clock)

    def check_written(self) -> None:
        """Return if something was written to the source, so that the identity of its reader is final.

        Raises:
            NotFound: nothing was ever written to it, or the bucket is missing.
        """
        if isinstance(self.given, Consumer):
            if self.given.unwritten:
                self.given.lag()  # a look at the manifest
            unwritten = self.given.unwritten
        else:
            unwritten = buffer_or_topic(lambda: self._queue.read_existing().is_unwritten, lambda: False)
        if unwritten:
            raise NotFound(f"nothing was ever written to {self.url}, or its URL is wrong")

    def written_late(self) -> Source | Consumer:
        """Return the source to open after the wait: `latest` means its first entry, which is newer than the runtime."""
        if isinstance(self.given, Consumer):
            return self.given
        return replace(self._source, from_="earliest") if self._source.from_ == "latest" else self._source

    def warn(self) -> None:
        """Log a warning that the runtime waits for the source, at most once a minute."""
        now = self._clock.monotonic()
        if self._warned_at is None or now >= self._warned_at + _WARN_SECONDS:
            self._warned_at = now
            _log.warning("nothing was ever written to %s; waiting for it. Is the URL right?", self.url)


class UnwrittenSources:
    """Looks at unwritten sources again and again, in one thread, and lets each take part once it was written to.

    Args:
        pipeline: its lock guards `sources`, and its `changed` wakes the thread.
        is_running: returns whether to go on; called under the lock.
        join: opens a source that was written to.
    """

    def __init__(self, pipeline: Pipeline, is_running: Callable[[], bool], join: Callable[[SourceProbe], None]) -> None:
        self.sources: list[SourceProbe] = []
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._is_running = is_running
        self._join = join
        self._thread: Thread | None = None

    def add(self, probe: SourceProbe) -> None:
        """Wait for one more source."""
        probe.warn()
        with self._pipeline.lock:
            self.sources.append(probe)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="forebay-unwritten-sources", daemon=True)
                self._thread.start()
            self._pipeline.changed.notify_all()

    def forget(self, given: object) -> bool:
        """Stop waiting for a source, and return whether it was one of these. The caller holds the lock."""
        found = next((one for one in self.sources if one.given is given or one.given == given), None)
        if found is not None:
            self.sources.remove(found)
        return found is not None

    def _run(self) -> None:
        try:
            delay = POLL_FLOOR
            while self._wait(delay):
                for probe in list(self.sources):
                    self._look(probe)
                delay = min(2 * delay, self._pipeline.config.max_poll_interval)
        except BaseException as error:  # noqa: BLE001 - it is raised by run()
            self._pipeline.fail(error)

    def _look(self, probe: SourceProbe) -> None:
        try:
            probe.check_written()
            self._join(probe)
        except NotReady:  # a topic that is being created
            probe.warn()
        except NotFound as error:
            if error.bucket:
                raise
            probe.warn()
        except TRANSIENT as error:
            _log.warning("%s: looking for it again soon: %s", probe.url, error)

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether there is still something to wait for."""
        deadline = self._clock.monotonic() + seconds
        with self._pipeline.changed:
            is_over = wait_for(
                self._clock, self._pipeline.changed, lambda: not (self._is_running() and self.sources), deadline
            )
            if is_over:
                self._thread = None
            return not is_over
