"""What a runtime shows: status, a live table, lines in the log, metrics; and that a signal stops it (rfcs/0007)."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from filled import TIME, new_buffer
from patience import PATIENCE
from rich.console import Console

from forebay.buffer.producer import Producer
from forebay.runtime import NotCommitted, Runtime, RuntimeConfig, RuntimeStatus, Source, SourceStatus, StageStatus
from forebay.runtime.progress import Rates, make_line, make_view
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
            found_entries=8400,
            fetched_rows=4900,
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


def test_view_shows_every_source() -> None:
    shown = io.StringIO()
    Console(file=shown, width=200).print(make_view(STATUS, "10 rows/s"))
    for part in ("s3://lake/clicks", "etl", "4,200", "1,234", "12.5 s", "the sink: busy", "10 rows/s", "commit 3/4"):
        assert part in shown.getvalue()


@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_view_has_the_same_height_in_every_terminal_and_obeys_no_control_character(width: int) -> None:
    source = replace(STATUS.sources[0], waits_for="the sink: \x1b[2J[bold]busy[/bold]\nand\x9b1m more " + 100 * "x")
    shown = io.StringIO()
    Console(file=shown, width=width).print(make_view(replace(STATUS, sources=(source,)), "10 rows/s"))
    lines = shown.getvalue().splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() and len(line) <= width for line in lines)
    assert width < 200 or "[bold]busy[/bold]" in lines[-1]


def test_rates_count_what_is_found_and_fetched_and_not_committed_yet() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    clock.advance(10)
    assert rates.describe(STATUS) == "found 840 entries/s   fetched 490 rows/s, 1.0 MB/s"
    clock.advance(10)
    assert rates.describe(STATUS) == "found 0 entries/s   fetched 0 rows/s, 0.0 MB/s"


def test_rates_of_quick_looks_are_means_over_three_seconds() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    told = []
    for look in range(1, 9):
        clock.advance(1)
        source = replace(STATUS.sources[0], found_entries=0, fetched_rows=600 * (look // 2), bytes_read=0)
        told.append(rates.describe(replace(STATUS, sources=(source,))).split()[4])
    assert told[-4:] == ["200", "400", "200", "400"]


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
            thread.join(PATIENCE)
    assert "committed 0 rows in 0 commits" in caplog.text
    assert "the sink commits" in caplog.text


def run_in_terminal(program: str, url: str, *, views: int) -> tuple[str, str]:
    """Run a program whose standard error is a terminal, and close its input after it has drawn some views.

    Returns:
        What it printed into a pipe, and to the terminal.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "500", "TERM": "xterm"}
    command = [sys.executable, "-c", textwrap.dedent(program), url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=theirs, env=environment, text=True) as child:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # which tells the end
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
                if shown.count(b"forebay running   found") >= views and child.stdin is not None:
                    child.stdin.close()
                    child.stdin = None
        os.close(ours)
        printed, _ = child.communicate()
    assert child.returncode == 0, shown
    return printed, shown.decode()


def screen_after(shown: str) -> list[str]:
    """The lines that a terminal shows after it has obeyed what rich sends."""
    lines, row, column = [""], 0, 0
    for control, text in re.findall(r"(\x1b\[[?\d;]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", shown):
        if control == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif control == "\r":
            column = 0
        elif control == "\x1b[2K":
            lines[row] = ""
        elif control.endswith("A"):
            row -= int(control[2:-1])
        else:
            assert text or control.endswith(("m", "h", "l")), control
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines if line.strip()]


def test_terminal_gets_a_live_view_with_warnings_above_it_that_is_gone_at_the_end(tmp_path: Path) -> None:
    """In a real one, of a process of its own."""
    url = f"file://{tmp_path}/buffer"
    with Producer(url) as producer:
        producer.produce([b"a", b"b"])
    program = """
        import logging, sys, threading
        from forebay.runtime import CallableSink, Runtime, Source
        logging.basicConfig(format="%(levelname)s %(message)s")
        begun = threading.Event()
        def commit(commit):
            print("to the pipe")
            if not begun.is_set():
                begun.set()
                raise RuntimeError("busy")
            sys.stdin.read()
        runtime = Runtime([Source(sys.argv[1], group="etl")], CallableSink(commit))
        status = runtime.run(until_caught_up=True)
        logging.getLogger().error("the handler writes to the terminal again")
    """
    printed, shown = run_in_terminal(program, url, views=4)
    assert printed == "to the pipe\n" * 2
    assert re.search(r"fetched [\d,]+ rows/s", shown)
    first, last = screen_after(shown)
    assert first.startswith("WARNING file://")
    assert first.endswith("RuntimeError: busy")
    assert last == "ERROR the handler writes to the terminal again"


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
    thread.join(PATIENCE)
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
    assert child.communicate()[0] == "stopped 0\n"
    assert child.returncode == 0


METERED = textwrap.dedent("""
    import json, sys
    sys.path[:0] = sys.argv[1:]
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
    program = [sys.executable, "-c", METERED, str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    shown = subprocess.run(program, capture_output=True, text=True, check=True)
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
