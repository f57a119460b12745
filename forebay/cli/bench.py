"""`forebay bench`: how fast a store is with forebay, beside plain puts and gets of the same bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.names import mint
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.format.parquet import encode_rows
from forebay.buffer.producer import Producer
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.write.settings import FLUSH_INTERVAL
from forebay.cli.output import write_json, write_note, write_table
from forebay.cli.target import Target, json_option, remove_folder, takes_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store import ObjectStore
    from forebay.buffer.store.base import Data

_WORKERS: Final = 4
_BATCH_BYTES: Final = 8 << 20
_ROUND_TRIPS: Final = 20
_OTHER_COLUMNS_BYTES: Final = 36
"""About what a row takes beside its text."""
_PLAIN_NAMES: Final = ("plain compress and put", "plain get and decompress")


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer."""

    what: str
    mb_per_second: float
    of_plain: float
    """Against plain puts or gets of the same objects, compressed or decompressed by the same threads."""


@dataclass(frozen=True, slots=True)
class _Load:
    """What is written and read: the same bytes by forebay and plainly."""

    blocks: list[Any]
    """Calls, each of which makes a batch."""
    raw_bytes: int
    schema: pa.Schema | None
    encode: Callable[[Any], Data]
    """Makes an object of a call, plainly."""
    decode: Callable[[Data], object]
    small_call: Any
    """For the time to durable."""


