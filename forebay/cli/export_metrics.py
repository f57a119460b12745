"""`forebay export-metrics`: buffers as Prometheus metrics, with the groups that nobody reads right now."""

from __future__ import annotations

import logging
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import ForebayError
from forebay.buffer.base.lifecycle import Closing
from forebay.buffer.base.waiting import wait_for
from forebay.buffer.inspect.verify import verify
from forebay.buffer.store import open_store
from forebay.cli.output import write_note
from forebay.cli.target import options_for, storage_option
from forebay.runtime.prometheus import serve_collector
from forebay.ui.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.inspect.findings import VerifyReport
    from forebay.buffer.inspect.stats import BufferStats
    from forebay.buffer.store import ObjectStore
    from forebay.cli import Session

_log = logging.getLogger("forebay.export")

_PATIENCE_SECONDS: Final = 30.0
"""A look that takes longer than this counts as one that failed."""
_CLOSE_SECONDS: Final = 5.0
"""Maximum time at the end for looks that are under way."""

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "forebay_up": ("1 if the last look at the buffer succeeded, 0 if not", ("buffer",)),
    "forebay_buffer_batches": ("Batches that are listed and not trimmed", ("buffer",)),
    "forebay_buffer_entries": ("Entries in the batches that are listed and not trimmed", ("buffer",)),
    "forebay_buffer_bytes": ("Stored size of the batches that are listed and not trimmed", ("buffer",)),
    "forebay_buffer_age_seconds": ("Age of the oldest entry that is not trimmed", ("buffer",)),
    "forebay_group_lag_batches": ("Batches that the group has not acknowledged", ("buffer", "group")),
    "forebay_group_lag_entries": ("Entries that the group has not acknowledged", ("buffer", "group")),
    "forebay_group_lag_bytes": ("Stored size of what the group has not acknowledged", ("buffer", "group")),
    "forebay_group_lag_seconds": (
        "Age of the oldest batch that the group has not acknowledged; 0 if it is caught up",
        ("buffer", "group"),
    ),
    "forebay_group_owned": (
        "1 if a consumer has the group, 0 if none has; a killed consumer counts until the next one claims the group",
        ("buffer", "group"),
    ),
    "forebay_group_owner_timestamp_seconds": (
        "When the process that has the group claimed it, in seconds since 1970 by its clock",
        ("buffer", "group", "host", "pid"),
    ),
    "forebay_verify_findings": (
        "Objects that the last verification found orphaned, missing, corrupt or contradictory",
        ("buffer", "kind"),
    ),
    "forebay_verify_timestamp_seconds": (
        "When the last verification that did not fail was made, in seconds since 1970; its findings are as old",
        ("buffer",),
    ),
}
"""By name, what a metric says, and its labels. The group of the unnamed consumer is empty."""

Sample: TypeAlias = tuple[str, tuple[str, ...], float | None]
"""A metric's name, the values of its labels, and its value; None if it is not known."""


class WatchedUrl:
    """A buffer or topic, and what the last look at it and the last verification of it have found."""

    def __init__(self, store: ObjectStore, *, manifest_path: str, data_prefix: str, clock: Clock) -> None:
        self._store = store
        self._manifest_path = manifest_path
        self._data_prefix = data_prefix
        self._clock = clock
        self._subject = Subject(store, manifest_path=manifest_path, clock=clock)
        self._looking_since: float | None = None
        # Replaced as a whole, never changed in place.
        self._seen: list[Sample] = []
        self._found: list[Sample] = []
        self._is_down = False

    def look(self) -> None:
        """Look once. An error is kept as `forebay_up 0`."""
        url = self._store.url
        self._looking_since = self._clock.monotonic()
        try:
            seen, is_down = list(self._look()), False
        except Exception as error:  # noqa: BLE001 - whatever it is, the process goes on
            seen, is_down = [("forebay_up", (url,), 0.0)], True
            if not self._is_down:
                unexpected = None if isinstance(error, ForebayError) else error
                _log.warning("%s cannot be read and is shown as down: %s", url, error, exc_info=unexpected)
        if self._is_down and not is_down:
            _log.warning("%s can be read again", url)
        self._seen, self._is_down, self._looking_since = seen, is_down, None

    def verify(self) -> None:
        """Verify once, by a listing of all objects. Where that fails, the findings before it stay, with their time."""
        try:
            seconds = self._clock.now_ms() / 1000
            report = verify(
                self._store,
                deep=False,
                manifest_path=self._manifest_path,
                data_prefix=self._data_prefix,
                clock=self._clock,
            )
            parts = report.partitions or (report,)
            self._found = [sample for part in parts for sample in _describe_report(part, seconds)]
        except Exception as error:  # noqa: BLE001 - as above
            unexpected = None if isinstance(error, ForebayError) else error
            _log.warning("%s could not be verified: %s", self._store.url, error, exc_info=unexpected)

    def samples(self) -> list[Sample]:
        """Return what is known now."""
        since = self._looking_since
        if since is not None and self._clock.monotonic() - since >= _PATIENCE_SECONDS:
            return [("forebay_up", (self._store.url,), 0.0)]
        return [*self._seen, *self._found]

    def _look(self) -> Iterator[Sample]:
        parts = self._subject.look()
        if self._subject.is_topic:
            yield "forebay_up", (self._store.url,), 1.0
        for part in parts:
            yield "forebay_up", (part.url,), float(part.error is None)
            if part.error is None and part.stats is not None:
                yield from _describe_buffer(part.stats)


