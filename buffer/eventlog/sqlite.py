"""`sqlite:///path/events.db`: a log in a SQLite database, shared by the processes of one machine (rfcs/0009)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Final

from forebay.buffer.backoff import full_jitter
from forebay.buffer.errors import Closed, Corrupt, Denied, ForebayError, InvalidInput, Unavailable
from forebay.buffer.eventlog.backend import Backend, Bounds
from forebay.buffer.eventlog.model import CompactReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forebay.buffer.clock import Clock, Random

BUSY_SECONDS: Final = 30.0
"""How long a database that somebody else has locked is waited for."""
_APPLICATION_ID: Final = 0x666F7265
"""What says, in the file's header, that the database is ours."""
_SCHEMA: Final = f"""
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, number INTEGER NOT NULL, first INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic, number)
);
CREATE TABLE events (
    partition INTEGER NOT NULL REFERENCES partitions, offset INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (partition, offset)
) WITHOUT ROWID;
CREATE TABLE cursors (
    partition INTEGER NOT NULL REFERENCES partitions, consumer TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (partition, consumer)
) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID}
"""
_PLACE: Final = "SELECT id FROM partitions WHERE topic = ? AND number = ?"
_BOUNDS: Final = """
SELECT number, first, coalesce((SELECT max(offset) + 1 FROM events WHERE partition = id), first) FROM partitions
"""
"""Where there are no events, the next one is where the retained ones would begin."""


