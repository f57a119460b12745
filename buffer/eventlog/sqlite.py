"""`sqlite:///path/events.db`: a log in a SQLite database, shared by the processes of one machine (rfcs/0009)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.errors import Closed, Corrupt, Denied, ForebayError, InvalidInput, Unavailable
from forebay.buffer.eventlog.backend import Backend, Bounds
from forebay.buffer.eventlog.model import CompactReport, is_sealed, seal_event, unseal_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forebay.buffer.base.clock import Clock, Random

BUSY_SECONDS: Final = 30.0
"""Maximum time to wait for a database that another connection has locked, in seconds."""
_APPLICATION_ID: Final = 0x666F7265
"""Marks the database, in its file's header, as an event log of forebay."""
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
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)  # guard: a schema error that cannot be decoded means corruption
"""The errors that a statement raises. Python cannot decode SQLite's message if that quotes a damaged schema."""
_REMEDY: Final = "Restore a copy, or save what is left by the command .recover of sqlite3"
_PLACE: Final = "SELECT id FROM partitions WHERE topic = ? AND number = ?"
_BOUNDS: Final = """
SELECT number, first, coalesce((SELECT max(offset) + 1 FROM events WHERE partition = id), first) FROM partitions
"""
"""Selects a partition's number and bounds. If it has no events, its next offset is also its first retained one."""


