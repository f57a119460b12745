"""One partition as a file of JSON lines: finding events, appending, recovering from a torn last line, compacting.

The first line says at which offset the file begins. Each line after it is an event. It begins with its offset and, from
version 2 on, a checksum. A file of version 1 gets no checksums until it is compacted. If a process dies in an append,
the last line may have no newline: readers stop before it, and the next append cuts it off.

Every method is called with the topic's lock held, so no other thread or process changes the file meanwhile.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from forebay.buffer.base.checks import Whole  # noqa: TC001 - msgspec reads the annotation
from forebay.buffer.base.errors import Corrupt, Unavailable, Unknown
from forebay.buffer.eventlog.backend import Bounds
from forebay.buffer.eventlog.model import seal_event, unseal_event
from forebay.buffer.format.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_log = logging.getLogger("forebay.eventlog")

_MARK_EVERY: Final = 64
_CHUNK: Final = 1 << 16
"""Maximum number of bytes in one read, unless a line is longer."""
_VERSION: Final = 2
"""The format version of new files."""
_COPIED_AT_ONCE: Final = 1000


class _Header(Struct, frozen=True):
    """The first line of a file."""

    forebay: str
    version: int
    first: Whole


_header_decoder = msgspec.json.Decoder(_Header)


class LinesFile:
    """A partition's file, which need not exist yet, and an index of the part that was scanned so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._is_writable = False
        self._forget()

    def _forget(self) -> None:
        self._version = _VERSION
        self._first = self._next = 0
        self._end = 0
        """Position, in bytes, where the last complete line ends."""
        self._size = 0
        """Size of the file in bytes: more than `_end` if its last line is torn."""
        self._marks: list[int] = []
        """Positions, in bytes, where every 64th event begins."""
        self._checked_end = 0
        """The value of `_end` when the last line was last checked and found intact."""

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._is_writable = -1, False

    def bounds(self) -> Bounds:
        """Return the range of offsets in the file."""
        self._catch_up()
        return Bounds(self._first, self._next)

    def read(self, first: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` events with their offsets, from offset `first` or the first retained on."""
        self._catch_up()
        at = max(first, self._first)
        count = min(limit, self._next - at)
        if count <= 0:
            return []
        found = []
        for offset, line in enumerate(self._lines(self._position(at), count), at):
            event = _decode_line(line, offset, self._version)
            if event is None:
                raise Corrupt(
                    f"{self._path}: the line of offset {offset} is damaged, or not the line of that offset; it begins "
                    f"with {line[:60]!r}"
                    "; restore the file"
                )
            found.append((offset, event))
        return found

    def append(self, events: Sequence[bytes]) -> int:
        """Write events to the end, and return the first one's offset.

        Raises:
            Unavailable: nothing was appended.
            Unknown: a part may be in the file, and could not be removed.
        """
        self._catch_up()
        if not self._is_writable:
            self.close()
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._is_writable = True
        if self._end != self._checked_end:
            self._check_last_line()  # guard: check the last line before an append
        if self._size > self._end:  # guard: cut off a torn line before appending
            self._cut_off_torn_line()
        first = self._next
        lines = [_encode_line(event, offset, self._version) for offset, event in enumerate(events, first)]
        if self._end == 0:
            lines.insert(0, _header_line(0))
        data = b"".join(lines)
        self._write(data)
        self._size = self._end + len(data)
        self._scan()
        self._checked_end = self._end
        return first

    def compact(self, through: int) -> tuple[Bounds, Bounds]:
        """Remove the events up to an offset, by replacing the file. Return the bounds before and after."""
        before = self.bounds()
        kept = max(before.first, min(through + 1, before.next))
        if kept > before.first:
            temporary = self._path.with_suffix(".new")
            with temporary.open("wb") as file:
                file.write(_header_line(kept))
                if self._version == _VERSION:
                    position = self._position(kept)
                    while position < self._end:
                        chunk = os.pread(self._fd, min(_CHUNK, self._end - position), position)
                        if not chunk:
                            raise Corrupt(
                                f"{self._path} is shorter than it was, though forebay only appends to it; restore the "
                                "file, and check which other program writes to it"
                            )
                        position += file.write(chunk)
                else:
                    for start in range(kept, before.next, _COPIED_AT_ONCE):
                        events = self.read(start, _COPIED_AT_ONCE)
                        file.writelines(_encode_line(event, offset, _VERSION) for offset, event in events)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        return before, self.bounds()

    def _check_last_line(self) -> None:
        """Raise `Corrupt` if the last line is damaged: it may be two lines, and then the next offset would be wrong."""
        if self._next > self._first:
            self.read(self._next - 1, 1)
        self._checked_end = self._end

    def _cut_off_torn_line(self) -> None:
        torn = os.pread(self._fd, self._size - self._end, self._end)
        # An interrupted append leaves a part of a line. A complete line with a wrong last byte is damage.
        # guard: a damaged last line is not a torn line
        if self._end and self._version > 1 and _decode_line(torn[:-1], self._next, self._version) is not None:
            raise Corrupt(
                f"{self._path}: the end of the last line, of offset {self._next}, is damaged: replace the file's last "
                "byte by a newline"
            )
        _log.warning("%s: an earlier append was interrupted; cutting off its incomplete last line", self._path)
        os.ftruncate(self._fd, self._end)

    def _write(self, data: bytes) -> None:
        rest, position = memoryview(data), self._end
        try:
            while rest:
                written = os.pwrite(self._fd, rest, position)
                if not written:
                    raise OSError(errno.EIO, "nothing could be written")
                rest, position = rest[written:], position + written
        except OSError as error:
            try:
                os.ftruncate(self._fd, self._end)  # guard: truncate the file after a failed write
            except OSError as second:
                raise Unknown(
                    f"{self._path}: an append failed, and a part of it may be in the file ({second}); read "
                    "the end of the topic before you append again"
                ) from error
            raise Unavailable(
                f"{self._path}: nothing was appended: {error.strerror or error}; check the disk, and try again"
            ) from error

    def _catch_up(self) -> None:
        """Scan what was written since the last scan, or everything if the file was replaced."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self.close()
            self._forget()
            return
        if self._fd < 0 or not os.path.samestat(stat, os.fstat(self._fd)) or stat.st_size < self._end:
            self.close()
            self._forget()
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)  # a reader may have no permission to write
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
                chunk_size *= 2  # the line is longer than the chunk
                continue
            at = last = 0
            if self._end == 0:
                at = chunk.index(b"\n") + 1
                self._read_header(chunk[:at])
            while at < end:
                if (self._next - self._first) % _MARK_EVERY == 0:
                    self._marks.append(self._end + at)
                self._next += 1
                last, at = at, chunk.index(b"\n", at) + 1
            if last:
                self._check_count(chunk[last:end])
            self._end += end

    def _check_count(self, last: bytes) -> None:
        """Raise `Corrupt` unless the last line has the offset that counting gave it.

        If damage removed or added a newline, the next event would otherwise get a wrong offset.
        """
        offset = self._next - 1
        if not last.startswith(_start_of_line(offset)):
            self._forget()
            raise Corrupt(
                f"{self._path}: the last line should be that of offset {offset}, but it begins with "
                f"{last[:60]!r}; restore the file"
            )

    def _read_header(self, line: bytes) -> None:
        try:
            header = _header_decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            header = _Header("", 0, -1)
        is_whole = header.version == 1 or line == _header_line(header.first)
        if header.forebay != "events" or header.version not in (1, _VERSION) or header.first < 0 or not is_whole:
            raise Corrupt(
                f"{self._path} is not a file of events of version 1 or {_VERSION}, or is damaged: it begins with "
                f"{line[:80]!r}"
                "; restore the file"
            )
        self._version = header.version
        self._first = self._next = header.first

    def _position(self, offset: int) -> int:
        """Return the position where an event begins; for the offset of the next event, the end of the last line."""
        if offset >= self._next:
            return self._end
        mark, beyond = divmod(offset - self._first, _MARK_EVERY)
        position = self._marks[mark]
        return position + sum(len(line) + 1 for line in self._lines(position, beyond))

    def _lines(self, position: int, count: int) -> list[bytes]:
        """Return lines from a position on, without their line ends. The caller knows that they exist."""
        data = bytearray()
        found = 0
        while found < count:
            chunk = os.pread(self._fd, min(_CHUNK, self._end - position - len(data)), position + len(data))
            if not chunk:
                raise Corrupt(
                    f"{self._path} is shorter than it was, though forebay only appends to it; restore the "
                    "file, and check which other program writes to it"
                )
            found += chunk.count(b"\n")
            data += chunk
        return bytes(data).split(b"\n", count)[:count] if count else []


def _start_of_line(offset: int) -> bytes:
    return b'{"offset":%d,' % offset


def _encode_line(event: bytes, offset: int, version: int) -> bytes:
    stored = event if version == 1 else seal_event(event, offset)
    return _start_of_line(offset) + stored[1:] + b"\n"


def _decode_line(line: bytes, offset: int, version: int) -> bytes | None:
    """Return the event of a line without its newline; None if the line is damaged or not of that offset."""
    start = _start_of_line(offset)
    if not line.startswith(start):
        return None
    stored = b"{" + line[len(start) :]
    return stored if version == 1 else unseal_event(stored, offset)  # guard: verify the checksum of each line


def _header_line(first: int) -> bytes:
    header = msgspec.json.encode(_Header("events", _VERSION, first))
    return b'%s,"crc32c":"%08x"}\n' % (header[:-1], crc32c(header))