def _describe_buffer(stats: BufferStats) -> Iterator[Sample]:
    url = stats.url
    yield "forebay_buffer_batches", (url,), stats.batches
    yield "forebay_buffer_entries", (url,), stats.entries
    yield "forebay_buffer_bytes", (url,), stats.stored_bytes
    yield "forebay_buffer_age_seconds", (url,), stats.age_seconds
    for group in stats.readers:
        labels = (url, group.name)
        yield "forebay_group_lag_batches", labels, group.lag_batches
        yield "forebay_group_lag_entries", labels, group.lag_entries
        yield "forebay_group_lag_bytes", labels, group.lag_bytes
        yield "forebay_group_lag_seconds", labels, group.lag_seconds
        yield "forebay_group_owned", labels, group.alive
        if group.owner is not None:
            process = (*labels, group.owner.host, str(group.owner.pid))
            yield "forebay_group_owner_timestamp_seconds", process, group.owner.since_ms / 1000


def _describe_report(report: VerifyReport, seconds: float) -> Iterator[Sample]:
    if report.error is None:
        yield "forebay_verify_timestamp_seconds", (report.url,), seconds
        for kind in ("orphaned", "missing", "corrupt", "contradictory"):
            yield "forebay_verify_findings", (report.url, kind), getattr(report, kind)


class Exporter(Closing):
    """Looks at buffers in threads of its own, and gives Prometheus what was seen last. Changes nothing in a store.

    Args:
        watched: what to look at.
        every: seconds between two looks.
        verify_every: seconds between two verifications; 0 for none.
        clock: where time comes from.
    """

    def __init__(self, watched: list[WatchedUrl], *, every: float, verify_every: float, clock: Clock) -> None:
        self._watched = watched
        self._clock = clock
        self._changed = Condition()
        self._closed = False
        steps = [(one.look, every) for one in watched]
        if verify_every:
            steps += [(one.verify, verify_every) for one in watched]
        self._threads = [Thread(target=self._repeat, args=step, name="forebay-export", daemon=True) for step in steps]

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def collect(self) -> Iterator[Metric]:
        """Return every metric, as `prometheus_client` asks for it. Never waits for a store."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an extra

        families = {name: GaugeMetricFamily(name, what, labels=labels) for name, (what, labels) in GAUGES.items()}
        for one in self._watched:
            for name, labels, value in one.samples():
                if value is not None:
                    families[name].add_metric(labels, value)
        yield from families.values()

    def close(self) -> None:
        """Look no more. A look at a store that does not answer is left alone after a few seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = self._clock.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - self._clock.monotonic()))

    def _repeat(self, do: Callable[[], None], every: float) -> None:
        while not self._closed:
            do()
            wait_for(self._clock, self._changed, lambda: self._closed, self._clock.monotonic() + every)


@click.command(
    epilog="""\
\b
examples:
  forebay export-metrics s3://lake/clicks s3://lake/orders
  forebay export-metrics s3://lake/clicks --every 60 --verify-every 0
  forebay export-metrics s3://lake/clicks --host 0.0.0.0 --port 9465

\b
in prometheus.yml:
  scrape_configs:
    - job_name: forebay-export
      static_configs: [{targets: ["localhost:9465"]}]

A scrape gets what the last look has seen. A look reads the head of the manifest, if it has changed, and the cursor of
each group. A verification is that of `forebay verify --shallow`: it lists every object of the buffer and counts orphans
and missing objects.

A URL that cannot be read, or where nothing was written yet, is shown as forebay_up 0 and tried again. Other metrics of
it are left out meanwhile. docs/grafana/alerts.yml has alert rules.

Everyone who can reach the port can read the URLs of buffers and the names of groups and hosts. It is open to this
machine alone, unless --host names another address. Ctrl-C ends the command.""",
)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@storage_option
@click.option("--manifest-path", default="manifest", metavar="KEY", help="The manifest's key below each URL.")
@click.option("--data-prefix", default="data", metavar="KEY", help="The batches' folder below each URL.")
@click.option("--port", type=int, default=9465, show_default=True, help="Port to serve at; 0 picks a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve at.")
@click.option("--every", type=float, default=15.0, show_default=True, metavar="SECONDS", help="Time between two looks.")
@click.option(
    "--verify-every",
    type=float,
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two verifications, which count orphans; 0 for none.",
)
@click.pass_obj
def export_metrics(
    session: Session,
    *,
    urls: tuple[str, ...],
    storage_options: dict[str, Any],
    manifest_path: str,
    data_prefix: str,
    port: int,
    host: str,
    every: float,
    verify_every: float,
) -> None:
    """Serve depth, lag, age, owners and orphans of buffers and topics to Prometheus. Changes nothing in the store."""
    check_seconds(every, "--every")
    check_seconds(verify_every, "--verify-every", zero=True)
    clock = session.clock or SystemClock()
    stores = [open_store(url, options_for(url, storage_options)) for url in urls]
    watched = [
        WatchedUrl(store, manifest_path=manifest_path, data_prefix=data_prefix, clock=clock)
        for store in {store.url: store for store in stores}.values()
    ]
    with (
        Exporter(watched, every=every, verify_every=verify_every, clock=clock) as exporter,
        serve_collector(exporter, port, host) as server,
    ):
        exporter.start()
        write_note(f"metrics of {counted(len(watched), 'URL')} at {server.url} (Ctrl-C ends it)")
        Event().wait()
