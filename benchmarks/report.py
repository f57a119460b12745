"""One page of all results. Its first screen takes a minute to read: ratios to others, and missed promises with reasons.

Below it are all promises, and a picture for each script.

The page needs no other file, script or font. `python benchmarks report` writes it, and so does each run.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from headlines import OUTSIDE, QUESTIONS, SIZES, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headlines import Comparison

Run = dict[str, Any]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d", "#8b5a2b")
_CLOCKS = {"cpu": "processor time", "wall": "elapsed time"}
_WIDE, _LEFT, _RIGHT, _LINE = 960, 330, 110, 22
_MOST_TICKS = 9


def load(results: Path) -> list[Run]:
    """Every script's results, those with missed promises first."""
    runs = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    return sorted(runs, key=lambda run: (-len(_missed(run)), run["name"]))


def make_page(runs: Sequence[Run]) -> str:
    """The page as HTML."""
    promises = [promise for run in runs for promise in run["promises"]]
    kept = sum(promise["kept"] for promise in promises)
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>forebay, measured</title><style>{_STYLE}</style></head><body><main>",
        "<h1>forebay, measured</h1>",
        f'<p class="sum">{kept} of {len(promises)} promises kept, <b>{len(promises) - kept} missed</b></p>',
        f"<p>{_HOW_TO_READ}</p>",
        *_comparison(runs),
        *_reasons(runs),
        *_all_promises(runs),
        *_contents(runs),
        *_machine(runs),
        *(line for run in runs for line in _section(run)),
        "</main></body></html>",
    )
    return "\n".join(parts) + "\n"


_HOW_TO_READ = (
    "Unless a line says otherwise, a number is a ratio to something measured in the same run on the same machine. A "
    "<b>ceiling</b> is the least work that the same bytes can take (zstd alone, the store's client alone). A "
    "<b>peer</b> is what one would use instead. <b>1 means as fast as the ceiling or peer</b>, 0.5 half as fast, 2 "
    "twice as fast. A promise is the lowest ratio that a run may have."
)


def _comparison(runs: Sequence[Run]) -> Iterator[str]:
    """A short table for each question: forebay against ceilings and everything else that was measured."""
    named = {run["name"]: run for run in runs}
    sizes = "".join(f'<th class="n">{size}</th>' for size in SIZES)
    yield f'<table class="lines"><tr><th>forebay</th><th>against</th>{sizes}</tr>'
    for question, lines in QUESTIONS.items():
        rows = [row for line in lines for row in _line(line, named)]
        if rows:
            yield f'<tr><td colspan="4" class="question">{escape(question)}</td></tr>'
            yield from rows
    yield f'</table><p class="facts">{escape(OUTSIDE)}</p>'


def _line(line: Comparison, runs: Mapping[str, Run]) -> Iterator[str]:
    begin = f"<tr><td>{escape(line.what)}</td><td>{escape(line.against)}</td>"
    if isinstance(line.found, str):
        yield f'{begin}<td class="n" colspan="2">{escape(line.found)}</td></tr>'
    elif ratios := line.found.find(runs):
        wide = "" if len(ratios) > 1 else ' colspan="2"'
        cells = "".join(f'<td class="n{" kept" * (ratio >= 1)}"{wide}>{_number(ratio)}</td>' for ratio in ratios)
        yield f"{begin}{cells}</tr>"


def _reasons(runs: Sequence[Run]) -> Iterator[str]:
    """What was missed, by reason: those that nobody has explained first."""
    yield "<h2>Missed promises, and the reasons</h2>"
    yield '<table><tr><th>reason</th><th>promises</th><th class="n">measured, of what was promised</th></tr>'
    for reason, missed in explain(runs).items():
        counts = Counter(name for name, _ in missed)
        names = ", ".join(f'<a href="#{name}">{name}</a> {count}' for name, count in counts.items())
        reached = sorted(math.floor(100 * _margin(promise)) for _, promise in missed)
        share = " to ".join(f"{each}" for each in dict.fromkeys((reached[0], reached[-1])))
        why = escape(reason) if reason else '<b class="missed">No reason is known.</b>'
        yield f'<tr><td>{why}</td><td>{names}</td><td class="n">{share} %</td></tr>'
    yield "</table>"


def _machine(runs: Sequence[Run]) -> Iterator[str]:
    """What it ran on; once, if it is the same for all."""
    facts: dict[str, list[str]] = {}
    for run in runs:
        machine = run["machine"]
        text = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python "
        facts.setdefault(f"{text}{machine['python']}", []).append(run["name"])
    packages = sorted({f"{name} {number}" for run in runs for name, number in run["machine"]["packages"].items()})
    for text, names in facts.items():
        which = "" if len(facts) == 1 else f" ({', '.join(names)})"
        yield f'<p class="facts">{escape(text)}{escape(which)}; {escape(", ".join(packages))}</p>'
    quick = [run["name"] for run in runs if run["quick"]]
    if quick:
        yield f'<p class="warn">From a run with --quick, which proves nothing: {escape(", ".join(quick))}</p>'


