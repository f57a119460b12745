"""`forebay produce`: lines of a file or of standard input as entries."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from forebay.buffer.base.errors import ForebayError, InvalidInput
from forebay.buffer.either.dispatch import is_topic
from forebay.buffer.format.batch import MAX_ENTRY_BYTES
from forebay.buffer.manifest.state import OPENDATA_MANIFEST_PATH
from forebay.buffer.producer import Producer
from forebay.buffer.topic import TopicProducer
from forebay.cli.output import count, size, write_json, write_note
from forebay.cli.target import Target, json_option, takes_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.coordinator import WriteHandle

_READ_BYTES: Final = 1 << 20
_PROGRESS_SECONDS: Final = 1.0


@click.command(
    epilog="""\
\b
examples:
  forebay produce s3://lake/clicks events.jsonl
  tail -F app.log | forebay produce s3://lake/logs --metadata host=web-1
  my-program | forebay produce s3://lake/frames --length-prefixed

It ends when everything is durable, or at the first batch that cannot be stored. Ctrl-C and SIGTERM store what was read
so far. Exit status: 0 all is durable, 2 some of it is not, 130 interrupted."""
)
@takes_url
@json_option
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--length-prefixed", is_flag=True, help="Entries are bytes after a 4-byte little-endian length, instead of lines."
)
@click.option("--metadata", default="", metavar="TEXT", help="Text that is stored with the entries; readers get it.")
@click.option(
    "--flush-interval",
    type=float,
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time between flushes.",
)
@click.option(
    "--profile",
    type=click.Choice(["native", "opendata"]),
    default="native",
    show_default=True,
    help="The format of a buffer that does not exist yet. With opendata, the manifest is at ingest/manifest and the "
    "batches in ingest by default.",
)
def produce(
    target: Target,
    *,
    as_json: bool,
    file: BinaryIO,
    length_prefixed: bool,
    metadata: str,
    flush_interval: float,
    profile: str,
) -> None:
    """Write the lines of FILE, or of standard input, to a buffer or topic: an entry each."""
    clock = target.clock
    producer = _open_producer(target, flush_interval, profile)
    entries = sent = 0
    refused = _Refused()
    shows_progress = sys.stderr.isatty()
    shown_at = began = clock.monotonic()
    interrupted: KeyboardInterrupt | None = None
    with refused, producer:
        try:
            for block in read_frames(file) if length_prefixed else read_lines(file):
                handle = producer.produce(block, metadata=os.fsencode(metadata))
                handle.add_done_callback(partial(refused.note, entries=len(block)))
                entries += len(block)
                sent += sum(map(len, block))
                if refused.error is not None:
                    break
                now = clock.monotonic()
                if shows_progress and now - shown_at >= _PROGRESS_SECONDS:
                    shown_at = now
                    rate = sent / (now - began) / 1e6
                    click.echo(f"\r{count(entries)} entries, {size(sent)}, {rate:.1f} MB/s \033[K", nl=False, err=True)
        except KeyboardInterrupt as error:
            interrupted = error
    if shows_progress:
        click.echo("\r\033[K", nl=False, err=True)
    seconds = clock.monotonic() - began
    if as_json:
        write_json({"url": producer.url, "entries": entries, "bytes": sent, "seconds": seconds})
    else:
        write_note(f"{producer.url}: {count(entries)} entries ({size(sent)}) are durable, after {seconds:.1f} s")
    if interrupted is not None:
        raise interrupted


@dataclass(slots=True)
class _Refused:
    """Calls that could not be stored. Each batch fails by itself, so that closing the producer tells of the last."""

    entries: int = 0
    error: ForebayError | None = None

    def note(self, handle: WriteHandle[Any], *, entries: int) -> None:
        """Take note of what became of a call."""
        try:
            handle.result()
        except ForebayError as error:
            self.entries += entries
            self.error = self.error or error

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self.error is not None:
            write_note(f"{count(self.entries)} entries are not known to be durable")
            raise self.error


def _open_producer(target: Target, flush_interval: float, profile: str) -> Producer | TopicProducer:
    store = target.open()
    manifest_path, data_prefix = target.given_paths
    default = OPENDATA_MANIFEST_PATH if profile == "opendata" else "manifest"
    if is_topic(store, default if manifest_path is None else manifest_path):
        return TopicProducer(store, flush_interval=flush_interval)
    return Producer(
        store,
        profile="opendata" if profile == "opendata" else "native",
        manifest_path=manifest_path,
        data_prefix=data_prefix,
        flush_interval=flush_interval,
    )


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """What there is, as it comes: a pipe that says little now and then is not waited for."""
    read = getattr(file, "read1", file.read)
    while block := read(_READ_BYTES):
        yield block


def read_lines(file: BinaryIO, max_bytes: int = MAX_ENTRY_BYTES) -> Iterator[list[bytes]]:
    """Yield the lines of a file, several at a time; one of more than `max_bytes` bytes is `InvalidInput`."""
    parts: list[bytes] = []
    length = 0
    for block in _read_blocks(file):
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*parts, lines[0]])
            parts, length = [], 0
            yield lines
        parts.append(rest)
        length += len(rest)
        _check_length(length, max_bytes)
    last = b"".join(parts)
    if last:
        yield [last]


def read_frames(file: BinaryIO, max_bytes: int = MAX_ENTRY_BYTES) -> Iterator[list[bytes]]:
    """Yield the entries of a file, each after its length; one of more than `max_bytes` bytes is `InvalidInput`."""
    held = bytearray()
    for block in _read_blocks(file):
        held += block
        frames, at = [], 0
        while len(held) - at >= 4:
            end = at + 4 + _check_length(int.from_bytes(held[at : at + 4], "little"), max_bytes)
            if end > len(held):
                break
            frames.append(bytes(held[at + 4 : end]))
            at = end
        del held[:at]
        if frames:
            yield frames
    if held:
        raise InvalidInput(
            f"the input ends in the middle of an entry, {len(held)} bytes after the last whole one; what came before "
            "is stored"
        )


def _check_length(length: int, max_bytes: int) -> int:
    if length > max_bytes:
        raise InvalidInput(
            f"an entry has {length} bytes or more, and the most is {max_bytes}: are these lines, or is it "
            "--length-prefixed? What came before is stored"
        )
    return length
