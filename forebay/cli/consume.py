"""`forebay consume` and `forebay tail`: entries on standard output."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.read.ahead import ReadAhead
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.topic import TopicConsumer
from forebay.cli.entries import EntryWriter, format_option
from forebay.cli.output import write_note
from forebay.cli.target import Target, parse_place, takes_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.store import ObjectStore

_LOOK_BACK: Final = 64
_POLL_SECONDS: Final = 1.0


@click.command(
    epilog="""\
\b
examples:
  forebay consume s3://lake/clicks --group etl                   print what is new to the group, then end
  forebay consume s3://lake/clicks --group etl --follow          and wait for more
  forebay consume s3://lake/clicks --group new --from latest --format json
  forebay consume s3://lake/rows --group etl --format table      rows of a typed buffer as a table

A batch is acknowledged after it is printed. Acknowledgements are stored within a second, and at the end. If another
process reads as this group, this command takes over from it. Use `tail` to look without taking over."""
)
@takes_url
@format_option
@click.option("--group", metavar="NAME", help="Named reader; created if it does not exist. By default the unnamed one.")
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="Where a new group starts: earliest (the default), latest, a sequence, or a time such as 2026-01-31T12:00Z.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until interrupted.")
@click.option("--max-batches", type=click.IntRange(1), metavar="N", help="Maximum number of batches to print.")
def consume(
    target: Target,
    *,
    as_format: str,
    group: str | None,
    start: str | None,
    follow: bool,
    max_batches: int | None,
) -> None:
    """Print what a reader of a buffer or topic has not acknowledged yet, and acknowledge it."""
    if start is not None and group is None:
        raise InvalidInput("--from needs --group: it says where a new group starts")
    writer = EntryWriter(as_format)
    with _open_consumer(target, group, start, max_batches) as consumer:
        for batch, ack in islice(_follow(consumer, wait=follow), max_batches):
            writer.write(batch)
            ack()


def _follow(consumer: Consumer | TopicConsumer, *, wait: bool) -> Iterator[tuple[Batch, Callable[[], None]]]:
    """Each batch, and what acknowledges it."""
    if isinstance(consumer, Consumer):
        for batch in consumer.batches(wait=wait):
            yield batch, partial(consumer.ack, batch.sequence)
    else:
        for partition, batch in consumer.batches(wait=wait):
            yield batch, partial(consumer.ack, partition, batch.sequence)


def _open_consumer(
    target: Target, group: str | None, start: str | None, max_batches: int | None
) -> Consumer | TopicConsumer:
    store = target.open()
    # What is not printed need not be fetched.
    ahead = None if max_batches is None else ReadAhead(batches=min(max_batches, ReadAhead().batches))
    if target.is_topic(store):
        return TopicConsumer(store, group=group, from_=start or "earliest", read_ahead=ahead, clock=target.clock)
    place = None if start is None else parse_place(start)
    path = target.manifest_path
    return Consumer(store, group=group, from_=place, manifest_path=path, read_ahead=ahead, clock=target.clock)


@click.command(
    epilog="""\
\b
examples:
  forebay tail s3://lake/clicks
  forebay tail s3://lake/clicks -n 100 --follow --format json | jq .value
  forebay tail s3://lake/rows --format table                 rows of a typed buffer as a table"""
)
@takes_url
@format_option
@click.option(
    "--entries",
    "-n",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Number of entries to print; of a topic, for each partition.",
)
@click.option("--follow", "-f", is_flag=True, help="Print what is appended from now on too, until interrupted.")
def tail(target: Target, *, as_format: str, entries: int, follow: bool) -> None:
    """Print the newest entries of a buffer or topic. Claims nothing, acknowledges nothing, changes nothing."""
    writer = EntryWriter(as_format)
    tails = [_Tail(store, target.manifest_path) for store in target.buffers()]
    for found in tails:
        found.write_newest(entries, writer)
    while follow:
        target.clock.sleep(_POLL_SECONDS)
        for found in tails:
            found.write_more(writer)


class _Tail:
    """The end of one buffer."""

    def __init__(self, store: ObjectStore, manifest_path: str) -> None:
        self._queue = Queue(store, manifest_path, role="tail")
        self._fetch = FetchHandle(store).fetch
        self._next = 0

    def write_newest(self, wanted: int, writer: EntryWriter) -> None:
        state = self._queue.read_existing()
        end = self._next = state.next_sequence
        newest: list[tuple[Batch, int]] = []
        while wanted > 0 and end > state.first_sequence:
            first = max(state.first_sequence, end - _LOOK_BACK)
            for descriptor in reversed(self._queue.descriptors(first, end - first, state=state)):
                batch = self._fetch(descriptor)
                newest.append((batch, max(0, len(batch) - wanted)))
                wanted -= len(batch)
                if wanted <= 0:
                    break
            end = first
        for batch, skipped in reversed(newest):
            writer.write(batch, skipped)

    def write_more(self, writer: EntryWriter) -> None:
        state = self._queue.read()
        if self._next < state.first_sequence:
            missed = state.first_sequence - self._next
            write_note(f"{self._queue.url}: {counted(missed, 'batch')} trimmed before being printed")
            self._next = state.first_sequence
        for descriptor in self._queue.descriptors(self._next, _LOOK_BACK, state=state):
            writer.write(self._fetch(descriptor))
            self._next = descriptor.sequence + 1
