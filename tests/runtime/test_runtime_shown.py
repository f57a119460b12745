"""What a runtime shows: status, a live table, lines in the log, metrics; and that a signal stops it (rfcs/0007)."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from filled import TIME, new_buffer
from rich.console import Console

from forebay.buffer.producer import Producer
from forebay.runtime import NotCommitted, Runtime, RuntimeConfig, RuntimeStatus, Source, SourceStatus, StageStatus
from forebay.runtime.progress import Rates, make_line, make_table
from forebay.testing import ManualClock
from forebay.testing.ledger import LedgerSink

STATUS = RuntimeStatus(
    state="running",
    sources=(
        SourceStatus(
            url="s3://lake/clicks",
            group="etl",
            committed=41,
            acked=40,
            lag_batches=1234,
            lag_seconds=12.5,
            batches=3,
            bytes=5 << 20,
            commits=42,
            rows=4200,
            bytes_read=10_000_000,
            dead_letters=0,
            waits_for="the sink: busy",
            over=False,
        ),
    ),
    stages=(StageStatus("fetch", 4, 1, 2), StageStatus("commit", 4, 3, 0)),
    batches=3,
    max_batches=1024,
    bytes=5 << 20,
    max_bytes=512 << 20,
)


def test_line_says_rates_lag_depths_and_what_it_waits_for() -> None:
    line = make_line(STATUS, "10 rows/s, 1.0 MB/s")
    for part in ("10 rows/s", "4,200 rows in 42 commits", "1,234 batches behind", "3 of 1024 batches", "5.0 MiB",
                 "fetch 1/4", "commit 3/4", "the sink: busy"):  # fmt: skip
        assert part in line
    assert "\n" not in line


def test_table_shows_every_source() -> None:
    shown = io.StringIO()
    Console(file=shown, width=200).print(make_table(STATUS, "10 rows/s"))
    for part in ("s3://lake/clicks", "etl", "41", "1,234", "12.5 s", "the sink: busy", "10 rows/s", "commit 3/4"):
        assert part in shown.getvalue()


def test_rates_are_counted_between_two_looks() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    clock.advance(10)
    assert rates.describe(STATUS) == "420 rows/s, 1.0 MB/s"
    clock.advance(10)
    assert rates.describe(STATUS) == "0 rows/s, 0.0 MB/s"


def test_log_gets_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    store = new_buffer("log", 3)
    clock = ManualClock()
    sink = LedgerSink()
    sink.hold()
    runtime = Runtime([Source(store, group="etl")], sink, RuntimeConfig(progress_seconds=10), clock=clock)
    logged = threading.Event()

    class Noticing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.set()

    logger = logging.getLogger("forebay.runtime")
    handler = Noticing()
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, "forebay.runtime"):
        thread = threading.Thread(target=runtime.run, daemon=True)
        thread.start()
        try:
            assert sink.wait_for_calls(3)
            assert not logged.is_set()
            while not logged.wait(0.01):
                clock.advance(5)
        finally:
            logger.removeHandler(handler)
            sink.release()
            runtime.stop()
            thread.join(30)
    assert "0 rows in 0 commits" in caplog.text
    assert "the sink commits" in caplog.text


def test_terminal_gets_a_live_table(tmp_path: Path) -> None:
    """In a real one, of a process of its own."""
    url = f"file://{tmp_path}/buffer"
    with Producer(url) as producer:
        producer.produce([b"a", b"b"])
    program = textwrap.dedent("""
        import sys
        from forebay.runtime import CallableSink, Runtime, Source
        Runtime([Source(sys.argv[1], group="etl")], CallableSink(lambda commit: None)).run(until_caught_up=True)
    """)
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
        subprocess.run([sys.executable, "-c", program, url], stderr=theirs, env=environment, timeout=60, check=True)
        os.close(theirs)
        shown = os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
    assert "forebay" in shown
    assert "etl" in shown


def test_status_says_what_each_source_waits_for() -> None:
    store = new_buffer("waits", 1)
    sink = LedgerSink(*[(False, NotCommitted("table locked"))] * 3)
    reasons: set[str] = set()
    clock = ManualClock(TIME + 60_000)
    runtime = Runtime([Source(store, group="etl")], sink, clock=clock)
    thread = threading.Thread(target=runtime.run, kwargs={"show_progress": False}, daemon=True)
    thread.start()
    oldest = 0.0
    while "there are no new batches" not in reasons:
        for source in runtime.status().sources:
            reasons.add(source.waits_for)
            oldest = max(oldest, source.lag_seconds)
        clock.advance(1)
        threading.Event().wait(0.01)
    runtime.stop()
    thread.join(30)
    assert "the sink: table locked" in reasons
    assert oldest >= 60
    assert runtime.status().state == "stopped"
    assert runtime.status().sources[0].over


def test_signal_stops_it_and_what_is_done_is_acknowledged(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/buffer"
    with Producer(url) as producer:
        producer.produce([b"a", b"b"])
    program = textwrap.dedent("""
        import signal, sys
        from forebay.runtime import CallableSink, Runtime, Source
        sink = CallableSink(lambda commit: print("committed", flush=True))
        runtime = Runtime([Source(sys.argv[1], group="etl")], sink)
        signal.signal(signal.SIGTERM, lambda number, frame: runtime.stop(drain=5))
        status = runtime.run(show_progress=False)
        print(status.state, status.sources[0].acked)
    """)
    child = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "committed\n"
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=60)[0] == "stopped 0\n"
    assert child.returncode == 0


METERED = textwrap.dedent("""
    import json, sys
    sys.path.insert(0, sys.argv[1])
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))

    from filled import new_buffer, run
    from forebay.runtime import NotCommitted
    from forebay.testing.ledger import LedgerSink
    run(new_buffer("metered", 5), LedgerSink((False, NotCommitted("busy"))))

    seen = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    seen.setdefault(metric.name, []).append(
                        [point.count if value is None else value, dict(point.attributes)]
                    )
    print(json.dumps(seen))
""")


def test_every_stage_is_measured() -> None:
    """In a process of its own: a provider can be set once."""
    program = [sys.executable, "-c", METERED, str(Path(__file__).parent)]
    shown = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    seen = {name.removeprefix("forebay.runtime."): points for name, points in json.loads(shown.stdout).items()}
    assert {point["stage"] for _value, point in seen["stage.depth"]} == {"fetch", "commit"}
    assert [value for value, _ in seen["batches_in_flight"]] == [0]
    assert [value for value, _ in seen["bytes_in_flight"]] == [0]
    assert {point["answer"]: value for value, point in seen["commits"]} == {"Committed": 5, "NotCommitted": 1}
    assert [value for value, _ in seen["commit.duration"]] == [6]
    assert seen["rows"] == [[10, {"buffer": "memory://runtime-metered", "group": "etl"}]]
    assert [value for value, _ in seen["lag.batches"]] == [0]
    assert seen["ack.duration"][0][0] >= 1
    assert {point["reason"] for _value, point in seen["waiting"]} <= {"data", "room", "fetch", "sink", "more", "store"}
