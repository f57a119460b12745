"""`forebay manifest dump` and `forebay batch cat`: the stored objects, for people and scripts."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from forebay.buffer.base.errors import Corrupt, NotFound
from forebay.buffer.format.type_names import format_fields
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.read.fetch import FetchHandle
from forebay.cli.entries import EntryWriter, format_option
from forebay.cli.output import write_line
from forebay.cli.target import Target, takes_url


@click.group(
    epilog="""\
\b
examples:
  forebay manifest dump s3://lake/clicks | jq .head.groups
  forebay manifest dump s3://lake/clicks --first 1200 | jq -c .batches[]
  forebay manifest dump s3://lake/clicks | jq .schemas"""
)
def manifest() -> None:
    """Print a manifest."""


@manifest.command()
@takes_url
@click.option(
    "--first", type=click.IntRange(0), metavar="SEQUENCE", help="First batch to list; by default all are listed."
)
def dump(target: Target, *, first: int | None) -> None:
    """Print a manifest as one JSON object, with all its batches, including those in sealed segments.

    Writers are counted, not named, and metadata is in base64. A typed buffer has its schema versions, with their
    columns. Each batch has two schema ids: that of the version it was written in, and that of the newest version.
    """
    queue = Queue(target.one_buffer(), target.manifest_path)
    state = queue.read_existing()
    first = max(state.first_sequence, first or 0)
    listed = [_named(batch) for batch in descriptors_between(queue, first, state.next_sequence, state=state)]
    shown: dict[str, Any] = {"url": queue.url, "version": state.version}
    if isinstance(state, Head):
        shown["head"] = {**_named(state), "writers": len(state.writers), "lasting_writers": state.lasting_writers}
        del shown["head"]["tail"]  # they are among the batches
    else:
        shown["epoch"] = state.epoch
    if state.schemas:
        schemas = Schemas(queue.store, clock=target.clock)
        shown["schemas"] = [_show_schema(schemas, number, each) for number, each in enumerate(state.schemas)]
    shown |= {"first_sequence": state.first_sequence, "next_sequence": state.next_sequence, "batches": listed}
    write_line(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())


@click.group(
    epilog="""\
\b
examples:
  forebay batch cat s3://lake/clicks 1200
  forebay batch cat s3://lake/clicks data/01J0000000000000000000000A.batch --format json
  forebay batch cat s3://lake/rows 0 --format table"""
)
def batch() -> None:
    """Print a batch."""


@batch.command()
@takes_url
@click.argument("which", metavar="SEQUENCE|LOCATION")
@format_option
def cat(target: Target, *, which: str, as_format: str) -> None:
    """Print the entries or rows of one batch that the manifest lists."""
    store = target.one_buffer()
    queue = Queue(store, target.manifest_path)
    if which.isdecimal():
        found = queue.descriptors(int(which), 1)
    else:
        location = which.removeprefix(f"{store.url}/")
        state = queue.read_existing()
        listed = descriptors_between(queue, state.first_sequence, state.next_sequence, state=state)
        found = [descriptor for descriptor in listed if descriptor.location == location]
    if not found:
        raise NotFound(f"{queue.url} lists no batch {which}: see `forebay manifest dump` for those that it lists")
    EntryWriter(as_format).write(FetchHandle(store).fetch(found[0]))


def _show_schema(schemas: Schemas, version: int, schema_id: str) -> dict[str, Any]:
    """A version of the schema, or what is wrong with its object: the manifest can be shown all the same."""
    shown: dict[str, Any] = {"version": version, "id": schema_id}
    try:
        return {**shown, "columns": format_fields(schemas.load(schema_id))}
    except Corrupt as error:
        return {**shown, "error": str(error)}


def _named(value: Any) -> Any:
    """A value as JSON with names, where it is stored as arrays without."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: _named(item) for name, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, tuple | list) else value
