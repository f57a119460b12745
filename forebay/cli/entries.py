"""Entries and rows on standard output, for `consume`, `tail` and `batch cat`."""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.buffer.base.errors import Unsupported
from forebay.buffer.format.json_rows import rows_as_json
from forebay.buffer.format.schema import RESERVED
from forebay.cli.output import as_json_value, escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forebay.buffer.read.fetch import Batch

_ROWS_AT_ONCE: Final = 4096
_WIDEST_CELL: Final = 60
"""Maximum number of characters of a value in a table; longer ones are cut."""

format_option: Final = click.option(
    "--format",
    "as_format",
    type=click.Choice(["lines", "json", "table", "hex"]),
    default="lines",
    show_default=True,
    help="lines: bytes as they are, a row as a JSON object that `produce` can read; json: one object per entry, with "
    f"its sequence, index, time and metadata; table: aligned columns, values cut after {_WIDEST_CELL} characters; hex.",
)


class EntryWriter:
    """Writes the entries of batches in one format. The heading of a table is not repeated while its columns stay."""

    def __init__(self, as_format: str) -> None:
        self._format = as_format
        self._widths: dict[str, int] = {}
        """By name, how wide each column of the table is so far."""

    def write(self, batch: Batch, first: int = 0) -> None:
        """Write the entries of a batch from one on, and hand them on before this returns."""
        is_typed = batch.schema is not None
        if self._format == "table":
            rows = map(json.loads, _documents(batch, first)) if is_typed else _records(batch, first)
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                self._write_table(some)
        elif self._format == "json":
            _write_all(json.dumps(row).encode() for row in _records(batch, first))
        elif self._format == "hex":
            if is_typed:
                raise Unsupported(
                    f"batch {batch.location} holds rows of a schema, which have no bytes to show: use lines, json "
                    "or table"
                )
            _write_all(entry.hex().encode() for entry in batch.entries[first:])
        else:
            _write_all(_documents(batch, first) if is_typed else batch.entries[first:])
        sys.stdout.buffer.flush()

    def _write_table(self, rows: list[dict[str, Any]]) -> None:
        # Bytes that are not text have a name of their own, so rows may differ in their names.
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[_as_cell(row.get(name)) for name in names] for row in rows]
        heads = [_as_cell(name) for name in names]
        before = self._widths if list(self._widths) == names else dict.fromkeys(names, 0)
        widths = {
            name: max(before[name], *map(len, column)) for name, *column in zip(names, heads, *cells, strict=True)
        }
        lines = cells
        if widths != self._widths:
            gap: list[list[str]] = [[""] * len(names)] if self._widths else []
            lines = [*gap, heads, ["-" * width for width in widths.values()], *cells]
            self._widths = widths
        pads = list(widths.values())
        _write_all("  ".join(map(str.ljust, line, pads)).rstrip().encode() for line in lines)


def _documents(batch: Batch, first: int) -> Iterator[bytes]:
    """Rows as JSON."""
    for start in range(first, batch.table.num_rows, _ROWS_AT_ONCE):
        yield from rows_as_json(batch.table.slice(start, _ROWS_AT_ONCE))


def _records(batch: Batch, first: int) -> Iterator[dict[str, Any]]:
    """Entries with their place, time and metadata, as JSON can hold them."""
    records = batch.records().slice(first)
    for start in range(0, records.num_rows, _ROWS_AT_ONCE):
        some = records.slice(start, _ROWS_AT_ONCE)
        if batch.schema is None:
            yield from map(_as_text, some.to_pylist())
        else:
            documents = rows_as_json(some.drop_columns(list(RESERVED)))
            places = some.select(RESERVED).to_pylist()
            yield from (
                json.loads(document) | _as_text(place) for document, place in zip(documents, places, strict=True)
            )


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON can hold it: bytes as text, or in base64 under a name that says so."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        shown |= as_json_value(name, value)
    return shown


def _as_cell(value: Any) -> str:
    """A value as one line of text: text as it is, everything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = escape(text.replace("\n", "\\n").replace("\t", "\\t"))
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 1]}…"


def _write_all(lines: Iterable[bytes]) -> None:
    """Write a line for each."""
    if sys.stdout.isatty():
        lines = (escape(line).encode() for line in lines)
    lines = iter(lines)
    while some := list(islice(lines, _ROWS_AT_ONCE)):
        sys.stdout.buffer.write(b"\n".join(some) + b"\n")
