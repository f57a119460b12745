"""`forebay events` and `forebay objects`: what an event log holds."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from forebay.buffer.base.errors import NotFound
from forebay.buffer.eventlog import AUDIT_TOPIC, Lagged, object_history
from forebay.cli.output import write_json, write_line, write_note
from forebay.cli.target import json_option, open_log, storage_option

if TYPE_CHECKING:
    from forebay.buffer.eventlog import Description, EventLog, Record

_log_argument = click.argument("log", envvar="FOREBAY_EVENT_LOG")
_topic_option = click.option(
    "--topic", default=AUDIT_TOPIC, show_default=True, help="Topic of the log; by default the audit trail."
)


@click.group(
    epilog="""\
\b
examples:
  forebay events tail sqlite:///var/lib/forebay/events.db --follow
  forebay events tail s3://lake/events --topic orders -n 100 --json
  forebay events describe s3://lake/events

A line has the time (UTC), the kind, the buffer and the details; long lists are cut. --json writes all details, and the
event's place in the log. LOG is the URL of an event log; by default the value of FOREBAY_EVENT_LOG."""
)
def events() -> None:
    """Look at an event log: what collectors and runtimes did, or a program's own topics."""


@events.command("tail")
@_log_argument
@storage_option
@_topic_option
@json_option
@click.option(
    "--events", "-n", "wanted", type=click.IntRange(0), default=20, show_default=True, help="Number of events."
)
@click.option("--follow", "-f", is_flag=True, help="Print what is appended from now on too, until interrupted.")
def tail_events(
    *, log: str, storage_options: dict[str, Any], topic: str, as_json: bool, wanted: int, follow: bool
) -> None:
    """Print the newest events of each partition of a topic."""
    with open_log(log, storage_options) as opened:
        marks = opened.high_water_marks(topic)
        if not any(marks) and not follow:
            _check_exists(opened)
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
    """Show where a log is, its size, and how many events were ever appended to a topic."""
    with open_log(log, storage_options) as opened:
        described = _check_exists(opened)
        found = {**asdict(described), "topic": topic, "next_offsets": opened.high_water_marks(topic)}
    if as_json:
        write_json(found)
        return
    for name, value in found.items():
        write_line(f"{name:14} {'-' if value is None else value}")


@click.group()
def objects() -> None:
    """Show what happened to stored objects."""


@objects.command(
    epilog="""\
\b
examples:
  forebay objects history sqlite:///var/lib/forebay/events.db data/01J0000000000000000000000A.batch
  forebay objects history s3://lake/events s3://lake/clicks/data/01J0000000000000000000000A.batch

Exit status: 0 the audit trail names the object, 1 it does not."""
)
@_log_argument
@click.argument("location")
@storage_option
@_topic_option
@json_option
def history(*, log: str, location: str, storage_options: dict[str, Any], topic: str, as_json: bool) -> int:
    """Print the audit trail of an object, oldest first: dead letters, and start and end of deletions."""
    with open_log(log, storage_options) as opened:
        known = False
        for record in object_history(opened, location, topic=topic):
            known = True
            _write(record, as_json=as_json, leave_out="objects")
    if not known:
        write_note(
            f"{log}: nothing is recorded about {location}: do collector and runtime use this event log (--events)?"
        )
    return 0 if known else 1


def _check_exists(log: EventLog) -> Description:
    described = log.describe()
    if described.size_bytes == 0:
        raise NotFound(f"there is no event log at {log.url}: check its URL, or append an event first")
    return described


def _follow(log: EventLog, topic: str, starts: dict[int, int], *, as_json: bool) -> None:
    while True:
        records, _handle = log.subscribe(topic, starts)
        with closing(records):
            try:
                for record in records:
                    _write(record, as_json=as_json)
            except Lagged as error:  # the reader of our output is slow; nothing is lost
                starts = {partition: last + 1 for partition, last in error.last.items()}


def _write(record: Record, *, as_json: bool, leave_out: str = "") -> None:
    event = record.event
    moment = datetime.fromtimestamp((event.time_ms or 0) / 1000, UTC)
    payload = event.payload
    if isinstance(payload, dict):
        payload = {name: value for name, value in payload.items() if name != leave_out}
    if as_json:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        time = moment.isoformat(timespec="milliseconds")
        payload = payload.hex() if isinstance(payload, bytes) else payload
        write_json({**place, "time": time, "kind": event.kind, "headers": dict(event.headers), "payload": payload})
        return
    write_line(f"{moment:%Y-%m-%d %H:%M:%S}Z  {event.kind:15}  {_describe(payload)}".rstrip())


def _describe(payload: Any) -> str:
    """An event's payload on one line for people: which buffer, then what is known, without what is empty."""
    if isinstance(payload, bytes):
        return _as_text(payload)
    if not isinstance(payload, dict):
        return _in_a_line(payload)
    known = {name: value for name, value in payload.items() if value not in (None, "", [], {})}
    buffer = known.pop("buffer", None)
    told = ", ".join(_name(name, value) for name, value in known.items())
    return "  ".join(part for part in (buffer and _in_a_line(buffer), told) if part)


def _as_text(payload: bytes) -> str:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return payload.hex()
    return text if text.isprintable() else payload.hex()


def _name(name: str, value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{key}: {_in_a_line(item)}" for key, item in value.items()]
    if not isinstance(value, list):
        return f"{name} {_in_a_line(value)}"
    ends = value if len(value) < 3 else [value[0], "…", value[-1]]
    return f"{len(value)} {name if len(value) > 1 else name.removesuffix('s')}: {' '.join(map(_in_a_line, ends))}"


def _in_a_line(value: Any) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