class SqliteBackend(Backend):
    """A log in a database. The first write creates the database and its folder.

    It does not work on network file systems: write-ahead logging needs memory that all processes share.
    """

    kind = "sqlite"
    polls = True

    def __init__(self, path: Path, *, clock: Clock, random: Random, busy_seconds: float = BUSY_SECONDS) -> None:
        super().__init__()
        self._path = path.absolute()
        self.url: str = f"sqlite://{self._path}"
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
        """Create a topic unless it exists, and return its number of partitions."""
        with self._write() as connection:
            found = self._count(connection, topic)
            if not found:
                rows = [(topic, number) for number in range(partitions)]
                connection.executemany("INSERT INTO partitions (topic, number) VALUES (?, ?)", rows)
            return found or partitions

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if there is no such topic."""
        with self._read() as connection:
            return None if connection is None else self._count(connection, topic) or None

    def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
        """Append events in one transaction, and return the first offset."""
        with self._write() as connection:
            place = self._place(connection, topic, partition)
            offset = self._bounds_of(connection, place).next
            rows = [(place, number, seal_event(event, number).decode()) for number, event in enumerate(events, offset)]
            connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            return offset

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each partition."""
        with self._read() as connection:
            rows = [] if connection is None else connection.execute(f"{_BOUNDS} WHERE topic = ?", (topic,)).fetchall()
        found = {number: self._check_bounds(first, following) for number, first, following in rows}
        return [found.get(number, Bounds(0, 0)) for number in partitions]

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return events and their offsets."""
        with self._read() as connection:
            if connection is None:
                return []
            rows = connection.execute(
                "SELECT first, offset, CAST(event AS BLOB) FROM partitions JOIN events ON partition = id"
                " WHERE id = ? AND offset >= ? ORDER BY offset LIMIT ?",
                (self._place(connection, topic, partition), first, limit),
            ).fetchall()
        start = max(first, self._check_whole(rows[0][0])) if rows else first
        return [(offset, self._open_event(found, data, offset)) for offset, (_, found, data) in enumerate(rows, start)]

    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Delete the events up to an offset, and empty the write-ahead log."""
        with self._write() as connection:
            place = self._place(connection, topic, partition)
            first, end = self._bounds_of(connection, place)
            kept = max(first, min(through + 1, end))
            connection.execute("DELETE FROM events WHERE partition = ? AND offset < ?", (place, kept))
            connection.execute("UPDATE partitions SET first = ? WHERE id = ?", (kept, place))
        return CompactReport(kept - first, end - kept, end - 1 if end else None, self._checkpoint("TRUNCATE"))

    def cursor(self, topic: str, partition: int, consumer: str) -> int | None:
        """Return a consumer's cursor; None if there is none."""
        with self._read() as connection:
            if connection is None:
                return None
            row = connection.execute(
                f"SELECT at FROM cursors WHERE partition = ({_PLACE}) AND consumer = ?",  # noqa: S608 - a constant
                (topic, partition, consumer),
            ).fetchone()
        return None if row is None else self._check_whole(row[0])

    def move_cursor(self, topic: str, partition: int, consumer: str, to: int | None, *, back: bool) -> None:
        """Set or remove a consumer's cursor."""
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
        """Return the size in bytes of the database and of the files that SQLite keeps beside it."""
        files = (self._path, *(self._path.with_name(self._path.name + suffix) for suffix in ("-wal", "-shm")))
        try:
            return sum(file.stat().st_size for file in files if file.exists())
        except OSError as error:  # SQLite removes these files when the last process closes the database
            raise Unavailable(f"{self.url}: its size could not be read: {error}; try again") from error

    def flush(self) -> None:
        """Checkpoint: everything committed is in the database file, and synced."""
        if self._path.exists() and not self._checkpoint("FULL"):
            raise Unavailable(
                f"{self.url}: a reader or writer in another process keeps SQLite from copying its log "
                "into the database; try again when it has ended"
            )

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            connection, self._connection = self._connection, None
            if connection is not None and os.getpid() == self._process:
                connection.close()

    def _place(self, connection: sqlite3.Connection, topic: str, partition: int) -> int:
        """Return the row id of a partition, which never changes; -1 if there is no such topic."""
        key = (topic, partition)
        if key not in self._ids:
            row = connection.execute(_PLACE, key).fetchone()
            if row is None:
                return -1  # there is no such topic yet, and no row has this id
            self._ids[key] = self._check_whole(row[0])
        return self._ids[key]

    def _bounds_of(self, connection: sqlite3.Connection, place: int) -> Bounds:
        row = connection.execute(f"{_BOUNDS} WHERE id = ?", (place,)).fetchone()
        if row is None:
            raise self._damaged("a partition that existed is missing")
        return self._check_bounds(*row[1:])

    def _check_bounds(self, first: object, following: object) -> Bounds:
        bounds = Bounds(self._check_whole(first), self._check_whole(following))
        if bounds.first > bounds.next:
            raise self._damaged(f"a partition begins at offset {bounds.first} and ends at {bounds.next}")
        return bounds

    def _check_whole(self, value: object) -> int:
        """Check and return a number from SQLite. In a damaged database it may have any type, despite the schema."""
        if not isinstance(value, int) or value < 0:
            raise self._damaged(f"there is {value!r:.60} where a number should be")
        return value

    def _open_event(self, found: object, data: object, offset: int) -> bytes:
        """Return the bytes of an event. Raise `Corrupt` if it is damaged or not the event of that offset."""
        if found != offset or not isinstance(data, bytes):  # guard: refuse gaps between offsets
            raise self._damaged(f"there is {found!r:.60} where the event of offset {offset} should be")
        # Rows written by releases that had no checksums have none.
        event = unseal_event(data, offset) if is_sealed(data) else data  # guard: verify the checksum of each event
        if event is None:
            raise self._damaged(f"the event of offset {offset} does not match its checksum")
        return event

    def _damaged(self, what: str) -> Corrupt:
        return Corrupt(f"{self.url} is damaged: {what}. {_REMEDY}")

    def _count(self, connection: sqlite3.Connection, topic: str) -> int:
        count, first, last = connection.execute(
            "SELECT count(*), min(number), max(number) FROM partitions WHERE topic = ?", (topic,)
        ).fetchone()
        if count and (first, last) != (0, count - 1):
            raise self._damaged(f"topic {topic} has {count} partitions, numbered {first!r:.60} to {last!r:.60}")
        return int(count)

    def _checkpoint(self, mode: str) -> bool:
        """Copy the write-ahead log into the database, and return whether all of it was copied."""
        with self._read() as connection:
            return connection is not None and connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection | None]:
        """Yield the connection, to one thread at a time. Yield None if there is no database: reading creates none."""
        with self._lock:
            try:
                yield self._connect() if self._path.exists() else None
            except _ERRORS as error:
                raise self._typed(error) from error

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction: either everything in it is done, or nothing."""
        with self._lock:
            try:
                with _transaction(self._connect()) as connection:
                    yield connection
            except _ERRORS as error:
                raise self._typed(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._is_closed:
            raise Closed(f"{self.url} was closed by another thread; open the event log again")
        if self._process != os.getpid():
            # A forked child must neither use its parent's connection nor close it: both would affect the parent.
            self._inherited += [self._connection] if self._connection is not None else []
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            self._make_folder()
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

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise Denied(f"{self.url}: its folder cannot be made: {error}; make it, or choose another one") from error
        except OSError as error:
            raise Unavailable(f"{self.url}: its folder cannot be made: {error}; choose another one") from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")  # guard: keep synchronous commits on
        # Check pages more strictly, and run nothing unsafe that a damaged or foreign schema might contain.
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        if self._is_ours(connection):
            return
        with _transaction(connection):
            if not self._is_ours(connection):
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Return whether the database is an event log; False if it is empty.

        One statement reads both facts, so that no other process can create the tables in between.
        """
        found, tables = connection.execute(
            "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id"
        ).fetchone()
        if found != _APPLICATION_ID and (tables or found):
            raise InvalidInput(f"{self.url} is another program's database: choose another file for the event log")
        return bool(found)

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to write-ahead logging. SQLite does not wait for the lock that this needs, so this method does."""
        deadline = self._clock.monotonic() + self._busy_seconds
        attempt = 0
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # guard: retry switching to WAL while the database is busy
                if _code(error) != sqlite3.SQLITE_BUSY or self._clock.monotonic() >= deadline:
                    raise
            self._clock.sleep(full_jitter(self._random, attempt, 0.005, 0.1))
            attempt += 1

    def _typed(self, error: sqlite3.Error | UnicodeDecodeError) -> ForebayError:
        if _tells_of_damage(error):
            return Corrupt(f"{self.url} is damaged, or not an event log: {error}. {_REMEDY}")
        match _code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Unavailable(
                    f"{self.url} was locked by another process or thread for {self._busy_seconds:g} s; nothing was "
                    "changed. Look for a process that keeps a transaction open, and try again"
                )
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return Denied(f"{self.url} cannot be written: {error}; check who owns the file and its folder")
            case sqlite3.SQLITE_CANTOPEN:
                return Unavailable(f"{self.url}: {error}; check that {self._path.parent} is there and can be written")
            case sqlite3.SQLITE_TOOBIG:
                return InvalidInput(f"{self.url}: an event is larger than SQLite takes: {error}; split it")
            case _:
                return Unavailable(f"{self.url}: {error}; nothing was changed. Try again")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Yield the connection in a transaction, which is committed at the end and rolled back after an error."""
    connection.execute("BEGIN IMMEDIATE")  # guard: take the write lock when the transaction begins
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # guard: roll back a failed transaction
        raise


def _tells_of_damage(error: Exception) -> bool:
    """Whether an error means damage. Our statements fit our tables, so an intact log never raises these errors."""
    match _code(error):
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT:
            return True
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_MISMATCH | None:
            return True
        case sqlite3.SQLITE_CONSTRAINT:
            # forebay makes no triggers: another program's trigger raised this.
            return getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_CONSTRAINT_TRIGGER
        case _:
            return False


def _code(error: Exception) -> int | None:
    """Return SQLite's primary error code, the lowest byte of an extended one; None if SQLite raised no code."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
