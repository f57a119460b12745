"""`file:///folder`: a log as files of JSON lines, shared by the processes of one machine (rfcs/0009)."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import msgspec

from forebay.buffer.base.errors import Closed, Corrupt, Denied, NotFound, Unavailable
from forebay.buffer.base.reread import read_sound
from forebay.buffer.eventlog.backend import Bounds
from forebay.buffer.eventlog.cursors import StoredCursors
from forebay.buffer.eventlog.lines import LinesFile
from forebay.buffer.eventlog.model import CompactReport
from forebay.buffer.manifest.topic import MAX_PARTITIONS, partition_name
from forebay.buffer.store.disk import sync_path
from forebay.buffer.store.file import FileStore
from forebay.buffer.store.lock import LOCK_SECONDS, wait_for_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay.buffer.base.clock import Clock, Random


class _Topic(msgspec.Struct, frozen=True):
    """The content of `topic.json`."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]


_decoder = msgspec.json.Decoder(_Topic)


class _TopicFolder:
    """A topic's files, and the lock that keeps processes and threads from changing them at the same time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._threads = Lock()
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._identity = os.fstat(self._fd)
        self._files: dict[int, LinesFile] = {}

    def is_current(self) -> bool:
        """Whether the folder is still the one that was opened. A lock on a folder that was removed protects nothing."""
        try:
            return os.path.samestat(self._identity, self._path.stat())
        except FileNotFoundError:
            return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        # Lock the folder: unlike its files, it is never replaced. The lock belongs to the open folder, which all
        # threads of this process share, so they need another lock among themselves.
        with self._threads:
            if self._fd < 0:
                raise Closed(f"file://{self._path} was closed by another thread; open the event log again")
            wait_for_lock(self._fd, self._path, LOCK_SECONDS, self._clock)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def file(self, partition: int) -> LinesFile:
        if partition not in self._files:
            self._files[partition] = LinesFile(self._path / f"{partition_name(partition)}.jsonl")
        return self._files[partition]

    def sync(self) -> None:
        """Write every file to the disk; the caller holds the lock."""
        for path in self._path.glob("*.jsonl"):
            sync_path(path)
        os.fsync(self._fd)  # guard: fsync every file on flush

    def close(self) -> None:
        with self._threads:
            os.close(self._fd)
            self._fd = -1  # a waiting thread must not use the number: another file may have it by then
            for file in self._files.values():
                file.close()


class FilesBackend(StoredCursors):
    """A log in a folder. It has a folder for each topic, a file for each partition and a small file for each cursor."""

    kind = "file"
    polls = True

    def __init__(self, url: str, *, clock: Clock, random: Random) -> None:
        super().__init__(FileStore(url), clock=clock, random=random)
        self.url: str = self._store.url
        self._root = Path(unquote(urlsplit(self.url).path))
        self._process = os.getpid()
        self._folders: dict[str, _TopicFolder] = {}
        self._opening = Lock()
        self._is_closed = False

    def create(self, topic: str, partitions: int) -> int:
        """Create a topic unless it exists, and return its number of partitions."""
        self._store.create(_record_key(topic), msgspec.json.encode(_Topic(partitions)))
        # Read our record, or that of a process that was faster.
        found = self.partitions(topic)
        if found is None:
            raise Unavailable(
                f"{self.url}: topic {topic} was created and is not there any more; check that no other "
                "program deletes files in this folder, then try again"
            )
        return found

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if there is no such topic."""
        return read_sound(lambda: self._read_partitions(topic), self._clock)

    def _read_partitions(self, topic: str) -> int | None:
        key = _record_key(topic)
        try:
            return _decoder.decode(self._store.get(key).data).partitions
        except NotFound:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"{self.url}/{key} does not say how many partitions there are: {error}; restore it"
            ) from error

    def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
        """Append lines to the partition's file, and return the first offset."""
        with self._locked(topic) as folder:
            if folder is None:
                raise Unavailable(
                    f"{self.url}: the folder of topic {topic} is not there any more, and nothing was "
                    "appended; restore it, or open the event log again"
                )
            return folder.file(partition).append(events)

    def bounds(self, topic: str, partitions: Sequence[int]) -> list[Bounds]:
        """Return the bounds of each partition."""
        with self._locked(topic) as folder:
            return [Bounds(0, 0) if folder is None else folder.file(number).bounds() for number in partitions]

    def read(self, topic: str, partition: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return events and their offsets."""
        with self._locked(topic) as folder:
            return [] if folder is None else folder.file(partition).read(first, limit)

    def compact(self, topic: str, partition: int, through: int) -> CompactReport:
        """Replace the partition's file by one that begins after an offset."""
        with self._locked(topic) as folder:
            if folder is None:
                return CompactReport()
            before, after = folder.file(partition).compact(through)
        latest = after.next - 1 if after.next else None
        return CompactReport(after.first - before.first, after.next - after.first, latest)

    def size_bytes(self) -> int | None:
        """Return the total size of all files, in bytes."""
        return sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())

    def flush(self) -> None:
        """Sync every file of events; cursors are synced when they are written."""
        for record in sorted(self._root.glob("*/topic.json")):
            with self._locked(record.parent.name) as folder:
                if folder is not None:
                    folder.sync()

    def close(self) -> None:
        """Close all files."""
        with self._opening:
            self._is_closed = True
            folders, self._folders = self._folders, {}
        if self._process == os.getpid():
            for folder in folders.values():
                folder.close()

    @contextmanager
    def _locked(self, topic: str) -> Iterator[_TopicFolder | None]:
        """Yield the topic's files, with the topic's lock held; None if there is no such topic."""
        with self._typed_errors(topic):
            folder = self._open(topic)
            if folder is None:
                yield None
                return
            with folder.locked():
                yield folder

    def _open(self, topic: str) -> _TopicFolder | None:
        if self._process != os.getpid():  # guard: take new locks after a fork
            # A forked child shares its parent's open files and so their locks: both would hold a lock at once.
            self._process, self._folders, self._opening = os.getpid(), {}, Lock()
        with self._opening:
            if self._is_closed:
                raise Closed(f"{self.url} was closed by another thread; open the event log again")
            folder = self._folders.get(topic)
            if folder is not None and not folder.is_current():  # guard: reopen a topic folder that was replaced
                folder.close()
                folder = None
            if folder is None:
                try:
                    folder = self._folders[topic] = _TopicFolder(self._root / topic, self._clock)
                except FileNotFoundError:
                    self._folders.pop(topic, None)
            return folder

    @contextmanager
    def _typed_errors(self, topic: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise Denied(f"{self.url}/{topic}: permission denied; check who owns the folder and its mode") from error
        except OSError as error:
            raise Unavailable(
                f"{self.url}/{topic}: the file system failed ({error.strerror or error}); check the disk, and try again"
            ) from error


def _record_key(topic: str) -> str:
    return f"{topic}/topic.json"
