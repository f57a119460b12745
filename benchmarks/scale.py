"""How many appends a second does one manifest take, and what does a stream of any size need and cost by that?

A model (`contention.py`) predicts what a manifest does for its producers. Here it is checked against the real code in
simulated time, against what `cost` counted and against the times that `produce` took. What a gigabyte takes of a
processor is measured on a real S3 server. From that follow partitions, flush interval, latency and dollars.

    python benchmarks scale                                        measure; results go to benchmarks/results/scale.json
    python benchmarks/scale.py --write                             write the tables of docs/ from those results
    python benchmarks/scale.py --rate 1e9 --producers 200          what a stream of yours needs
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sizing
from contention import Store, measure, predict
from cost import put_tables
from scale_tables import (
    dollars_a_month,
    make_comparison,
    make_tables,
    measured_of,
    of_prefix,
    rate_text,
    seconds_text,
    size_text,
)
from sizing import Plan, Stream, choose, plan, predict_requests

from forebay import Producer
from forebay.buffer import TopicProducer, create_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness import Bench

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE / "results" / "scale.json"
PAGE = _HERE.parent / "docs" / "settings.md"
KAFKA_PAGE = _HERE.parent / "docs" / "coming-from-kafka.md"
BEGIN = "<!-- from benchmarks/scale.py -->"


# Measuring


def run(bench: Bench) -> None:
    figures: dict[str, Any] = {"contention": _check_contention(bench), "turns": _measure_turns(bench)}
    figures["requests"] = list(_check_requests())
    figures["latency"] = list(_check_latency())
    figures["processor"] = _measure_processor(bench)
    bench.figures = figures
    for kind, name in (("requests", "requests a batch, of `cost`"), ("latency", "time to durable, of `produce`")):
        for found in figures[kind]:
            bench.note(f"{name}, {found['what']}: predicted {found['predicted']:.3g}, measured {found['measured']:.3g}")
    bench.note(
        f"a topic's producer makes {figures['turns']:.2f} batches in each flush interval, where a buffer's makes 1"
    )


def _check_contention(bench: Bench) -> list[dict[str, Any]]:
    fleets = [(1, 0.1, 0.0), (4, 1.0, 0.0), (16, 1.0, 0.0)]
    if not bench.quick:
        fleets += [(4, 0.1, 0.0), (16, 0.1, 0.0), (16, 10.0, 0.0), (64, 10.0, 0.0), (64, 1.0, 0.0), (64, 1.0, 0.5)]
        fleets += [(200, 30.0, 0.0), (200, 1.0, 0.0), (300, 60.0, 0.0)]
    cells = []
    for producers, interval, spread in fleets:
        bench.progress(f"{producers} producers, an append every {interval:g} s")
        found = measure(
            producers, interval, sizing.S3, seconds=15 if bench.quick else max(60, 6 * interval), spread=spread
        )
        expected = predict(producers, interval, sizing.S3)
        cells.append(
            {
                "producers": producers, "interval": interval, "spread": spread,
                "predicted": asdict(expected), "measured": asdict(found),
            }
        )  # fmt: skip
        uneven = ", uneven answers" if spread else ""
        name = f"{producers} producers, every {interval:g} s{uneven}"
        bench.record(name, {"predicted": [1 / expected.rate], "measured": [1 / found.rate]}, ceiling="predicted")
        agreed = min(expected.rate, found.rate) / max(expected.rate, found.rate)
        if not spread:
            bench.require(
                f"{name}: the model's appends a second and the real code's, of one another", agreed, least=0.85
            )
    return cells


def _measure_turns(bench: Bench) -> float:
    """How many batches a topic's producer makes in each interval, going from partition to partition."""
    bench.progress("a topic's producer")
    interval, intervals, store = 0.2, 10 if bench.quick else 40, MemoryStore("memory://scale-topic")
    create_topic(store, partitions=4)
    with TopicProducer(store, flush_interval=interval) as producer:
        until = time.monotonic() + intervals * interval
        while time.monotonic() < until:
            producer.produce(b"event")
            time.sleep(interval / 20)
    return sum(found.key.endswith(".batch") for found in store.list()) / intervals


