"""How near does Spark reading a buffer come to the most its bridge to Python allows, and to its own Parquet reader?

One session on two cores, the same events everywhere, and the same columns of them from each source:

- *Arrow from memory*: as many tasks yield the very record batches that the buffer's reader yields, but all of them are
  ready in memory. Nothing is fetched or decoded, only handed over: what Spark's bridge from Python takes, no source can
  save. *After zstd alone*: the same tasks first decompress, with Arrow's zstd, as many frames as the buffer's objects
  hold, since on busy cores that has to be paid for somewhere.
- *forebay*: a buffer of 16-MiB batches in a folder, zstd and not.
- *Parquet*: the same rows as zstd Parquet by Spark's own vectorised reader, in the JVM.
- *tuples*: tasks read the same buffer and yield tuples, as most data sources do, made by Arrow column by column.
- *binaryFile*: the same objects by Spark's source of whole files, decoded by a function over Arrow arrays.

Then a `from_json` aggregate, and how reading scales from one core to two. Last, typed buffers: the same aggregate over

- *JSON bytes*: a buffer of JSON documents, parsed by `from_json`;
- *typed, format*: the same events as rows of a typed buffer, through the format `forebay`, the two columns it needs;
- *typed, read*: the same buffer by `forebay.runtime.spark.read`, Spark's own reader on the listed batches;
- *plain Parquet*: the same rows in as many files written by Spark, listed to its reader with a schema.

Ratios are of processor time, summed over the JVM and every Python process: Spark keeps all cores busy, so that is what
throughput comes down to, and the machine's other work does not count in it. The MB/s beside them are by elapsed time.
A gibibyte is read each time: planning and starting a query cost as much as reading some hundred megabytes does, and
jobs read gigabytes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from harness import Row
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import StructType

from forebay import Producer
from forebay.buffer import decode_batch, read_range
from forebay.buffer.format.batch import make_compressor
from forebay.runtime.spark import ensure_java, read, register
from forebay.runtime.spark.reading.rows import Rows
from forebay.runtime.spark.reading.times import TimeRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness import Bench
    from pyspark.sql import DataFrame

_TASKS = 4
_BATCH_BYTES = 16 << 20
_VALUE = "value binary"
SCHEMA = "sequence bigint, index int, ingestion_time timestamp, metadata binary, value binary"
_SUMS = {
    _VALUE: ("count(*)", "sum(length(value))"),
    SCHEMA: (
        "count(*)",
        "sum(length(value))",
        "sum(sequence)",
        "sum(index)",
        "max(ingestion_time)",
        "sum(length(metadata))",
    ),
}
_MEMORY = "Arrow from memory"
_MEMORY_ZSTD = "Arrow from memory after zstd alone"
_FOREBAY = "forebay"
_UNCOMPRESSED = "forebay, uncompressed"
_PARQUET = "Parquet"
_TUPLES = "tuples"
_BINARY_FILE = "binaryFile"
_JSON = "JSON bytes"
_TYPED = "typed, format"
_READ = "typed, read"
_PLAIN = "plain Parquet"
_COLUMNS = "user bigint, page string, ms bigint, rest string"


def run(bench: Bench) -> None:
    folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    total = (32 << 20) if bench.quick else (1 << 30)
    try:
        with session(2) as spark:
            sources = [_Source(spark, folder, length, total) for length in (1024, 100)]
            for source in sources:
                _compare_sums(bench, source)
            _compare_json(bench, sources[0])
            both = [_median_seconds(bench, source) for source in sources]
            for length in (1024, 300, 100):
                for batch_bytes in (_BATCH_BYTES, 4 * _BATCH_BYTES):
                    _compare_typed(bench, _Typed(spark, folder, length, batch_bytes, total))
        with session(1) as spark:
            for source, seconds in zip(sources, both, strict=True):
                source.spark = spark
                alone = _median_seconds(bench, source)
                name = f"from 1 core to 2, {source.name}"
                bench.record(name, {"1 core": alone, "2 cores": seconds}, ceiling="1 core")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Source:
    """The same events in every form."""

    def __init__(self, spark: SparkSession, folder: Path, length: int, total: int) -> None:
        self.spark = spark
        self.name = "1 KiB" if length == 1024 else f"{length} B"
        self.length = length
        self.batches = total // _BATCH_BYTES
        self.tasks = min(_TASKS, self.batches)
        entries = events(length)
        self.entries = len(entries) * self.batches
        self.bytes = self.entries * length
        self.folder = folder / str(length)
        self.url = f"file://{self.folder}/zstd"
        self.plain_url = f"file://{self.folder}/none"
        for url, compression in ((self.url, "zstd"), (self.plain_url, "none")):
            with Producer(url, compression=compression) as producer:
                for _ in range(self.batches):
                    producer.produce(entries, metadata=b"svc=web")
                    producer.flush().result()
        self.parquet = str(self.folder / "parquet")
        self.forebay(SCHEMA).write.option("compression", "zstd").parquet(self.parquet)

    def forebay(self, schema: str, *, plain: bool = False) -> DataFrame:
        url = self.plain_url if plain else self.url
        return self.spark.read.format("forebay").schema(schema).option("minPartitions", self.tasks).load(url)

    def made(self, kind: str, schema: str) -> DataFrame:
        options = {"kind": kind, "length": self.length, "batches": self.batches, "tasks": self.tasks, "url": self.url}
        return self.spark.read.format("bench").schema(schema).options(**options).load()

    def parquet_rows(self) -> DataFrame:
        return self.spark.read.parquet(self.parquet)

    def binary_files(self) -> DataFrame:
        @arrow_udf("array<binary>")
        def decode(objects: pa.Array) -> pa.Array:
            batches = [decode_batch(found.as_buffer()).arrow for found in objects]
            offsets = pa.array([0, *map(len, batches)]).cast(pa.int32())
            return pa.ListArray.from_arrays(pc.cumulative_sum(offsets), pa.concat_arrays(batches))

        files = self.spark.read.format("binaryFile").load(f"{self.folder}/zstd/data").repartition(self.tasks)
        return (
            files.selectExpr("content").select(decode("content").alias("values")).selectExpr("explode(values) AS value")
        )


def _compare_sums(bench: Bench, source: _Source) -> None:
    for schema, columns in ((_VALUE, "value"), (SCHEMA, "all five columns")):
        cases = {
            _MEMORY: partial(source.made, "memory", schema),
            _MEMORY_ZSTD: partial(source.made, "zstd", schema),
            _FOREBAY: partial(source.forebay, schema),
            _UNCOMPRESSED: partial(source.forebay, schema, plain=True),
            _PARQUET: source.parquet_rows,
            _TUPLES: partial(source.made, "tuples", schema),
        }
        if schema == _VALUE:
            cases[_BINARY_FILE] = source.binary_files
        found = _compare(bench, f"count, sum(length): {columns}, {source.name}", source, cases, _SUMS[schema])
        name = f"{columns}, {source.name}"
        mine = found[_FOREBAY]
        bench.require(f"{name}: zstd, of Arrow from memory after zstd", mine / found[_MEMORY_ZSTD], least=0.9)
        bench.require(f"{name}: uncompressed, of Arrow from memory", found[_UNCOMPRESSED], least=0.9)
        least = 1.0 if source.length == 1024 else 0.45
        bench.require(f"{name}: zstd, of Spark's Parquet reader", mine / found[_PARQUET], least=least)
        bench.require(
            f"{name}: uncompressed, of Spark's Parquet reader", found[_UNCOMPRESSED] / found[_PARQUET], least=least
        )
        bench.require(f"{name}: zstd, times a reader that yields tuples", mine / found[_TUPLES], least=2.5)
        most = found[_MEMORY_ZSTD]
        bench.note(
            f"{name}: the bridge and zstd alone, which no Python source can spare, are {most / found[_PARQUET]:.2f} "
            f"times Spark's Parquet reader and {most / found[_TUPLES]:.2f} times a reader that yields tuples"
        )


def _compare_json(bench: Bench, source: _Source) -> None:
    cases: dict[str, Callable[[], DataFrame]] = {
        _MEMORY: partial(source.made, "memory", _VALUE),
        _FOREBAY: partial(source.forebay, _VALUE),
        _PARQUET: source.parquet_rows,
    }

    def aggregate(frame: Callable[[], DataFrame]) -> None:
        parsed = frame().selectExpr("from_json(string(value), 'page string, ms int') AS event")
        parsed.groupBy("event.page").agg({"event.ms": "avg"}).collect()

    group = f"from_json, then an average by page, {source.name}"
    take_turns(bench, group, source.bytes, {name: partial(aggregate, frame) for name, frame in cases.items()}, _MEMORY)


def _compare_typed(bench: Bench, source: _Typed) -> None:
    """The same aggregate over JSON, over a typed buffer in two ways, and over plain Parquet files."""
    spark = source.spark
    average = {"ms": "avg"}

    def parse() -> DataFrame:
        rows = source.load(source.json_url, _VALUE).selectExpr("from_json(string(value), 'page string, ms long') AS e")
        return rows.groupBy("e.page").agg({"e.ms": "avg"})

    cases = {
        _JSON: parse,
        _TYPED: lambda: source.load(source.url, "page string, ms bigint").groupBy("page").agg(average),
        _READ: lambda: read(spark, source.url).groupBy("page").agg(average),
        _PLAIN: lambda: spark.read.schema(_COLUMNS).parquet(*source.plain).groupBy("page").agg(average),
    }
    wanted = sorted(tuple(row) for row in cases[_JSON]().collect())
    for case in cases.values():
        assert sorted(tuple(row) for row in case().collect()) == wanted
    name = source.name
    ask = {case: partial(lambda make: make().collect(), frame) for case, frame in cases.items()}
    found = take_turns(bench, f"average by page, {name}", source.bytes, ask, _JSON)
    bench.require(f"{name}: typed through the format, times JSON bytes", found[_TYPED], least=6)
    bench.require(f"{name}: typed by read(), times JSON bytes", found[_READ], least=9)
    bench.require(f"{name}: typed by read(), of plain Parquet", found[_READ] / found[_PLAIN], least=0.85)
    bench.note(f"{name}: {source.sizes()}")


class _Typed:
    """The same events as JSON documents, as rows of a typed buffer, and as plain Parquet files."""

    def __init__(self, spark: SparkSession, folder: Path, length: int, batch_bytes: int, total: int) -> None:
        self.spark = spark
        self.name = f"{length} B in batches of {batch_bytes >> 20} MiB"
        self._batches = batches = max(1, total // batch_bytes)
        folder = folder / f"typed-{length}-{batch_bytes}"
        once = events(length)
        entries = (once * (batch_bytes // _BATCH_BYTES))[: batch_bytes // length]
        self.bytes = len(entries) * length * batches
        self.json_url, self.url = f"file://{folder}/json", f"file://{folder}/typed"
        schema = pa.schema([("user", pa.int64()), ("page", pa.string()), ("ms", pa.int64()), ("rest", pa.string())])
        rows = pa.Table.from_pylist([json.loads(entry) for entry in entries], schema=schema)
        for url, values, kept in ((self.json_url, entries, None), (self.url, rows, schema)):
            with Producer(url, schema=kept) as producer:
                for _ in range(batches):
                    producer.produce(values)
                    producer.flush().result()
        plain = folder / "plain"
        read(spark, self.url, hold_for=0).repartition(batches).write.option("compression", "zstd").parquet(str(plain))
        self.plain = sorted(map(str, plain.glob("*.parquet")))
        self._listed = sorted((folder / "typed" / "data").glob("*.parquet"))

    def load(self, url: str, schema: str) -> DataFrame:
        tasks = min(_TASKS, self._batches)
        return self.spark.read.format("forebay").schema(schema).option("minPartitions", tasks).load(url)

    def sizes(self) -> str:
        def mean(paths: Sequence[Path]) -> float:
            return sum(path.stat().st_size for path in paths) / len(paths) / 1e6

        return (
            f"{len(self._listed)} typed batches of {mean(self._listed):.2f} MB, "
            f"{len(self.plain)} plain files of {mean([Path(path) for path in self.plain]):.2f} MB"
        )


def _compare(
    bench: Bench,
    group: str,
    source: _Source,
    frames: dict[str, Callable[[], DataFrame]],
    sums: tuple[str, ...],
    *,
    ceiling: str = _MEMORY,
) -> dict[str, float]:
    def ask(frame: Callable[[], DataFrame]) -> None:
        (row,) = frame().selectExpr(*sums).collect()
        assert tuple(row)[:2] == (source.entries, source.bytes), row

    return take_turns(bench, group, source.bytes, {n: partial(ask, frame) for n, frame in frames.items()}, ceiling)


def take_turns(
    bench: Bench,
    group: str,
    amount: int,
    cases: Mapping[str, Callable[[], object]],
    ceiling: str,
    *,
    unit: str = "MB",
    leave_out: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """Measure the cases in turns, and return each one's speed by processor time, as a share of the ceiling's.

    `amount` is how many units one call handles; unit "MB" takes it in bytes. `leave_out` names, for some cases, a
    process that we started and that the case does not use: its processor time is not counted there.
    """
    unused = leave_out or {}
    bench.progress(group)
    for case in cases.values():
        case()  # compiled, and warm, before anything is measured
    wall: dict[str, list[float]] = {name: [] for name in cases}
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    random = Random(0)
    for _ in range(1 if bench.quick else 3):
        random.shuffle(order)
        for name in order:
            before, began = processes(unused.get(name)), time.perf_counter()
            cases[name]()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(seconds_between(before, processes(unused.get(name))))
    tick = 1 / os.sysconf("SC_CLK_TCK")  # what takes less may be measured as nothing
    best = {name: max(tick, min(seconds)) for name, seconds in cpu.items()}
    ratios = {name: best[ceiling] / seconds for name, seconds in best.items()}
    for name in cases:
        rate = amount / (1e6 if unit == "MB" else 1) / statistics.median(wall[name])
        bench.rows.append(Row(group, name, ratios[name], rate, unit, cpu[name]))
    bench.ceilings[group], bench.clocks[group] = ceiling, "cpu"
    return ratios


@dataclass(frozen=True, slots=True)
class Process:
    parent: int
    own: int
    """Processor time that it has used, in the system's ticks."""
    ended: int
    """The same, of its children that have ended."""


