"""`forebay demo`: the main job, end to end, on local files.

Three processes produce a clickstream into a typed buffer. A runtime lands it in Parquet, is killed without warning, and
another one takes over. Spark reads the buffer's columns straight from the store. The collector deletes what every group
has read, and keeps what the group `audit` has not. The table at the end proves that every event arrived, none was lost
and none came twice.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import NotFound, Unsupported
from forebay.buffer.base.install import install_hint
from forebay.buffer.consumer import Consumer
from forebay.buffer.inspect.describe import describe
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store
from forebay.cli.output import size, write_line, write_note, write_table
from forebay.gc import Collector
from forebay.runtime import Combining, ParquetSink, Runtime, Source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import SpawnProcess
    from multiprocessing.queues import Queue

_PRODUCERS: Final = 3
_CALLS: Final = 400
_EVENTS_PER_CALL: Final = 50
_PAGES: Final = ("/", "/search", "/product", "/cart", "/checkout")
_COLUMNS: Final = pa.schema([("service", pa.int64()), ("number", pa.int64()), ("page", pa.string())])
_AUDITED: Final = 10
"""Number of batches that the group `audit` keeps from being collected."""
_WAIT_SECONDS: Final = 60.0


@click.command(
    epilog="""\
\b
examples:
  forebay demo
  forebay demo --keep           keep the folder, and print commands to look around in it
  forebay demo --no-spark       without Spark, which takes half a minute

If Spark or Java is not installed, the demo says so and does the rest. Exit status: 0 every event arrived once, 1 some
did not, 2 failure."""
)
@click.option("--keep", is_flag=True, help="Keep the folder, and print commands to look around in it.")
@click.option("--no-spark", is_flag=True, help="Leave out Spark.")
def demo(*, keep: bool, no_spark: bool) -> int:
    """Run the whole pipeline: produce, write Parquet through a killed runtime, aggregate with Spark, collect, count."""
    folder = tempfile.mkdtemp(prefix="forebay-demo-")
    try:
        proven = _run(folder, with_spark=not no_spark)
    finally:
        if keep:
            _tell_commands(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    write_line("\nproven: every event arrived once" if proven else "\nFAILED: see the table")
    return 0 if proven else 1


def _tell_commands(folder: str) -> None:
    """Write commands that can be pasted into the shell that the demo was started from."""
    program = sys.argv[0] if shutil.which("forebay") != shutil.which(sys.argv[0]) else "forebay"
    write_line(f"\nkept in {folder}; try:")
    for command in ("stat", "tail -n 3", "groups list", "verify", "manifest dump", "gc --dry-run", "ui"):
        write_line(f"  {shlex.quote(program)} {command} {shlex.quote(f'file://{folder}/clicks')}")


def _produce_clicks(url: str, name: int, done: Queue[int]) -> None:
    """One service: sends its clicks and reports how many were durable."""
    clock = SystemClock()
    handles = []
    with Producer(url, schema=_COLUMNS, flush_interval=0.05) as producer:
        for call in range(_CALLS):
            first = call * _EVENTS_PER_CALL
            events = [
                {"service": name, "number": n, "page": _PAGES[n % len(_PAGES)]}
                for n in range(first, first + _EVENTS_PER_CALL)
            ]
            handles.append(producer.produce(events, metadata=f"service={name}".encode()))
            clock.sleep(0.005)  # a service has other things to do
    for handle in handles:
        handle.result(timeout=_WAIT_SECONDS)
    done.put(len(handles) * _EVENTS_PER_CALL)


def _land(url: str, lake: str, *, until_caught_up: bool) -> int:
    """Copy the clicks into Parquet files, and return how many this process has copied."""
    with ParquetSink(f"file://{lake}", combining=Combining(target_bytes=1 << 20, max_seconds=0.5)) as sink:
        # The first one was killed: nobody else reads this group, so the second one need not wait.
        runtime = Runtime([Source(url, group="lake", takeover=True)], sink)
        return runtime.run(until_caught_up=until_caught_up, show_progress=False).rows


@dataclass(frozen=True)
class _Count:
    """What arrived somewhere."""

    where: str
    rows: int
    distinct: int

    def row(self, produced: int) -> tuple[str, ...]:
        lost, doubled = produced - self.distinct, self.rows - self.distinct
        return self.where, f"{self.rows:,}", str(lost), str(doubled)


def _count_parquet(lake: str) -> _Count:
    clicks = pq.read_table(lake, columns=["service", "number"])
    return _Count("in Parquet", clicks.num_rows, clicks.group_by(["service", "number"]).aggregate([]).num_rows)


def _why_no_spark() -> str:
    """Return why Spark cannot be used here; empty if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return f"Spark is not installed: {install_hint('spark', 'java')}"
    from forebay.runtime.spark import ensure_java  # noqa: PLC0415

    try:
        ensure_java()
    except Unsupported as error:
        return str(error)
    return ""


@contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Have what this process starts meanwhile write its log into a file, and not between our lines."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(path, "ab") as log:  # noqa: PTH123
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _count_by_spark(url: str, log: str) -> _Count:
    """Aggregate the clicks where they are: no copy, no jar, no listing."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (the other parts run without Spark)
    from pyspark.sql.functions import count, countDistinct  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that forebay is installed in
    builder = SparkSession.builder.master("local[2]").appName("forebay demo").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    try:
        with _stderr_to(log):  # which the JVM keeps for as long as it runs
            spark = builder.getOrCreate()
    except Exception:
        write_note(Path(log).read_text(errors="replace")[-2000:])
        raise
    try:
        # A hold would keep what Spark reads from being swept, and for minutes after; here nobody sweeps meanwhile.
        reader = spark.read.format("forebay").option("holdSeconds", 0)
        clicks = reader.schema("service bigint, number bigint, page string").load(url).cache()
        views = clicks.groupBy("page").agg(count("*").alias("views")).orderBy("page").collect()
        _say("Spark", ", ".join(f"{row['page']} {row['views']:,}" for row in views))
        found = clicks.agg(count("*").alias("rows"), countDistinct("service", "number").alias("distinct")).collect()[0]
        return _Count("seen by Spark", found["rows"], found["distinct"])
    finally:
        spark.stop()


def _run(folder: str, *, with_spark: bool) -> bool:
    url, lake = f"file://{folder}/clicks", f"{folder}/lake"
    clock = SystemClock()
    _say("buffer", url)
    began = clock.monotonic()
    context = multiprocessing.get_context("spawn")
    done: Queue[int] = context.Queue()
    services = [context.Process(target=_produce_clicks, args=(url, name, done)) for name in range(_PRODUCERS)]
    first = context.Process(target=_land, args=(url, lake), kwargs={"until_caught_up": False})
    for service in services:
        service.start()
    try:
        _wait_until_written(url, clock)
        first.start()
        landed = _wait_for_files(lake, first, clock)
        first.kill()
        first.join()
        _say("killed", f"the first runtime, in the middle of its work: {counted(landed, 'file')} written")
        _wait_for(services, url, clock)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
    if any(service.exitcode for service in services):
        write_note("failed      a producer did not get through; its error is above")
        return False
    produced = sum(done.get(timeout=_WAIT_SECONDS) for _ in services)
    seconds = clock.monotonic() - began
    rate = f"{produced / seconds:,.0f} events/s, paced like services"
    _say("produced", f"{counted(produced, 'event')}, durable, by {_PRODUCERS} processes in {seconds:.1f} s ({rate})")

    # A second reader, of the newest batches, that reads nothing so far.
    Consumer(url, group="audit", from_=max(0, describe(open_store(url)).next_sequence - _AUDITED)).close()
    began = clock.monotonic()
    rows = _land(url, lake, until_caught_up=True)
    rate = f"{rows / (clock.monotonic() - began):,.0f} rows/s"
    _say(
        "took over",
        f"a second runtime landed {counted(rows, 'row')} ({rate}), including those that the first had started",
    )
    counts = [_count_parquet(lake)]
    if with_spark and (missing := _why_no_spark()):
        _say("no Spark", f"{missing}. The demo continues without it")
    elif with_spark:
        _say("Spark", "starts, which may take half a minute …")
        counts.append(_count_by_spark(url, f"{folder}/spark.log"))
    report = Collector(url, grace=0.1).collect_once()
    left = describe(open_store(url))
    _say(
        "collected",
        f"{counted(report.deleted, 'object')} that every group has read; "
        f"{counted(left.batches, 'batch')} ({size(left.stored_bytes)}) are "
        "left for the group audit, which has read nothing yet",
    )
    write_line("")
    rows_shown = [("produced", f"{produced:,}", "-", "-"), *(found.row(produced) for found in counts)]
    write_table(("", "events", "lost", "doubled"), rows_shown)
    return all(found.rows == found.distinct == produced for found in counts)


def _wait_until_written(url: str, clock: SystemClock) -> None:
    """Wait for the first batch: a runtime would wait too, and warn that nothing was written yet."""
    deadline = clock.monotonic() + _WAIT_SECONDS
    while clock.monotonic() < deadline:
        with suppress(NotFound):
            if describe(open_store(url)).next_sequence:
                return
        clock.sleep(0.05)
    raise click.ClickException("the producers of the demo wrote nothing: see their errors above")


def _wait_for_files(lake: str, runtime: SpawnProcess, clock: SystemClock) -> int:
    """Return how many files there are once there are some."""
    deadline = clock.monotonic() + _WAIT_SECONDS
    while clock.monotonic() < deadline and runtime.is_alive():
        if files := len(list(Path(lake).glob("*.parquet"))):
            return files
        clock.sleep(0.05)
    raise click.ClickException("the first runtime of the demo wrote nothing: see its error above")


def _wait_for(services: list[SpawnProcess], url: str, clock: SystemClock) -> None:
    """Wait for the producers, and show a terminal how it goes."""
    shows = sys.stderr.isatty()
    total = _PRODUCERS * _CALLS * _EVENTS_PER_CALL
    while any(service.is_alive() for service in services):
        if shows:
            found = describe(open_store(url))
            click.echo(f"\rproducing   {found.entries or 0:,} of {total:,} events \033[K", nl=False, err=True)
        clock.sleep(0.2)
    if shows:
        click.echo("\r\033[K", nl=False, err=True)


def _say(what: str, how: str) -> None:
    write_line(f"{what:11} {how}")
