"""What does it cost to land events in tables, and how does that grow with the number of commits?

- *Landing*: a backlog of a typed buffer to Parquet and to Iceberg, against pyarrow reading the same Parquet files and
  writing them as one, and against the same events landed from JSON bytes. Processor time of all threads.
- *Commits*: a thousand commits to one Iceberg table in a local catalog (SQLite), one after the other: processor time of
  each. As pyiceberg creates a table; as the sink creates it, with merged manifests; and with snapshots that expire.
- *From produce to a visible row*: a producer that flushes every second, a runtime that commits every second, and a
  thousand commits. A row is visible when its commit is answered.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

from forebay import Consumer, Producer
from forebay.runtime import Combining, IcebergSink, ParquetSink, Runtime, RuntimeConfig, Source
from forebay.runtime.decoders import JsonLines
from forebay.testing.commits import make_batch, make_commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Bench
    from pyiceberg.catalog import Catalog

    from forebay.runtime import Answer, Commit, Decoder, Sink

_ROUNDS = 5
_TABLE = "bench.events"
_SCHEMA = pa.schema(
    [("ts", pa.int64()), ("id", pa.string()), ("user", pa.int64()), ("page", pa.string()), ("ms", pa.float64())]
)
_LATEST = datetime(2999, 1, 1, tzinfo=UTC)
_EXPIRE_EVERY = 100
"""Commits after which a table's old snapshots expire: every 100 minutes at the default of one commit a minute."""
_numbers = count()