def _check_requests() -> Iterator[dict[str, Any]]:
    """The requests that `cost` counted, beside those that are predicted for the same fleets."""
    path = RESULTS.with_name("cost.json")
    for cell in json.loads(path.read_text())["figures"]["cells"]:
        expected = predict_requests(cell["producers"], cell["interval"], Store(0.05, 0.05))
        batches = cell["batches"]
        counted = (cell["writers"], cell["reader"])
        writes = sum(kinds.get(kind, 0) for kinds in counted for kind in ("put", "create", "replace")) / batches
        reads = sum(kinds.get(kind, 0) for kinds in counted for kind in ("get", "get_if_changed")) / batches
        fleet = f"{cell['producers']} producers, every {cell['interval']:g} s"
        yield {"what": f"{fleet}, writes", "predicted": expected.writes, "measured": writes}
        yield {"what": f"{fleet}, reads", "predicted": expected.reads, "measured": reads}


def _check_latency() -> Iterator[dict[str, Any]]:
    """The times to durable that `produce` took, beside those predicted from its interval and its round trips."""
    rows = json.loads(RESULTS.with_name("produce.json").read_text())["rows"]
    found = {(row["group"], row["case"]): row["seconds"][0] for row in rows if row["group"].startswith("time to")}
    for group in dict.fromkeys(group for group, _ in found):
        interval = 0.1
        trips = found[group, "interval + 2 round trips"] - interval
        where = group.partition(", ")[2]
        yield {"what": f"{where}, median", "predicted": interval / 2 + trips, "measured": found[group, "p50"]}
        yield {"what": f"{where}, p99", "predicted": interval + trips, "measured": found[group, "p99"]}


def _measure_processor(bench: Bench) -> dict[str, dict[str, float]]:
    """Processor seconds for each GB, in and out, and how small it gets, with the S3 client that takes least."""
    from places import events, open_places  # noqa: PLC0415  (planning a stream needs no server)

    found = {}
    with open_places() as places:
        place = next(place for place in places if place.name == "S3 by obstore")
        for length, name in ((1024, "1 KiB"), (100, "100 B")):
            bench.progress(f"processor seconds a GB, {name}")
            entries = events(length, 16 << 20)
            rounds = [
                _once_through(place.open(f"scale-{next(_numbers)}"), entries, bench)
                for _ in range(1 + 2 * (not bench.quick))
            ]
            found[name] = {fact: min(each[fact] for each in rounds) for fact in rounds[0]}
            shown = ", ".join(f"{fact} {value:.2f}" for fact, value in found[name].items())
            bench.note(f"processor seconds a GB and how many times smaller, {name}: {shown}")
    return found


_numbers = count()


def _once_through(store: Any, entries: Sequence[bytes], bench: Bench) -> dict[str, float]:
    calls = [entries[i : i + 1000] for i in range(0, len(entries), 1000)]
    repeats = 2 if bench.quick else 16
    total = repeats * sum(map(len, entries))
    began = time.process_time()
    with Producer(store) as producer:
        for _ in range(repeats):
            for call in calls:
                producer.produce(call)
    produced = time.process_time()
    queue, fetch = Queue(store), FetchHandle(store)
    listed = queue.descriptors(0, queue.read().count)
    rows = sum(len(fetch.fetch(descriptor).arrow) for descriptor in listed)
    consumed = time.process_time()
    assert rows == repeats * len(entries), "not everything came back"
    stored = sum(found.size for found in store.list("data/"))
    return {
        "in": (produced - began) * 1e9 / total,
        "out": (consumed - produced) * 1e9 / total,
        "smaller": total / stored,
    }


# The command


