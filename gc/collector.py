"""The collector of a buffer, or of every partition of a topic (rfcs/0006)."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import ForebayError, InvalidInput
from forebay.buffer.base.lifecycle import refuse_pickle
from forebay.buffer.base.waiting import wait_for
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.manifest.state import check_layout
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic import Topic
from forebay.gc.buffer_collector import BufferCollector
from forebay.gc.report import CollectionReport
from forebay.gc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn, Self

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import AuditTrail
    from forebay.gc.retention import Retention

_log = logging.getLogger("forebay.gc")

_PARTITIONS_AT_ONCE: Final = 8


class Collector:
    """Deletes the objects of a buffer, or of a topic's partitions, that no reader needs any more.

    A native buffer may have any number of collectors, with any clocks: what is listed is never deleted, and what was
    deleted is never listed. In a buffer of version 1 that holds only if no process pauses for longer than `grace`.

    It decides only by the store's clock: by the time at which the manifest was last written. If that is more than
    `grace` ago by this machine's clock, the collector writes the manifest of a native buffer to get a newer time.

    For a topic it collects all partitions, including new ones. If one fails, it still collects the others.

    A consumer runs a collector only with `collect=True`. Otherwise run one in any process.

    Args:
        url: the buffer or topic, such as `s3://lake/clicks`, or its store if it is open already.
        grace: maximum time in seconds between the upload of a batch and its listing. In a native buffer, a slower
            upload is uploaded again. In a buffer of version 1, `grace` must be longer than any pause of any process.
        retention: limits beyond which batches are dropped even if not every reader has read them. Native buffers only.
            In a topic, the limits apply to each partition separately.
        manifest_path: the manifest's key below `url`.
        data_prefix: the folder below `url` that batches are stored in.
        events: an audit trail, which records every deletion before it starts and when it has ended: two appends for
            up to a thousand objects. None records nothing.
        storage_options: credentials, endpoint and client of the store.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        grace: float = 600.0,
        retention: Retention | None = None,
        manifest_path: str = "manifest",
        data_prefix: str = "data",
        events: AuditTrail | None = None,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        grace = check_seconds(grace, "grace", zero=True)
        check_layout(manifest_path, data_prefix)
        self._store = open_store(url, storage_options)
        self.url: str = self._store.url
        self._clock = clock or SystemClock()
        self._settings = Settings(
            grace=grace,
            retention=retention,
            manifest_path=manifest_path,
            data_prefix=data_prefix,
            events=events,
            is_stopped=lambda: self._stopping or self._interrupted,
            clock=self._clock,
            random=random,
        )
        self._buffer = BufferCollector(self._store, self._settings)
        self._partitions: dict[int, BufferCollector] = {}
        self._collecting = Lock()
        self._interrupted = False
        self._waking = Condition()
        self._stopping = False
        self._thread: Thread | None = None
        self.failed_runs: int = 0
        """Collections in the background that ended in an error, or could not collect some partition. Each is logged,
        and the next one starts anew."""

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self, "pass on its URL, and make another one there")

    def collect_once(self, dry_run: bool = False) -> CollectionReport:
        """Trim what every reader has read, delete what is free to be deleted, and return what was done.

        Objects that cannot be deleted are in the report and no error: the next collection tries again. So are
        partitions of a topic that could not be collected: see `CollectionReport.error`. A dry run changes nothing and
        returns what a collection would do now, if this machine's clock is right.

        Raises:
            StoreError: the manifest or a cursor cannot be read or written; nothing was deleted.
            Corrupt: one of them is damaged, or the manifest is gone; nothing was deleted.
            Unsupported: retention is set, and the buffer is of version 1.
            NotReady: it is a topic that has no partitions yet.
        """
        with self._collecting:
            return buffer_or_topic(
                lambda: self._buffer.collect(dry_run=dry_run), lambda: self._collect_topic(dry_run=dry_run)
            )

    def _collect_topic(self, *, dry_run: bool) -> CollectionReport:
        topic = Topic(self._store, clock=self._clock, random=self._settings.random)
        for number in range(len(self._partitions), topic.partitions):  # guard: pick up new partitions at every run
            self._partitions[number] = BufferCollector(topic.partition(number), self._settings)
        self._interrupted = False
        with ThreadPoolExecutor(_PARTITIONS_AT_ONCE, thread_name_prefix="forebay-collector") as pool:
            try:
                partitions = pool.map(lambda part: self._collect_partition(part, dry_run), self._partitions.values())
                report = CollectionReport.of_topic(self.url, dry_run, tuple(partitions))
            except BaseException:
                # guard: make running sweeps stop after an interrupt
                self._interrupted = True  # those under way end after the request that they are at
                raise
        _log.info("%s", report)
        return report

    def _collect_partition(self, partition: BufferCollector, dry_run: bool) -> CollectionReport:
        if self._settings.is_stopped():  # guard: check for a stop before each partition
            return CollectionReport(partition.url, dry_run)
        try:
            return partition.collect(dry_run=dry_run)
        # guard: catch any exception of a partition
        except Exception as error:  # noqa: BLE001 - whatever it was, it is no reason to leave the others uncollected
            _log.warning(
                "%s could not be collected, and is tried again next time: %s",
                partition.url,
                error,
                exc_info=None if isinstance(error, ForebayError) else error,
            )
            return CollectionReport(partition.url, dry_run, error=error)

    # In the background

    def start(self, interval: float = 300.0) -> Self:
        """Collect now and every `interval` seconds after, in a thread of its own, until `stop`."""
        interval = check_seconds(interval, "interval")
        with self._waking:
            if self._thread is not None:
                raise InvalidInput(f"{self.url}: this collector is running already; use one of them, or close it first")
            self._stopping = False
            self._thread = Thread(target=self._run, args=(interval,), name="forebay-collector", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread, if there is one, after the request under way."""
        with self._waking:
            thread = self._thread
            if thread is None:
                return
            self._stopping = True
            self._waking.notify_all()
        thread.join()
        with self._waking:
            self._thread = None
            self._stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, interval: float) -> None:
        going_on = True
        while going_on:
            try:
                report = self.collect_once()
            except BaseException:  # noqa: BLE001 - whatever it was, the next collection starts from nothing
                _log.exception("%s: a collection failed; the next one is in %s s", self.url, interval)
                self._count_failure([self.url])
            else:
                self._count_failure([part.url for part in report.partitions if part.error is not None])
            deadline = self._clock.monotonic() + interval
            going_on = not wait_for(self._clock, self._waking, lambda: self._stopping, deadline)

    def _count_failure(self, urls: list[str]) -> None:
        self.failed_runs += bool(urls)
        for url in urls:
            metrics.collection_errors.add(1, {"buffer": url})