def processes(leave_out: int | None = None) -> dict[int, Process]:
    """This process and all that it started, such as Spark's JVM and its Python processes, but one that is left out."""
    found: dict[int, Process] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        own, system, ended, ended_system = map(int, fields[11:15])
        found[int(path.parent.name)] = Process(int(fields[1]), own + system, ended + ended_system)
    ours = {os.getpid()}
    while more := {number for number, process in found.items() if process.parent in ours} - ours:
        ours |= more
    return {number: found[number] for number in ours if number != leave_out}


def seconds_between(before: Mapping[int, Process], after: Mapping[int, Process]) -> float:
    """What they have used meanwhile. A worker that was idle and ends takes nothing back of what it used before."""
    ticks = 0
    for number, process in after.items():
        known = before.get(number, Process(0, 0, 0))
        gone = [was.own for other, was in before.items() if was.parent == number and other not in after]
        ticks += process.own - known.own + max(0, process.ended - known.ended - sum(gone))
    return ticks / os.sysconf("SC_CLK_TCK")


def _median_seconds(bench: Bench, source: _Source) -> list[float]:
    bench.progress(f"scaling, {source.name}")
    seconds = []
    for _ in range(2 if bench.quick else 5):
        began = time.perf_counter()
        source.forebay(_VALUE).selectExpr(*_SUMS[_VALUE]).collect()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


