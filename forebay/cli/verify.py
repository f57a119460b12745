"""`forebay verify`: integrity as a command."""

from __future__ import annotations

from dataclasses import replace

import click

from forebay.buffer.inspect.verify import verify as verify_buffer
from forebay.cli.output import write_error, write_json, write_line
from forebay.cli.target import Target, json_option, takes_url


@click.command(
    epilog="""\
\b
examples:
  forebay verify s3://lake/clicks
  forebay verify s3://lake/clicks --shallow --json

Orphans are objects that the manifest does not list: uploads in progress, or leftovers that a collection will delete.
They are reported, but they are not damage.

Exit status: 0 everything listed is there and intact, 1 damage was found, 2 wrong usage, or the buffer or one of its
partitions could not be read."""
)
@takes_url
@json_option
@click.option(
    "--deep/--shallow",
    default=True,
    help="Read and decode every batch, which is the default; or only look for the batches in a listing.",
)
def verify(target: Target, as_json: bool, deep: bool) -> int:
    """Check that everything a buffer or topic lists is there and intact. Changes nothing."""
    report = verify_buffer(target.open(), deep=deep, manifest_path=target.manifest_path, data_prefix=target.data_prefix)
    parts = list(report.partitions)
    if not parts or any(found.key.startswith("schemas/") for found in report.findings):
        parts.append(replace(report, partitions=()))  # of a topic, only if something of its own is damaged
    for part in parts:
        if as_json:
            write_json(part.as_json())
        elif part.error is None:
            write_line(str(part))
            for found in part.findings:
                write_line(f"  {found.kind}: {found.key}: {found.what}")
        if part.error is not None:
            write_error(part.error)
    return int(report.severity)
