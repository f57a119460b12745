"""The tables of docs/performance.md, written by `python benchmarks/performance.py` from what was measured.

`python benchmarks cpu compressing growth` measures, and keeps it in benchmarks/results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import compressing
from cost import put_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE / "results"
PAGE = _HERE.parent / "docs" / "performance.md"
BEGINNINGS = {
    "parts": "<!-- parts, from benchmarks/performance.py -->",
    "compression": "<!-- compression, from benchmarks/performance.py -->",
    "clients": "<!-- clients, from benchmarks/performance.py -->",
    "threads": "<!-- threads, from benchmarks/performance.py -->",
    "growth": "<!-- growth, from benchmarks/performance.py -->",
}
SCRIPTS = ("cpu", "compressing", "growth")
_PLACES = ("file", "S3 by s3fs", "S3 by obstore")
_SHAPES = ("1 KiB", "100 B")


def make_page(page: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with its tables replaced by what each script measured."""
    cpu, growth = figures["cpu"], figures["growth"]
    tables = {
        "parts": [*_producing(cpu), "", *_consuming(cpu)],
        "compression": compressing.make_table(figures["compressing"]),
        "clients": _clients(cpu),
        "threads": _threads(cpu),
        "growth": _growth(growth),
    }
    for name, rows in tables.items():
        page = put_tables(page, "\n".join(rows), BEGINNINGS[name])
    return page


def _producing(cpu: Mapping[str, Any]) -> Iterator[str]:
    yield "| produce | whole | encode | compress | checksum | put | rest |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for shape in _SHAPES:
        for form, shown in (("a list", "lists"), ("Arrow", "Arrow")):
            for place in _PLACES:
                parts = (f"encode {form}", "compress", "checksum", f"{place}: put")
                yield _row(cpu, shape, f"{shape}, {shown}, {place}", f"{place}: produce {form}", parts)


def _consuming(cpu: Mapping[str, Any]) -> Iterator[str]:
    yield "| consume | whole | get | checksum | decompress | split | make `bytes` | rest |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for shape in _SHAPES:
        for form, last in (("Arrow", ""), ("bytes", "make bytes")):
            for place in _PLACES:
                parts = (f"{place}: get", "checksum", "decompress", "split", last)
                yield _row(cpu, shape, f"{shape}, to {form}, {place}", f"{place}: consume to {form}", parts)


def _row(cpu: Mapping[str, Any], shape: str, shown: str, whole: str, parts: tuple[str, ...]) -> str:
    seconds = cpu[shape]["seconds"]
    each = [seconds[part] if part else 0.0 for part in parts]
    cells = [seconds[whole], *each, seconds[whole] - sum(each)]
    return f"| {shown} | {' | '.join(f'{cell:.2f}' if cell else '' for cell in cells)} |"


def _clients(cpu: Mapping[str, Any]) -> Iterator[str]:
    yield "| | s3fs | obstore |"
    yield "| --- | --- | --- |"
    large, small = cpu["objects of 8 MiB"], cpu["objects of 2 kB"]
    for do in ("put", "get"):
        found = {
            f"{do} 8 MiB, MB/s": [f"{large['wall'][_of(client, do)]:.0f}" for client in _PLACES[1:]],
            f"{do} 8 MiB, CPU s for each GB": [f"{1e3 / large['cpu'][_of(client, do)]:.2f}" for client in _PLACES[1:]],
            f"{do} 2 kB, requests/s": [f"{small['wall'][_of(client, do)]:.0f}" for client in _PLACES[1:]],
            f"{do} 2 kB, CPU ms for each": [f"{1e3 / small['cpu'][_of(client, do)]:.2f}" for client in _PLACES[1:]],
        }
        yield from (f"| {what} | {' | '.join(cells)} |" for what, cells in found.items())
    counts = [sum(cpu[f"requests, {client}"].values()) for client in _PLACES[1:]]
    yield f"| requests for eight batches written, read and acknowledged | {counts[0]} | {counts[1]} |"


def _of(client: str, do: str) -> str:
    return f"{client}: {do}"


def _threads(cpu: Mapping[str, Any]) -> Iterator[str]:
    roles = ("caller", "apply", "flush")
    yield f"| lists of | {' | '.join(roles)} | others | waits | with no producer |"
    yield f"|{' --- |' * (len(roles) + 4)}"
    for shape in _SHAPES:
        found = cpu[f"threads, {shape} in lists"]
        shares = [found["shares"].get(role, 0.0) for role in roles]
        cells = [f"{share:.0%}" for share in (*shares, max(0.0, 1 - sum(shares)))]
        waits = [f"{found[key]:.2f} ms" for key in ("waits_ms", "idle_waits_ms")]
        yield f"| {shape} | {' | '.join((*cells, *waits))} |"


def _growth(growth: Mapping[str, Any]) -> Iterator[str]:
    yield "| for each GB | | CPU s | MB to and from the store | writes | reads | deletes |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for group, cases in growth.items():
        for case, cost in cases.items():
            numbers = (cost["cpu"], (cost["written"] + cost["read"]) / 1e6)
            counts = (cost["writes"], cost["reads"], cost["deletes"])
            cells = [*(f"{number:.2f}" for number in numbers), *(f"{number:.1f}" for number in counts)]
            yield f"| {group.partition(',')[0]} | {case} | {' | '.join(cells)} |"


def read_figures(name: str) -> dict[str, Any]:
    """What a script measured when its results were last kept."""
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
    return figures


def main() -> int:
    PAGE.write_text(make_page(PAGE.read_text(), {name: read_figures(name) for name in SCRIPTS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