@click.command(
    epilog="""\
\b
examples:
  forebay bench s3://lake/scratch
  forebay bench file:///tmp/scratch --mib 64 --entry-bytes 100
  forebay bench s3://lake/scratch --typed

With --typed, entries are rows of four columns, and the plain way writes and reads the same rows as Parquet files with
pyarrow. The time to durable is measured with flushes every 0.1 s; the default of a typed buffer is 1 s.

Everything is written below URL, under bench-…/, and deleted again. The repository's `make bench` measures more."""
)
@takes_url
@json_option
@click.option("--mib", type=click.IntRange(8), default=256, show_default=True, help="How much is written, in MiB.")
@click.option(
    "--entry-bytes", type=click.IntRange(20), default=1024, show_default=True, help="The size of an entry or row."
)
@click.option("--typed", is_flag=True, help="Measure a typed buffer: rows of a schema instead of bytes.")
def bench(target: Target, *, as_json: bool, mib: int, entry_bytes: int, typed: bool) -> None:
    """Measure writing, reading and the time to durable on a store of yours."""
    clock = target.clock
    store = target.open()
    folder = f"bench-{mint(clock, system_random())}"
    scratch = FolderStore(store, folder)
    load = _make_rows(mib << 20, entry_bytes) if typed else _make_entries(mib << 20, entry_bytes)
    try:
        write_note(f"{scratch.url}: {mib} MiB in {'rows' if typed else 'entries'} of {entry_bytes} bytes …")
        plain_in, plain_out = _plain(scratch, load, clock)
        ours_in, ours_out = _forebay(scratch, load, clock)
        durable = _round_trips(scratch, load, clock)
    finally:
        write_note("removing what was written …")
        for left in remove_folder(store, folder, [info.key for info in store.list(f"{folder}/")]):
            write_note(f"left: {left}")
    plain_names = ("plain Parquet and put", "plain get and Parquet") if typed else _PLAIN_NAMES
    results = [
        Result("produce", load.raw_bytes / ours_in / 1e6, plain_in / ours_in),
        Result(plain_names[0], load.raw_bytes / plain_in / 1e6, 1.0),
        Result("consume", load.raw_bytes / ours_out / 1e6, plain_out / ours_out),
        Result(plain_names[1], load.raw_bytes / plain_out / 1e6, 1.0),
    ]
    half, most = durable[len(durable) // 2], durable[-1]
    if as_json:
        for result in results:
            write_json(asdict(result))
        write_json({"what": "time to durable", "median_seconds": half, "longest_seconds": most})
        return
    rows = [(found.what, f"{found.mb_per_second:,.0f}", f"{found.of_plain:.2f}") for found in results]
    write_table(("", "MB/s", "of plain"), rows)
    write_note(f"time to durable: median {half * 1000:.0f} ms, longest of {len(durable)} {most * 1000:.0f} ms")


def _make_entries(total: int, entry_bytes: int) -> _Load:
    """Arrays of entries, half of whose bytes are random: about as compressible as events are."""
    count = max(1, _BATCH_BYTES // entry_bytes)
    noise = system_random().randbytes(count * (entry_bytes // 2))
    half = entry_bytes // 2
    text = (b'{"service":"clicks","page":"/product","user":' * (entry_bytes // 40 + 1))[: entry_bytes - half]
    block = pa.array([text + noise[at * half : (at + 1) * half] for at in range(count)], pa.binary())
    blocks = [block] * max(1, total // (count * entry_bytes))
    return _Load(blocks, len(blocks) * count * entry_bytes, None, encode_batch, decode_batch, b"one small entry")


def _make_rows(total: int, row_bytes: int) -> _Load:
    """Tables of rows, half of whose text is random."""
    count = max(1, _BATCH_BYTES // row_bytes)
    random = system_random()
    now_us = SystemClock().now_ms() * 1000
    width = max(2, row_bytes - _OTHER_COLUMNS_BYTES)
    half = width // 2
    same = ("campaign=spring&referrer=search&variant=b" * (width // 40 + 1))[: width - half]
    noise = random.randbytes(count * half // 2 + 1).hex()
    pages = [f"/product/{number}" for number in range(100)]
    table = pa.table(
        {
            "at": pa.array(range(now_us, now_us + count), pa.timestamp("us", "UTC")),
            "user": pa.array((random.randrange(100_000) for _ in range(count)), pa.int64()),
            "page": pa.array((random.choice(pages) for _ in range(count)), pa.string()),
            "text": pa.array((same + noise[at * half : (at + 1) * half] for at in range(count)), pa.string()),
        }
    )
    blocks = [table] * max(1, total // (count * row_bytes))
    small = {"at": None, "user": 1, "page": "/", "text": "one small row"}
    return _Load(blocks, len(blocks) * table.nbytes, table.schema, encode_rows, _read_parquet, small)


def _read_parquet(data: Data) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))


def _timed(clock: Clock, do: Callable[[], object]) -> float:
    began = clock.monotonic()
    do()
    return max(1e-6, clock.monotonic() - began)


def _plain(store: ObjectStore, load: _Load, clock: Clock) -> tuple[float, float]:
    numbered = list(enumerate(load.blocks))
    load.decode(load.encode(load.blocks[0]))  # what takes time only once is not measured

    def put(item: tuple[int, Any]) -> None:
        store.put(f"plain/{item[0]}", load.encode(item[1]))

    def get(item: tuple[int, Any]) -> None:
        load.decode(store.get(f"plain/{item[0]}").data)

    return _timed(clock, lambda: _all(put, numbered)), _timed(clock, lambda: _all(get, numbered))


def _forebay(scratch: ObjectStore, load: _Load, clock: Clock) -> tuple[float, float]:
    def produce() -> None:
        with Producer(FolderStore(scratch, "buffer"), schema=load.schema, flush_size_bytes=_BATCH_BYTES) as producer:
            for block in load.blocks:
                producer.produce(block)

    def consume() -> None:
        with Consumer(FolderStore(scratch, "buffer")) as consumer:
            fetch = consumer.fetch_handle().fetch
            while found := consumer.next_descriptors(_WORKERS * 2):
                _all(fetch, found)
                consumer.ack_through(found[-1].sequence)

    return _timed(clock, produce), _timed(clock, consume)


def _round_trips(scratch: ObjectStore, load: _Load, clock: Clock) -> list[float]:
    store = FolderStore(scratch, "durable")
    with Producer(store, schema=load.schema, flush_interval=FLUSH_INTERVAL) as producer:
        producer.produce(load.small_call).result(timeout=60)
        return sorted(
            _timed(clock, lambda: producer.produce(load.small_call).result(timeout=60)) for _ in range(_ROUND_TRIPS)
        )


def _all(do: Callable[..., object], items: Iterable[object]) -> None:
    with ThreadPoolExecutor(_WORKERS) as workers:
        for _ in workers.map(do, items):
            pass
