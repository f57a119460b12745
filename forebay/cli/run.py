"""`forebay run`: the parallel runtime, as a TOML file says."""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import Unavailable
from forebay.buffer.eventlog import AuditTrail
from forebay.buffer.producer import Producer
from forebay.cli.dry_run import show_plan
from forebay.cli.job import read_job
from forebay.cli.output import size, write_json, write_note
from forebay.cli.target import events_option, json_option, open_log, options_for, storage_option
from forebay.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.base.clock import Clock
    from forebay.cli import Session
    from forebay.cli.job import Job
    from forebay.runtime import Sink

_SINK_SECONDS: Final = 300.0
"""How long the command tries to open the sink while the catalog of its table does not answer."""
_SINK_PAUSE: Final = 5.0
"""Seconds between two tries."""


@click.command(
    epilog="""\
\b
examples:
  forebay run clicks.toml
  forebay run clicks.toml --dry-run
  forebay run clicks.toml --until-caught-up
  forebay run clicks.toml --metrics-port 9464 --events sqlite:///var/lib/forebay/events.db

\b
a job:
  [[sources]]                                # one or more
  url = "s3://lake/clicks"                   # a buffer or a topic
  group = "etl"
  # from = "latest"                          # where a new group starts; earliest by default
  # partitions = [0, 1]                      # of a topic; by default all that exist at the start

\b
  [sink]
  kind = "parquet"                           # or delta, iceberg, buffer, function
  url = "s3://lake/clicks-parquet"           # for kind function: function = "module:name"
  # table = "web.clicks"                     # Iceberg, with a catalog in one of these two forms:
  # catalog = "lake"                         # its name in pyiceberg's configuration
  # catalog = { type = "rest", uri = "http://127.0.0.1:8181" }   # its properties
  # by_date = true                           # Parquet: folders by the date of ingestion, or by_date = "column"
  # merge_schema = true                      # Delta, Iceberg: add columns that the table does not have
  # evolve = true                            # buffer: make a new target typed, and widen its schema, as the source is
  # combine_bytes = 134217728                # maximum bytes of the batches in one commit
  # combine_seconds = 60                     # maximum wait for more batches, in seconds

\b
  # Without [decoder], rows of a typed buffer stay as they are, and each entry of bytes becomes one row.
  [decoder]
  kind = "json"                              # or arrow, raw
  columns = { user = "int64", tags = "list<string>", at = "timestamp[us, tz=UTC]" }
  # schema = "clicks.toml"                   # instead of columns: a .toml, .json, .parquet or .arrow file
  # keep = ["ingestion_time"]

\b
  [dead_letters]                             # without it, a batch that cannot be used halts the runtime
  url = "s3://lake/clicks-dead"

\b
  [runtime]                                  # see forebay.runtime.RuntimeConfig
  fetch_workers = 4

\b
  [storage_options]
  endpoint_url = "http://127.0.0.1:8333"

If nothing was ever written to a source, the runtime waits for it: it creates nothing, and logs a warning with the URL
every minute. With --until-caught-up this is an error.

If the catalog of an Iceberg table does not answer, the command tries again every 5 seconds, for 5 minutes.

If another process owns the group of a source, this process waits as a standby and names the owner. It takes over within
seconds if the owner stops. If the owner was killed, it takes over after it has itself seen no sign of life for 30
seconds. With --until-caught-up, a living owner is an error.

On Ctrl-C or SIGTERM, the runtime commits and acknowledges what it has read, for up to drain_seconds. A second Ctrl-C
does not wait. Exit status: 0 caught up or stopped by SIGTERM, 2 halted, fenced or wrong usage, 130 ended by Ctrl-C."""
)
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@storage_option
@json_option
@events_option
@click.option("--until-caught-up", is_flag=True, help="End when everything that was there at the start is committed.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be read, from which position, and what would change in the target.",
)
@click.option("--takeover", is_flag=True, help="Take over the groups at once. Their owners get Fenced.")
@click.option(
    "--metrics-port", type=int, metavar="PORT", help="Port on this machine that serves metrics for Prometheus."
)
@click.pass_obj
def run(
    session: Session,
    *,
    job: Path,
    storage_options: dict[str, Any],
    as_json: bool,
    events: str | None,
    until_caught_up: bool,
    dry_run: bool,
    takeover: bool,
    metrics_port: int | None,
) -> None:
    """Read the sources that the file JOB names with many workers, and commit them to its sink."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # where a job's function is looked for
    if dry_run:
        show_plan(read_job(job, storage_options), clock=session.clock, as_json=as_json)
        return
    with ExitStack() as opened:
        log = logging.getLogger("forebay")
        opened.callback(log.setLevel, log.level)
        log.setLevel(logging.INFO)  # of others, such as botocore, warnings are enough
        if metrics_port is not None:
            from forebay.runtime.prometheus import serve_metrics  # noqa: PLC0415 - an extra

            write_note(f"metrics at {opened.enter_context(serve_metrics(metrics_port)).url}")
        found = read_job(job, storage_options)
        sink = opened.enter_context(_open_sink(found, session.clock or SystemClock()))
        letters = None
        if found.dead_letters is not None:
            options = options_for(found.dead_letters, found.storage_options)
            letters = opened.enter_context(Producer(found.dead_letters, storage_options=options))
        trail = None
        if events is not None:
            trail = AuditTrail(opened.enter_context(open_log(events, found.storage_options)))
        runtime = Runtime(
            [replace(source, takeover=takeover) for source in found.sources],
            sink,
            found.config,
            decoder=found.decoder,
            dead_letters=letters,
            events=trail,
            clock=session.clock,
        )
        with _stopping_by_signals(runtime) as received:
            status = runtime.run(until_caught_up=until_caught_up)
    if as_json:
        write_json(
            {"rows": status.rows, "commits": status.commits, "bytes": status.bytes_read, "behind": status.lag_batches}
        )
    else:
        write_note(
            f"{status.state}: {counted(status.rows, 'row')} ({size(status.bytes_read)}) in "
            f"{counted(status.commits, 'commit')}, {counted(status.lag_batches, 'batch')} behind"
        )
    if signal.SIGINT in received:
        raise KeyboardInterrupt


def _open_sink(job: Job, clock: Clock) -> Sink:
    """Open the sink of a job, again after a pause while the catalog of its table does not answer."""
    deadline = clock.monotonic() + _SINK_SECONDS
    while True:
        try:
            return job.make_sink()
        except Unavailable as error:
            if clock.monotonic() >= deadline:
                raise
            write_note(f"the sink cannot be opened, and is tried again in {_SINK_PAUSE:.0f} s: {error}")
            clock.sleep(_SINK_PAUSE)


@contextmanager
def _stopping_by_signals(runtime: Runtime) -> Iterator[list[int]]:
    """Have the first signal stop the runtime, and the second not wait for it."""
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        write_note(
            "stopping: commits under way may end. Press Ctrl-C again to stop at once" if len(received) == 1 else "now"
        )
        runtime.stop(None if len(received) == 1 else 0)
        # A source that is being opened, and does not answer, is nothing that the runtime could stop.
        if len(received) > 2 or (len(received) == 2 and not runtime.status().sources):
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
