"""Processes with a runtime that commits to an Iceberg table, whose catalog and stores fail, and which are killed.

python iceberg_child.py SOURCE TARGET LEDGER

It reads commands, a line each, and forks a process for each runtime, so that one costs no time to import. `start SEED`
starts one, which takes over the group. It writes `PID born`, `PID end ANSWER` after each commit, `PID ended` if it
stops unasked, and `PID dies` before it kills itself in the middle of a call of the catalog. `reap PID` waits for its
end and writes `PID reaped`. Each fault of the catalog is a line of the file LEDGER.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from random import Random

from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from runtime_child import COMBINING, GROUP, TABLE, catalog_in

from forebay.buffer.base.errors import Fenced, StoreError
from forebay.buffer.store import open_store
from forebay.runtime import Commit, IcebergSink, Runtime, RuntimeConfig, Source
from forebay.runtime.contract import Answer
from forebay.testing import WRITE_FAULTS, Fault, FaultyCatalog, FaultyStore

CATALOG_FAULTS = (*WRITE_FAULTS, *WRITE_FAULTS, Fault.KILL, Fault.KILL_AFTER)
SOURCE_FAULTS = tuple(fault for fault in WRITE_FAULTS if fault is not Fault.THROTTLED)  # which takes seconds each time
CATALOG_RATE, SOURCE_RATE, FILE_RATE = 0.2, 0.02, 0.01
CONFIG = RuntimeConfig(ack_every=3, ack_seconds=0.05, descriptors_per_look=16, max_poll_interval=0.05, max_failures=100)


class Unanswered(PyArrowFile):
    """A file that is written, after which the store cannot be reached."""

    def __len__(self) -> int:
        raise OSError(f"injected after the write: {self.location}")


class FaultyFiles(PyArrowFileIO):
    """The table's store: some files cannot be opened, others are written and the answer is lost."""

    random = Random(0)

    def new_input(self, location: str) -> PyArrowFile:
        self._fail(location)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        self._fail(location)
        file = super().new_output(location)
        if self.random.random() < FILE_RATE:
            file.__class__ = Unanswered
        return file

    def _fail(self, location: str) -> None:
        if self.random.random() < FILE_RATE:
            raise OSError(f"injected: {location}")


class Counted(FaultyCatalog):
    """Writes each fault down before it happens."""

    ledger: Path

    def next_fault(self, kind: str) -> Fault | None:
        fault = super().next_fault(kind)
        if fault is not None:
            append(self.ledger, f"{kind} {fault.name}")
        if fault in (Fault.KILL, Fault.KILL_AFTER):
            say("dies")
        return fault


class Watched(IcebergSink):
    """A sink that says what came of each commit."""

    def commit(self, commit: Commit) -> Answer:
        answer = super().commit(commit)
        say(f"end {type(answer).__name__}")
        return answer


def say(text: str) -> None:
    os.write(1, f"{os.getpid()} {text}\n".encode())


def append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def open_catalog(target: str, seed: int, ledger: Path) -> Counted:
    inner = load_catalog("default", **catalog_in(target), **{"py-io-impl": "iceberg_child.FaultyFiles"})
    catalog = Counted.seeded(inner, seed, rate=CATALOG_RATE, faults=CATALOG_FAULTS)
    assert isinstance(catalog, Counted)
    catalog.ledger = ledger
    return catalog


def run(source: str, target: str, ledger: str, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    FaultyFiles.random = Random(seed + 1)
    store = FaultyStore.seeded(open_store(source), seed + 2, rate=SOURCE_RATE, faults=SOURCE_FAULTS)
    sink = Watched(open_catalog(target, seed, Path(ledger)), TABLE, combining=COMBINING)
    say("born")
    try:
        Runtime([Source(store, group=GROUP, takeover=True)], sink, CONFIG).run(show_progress=False)
    except (Fenced, StoreError):  # replaced, or a fault while it opened its source: a supervisor would start another
        say("ended")


def end_with(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os._exit(1)


def main(*places: str) -> None:
    here = os.getpid()
    for line in sys.stdin:
        command, number = line.split()
        if command == "reap":
            os.waitpid(int(number), 0)
            os.write(1, f"{number} reaped\n".encode())
        elif os.fork() == 0:
            threading.Thread(target=end_with, args=[here], daemon=True).start()
            status = 1
            try:
                run(*places, int(number))
                status = 0
            except Exception as error:  # noqa: BLE001 - the test reads it
                say(f"failed {error!r}".replace("\n", " "))
            finally:
                os._exit(status)


if __name__ == "__main__":
    sys.modules["iceberg_child"] = sys.modules["__main__"]
    main(*sys.argv[1:])
