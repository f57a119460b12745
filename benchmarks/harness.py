"""What every benchmark shares: fair measuring, one table, a JSON file and a picture.

A script answers one question. Its docstring's first line is the question, and its `run(bench)` calls `bench.compare`
once for each group of things to compare and `bench.require` for each promise. All cases of a group take turns, round
after round, so that whatever else the machine does hits all of them alike. Processor time is compared by the best
round, since noise only ever adds to it. Elapsed time uses the median of the rounds' own ratios, since there waiting is
the point.
Absolute times on a shared machine mean nothing, so the table leads with the ratio to a named ceiling or peer.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from html import escape
from importlib import metadata
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Clock = Literal["cpu", "wall"]
_CLOCKS: dict[Clock, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
_MAX_TIMES = 25
"""Maximum number of times that the results keep of one case."""


class Skipped(Exception):
    """A script cannot run here, and says why. The committed results stay."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case of one group, measured."""

    group: str
    case: str
    ratio: float
    """Its speed as a share of the ceiling's: above 1 is faster."""
    rate: float
    """Units each second."""
    unit: str
    seconds: list[float]
    """Time of every round."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A number that must be reached, and the number that was."""

    text: str
    least: float
    found: float

    @property
    def kept(self) -> bool:
        return self.found >= self.least


@dataclass(slots=True)
class Bench:
    """One script's run."""

    name: str
    question: str
    quick: bool = False
    """Small inputs and few rounds, to see that it works: its numbers prove nothing."""
    rows: list[Row] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)
    """What a page of docs/ is computed from; kept with the results."""
    ceilings: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)

    def compare(
        self,
        group: str,
        cases: Mapping[str, Callable[[], object]],
        *,
        ceiling: str,
        amount: float,
        unit: str = "MB",
        rounds: int = 9,
        clock: Clock = "wall",
        rehearse: bool = True,
    ) -> dict[str, float]:
        """Measure the cases in turns and return each one's speed as a share of the ceiling's.

        `amount` is how many units one call handles; unit "MB" takes it in bytes. The clock "cpu" counts the processor
        time of the whole process, all threads: right for pure computing, blind to waiting. Without `rehearse` a case
        is not run once unmeasured before each time it is measured: for runs long enough to warm up by themselves.
        """
        rounds = 3 if self.quick else rounds
        self.progress(group)
        times = _take_turns(cases, rounds, _CLOCKS[clock], rehearse=rehearse)
        scale = 1e6 if unit == "MB" else 1.0
        ratios = {}
        for case, seconds in times.items():
            if clock == "cpu":
                typical, ratios[case] = min(seconds), min(times[ceiling]) / min(seconds)
            else:
                typical = statistics.median(seconds)
                ratios[case] = statistics.median(c / s for c, s in zip(times[ceiling], seconds, strict=True))
            rate = amount / scale / typical
            self.rows.append(Row(group, case, ratios[case], rate, unit, seconds))
        self.ceilings[group], self.clocks[group] = ceiling, clock
        return ratios

    def record(self, group: str, seconds: Mapping[str, list[float]], *, ceiling: str) -> dict[str, float]:
        """Take times that the script measured itself, and return each case's share of the ceiling's speed."""
        median = {case: statistics.median(times) for case, times in seconds.items()}
        ratios = {case: median[ceiling] / found for case, found in median.items()}
        for case, times in seconds.items():
            self.rows.append(Row(group, case, ratios[case], 1 / median[case], "", times))
        self.ceilings[group], self.clocks[group] = ceiling, "wall"
        return ratios

    def require(self, text: str, found: float, *, least: float) -> None:
        """Record whether a promised ratio was reached in this run."""
        self.promises.append(Promise(text, least, found))

    def progress(self, text: str) -> None:
        """Say what is being measured now."""
        print(f"  measuring: {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Record a fact that belongs beside the numbers."""
        self.notes.append(text)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    def save(self, out: Path | None) -> None:
        """Write `<name>.json` and a picture into `out`, unless that is None."""
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{self.name}.json").write_text(to_text(self.as_json()))
            if self.rows:
                (out / f"{self.name}.svg").write_text(draw(self))

    def show(self) -> None:
        """Print the table, the notes and the promises."""
        print(f"\n{self.name}: {self.question}")
        width = max((len(row.case) for row in self.rows), default=0)
        group = None
        for row in self.rows:
            if row.group != group:
                group = row.group
                print(f"\n  {group}  (1.00 = {self.ceilings[group]}; {self.clocks[group]} time)")
            print(f"    {row.case:<{width}}  {row.ratio:>7.2f}  {row.rate:>10.1f} {row.unit}/s")
        if self.notes:
            print()
        for note in self.notes:
            print(f"  {note}")
        if self.promises:
            print("\n  promised")
        for promise in self.promises:
            verdict = "kept" if promise.kept else "MISSED"
            print(f"    {verdict:<6}  {promise.found:>7.2f}  of at least {promise.least:g}   {promise.text}")

    def as_json(self) -> dict[str, Any]:
        """The run as it is kept."""
        return {
            "name": self.name,
            "question": self.question,
            "quick": self.quick,
            "machine": machine_facts(),
            "groups": [
                {"group": group, "ceiling": ceiling, "clock": self.clocks[group]}
                for group, ceiling in self.ceilings.items()
            ],
            "rows": [asdict(row) | {"seconds": _sample(row.seconds)} for row in self.rows],
            "promises": [asdict(promise) | {"kept": promise.kept} for promise in self.promises],
            "notes": self.notes,
            **({"figures": self.figures} if self.figures else {}),
        }


def to_text(run: Mapping[str, Any]) -> str:
    """Results as JSON with a line for each row, promise and note, so that git shows which of them changed."""
    fields = []
    for name, value in _rounded(run).items():
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        if isinstance(value, list) and value:
            lines = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in value]
            text = "[\n" + ",\n".join(lines) + "\n]"
        fields.append(f"{json.dumps(name)}:{text}")
    return "{" + ",\n".join(fields) + "}\n"


