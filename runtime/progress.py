"""How it goes, for people: a live view in a terminal, a line in the log elsewhere."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections import deque
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO

from forebay.buffer.base.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Group

    from forebay.buffer.base.clock import Clock
    from forebay.runtime.status import RuntimeStatus, SourceStatus

_log = logging.getLogger("forebay.runtime")
_REFRESH_SECONDS = 0.5
_RATE_SECONDS = 3.0


class Rates:
    """What each second brought over the last few seconds, or since the look before if that was longer ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks = deque([(clock.monotonic(), 0, 0, 0)])

    def describe(self, status: RuntimeStatus) -> str:
        """Return the rates as text: what was found in the manifests, and what was fetched of it."""
        now = self._clock.monotonic()
        self._looks.append((now, status.found_entries, status.fetched_rows, status.bytes_read))
        while len(self._looks) > 2 and self._looks[1][0] <= now - _RATE_SECONDS:
            self._looks.popleft()
        (since, *before), (_, *after) = self._looks[0], self._looks[-1]
        seconds = max(1e-3, now - since)
        # A source that was removed takes its counts with it.
        found, rows, read = (max(0, late - early) / seconds for early, late in zip(before, after, strict=True))
        return f"found {found:,.0f} entries/s   fetched {rows:,.0f} rows/s, {read / 1e6:,.1f} MB/s"


@contextmanager
def show(look: Callable[[], RuntimeStatus], clock: Clock, *, wanted: bool) -> Iterator[Callable[[], None] | None]:
    """Show how it goes while the block runs; give what logs a line, or None where nothing is to be logged."""
    rates = Rates(clock)
    if not wanted:
        yield None
    elif _can_show_live():
        with _live_view(look, rates):
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
        f"{status.state}: {rates}   committed {counted(status.rows, 'row')} in {counted(status.commits, 'commit')}, "
        f"{counted(status.lag_batches, 'batch')} behind; {status.batches} of {status.max_batches} batches and "
        f"{_mib(status.bytes)} of {_mib(status.max_bytes)} under way; {stages}"
        + (f"; {'; '.join(sorted(reasons)[:3])}" if reasons else "")
    )


def make_view(status: RuntimeStatus, rates: str) -> Group:
    """Return the state of a runtime for a terminal: two lines, and one for each source.

    No line wraps, however narrow the terminal is: a view that changes its height leaves parts of itself behind.
    """
    from rich.console import Group  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    def cut(text: str) -> Text:
        printable = "".join(char if char.isprintable() else " " for char in text)
        return Text(printable, no_wrap=True, overflow="ellipsis")

    stages = "   ".join(f"{stage.name} {stage.busy}/{stage.threads}, {stage.waiting} wait" for stage in status.stages)
    under_way = f"{status.batches}/{status.max_batches} batches, {_mib(status.bytes)}/{_mib(status.max_bytes)}"
    committed = f"{counted(status.rows, 'row')} in {counted(status.commits, 'commit')}"
    lines = (
        f"forebay {status.state}   {rates}   committed {committed}",
        f"{stages}   under way {under_way}",
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("source", "group", "behind", "age", "under way", "committed", "waits for"):
        # The columns that may be wrapped are the ones that rich makes narrower. Their cells are cut instead.
        is_cut = name in {"source", "waits for"}
        table.add_column(name, justify="left" if is_cut or name == "group" else "right", no_wrap=not is_cut)
    for source in status.sources:
        table.add_row(*map(cut, _cells(source)))
    return Group(*map(cut, lines), table)


def _can_show_live() -> bool:
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
    return is_terminal and importlib.util.find_spec("rich") is not None


@contextmanager
def _live_view(look: Callable[[], RuntimeStatus], rates: Rates) -> Iterator[None]:
    """Keep a view at the bottom of the terminal, below what else is written there, and remove it at the end."""
    # An extra, and slow to import: loaded where there is someone to look at it.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    def make() -> Group:
        status = look()
        return make_view(status, rates.describe(status))

    ended = Event()
    terminal = sys.stderr
    live = Live(
        make(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes into a pipe or a file stays there
    )

    def refresh() -> None:
        # Not by Live's own thread, which would ask for the status while it holds Live's lock. A stage that logs a
        # warning takes these two locks in the other order.
        while not ended.wait(_REFRESH_SECONDS):
            live.update(make(), refresh=True)

    thread = Thread(target=refresh, name="forebay-progress", daemon=True)
    with live, _logging_above(terminal):
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _logging_above(terminal: TextIO) -> Iterator[None]:
    """Have handlers that write to the terminal write above the view: to what stands in its place as `sys.stderr`."""
    loggers = (logging.getLogger(), logging.getLogger("forebay"))
    handlers = [
        handler
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is terminal
    ]
    for handler in handlers:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(terminal)


def _cells(source: SourceStatus) -> tuple[str, ...]:
    return (
        source.url,
        source.group or "-",
        f"{source.lag_batches:,}",
        f"{source.lag_seconds:,.1f} s",
        f"{source.batches:,}",
        f"{source.rows:,}",
        "over" if source.over else source.waits_for,
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
