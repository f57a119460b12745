"""`forebay produce`: lines of a file or of standard input as entries, or as rows of a schema."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import ForebayError, InvalidInput, NotFound
from forebay.buffer.either.dispatch import is_topic
from forebay.buffer.either.schemas import schema_versions
from forebay.buffer.format.batch import MAX_ENTRY_BYTES
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.format.type_names import format_fields
from forebay.buffer.manifest.state import OPENDATA_MANIFEST_PATH
from forebay.buffer.producer import Producer
from forebay.buffer.topic import TopicProducer
from forebay.cli.infer import infer_schema
from forebay.cli.output import count, size, write_json, write_note
from forebay.cli.target import Target, json_option, schema_option, takes_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.coordinator import WriteHandle

_READ_BYTES: Final = 1 << 20
_PROGRESS_SECONDS: Final = 1.0
_SAMPLE_LINES: Final = 1000
"""Maximum number of lines from which a schema is inferred."""
_SAMPLE_BYTES: Final = 1 << 20
"""Maximum size of these lines; one line is read in any case."""


@click.command(
    epilog="""\
\b
examples:
  forebay produce s3://lake/clicks events.jsonl
  tail -F app.log | forebay produce s3://lake/logs --metadata host=web-1
  my-program | forebay produce s3://lake/frames --length-prefixed
  forebay produce s3://lake/rows events.jsonl --infer
  forebay produce s3://lake/rows events.jsonl --schema clicks.toml

A typed buffer holds rows of a schema: each line is a JSON object that fits it. --schema or --infer creates one; an
existing one needs neither. A schema file in TOML has a line for each column, such as user = "int64 not null". The
command ends at the first line that does not fit; the lines before it are durable.