def _rounded(value: Any) -> Any:
    """The same value with its floats rounded to six significant digits: more would be noise."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
        case _:
            return value


def _sample(seconds: list[float]) -> list[float]:
    """Every time if there are at most `_MAX_TIMES`; else that many at evenly spaced ranks, shortest to longest."""
    if len(seconds) <= _MAX_TIMES:
        return seconds
    ordered = sorted(seconds)
    return [ordered[round(rank * (len(ordered) - 1) / (_MAX_TIMES - 1))] for rank in range(_MAX_TIMES)]


def _take_turns(
    cases: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float], *, rehearse: bool
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {case: [] for case in cases}
    order = list(cases)
    random = Random(0)
    for _ in range(rounds):
        gc.collect()
        random.shuffle(order)
        for case in order:
            # Once unmeasured: it then meets its own caches and pooled memory, as in a loop, not its neighbour's.
            if rehearse:
                cases[case]()
            start = clock()
            result = cases[case]()
            times[case].append(clock() - start)
            del result
    return times


def machine_facts() -> dict[str, object]:
    """What a reader needs to judge the numbers by; nothing that names the machine."""
    versions = {}
    for package in ("pyarrow", "zstandard", "obstore", "s3fs", "pyspark", "confluent-kafka"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def draw(bench: Bench) -> str:
    """Return the run as an SVG: a bar for each case, groups below one another, a line where the ceiling is."""
    bar, gap, left, right, wide = 18, 6, 300, 150, 980
    parts: list[str] = []
    y = 58
    for group, ceiling in bench.ceilings.items():
        rows = [row for row in bench.rows if row.group == group]
        scale = (wide - left - right) / max(1.0, *(row.ratio for row in rows))
        parts.append(_text(16, y, f"{group}: 1.0 is {ceiling}", weight="bold"))
        y += 12
        top = y
        for row in rows:
            length = max(1.0, row.ratio * scale)
            colour = "#9aa5b1" if row.case == ceiling else "#2a7f9e"
            parts.append(_text(left - 8, y + 13, row.case, anchor="end"))
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar}" rx="2" fill="{colour}"/>')
            parts.append(_text(left + length + 6, y + 13, f"{row.ratio:.2f}  ({row.rate:,.0f} {row.unit}/s)"))
            y += bar + gap
        x = left + scale
        parts.append(f'<path d="M{x:.1f} {top - 3}V{y - 3}" stroke="#c0392b" stroke-dasharray="4 3"/>')
        y += 30
    head = _text(16, 28, f"{bench.name}: {bench.question}", weight="bold", size=15)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y}" font-family="system-ui, sans-serif">\n'
        f'<rect width="{wide}" height="{y}" fill="#ffffff"/>\n{head}\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 13) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="#1f2933"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
