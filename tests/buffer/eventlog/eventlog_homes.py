"""Event logs in each of their homes, and what tests of them share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from patience import PATIENCE

from forebay.buffer.eventlog import Event, EventLog, Record, Subscription, open_event_log

T = TypeVar("T")


KINDS = ("memory", "file", "sqlite", "objects")


class Home:
    """A place for a log, empty at first; every handle opened there sees the same log."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self._open: list[EventLog] = []

    def open(self, **settings: Any) -> EventLog:
        settings.setdefault("poll_interval", 0.05)
        self._open.append(open_event_log(self.url, **settings))
        return self._open[-1]

    @classmethod
    def make(cls, kind: str, name: str, folder: Path) -> Home:
        """A home of its own for a test, by the test's name and its folder."""
        urls = {
            "memory": f"memory://{name}",
            "file": f"file://{folder}/log",
            "sqlite": f"sqlite://{folder}/events.db",
            "objects": f"objects+memory://{name}",
        }
        return cls(kind, urls[kind])

    def close(self) -> None:
        for log in self._open:
            log.close()


def fill(log: EventLog, count: int, *, topic: str = "jobs", partition: int = 0) -> None:
    """Events whose payload is their offset, if the partition was empty."""
    start = log.high_water_marks(topic)[partition]
    log.append_many(topic, [Event("tick", number) for number in range(start, start + count)], partition=partition)


def take(records: Subscription, count: int) -> list[tuple[int, int]]:
    """The partition and offset of the next events, which must come."""
    found = []
    for _ in range(count):
        record = records.poll(PATIENCE)
        assert record is not None, f"only {found} came"
        found.append(place(record))
    return found


def place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


class Background(Thread):
    """A call in a thread; `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - for the caller of `result`
            self._error = error

    def result(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), "it still waits"
        if self._error is not None:
            raise self._error
        return self._result
