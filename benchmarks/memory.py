"""How much memory does a process take at default settings, and what does each setting add?

Each case is a process of its own, and the figure is the peak of its resident memory. That includes the interpreter, the
libraries, and 4 MiB of calls that the script makes once and repeats.

- *Default settings*: a producer gets calls as fast as it accepts them, and a consumer iterates more slowly than it
  fetches. Both run with bytes and with rows, on files and on S3 by either client. Each stays below 256 MiB.
- *Settings*: the same producer and consumer on files, with one setting changed.

The processes run as if pandas were not installed, because forebay does not need it. If it is installed, pyarrow imports
it when it first converts Python values. One case shows what that adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay import Consumer, Producer, ProducerLimits, ReadAhead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness import Bench
    from places import Place

_BOUND = 256 << 20
_CALL_BYTES = 1 << 20
_SECONDS_A_BATCH = 0.02
_SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)])
_WRITTEN = ("bytes", "Arrow", "dicts", "documents")
_READ = ("bytes", "Arrow")
_SETTINGS: dict[str, dict[str, Any]] = {
    "buffered_bytes 128 MiB": {"buffered_bytes": 128 << 20},
    "flush_size_bytes 32 MiB, buffered_bytes 128 MiB": {"flush_size_bytes": 32 << 20, "buffered_bytes": 128 << 20},
}
_READ_AHEAD: dict[str, dict[str, Any]] = {
    "read_ahead 0": {"batches": 0},
    "read_ahead 128 MiB": {"max_bytes": 128 << 20},
}
_numbers = count()


def run(bench: Bench) -> None:
    from places import open_places  # noqa: PLC0415  (the processes started below need none of it)

    mib = 32 if bench.quick else 160
    with open_places() as places:
        for place in places:
            for form in _WRITTEN:
                name = f"producer of {form}, {place.name}"
                _promise(bench, name, _measure(bench, name, "produce", place, form=form, mib=mib))
            for form in _READ:
                name = f"consumer of {form}, {place.name}"
                _promise(bench, name, _measure_reading(bench, name, place, form, mib))
        file = places[0]
        _measure(
            bench,
            "producer of dicts, file, where pandas is installed",
            "produce",
            file,
            form="dicts",
            mib=mib,
            pandas=True,
        )
        for what, settings in _SETTINGS.items():
            for form in ("bytes", "dicts"):
                _measure(bench, f"producer of {form}, {what}", "produce", file, form=form, mib=mib, settings=settings)
        for what, settings in _READ_AHEAD.items():
            for form in _READ:
                _measure_reading(bench, f"consumer of {form}, {what}", file, form, mib, settings=settings)


def _promise(bench: Bench, name: str, peak: int) -> None:
    bench.require(f"{name}: 256 MiB, of the peak at default settings", _BOUND / peak, least=1)


def _measure_reading(bench: Bench, name: str, place: Place, form: str, mib: int, **more: Any) -> int:
    """Write batches of the default size, and return the peak of a process that reads them."""
    store = place.open(f"memory-{next(_numbers)}")
    with Producer(store, schema=None if form == "bytes" else _SCHEMA, flush_interval=3600.0) as producer:
        calls = _make_calls(form)
        for number in range(mib):
            producer.produce(calls[number % len(calls)])
    return _measure(bench, name, "consume", place, url=store.url, **more)


def _measure(bench: Bench, name: str, what: str, place: Place, **given: Any) -> int:
    bench.progress(name)
    told = {"url": f"{place.url}/memory-{next(_numbers)}", "options": place.options, **given}
    command = [sys.executable, __file__, what, json.dumps(told)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    found: dict[str, int] = json.loads(done.stdout)
    bench.note(f"{name}: " + ", ".join(f"{key} {value >> 20} MiB" for key, value in found.items()))
    return found["peak"]


def produce(told: dict[str, Any]) -> None:
    """Produce as fast as the producer takes calls; print the peak of memory."""
    from produce import peak_memory  # noqa: PLC0415

    form, settings = told["form"], dict(told.get("settings", {}))
    size = {"flush_size_bytes": settings.pop("flush_size_bytes")} if "flush_size_bytes" in settings else {}
    calls, held = _make_calls(form), 0
    before = peak_memory()
    with Producer(
        told["url"],
        schema=None if form == "bytes" else _SCHEMA,
        limits=ProducerLimits(**settings),
        storage_options=told["options"],
        **size,
    ) as producer:
        for number in range(told["mib"]):
            producer.produce(calls[number % len(calls)])
            held = max(held, producer.buffered_bytes)
    print(json.dumps({"peak": peak_memory(), "before": before, "counted": held}))


def consume(told: dict[str, Any]) -> None:
    """Iterate over a buffer, slower than it is fetched; print the peak of memory."""
    from produce import peak_memory  # noqa: PLC0415

    before = peak_memory()
    ahead = ReadAhead(**told["settings"]) if "settings" in told else None
    with Consumer(told["url"], read_ahead=ahead, storage_options=told["options"]) as consumer:
        for _ in consumer:
            time.sleep(_SECONDS_A_BATCH)
    print(json.dumps({"peak": peak_memory(), "before": before}))


def _make_calls(form: str) -> Sequence[Any]:
    return [_make_call(form, at) for at in range(0, 4096, 1024)]


def _make_call(form: str, start: int) -> Any:
    """1,024 rows of 1 KiB, which hardly shrink."""
    if form == "bytes":
        return [os.urandom(_CALL_BYTES // 1024) for _ in range(1024)]
    rows = [{"number": start + i, "text": os.urandom(512).hex()} for i in range(1024)]
    if form == "Arrow":
        return pa.Table.from_pylist(rows, _SCHEMA)
    return rows if form == "dicts" else [json.dumps(row).encode() for row in rows]


class NoPandas:
    """Finds no pandas, as where it is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    if not given.get("pandas"):
        sys.meta_path.insert(0, NoPandas())
    {"produce": produce, "consume": consume}[sys.argv[1]](given)