@contextmanager
def session(cores: int, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """A session on this machine."""
    ensure_java()
    if jars:
        _end_jvm()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # tasks import the sources below
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process of Spark's compiles all of forebay again
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(MadeSource)
    try:
        yield spark
    finally:
        spark.stop()


def _end_jvm() -> None:
    """End the JVM that an earlier session left: jars count only when a JVM starts."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001  (Spark has no other way)
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends when nobody can tell it anything any more
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


class MadeSource(DataSource):
    """Rows made in the task itself, by the ways that readers are compared with."""

    @classmethod
    def name(cls) -> str:
        return "bench"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MadeReader(dict(self.options), schema)


class _MadeReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._kind = options["kind"]
        self._length = int(options["length"])
        self._batches = int(options["batches"])
        self._tasks = int(options["tasks"])
        self._url = options["url"]
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch] | Iterator[tuple[object, ...]]:
        share = self._batches // self._tasks
        first = partition.value * share
        if self._kind == "tuples":
            for batch in read_range(self._url, first, first + share - 1):
                columns = batch.records(columns=self._schema.fieldNames()).columns
                yield from zip(*(column.to_pylist() for column in columns), strict=True)
            return
        frame = _frame(self._length) if self._kind == "zstd" else None
        for slices in _ready(self._url, self._schema.json())[first : first + share]:
            if frame is not None:
                pa.Codec("zstd").decompress(frame, self._length * len(events(self._length)))
            yield from slices


@lru_cache(maxsize=1)
def _ready(url: str, schema: str) -> list[list[pa.RecordBatch]]:
    """Every batch in slices, in memory of its own, as the buffer's reader yields them."""
    rows = Rows(StructType.fromJson(json.loads(schema)), TimeRange())
    return [list(rows.slices(batch, 0)) for batch in read_range(url)]


@cache
def _frame(length: int) -> bytes:
    return make_compressor().compress(b"".join(events(length)))


@cache
def events(length: int) -> list[bytes]:
    """JSON events of `length` bytes each, 16 MiB in all, the same ones every time."""
    random = Random(20)
    return [_event(random, length) for _ in range(_BATCH_BYTES // (length + 4))]


def _event(random: Random, length: int) -> bytes:
    event = {
        "user": random.randrange(50_000),
        "page": f"/p/{random.randrange(900)}",
        "ms": round(random.expovariate(0.02)),
        "rest": "",
    }
    rest = ""
    while len(rest) < length:
        tag = random.choice(["referrer", "campaign", "agent", "region", "trace", "session"])
        rest += f"{tag}={random.choice(['web', 'app', 'mail'])}-{random.getrandbits(32):08x};"
    event["rest"] = rest[: length - len(json.dumps(event))]
    return json.dumps(event).encode()
