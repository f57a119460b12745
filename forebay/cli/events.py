"""`forebay events` and `forebay objects`: what an event log holds."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from forebay.buffer.eventlog import AUDIT_TOPIC, Lagged, object_history
from forebay.cli.output import write_json, write_line, write_note
from forebay.cli.target import json_option, open_log, storage_option

if TYPE_CHECKING:
    from forebay.buffer.eventlog import EventLog, Record

_log_argument = click.argument("log", envvar="FOREBAY_EVENT_LOG")
_topic_option = click.option("--topic", default=AUDIT_TOPIC, show_default=True, help="Default: the audit trail.")


@click.group(
    epilog="""\
\b
examples:
  forebay events tail sqlite:///var/lib/forebay/events.db --follow
  forebay events tail s3://lake/events --topic orders -n 100 --json
  forebay events describe s3://lake/events

LOG is an event log's URL, or what FOREBAY_EVENT_LOG says."""
)
def events() -> None:
    """Look at an event log: what collectors and runtimes did, or a program's own topics."""


@events.command("tail")
@_log_argument
@storage_option
@_topic_option
@json_option
@click.option("--events", "-n", "wanted", type=click.IntRange(0), default=20, show_default=True, help="How many.")
@click.option("--follow", "-f", is_flag=True, help="Print what is appended from now on too, until interrupted.")
def tail_events(
    *, log: str, storage_options: dict[str, Any], topic: str, as_json: bool, wanted: int, follow: bool
) -> None:
    """Print the newest events of a topic, of each partition."""
    with open_log(log, storage_options) as opened:
        marks = opened.high_water_marks(topic)
        for partition, end in enumerate(marks):
            after = max(-1, end - wanted - 1)
            for record in opened.read_range(topic, after=after, limit=end - after - 1, partition=partition):
                _write(record, as_json=as_json)
        if follow:
            _follow(opened, topic, dict(enumerate(marks)), as_json=as_json)


@events.command()
@_log_argument
@storage_option
@_topic_option
@json_option
def describe(*, log: str, storage_options: dict[str, Any], topic: str, as_json: bool) -> None:
    """Show where a log is, what it takes there, and how many events a topic has ever had."""
    with open_log(log, storage_options) as opened:
        found = {**asdict(opened.describe()), "topic": topic, "next_offsets": opened.high_water_marks(topic)}
    if as_json:
        write_json(found)
        return
    for name, value in found.items():
        write_line(f"{name:14} {'-' if value is None else value}")


@click.group()
def objects() -> None:
    """Ask what happened to stored objects."""


@objects.command(
    epilog="""\
\b
examples:
  forebay objects history sqlite:///var/lib/forebay/events.db data/01J0000000000000000000000A.batch
  forebay objects history s3://lake/events s3://lake/clicks/data/01J0000000000000000000000A.batch

Exit status: 0 something is known of it, 1 nothing is."""
)
@_log_argument
@click.argument("location")
@storage_option
@_topic_option
@json_option
def history(*, log: str, location: str, storage_options: dict[str, Any], topic: str, as_json: bool) -> int:
    """Print what the audit trail says of an object, oldest first: dead letters, deletions begun and ended."""
    with open_log(log, storage_options) as opened:
        known = False
        for record in object_history(opened, location, topic=topic):
            known = True
            _write(record, as_json=as_json, leave_out="objects")
    if not known:
        write_note(f"{log}: nothing is known of {location}: was the collector or the runtime given this event log?")
    return 0 if known else 1


def _follow(log: EventLog, topic: str, starts: dict[int, int], *, as_json: bool) -> None:
    while True:
        records, _handle = log.subscribe(topic, starts)
        with closing(records):
            try:
                for record in records:
                    _write(record, as_json=as_json)
            except Lagged as error:  # whoever reads our output is slow; nothing is lost by that
                starts = {partition: last + 1 for partition, last in error.last.items()}


def _write(record: Record, *, as_json: bool, leave_out: str = "") -> None:
    event = record.event
    time = datetime.fromtimestamp((event.time_ms or 0) / 1000, UTC).isoformat(timespec="milliseconds")
    payload = event.payload.hex() if isinstance(event.payload, bytes) else event.payload
    if isinstance(payload, dict):
        payload = {name: value for name, value in payload.items() if name != leave_out}
    if as_json:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        write_json({**place, "time": time, "kind": event.kind, "headers": dict(event.headers), "payload": payload})
        return
    told = " ".join(f"{name}={value}" for name, value in payload.items()) if isinstance(payload, dict) else payload
    write_line(f"{time}  {record.partition}:{record.offset}  {event.kind}  {told}")
