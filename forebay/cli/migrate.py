"""`forebay migrate`: from version 1 to version 2."""

from __future__ import annotations

from dataclasses import asdict

import click

from forebay.buffer.base.counted import counted
from forebay.buffer.inspect.migrate import migrate as migrate_buffer
from forebay.cli.output import write_json, write_line
from forebay.cli.target import Target, json_option, takes_url


@click.command(
    epilog="""\
\b
examples:
  forebay migrate s3://lake/clicks --others-stopped

forebay's own producers may keep running. The consumer gets Fenced, and must be opened again. This cannot be undone."""
)
@takes_url
@json_option
@click.option(
    "--others-stopped",
    is_flag=True,
    help="Confirm that no OpenData Buffer program and no version 1 collector uses this buffer, now or later.",
)
@click.option(
    "--grace",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="The grace period of the collector that ran so far.",
)
def migrate(target: Target, *, as_json: bool, others_stopped: bool, grace: float) -> None:
    """Convert a version 1 buffer to version 2: same batches, same sequences. A second run changes nothing."""
    report = migrate_buffer(
        target.open(), others_stopped=others_stopped, grace=grace, manifest_path=target.manifest_path
    )
    if as_json:
        write_json(asdict(report))
    elif report.migrated:
        write_line(
            f"{target.url}: is now version 2: {counted(report.batches, 'batch')} "
            f"from sequence {report.first_sequence} on"
        )
    else:
        write_line(f"{target.url}: is already version 2; nothing was changed")
