"""`forebay stat` and `forebay ls`: how much there is, how fast it grows, how far readers are behind."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import ForebayError, NotFound, Unavailable
from forebay.buffer.either.schemas import schema_versions
from forebay.buffer.format.type_names import format_fields
from forebay.buffer.inspect.describe import describe_all
from forebay.buffer.inspect.stats import BufferStats, total
from forebay.buffer.store.folder import FolderStore
from forebay.cli.output import age, consumer, count, size, write_error, write_json, write_line, write_table
from forebay.cli.schema import describe_version
from forebay.cli.target import Target, json_option, takes_url

if TYPE_CHECKING:
    from forebay.buffer.either.schemas import SchemaVersion
    from forebay.buffer.inspect.stats import Total
    from forebay.buffer.store import ObjectStore

_SHOWN_COLUMNS: Final = 8
_WHOLE_RATE: Final = 10.0
"""From here on, a rate is shown without a fraction."""
_AFTER_SLASH: Final = chr(ord("/") + 1)
"""Sorts after everything in a folder."""


@click.command(
    epilog="""\
\b
examples:
  forebay stat s3://lake/clicks
  forebay stat s3://lake/clicks --every 5
  forebay stat s3://lake/clicks --json | jq '.groups[] | {name, lag_seconds}'"""
)
@takes_url
@json_option
@click.option("--every", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Repeat at this interval.")
def stat(target: Target, *, as_json: bool, every: float | None) -> None:
    """Show schema, depth, bytes, rate and age of a buffer or topic, and the lag of every reader. Changes nothing."""
    if every is not None:
        check_seconds(every, "--every")
    while True:
        store = target.open()
        parts = describe_all(store, manifest_path=target.manifest_path, clock=target.clock)
        versions = _read_schemas(store, target.manifest_path, parts)
        if as_json:
            for part in parts:
                # A partition may be some versions behind its topic.
                write_json({**part.as_json(), "schema": _describe_newest(versions[: len(part.schemas)])})
        else:
            _write(target.url, parts, versions)
        if every is None:
            return
        target.clock.sleep(every)


@click.command(
    epilog="""\
\b
examples:
  forebay ls s3://lake
  forebay ls s3://lake/ingest --json"""
)
@takes_url
@json_option
def ls(target: Target, *, as_json: bool) -> int:
    """List the buffers and topics at or below a folder, with their depth, bytes, lag, age and schema.

    Exit status: 0 all could be read, 1 some could not, 2 nothing is there.
    """
    store = target.open()
    rows, failures = [], 0
    for folder in _find(store, target.manifest_path, target.data_prefix):
        place = FolderStore(store, folder) if folder else store
        try:
            parts = describe_all(place, manifest_path=target.manifest_path, clock=target.clock)
            versions = _read_schemas(place, target.manifest_path, parts)
        except ForebayError as error:
            write_error(error)
            failures += 1
            continue
        found = total(parts)
        if as_json:
            shown = {"url": place.url, "partitions": len(parts), **found.as_json()}
            write_json({**shown, "schema": _describe_newest(versions)})
        rows.append((*_row(folder or ".", parts, found), _schema_in_short(versions)))
    if not rows and not failures:
        raise NotFound(f"there is no buffer and no topic at or below {store.url}: check the URL")
    if rows and not as_json:
        write_table(("name", "kind", "batches", "entries", "bytes", "lag", "oldest", "groups", "schema"), rows)
    return 1 if failures else 0


def _find(store: ObjectStore, manifest_path: str, data_prefix: str) -> list[str]:
    """The folders that hold a manifest, but not those within a buffer or topic, past which the listing jumps.

    Batches sort before their manifest: where they begin, it is asked for, so that not all of them are listed.
    """
    found: list[str] = []
    others: set[str] = set()  # folders that have such a folder in them, and are no buffer
    after = ""
    while True:
        for info in store.list(start_after=after):
            place = f"/{info.key}"
            folder, batches, _ = place.rpartition(f"/{data_prefix}/")
            if place.endswith(f"/{manifest_path}"):
                folder = place.removesuffix(f"/{manifest_path}")
            elif not batches or folder in others:
                continue
            elif not _exists(store, f"{folder}/{manifest_path}"[1:]):
                others.add(folder)
                continue
            found.append(folder[1:])
            if not folder:
                return found
            following = f"{folder}{_AFTER_SLASH}"[1:]
            if following.encode() <= after.encode():
                raise Unavailable(
                    f"{store.url}: the store lists {info.key!r} again, though it was asked for keys after {after!r}"
                    ". Check that endpoint_url is that of an object store"
                )
            after = following
            break
        else:
            return sorted(found)


def _exists(store: ObjectStore, key: str) -> bool:
    return any(info.key == key for info in islice(store.list(key), 1))


def _read_schemas(store: ObjectStore, manifest_path: str, parts: list[BufferStats]) -> list[SchemaVersion]:
    """The versions of the schema; for bytes none, and nothing is read."""
    return schema_versions(store, manifest_path=manifest_path) if any(part.schemas for part in parts) else []


def _describe_newest(versions: list[SchemaVersion]) -> dict[str, Any] | None:
    return describe_version(versions[-1]) if versions else None


def _schema_in_short(versions: list[SchemaVersion]) -> str:
    return f"version {versions[-1].number}, {counted(len(versions[-1].schema), 'column')}" if versions else "-"


def _row(name: str, parts: list[BufferStats], found: Total) -> tuple[str, ...]:
    kind = f"topic of {len(parts)}" if len(parts) > 1 else "buffer"
    lag = max((group.lag_batches for group in found.groups), default=None)
    sizes = count(found.entries), size(found.stored_bytes)
    return name, kind, count(found.batches), *sizes, count(lag), age(found.age_seconds), str(len(found.groups))


def _write(url: str, parts: list[BufferStats], versions: list[SchemaVersion]) -> None:
    found = total(parts)
    kind = (
        f"topic of {counted(len(parts), 'partition')}"
        if len(parts) > 1
        else f"buffer, manifest version {parts[0].version}"
    )
    write_line(f"{url}: {kind}")
    noun = "row" if versions else "entry"
    unit = "rows" if versions else "entries"
    if versions:
        columns = [f"{name} {kind}" for name, kind in format_fields(versions[-1].schema).items()]
        more = f", and {len(columns) - _SHOWN_COLUMNS} more: forebay schema show {url}"
        shown = ", ".join(columns[:_SHOWN_COLUMNS]) + more * (len(columns) > _SHOWN_COLUMNS)
        write_line(f"  schema    {_schema_in_short(versions)}: {shown}")
    write_line(
        f"  depth     {counted(found.batches, 'batch')}, {counted(found.entries, noun)}, {size(found.stored_bytes)}"
    )
    if found.entries_per_second is not None:
        rate = f"{format_rate(found.entries_per_second, noun)}/s, {size(found.bytes_per_second)}/s stored"
        write_line(f"  rate      {rate} (last minute, or since the oldest batch)")
    write_line(f"  oldest    {age(found.age_seconds)}")
    if len(parts) == 1 and parts[0].batches:
        write_line(f"  sequences {parts[0].first_sequence} to {parts[0].next_sequence - 1}")
    if found.dropped:
        write_line(f"  DROPPED   {counted(found.dropped, 'batch')} by retention, before every reader had read them")
    if found.lasting_writers:
        write_line(f"  writers   {count(found.lasting_writers)} with a lasting name: forebay writers list {url}")
    for part in parts:
        for hold in part.holds:
            write_line(f"  hold      {hold.purpose or hold.hold_id} from {hold.first_sequence} in {part.url}")
    if found.groups:
        rows = [
            (
                group.name or "(unnamed)",
                count(group.acked),
                count(group.lag_batches),
                count(group.lag_entries),
                size(group.lag_bytes),
                age(group.lag_seconds),
                consumer(group.owner, alive=group.alive),
            )
            for group in found.groups
        ]
        write_line("")
        write_table(("group", "acked", "behind", unit, "bytes", "oldest", "consumer"), rows)


def format_rate(number: float, noun: str) -> str:
    """A rate for people. A small one keeps two digits: a few entries in a minute are not none."""
    text = f"{number:.2g}"
    if number >= _WHOLE_RATE or text == "1":
        return counted(round(number), noun)
    return f"{text} {counted(0, noun).removeprefix('0 ')}"
