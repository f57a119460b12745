"""`forebay writers`: the lasting writers that a buffer or topic remembers."""

from __future__ import annotations

import click

from forebay.buffer.base.errors import NotFound
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.lasting_writers import forget_lasting_writer, list_lasting_writers
from forebay.cli.output import count, write_json, write_line, write_table
from forebay.cli.target import Target, json_option, takes_url


@click.group(
    epilog="""\
\b
examples:
  forebay writers list s3://lake/clicks
  forebay writers forget s3://lake/clicks pod-17 pod-18"""
)
def writers() -> None:
    """List and forget lasting writers: producers with a writer_id, whose repeats are dropped."""


@writers.command("list")
@takes_url
@json_option
def list_writers(target: Target, *, as_json: bool) -> None:
    """Show every lasting writer and the number of its last durable call."""
    rows = [
        (queue.store.url, name, number)
        for queue in _queues(target)
        for name, number in list_lasting_writers(queue).items()
    ]
    if as_json:
        for url, name, number in rows:
            write_json({"url": url, "writer_id": name, "last_number": number})
    elif rows:
        write_table(("buffer", "writer", "last number"), [(url, name, count(number)) for url, name, number in rows])
    else:
        write_line("no lasting writers")


@writers.command()
@takes_url
@click.argument("names", nargs=-1, required=True)
def forget(target: Target, *, names: tuple[str, ...]) -> None:
    """Remove lasting writers permanently.

    Do this only for names that will not come back: if a producer of such a name starts again and repeats its calls,
    they are stored a second time.
    """
    queues = _queues(target)
    for name in names:
        removed = [forget_lasting_writer(queue, name) for queue in queues]
        if not any(removed):
            raise NotFound(f"{target.url} knows no lasting writer {name!r}: see forebay writers list {target.url}")
        write_line(f"{target.url}: writer {name} is forgotten")


def _queues(target: Target) -> list[Queue]:
    """The buffer, or every partition of the topic."""
    return [Queue(store, target.manifest_path, role="writers", clock=target.clock) for store in target.buffers()]
