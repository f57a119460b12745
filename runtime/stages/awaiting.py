"""Sources that nothing was ever written to: the runtime waits for them, creates nothing, and says so (rfcs/0007)."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import NotFound, NotReady
from forebay.buffer.base.waiting import POLL_FLOOR
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.state import is_unwritten
from forebay.buffer.store import StoreUrl, open_store
from forebay.runtime.source import Source
from forebay.runtime.stages.source_reader import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock
    from forebay.runtime.stages.pipeline import Pipeline

_log = logging.getLogger("forebay.runtime")

_TELL_SECONDS: Final = 60.0
"""Time between two warnings about the same source."""


class Awaited:
    """A source, looked at without creating anything."""

    def __init__(self, given: StoreUrl | Source | Consumer, clock: Clock) -> None:
        self.given = given
        self._clock = clock
        self._told_at: float | None = None
        if isinstance(given, Consumer):
            self.url, self.group = given.url, given.reader.group
            return
        source = given if isinstance(given, Source) else Source(given)
        store = open_store(source.url, source.storage_options)
        self.url, self.group = store.url, source.group or ""
        self._source = replace(source, url=store)
        self._queue = Queue(store, role="runtime", clock=clock)

    def check_written(self) -> None:
        """Return if something was written to the source, so that its reader's identity is final.

        Raises:
            NotFound: nothing was ever written to it, or the bucket is missing.
        """
        if isinstance(self.given, Consumer):
            if self.given.unwritten:
                self.given.lag()  # a look at the manifest
            unwritten = self.given.unwritten
        else:
            unwritten = buffer_or_topic(lambda: is_unwritten(self._queue.read_existing()), lambda: False)
        if unwritten:
            raise NotFound(f"nothing was ever written to {self.url}, or its URL is wrong")

    def opened_late(self) -> Source | Consumer:
        """Return the source to open, now that it exists. All its entries were written after the runtime began."""
        if isinstance(self.given, Consumer):
            return self.given
        return replace(self._source, from_="earliest") if self._source.from_ == "latest" else self._source

    def tell(self) -> None:
        """Log a warning that it is awaited: at once, and then every minute."""
        now = self._clock.monotonic()
        if self._told_at is None or now >= self._told_at + _TELL_SECONDS:
            self._told_at = now
            _log.warning("nothing was ever written to %s; waiting for it. Is the URL right?", self.url)


class Awaiting:
    """The thread that looks at awaited sources again and again, and lets each take part once it is there.

    Args:
        pipeline: its lock guards `sources`, and its `changed` wakes the thread.
        is_running: whether to go on; asked under the lock.
        join: opens a source that is there.
    """

    def __init__(self, pipeline: Pipeline, is_running: Callable[[], bool], join: Callable[[Awaited], None]) -> None:
        self.sources: list[Awaited] = []
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._is_running = is_running
        self._join = join
        self._thread: Thread | None = None

    def add(self, awaited: Awaited) -> None:
        """Wait for one more source."""
        awaited.tell()
        with self._pipeline.lock:
            self.sources.append(awaited)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="forebay-awaited-sources", daemon=True)
                self._thread.start()
            self._pipeline.changed.notify_all()

    def forget(self, given: object) -> bool:
        """Stop waiting for a source, and return whether it was awaited. The caller holds the lock."""
        found = next((one for one in self.sources if one.given is given or one.given == given), None)
        if found is not None:
            self.sources.remove(found)
        return found is not None

    def _run(self) -> None:
        try:
            delay = POLL_FLOOR
            while self._wait(delay):
                for awaited in list(self.sources):
                    self._look(awaited)
                delay = min(2 * delay, self._pipeline.config.max_poll_interval)
        except BaseException as error:  # noqa: BLE001 - it is raised by run()
            self._pipeline.fail(error)

    def _look(self, awaited: Awaited) -> None:
        try:
            awaited.check_written()
            self._join(awaited)
        except NotReady:  # a topic that is being created
            awaited.tell()
        except NotFound as error:
            if error.bucket:
                raise
            awaited.tell()
        except TRANSIENT as error:
            _log.warning("%s: looking for it again soon: %s", awaited.url, error)

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether there is still something to wait for."""
        deadline = self._clock.monotonic() + seconds
        with self._pipeline.changed:
            while self._is_running() and self.sources:
                if not self._clock.wait_until(self._pipeline.changed, deadline):
                    return True
            self._thread = None
            return False
