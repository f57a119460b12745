"""A process with a runtime, to be killed: it reads a buffer for a group and commits to a sink until it is ended.

python runtime_child.py KIND SOURCE TARGET KILL

KIND is `delta`, `iceberg`, `parquet`, `buffer` or `callable`. KILL is a number: the process kills itself when the sink
has made that number of commits, before the runtime hears of the last one, and ends if there is nothing left. With 0,
others kill it. It writes a line before and after each commit.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from forebay.runtime import (
    BufferSink,
    CallableSink,
    Combining,
    Commit,
    DeltaSink,
    IcebergSink,
    ParquetSink,
    Runtime,
    RuntimeConfig,
    Source,
)
from forebay.runtime.contract import Answer, CommitIdentity, Sink

GROUP = "etl"
TABLE = "lake.entries"
COMBINING = Combining(target_bytes=1_500, max_seconds=0.05)
CONFIG = RuntimeConfig(ack_every=3, ack_seconds=0.05, descriptors_per_look=16, max_poll_interval=0.05)


class AppendToFile:
    """What a user's function may do: append to a file, and remember nothing."""

    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("file://"))

    def __call__(self, commit: Commit) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(value + b"\n" for value in commit.table["value"].to_pylist()))
            file.flush()
            os.fsync(file.fileno())


def catalog_in(url: str) -> dict[str, str]:
    """A catalog of Iceberg tables in a folder."""
    folder = Path(url.removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{url}/warehouse"}


def open_sink(kind: str, url: str) -> Sink:
    if kind == "delta":
        return DeltaSink(url, combining=COMBINING)
    if kind == "iceberg":
        return IcebergSink(catalog_in(url), TABLE, combining=COMBINING)
    if kind == "parquet":
        return ParquetSink(url, combining=COMBINING)
    if kind == "buffer":
        return BufferSink(url, evolve=True, combining=COMBINING)
    return CallableSink(AppendToFile(url), in_order=True, combining=COMBINING)


class Watched(Sink):
    """A sink that says what it does, and dies on command."""

    def __init__(self, inner: Sink, kill_after: int) -> None:
        self._inner = inner
        self.in_order, self.combining = inner.in_order, inner.combining
        self._left = kill_after

    def commit(self, commit: Commit) -> Answer:
        say(f"begin {commit.identity}")
        answer = self._inner.commit(commit)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        say(f"end {answer}")
        return answer

    def check_committed(self, identity: CommitIdentity) -> bool:
        return self._inner.check_committed(identity)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(kind: str, source: str, target: str, kill_after: str) -> None:
    sink = Watched(open_sink(kind, target), int(kill_after))
    # The one before was killed: it needs no time to show that it lives.
    runtime = Runtime([Source(source, group=GROUP, takeover=True)], sink, CONFIG)
    runtime.run(until_caught_up=kill_after != "0", show_progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
