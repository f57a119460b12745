"""The tables of docs/scale.md, from what `scale` measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sizing
from sizing import Measured, Plan, Stream, choose, plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STREAMS = ((10e6, 20), (1e9, 200), (100e9, 4000))
"""Bytes a second, and producers."""


def make_tables(figures: Mapping[str, Any]) -> str:
    """The tables of the page, from what was measured."""
    measured = measured_of(figures)
    parts = (
        _by_interval(Stream(1e9, 200, measured)),
        _by_stream(measured),
        _by_fleet(figures["contention"]),
        _checks(figures),
        _against_others(Stream(1e9, 200, measured)),
    )
    return "\n\n".join("\n".join(part) for part in parts)


def measured_of(figures: Mapping[str, Any], shape: str = "1 KiB") -> Measured:
    """What streams are planned with: events of one shape."""
    found = figures["processor"][shape]
    return Measured(figures["turns"], found["in"], found["out"], found["smaller"])


def _by_interval(stream: Stream) -> Iterator[str]:
    chosen = choose(stream)
    yield f"### {rate_text(stream.rate)} from {stream.producers} services"
    yield ""
    heads = ("flush", "partitions", "a batch", "durable, mean", "durable, p99", "read, mean")
    yield f"| {' | '.join(heads)} | requests, a TB | all, a TB | all, a month |"
    yield f"|{' --- |' * (len(heads) + 3)}"
    for interval in sizing.INTERVALS:
        found = plan(stream, interval)
        cells = (
            f"{found.interval:.3g} s",
            f"{found.partitions}",
            size_text(found.batch),
            seconds_text(found.durable),
            seconds_text(found.durable_p99),
            seconds_text(found.visible),
            f"${found.request_dollars:,.2f}",
            f"${found.dollars:,.2f}",
            f"${dollars_a_month(stream, found):,.0f}",
        )
        yield "| " + " | ".join(f"**{cell}**" if found == chosen else cell for cell in cells) + " |"


def _by_stream(measured: Measured) -> Iterator[str]:
    yield "### From 10 MB/s to 100 GB/s"
    yield ""
    yield "| | " + " | ".join(rate_text(rate) for rate, _ in STREAMS) + " |"
    yield f"|{' --- |' * (1 + len(STREAMS))}"
    streams = [Stream(rate, producers, measured) for rate, producers in STREAMS]
    plans = [choose(stream) for stream in streams]
    pairs = list(zip(streams, plans, strict=True))
    rows = {
        "producers": [f"{stream.producers:,}" for stream in streams],
        "topics, and partitions of each": [f"{found.topics}, {found.partitions}" for found in plans],
        "flush interval": [f"{found.interval:.3g} s" for found in plans],
        "a batch, before compression": [size_text(found.batch) for found in plans],
        "appends a second, one manifest": [f"{found.appends.rate:.1f}" for found in plans],
        "manifest writes for an append": [f"{found.appends.tries:.2f}" for found in plans],
        "durable, mean and p99": [
            f"{seconds_text(found.durable)}, {seconds_text(found.durable_p99)}" for found in plans
        ],
        "read by a group, mean": [seconds_text(found.visible) for found in plans],
        "processors": [f"{found.cores:,.1f}" for found in plans],
        "writes a second, busiest prefix (S3: 3,500)": [f"{of_prefix(found, 'writes'):.0f}" for found in plans],
        "reads a second, busiest prefix (S3: 5,500)": [f"{of_prefix(found, 'reads'):.0f}" for found in plans],
        "requests, a TB": [f"${found.request_dollars:,.2f}" for found in plans],
        "storage for a day, a TB": [f"${found.storage_dollars:,.2f}" for found in plans],
        "processors, a TB": [f"${found.core_dollars:,.2f}" for found in plans],
        "between zones, a TB": ["$0"] * len(plans),
        "all, a month": [f"${dollars_a_month(*pair):,.0f}" for pair in pairs],
    }
    for name, cells in rows.items():
        yield f"| {name} | {' | '.join(cells)} |"


def _by_fleet(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "### One manifest: predicted and measured"
    yield ""
    heads = ("producers", "an append every", "appends a second", "error", "writes for each", "an append takes", "p99")
    yield f"| {' | '.join(heads)} | give up |"
    yield f"|{' --- |' * (len(heads) + 1)}"
    for cell in cells:
        expected, found = cell["predicted"], cell["measured"]
        both = [f"{expected[fact]:.1f}, {found[fact]:.1f}" for fact in ("rate", "tries")]
        times = [f"{seconds_text(expected[fact])}, {seconds_text(found[fact])}" for fact in ("seconds", "seconds_p99")]
        error = expected["rate"] / found["rate"] - 1
        uneven = " (uneven answers)" if cell["spread"] else ""
        failed = f"{expected['failed']:.1%}, {found['failed']:.1%}"
        yield (
            f"| {cell['producers']} | {cell['interval']:g} s{uneven} | {both[0]} | {error:+.0%} | {both[1]} | "
            f"{times[0]} | {times[1]} | {failed} |"
        )


def _checks(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "### What else was checked"
    yield ""
    yield "| | predicted | measured | error |"
    yield "| --- | --- | --- | --- |"
    for kind, name in (("requests", "requests a batch"), ("latency", "seconds to durable")):
        for found in figures[kind]:
            error = found["predicted"] / found["measured"] - 1
            yield f"| {name}: {found['what']} | {found['predicted']:.3g} | {found['measured']:.3g} | {error:+.0%} |"


PUBLISHED = (
    (
        "AutoMQ, Kafka on S3, without its licence",
        1.074e9,
        12_899,
        "AutoMQ's documentation, no year given, 1 GiB/s in and out",
    ),
    ("Kafka of three zones, as AutoMQ reckons", 1.074e9, 226_671, "the same page"),
    ("Kafka with diskless topics", 1.074e9, 288_000 / 12, "Aiven's benchmark of KIP-1150, 2025, 1 GiB/s in, 3 out"),
    ("Kafka of three zones, as Aiven reckons", 1.074e9, 3_320_000 / 12, "the same page"),
    ("Confluent Freight", 0.5e9, 2_149_091 / 12, "topicpartition.io, 2025, 0.5 GB/s in, 1.5 out, 7 days"),
    ("Kafka of one's own, well tuned", 0.5e9, 1_056_048 / 12, "the same page: tiered storage, fetch from follower"),
)
"""What, bytes a second as the brokers see them, dollars a month, and who says so. Nobody's invoice: CHECK THEM."""