class SqliteBackend(Backend):
    """A log in a database. It is made by the first write; its folder must be there.

    Write-ahead logging needs memory that all processes share: not for network file systems.
    """

    kind = "sqlite"
    polls = True

    def __init__(self, path: Path, *, clock: Clock, random: Random, busy_seconds: float = BUSY_SECONDS) -> None:
        super().__init__()
        self._path = path.absolute()
        self.url = f"sqlite://{self._path}"
        self._clock = clock
        self._random = random
        self._busy_seconds = busy_seconds
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._ids: dict[tuple[str, int], int] = {}

    def create(self, topic: str, partitions: int) -> int:
        """Make a topic unless it is there."""
        with self._write() as connection:
            found = _count(connection, topic)
            if not found:
                rows = [(topic, number) for number in range(partitions)]
                connection.executemany("INSERT INTO partitions (topic, number) VALUES (?, ?)", rows)
            return found or partitions

    def partitions(self, topic: str) -> int | None:
        """Return how many there are."""
        with self._read() as connection:
            return None if connection is None else _count(connection, topic) or None

    def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
        """Append in one transaction, and return the first offset."""
        with self._write() as connection:
            place = self._place(connection, topic, partition)
            _, _, offset = connection.execute(f"{_BOUNDS} WHERE id = ?", (place,)).fetchone()
            rows = [(place, number, event.decode()) for number, event in enumerate(events, offset)]
            connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            return int(offset)

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each."""
        with self._read() as connection:
            rows = [] if connection is None else connection.execute(f"{_BOUNDS} WHERE topic = ?", (topic,)).fetchall()
        found = {number: Bounds(first, following) for number, first, following in rows}
        return [found.get(number, Bounds(0, 0)) for number in partitions]

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return events and their offsets."""
        with self._read() as connection:
            if connection is None:
                return []
            return connection.execute(
                "SELECT offset, CAST(event AS BLOB) FROM events WHERE partition = ? AND offset >= ?"
                " ORDER BY offset LIMIT ?",
                (self._place(connection, topic, partition), first, limit),
            ).fetchall()

    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Delete the events up to an offset, and empty the write-ahead log."""
        with self._write() as connection:
            place = self._place(connection, topic, partition)
            _, first, end = connection.execute(f"{_BOUNDS} WHERE id = ?", (place,)).fetchone()
            kept = max(first, min(through + 1, end))
            connection.execute("DELETE FROM events WHERE partition = ? AND offset < ?", (place, kept))
            connection.execute("UPDATE partitions SET first = ? WHERE id = ?", (kept, place))
        return CompactReport(kept - first, end - kept, end - 1 if end else None, self._checkpoint("TRUNCATE"))

    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return where a consumer is."""
        with self._read() as connection:
            if connection is None:
                return None
            row = connection.execute(
                f"SELECT at FROM cursors WHERE partition = ({_PLACE}) AND consumer = ?",  # noqa: S608 - a constant
                (topic, partition, consumer),
            ).fetchone()
        return None if row is None else int(row[0])

    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Remember where a consumer is."""
        with self._write() as connection:
            place = self._place(connection, topic, partition)
            if to is None:
                connection.execute("DELETE FROM cursors WHERE partition = ? AND consumer = ?", (place, consumer))
                return
            connection.execute(
                "INSERT INTO cursors VALUES (?, ?, ?) ON CONFLICT (partition, consumer) DO UPDATE SET at = excluded.at"
                " WHERE ? OR excluded.at > at",
                (place, consumer, to, back),
            )

    def size_bytes(self) -> int | None:
        """Return the size of the database and what SQLite keeps beside it."""
        files = (self._path, *(self._path.with_name(self._path.name + suffix) for suffix in ("-wal", "-shm")))
        return sum(file.stat().st_size for file in files if file.exists())

    def flush(self) -> None:
        """Checkpoint: everything committed is in the database file, and synced."""
        if self._path.exists() and not self._checkpoint("FULL"):
            raise Unavailable(f"{self.url}: somebody else keeps the database from being checkpointed; try again")

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            connection, self._connection = self._connection, None
            if connection is not None and os.getpid() == self._process:
                connection.close()

    def _place(self, connection: sqlite3.Connection, topic: str, partition: int) -> int:
        """The row of a partition; it never changes."""
        key = (topic, partition)
        if key not in self._ids:
            row = connection.execute(_PLACE, key).fetchone()
            if row is None:
                return -1  # there is no such topic yet: nothing is found by that
            self._ids[key] = row[0]
        return self._ids[key]

    def _checkpoint(self, mode: str) -> bool:
        """Move the write-ahead log into the database, and return whether all of it is."""
        with self._read() as connection:
            return connection is not None and connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection | None]:
        """The connection, one thread at a time; None while there is no database, which reading does not make."""
        with self._lock:
            try:
                yield self._connect() if self._path.exists() else None
            except sqlite3.Error as error:
                raise self._typed(error) from error

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is done, or nothing."""
        with self._lock:
            try:
                connection = self._connect()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._typed(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._is_closed:
            raise Closed(f"{self.url} was closed by another thread")
        if self._process != os.getpid():
            # SQLite's connections do not survive a fork, nor does closing one there leave the parent's alone.
            self._inherited += [self._connection] if self._connection is not None else []
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        if self._is_ours(connection):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self._is_ours(connection):
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Whether the database is one of ours; False if it is nobody's yet.

        Both are asked in one statement, so that no other process makes the tables between the two answers.
        """
        found, tables = connection.execute(
            "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id"
        ).fetchone()
        if found != _APPLICATION_ID and (tables or found):
            raise InvalidInput(f"{self.url} is another program's database: choose another file for the event log")
        return bool(found)

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to write-ahead logging; for the lock that this takes, SQLite does not wait by itself."""
        deadline = self._clock.monotonic() + self._busy_seconds
        attempt = 0
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or self._clock.monotonic() >= deadline:
                    raise
            self._clock.sleep(full_jitter(self._random, attempt, 0.005, 0.1))
            attempt += 1

    def _typed(self, error: sqlite3.Error) -> ForebayError:
        match _code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Unavailable(
                    f"{self.url} was locked by somebody else for {self._busy_seconds:g} s; nothing was changed. Look "
                    "for a process that keeps a transaction open, and try again"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return Corrupt(f"{self.url} is damaged, or no database: {error}")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return Denied(f"{self.url} cannot be written: {error}; check who owns the file and its folder")
            case sqlite3.SQLITE_CANTOPEN:
                return Unavailable(f"{self.url}: {error}; check that {self._path.parent} is there and can be written")
            case _:
                return Unavailable(f"{self.url}: {error}; nothing was changed")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code; the extended ones add to it beyond the lowest byte."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def _count(connection: sqlite3.Connection, topic: str) -> int:
    (found,) = connection.execute("SELECT count(*) FROM partitions WHERE topic = ?", (topic,)).fetchone()
    return int(found)
