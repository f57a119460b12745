"""`forebay iceberg`: what an Iceberg sink leaves to be done."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput
from forebay.cli.output import count, size, write_json, write_line, write_table
from forebay.cli.target import json_option
from forebay.runtime.sinks.iceberg_orphans import MIN_AGE, Fate, delete_orphans, find_left_files

if TYPE_CHECKING:
    from forebay.cli import Session


@click.group(
    epilog="""\
\b
examples:
  forebay iceberg orphans web.clicks --catalog lake
  forebay iceberg orphans web.clicks --catalog lake --delete"""
)
def iceberg() -> None:
    """Find and delete files left in an Iceberg table by failed commits."""


@iceberg.command(
    epilog="""\
\b
examples:
  forebay iceberg orphans web.clicks --catalog lake
  forebay iceberg orphans web.clicks --catalog lake --delete
  forebay iceberg orphans web.clicks --property type=sql --property uri=sqlite:///catalog.db

The command looks only at files that an Iceberg sink has named. It never deletes a file that a snapshot refers to, one
younger than --older-than, or one that a runtime may still commit. Without --delete it deletes nothing.

Exit status: 0 done, 2 wrong usage or the table cannot be read."""
)
@click.argument("table")
@click.option("--catalog", metavar="NAME", help="The catalog's name in pyiceberg's configuration.")
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="A property of the catalog.")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=MIN_AGE,
    show_default=True,
    metavar="SECONDS",
    help="Minimum age of an orphan.",
)
@click.option("--delete", is_flag=True, help="Delete the orphans. Without it they are only shown.")
@json_option
@click.pass_obj
def orphans(
    session: Session,
    *,
    table: str,
    catalog: str | None,
    properties: tuple[str, ...],
    older_than: float,
    delete: bool,
    as_json: bool,
) -> None:
    """Show the files left in TABLE by failed commits. With --delete, delete those that no commit needs."""
    chosen = _choose(catalog, properties)
    found = find_left_files(chosen, table, min_age=older_than, clock=session.clock)
    if as_json:
        for file in found:
            write_json({"location": file.location, "bytes": file.size, "reader": file.reader, "last": file.last,
                        "fate": file.fate.name.lower()})  # fmt: skip
    elif found:
        rows = [(file.fate.name.lower(), size(file.size), str(file.last), file.location) for file in found]
        write_table(("fate", "bytes", "last sequence", "file"), rows)
    if delete:
        deleted = delete_orphans(chosen, table, found)
        if not as_json:
            write_line(f"{table}: {counted(deleted, 'file')} deleted")
    elif not as_json:
        fates = Counter(file.fate for file in found)
        write_line(
            f"{table}: {counted(fates[Fate.ORPHAN], 'orphan')} (--delete deletes them), {count(fates[Fate.YOUNG])} too "
            f"young, {count(fates[Fate.PENDING])} that a reader may still commit"
        )


def _choose(name: str | None, properties: tuple[str, ...]) -> str | dict[str, str]:
    given = {}
    for text in properties:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"--property must be KEY=VALUE, such as uri=sqlite:///catalog.db, not {text!r}")
        given[key] = value
    if given:
        return given if name is None else {**given, "name": name}
    if name is None:
        raise InvalidInput("there is no catalog: give --catalog NAME, or its --property KEY=VALUE")
    return name
