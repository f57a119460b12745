"""How near do typed buffers come to pyarrow and the bare store: converting rows, producing them, reading them?

Processor time of all threads. Events are those of a service, from a fixed seed: six columns and 100 bytes as JSON, ten
columns and 300 bytes or 1 KiB.

- *Converting*: calls to one Arrow table, strictly. The peers are not strict: `Table.from_pylist` drops unknown keys and
  turns 1.5 into 1, `pyarrow.json` takes two documents for two rows.
- *Producing*: until every row is durable. The ceilings write as many Parquet files with the same settings, in as many
  threads, and put them with the bare client; from dicts and from JSON they convert the rows first, by the peers above.
- *Reading*: batches to Arrow by four workers, against a bare get and `read_table` in as many threads; and two of ten
  columns against all of them.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from forebay import Consumer, Producer
from forebay.buffer.format.rows import RowConverter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness import Bench
    from places import Place

    from forebay import BatchDescriptor

_ROUNDS = 7
_LENGTHS = {"100 B": 100, "300 B": 300, "1 KiB": 1024}
_ROWS_A_CALL = 1000
_WORKERS = 4
_FLUSH_BYTES = 16 << 20
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

    events = {shape: _Events(length, (1 if bench.quick else 32) << 20) for shape, length in _LENGTHS.items()}
    for shape, given in events.items():
        _convert(bench, shape, given)
    with open_places() as places:
        for shape, given in events.items():
            _produce(bench, shape, given, places[0])
            _read(bench, shape, given, places[0])


class _Events:
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


def _convert(bench: Bench, shape: str, events: _Events) -> None:
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


def _produce(bench: Bench, shape: str, events: _Events, place: Place) -> None:
    files = len(_batches(place, _write(place, events, "Arrow")))
    tables: dict[str, Callable[[], pa.Table]] = {
        "Arrow": lambda: events.table,
        "dicts": lambda: pa.Table.from_pylist(events.rows, events.schema),
        "documents": lambda: _read_json(events.documents, events.schema),
    }
    for form, least in (("Arrow", 0.85), ("dicts", 0.8), ("documents", 0.8)):
        calls = events.calls(form)
        ratios = bench.compare(
            f"produce {form}, {shape}",
            {
                "pyarrow + bare puts": partial(_put_bare, place, tables[form], files),
                "forebay": partial(_write, place, events, form, calls),
            },
            ceiling="pyarrow + bare puts",
            amount=events.size,
            rounds=_ROUNDS,
            clock="cpu",
        )
        bench.require(f"produce {form}, {shape}, of pyarrow and bare puts", ratios["forebay"], least=least)
    if shape == "100 B":
        _single_calls(bench, events, place)


def _write(place: Place, events: _Events, form: str, calls: list[Any] | None = None) -> str:
    """Produce all rows into a new buffer, and return its name."""
    name = f"typed-{next(_numbers)}"
    with Producer(
        place.open(name), schema=events.schema, flush_interval=_PATIENT, flush_size_bytes=_FLUSH_BYTES
    ) as producer:
        for call in events.calls(form) if calls is None else calls:
            producer.produce(call)
    return name


def _put_bare(place: Place, make: Callable[[], pa.Table], files: int) -> None:
    table, folder = make(), f"bare-{next(_numbers)}"
    step = -(-table.num_rows // files)

    def put(at: int) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table.slice(at * step, step), sink, **_PARQUET)
        place.put(f"{folder}/{at}.parquet", memoryview(sink.getvalue()))

    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(put, range(files)))


def _single_calls(bench: Bench, events: _Events, place: Place) -> None:
    """Calls of one dict, until all are durable."""
    rows = events.rows[: 2_000 if bench.quick else 100_000]
    best = min(_time_calls(place, events, rows) for _ in range(3))
    bench.note(f"calls of one dict, produced: {len(rows) / best:,.0f} a second of processor time")
    bench.require("produce calls of one dict, 100,000 a second", len(rows) / best / 100_000, least=1.0)


def _time_calls(place: Place, events: _Events, rows: list[dict[str, Any]]) -> float:
    before = time.process_time()
    _write(place, events, "dicts", rows)
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
            fetch = consumer.fetch_handle().fetch
            with ThreadPoolExecutor(_WORKERS) as pool:
                return sum(pool.map(lambda each: fetch(each).table.num_rows, self.descriptors))

    def read_bare(self, columns: Sequence[str] | None = None) -> int:
        def read(descriptor: BatchDescriptor) -> int:
            data = self.place.get(f"{self.name}/{descriptor.location}")
            return int(pq.read_table(pa.BufferReader(data), columns=columns, use_threads=False).num_rows)

        with ThreadPoolExecutor(_WORKERS) as pool:
            return sum(pool.map(read, self.descriptors))


def _batches(place: Place, name: str) -> list[BatchDescriptor]:
    with Consumer(place.open(name)) as consumer:
        return list(consumer.next_descriptors(10_000))


def _read(bench: Bench, shape: str, events: _Events, place: Place) -> None:
    name = _write(place, events, "Arrow")
    stored = _Stored(place, name, _batches(place, name))
    assert stored.read() == stored.read_bare() == len(events.rows)
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
        amount=events.size,
        rounds=_ROUNDS,
        clock="cpu",
    )
    bench.require(f"read, {shape}, of bare gets and read_table", ratios["forebay"], least=0.9)
    if len(events.schema) == len(_SCHEMA):
        gain = ratios["forebay, 2 columns"] / ratios["forebay"]
        bench.require(f"read 2 of 10 columns, {shape}, times as fast as all", gain, least=3.0)
    _sizes(bench, shape, events, stored)


def _sizes(bench: Bench, shape: str, events: _Events, stored: _Stored) -> None:
    """Bytes stored for an event, against plain Parquet files of the same rows with the same settings."""
    ours = sum(descriptor.size or 0 for descriptor in stored.descriptors)
    step = -(-events.table.num_rows // len(stored.descriptors))
    plain = 0
    for at in range(len(stored.descriptors)):
        sink = pa.BufferOutputStream()
        pq.write_table(events.table.slice(at * step, step), sink, **_PARQUET)
        plain += sink.getvalue().size
    mine, theirs = ours / len(events.rows), plain / len(events.rows)
    bench.note(f"bytes stored for an event, {shape}: {mine:.1f}, plain Parquet {theirs:.1f}")
    bench.require(f"bytes of plain Parquet for those stored, {shape}", plain / ours, least=1 / 1.05)
