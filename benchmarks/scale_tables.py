"""The tables of docs/settings.md and docs/coming-from-kafka.md, from what `scale` measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sizing
from sizing import Measured, Plan, Stream, choose, plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STREAMS = ((10e6, 20), (1e9, 200), (100e9, 4000))
"""Bytes a second, and producers."""


def make_tables(figures: Mapping[str, Any]) -> str:
    """The tables of docs/settings.md."""
    measured = measured_of(figures)
    parts = (_by_interval(Stream(1e9, 200, measured)), _by_stream(measured), _by_fleet(figures["contention"]))
    return "\n\n".join("\n".join(part) for part in parts)


def make_comparison(figures: Mapping[str, Any]) -> str:
    """The table of docs/coming-from-kafka.md: what a TB costs here and elsewhere."""
    return "\n".join(_against_others(Stream(1e9, 200, measured_of(figures))))


def measured_of(figures: Mapping[str, Any], shape: str = "1 KiB") -> Measured:
    """What streams are planned with: events of one shape."""
    found = figures["processor"][shape]
    return Measured(figures["turns"], found["in"], found["out"], found["smaller"])


def _by_interval(stream: Stream) -> Iterator[str]:
    chosen = choose(stream)
    yield f"### {rate_text(stream.rate)} from {stream.producers} services"
    yield ""
    heads = ("`flush_interval`", "partitions", "batch", "durable, mean", "durable, p99", "read, mean")
    yield f"| {' | '.join(heads)} | requests per TB | total per TB | total per month |"
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
        "topics, and partitions of each topic": [f"{found.topics}, {found.partitions}" for found in plans],
        "`flush_interval`": [f"{found.interval:.3g} s" for found in plans],
        "batch, before compression": [size_text(found.batch) for found in plans],
        "appends per second to one manifest": [f"{found.appends.rate:.1f}" for found in plans],
        "manifest writes per append": [f"{found.appends.tries:.2f}" for found in plans],
        "durable, mean and p99": [
            f"{seconds_text(found.durable)}, {seconds_text(found.durable_p99)}" for found in plans
        ],
        "read by a group, mean": [seconds_text(found.visible) for found in plans],
        "processor cores to plan, at 50 % load": [f"{found.cores:,.1f}" for found in plans],
        "writes per second to one prefix (S3 allows 3,500)": [f"{of_prefix(found, 'writes'):.0f}" for found in plans],
        "reads per second from one prefix (S3 allows 5,500)": [f"{of_prefix(found, 'reads'):.0f}" for found in plans],
        "requests, per TB": [f"${found.request_dollars:,.2f}" for found in plans],
        "storage for a day, per TB": [f"${found.storage_dollars:,.2f}" for found in plans],
        "processors, per TB": [f"${found.core_dollars:,.2f}" for found in plans],
        "traffic between zones, per TB": ["$0"] * len(plans),
        "total, per month": [f"${dollars_a_month(*pair):,.0f}" for pair in pairs],
    }
    for name, cells in rows.items():
        yield f"| {name} | {' | '.join(cells)} |"


def _by_fleet(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "### One manifest: predicted and measured"
    yield ""
    heads = ("producers", "something to append every", "appends per second", "error", "writes per append")
    yield f"| {' | '.join(heads)} | an append takes | p99 | fail |"
    yield f"|{' --- |' * (len(heads) + 3)}"
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


PUBLISHED = (
    (
        "AutoMQ, Kafka on S3, without its licence",
        1.074e9,
        12_899,
        "AutoMQ's documentation, no year given, 1 GiB/s in and out",
    ),
    ("Kafka in three zones, as AutoMQ calculates", 1.074e9, 226_671, "the same page"),
    ("Kafka with diskless topics", 1.074e9, 288_000 / 12, "Aiven's benchmark of KIP-1150, 2025, 1 GiB/s in, 3 out"),
    ("Kafka in three zones, as Aiven calculates", 1.074e9, 3_320_000 / 12, "the same page"),
    ("Confluent Freight", 0.5e9, 2_149_091 / 12, "topicpartition.io, 2025, 0.5 GB/s in, 1.5 out, 7 days"),
    ("Kafka run by yourself, well tuned", 0.5e9, 1_056_048 / 12, "the same page: tiered storage, fetch from follower"),
)
"""What, bytes a second as the brokers see them, dollars a month, and who says so. Nobody's invoice: CHECK THEM."""


def _against_others(stream: Stream) -> Iterator[str]:
    found, smaller = choose(stream), stream.measured.smaller
    copies = (2 + 2 / 3) * sizing.DOLLARS_PER_GB_BETWEEN_ZONES * 1000
    disks = 3 * 1000 * stream.retention / sizing.MONTH * sizing.DOLLARS_PER_GB_MONTH_OF_DISK / BUSY_DISK
    yield "| | dollars per TB | of which | source |"
    yield "| --- | --- | --- | --- |"
    for each in dict.fromkeys((found, plan(stream, 10.0))):
        bucket = (each.request_dollars + each.storage_dollars) * smaller
        yield (
            f"| forebay: the bucket, with `flush_interval={each.interval:.3g}` | ${bucket:,.2f} | requests "
            f"${each.request_dollars * smaller:,.2f}, storage for a day ${each.storage_dollars * smaller:,.2f} | the "
            f"model, {rate_text(stream.rate)} before compression, {stream.producers} producers |"
        )
    yield (
        f"| forebay: processor time of producers and one group | ${found.core_dollars * smaller:,.2f} | encoding, "
        "zstd, client, decoding | measured; add it to the rows above. Other rows do not count the clients' processors |"
    )
    yield (
        f"| Kafka run by yourself, broker machines not counted | ${copies + disks:,.2f} | between zones "
        f"${copies:,.2f}, disks for a day ${disks:,.2f} | "
        "prices in benchmarks/sizing.py: 3 copies, 3 zones, disks half full |"
    )
    for name, rate, month, source in PUBLISHED:
        a_terabyte = month / (rate * sizing.MONTH / sizing.TERABYTE)
        yield f"| {name} | ${a_terabyte:,.2f} | ${month:,.0f} per month | {source} |"


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
