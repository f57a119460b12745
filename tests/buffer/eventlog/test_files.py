"""What only files can suffer: torn lines, full disks, other people's bytes, processes that fork."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from eventlog_homes import Background, fill, offsets, take

from forebay.buffer.base.errors import Corrupt, Denied, Unavailable, Unknown
from forebay.buffer.eventlog import Event, EventLog, open_event_log
from forebay.buffer.eventlog.lines import LinesFile
from forebay.buffer.eventlog.model import encode_event


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return open_event_log(f"file://{tmp_path}")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "p-00000.jsonl"


def reopen(tmp_path: Path) -> EventLog:
    return open_event_log(f"file://{tmp_path}")


def test_file_is_json_lines_that_say_their_offsets(log: EventLog, lines: Path) -> None:
    log.append("jobs", Event("a", {"n": 1}, {"h": "x"}, 5))
    log.append("jobs", Event("b", b"\x00", time_ms=6))
    assert lines.read_text().splitlines() == [
        '{"forebay":"events","version":2,"first":0,"crc32c":"1b88c450"}',
        '{"offset":0,"crc32c":"6f204d68","kind":"a","time_ms":5,"headers":{"h":"x"},"payload":{"n":1}}',
        '{"offset":1,"crc32c":"d885732a","kind":"b","time_ms":6,"payload_base64":"AA=="}',
    ]


@pytest.mark.parametrize(
    "torn",
    [b"{", b'{"offset":2,"kind":"tick","time_ms":1', b'{"offset":2,"kind":"tick","time_ms":1}', b"\x00" * 5000],
)
def test_torn_last_line_is_nobodys_event_and_the_next_append_cuts_it_off(
    log: EventLog, lines: Path, tmp_path: Path, torn: bytes
) -> None:
    fill(log, 2)
    whole = lines.read_bytes()
    lines.write_bytes(whole + torn)
    for reader in (log, reopen(tmp_path)):  # one that knew the file before, and one that does not
        assert offsets(reader.read_range("jobs")) == [0, 1]
        assert reader.high_water_marks("jobs") == [2]
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 2) == [(0, 0), (0, 1)]
    assert reopen(tmp_path).append("jobs", Event("tick", 2)) == 2
    assert re.fullmatch(re.escape(whole) + rb'\{"offset":2,[^\n\x00]*\n', lines.read_bytes())
    assert [record.event.payload for record in log.read_range("jobs")] == [0, 1, 2]
    assert take(records, 1) == [(0, 2)]


def test_file_whose_first_line_was_torn_starts_at_zero(log: EventLog, lines: Path) -> None:
    log.create_topic("jobs")
    lines.write_bytes(b'{"forebay":"eve')
    assert log.latest("jobs") is None
    fill(log, 1)
    assert offsets(log.read_range("jobs")) == [0]


def test_torn_line_is_not_carried_over_by_compaction(log: EventLog, lines: Path) -> None:
    fill(log, 3)
    lines.write_bytes(lines.read_bytes() + b'{"offset":3')
    assert log.compact("jobs", 0).remaining == 2
    assert lines.read_bytes().endswith(b"\n")
    assert log.append("jobs", Event("a")) == 3


def test_lines_longer_than_what_is_read_at_once_come_whole(log: EventLog, tmp_path: Path) -> None:
    texts = ["x" * size for size in (3_000_000, 10, 1_500_000, 0)]
    log.append_many("jobs", [Event("long", text) for text in texts])
    assert [record.event.payload for record in reopen(tmp_path).read_range("jobs")] == texts


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"not json\n" + data,
        lambda data: b'{"forebay":"events","version":2,"first":0}\n' + data,
        lambda data: b'{"forebay":"events","version":3,"first":0}\n' + data,
        lambda data: b'{"forebay":"events","version":1,"first":-1}\n' + data,
        lambda data: data.replace(b'"offset":1', b'"offset":7'),
        lambda data: data.replace(b'{"offset":1,', b"\n"),
        lambda data: data.replace(b'"time_ms"', b"\xff\xff"),
    ],
)
def test_what_somebody_else_wrote_is_corrupt_and_names_the_file(
    log: EventLog, lines: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    fill(log, 3)
    lines.write_bytes(damage(lines.read_bytes()))
    with pytest.raises(Corrupt, match=r"p-00000\.jsonl|partition 0|offset"):
        reopen(tmp_path).read_range("jobs")


def mutations(data: bytes) -> Iterator[bytes]:
    """Everything that one flipped bit, one byte more or one byte less can make of a file."""
    for at, byte in enumerate(data):
        for bit in range(8):
            yield data[:at] + bytes([byte ^ (1 << bit)]) + data[at + 1 :]
        yield data[:at] + data[at + 1 :]
        for added in b"\n0":
            yield data[:at] + bytes([added]) + data[at:]


def test_no_damaged_line_reads_as_another_event_and_no_offset_is_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "p-00000.jsonl"
    events = [encode_event(Event("a", payload), 5) for payload in (10, {"n": 1.5}, b"\x00")]
    LinesFile(path).append(events)
    whole = path.read_bytes()
    for number, mutated in enumerate(mutations(whole)):
        if whole.startswith(mutated):
            continue  # an append that was interrupted looks the same
        path.write_bytes(mutated)
        lines = LinesFile(path)
        for first, limit in [(0, 9), (1, 1), (2, 1)]:
            with suppress(Corrupt):
                for offset, event in lines.read(first, limit):
                    assert event == events[offset], f"mutation {number}: {mutated!r}"
        with suppress(Corrupt):
            assert lines.append([b"{}"]) == len(events), f"mutation {number}: {mutated!r}"
        lines.close()


def test_last_line_whose_end_is_damaged_is_not_taken_for_a_torn_one(log: EventLog, lines: Path, tmp_path: Path) -> None:
    fill(log, 3)
    lines.write_bytes(lines.read_bytes()[:-1] + b"\x0b")
    log = reopen(tmp_path)
    assert offsets(log.read_range("jobs")) == [0, 1]
    with pytest.raises(Corrupt, match="the end of the last line, of offset 2, is damaged"):
        log.append("jobs", Event("tick", 3))
    lines.write_bytes(lines.read_bytes()[:-1] + b"\n")
    assert log.append("jobs", Event("tick", 3)) == 3


def test_topic_record_or_cursor_that_is_damaged_is_corrupt(log: EventLog, tmp_path: Path) -> None:
    fill(log, 1)
    log.ack("jobs", "etl", 0)
    (cursor,) = (tmp_path / "jobs" / "consumers").rglob("etl.json")
    cursor.write_text("{}")
    with pytest.raises(Corrupt, match=r"etl\.json"):
        log.cursor("jobs", "etl")
    (tmp_path / "jobs" / "topic.json").write_text("[]")
    with pytest.raises(Corrupt, match=r"topic\.json"):
        reopen(tmp_path).partitions("jobs")


def test_append_that_finds_the_disk_full_leaves_nothing(
    log: EventLog, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 2)
    before = lines.read_bytes()
    really = os.pwrite

    def full(descriptor: int, data: Any, position: int) -> int:
        if position > len(before):
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(descriptor, bytes(data)[:40], position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unavailable, match="No space left"):
        fill(log, 3)
    monkeypatch.undo()
    assert lines.read_bytes() == before
    fill(log, 1)
    assert [record.event.payload for record in log.read_range("jobs")] == [0, 1, 2]


def test_append_that_can_neither_be_made_nor_undone_is_unknown(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, 1)

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fails)
    monkeypatch.setattr(os, "ftruncate", fails)
    with pytest.raises(Unknown, match="a part of it may be in the file"):
        fill(log, 1)


def test_write_in_pieces_is_put_together(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: really(fd, bytes(data)[:7], at))
    fill(log, 3)
    monkeypatch.undo()
    assert [record.event.payload for record in log.read_range("jobs")] == [0, 1, 2]


def test_who_may_only_read_reads_and_is_denied_the_rest(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 1)
    really = os.open

    def deny_writing(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, "Permission denied")
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", deny_writing)
    reader = reopen(tmp_path)
    assert offsets(reader.read_range("jobs")) == [0]
    with pytest.raises(Denied, match="permission denied"):
        reader.append("jobs", Event("a"))


def test_topic_whose_folder_was_removed_is_not_written_to(log: EventLog, tmp_path: Path) -> None:
    fill(log, 1)
    assert log.partitions("jobs") == 1
    shutil.rmtree(tmp_path / "jobs")
    with pytest.raises(Unavailable, match=r"the folder of topic .* is not there any more"):
        log.append("jobs", Event("a"))


def test_topic_that_was_removed_and_made_again_is_locked_where_it_is_now(log: EventLog, tmp_path: Path) -> None:
    fill(log, 2)
    assert log.partitions("jobs") == 1
    shutil.rmtree(tmp_path / "jobs")
    other = reopen(tmp_path)
    other.append("jobs", Event("a"))
    with _locked(tmp_path / "jobs"):
        appending = Background(lambda: log.append("jobs", Event("b")))
        appending.join(0.05)
        assert appending.is_alive()
    assert appending.result() == 1


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def test_flush_syncs_every_file_of_events_and_its_folder(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("jobs", 2)
    fill(log, 1, partition=0)
    fill(log, 1, partition=1)
    synced: set[int] = set()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    fill(log, 1)
    assert not synced
    log.flush()
    root = Path(log.url.removeprefix("file://")) / "jobs"
    assert {root.stat().st_ino, *(path.stat().st_ino for path in root.glob("*.jsonl"))} <= synced


def test_forked_child_and_parent_append_without_harm(log: EventLog) -> None:
    fill(log, 1)
    running, runs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(runs, b"!")
            for _ in range(1500):
                log.append("jobs", Event("child"))
            status = 0
        finally:
            os._exit(status)
    os.read(running, 1)  # both append at once
    for _ in range(1500):
        log.append("jobs", Event("parent"))
    assert os.waitpid(child, 0)[1] == 0
    os.close(running)
    os.close(runs)
    records = log.read_range("jobs")
    assert offsets(records) == list(range(3001))
    assert sorted(record.event.kind for record in records) == ["child"] * 1500 + ["parent"] * 1500 + ["tick"]
