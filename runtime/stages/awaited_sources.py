"""Waits for sources that cannot be read yet: nothing was written, or another process owns the group (rfcs/0007)."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Fenced, NotFound, NotReady
from forebay.buffer.base.waiting import POLL_FLOOR, wait_for
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.either.schemas import newest_schema
from forebay.buffer.manifest import Queue
from forebay.buffer.standby import Standby
from forebay.buffer.store import StoreUrl, open_store
from forebay.runtime.source import Opening, Source
from forebay.runtime.stages.pipeline import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock, Random
    from forebay.runtime.stages.pipeline import Pipeline

_log = logging.getLogger("forebay.runtime")

_WARN_SECONDS: Final = 60.0
"""Minimum number of seconds between two warnings that nothing was written to a source."""


class AwaitedSource:
    """A source that a runtime does not read yet. Finds out when it can be read, and opens it then."""

    url: str
    """The buffer or topic."""
    group: str
    """The consumer group; empty for the unnamed consumer."""

    def __init__(self, given: StoreUrl | Source | Consumer, clock: Clock) -> None:
        self.given = given
        self.waits_for: str = ""
        """Why it could not be read at the last attempt; empty if it never had to wait."""
        self._clock = clock
        self._warned_at: float | None = None
        self._warned_of = ""
        self._standby: Standby | None = None
        self._opening: Opening | None = None
        if isinstance(given, Consumer):
            self.url, self.group = given.url, given.reader.group
        else:
            source = given if isinstance(given, Source) else Source(given)
            store = open_store(source.url, source.storage_options)
            self.url, self.group = store.url, source.group or ""
            self._source = replace(source, url=store)
            self._queue = Queue(store, role="runtime", clock=clock)
        self.readers: list[tuple[str, str]] = [(self.url, self.group)]
        """The buffers of the source, as far as they are known: the URL of each, with the group."""

    def check_written(self) -> None:
        """Return if the source was ever written to; after that, the identity of its reader is final.

        Raises:
            NotFound: nothing was ever written to it, or the bucket is missing.
        """
        if self._standby is not None:
            return  # this was checked before
        if isinstance(self.given, Consumer):
            if self.given.unwritten:
                self.given.lag()  # reads the manifest
            unwritten = self.given.unwritten
        else:
            unwritten = buffer_or_topic(lambda: self._queue.read_existing().is_unwritten, lambda: False)
        if unwritten:
            raise NotFound(
                f"nothing was ever written to {self.url}, or its URL is wrong; check the URL, or write to it first"
            )
        self._find_buffers()

    def read_schema(self) -> pa.Schema | None:
        """Return the newest schema of the source; None if it holds bytes. Not for a source given as a `Consumer`."""
        return newest_schema(open_store(self._source.url))

    def wait_for_write(self) -> None:
        """Record that nothing was written to the source yet, and log a warning, at most once a minute."""
        self.waits_for = "nothing was ever written to it"
        if not isinstance(self.given, Consumer) and self._source.from_ == "latest":
            # All its entries will be written after the runtime's start, so "latest" must include all of them.
            self._source = replace(self._source, from_="earliest")
        now = self._clock.monotonic()
        if self._warned_at is None or now >= self._warned_at + _WARN_SECONDS:
            self._warned_at = now
            _log.warning("nothing was ever written to %s; waiting for it. Is the URL right?", self.url)

    def check_free(self, pause: float, *, may_wait: bool) -> bool:
        """Return whether the group is free: it has no owner, or its owner is dead. The unnamed consumer is always free.

        Args:
            pause: the intended time between two calls, in seconds.
            may_wait: whether to wait for a living owner.

        Raises:
            Fenced: the owner is alive, and `may_wait` is False.
        """
        standby = self._standby
        if standby is None or standby.look(pause):
            return True
        self._opening = None  # partitions may be added during the wait
        self.waits_for = f"standby: group {self.group} is owned by {standby.owner}"
        if standby.saw_life and not may_wait:
            raise Fenced(
                f"{self.url}: group {self.group} is owned by {standby.owner}, which is alive. A run until caught up "
                "does not wait for it: stop that process first, or take over from it (takeover=True, --takeover)"
            )
        if standby.owner != self._warned_of:
            self._warned_of = standby.owner
            until = "waiting until that process is gone" if may_wait else "looking whether that process is alive"
            _log.warning("%s (%s); %s", self.waits_for, self.url, until)
        return False

    def open(self, claimed: Callable[[Consumer], None], *, clock: Clock, random: Random) -> list[Consumer] | None:
        """Return a consumer for each buffer; None if another process has claimed or still owns the group.

        Args:
            claimed: called with the first consumer, whose cursor is the lease of the group, before others are opened.
            clock: where time comes from.
            random: where ids and the lengths of pauses come from.
        """
        if isinstance(self.given, Consumer):
            claimed(self.given)
            return [self.given]
        standby, opening = self._standby, self._opening or Opening(self._source)
        try:
            consumers = opening.open(
                claimed, None if standby is None else standby.check_claim, clock=clock, random=random
            )
        except BaseException as error:
            if standby is not None:
                standby.start_again()
                if isinstance(error, Fenced):
                    self.waits_for = f"standby: another process was faster to claim group {self.group}"
                    self._opening = None
                    return None
            raise
        if self._warned_of:
            _log.info("%s: group %s is taken over from %s", self.url, self.group, self._warned_of)
        return consumers

    def _find_buffers(self) -> None:
        """Find the buffers of the source, once they are final, and prepare to watch the owner of its group."""
        if isinstance(self.given, Consumer):
            return
        self._opening = Opening(self._source)
        self.readers = self._opening.readers
        if self._source.group is not None and not self._source.takeover:
            self._standby = Standby(self._opening.lease, self._source.group, self._clock)


class AwaitedSources:
    """Checks awaited sources repeatedly, in one thread, and starts to read each one once it can be read.

    Args:
        pipeline: its lock guards `sources`, and its `changed` wakes the thread.
        is_running: returns whether to continue; called under the lock.
        look: starts to read a source if that is possible now. Its second argument is the intended time in seconds
            until the next check.
    """

    def __init__(
        self, pipeline: Pipeline, is_running: Callable[[], bool], look: Callable[[AwaitedSource, float], object]
    ) -> None:
        self.sources: list[AwaitedSource] = []
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._is_running = is_running
        self._look_at = look
        self._thread: Thread | None = None

    def add(self, source: AwaitedSource) -> None:
        """Add a source to wait for."""
        with self._pipeline.lock:
            self.sources.append(source)
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
                delay = min(2 * delay, self._pipeline.config.max_poll_interval)
                for source in list(self.sources):
                    if source in self.sources:  # it was not removed meanwhile
                        self._look(source, delay)
        except BaseException as error:  # noqa: BLE001 - it is raised by run()
            self._pipeline.fail(error)

    def _look(self, source: AwaitedSource, pause: float) -> None:
        try:
            self._look_at(source, pause)
        except NotReady:  # a topic that is being created
            source.wait_for_write()
        except TRANSIENT as error:
            _log.warning("%s: cannot be checked now; trying again soon: %s", source.url, error)

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
