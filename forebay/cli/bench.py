"""`forebay bench`: how fast a store is with forebay, beside plain puts and gets of the same bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa

from forebay.buffer.base.clock import system_random
from forebay.buffer.base.names import mint
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.producer import Producer
from forebay.buffer.store.folder import FolderStore
from forebay.cli.output import write_json, write_note, write_table
from forebay.cli.target import Target, json_option, remove_folder, takes_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store import ObjectStore

_WORKERS: Final = 4
_BATCH_BYTES: Final = 8 << 20
_ROUND_TRIPS: Final = 20


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer."""

    what: str
    mb_per_second: float
    of_plain: float
    """Against plain puts or gets of the same objects, compressed or decompressed by the same threads."""


@click.command(
    epilog="""\
\b
examples:
  forebay bench s3://lake/scratch
  forebay bench file:///tmp/scratch --mib 64 --entry-bytes 100

Everything is written below URL, under bench-…/, and deleted again. The repository's `make bench` measures more."""
)
@takes_url
@json_option
@click.option("--mib", type=click.IntRange(8), default=256, show_default=True, help="How much is written, in MiB.")
@click.option("--entry-bytes", type=click.IntRange(20), default=1024, show_default=True, help="The size of an entry.")
def bench(target: Target, *, as_json: bool, mib: int, entry_bytes: int) -> None:
    """Measure writing, reading and the time to durable on a store of yours."""
    clock = target.clock
    store = target.open()
    folder = f"bench-{mint(clock, system_random())}"
    scratch = FolderStore(store, folder)
    blocks = _make_blocks(mib << 20, entry_bytes)
    raw = sum(len(block) for block in blocks) * entry_bytes
    try:
        write_note(f"{scratch.url}: {mib} MiB in entries of {entry_bytes} bytes …")
        plain_in, plain_out = _plain(scratch, blocks, clock)
        ours_in, ours_out = _forebay(scratch, blocks, clock)
        durable = _round_trips(scratch, clock)
    finally:
        write_note("removing what was written …")
        for left in remove_folder(store, folder, [info.key for info in store.list(f"{folder}/")]):
            write_note(f"left: {left}")
    results = [
        Result("produce", raw / ours_in / 1e6, plain_in / ours_in),
        Result("plain compress and put", raw / plain_in / 1e6, 1.0),
        Result("consume", raw / ours_out / 1e6, plain_out / ours_out),
        Result("plain get and decompress", raw / plain_out / 1e6, 1.0),
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


def _make_blocks(total: int, entry_bytes: int) -> list[pa.Array]:
    """Arrays of entries, half of whose bytes are random: about as compressible as events are."""
    count = max(1, _BATCH_BYTES // entry_bytes)
    noise = system_random().randbytes(count * (entry_bytes // 2))
    half = entry_bytes // 2
    text = (b'{"service":"clicks","page":"/product","user":' * (entry_bytes // 40 + 1))[: entry_bytes - half]
    block = pa.array([text + noise[at * half : (at + 1) * half] for at in range(count)], pa.binary())
    return [block] * max(1, total // (count * entry_bytes))


def _timed(clock: Clock, do: Callable[[], object]) -> float:
    began = clock.monotonic()
    do()
    return max(1e-6, clock.monotonic() - began)


def _plain(store: ObjectStore, blocks: list[pa.Array], clock: Clock) -> tuple[float, float]:
    numbered = list(enumerate(blocks))

    def put(item: tuple[int, pa.Array]) -> None:
        store.put(f"plain/{item[0]}", encode_batch(item[1]))

    def get(item: tuple[int, pa.Array]) -> None:
        decode_batch(store.get(f"plain/{item[0]}").data)

    return _timed(clock, lambda: _all(put, numbered)), _timed(clock, lambda: _all(get, numbered))


def _forebay(scratch: ObjectStore, blocks: list[pa.Array], clock: Clock) -> tuple[float, float]:
    def produce() -> None:
        with Producer(FolderStore(scratch, "buffer"), flush_size_bytes=_BATCH_BYTES) as producer:
            for block in blocks:
                producer.produce(block)

    def consume() -> None:
        with Consumer(FolderStore(scratch, "buffer")) as consumer:
            fetch = consumer.fetch_handle().fetch
            while found := consumer.next_descriptors(_WORKERS * 2):
                _all(fetch, found)
                consumer.ack_through(found[-1].sequence)

    return _timed(clock, produce), _timed(clock, consume)


def _round_trips(scratch: ObjectStore, clock: Clock) -> list[float]:
    with Producer(FolderStore(scratch, "durable")) as producer:
        producer.produce(b"first").result(timeout=60)
        return sorted(
            _timed(clock, lambda: producer.produce(b"one small entry").result(timeout=60)) for _ in range(_ROUND_TRIPS)
        )


def _all(do: Callable[..., object], items: Iterable[object]) -> None:
    with ThreadPoolExecutor(_WORKERS) as workers:
        for _ in workers.map(do, items):
            pass
