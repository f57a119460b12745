"""Two runtimes on one group, each with a sink of its own to one target, as two processes have: rfcs/0007."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from forebay.buffer.errors import Fenced
from forebay.buffer.groups import Groups
from forebay.buffer.producer import Producer
from forebay.runtime import Combining, DeltaSink, ParquetSink, Runtime, RuntimeConfig, Sink, Source

CONFIG = RuntimeConfig(ack_seconds=0.02, max_poll_interval=0.05, descriptors_per_look=5)
FEW = Combining(400, max_seconds=0.05)


def make_sink(kind: str, folder: Path) -> Sink:
    url = f"file://{folder}/{kind}"
    return DeltaSink(url, combining=FEW) if kind == "delta" else ParquetSink(url, combining=FEW)


def read_target(kind: str, folder: Path) -> list[int]:
    if kind == "delta":
        values = DeltaTable(str(folder / kind)).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    else:
        values = [
            value for path in (folder / kind).glob("*.parquet") for value in pq.read_table(path)["value"].to_pylist()
        ]
    return sorted(map(int, values))


def test_take_overs_while_a_producer_goes_on_leave_every_entry_once_in_delta_and_in_parquet(tmp_path: Path) -> None:
    url = f"memory://runtime-rivals-{tmp_path.name}"
    outcomes: list[Any] = []
    threads: list[threading.Thread] = []
    runtimes: list[Runtime] = []

    def go(runtime: Runtime) -> None:
        try:
            outcomes.append(runtime.run(show_progress=False).state)
        except Fenced:
            outcomes.append("fenced")

    with Producer(url, flush_interval=0.01) as producer:
        for number in range(120):
            producer.produce([f"{number}".encode()]).result(timeout=60)
            if number % 30 == 10:  # the one before is in the middle of something
                for kind in ("delta", "parquet"):
                    runtime = Runtime([Source(url, group=kind)], make_sink(kind, tmp_path), CONFIG)
                    runtimes.append(runtime)
                    threads.append(threading.Thread(target=go, args=(runtime,), daemon=True))
                    threads[-1].start()
    for thread in threads[:-2]:
        thread.join(60)
    for runtime in runtimes[-2:]:
        runtime.stop()
    for thread in threads[-2:]:
        thread.join(60)
    assert sorted(outcomes) == ["fenced"] * 6 + ["stopped"] * 2
    for kind in ("delta", "parquet"):
        Runtime([Source(url, group=kind)], make_sink(kind, tmp_path)).run(until_caught_up=True, show_progress=False)
        assert read_target(kind, tmp_path) == list(range(120))
    assert [state.waiting for state in Groups(url).list()] == [0, 0]
