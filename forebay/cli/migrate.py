"""`forebay migrate`: from version 1 to version 2."""

from __future__ import annotations

from dataclasses import asdict

import click

from forebay.buffer.inspect.migrate import migrate as migrate_buffer
from forebay.cli.output import count, write_json, write_line
from forebay.cli.target import Target, json_option, takes_url


@click.command(
    epilog="""\
\b
examples:
  forebay migrate s3://lake/clicks --others-stopped

forebay's own producers may go on. The consumer is fenced, and has to be opened again. There is no way back."""
)
@takes_url
@json_option
@click.option(
    "--others-stopped",
    is_flag=True,
    help="Say that no OpenData Buffer program and no version 1 collector works on it, nor will.",
)
@click.option(
    "--grace", type=float, default=600.0, show_default=True, metavar="SECONDS", help="That its collector had."
)
def migrate(target: Target, *, as_json: bool, others_stopped: bool, grace: float) -> None:
    """Give a version 1 buffer a version 2 manifest: same batches, same sequences. Repeating it does nothing."""
    report = migrate_buffer(
        target.open(), others_stopped=others_stopped, grace=grace, manifest_path=target.manifest_path
    )
    if as_json:
        write_json(asdict(report))
    elif report.migrated:
        write_line(
            f"{target.url}: version 2 now: {count(report.batches)} batches from sequence {report.first_sequence} on"
        )
    else:
        write_line(f"{target.url}: was of version 2 already; nothing was changed")
