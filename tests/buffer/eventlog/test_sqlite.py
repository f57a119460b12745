"""What only a database can suffer: locks, other programs' tables, damage, processes that fork."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Barrier
from threading import Event as Signal
from typing import Any

import pytest
from eventlog_homes import PATIENCE, Background, fill, offsets

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Corrupt, ForebayError, InvalidInput, Unavailable
from forebay.buffer.eventlog import Event, EventLog, open_event_log
from forebay.buffer.eventlog.sqlite import SqliteBackend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def log(path: Path) -> EventLog:
    return open_event_log(path)


def impatient(path: Path) -> EventLog:
    return EventLog(SqliteBackend(path, clock=SystemClock(), random=system_random(), busy_seconds=0.05))


def beside(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def test_events_can_be_asked_for_with_sql(log: EventLog, path: Path) -> None:
    log.append("jobs", Event("a", {"n": 41}))
    rows = sqlite3.connect(path).execute(
        "SELECT topic, offset, json_extract(event, '$.kind'), json_extract(event, '$.payload.n')"
        " FROM events JOIN partitions ON partitions.id = events.partition"
    )
    assert rows.fetchall() == [("jobs", 0, "a", 41)]


def test_locked_database_is_waited_for(log: EventLog, path: Path) -> None:
    fill(log, 1)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    appending = Background(lambda: log.append("jobs", Event("a")))
    appending.join(0.05)
    assert appending.is_alive()
    other.execute("ROLLBACK")
    assert appending.result() == 1


def test_database_locked_for_too_long_is_unavailable_and_unchanged(log: EventLog, path: Path) -> None:
    fill(log, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    hasty = impatient(path)
    with pytest.raises(Unavailable, match="locked by another process or thread"):
        hasty.append("jobs", Event("a"))
    assert offsets(hasty.read_range("jobs")) == [0]  # readers never wait
    other.execute("ROLLBACK")
    assert hasty.append("jobs", Event("a")) == 1


@pytest.mark.parametrize("lock", ["EXCLUSIVE", "IMMEDIATE"])
def test_new_database_locked_while_it_is_opened_is_waited_for(path: Path, lock: str) -> None:
    """Switching to write-ahead logging beside a writer takes a lock that SQLite itself does not wait for."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(f"BEGIN {lock}")
    appending = Background(lambda: open_event_log(path).append("jobs", Event("a")))
    appending.join(0.05)
    assert appending.is_alive()
    other.execute("ROLLBACK")
    assert appending.result() == 0


def test_many_open_a_new_database_at_the_same_moment(tmp_path: Path) -> None:
    for attempt in range(20):  # of 20 new databases, several hit the moment at which another makes the tables
        path, barrier = tmp_path / f"{attempt}.db", Barrier(8)

        def append(path: Path = path, barrier: Barrier = barrier) -> int:
            with open_event_log(path) as log:
                barrier.wait(PATIENCE)
                return log.append("jobs", Event("a"))

        assert sorted(found.result() for found in [Background(append) for _ in range(8)]) == list(range(8))


def test_compaction_empties_the_write_ahead_log(log: EventLog, path: Path) -> None:
    fill(log, 500)
    assert beside(path).stat().st_size > 0
    report = log.compact("jobs", 0)
    assert report.checkpointed
    assert not beside(path).exists() or beside(path).stat().st_size == 0


def test_compaction_beside_a_reader_is_done_but_not_checkpointed(path: Path) -> None:
    log = impatient(path)
    fill(log, 3)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchone()
    fill(log, 1)
    report = log.compact("jobs", 1)
    assert (report.removed, report.checkpointed) == (2, False)
    with pytest.raises(Unavailable, match="keeps SQLite from copying its log"):
        log.flush()
    reader.execute("ROLLBACK")
    log.flush()
    assert offsets(log.read_range("jobs")) == [2, 3]


def test_flush_moves_everything_into_the_database_file(log: EventLog, path: Path, tmp_path: Path) -> None:
    fill(log, 10)
    log.flush()
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())  # without what is beside it
    assert offsets(open_event_log(copy).read_range("jobs")) == list(range(10))


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE events (mine)")
    other.commit()
    with pytest.raises(InvalidInput, match="another program's database"):
        open_event_log(path).append("jobs", Event("a"))
    assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("events",)]


def test_damaged_database_is_corrupt(path: Path) -> None:
    path.write_bytes(b"this is no database, though it is long enough to look like one" * 100)
    with pytest.raises(Corrupt, match=r"events\.db"):
        open_event_log(path).read_range("jobs")


