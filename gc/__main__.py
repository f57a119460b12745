"""The collector as a command: `forebay gc s3://lake/clicks`."""

# ruff: noqa: A005 - never imported by its bare name (rfcs/0002)

from __future__ import annotations

import sys
from json import dumps
from typing import TYPE_CHECKING

from forebay.buffer import command
from forebay.buffer.clock import SystemClock
from forebay.buffer.errors import ForebayError, InvalidInput, Unsupported
from forebay.gc.collector import Collector
from forebay.gc.retention import Retention

if TYPE_CHECKING:
    from argparse import Namespace

    from forebay.buffer.clock import Clock
    from forebay.gc.report import CollectionReport

_EXAMPLES = """\
examples:
  forebay gc s3://lake/clicks --dry-run        show what would be deleted
  forebay gc s3://lake/clicks                  collect once, for a scheduler
  forebay gc s3://lake/clicks --every 300      go on until interrupted
  forebay gc s3://lake/clicks --retention-age 604800 --retention-bytes 1000000000000
  forebay gc s3://lake/clicks --option endpoint_url=http://localhost:8333

exit status: 0 done, 1 some objects could not be deleted (run it again), 2 wrong usage or the buffer or a partition
cannot be read, 130 interrupted
"""


def main(arguments: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run the command, and return its exit status."""
    parser = command.make_parser(
        "forebay gc", "Delete what every reader of a buffer or topic has read, and what nobody ever listed.", _EXAMPLES
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="that an upload may take to be listed (default: %(default)g)",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, say what would be done")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="collect again and again")
    parser.add_argument(
        "--retention-age", type=float, metavar="SECONDS", help="drop batches older than that, READ OR NOT"
    )
    parser.add_argument(
        "--retention-bytes", type=int, metavar="BYTES", help="drop the oldest batches beyond that, READ OR NOT"
    )
    options = parser.parse_args(arguments)
    if options.every is not None and not options.every > 0:
        parser.error("--every takes a positive number of seconds")
    return command.run(lambda: _collect(options, clock or SystemClock()), on_failure=2)


def _collect(options: Namespace, clock: Clock) -> int:
    retention = None
    if options.retention_age is not None or options.retention_bytes is not None:
        retention = Retention(max_age=options.retention_age, max_bytes=options.retention_bytes)
    collector = Collector(
        command.open_url(options),
        grace=options.grace,
        retention=retention,
        manifest_path=options.manifest_path,
        data_prefix=options.data_prefix,
        clock=clock,
    )
    while True:
        try:
            report = collector.collect_once(dry_run=options.dry_run)
        except (InvalidInput, Unsupported):
            raise
        except ForebayError as error:
            if options.every is None:
                raise
            command.write_error(error)
        else:
            status = max(_write(part, json=options.json) for part in report.partitions or (report,))
            if options.every is None:
                return status
        clock.sleep(options.every)


def _write(report: CollectionReport, *, json: bool) -> int:
    """Write what became of one buffer, and return the exit status that it makes."""
    if json:
        command.write_line(dumps(report.as_json()))
    elif report.error is None:
        command.write_line(str(report))
        for key, error in report.failed.items():
            command.write_line(f"  failed: {key}: {error}")
    if report.error is not None:
        command.write_error(report.error)
        return 2
    return int(report.failed_count > 0)


if __name__ == "__main__":
    sys.exit(main())
