"""Which compression makes a terabyte of events cheapest, by processor time and by bytes stored?

The events are of five kinds (corpora.py). They are written as bytes and as rows of a typed buffer, on S3 by obstore, in
batches of 8 MiB. A producer gets calls of 1,000 events, as lists of bytes or as Arrow tables, until all are durable.
Then a consumer with default settings reads all of them to Arrow. Processor time is that of the whole process, which
includes the S3 client, but not the server. Dollars are computed from this time and from the bytes stored, for batches
that are kept for 1 hour, 1 day and 7 days. Requests are the same for every compression. So is the transfer inside a
region, which is free.

    python benchmarks compressing      measure; results go to benchmarks/results/compressing.json
    python benchmarks/performance.py   write the table of docs/performance.md from those results
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from corpora import make_corpora
from cost import DOLLARS_PER_GB_MONTH

from forebay import Consumer, Producer
from forebay.buffer.format.batch import DEFAULT_LEVEL
from forebay.buffer.format.parquet import DEFAULT_ROWS_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from corpora import Corpus
    from harness import Bench
    from places import Place

# Fargate on x86 in us-east-1, as published in 2025; a core of a small EC2 instance costs as much.
DOLLARS_PER_CPU_HOUR: Final = 0.0405
CASES: Final[dict[str, dict[str, Any]]] = {
    "none": {"compression": "none"},
    **{f"zstd {level}": {"compression": "zstd", "compression_level": level} for level in (1, 3, 6)},
}
DEFAULTS: Final = {"bytes": f"zstd {DEFAULT_LEVEL}", "rows": f"zstd {DEFAULT_ROWS_LEVEL}"}
KEPT_HOURS: Final = {"1 hour": 1, "1 day": 24, "7 days": 168}
_JUDGED_HOURS = 24
_HOURS_A_MONTH = 720
_CORPUS_BYTES = 32 << 20
_BATCH_BYTES = 8 << 20
_ROUNDS = 5
_PATIENT = 3600.0
_numbers = count()


def run(bench: Bench) -> None:
    from places import open_places  # noqa: PLC0415  (the table of the page needs no server)

    figures: dict[str, dict[str, dict[str, float]]] = {}
    with open_places() as places:
        for corpus in make_corpora((1 << 20) if bench.quick else _CORPUS_BYTES):
            for form, calls in (("bytes", corpus.lines), ("rows", corpus.rows)):
                figures[f"{corpus.name}, {form}"] = _measure(bench, places[-1], corpus, form, calls)
    bench.figures = dict(figures)
    for form, default in DEFAULTS.items():
        found = [each for name, each in figures.items() if name.endswith(f", {form}")]
        for case in (case for case in CASES if case != default):
            for kept, hours in KEPT_HOURS.items():
                more = (dollars(each[case], hours) / dollars(each[default], hours) - 1 for each in found)
                shown = ", ".join(f"{share:+.0%}" for share in more)
                bench.note(f"dollars, {form} kept {kept}, {case} against {default}: {shown}")
        share = statistics.median(_cheapest(each) / dollars(each[default], _JUDGED_HOURS) for each in found)
        name = f"{form} kept a day, dollars of the cheapest compression for those of the default (median)"
        bench.require(name, share, least=0.95)


def _cheapest(found: Mapping[str, Mapping[str, float]]) -> float:
    return min(dollars(each, _JUDGED_HOURS) for each in found.values())


def _measure(
    bench: Bench, place: Place, corpus: Corpus, form: str, calls: Sequence[list[bytes]] | Sequence[pa.Table]
) -> dict[str, dict[str, float]]:
    schema = calls[0].schema if isinstance(calls[0], pa.Table) else None
    names = {case: _write(place, calls, schema, settings) for case, settings in CASES.items()}
    for name in names.values():
        assert _read(place, name) == corpus.count
    seconds = [
        _compare(bench, f"{do} {corpus.name}, {form}", cases, form, corpus.size)
        for do, cases in (
            ("produce", {case: partial(_write, place, calls, schema, settings) for case, settings in CASES.items()}),
            ("read", {case: partial(_read, place, name) for case, name in names.items()}),
        )
    ]
    return {
        case: {"produce": seconds[0][case], "read": seconds[1][case], "stored": _stored(place, name) / corpus.size}
        for case, name in names.items()
    }


def _compare(
    bench: Bench, group: str, cases: Mapping[str, Callable[[], object]], form: str, size: int
) -> dict[str, float]:
    """Measure the cases, and return the processor seconds of each for a GB of events."""
    bench.compare(group, cases, ceiling=DEFAULTS[form], amount=size, rounds=_ROUNDS, clock="cpu", rehearse=False)
    return {row.case: min(row.seconds) * 1e9 / size for row in bench.rows if row.group == group}


def _write(place: Place, calls: Sequence[Any], schema: pa.Schema | None, settings: Mapping[str, Any]) -> str:
    """Make all calls durable in a new buffer, and return its name."""
    name = f"compression-{next(_numbers)}"
    with Producer(
        place.open(name), schema=schema, flush_interval=_PATIENT, flush_size_bytes=_BATCH_BYTES, **settings
    ) as producer:
        for call in calls:
            producer.produce(call)
    return name


def _read(place: Place, name: str) -> int:
    """Read all batches to Arrow, and return the number of events."""
    with Consumer(place.open(name)) as consumer:
        return sum(len(batch.decoded) for batch in consumer)


def _stored(place: Place, name: str) -> int:
    """Return the size of all batches."""
    with Consumer(place.open(name)) as consumer:
        return sum(descriptor.size or 0 for descriptor in consumer.next_descriptors(10_000))


# Computing


def dollars(found: Mapping[str, float], hours: float) -> float:
    """The price of a TB of events that one group reads, and that is kept for some hours."""
    processors = (found["produce"] + found["read"]) * 1000 / 3600 * DOLLARS_PER_CPU_HOUR
    return processors + found["stored"] * 1000 * DOLLARS_PER_GB_MONTH * hours / _HOURS_A_MONTH


def make_table(figures: Mapping[str, Any]) -> Iterator[str]:
    """The table of the page: each cell has the compressed cases, weakest first."""
    shown = [case for case in CASES if case != "none"]
    yield f"| {', '.join(shown)} | produce | read | stored | {' | '.join(f'$ a TB, {kept}' for kept in KEPT_HOURS)} |"
    yield f"|{' --- |' * (4 + len(KEPT_HOURS))}"
    for name, found in figures.items():
        each = [found[case] for case in shown]
        cells = [
            _cell(f"{one['produce']:.1f}" for one in each),
            _cell(f"{one['read']:.1f}" for one in each),
            _cell(f"{one['stored']:.1%}" for one in each),
            *(_cell(f"{dollars(one, hours):.2f}" for one in each) for hours in KEPT_HOURS.values()),
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(values: Iterable[str]) -> str:
    return " / ".join(values)
