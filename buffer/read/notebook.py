"""What a notebook shows of batches and scans: a table of their rows, and how far a long read has come."""

from __future__ import annotations

import sys
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

PREVIEW_ROWS = 5
"""Number of rows that a preview shows."""
_MAX_TEXT = 80
"""Maximum number of characters of a value that a preview shows."""

T = TypeVar("T")


def html_of(title: str, rows: pa.Table) -> str:
    """Return the schema and the first rows as an HTML table."""
    head = "".join(
        f"<th>{escape(field.name)}<br><small>{escape(str(field.type))}</small></th>" for field in rows.schema
    )
    body = "".join(
        f"<tr>{''.join(f'<td>{_text_of(value)}</td>' for value in row.values())}</tr>"
        for row in rows.slice(0, PREVIEW_ROWS).to_pylist()
    )
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text_of(value: object) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return escape(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…")


def with_progress(items: Iterable[T], total: int) -> Iterable[T]:
    """Return the items, and show a progress bar while they are taken if this is a notebook with rich installed."""
    # ipykernel is loaded in the process of every notebook, and in no other.
    if "ipykernel" not in sys.modules or find_spec("rich") is None:
        return items
    from rich.progress import track  # noqa: PLC0415 - an extra

    return track(items, "reading batches", total=total)