It ends when everything is durable, or at the first batch that cannot be stored. Ctrl-C and SIGTERM store what was read
so far. Exit status: 0 all is durable, 2 some of it is not, 130 interrupted."""
)
@takes_url
@json_option
@click.argument("file", type=click.File("rb"), default="-")
@schema_option("Columns of the rows, to create a typed buffer, or to compare with those of an existing one.")
@click.option(
    "--infer",
    is_flag=True,
    help=f"Choose the schema of a new typed buffer from the first {_SAMPLE_LINES} lines or the first MiB of the input, "
    "and print it. Nothing is written until these lines are read.",
)
@click.option(
    "--length-prefixed", is_flag=True, help="Entries are bytes after a 4-byte little-endian length, instead of lines."
)
@click.option("--metadata", default="", metavar="TEXT", help="Text that is stored with the entries; readers get it.")
@click.option(
    "--flush-interval",
    type=float,
    metavar="SECONDS",
    help="Maximum time between flushes; by default 0.1, and 1 in a typed buffer.",
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
    schema: pa.Schema | None,
    infer: bool,
    length_prefixed: bool,
    metadata: str,
    flush_interval: float | None,
    profile: str,
) -> None:
    """Write the lines of FILE, or of standard input, to a buffer or topic: an entry or a row each."""
    if infer and schema is not None:
        raise InvalidInput("--schema and --infer exclude each other, since both choose the columns: give one of them")
    source = _Input(read_frames(file) if length_prefixed else read_lines(file))
    noun = "entry" if length_prefixed else "line"
    sample = source.sample() if infer and not _has_schema(target) else None
    if sample is not None:
        schema = infer_schema(sample, noun)
    producer = _open_producer(target, flush_interval, profile, schema)
    if sample is not None and schema is not None:
        _show_inferred(schema, f"{count(len(sample))} {noun}s")
    lines = _Lines(producer.schema, noun)
    progress, refused = _Progress(target.clock), _Refused()
    with refused, producer:
        try:
            for block in source:
                call = lines.convert(block)
                if len(call):
                    handle = producer.produce(call, metadata=os.fsencode(metadata))
                    handle.add_done_callback(partial(refused.note, entries=len(call)))
                progress.add(len(call), sum(map(len, block[: len(call)])))
                if refused.error is not None or lines.misfit is not None:
                    break
        except KeyboardInterrupt as error:
            source.interrupted = error
    _report(producer, progress, as_json=as_json)
    for trouble in (lines.misfit, source.interrupted):
        if trouble is not None:
            raise trouble


def _report(producer: Producer | TopicProducer, progress: _Progress, *, as_json: bool) -> None:
    seconds = progress.end()
    if as_json:
        told = {"url": producer.url, "entries": progress.entries, "bytes": progress.sent, "seconds": seconds}
        write_json(told if producer.schema is None else {**told, "schema": format_fields(producer.schema)})
    else:
        written = f"{counted(progress.entries, 'entry' if producer.schema is None else 'row')}"
        verb = "is" if progress.entries == 1 else "are"
        write_note(f"{producer.url}: {written} ({size(progress.sent)}) {verb} durable, after {seconds:.1f} s")


class _Progress:
    """Progress on a terminal: how much was written."""

    def __init__(self, clock: Clock) -> None:
        self.entries = self.sent = 0
        self._clock = clock
        self._is_shown = sys.stderr.isatty()
        self._shown_at = self._began = clock.monotonic()

    def add(self, entries: int, sent: int) -> None:
        """Count entries and their bytes."""
        self.entries += entries
        self.sent += sent
        now = self._clock.monotonic()
        if self._is_shown and now - self._shown_at >= _PROGRESS_SECONDS:
            self._shown_at = now
            rate = self.sent / (now - self._began) / 1e6
            done = f"{counted(self.entries, 'entry')}, {size(self.sent)}, {rate:.1f} MB/s"
            click.echo(f"\r{done} \033[K", nl=False, err=True)

    def end(self) -> float:
        """Return how many seconds it took."""
        if self._is_shown:
            click.echo("\r\033[K", nl=False, err=True)
        return self._clock.monotonic() - self._began


class _Input:
    """What there is to write, in blocks, until the input ends or the command is interrupted."""

    def __init__(self, blocks: Iterator[list[bytes]]) -> None:
        self._blocks = blocks
        self.interrupted: KeyboardInterrupt | None = None

    def __iter__(self) -> Iterator[list[bytes]]:
        try:
            for block in self._blocks:  # noqa: UP028 - `yield from` would close them with this generator
                yield block
        except KeyboardInterrupt as error:
            self.interrupted = error

    def sample(self) -> list[bytes]:
        """Return the first lines, which will be written as well."""
        held: list[list[bytes]] = []
        lines = size = 0
        for block in self:
            held.append(block)
            lines += len(block)
            size += sum(map(len, block))
            if lines >= _SAMPLE_LINES or size >= _SAMPLE_BYTES:
                break
        if not held and self.interrupted is not None:
            raise self.interrupted
        self._blocks = chain(held, self._blocks)
        return _within(_SAMPLE_BYTES, islice(chain.from_iterable(held), _SAMPLE_LINES))


class _Lines:
    """Makes calls of lines: entries as they are, or rows, up to the first one that does not fit the schema."""

    def __init__(self, schema: pa.Schema | None, noun: str) -> None:
        self._converter = None if schema is None else RowConverter(schema)
        self._noun = noun
        self._converted = 0
        self.misfit: InvalidInput | None = None
        """What is wrong with the first line that does not fit."""

    def convert(self, lines: list[bytes]) -> list[bytes] | pa.Table:
        """Return the call."""
        if self._converter is None:
            return lines
        converted = self._converter.convert(lines)
        if not converted.failures:
            self._converted += len(lines)
            return converted.table
        at = min(converted.failures)
        before = self._converted + at
        said = str(converted.failures[at]).removeprefix("row 0, ").rstrip(".")  # each line is a call of one row
        what = f"{self._noun} {before + 1}"
        self.misfit = InvalidInput(
            f"{what}, {said}. All {self._noun}s before it are durable; it and those after it were not written. Correct "
            f"it, or change the schema (`forebay schema evolve`), and continue with {what}"
        )
        return converted.table.slice(0, at)


@dataclass(slots=True)
class _Refused:
    """Calls that could not be stored. Batches fail separately; closing the producer reports only the last failure."""

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
            write_note(f"{counted(self.entries, 'entry')} not known to be durable")
            raise self.error


def _open_producer(
    target: Target, flush_interval: float | None, profile: str, schema: pa.Schema | None
) -> Producer | TopicProducer:
    store = target.open()
    manifest_path, data_prefix = target.given_paths
    default = OPENDATA_MANIFEST_PATH if profile == "opendata" else "manifest"
    if is_topic(store, default if manifest_path is None else manifest_path):
        return TopicProducer(store, schema=schema, flush_interval=flush_interval)
    return Producer(
        store,
        schema=schema,
        profile="opendata" if profile == "opendata" else "native",
        manifest_path=manifest_path,
        data_prefix=data_prefix,
        flush_interval=flush_interval,
    )


def _has_schema(target: Target) -> bool:
    try:
        versions = schema_versions(target.open(), manifest_path=target.manifest_path)
    except NotFound:
        return False
    if versions:
        write_note(f"{target.url} has a schema, which is used; nothing is inferred")
    return bool(versions)


def _show_inferred(schema: pa.Schema, sample: str) -> None:
    """Print a schema as a file for `--schema` would have it."""
    write_note(f"# schema, inferred from {sample} of the input")
    for name, kind in format_fields(schema).items():
        write_note(f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(kind, ensure_ascii=False)}")


def _within(most_bytes: int, lines: Iterable[bytes]) -> list[bytes]:
    """The first lines whose sizes add up to at most this many bytes, and at least one line."""
    taken: list[bytes] = []
    for line in lines:
        most_bytes -= len(line)
        if taken and most_bytes < 0:
            break
        taken.append(line)
    return taken


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
            ". Complete the last entry and write it again"
        )


def _check_length(length: int, max_bytes: int) -> int:
    if length > max_bytes:
        raise InvalidInput(
            f"an entry has {length} bytes or more, and the most is {max_bytes}: are these lines, or is it "
            "--length-prefixed? What came before is stored"
        )
    return length