def small_database(path: Path) -> bytes:
    """A log of two partitions, in as few bytes as SQLite allows."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size = 512")
    connection.execute("VACUUM")
    connection.close()
    with open_event_log(path) as log:
        log.create_topic("jobs", 2)
        fill(log, 6)
        fill(log, 6, partition=1)
        log.ack("jobs", "etl", 3)
        log.compact("jobs", 1, partition=1)
        log.flush()
    return path.read_bytes()


def damages(whole: bytes, random: Random, count: int) -> Iterator[bytes]:
    """Flipped bits, wrong bytes, pages of noise, and ends that are missing."""
    for _ in range(count):
        data, at = bytearray(whole), random.randrange(len(whole))
        match random.randrange(8):
            case 0:
                for place in random.choices(range(len(data)), k=20):
                    data[place] = random.randrange(256)
            case 1:
                data[at : at + 512] = random.randbytes(len(data[at : at + 512]))
            case 2:
                del data[at:]
            case _:
                data[at] ^= 1 << random.randrange(8)
        yield bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_damage_anywhere_in_the_file_is_told_as_an_error_of_forebays_and_never_read_as_an_event(
    path: Path, seed: int
) -> None:
    for damaged in damages(small_database(path), Random(seed), 60):
        for left in path.parent.glob("events.db-*"):
            left.unlink()
        path.write_bytes(damaged)
        with impatient(path) as log:
            for partition in (0, 1):
                with suppress(ForebayError):
                    for record in log.read_range("jobs", partition=partition):
                        assert record.event.payload == record.offset
            for call in (
                lambda log=log: log.high_water_marks("jobs"),
                lambda log=log: log.cursor("jobs", "etl"),
                lambda log=log: log.ack("jobs", "etl", 4),
                lambda log=log: log.append("jobs", Event("a")),
                lambda log=log: log.append("new", Event("a")),
                lambda log=log: log.compact("jobs", 1),
                lambda log=log: log.subscribe("jobs", {0: 0, 1: 0})[0].poll(0),
                log.describe,
                log.flush,
            ):
                with suppress(ForebayError):
                    call()


def test_damaged_schema_is_corrupt(path: Path) -> None:
    whole = small_database(path)
    assert whole.count(b"tableeventsevents") == whole.count(b"CREATE TABLE events") == 1
    damaged = whole.replace(b"tableeventsevents", b"tableev\xb8ntsevents")  # a name that is no text
    path.write_bytes(damaged.replace(b"CREATE TABLE events", b"CREATE TABLX events"))
    with pytest.raises(Corrupt, match=r"events\.db is damaged"):
        open_event_log(path).read_range("jobs")


@pytest.mark.parametrize("table", ["events", "partitions", "cursors"])
def test_table_that_is_missing_is_corrupt(log: EventLog, path: Path, table: str) -> None:
    fill(log, 1)
    other = sqlite3.connect(path)
    other.execute(f"ALTER TABLE {table} RENAME TO lost")
    other.close()
    with pytest.raises(Corrupt, match=f"no such table: {table}"):
        open_event_log(path).ack("jobs", "etl", 0)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET event = replace(event, '\"payload\":1', '\"payload\":7') WHERE offset = 1",
        "UPDATE events SET event = x'00' WHERE offset = 1",
        "DELETE FROM events WHERE offset = 1",
        "DELETE FROM events WHERE offset = 0",
        """UPDATE events SET event = '{"kind":"a","time_ms":1}'; DELETE FROM events WHERE offset = 1""",
        "UPDATE partitions SET first = 'no'",
        "UPDATE partitions SET first = 9",
        "UPDATE partitions SET number = 3",
    ],
)
def test_row_that_is_not_as_it_was_written_is_corrupt(log: EventLog, path: Path, damage: str) -> None:
    fill(log, 3)
    other = sqlite3.connect(path)
    other.executescript(damage)
    other.commit()
    with pytest.raises(Corrupt, match=r"events\.db"):
        open_event_log(path).read_range("jobs")


def test_row_that_was_written_before_there_were_checksums_is_read(log: EventLog, path: Path) -> None:
    fill(log, 1)
    other = sqlite3.connect(path)
    other.execute("""INSERT INTO events VALUES (1, 1, '{"kind":"tick","time_ms":5,"payload":1}')""")
    other.commit()
    assert [record.event.payload for record in log.read_range("jobs")] == [0, 1]
    assert log.append("jobs", Event("tick", 2)) == 2


def test_commit_is_in_an_order_that_a_power_cut_cannot_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def spy(*args: Any, **settings: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **settings))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", spy)
    with open_event_log(path) as log:
        fill(log, 1)
        (connection,) = opened
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL: OFF may lose the whole database"
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_folder_is_made_by_the_first_write_and_not_by_reading(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "events.db"
    log = open_event_log(path)
    assert log.read_range("jobs") == []
    assert not path.parent.exists()
    assert log.append("jobs", Event("a")) == 0


def test_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="folder cannot be made"):
        open_event_log(tmp_path / "file" / "events.db").append("jobs", Event("a"))


def test_append_that_fails_half_way_leaves_nothing(log: EventLog, path: Path) -> None:
    fill(log, 2)
    hinder = sqlite3.connect(path, isolation_level=None)
    hinder.execute(
        "CREATE TRIGGER hinder BEFORE INSERT ON events WHEN NEW.offset = 4 BEGIN SELECT RAISE(FAIL, 'no more'); END"
    )
    with pytest.raises(Unavailable, match="no more"):
        fill(log, 5)
    assert log.high_water_marks("jobs") == [2]
    hinder.execute("DROP TRIGGER hinder")
    fill(log, 5)
    assert offsets(log.read_range("jobs")) == list(range(7))


def test_forked_child_and_parent_append_without_harm(log: EventLog) -> None:
    fill(log, 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(100):
                log.append("jobs", Event("child"))
            log.close()
            status = 0
        finally:
            os._exit(status)
    for _ in range(100):
        log.append("jobs", Event("parent"))
    assert os.waitpid(child, 0)[1] == 0
    assert offsets(log.read_range("jobs")) == list(range(201))


def test_threads_share_one_connection(log: EventLog) -> None:
    begun = Signal()

    def read() -> int:
        begun.set()
        return len(log.read_range("jobs"))

    fill(log, 50)
    readers = [Background(read) for _ in range(4)]
    assert begun.wait(PATIENCE)
    fill(log, 50)
    assert all(reader.result() in (50, 100) for reader in readers)
