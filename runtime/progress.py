"""How it goes, for people: a live table in a terminal, a line in the log elsewhere."""

from __future__ import annotations

import importlib.util
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from forebay.buffer.base.clock import Clock
    from forebay.runtime.status import RuntimeStatus, SourceStatus

_log = logging.getLogger("forebay.runtime")
_REFRESHES_PER_SECOND = 2


class Rates:
    """Rows and bytes each second since the look before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock.monotonic()
        self._rows = self._bytes = 0

    def describe(self, status: RuntimeStatus) -> str:
        """Return the rates as text, and count from here on."""
        now = self._clock.monotonic()
        seconds = max(1e-3, now - self._at)
        # A source that was removed takes its count with it.
        rows = max(0, status.rows - self._rows) / seconds
        read = max(0, status.bytes_read - self._bytes) / seconds
        self._at, self._rows, self._bytes = now, status.rows, status.bytes_read
        return f"{rows:,.0f} rows/s, {read / 1e6:,.1f} MB/s"


@contextmanager
def show(look: Callable[[], RuntimeStatus], clock: Clock, *, wanted: bool) -> Iterator[Callable[[], None] | None]:
    """Show how it goes while the block runs; give what logs a line, or None where nothing is to be logged."""
    rates = Rates(clock)
    if not wanted:
        yield None
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        # An extra, and slow to import: loaded where there is someone to look at it.
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        def render() -> Table:
            status = look()
            return make_table(status, rates.describe(status))

        with Live(get_renderable=render, console=Console(stderr=True), refresh_per_second=_REFRESHES_PER_SECOND):
            yield None
    else:

        def log() -> None:
            status = look()
            _log.info("%s", make_line(status, rates.describe(status)))

        yield log


def make_line(status: RuntimeStatus, rates: str) -> str:
    """Return the state of a runtime as one line."""
    stages = ", ".join(f"{stage.name} {stage.busy}/{stage.threads} and {stage.waiting} wait" for stage in status.stages)
    reasons = {source.waits_for for source in status.sources if source.waits_for}
    return (
        f"{status.state}: {rates}, {status.rows:,} rows in {status.commits:,} commits, {status.lag_batches:,} batches "
        f"behind; {status.batches} of {status.max_batches} batches and {_mib(status.bytes)} of "
        f"{_mib(status.max_bytes)} under way; {stages}" + (f"; {'; '.join(sorted(reasons)[:3])}" if reasons else "")
    )


def make_table(status: RuntimeStatus, rates: str) -> Table:
    """Return the state of a runtime as a table for a terminal."""
    from rich.table import Table  # noqa: PLC0415

    stages = "   ".join(f"{stage.name} {stage.busy}/{stage.threads}, {stage.waiting} wait" for stage in status.stages)
    table = Table(
        title=f"forebay {status.state}   {rates}   {stages}   {status.batches}/{status.max_batches} batches, "
        f"{_mib(status.bytes)}/{_mib(status.max_bytes)}",
        title_justify="left",
    )
    for name in ("source", "group", "committed", "behind", "age", "under way", "rows", "waits for"):
        table.add_column(name, justify="left" if name in {"source", "group", "waits for"} else "right")
    for source in status.sources:
        table.add_row(*_cells(source))
    return table


def _cells(source: SourceStatus) -> tuple[str, ...]:
    return (
        source.url,
        source.group or "-",
        "-" if source.committed is None else f"{source.committed:,}",
        f"{source.lag_batches:,}",
        f"{source.lag_seconds:,.1f} s",
        f"{source.batches} ({_mib(source.bytes)})",
        f"{source.rows:,}",
        "over" if source.over else source.waits_for,
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
