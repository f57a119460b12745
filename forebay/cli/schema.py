"""`forebay schema`: the schema of a typed buffer or topic, and how to change it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.either.schemas import evolve_schema, schema_versions
from forebay.buffer.format.type_names import format_fields, parse_fields
from forebay.cli.output import write_json, write_line, write_table
from forebay.cli.target import Target, json_option, schema_option, takes_url

if TYPE_CHECKING:
    from forebay.buffer.either.schemas import SchemaVersion


@click.group(
    epilog="""\
\b
examples:
  forebay schema show s3://lake/clicks
  forebay schema evolve s3://lake/clicks --column referrer string
  forebay schema evolve s3://lake/clicks --column referrer string --apply
  forebay schema evolve s3://lake/clicks --schema clicks.toml --apply"""
)
def schema() -> None:
    """Show the schema of a typed buffer or topic with its history, and widen it."""


@schema.command(
    epilog="""\
\b
examples:
  forebay schema show s3://lake/clicks
  forebay schema show s3://lake/clicks --json | tail -n 1 | jq .columns > clicks.json    a file for --schema"""
)
@takes_url
@json_option
def show(target: Target, *, as_json: bool) -> None:
    """Print the columns of the newest version, and what each version changed.

    JSON has an object for each version, oldest first; none for a buffer of bytes.
    """
    versions = schema_versions(target.open(), manifest_path=target.manifest_path)
    if as_json:
        for version in versions:
            write_json({**describe_version(version), "changes": [asdict(change) for change in version.changes]})
    elif not versions:
        write_line(f"{target.url} holds entries of bytes, which have no schema")
    else:
        write_table(("column", "type"), list(format_fields(versions[-1].schema).items()))
        write_line("")
        for version in versions:
            changed = "; ".join(map(str, version.changes)) or "the first version"
            write_line(f"version {version.number} ({version.schema_id}): {changed}")


@schema.command(
    epilog="""\
\b
examples:
  forebay schema evolve s3://lake/clicks --column referrer string           only shows what would change
  forebay schema evolve s3://lake/clicks --column referrer string --apply
  forebay schema evolve s3://lake/clicks --column ms double --column at "timestamp[us, tz=UTC]" --apply
  forebay schema evolve s3://lake/clicks --schema clicks.toml --apply

You can add nullable columns, widen types (int32 to int64, float to double, int32 to double, decimals with more digits),
and, with --schema, make a required column nullable. Everything else is refused, because rows that are already stored
would not fit. A schema cannot be narrowed again."""
)
@takes_url
@json_option
@click.option(
    "--column",
    "columns",
    nargs=2,
    multiple=True,
    metavar="NAME TYPE",
    help="A new nullable column, or a wider type of a present one, such as --column count int64; may be repeated. A "
    "type is written as `schema show` prints it.",
)
@schema_option("The columns that rows will have. Columns that it lacks stay.")
@click.option("--apply", is_flag=True, help="Change the schema. Without this, only what would change is shown.")
def evolve(
    target: Target, *, as_json: bool, columns: tuple[tuple[str, str], ...], schema: pa.Schema | None, apply: bool
) -> None:
    """Add columns to the schema, or widen their types, permanently. Producers and readers can keep running."""
    if bool(columns) == (schema is not None):
        raise InvalidInput("there is nothing to change: give --column NAME TYPE, once or more, or --schema FILE")
    store, path = target.open(), target.manifest_path
    wanted = schema or _with_columns(schema_versions(store, manifest_path=path), columns)
    changes = evolve_schema(store, wanted, dry_run=not apply, manifest_path=path)
    if as_json:
        applied = bool(changes) and apply
        write_json({"url": target.url, "applied": applied, "changes": [asdict(change) for change in changes]})
        return
    for change in changes:
        write_line(str(change))
    if not changes:
        write_line(f"{target.url}: nothing to change")
    elif apply:
        write_line(f"{target.url}: changed; producers that are opened from now on write in the new version")
    else:
        write_line("nothing was changed: repeat the command with --apply")


def describe_version(version: SchemaVersion) -> dict[str, Any]:
    """A version of a schema as plain values."""
    return {"version": version.number, "id": version.schema_id, "columns": format_fields(version.schema)}


def _with_columns(versions: list[SchemaVersion], columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    """The newest version with other columns; one that is required and present stays required."""
    fields = {field.name: field for field in versions[-1].schema} if versions else {}
    for field in parse_fields(dict(columns)):
        known = fields.get(field.name)
        fields[field.name] = field.with_nullable(field.nullable and (known is None or known.nullable))
    return pa.schema(list(fields.values()))
