"""One log, many processes, some of them killed: offsets stay contiguous and nothing acknowledged is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from eventlog_homes import offsets

from forebay.buffer.eventlog import Event, open_event_log

WORKER = Path(__file__).with_name("eventlog_worker.py")


class Process:
    """A worker that was started and has come up to its first word."""

    def __init__(self, mode: str, url: str, name: str, count: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), mode, url, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.read_line() == "ready"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def read_rest(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.read().splitlines()

    def finish(self) -> list[str]:
        """Everything it still says, after it has ended well."""
        lines = self.read_rest()
        assert self._process.wait() == 0
        return lines

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def processes(*workers: Process) -> Iterator[tuple[Process, ...]]:
    try:
        for worker in workers:
            worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers:
            worker.close()


@pytest.fixture(params=["file", "sqlite", "objects"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "file": f"file://{tmp_path}/log",
        "sqlite": f"sqlite://{tmp_path}/events.db",
        "objects": f"objects+file://{tmp_path}/objects",
    }[request.param]


def read_payloads(url: str) -> dict[int, tuple[str, int, int]]:
    """Every event by its offset; they must be contiguous."""
    with open_event_log(url) as log:
        records = log.read_range("jobs")
        assert offsets(records) == list(range(len(records)))
        return {record.offset: tuple(record.event.payload) for record in records}


def test_processes_share_a_log_each_in_its_own_order_and_a_follower_sees_it_all(url: str) -> None:
    calls = 12
    expected = sum(1 + number % 3 for number in range(calls)) * 2
    workers = [Process("append", url, name, calls) for name in ("a", "b")]
    with processes(*workers, Process("follow", url, "", expected)) as (one, two, follower):
        one.go()  # both make the topic, the database, the files: at the same time
        two.go()
        followed = [line.split() for line in follower.finish()]
        acknowledged = {worker.name: worker.finish() for worker in (one, two)}
    found = read_payloads(url)
    assert len(found) == expected
    assert [(int(o), n, int(i), int(p)) for o, n, i, p in followed] == [(o, *payload) for o, payload in found.items()]
    for name, lines in acknowledged.items():
        assert [(number, piece) for who, number, piece in found.values() if who == name] == [
            (number, piece) for number in range(calls) for piece in range(1 + number % 3)
        ]
        for line in lines:
            start, stop, number = map(int, line.split())
            assert [found[offset] for offset in range(start, stop)] == [
                (name, number, piece) for piece in range(1 + number % 3)
            ]


def test_killed_processes_lose_nothing_that_they_were_told_is_there(url: str) -> None:
    acknowledged: dict[int, tuple[str, int, int]] = {}
    names = ("first", "second")
    with processes(*(Process("append", url, name, 1_000_000) for name in names)) as workers:
        for worker in workers:  # the second one appends while the first one is killed
            worker.go()
        for worker in workers:
            lines = [worker.read_line() for _ in range(15)]
            worker.kill()
            lines += worker.read_rest()
            for line in lines:
                start, stop, number = map(int, line.split())
                acknowledged |= {start + piece: (worker.name, number, piece) for piece in range(stop - start)}
    found = read_payloads(url)
    assert acknowledged.items() <= found.items()
    for name in names:
        own = [(number, piece) for who, number, piece in found.values() if who == name]
        assert own == sorted(set(own)), "in order, and none twice"
        numbers = [number for number, _ in own]
        assert sorted(set(numbers)) == list(range(max(numbers) + 1)), "a call before one that is there is missing"
    with open_event_log(url) as log:
        assert log.append("jobs", Event("after")) == len(found)
        assert log.compact("jobs", len(found)).remaining == 0
