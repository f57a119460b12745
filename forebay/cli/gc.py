"""`forebay gc`: the collector as a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.errors import ForebayError, InvalidInput, Unsupported
from forebay.cli.output import write_error, write_json, write_line
from forebay.cli.target import Target, events_option, json_option, takes_url
from forebay.gc.collector import Collector
from forebay.gc.retention import Retention

if TYPE_CHECKING:
    from forebay.gc.report import CollectionReport


@click.command(
    epilog="""\
\b
examples:
  forebay gc s3://lake/clicks --dry-run        show what would be deleted
  forebay gc s3://lake/clicks                  collect once, for a scheduler
  forebay gc s3://lake/clicks --every 300      repeat until interrupted
  forebay gc s3://lake/clicks --retention-age 604800 --retention-bytes 1000000000000
  forebay gc s3://lake/clicks --events s3://lake/events

Exit status: 0 done, 1 some objects could not be deleted (run it again), 2 wrong usage, or the buffer or one of its
partitions could not be read, 130 interrupted."""
)
@takes_url
@json_option
@click.option(
    "--grace",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Delete an object that was never listed only if it is older than this. It must be longer than the time from "
    "the upload of a batch to its listing.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be deleted.")
@click.option(
    "--every",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Repeat the collection at this interval.",
)
@click.option("--retention-age", type=float, metavar="SECONDS", help="Drop batches older than this, READ OR NOT.")
@click.option(
    "--retention-bytes", type=int, metavar="BYTES", help="Drop the oldest batches beyond this size, READ OR NOT."
)
@events_option
def gc(
    target: Target,
    *,
    as_json: bool,
    grace: float,
    dry_run: bool,
    every: float | None,
    retention_age: float | None,
    retention_bytes: int | None,
    events: str | None,
) -> int:
    """Delete what every reader of a buffer or topic has read, and uploads that were never listed."""
    retention = None
    if retention_age is not None or retention_bytes is not None:
        retention = Retention(max_age=retention_age, max_bytes=retention_bytes)
    if every is not None:
        check_seconds(every, "--every")
    collector = Collector(
        target.open() if every else target.open_existing(),  # one that goes on may be there before the first producer
        grace=grace,
        retention=retention,
        manifest_path=target.manifest_path,
        data_prefix=target.data_prefix,
        events=target.open_audit_trail(events),
        clock=target.clock,
    )
    while True:
        try:
            report = collector.collect_once(dry_run=dry_run)
        except (InvalidInput, Unsupported):
            raise
        except ForebayError as error:
            if every is None:
                raise
            write_error(error)
        else:
            status = max(_write(part, as_json=as_json) for part in report.partitions or (report,))
            if every is None:
                return status
        target.clock.sleep(every)


def _write(report: CollectionReport, *, as_json: bool) -> int:
    """Write what became of one buffer, and return the exit status that it makes."""
    if as_json:
        write_json(report.as_json())
    elif report.error is None:
        write_line(str(report))
        for key, error in report.failed.items():
            write_line(f"  failed: {key}: {error}")
    if report.error is not None:
        write_error(report.error)
        return 2
    return int(report.failed_count > 0)
