"""`forebay run --dry-run`: says what a job would do, and changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput, NotFound, Unsupported
from forebay.buffer.either.dispatch import buffers_at
from forebay.buffer.either.schemas import newest_schema
from forebay.buffer.inspect.describe import describe
from forebay.buffer.manifest import Queue
from forebay.buffer.store import open_store
from forebay.cli.output import write_json, write_line
from forebay.cli.target import options_for
from forebay.runtime.decoders import rows_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store import ObjectStore
    from forebay.cli.job import Job
    from forebay.runtime import Source
    from forebay.runtime.contract import Decoder, Sink, SinkPlan


@dataclass(frozen=True, slots=True)
class _Reading:
    """Where a reader of one buffer would start."""

    url: str
    group: str
    is_new: bool
    """Whether the group does not exist, and would be created."""
    next_sequence: int
    """The first batch that would be read."""
    batches_behind: int
    owner: str = ""
    """The process that has the group; empty if none has."""

    def __str__(self) -> str:
        reader = f"group {self.group}" if self.group else "the unnamed consumer"
        if self.is_new:
            reader += " would be created, and"
        behind = f"{counted(self.batches_behind, 'batch')} behind"
        owner = f"; {self.owner} has the group, so the runtime would wait" if self.owner else ""
        return f"{reader} would read from sequence {self.next_sequence} on, {behind}{owner}"


@dataclass(frozen=True, slots=True)
class _SourcePlan:
    """What a run would do with one source."""

    url: str
    written: bool
    """Whether anything was ever written to it."""
    readers: tuple[_Reading, ...] = ()
    """For the buffer, or for each partition."""
    columns: dict[str, str] | None = None
    """Name and type of the columns that it holds; None for bytes."""
    target: SinkPlan | None = None
    """What the sink would do; None if it does not tell."""
    refused: str = ""
    """Why no row could be committed; empty if some can."""

    def lines(self) -> Iterator[str]:
        """The same for people."""
        if not self.written:
            yield "nothing was ever written to it: the runtime would wait for it"
            return
        yield "it holds entries of bytes" if self.columns is None else f"it has the columns {_join(self.columns)}"
        for reader in self.readers:
            yield str(reader) if reader.url == self.url else f"{reader.url}: {reader}"
        if self.refused:
            yield f"refused: {self.refused}"
        elif self.target is None:
            yield "the sink does not tell in advance what it would do"
        else:
            yield f"target: {self.target.target}"
            yield from (f"would change: {text}" for text in self.target.changes)
            yield from (f"values that do not fit are refused: {text}" for text in self.target.warnings)
            yield from (f"every row is refused: {text}" for text in self.target.conflicts)


def show_plan(job: Job, *, clock: Clock | None, as_json: bool) -> None:
    """Write what a run of the job would do.

    Raises:
        InvalidInput: it would be refused. What was found out is written before that.
    """
    with job.make_sink(is_dry_run=True) as sink:
        plans = [_plan_source(source, sink, job.decoder, clock) for source in job.sources]
    letters = None if job.dead_letters is None else _describe_letters(job.dead_letters, job.storage_options)
    if as_json:
        write_json({"sources": [asdict(plan) for plan in plans], "sink": job.sink_name, "dead_letters": letters})
    else:
        write_line(f"sink: {job.sink_name}")
        for plan in plans:
            write_line(f"source: {plan.url}")
            for line in plan.lines():
                write_line(f"  {line}")
        write_line(f"dead letters: {letters or 'none; a row that cannot be used halts the runtime'}")
        write_line("nothing was changed")
    refused = next((plan for plan in plans if plan.refused), None)
    if refused is not None:
        raise InvalidInput(f"this job cannot run: {refused.refused}. Correct it, and repeat the dry run")


def _plan_source(source: Source, sink: Sink, decoder: Decoder, clock: Clock | None) -> _SourcePlan:
    store = open_store(source.url, source.storage_options)
    try:
        readers = tuple(_find_reader(buffer, source, clock) for buffer in _buffers(store, source))
        schema = newest_schema(store)
    except NotFound:
        return _SourcePlan(store.url, written=False)
    columns = None if schema is None else {field.name: str(field.type) for field in schema}
    rows = rows_schema(decoder, schema)
    target, refused = None, ""
    try:
        target = None if rows is None else sink.plan(rows)
    except (InvalidInput, Unsupported) as error:
        refused = str(error)
    return _SourcePlan(store.url, True, readers, columns, target, refused)


def _buffers(store: ObjectStore, source: Source) -> list[ObjectStore]:
    buffers = buffers_at(store, must_exist=True)
    wanted = range(len(buffers)) if source.partitions is None else sorted(set(source.partitions))
    if not set(wanted) <= set(range(len(buffers))):
        raise InvalidInput(
            f"partitions must be some of 0 to {len(buffers) - 1} of {store.url}; asked for {list(wanted)}"
        )
    return [buffers[number] for number in wanted]


def _find_reader(buffer: ObjectStore, source: Source, clock: Clock | None) -> _Reading:
    stats = describe(buffer, clock=clock)
    known = next((reader for reader in stats.readers if reader.name == (source.group or "")), None)
    if known is not None:
        owner = str(known.owner) if known.alive and known.owner is not None else ""
        first = stats.next_sequence - known.lag_batches
        return _Reading(buffer.url, known.name, False, first, known.lag_batches, owner)
    queue = Queue(buffer, role="dry-run", clock=clock)
    place = "earliest" if source.from_ is None else source.from_
    first = max(stats.first_sequence, queue.sequence_of(place, state=queue.read_existing()))
    behind = max(0, stats.next_sequence - first)
    return _Reading(buffer.url, source.group or "", source.group is not None, first, behind)


def _describe_letters(url: str, storage_options: dict[str, Any]) -> str:
    store = open_store(url, options_for(url, storage_options))
    try:
        Queue(store, role="dry-run").read_existing()
    except NotFound:
        return f"{store.url}, which would be created"
    return store.url


def _join(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