def run(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _land(bench, Path(folder))
        _grow(bench, Path(folder))
        _see(bench, Path(folder))


def _open_catalog(folder: Path) -> Catalog:
    place = folder / f"catalog-{next(_numbers)}"
    place.mkdir()
    return load_catalog("default", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/tables")


# Landing


def _land(bench: Bench, folder: Path) -> None:
    random = Random(23)
    rows = [_event(random, number) for number in range(20_000 if bench.quick else 1_000_000)]
    table = pa.Table.from_pylist(rows, _SCHEMA)
    typed, plain = f"file://{folder}/typed", f"file://{folder}/json"
    step = len(rows) // 16
    with Producer(typed, schema=_SCHEMA) as producer:
        for at in range(0, len(rows), step):
            producer.produce(table.slice(at, step))
            producer.flush().wait()
    with Producer(plain) as producer:
        for at in range(0, len(rows), step):
            producer.produce([json.dumps(row).encode() for row in rows[at : at + step]])
            producer.flush().wait()
    with Consumer(typed, group="list") as consumer:
        files = [folder / "typed" / found.location for found in consumer.next_descriptors(1000)]
    parquet: Callable[[], Sink] = lambda: ParquetSink(f"file://{folder}/parquet-{next(_numbers)}")  # noqa: E731
    catalog = _open_catalog(folder)
    iceberg: Callable[[], Sink] = lambda: IcebergSink(catalog, f"{_TABLE}_{next(_numbers)}")  # noqa: E731
    documents = JsonLines(_SCHEMA)
    ratios = bench.compare(
        "land a backlog",
        {
            "pyarrow reads and writes": partial(_copy_files, files, folder),
            "typed to Parquet": partial(_run, typed, parquet),
            "typed to Iceberg": partial(_run, typed, iceberg),
            "JSON to Parquet": partial(_run, plain, parquet, documents),
            "JSON to Iceberg": partial(_run, plain, iceberg, documents),
        },
        ceiling="pyarrow reads and writes",
        amount=len(rows),
        unit="rows",
        rounds=_ROUNDS,
        clock="cpu",
    )
    for kind in ("Parquet", "Iceberg"):
        typed_ratio = ratios[f"typed to {kind}"]
        bench.require(f"typed to {kind}, of pyarrow reading and writing", typed_ratio, least=0.8)
        bench.require(f"typed to {kind}, times JSON to {kind}", typed_ratio / ratios[f"JSON to {kind}"], least=4.0)


def _event(random: Random, number: int) -> dict[str, Any]:
    return {
        "ts": 1_700_000_000_000 + 7 * number,
        "id": f"{random.getrandbits(48):012x}",
        "user": random.randrange(50_000),
        "page": f"/p/{random.randrange(900)}",
        "ms": round(random.expovariate(0.02), 1),
    }


def _copy_files(files: list[Path], folder: Path) -> None:
    rows = pa.concat_tables([pq.read_table(file) for file in files])
    pq.write_table(rows, folder / f"copied-{next(_numbers)}.parquet", compression="zstd")


def _run(source: str, open_sink: Callable[[], Sink], decoder: Decoder | None = None) -> None:
    with open_sink() as sink:
        reader = Source(source, group=f"group-{next(_numbers)}")
        given = {} if decoder is None else {"decoder": decoder}
        Runtime([reader], sink, **given).run(until_caught_up=True, show_progress=False)


# Commits


def _grow(bench: Bench, folder: Path) -> None:
    commits = 30 if bench.quick else 1000
    plain = {"commit.manifest-merge.enabled": "false", "write.metadata.delete-after-commit.enabled": "false"}
    ways = {
        "as pyiceberg creates it": (plain, commits + 1),
        "as the sink creates it": ({}, commits + 1),
        f"snapshots expire every {_EXPIRE_EVERY} commits": ({}, 10 if bench.quick else _EXPIRE_EVERY),
    }
    for way, (properties, expire_every) in ways.items():
        bench.progress(f"commits, {way}")
        seconds = _commit_all(_open_catalog(folder), commits, properties, expire_every)
        tenth = commits // 10
        first, last = statistics.median(seconds[:tenth]), statistics.median(seconds[-tenth:])
        bench.note(
            f"processor time of a commit, {way}: {first * 1000:.0f} ms in the first {tenth}, {last * 1000:.0f} ms in "
            f"the last {tenth} of {commits}"
        )
        bench.figures[f"commit, {way}"] = [
            round(statistics.median(seconds[at : at + tenth]), 4) for at in range(0, commits, tenth)
        ]


def _commit_all(catalog: Catalog, commits: int, properties: dict[str, str], expire_every: int) -> list[float]:
    """Processor time of each commit."""
    sink, seconds = IcebergSink(catalog, _TABLE), []
    for number in range(commits):
        commit = make_commit(make_batch([b"x" * 100] * 100, number))
        before = time.process_time()
        sink.commit(commit)
        seconds.append(time.process_time() - before)
        if number == 0 and properties:
            with catalog.load_table(_TABLE).transaction() as change:
                change.set_properties(properties)
        if number % expire_every == expire_every - 1:
            _expire(catalog)
    return seconds


def _expire(catalog: Catalog) -> None:
    catalog.load_table(_TABLE).maintenance.expire_snapshots().older_than(_LATEST).commit()


# From produce to a visible row


class _Timed(IcebergSink):
    """Notes how old the rows of each commit are when it is answered."""

    ages: list[list[float]]

    def commit(self, commit: Commit) -> Answer:
        answer = super().commit(commit)
        now = time.monotonic()
        self.ages.append([now - at for at in commit.table["at"].to_pylist()])
        return answer


def _see(bench: Bench, folder: Path) -> None:
    commits = 5 if bench.quick else 1000
    bench.progress("from produce to a visible row")
    catalog, source = _open_catalog(folder), f"file://{folder}/seen"
    sink = _Timed(catalog, _TABLE, combining=Combining(128 << 20, max_seconds=1.0))
    sink.ages = []
    runtime = Runtime([Source(source, group="seen")], sink, RuntimeConfig(max_poll_interval=0.2))
    thread = threading.Thread(target=runtime.run, kwargs={"show_progress": False})
    with Producer(source, schema=pa.schema([("at", pa.float64())]), flush_interval=1.0) as producer:
        thread.start()
        expired = 0
        while len(sink.ages) < commits:
            producer.produce(pa.table({"at": [time.monotonic()] * 10}))
            time.sleep(0.1)
            if len(sink.ages) >= expired + _EXPIRE_EVERY:
                _expire(catalog)
                expired += _EXPIRE_EVERY
        runtime.stop()
        thread.join()
    tenth = max(1, commits // 10)
    shown = {"first": sink.ages[:tenth], "last": sink.ages[commits - tenth : commits], "all": sink.ages[:commits]}
    for name, found in shown.items():
        ages = sorted(age for each in found for age in each)
        p50, p95 = ages[len(ages) // 2], ages[len(ages) * 95 // 100]
        bench.note(f"from produce to a visible row, {name} {len(found)} commits: p50 {p50:.2f} s, p95 {p95:.2f} s")
        if name == "all":
            bench.require("seconds to a visible row at p50, 3 s", 3.0 / p50, least=1.0)
            bench.require("seconds to a visible row at p95, 6 s", 6.0 / p95, least=1.0)
