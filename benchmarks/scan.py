"""How near does a scan come to a consumer with workers, and DuckDB over a scan to DuckDB over the same files?

Processor time of all threads, on files. Events are those of benchmarks/typed.py.

- *To Arrow*: every batch to Arrow. The ceiling is a consumer whose descriptors four workers fetch.
- *DuckDB*: `count(*)` and `sum` of one column over a typed buffer. The ceiling gives DuckDB the same files, of which it
  reads the pages of that column only. The scan names the column too, but compares the checksum of each object, so it
  reads all of it. *Whole files by pyarrow* is the least that this takes: get, checksum, decode one column. RFC 0010
  says what reading only that column would save, and why it is not done.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from typed import Events

from forebay import Consumer, Producer, scan
from forebay.buffer.format.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Bench

    from forebay import Batch

_WORKERS = 4


def run(bench: Bench) -> None:
    batches = 4 if bench.quick else 32
    rows = Events(300, (1 if bench.quick else 16) << 20)
    with tempfile.TemporaryDirectory() as folder:
        forms: dict[str, tuple[Any, dict[str, Any], Callable[[Batch], object]]] = {
            "bytes": (rows.documents, {}, lambda batch: batch.arrow),
            "typed": (rows.table, {"schema": rows.schema}, lambda batch: batch.table),
        }
        for form, (given, settings, use) in forms.items():
            url = f"file://{folder}/{form}"
            with Producer(url, **settings) as producer:
                for _ in range(batches):
                    producer.produce(given)
                    producer.flush().result()
            _compare_readers(bench, form, url, use, rows.size * batches)
        _compare_duckdb(bench, Path(folder) / "typed", rows.size * batches)


def _compare_readers(bench: Bench, form: str, url: str, use: Callable[[Batch], object], size: int) -> None:
    ceiling = "consumer, 4 workers"
    columns = ["value"] if form == "bytes" else None

    def consume() -> int:
        with ThreadPoolExecutor(_WORKERS) as pool, Consumer(url) as consumer:
            fetch = consumer.fetch_handle().fetch
            return sum(1 for _ in pool.map(lambda found: bool(use(fetch(found))), consumer.next_descriptors(10**6)))

    def read() -> int:
        return sum(1 for _ in scan(url, columns))

    ratios = bench.compare(
        f"{form} to Arrow", {ceiling: consume, "scan": read}, ceiling=ceiling, amount=size, rounds=5, clock="cpu"
    )
    bench.require(f"scan of {form} to Arrow, of the consumer with workers", ratios["scan"], least=0.9)


def _compare_duckdb(bench: Bench, folder: Path, size: int) -> None:
    ceiling, files = "the same files", sorted(map(str, folder.glob("data/*.parquet")))

    def query(source: str, found: object = None) -> tuple[Any, ...]:
        with duckdb.connect() as connection:
            if found is not None:
                connection.register("found", found)
            return connection.sql(f"select count(*), sum(ms) from {source}").fetchall()[0]

    def listed() -> tuple[Any, ...]:
        return query(f"read_parquet({files!r})")

    def scanned() -> tuple[Any, ...]:
        return query("found", scan(f"file://{folder}", ["ms"]))

    def read(file: str) -> pa.Table:
        data = Path(file).read_bytes()
        crc32c(data)
        return pq.read_table(pa.BufferReader(data), columns=["ms"], use_threads=False)

    def read_whole() -> tuple[Any, ...]:
        with ThreadPoolExecutor(_WORKERS) as pool:
            return query("found", pa.concat_tables(pool.map(read, files)))

    assert listed()[0] == scanned()[0] == read_whole()[0]
    cases = {ceiling: listed, "over a scan": scanned, "whole files by pyarrow": read_whole}
    for clock in ("cpu", "wall"):
        ratios = bench.compare(f"DuckDB, {clock}", cases, ceiling=ceiling, amount=size, rounds=7, clock=clock)  # type: ignore[arg-type]
    bench.require("DuckDB count and sum over a scan, of DuckDB over the same files", ratios["over a scan"], least=0.8)