def describe(stream: Stream, found: Plan) -> str:
    """The answer to: what does this stream need, what does it cost, and how long does it take?"""
    fleet = f"{found.topics} topics of {found.partitions}" if found.topics > 1 else f"{found.partitions}"
    appends, writes, reads = found.appends, of_prefix(found, "writes"), of_prefix(found, "reads")
    facts = {
        "partitions": f"{fleet}; {appends.rate:.1f} appends a second each, {appends.tries:.2f} writes for an append",
        "flush interval": f"{found.interval:.3g} s: batches of {size_text(found.batch)} before compression",
        "durable after": f"{seconds_text(found.durable)} on average, {seconds_text(found.durable_p99)} at p99",
        "read after": f"{seconds_text(found.visible)} on average",
        "processors": f"{found.cores:.1f}, half busy; {size_text(stream.rate / stream.producers)}/s for each producer",
        "busiest prefix": f"{writes:.0f} writes and {reads:.0f} reads a second, of S3's "
        f"{sizing.S3_WRITES_A_SECOND:,} and {sizing.S3_READS_A_SECOND:,}",
        "for each TB": f"${found.dollars:,.2f}: requests ${found.request_dollars:,.2f}, storage "
        f"${found.storage_dollars:,.2f}, processors ${found.core_dollars:,.2f}, between zones $0",
        "a month": f"${dollars_a_month(stream, found):,.0f} for {stream.rate * sizing.MONTH / sizing.TERABYTE:,.0f} TB",
    }
    head = f"{rate_text(stream.rate)} before compression, {stream.producers} producers, {stream.groups} groups"
    return "\n".join([head, *(f"  {name:<15} {text}" for name, text in facts.items())])


_EXAMPLES = """\
examples:
  python benchmarks/scale.py --rate 1e9 --producers 200                   1 GB/s from 200 services, all chosen for you
  python benchmarks/scale.py --rate 1e9 --producers 200 --interval 1      readable sooner
  python benchmarks/scale.py --rate 5e7 --producers 40 --put 0.02 --get 0.01 --groups 3 --retention-hours 72
  python benchmarks/scale.py --write                                      the tables of docs/, from the results
"""


def main() -> int:
    figures = json.loads(RESULTS.read_text())["figures"]
    parser = argparse.ArgumentParser(
        prog="python benchmarks/scale.py",
        description="What a stream needs, what it costs and how long it takes; docs/settings.md explains it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shapes = list(figures["processor"])
    parser.add_argument("--rate", type=float, default=1e9, help="bytes a second before compression")
    parser.add_argument("--producers", type=int, default=200, help="how many there are (processes, not threads)")
    parser.add_argument("--interval", type=float, help="seconds between flushes; by default chosen by its cost")
    parser.add_argument("--groups", type=int, default=1, help="that read all of it")
    parser.add_argument("--retention-hours", type=float, default=24.0, help="until the collector takes it")
    parser.add_argument("--put", type=float, default=sizing.S3.put, help="seconds that a small PUT takes")
    parser.add_argument("--get", type=float, default=sizing.S3.get, help="seconds that a small GET takes")
    parser.add_argument("--entries", choices=shapes, default=shapes[0], help="how long they are; as was measured")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the tables of docs/settings.md and docs/coming-from-kafka.md instead",
    )
    options = parser.parse_args()
    if min(options.rate, options.producers, options.interval or 1, options.put, options.get) <= 0:
        parser.error("rates, counts and times must be above 0")
    if options.write:
        PAGE.write_text(put_tables(PAGE.read_text(), make_tables(figures), BEGIN))
        KAFKA_PAGE.write_text(put_tables(KAFKA_PAGE.read_text(), make_comparison(figures), BEGIN))
        return 0
    stream = Stream(
        options.rate,
        options.producers,
        measured_of(figures, options.entries),
        options.groups,
        options.retention_hours * 3600,
        Store(options.put, options.get),
    )
    print(describe(stream, choose(stream) if options.interval is None else plan(stream, options.interval)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