def _missed(run: Run) -> list[dict[str, Any]]:
    return sorted((each for each in run["promises"] if not each["kept"]), key=_margin)


def _margin(promise: dict[str, Any]) -> float:
    """What was found as a share of what was promised."""
    return float(promise["found"] / promise["least"])


def _all_promises(runs: Sequence[Run]) -> Iterator[str]:
    """Every promise, to be looked up: those that were missed, the farthest of each script first, then the others."""
    missed = [(run["name"], promise) for run in runs for promise in _missed(run)]
    kept = [(run["name"], promise) for run in runs for promise in run["promises"] if promise["kept"]]
    for promises, said in ((missed, "missed"), (kept, "kept")):
        yield f"<details><summary>{len(promises)} {said} promises</summary>"
        yield from _promise_table(promises)
        yield "</details>"


def _promise_table(promises: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    yield '<table><tr><th>script</th><th>promise</th><th class="n">measured</th><th class="n">promised</th>'
    yield "<th>reached</th></tr>"
    for name, promise in promises:
        # Rounded down: a promise that is missed by very little is still missed.
        reached = "kept" if promise["kept"] else f"{math.floor(100 * _margin(promise))} %"
        verdict = f'<td class="{"kept" if promise["kept"] else "missed"}">{reached}</td>'
        numbers = "".join(f'<td class="n">{_number(promise[which])}</td>' for which in ("found", "least"))
        text = escape(promise["text"])
        yield f'<tr><td><a href="#{name}">{name}</a></td><td>{text}</td>{numbers}{verdict}</tr>'
    yield "</table>"


def _contents(runs: Sequence[Run]) -> Iterator[str]:
    yield "<h2>Scripts</h2>"
    yield '<table><tr><th>script</th><th>question</th><th class="n">kept</th><th>smallest margin</th></tr>'
    for run in runs:
        promises = run["promises"]
        kept = sum(promise["kept"] for promise in promises)
        nearest = min(promises, key=_margin, default=None)
        shown = "" if nearest is None else f"{_number(nearest['found'])} of {_number(nearest['least'])}"
        mark = "kept" if kept == len(promises) else "missed"
        yield (
            f'<tr><td><a href="#{run["name"]}">{run["name"]}</a></td><td>{escape(run["question"])}</td>'
            f'<td class="n {mark}">{kept}/{len(promises)}</td><td>{shown}</td></tr>'
        )
    yield "</table>"


def _section(run: Run) -> Iterator[str]:
    yield f'<section id="{run["name"]}"><h2>{run["name"]}</h2><p>{escape(run["question"])}</p>'
    cases = list(dict.fromkeys(row["case"] for row in run["rows"] if not _is_ceiling(run, row)))
    yield from _legend(cases)
    yield draw(run, cases)
    if run["promises"]:
        promises = sorted(run["promises"], key=_margin)
        yield f"<details><summary>all {len(promises)} promises, smallest margin first</summary>"
        yield from _promise_table((run["name"], promise) for promise in promises)
        yield "</details>"
    if run["notes"]:
        yield f"<details><summary>{len(run['notes'])} notes</summary><ul>"
        yield from (f"<li>{escape(note)}</li>" for note in run["notes"])
        yield "</ul></details>"
    yield "</section>"


def _is_ceiling(run: Run, row: dict[str, Any]) -> bool:
    return any(group["group"] == row["group"] and group["ceiling"] == row["case"] for group in run["groups"])


def _legend(cases: Sequence[str]) -> Iterator[str]:
    if not cases:
        return
    yield '<p class="legend">'
    for number, case in enumerate(cases):
        mark = f'<svg width="14" height="14" viewBox="-7 -7 14 14">{_mark(number, 0, 0)}</svg>'
        yield f"<span>{mark}{escape(case)}</span>"
    yield "</p>"


def draw(run: Run, cases: Sequence[str]) -> str:
    """A line for each group and a mark on it for each case; where there are no groups, for each promise."""
    blocks: dict[str, list[Line]] = {}
    for line in _lines_of_groups(run, cases) or _lines_of_promises(run):
        blocks.setdefault(line.header, []).append(line)
    parts: list[str] = []
    y = 0
    for header, lines in blocks.items():
        y += 18
        parts.append(f'<text x="0" y="{y}" class="head">{escape(header)}</text>')
        y = _draw_block(parts, lines, y) + 14
    return f'<svg viewBox="0 0 {_WIDE} {y}" role="img" aria-label="{run["name"]}">{"".join(parts)}</svg>'


def _draw_block(parts: list[str], lines: Sequence[Line], top: int) -> int:
    """Draw lines that share a ceiling, on a scale of their own; return where they end."""
    ratios = [ratio for line in lines for _, ratio, _ in line.marks]
    low, high = max(min([0.5, *ratios]), 1 / 64) / 1.1, max([2.0, *ratios]) * 1.1
    scale = (_WIDE - _LEFT - _RIGHT) / math.log(high / low)

    def place(ratio: float) -> float:
        return _LEFT + math.log(max(ratio, low) / low) * scale

    y = top + 14
    powers = [power for power in range(-6, 20) if low <= 2.0**power <= high]
    for power in powers if len(powers) <= _MOST_TICKS else [p for p in powers if p % 3 == 0]:
        tick = f"{2**power:,}" if power >= 0 else f"1/{2**-power}"
        parts.append(f'<text x="{place(2.0**power):.1f}" y="{y}" text-anchor="middle" class="tick">{tick}</text>')
    begin = y + 4
    for line in lines:
        y += _LINE
        parts.append(f'<text x="{_LEFT - 14}" y="{y + 4}" text-anchor="end">{escape(_shorten(line.label))}</text>')
        parts.append(f'<path d="M{_LEFT} {y}H{_WIDE - _RIGHT}" stroke="#e4e7eb"/>')
        for number, ratio, title in line.marks:
            parts.append(f"<g><title>{escape(title)}</title>{_mark(number, place(ratio), y)}</g>")
        parts.append(f'<text x="{_WIDE}" y="{y + 4}" text-anchor="end">{escape(line.right)}</text>')
    parts.append(f'<path d="M{place(1):.1f} {begin}V{y + 9}" stroke="#c0392b" stroke-dasharray="4 3"/>')
    return y + 10


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a picture."""

    header: str
    """What a ratio of 1 stands for."""
    label: str
    marks: list[tuple[int, float, str]]
    """Name of the case, its place, and the text under a pointer."""
    right: str


def _lines_of_groups(run: Run, cases: Sequence[str]) -> list[Line]:
    lines = []
    for group in run["groups"]:
        rows = [row for row in run["rows"] if row["group"] == group["group"]]
        others = [row for row in rows if row["case"] != group["ceiling"]]
        marks = [
            (cases.index(row["case"]), row["ratio"], f"{row['case']}: {row['ratio']:.2f}, {_rate(row)}")
            for row in others
        ]
        ratios = sorted(row["ratio"] for row in others)
        right = f"{_number(ratios[0])} to {_number(ratios[-1])}" if len(ratios) > 1 else "".join(map(_number, ratios))
        header = f"1 is: {group['ceiling']} ({_CLOCKS[group['clock']]})"
        if not others:
            header, right = "not compared with anything", _rate(rows[0])
        lines.append(Line(header, group["group"], marks, right))
    return lines


def _lines_of_promises(run: Run) -> list[Line]:
    return [
        Line("1 is: what was promised", each["text"], [(0, _margin(each), each["text"])], _number(_margin(each)))
        for each in run["promises"]
    ]


def _mark(number: int, x: float, y: float) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    match number // len(_COLOURS) % 3:
        case 0:
            return f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"/>'
        case 1:
            return f'<rect x="{x - 4.5:.1f}" y="{y - 4.5}" width="9" height="9" fill="{colour}"/>'
        case _:
            return f'<path d="M{x:.1f} {y - 6}l6 11h-12z" fill="{colour}"/>'


def _rate(row: dict[str, Any]) -> str:
    if row["unit"]:
        return f"{row['rate']:,.0f} {row['unit']}/s"
    seconds = statistics.median(row["seconds"])
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.0f} ms"


def _number(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}" if abs(number) < 0.1 else f"{number:.2f}"


def _shorten(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


_STYLE = """
body{margin:0;background:#fff;color:#1f2933;font:15px/1.5 system-ui,sans-serif}
main{max-width:980px;margin:0 auto;padding:16px 20px 60px}
h1{margin:8px 0 0;font-size:28px}h2{margin:36px 0 8px;font-size:20px}
.sum{font-size:20px;margin:4px 0}.facts{color:#616e7c;margin:2px 0;font-size:13px}
.warn,.missed,.sum b{color:#b42318;font-weight:600}.kept{color:#1d7a46}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid #e4e7eb;vertical-align:top}
th{color:#616e7c;font-weight:600}
.lines td{padding:1px 10px 1px 0;border:0}.lines .question{padding-top:8px;font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
a{color:#0b5cad;text-decoration:none}
section{border-top:2px solid #cbd2d9;margin-top:36px}section h2{margin-top:16px}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px;margin:6px 0}
.legend span{display:inline-flex;align-items:center;gap:5px}
svg{max-width:100%;height:auto;display:block}svg text{font-size:12.5px;fill:#1f2933}
svg .head{font-weight:600}svg .tick{fill:#616e7c}
summary{cursor:pointer;color:#0b5cad;font-size:14px;margin:6px 0}
details ul{font-size:13px;overflow-wrap:anywhere}
"""
