"""What moved since the last committed results: shares of ceilings first, since those survive a change of machine."""

from __future__ import annotations

import json
import statistics
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Run = dict[str, Any]
"""A script's results, as they are kept."""
Pair = tuple[dict[str, Any], dict[str, Any]]

HERE = Path(__file__).resolve().parent
NOTABLE = 0.10
"""A share of a ceiling that moved by less is noise on any machine that others use too."""
_MOST_SHOWN = 12
_MOST_SHOWN_OF_QUICK = 3


def committed(name: str) -> Run | None:
    """The results of a script as committed, or else as they lie in `benchmarks/results`; None if there are none."""
    path = HERE / "results" / f"{name}.json"
    command = ["git", "show", f"HEAD:./results/{name}.json"]
    with suppress(FileNotFoundError):  # no git
        shown = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            found: Run = json.loads(shown.stdout)
            return found
    return json.loads(path.read_text()) if path.exists() else None


def describe(before: Run, now: Run) -> Iterator[str]:
    """Say what changed, a line each: verdicts, then whatever moved by more than a tenth, then one line for the rest."""
    yield "against the committed results"
    differences = list(_differences(before, now))
    for difference in differences:
        yield f"  beware: {difference}"
    if before["quick"] == now["quick"]:
        yield from _verdicts(before, now)
    if not now["rows"]:
        yield "  it has no shares of ceilings that could have moved"
    ceilings, others = _pairs(before, now)
    yield from _moved(others, most=_MOST_SHOWN if before["quick"] == now["quick"] else _MOST_SHOWN_OF_QUICK)
    speeds = [new["rate"] / old["rate"] for old, new in ceilings if old["rate"]]
    if speeds and not differences:
        yield f"  the ceilings themselves ran at {statistics.median(speeds):.2f} of their rates then (median)"
    left = len(now["rows"]) - len(ceilings) - len(others)
    if left:
        yield f"  {left} rows are new, or have another ceiling than then"


def _pairs(before: Run, now: Run) -> tuple[list[Pair], list[Pair]]:
    """Each row and what it was, where its group had the same ceiling: those of the ceilings, and the others."""
    earlier = {(row["group"], row["case"]): row for row in before["rows"]}
    had = {group["group"]: group["ceiling"] for group in before["groups"]}
    ceilings: list[Pair] = []
    others: list[Pair] = []
    for group in now["groups"]:
        for row in now["rows"]:
            was = earlier.get((row["group"], row["case"]))
            if row["group"] == group["group"] and was is not None and had.get(row["group"]) == group["ceiling"]:
                (ceilings if row["case"] == group["ceiling"] else others).append((was, row))
    return ceilings, others


def _differences(before: Run, now: Run) -> Iterator[str]:
    if before["quick"] != now["quick"]:
        which, other = ("this run", "the committed one") if now["quick"] else ("the committed run", "this one")
        yield f"{which} was --quick and {other} was not: even shares of ceilings differ by that alone"
    there, here = (run["machine"] | run["machine"]["packages"] for run in (before, now))
    facts = [fact for fact in here if fact != "packages" and fact in there]
    changed = [f"{fact} {there[fact]} then, {here[fact]} now" for fact in facts if there[fact] != here[fact]]
    if changed:
        yield f"another machine or other packages, so look at shares of ceilings alone: {'; '.join(changed)}"


def _verdicts(before: Run, now: Run) -> Iterator[str]:
    earlier = {promise["text"]: promise for promise in before["promises"]}
    for promise in now["promises"]:
        was = earlier.get(promise["text"])
        if was is not None and was["kept"] != promise["kept"]:
            verdict = "now kept" if promise["kept"] else "NO LONGER KEPT"
            yield f"  {verdict}: {promise['text']}  ({was['found']:.2f} then, {promise['found']:.2f} now)"


def _moved(pairs: list[Pair], *, most: int) -> Iterator[str]:
    changes = sorted(
        ((new["ratio"] / old["ratio"] - 1, old, new) for old, new in pairs if old["ratio"] > 0),
        key=lambda change: -abs(change[0]),
    )
    moved = [change for change in changes if abs(change[0]) > NOTABLE]
    for change, old, new in moved[:most]:
        shares = f"{old['ratio']:.2f} → {new['ratio']:.2f}"
        yield f"  {change:>+5.0%}  {shares:<16} {new['group']}: {new['case']}"
    if len(moved) > most:
        yield f"  and {len(moved) - most} more that moved by over {NOTABLE:.0%}"
    still = len(changes) - len(moved)
    if still:
        yield f"  {still} {'other ' if moved else ''}shares of ceilings within {NOTABLE:.0%} of what they were"
