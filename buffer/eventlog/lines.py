"""One partition as a file of JSON lines: finding places in it, appending, recovering a torn end, compacting.

The first line says at which offset the file begins; each line after it is an event and begins with its offset. A last
line without an end is an append that a process died in: readers stop before it, and the next append cuts it off.

Every method is called with the topic's lock held, so nobody else changes the file meanwhile.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from forebay.buffer.checks import Whole  # noqa: TC001 - msgspec reads the annotation
from forebay.buffer.errors import Corrupt, Unavailable, Unknown
from forebay.buffer.eventlog.backend import Bounds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_log = logging.getLogger("forebay.eventlog")

_MARK_EVERY: Final = 64
_CHUNK: Final = 1 << 16
"""Bytes read at once."""


class _Header(Struct, frozen=True):
    """The first line."""

    forebay: str
    version: int
    first: Whole


class LinesFile:
    """A partition's file, which need not be there yet, and what is known of it so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._is_writable = False
        self._forget()

    def _forget(self) -> None:
        self._first = self._next = 0
        self._end = 0
        """Where the last whole line ends."""
        self._size = 0
        """Of the file: more than `_end` if its last line is torn."""
        self._marks: list[int] = []
        """Where every 64th event begins."""

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._is_writable = -1, False

    def bounds(self) -> Bounds:
        """Return which offsets are there."""
        self._catch_up()
        return Bounds(self._first, self._next)

    def read(self, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` events from an offset, or from the first one, on."""
        self._catch_up()
        at = max(first, self._first)
        count = min(limit, self._next - at)
        if count <= 0:
            return []
        found = []
        for offset, line in enumerate(self._lines(self._position(at), count), at):
            start = _start_of_line(offset)
            if not line.startswith(start):
                raise Corrupt(f"{self._path}: expected the event of offset {offset}, found {line[:60]!r}")
            found.append((offset, b"{" + line[len(start) :]))
        return found

    def append(self, events: Sequence[bytes]) -> int:
        """Write events to the end, and return the first one's offset.

        Raises:
            Unavailable: nothing was appended.
            Unknown: some may be there, and could not be removed.
        """
        self._catch_up()
        if not self._is_writable:
            self.close()
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._is_writable = True
        if self._size > self._end:
            _log.warning("%s: an append was interrupted; its last line is cut off", self._path)
            os.ftruncate(self._fd, self._end)
        first = self._next
        lines = [_start_of_line(offset) + event[1:] + b"\n" for offset, event in enumerate(events, first)]
        if self._end == 0:
            lines.insert(0, _header_line(0))
        data = b"".join(lines)
        self._write(data)
        self._size = self._end + len(data)
        self._scan()
        return first

    def compact(self, through: int) -> tuple[Bounds, Bounds]:
        """Remove the events up to an offset; return the bounds before and after. The file is replaced by a new one."""
        before = self.bounds()
        kept = max(before.first, min(through + 1, before.next))
        if kept > before.first:
            temporary = self._path.with_suffix(".new")
            with temporary.open("wb") as file:
                file.write(_header_line(kept))
                position = self._position(kept)
                while position < self._end:
                    position += file.write(os.pread(self._fd, min(_CHUNK, self._end - position), position))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        return before, self.bounds()

    def _write(self, data: bytes) -> None:
        rest, position = memoryview(data), self._end
        try:
            while rest:
                written = os.pwrite(self._fd, rest, position)
                rest, position = rest[written:], position + written
        except OSError as error:
            try:
                os.ftruncate(self._fd, self._end)
            except OSError as second:
                raise Unknown(f"{self._path}: an append failed, and a part of it is there: {second}") from error
            raise Unavailable(f"{self._path}: nothing was appended: {error.strerror or error}") from error

    def _catch_up(self) -> None:
        """Learn what was written since the last look, or everything if the file is another one now."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self.close()
            self._forget()
            return
        if self._fd < 0 or not os.path.samestat(stat, os.fstat(self._fd)) or stat.st_size < self._end:
            self.close()
            self._forget()
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)  # who only reads may not be allowed to write
        self._size = stat.st_size
        if self._size > self._end:
            self._scan()

    def _scan(self) -> None:
        chunk_size = _CHUNK
        while self._end < self._size:
            chunk = os.pread(self._fd, min(chunk_size, self._size - self._end), self._end)
            end = chunk.rfind(b"\n") + 1
            if end == 0:
                if len(chunk) < chunk_size:
                    return  # torn
                chunk_size *= 2  # a line longer than that
                continue
            at = 0
            if self._end == 0:
                at = chunk.index(b"\n") + 1
                self._first = self._next = self._read_header(chunk[:at])
            while at < end:
                if (self._next - self._first) % _MARK_EVERY == 0:
                    self._marks.append(self._end + at)
                self._next += 1
                at = chunk.index(b"\n", at) + 1
            self._end += end

    def _read_header(self, line: bytes) -> int:
        try:
            header = msgspec.json.decode(line, type=_Header)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            header = _Header("", 0, -1)
        if header.forebay != "events" or header.version != 1 or header.first < 0:
            raise Corrupt(f"{self._path} is no file of events of version 1: it begins with {line[:60]!r}")
        return header.first

    def _position(self, offset: int) -> int:
        """Where an event begins; where the file ends, for the next one's offset."""
        if offset >= self._next:
            return self._end
        mark, beyond = divmod(offset - self._first, _MARK_EVERY)
        position = self._marks[mark]
        return position + sum(len(line) + 1 for line in self._lines(position, beyond))

    def _lines(self, position: int, count: int) -> list[bytes]:
        """So many lines from a position on, without their ends; the caller knows that they are there."""
        data = bytearray()
        found = 0
        while found < count:
            chunk = os.pread(self._fd, min(_CHUNK, self._end - position - len(data)), position + len(data))
            if not chunk:
                raise Corrupt(f"{self._path} is shorter than it was: somebody else has written to it")
            found += chunk.count(b"\n")
            data += chunk
        return bytes(data).split(b"\n", count)[:count] if count else []


def _start_of_line(offset: int) -> bytes:
    return b'{"offset":%d,' % offset


def _header_line(first: int) -> bytes:
    return msgspec.json.encode(_Header("events", 1, first)) + b"\n"
