"""`forebay schema`: the schema of a typed buffer or topic, and how to change it."""

from __future__ import annotations

import click
import pyarrow as pa

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.either.schemas import evolve_schema, schema_versions
from forebay.cli.output import write_json, write_line, write_table
from forebay.cli.target import Target, json_option, takes_url


@click.group(
    epilog="""\
\b
examples:
  forebay schema show s3://lake/clicks
  forebay schema evolve s3://lake/clicks --column referrer string
  forebay schema evolve s3://lake/clicks --column referrer string --apply"""
)
def schema() -> None:
    """Show the schema of a typed buffer or topic with its history, and widen it."""


@schema.command()
@takes_url
@json_option
def show(target: Target, *, as_json: bool) -> None:
    """Print the columns of the newest version, and what each version changed."""
    versions = schema_versions(target.open(), manifest_path=target.manifest_path)
    if as_json:
        for version in versions:
            columns = {field.name: _describe(field) for field in version.schema}
            write_json({"version": version.number, "id": version.schema_id, "columns": columns})
    elif not versions:
        write_line(f"{target.url} holds entries of bytes, which have no schema")
    else:
        newest = versions[-1]
        write_table(("column", "type"), [(field.name, _describe(field)) for field in newest.schema])
        for version in versions:
            changed = "; ".join(map(str, version.changes)) or "the first version"
            write_line(f"version {version.number} ({version.schema_id}): {changed}")


@schema.command()
@takes_url
@click.option(
    "--column",
    "columns",
    nargs=2,
    multiple=True,
    required=True,
    metavar="NAME TYPE",
    help="A new nullable column, or a wider type of a present one, such as --column count int64; may be repeated.",
)
@click.option("--apply", is_flag=True, help="Change the schema. Without this, only what would change is shown.")
def evolve(target: Target, *, columns: tuple[tuple[str, str], ...], apply: bool) -> None:
    """Add columns to the schema, or widen their types, for good. Producers and readers may go on meanwhile."""
    store = target.open()
    versions = schema_versions(store, manifest_path=target.manifest_path)
    fields = {field.name: field for field in versions[-1].schema} if versions else {}
    for name, kind in columns:
        known = fields.get(name)
        fields[name] = pa.field(name, _type_of(name, kind), nullable=known is None or known.nullable)
    wanted = pa.schema(list(fields.values()))
    changes = evolve_schema(store, wanted, dry_run=not apply, manifest_path=target.manifest_path)
    for change in changes:
        write_line(str(change))
    if not changes:
        write_line(f"{target.url}: nothing to change")
    elif not apply:
        write_line("nothing was changed: repeat the command with --apply")


def _describe(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _type_of(name: str, kind: str) -> pa.DataType:
    try:
        return pa.type_for_alias(kind)
    except ValueError:
        raise InvalidInput(
            f"column {name} has type {kind!r}; Arrow's names are wanted, such as int64, double, string, bool or "
            "timestamp[us]; for nested types, open a Producer with schema=… and evolve=True"
        ) from None
