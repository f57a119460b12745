"""How many events a second does an event log take and give, in each of its homes?

The ceilings are what a program would write that has no forebay: one INSERT for each transaction of a SQLite database
(write-ahead log, `synchronous=NORMAL`), one `write` for each line of a file, and, for object storage, the two puts that
an append needs. They encode and decode the same JSON with the same library, and know neither other processes nor
partitions. Single appends are compared by processor time, the rest by the clock. "in a folder" is the layout of object
storage on a disk, where every append is synced twice.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
from places import open_places

from forebay.buffer.eventlog import Event, EventLog, open_event_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Bench

_RAW_SQLITE = "raw SQLite"
_RAW_FILE = "raw file"
_PAYLOAD = {"buffer": "s3://lake/clicks", "objects": ["data/01J9Z3QW8V0000000000000000.batch"], "count": 17}
_EVENT = Event("delete.finished", _PAYLOAD, {"who": "collector"})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def run(bench: Bench) -> None:
    singles, batch, batches = (200, 100, 5) if bench.quick else (2_000, 1_000, 20)
    with TemporaryDirectory(prefix="forebay-bench-") as name, open_places() as places:
        folder = Path(name)
        local = {
            "memory": open_event_log("memory://bench"),
            "files": open_event_log(f"file://{folder}/lines"),
            "SQLite": open_event_log(folder / "events.db"),
        }
        objects = {
            "object storage in a folder": open_event_log(f"objects+{places[0].url}/events"),
            "object storage, S3 server": open_event_log(f"{places[2].url}/events", storage_options=places[2].options),
        }
        raw = {_RAW_SQLITE: RawSqlite(folder / "raw.db"), _RAW_FILE: RawFile(folder / "raw.jsonl")}

        ratios = bench.compare(
            "append one at a time",
            {name: (lambda home=home: home.append_singly(singles)) for name, home in raw.items()}
            | {name: (lambda log=log: _append_singly(log, singles)) for name, log in local.items()},
            ceiling=_RAW_SQLITE,
            amount=singles,
            unit="events",
            clock="cpu",
        )
        bench.require("SQLite, one at a time, against raw SQLite", ratios["SQLite"], least=0.2)
        bench.require("files, one at a time, against raw SQLite", ratios["files"], least=0.2)

        ratios = bench.compare(
            f"append {batch:,} at once",
            {name: (lambda home=home: home.append_together(batch, batches)) for name, home in raw.items()}
            | {
                name: (lambda log=log: _append_together(log, batch, batches)) for name, log in (local | objects).items()
            },
            ceiling=_RAW_SQLITE,
            amount=batch * batches,
            unit="events",
            rounds=5,
        )
        bench.require("SQLite, many at once, against raw SQLite", ratios["SQLite"], least=0.5)
        bench.require("files, many at once, against raw SQLite", ratios["files"], least=0.5)

        put = places[2].put
        few = 5 if bench.quick else 50
        fresh = itertools.count()

        def two_puts() -> None:
            for number in itertools.islice(fresh, few):
                put(f"events/{number}", _encode(_PAYLOAD))
                put("events/head", _encode(_PAYLOAD))

        ratios = bench.compare(
            "object storage, one at a time",
            {
                "two bare puts": two_puts,
                "append": lambda: _append_singly(objects["object storage, S3 server"], few, "singles"),
            },
            ceiling="two bare puts",
            amount=few,
            unit="events",
            rounds=5,
        )
        bench.require("an append to object storage against two bare puts", ratios["append"], least=0.5)
        _read(bench, raw, local | objects, batch, batches)


def _read(bench: Bench, raw: dict[str, Raw], logs: dict[str, EventLog], batch: int, batches: int) -> None:
    total = batch * batches
    for home in raw.values():
        home.start_reading(total)
    for log in logs.values():
        log.create_topic("read")
        while log.high_water_marks("read")[0] < total:
            log.append_many("read", [_EVENT] * batch)
    cases: dict[str, Callable[[], object]] = {name: home.read for name, home in raw.items()}
    cases |= {name: (lambda log=log: log.read_range("read")) for name, log in logs.items()}
    cases |= {f"{name}, followed": (lambda log=log: _follow(log, total)) for name, log in logs.items()}
    ratios = bench.compare("read", cases, ceiling=_RAW_SQLITE, amount=total, unit="events", rounds=5)
    bench.require("reading SQLite against raw SQLite", ratios["SQLite"], least=0.25)


def _append_singly(log: EventLog, count: int, topic: str = "append") -> None:
    for _ in range(count):
        log.append(topic, _EVENT)


def _append_together(log: EventLog, batch: int, batches: int) -> None:
    for _ in range(batches):
        log.append_many("append", [_EVENT] * batch)


def _follow(log: EventLog, count: int) -> int:
    records, _ = log.subscribe("read", {0: 0})
    with records:
        return sum(1 for _ in itertools.islice(records, count))


def _line(number: int) -> bytes:
    return _encode({"offset": number, "kind": _EVENT.kind, "headers": _EVENT.headers, "payload": _PAYLOAD})


class RawFile:
    """Lines appended to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._next = 0

    def append_singly(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            os.write(self._fd, _line(number) + b"\n")
        self._next += count

    def append_together(self, batch: int, batches: int) -> None:
        for _ in range(batches):
            os.write(self._fd, b"".join(_line(self._next + number) + b"\n" for number in range(batch)))
            self._next += batch

    def start_reading(self, count: int) -> None:
        os.ftruncate(self._fd, 0)
        self._next = 0
        self.append_together(count, 1)

    def read(self) -> list[Any]:
        with self._path.open("rb") as file:
            return [_decode(line) for line in file]


class RawSqlite:
    """Rows of a table with a key that counts."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("CREATE TABLE events (offset INTEGER PRIMARY KEY, event TEXT)")
        self._next = 0

    def append_singly(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            self._database.execute("INSERT INTO events VALUES (?, ?)", (number, _line(number).decode()))
        self._next += count

    def append_together(self, batch: int, batches: int) -> None:
        for _ in range(batches):
            rows = [(number, _line(number).decode()) for number in range(self._next, self._next + batch)]
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO events VALUES (?, ?)", rows)
            self._database.execute("COMMIT")
            self._next += batch

    def start_reading(self, count: int) -> None:
        self._database.execute("DELETE FROM events")
        self._next = 0
        self.append_together(count, 1)

    def read(self) -> list[Any]:
        return [_decode(row[0]) for row in self._database.execute("SELECT event FROM events ORDER BY offset")]


Raw = RawFile | RawSqlite
