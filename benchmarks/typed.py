"""How near do typed buffers come to pyarrow and the store's client alone when rows are converted, produced and read?

Ratios are of processor time of all threads; on S3 of elapsed time, since a producer waits for the store. An event has
six columns and 100 bytes of JSON, or ten columns and 300 bytes or 1 KiB. They are made from a fixed seed.

- *Converting*: calls to one Arrow table. forebay refuses values that do not fit the schema. The peers do not:
  `Table.from_pylist` drops unknown keys and turns 1.5 into 1, and `pyarrow.json` takes two documents in one entry for
  two rows.
- *Producing*: until every row is durable. The ceilings write the same number of Parquet files, with the same settings
  and number of threads, and put them with the store's client alone. Dicts and JSON are first converted by the peers
  above.
- *Reading*: four workers read a backlog to Arrow. The time includes opening and closing the consumer. The ceiling is a
  get and `read_table` in as many threads. A second case reads two of ten columns.
- *Backlog*: an append and a poll in a buffer with 100 and with 100,000 batches that wait to be read (backlog.py has the
  same for bytes).
- *Memory*: the peak of a whole process that produces into a store whose puts hang, and of one that reads with the
  default read-ahead. Rows are measured beside bytes of the same length. The processes run as if pandas were not
  installed (memory.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from forebay import Consumer, Producer, ProducerLimits, ReadAhead, Timeout, open_store
from forebay.buffer.format.rows import RowConverter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness import Bench
    from places import Place

    from forebay import BatchDescriptor

_ROUNDS = 7
_LENGTHS = {"100 B": 100, "300 B": 300, "1 KiB": 1024}
_ROWS_A_CALL = 1000
_WORKERS = 4
_FLUSH_BYTES = 16 << 20
_PASSES = 4
"""Number of times that the events are produced from Arrow, and read: so that opening and closing count for little."""
_PASSES_ON_S3 = 16
"""The same on S3, where opening and closing take more requests."""
_PATIENT = 3600.0
_PARQUET = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True, "store_schema": False}
_SCHEMA = pa.schema(
    [
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("user", pa.int64()),
        pa.field("event", pa.string()),
        pa.field("page", pa.string()),
        pa.field("ms", pa.float64()),
        pa.field("ok", pa.bool_()),
        pa.field("region", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("agent", pa.string()),
    ]
)
_numbers = count()


def run(bench: Bench) -> None:
    from places import open_places  # noqa: PLC0415  (converting needs none of it)

    events = {shape: Events(length, (1 if bench.quick else 32) << 20) for shape, length in _LENGTHS.items()}
    for shape, given in events.items():
        _convert(bench, shape, given)
    with open_places() as places:
        for shape, given in events.items():
            _produce(bench, shape, given, places[0])
            _read(bench, shape, given, places[0])
        for place in places[1:]:
            for shape in ("100 B", "1 KiB"):
                _on_s3(bench, shape, events[shape], place)
    _wait(bench)
    _memory(bench)


class Events:
    """The same rows in every form."""

    def __init__(self, length: int, size: int) -> None:
        self.schema = pa.schema(list(_SCHEMA)[:6]) if length < 200 else _SCHEMA
        random = Random(20)
        self.rows: list[dict[str, Any]] = []
        self.documents: list[bytes] = []
        self.size = 0
        while self.size < size:
            self.rows.append(_event(random, len(self.rows), self.schema.names, length))
            self.documents.append(_to_json(self.rows[-1]))
            self.size += len(self.documents[-1])
        self.table = pa.Table.from_pylist(self.rows, self.schema)

    def calls(self, form: str) -> list[Any]:
        """Calls of a thousand rows each."""
        starts = range(0, len(self.rows), _ROWS_A_CALL)
        if form == "Arrow":
            return [pa.Table.from_pylist(self.rows[at : at + _ROWS_A_CALL], self.schema) for at in starts]
        given = self.rows if form == "dicts" else self.documents
        return [given[at : at + _ROWS_A_CALL] for at in starts]


def _event(random: Random, number: int, names: list[str], length: int) -> dict[str, Any]:
    row = {
        "ts": 1_700_000_000_000 + 7 * number,
        "id": f"{random.getrandbits(48):012x}",
        "user": random.randrange(50_000),
        "event": random.choice(["view", "click", "buy", "scroll"]),
        "page": f"/p/{random.randrange(900)}",
        "ms": round(random.expovariate(0.02), 1),
        "ok": random.random() < 0.9,
        "region": random.choice(["eu-central-1", "us-east-1", "ap-south-1"]),
        "score": random.random(),
        "agent": "",
    }
    row = {name: row[name] for name in names}
    while "agent" in row and len(_to_json(row)) < length:
        row["agent"] += f"{random.choice(['web', 'app', 'mail', 'campaign'])}-{random.getrandbits(24):06x} "
    return row


def _to_json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


# Converting


def _convert(bench: Bench, shape: str, events: Events) -> None:
    converter = RowConverter(events.schema)
    assert converter.convert(events.rows).table.equals(events.table)
    assert converter.convert(events.documents).table.equals(events.table)
    count_of_rows = len(events.rows)
    ratios = bench.compare(
        f"convert dicts, {shape}",
        {
            "from_pylist": lambda: pa.Table.from_pylist(events.rows, events.schema),
            "lists of dicts": partial(converter.convert, events.calls("dicts")),
            "calls of one dict": partial(converter.convert, events.rows),
        },
        ceiling="from_pylist",
        amount=count_of_rows,
        unit="rows",
        rounds=_ROUNDS,
        clock="cpu",
    )
    bench.require(f"convert dicts, {shape}, of from_pylist", ratios["lists of dicts"], least=0.8)
    ratios = bench.compare(
        f"convert JSON, {shape}",
        {
            "pyarrow.json": lambda: _read_json(events.documents, events.schema),
            "lists of documents": partial(converter.convert, events.calls("documents")),
            "calls of one document": partial(converter.convert, events.documents),
        },
        ceiling="pyarrow.json",
        amount=count_of_rows,
        unit="rows",
        rounds=_ROUNDS,
        clock="cpu",
    )
    bench.require(f"convert JSON, {shape}, of pyarrow.json", ratios["lists of documents"], least=0.8)
    if shape == "100 B":
        rate = next(row.rate for row in bench.rows if row.case == "calls of one dict")
        bench.require("convert calls of one dict, 100,000 a second", rate / 100_000, least=1.0)


def _read_json(documents: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    return pj.read_json(pa.BufferReader(b"\n".join(documents)), parse_options=options)


# Producing


def _produce(bench: Bench, shape: str, events: Events, place: Place) -> None:
    tables: dict[str, Callable[[], pa.Table]] = {
        "Arrow": lambda: pa.concat_tables([events.table] * _PASSES),
        "dicts": lambda: pa.Table.from_pylist(events.rows, events.schema),
        "documents": lambda: _read_json(events.documents, events.schema),
    }
    for form, least in (("Arrow", 0.85), ("dicts", 0.8), ("documents", 0.8)):
        passes = _PASSES if form == "Arrow" else 1
        calls = events.calls(form) * passes
        files = len(_batches(place, _write(place, events, calls)))
        ratios = bench.compare(
            f"produce {form}, {shape}",
            {
                "pyarrow + bare puts": partial(_put_bare, place, tables[form], files),
                "forebay": partial(_write, place, events, calls),
            },
            ceiling="pyarrow + bare puts",
            amount=passes * events.size,
            rounds=_ROUNDS,
            clock="cpu",
        )
        bench.require(f"produce {form}, {shape}, of pyarrow and bare puts", ratios["forebay"], least=least)
    if shape == "100 B":
        _single_calls(bench, events, place)


def _on_s3(bench: Bench, shape: str, events: Events, place: Place) -> None:
    """Produce from Arrow and read, on a real server, by elapsed time."""
    calls = events.calls("Arrow") * _PASSES_ON_S3
    name = _write(place, events, calls)
    stored = _Stored(place, name, _batches(place, name))
    bare, ours = "pyarrow + bare puts", "forebay"
    table = pa.concat_tables([events.table] * _PASSES_ON_S3)
    cases = {
        bare: partial(_put_bare, place, lambda: table, len(stored.descriptors)),
        ours: partial(_write, place, events, calls),
    }
    amount = _PASSES_ON_S3 * events.size
    group = f"produce Arrow, {place.name}, {shape}"
    produced = bench.compare(group, cases, ceiling=bare, amount=amount, rounds=_ROUNDS, rehearse=False)[ours]
    bench.require(f"{group}, of pyarrow and bare puts", produced, least=0.75 if shape == "100 B" else 0.85)
    bare, group = "bare gets + read_table", f"read, {place.name}, {shape}"
    cases = {bare: stored.read_bare, ours: stored.read}
    read = bench.compare(group, cases, ceiling=bare, amount=amount, rounds=_ROUNDS, rehearse=False)[ours]
    bench.require(f"{group}, of bare gets and read_table", read, least=0.8 if shape == "100 B" else 0.9)


def _write(place: Place, events: Events, calls: list[Any]) -> str:
    """Make all calls durable in a new buffer, and return its name."""
    name = f"typed-{next(_numbers)}"
    with Producer(
        place.open(name), schema=events.schema, flush_interval=_PATIENT, flush_size_bytes=_FLUSH_BYTES
    ) as producer:
        for call in calls:
            producer.produce(call)
    return name


def _put_bare(place: Place, make: Callable[[], pa.Table], files: int) -> None:
    table, folder = make(), f"bare-{next(_numbers)}"
    step = -(-table.num_rows // files)

    def put(at: int) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table.slice(at * step, step), sink, **_PARQUET)
        place.put(f"{folder}/{at}.parquet", memoryview(sink.getvalue()).cast("B"))

    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(put, range(files)))


def _single_calls(bench: Bench, events: Events, place: Place) -> None:
    """Calls of one dict, until all are durable."""
    rows = events.rows[: 2_000 if bench.quick else 100_000]
    best = min(_time_calls(place, events, rows) for _ in range(3))
    bench.note(f"calls of one dict, produced: {len(rows) / best:,.0f} a second of processor time")
    bench.require("produce calls of one dict, 100,000 a second", len(rows) / best / 100_000, least=1.0)


def _time_calls(place: Place, events: Events, rows: list[dict[str, Any]]) -> float:
    before = time.process_time()
    _write(place, events, list(rows))
    return time.process_time() - before


# Reading


@dataclass(frozen=True, slots=True)
class _Stored:
    place: Place
    name: str
    descriptors: list[BatchDescriptor]

    def read(self, columns: Sequence[str] | None = None) -> int:
        """Read all batches to Arrow by four workers, and return the number of rows."""
        with Consumer(self.place.open(self.name), columns=columns) as consumer:
            fetch, found = consumer.fetch_handle().fetch, consumer.next_descriptors(len(self.descriptors))
            with ThreadPoolExecutor(_WORKERS) as pool:
                return sum(pool.map(lambda each: fetch(each).table.num_rows, found))

    def read_bare(self, columns: Sequence[str] | None = None) -> int:
        def read(descriptor: BatchDescriptor) -> int:
            data = self.place.get(f"{self.name}/{descriptor.location}")
            return int(pq.read_table(pa.BufferReader(data), columns=columns, use_threads=False).num_rows)

        with ThreadPoolExecutor(_WORKERS) as pool:
            return sum(pool.map(read, self.descriptors))


def _batches(place: Place, name: str) -> list[BatchDescriptor]:
    with Consumer(place.open(name)) as consumer:
        return list(consumer.next_descriptors(10_000))


def _read(bench: Bench, shape: str, events: Events, place: Place) -> None:
    name = _write(place, events, events.calls("Arrow") * _PASSES)
    stored = _Stored(place, name, _batches(place, name))
    assert stored.read() == stored.read_bare() == _PASSES * len(events.rows)
    some = ["ts", "ms"]
    ratios = bench.compare(
        f"read, {shape}",
        {
            "bare gets + read_table": stored.read_bare,
            "forebay": stored.read,
            "bare, 2 columns": partial(stored.read_bare, some),
            "forebay, 2 columns": partial(stored.read, some),
        },
        ceiling="bare gets + read_table",
        amount=_PASSES * events.size,
        rounds=_ROUNDS,
        clock="cpu",
    )
    bench.require(f"read, {shape}, of bare gets and read_table", ratios["forebay"], least=0.9)
    if len(events.schema) == len(_SCHEMA):
        gain = ratios["forebay, 2 columns"] / ratios["forebay"]
        bench.require(f"read 2 of 10 columns, {shape}, times as fast as all", gain, least=3.0)
    _sizes(bench, shape, events, stored)


def _sizes(bench: Bench, shape: str, events: Events, stored: _Stored) -> None:
    """Bytes stored for an event, against plain Parquet files of the same rows with the same settings."""
    ours = sum(descriptor.size or 0 for descriptor in stored.descriptors)
    table = pa.concat_tables([events.table] * _PASSES)
    step = -(-table.num_rows // len(stored.descriptors))
    plain = 0
    for at in range(len(stored.descriptors)):
        sink = pa.BufferOutputStream()
        pq.write_table(table.slice(at * step, step), sink, **_PARQUET)
        plain += sink.getvalue().size
    mine, theirs = ours / table.num_rows, plain / table.num_rows
    bench.note(f"bytes stored for an event, {shape}: {mine:.1f}, plain Parquet {theirs:.1f}")
    bench.require(f"bytes of plain Parquet for those stored, {shape}", plain / ours, least=1 / 1.05)


# Waiting batches


def _wait(bench: Bench) -> None:
    from backlog import Backlog  # noqa: PLC0415

    few, many = 100, 10_000 if bench.quick else 100_000
    backlogs = {size: Backlog(size, schemas=("0" * 32,)) for size in (few, many)}
    for doing in ("append", "poll"):
        ratios = bench.compare(
            f"{doing}, typed batches",
            {f"{size:,} waiting": getattr(backlog, doing) for size, backlog in backlogs.items()},
            ceiling=f"{few:,} waiting",
            amount=64,
            unit="calls",
            rounds=25,
            clock="cpu",
        )
        name = f"{doing} with {many:,} typed batches waiting against {few}"
        bench.require(f"{name}: processor seconds", ratios[f"{many:,} waiting"], least=1 / 1.3)
        counts = {size: backlog.count(doing) for size, backlog in backlogs.items()}
        for what in ("requests", "bytes"):
            bench.require(f"{name}: {what}", counts[few][what] / counts[many][what], least=1 / 1.3)


# Memory

_BOUND = 256 << 20
_SLACK = 150 << 20
_MAX_HOLD_SECONDS = 60.0
_WIDE = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)])


def _memory(bench: Bench) -> None:
    for form in ("bytes", "Arrow", "dicts", "documents"):
        name = f"memory of a producer of {form}, puts hang"
        found = _measure(bench, name, "hold", form)
        bench.require(f"{name}: bound + 150 MiB, of the peak", (_BOUND + _SLACK) / found["peak"], least=1)
    with tempfile.TemporaryDirectory() as folder:
        for form in ("bytes", "Arrow"):
            store = f"file://{folder}/{form}"
            with Producer(store, schema=None if form == "bytes" else _WIDE, flush_interval=_PATIENT) as producer:
                for _, call in zip(range(64 if bench.quick else 512), _endless_calls(form), strict=False):
                    producer.produce(call)
            name = f"memory of a consumer of {form}"
            found = _measure(bench, name, "read_all", store)
            # What is read ahead, and beside it the batch that was handed over, one more, and its object.
            bound = ReadAhead().max_bytes + 3 * found["batch"] + _SLACK
            bench.require(f"{name}: read-ahead + 3 batches + 150 MiB, of the peak", bound / found["peak"], least=1)


def _measure(bench: Bench, name: str, what: str, told: str) -> dict[str, int]:
    bench.progress(name)
    command = [sys.executable, __file__, what, told]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, int] = json.loads(done.stdout)
    shown = ", ".join(f"{key} {value >> 20} MiB" for key, value in found.items())
    bench.note(f"{name}: {shown}")
    return found


def hold(form: str) -> None:
    """Produce as fast as a store whose puts hang lets; print the peak of memory."""
    from produce import Drain, peak_memory  # noqa: PLC0415

    calls = _endless_calls(form)
    next(calls)
    before, held = peak_memory(), 0
    schema = None if form == "bytes" else _WIDE
    store = Drain(open_store("memory://held"), 3600.0)
    producer = Producer(store, schema=schema, limits=ProducerLimits(buffered_bytes=_BOUND))
    until = time.perf_counter() + _MAX_HOLD_SECONDS
    with suppress(Timeout):
        while time.perf_counter() < until:
            producer.produce(next(calls), timeout=4.0)
            held = max(held, producer.buffered_bytes)
    pool = pa.default_memory_pool().max_memory()
    print(json.dumps({"peak": peak_memory(), "before": before, "counted": held, "arrow": pool}), flush=True)
    os._exit(0)  # its store would not let it close


def read_all(url: str) -> None:
    """Read a buffer with the default read-ahead, slower than it is fetched; print the peak of memory."""
    from produce import peak_memory  # noqa: PLC0415

    before, largest = peak_memory(), 0
    with Consumer(url) as consumer:
        for batch in consumer:
            time.sleep(0.05)
            largest = max(largest, batch.decoded.raw_bytes)
    pool = pa.default_memory_pool().max_memory()
    print(json.dumps({"peak": peak_memory(), "before": before, "batch": largest, "arrow": pool}), flush=True)


def _endless_calls(form: str) -> Iterator[Any]:
    """Calls of 1,024 rows of 1 KiB, made on the way: nothing but the producer keeps them."""
    for at in count(0, 1024):
        texts = [os.urandom(500).hex() for _ in range(1024)]
        if form == "bytes":
            yield [text.encode() for text in texts]
            continue
        rows = [{"number": at + i, "text": text} for i, text in enumerate(texts)]
        del texts
        if form == "Arrow":
            yield pa.Table.from_pylist(rows, _WIDE)
        else:
            yield rows if form == "dicts" else list(map(_to_json, rows))
        del rows


if __name__ == "__main__":
    from memory import NoPandas

    sys.meta_path.insert(0, NoPandas())
    {"hold": hold, "read_all": read_all}[sys.argv[1]](sys.argv[2])