def _against_others(stream: Stream) -> Iterator[str]:
    found, smaller = choose(stream), stream.measured.smaller
    copies = (2 + 2 / 3) * sizing.DOLLARS_PER_GB_BETWEEN_ZONES * 1000
    disks = 3 * 1000 * stream.retention / sizing.MONTH * sizing.DOLLARS_PER_GB_MONTH_OF_DISK / BUSY_DISK
    yield "### Against others, for each TB on the wire"
    yield ""
    yield "| | dollars a TB | of which | source |"
    yield "| --- | --- | --- | --- |"
    for each in dict.fromkeys((found, plan(stream, 10.0))):
        bucket = (each.request_dollars + each.storage_dollars) * smaller
        yield (
            f"| forebay, the bucket, flushed every {each.interval:.3g} s | ${bucket:,.2f} | requests "
            f"${each.request_dollars * smaller:,.2f}, storage of a day ${each.storage_dollars * smaller:,.2f} | the "
            f"model, {rate_text(stream.rate)} before compression, {stream.producers} producers |"
        )
    yield (
        f"| forebay, processors of producers and one group | ${found.core_dollars * smaller:,.2f} | encoding, zstd, "
        "client, decoding | measured; others leave their clients' out |"
    )
    yield (
        f"| Kafka of one's own, without its brokers | ${copies + disks:,.2f} | between zones ${copies:,.2f}, disks of "
        f"a day ${disks:,.2f} | prices in benchmarks/sizing.py: 3 copies, 3 zones, disks half full |"
    )
    for name, rate, month, source in PUBLISHED:
        a_terabyte = month / (rate * sizing.MONTH / sizing.TERABYTE)
        yield f"| {name} | ${a_terabyte:,.2f} | ${month:,.0f} a month | {source} |"


BUSY_DISK = 0.5
"""How full one lets a disk get. A guess."""


def dollars_a_month(stream: Stream, found: Plan) -> float:
    return found.dollars * stream.rate * sizing.MONTH / sizing.TERABYTE


def of_prefix(found: Plan, kind: str) -> float:
    """Requests a second below one partition's folder."""
    return float(getattr(found.requests, kind)) * found.batches_a_second / found.topics / found.partitions


def rate_text(rate: float) -> str:
    return f"{rate / 1e9:g} GB/s" if rate >= 1e9 else f"{rate / 1e6:g} MB/s"


def size_text(size: float) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def seconds_text(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
