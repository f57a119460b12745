"""The page beside a real producer, runtime and dead-letter buffer: it reads what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.eventlog import AuditTrail, open_event_log
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store import open_store
from forebay.gc import Collector
from forebay.runtime import Halted, Runtime, Source
from forebay.testing.ledger import LedgerSink
from forebay.ui import Dashboard


def refuse_1(batch: Batch) -> Any:
    if batch.sequence == 1:
        raise ValueError("not mine")
    return batch.records()


def test_what_runtime_and_collector_tell_is_understood(tmp_path: Path) -> None:
    store, letters = open_store(f"file://{tmp_path}/clicks"), open_store(f"file://{tmp_path}/dead")
    with Producer(store) as producer:
        for number in range(3):
            producer.produce([f"{number}".encode()] * 10).result()
    with open_event_log(tmp_path / "events.db") as log:
        trail = AuditTrail(log)
        with Dashboard(store, port=0, events=log, dead_letters=letters) as dashboard:

            def look() -> dict[str, Any]:
                dashboard.sampler.sample()
                seen: dict[str, Any] = dashboard.sampler.state()["seen"]
                return seen

            def run(**settings: Any) -> None:
                runtime = Runtime(
                    [Source(store, group="etl")], LedgerSink(), decoder=refuse_1, events=trail, **settings
                )
                runtime.run(until_caught_up=True, show_progress=False)

            with pytest.raises(Halted):
                run()
            seen = look()
            assert [(event["group"], event["kind"]) for event in seen["trail"]["stopped"]] == [
                ("etl", "runtime.halted")
            ]
            assert "not mine" in seen["trail"]["stopped"][0]["text"]
            assert seen["dead_letters"]["batches"] == 0

            with Producer(letters) as producer:
                run(dead_letters=producer)
            seen = look()
            assert seen["trail"]["stopped"] == []
            (letter,) = seen["dead_letters"]["newest"]
            assert (letter["group"], letter["sequence"], letter["error"]) == ("etl", 1, "ValueError: not mine")
            assert (seen["total"]["batches"], seen["total"]["groups"][0]["lag_batches"]) == (3, 0)

            before_ms = SystemClock().now_ms()
            with Producer(store) as producer:  # the store's clock, by which the collector goes, is told by a write
                producer.produce([b"3"]).result()
            Collector(store, grace=0.001, events=trail).collect_once()
            seen = look()
            assert seen["trail"]["sweep"]["deleted"] >= 3
            assert seen["trail"]["sweep"]["finished_ms"] >= before_ms
            assert seen["total"]["batches"] == 1
