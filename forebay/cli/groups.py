"""`forebay groups`: the named readers of a buffer or topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from forebay.buffer.groups import GroupReader, Groups
from forebay.buffer.manifest import Queue
from forebay.buffer.topic import Topic, TopicGroups
from forebay.cli.output import consumer, count, write_json, write_line, write_table
from forebay.cli.target import Target, json_option, parse_place, takes_url

if TYPE_CHECKING:
    from forebay.buffer.groups import GroupState
    from forebay.buffer.topic import TopicGroupState

_to_option = click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="earliest, latest, a time such as 2026-01-31T12:00Z, or, in a buffer, the sequence to read next.",
)
_force_option = click.option(
    "--force", is_flag=True, help="Do it even if a consumer owns the group, which then gets Fenced."
)


@click.group(
    epilog="""\
\b
examples:
  forebay groups list s3://lake/clicks
  forebay groups create s3://lake/clicks etl --to latest
  forebay groups reset s3://lake/clicks etl --to 2026-01-31T12:00Z
  forebay groups delete s3://lake/clicks etl"""
)
def groups() -> None:
    """List, create, reset and delete the named readers of a buffer or topic."""


@groups.command("list")
@takes_url
@json_option
def list_groups(target: Target, *, as_json: bool) -> None:
    """Show every group: its position, how many batches wait, and which process owns it."""
    found = _open(target).list()
    if as_json:
        for group in found:
            owner = None if group.owner is None else asdict(group.owner)
            write_json({**asdict(group), "waiting": group.waiting, "alive": group.alive, "owner": owner})
    elif found:
        write_table(("group", "start", "acked", "waiting", "consumer"), [_row(group) for group in found])
    else:
        write_line("no groups")


@groups.command()
@takes_url
@click.argument("group")
@click.option("--to", default="earliest", show_default=True, metavar="PLACE", help="Where it starts, as for reset.")
def create(target: Target, *, group: str, to: str) -> None:
    """Create a group before its first consumer, so that the collector keeps what it will read."""
    store = target.open()
    if target.is_topic(store):
        Topic(store).register_group(group, to)
    else:
        GroupReader(Queue(store, target.manifest_path, role="groups"), group, start=parse_place(to))
    _write(_open(target).describe(group))


@groups.command()
@takes_url
@click.argument("group")
@_to_option
@_force_option
def reset(target: Target, *, group: str, to: str, force: bool) -> None:
    """Move a group to another position, earlier or later."""
    opened = _open(target)
    if isinstance(opened, Groups):
        _write(opened.reset(group, parse_place(to), force=force))
    else:
        _write(opened.reset(group, to, force=force))


@groups.command()
@takes_url
@click.argument("group")
@_force_option
def delete(target: Target, *, group: str, force: bool) -> None:
    """Delete a group, so that the collector no longer keeps anything for it."""
    _open(target).delete(group, force=force)
    write_line(f"{target.url}: group {group} was deleted")


def _open(target: Target) -> Groups | TopicGroups:
    store = target.open()
    return TopicGroups(store) if target.is_topic(store) else Groups(store, manifest_path=target.manifest_path)


def _row(group: GroupState | TopicGroupState) -> tuple[str, ...]:
    start, acked = getattr(group, "start", "-"), getattr(group, "acked", None)
    return group.name, str(start), count(acked), count(group.waiting), consumer(group.owner, alive=group.alive)


def _write(group: GroupState | TopicGroupState) -> None:
    write_table(("group", "start", "acked", "waiting", "consumer"), [_row(group)])
