"""`file:///folder`: objects as files, with a compare-and-swap that holds between processes.

- A write fills a temporary file beside its target and syncs it; the target changes by one rename (or, for `create`, one
  hard link), and then its folder is synced. A crash at any point leaves the old object or the new one, whole.
- Before anything found in a folder is shown, the folder is synced: the process that wrote it may have died before its
  own sync. So what a reader does elsewhere never outlives what it rests on.
- Renames are made under an exclusive `flock` on a lock file in the same folder, which is never deleted; readers take no
  lock, because an open file keeps its bytes when its name moves on.
- The version is the file's modification time, size and inode. Two versions that follow each other differ in inode,
  since both files exist at the moment of the rename; inodes are reused, so the time is made to grow with every write.

- An object is a regular file. Symbolic links below the store's folder are not followed, and pipes, sockets and devices
  are not opened. Otherwise anyone who can write to the folder could make a collector delete outside it, or hang
  a reader.

The processes of one machine may share a folder on a local disk. Do not use a network file system: its locks, renames
and caches may differ from what this store relies on, and no test tries it.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Denied, InvalidInput, NotFound, StoreError, Unavailable, Unknown, Unsupported
from forebay.buffer.store.base import (
    Applied,
    Data,
    InDoubt,
    NotApplied,
    ObjectInfo,
    ObjectStore,
    Outcome,
    StoredObject,
    check_key,
    check_prefix,
)
from forebay.buffer.store.disk import Disk
from forebay.buffer.store.lock import LOCK_SECONDS, hold_lock
from forebay.buffer.store.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from io import FileIO

    from forebay.buffer.base.clock import Clock

_RESERVED = ".forebay-"
_LOCK_NAME = _RESERVED + "lock"
_MAX_NAME_BYTES = 255
_LARGE = 1 << 20
_LEFTOVER_AGE_NS = 3600 * 10**9
"""Age from which a temporary file is taken for a leftover of a dead process: no write takes an hour."""
_RESCUE_PAUSE_SECONDS = 60.0
"""Minimum seconds between two searches of a full disk for temporary files of killed processes."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAY_NOT_SYNC = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL})
"""Errors with which a reader is refused the sync of a folder that it can still read: it may not list the folder, or the
file system cannot sync folders (SquashFS), so no write to it is ever reported durable."""
_LATER_TIMES = 20
"""Attempts to give a file a later time. Each adds ten times as much as the last, up to centuries."""


class _NotAnObjectError(Exception):
    """There is something other than a regular file at an object's path."""


class _FolderNotSyncedError(Exception):
    """The rename was made, but the folder that holds it could not be synced."""


class FileStore(ObjectStore):
    """Files below one folder, which is made by the first write.

    Args:
        url: `file:///absolute/path`.
        lock_seconds: how long a write waits while another program holds the lock of its folder.
        clock: measures that wait.
        disk: makes the changes; for tests.
    """

    def __init__(
        self, url: str, *, lock_seconds: float = LOCK_SECONDS, clock: Clock | None = None, disk: Disk | None = None
    ) -> None:
        location = parse_url(url)
        if location.scheme != "file":
            raise InvalidInput(f"{location.url} is not a local folder: write file:///absolute/path")
        self.url: str = location.url
        self._root = Path(unquote(urlsplit(self.url).path))
        self._swept: set[Path] = set()
        self._lasting_folders: set[Path] = set()
        """Folders whose names survive a power cut."""
        self._unsynced: set[Path] = set()
        """Folders that could not be synced after a write of this process."""
        self._lock_seconds = check_seconds(lock_seconds, "lock_seconds")
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._rescued_at: float | None = None

    def __reduce__(self) -> tuple[type[FileStore], tuple[str]]:
        return FileStore, (self.url,)

    def get(self, key: str) -> StoredObject:
        """Return the file's bytes and version, from one open file."""
        with self._opened(key) as (file, stat):
            self._sync_found(self._named(key).parent)
            return StoredObject(_read_all(file, stat.st_size), _version(stat))

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Return the object, or None while its version is still `version`: an unchanged file costs one stat."""
        with self._opened(key) as (file, stat):
            now = _version(stat)
            if now == version:
                return None
            self._sync_found(self._named(key).parent)
            return StoredObject(_read_all(file, stat.st_size), now)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[FileIO, os.stat_result]]:
        """An object's open file, and what is known of that file."""
        path = self._path(key)
        with self._typed_errors(key):
            try:
                with _open_object(path) as file:
                    stat = os.fstat(file.fileno())
                    _check_regular(path, stat)
                    yield file, stat
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound(f"{self.url}/{key} does not exist; check the URL and the key") from None

    def put(self, key: str, data: Data) -> str:
        """Write the file whatever was there."""
        path = self._path(key)
        try:
            with self._typed_errors(key), self._filled(path, data) as temporary:
                with self._locked(path.parent):
                    version = _rename_over(self._disk, temporary, path, _stat(path))
                self._sync_written(path.parent)
        except _FolderNotSyncedError as error:
            raise Unknown(
                f"a crash of the machine may undo the write of {self.url}/{key}, as its folder was not "
                f"synced: {error}; check the disk, and write it again"
            ) from error
        return version

    def create(self, key: str, data: Data) -> Outcome:
        """Write the file only if there is none."""
        path = self._path(key)
        try:
            with self._typed_errors(key), self._filled(path, data) as temporary:
                version = _version(temporary.stat())
                try:
                    self._disk.link(temporary, path)  # fails if the name is taken, so it needs no lock
                except FileExistsError:
                    _stat(path)  # raises where it is no object
                    self._sync_found(path.parent)
                    return NotApplied("it exists")
                self._sync_written(path.parent)
        except _FolderNotSyncedError as error:
            return InDoubt(f"it was created, but may not survive a crash: {error}")
        return Applied(version)

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write the file only if its version is still `version`."""
        path = self._path(key)
        if not path.parent.is_dir():
            return NotApplied("it does not exist")
        try:
            with self._typed_errors(key), self._filled(path, data) as temporary:
                with self._locked(path.parent):
                    now = _stat(path)
                    if now is None:
                        return NotApplied("it does not exist")
                    if _version(now) != version:  # guard: compare the version under the lock
                        return NotApplied("its version has changed")
                    version = _rename_over(self._disk, temporary, path, now)
                self._sync_written(path.parent)
        except _FolderNotSyncedError as error:
            return InDoubt(f"it was replaced, but may not survive a crash: {error}")
        return Applied(version)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the files whose keys start with `prefix`, one folder at a time, in the keys' UTF-8 order."""
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        with self._typed_errors(folder):
            self._check_folders(self._root / folder / "any")
        yield from self._walk(f"{folder}/" if folder else "", prefix.encode(), start_after.encode())

    def _walk(self, folder: str, prefix: bytes, start_after: bytes) -> Iterator[ObjectInfo]:
        with self._typed_errors(folder):
            try:
                with os.scandir(self._root / folder) as found:
                    names = sorted(_listed_name(entry).encode() for entry in found if _may_list(entry))
                self._sync_found(self._root / folder)
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in names:
            key = folder.encode() + name
            if name.endswith(b"/"):
                within = prefix.startswith(key) or key.startswith(prefix)
                if within and (key >= start_after or start_after.startswith(key)):
                    yield from self._walk(key.decode(), prefix, start_after)
            elif key.startswith(prefix) and key > start_after and not name.startswith(_RESERVED.encode()):
                with suppress(FileNotFoundError):
                    stat = (self._root / key.decode()).lstat()
                    yield ObjectInfo(key.decode(), stat.st_size, stat.st_mtime_ns // 1_000_000)

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete files, and return the failures by key."""
        paths = {key: self._named(key) for key in keys}  # all checked before anything is deleted
        failures: dict[str, StoreError] = {}
        folders = set()
        for key, path in paths.items():
            try:
                with self._typed_errors(key), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._check_folders(path)
                    self._disk.unlink(path)
                    folders.add(path.parent)
            except StoreError as error:
                failures[key] = error
            except Unsupported as error:
                failures[key] = Unavailable(str(error))
        for folder in folders:
            with suppress(OSError):  # a deletion that a crash undoes is swept again
                self._disk.sync_folder(folder)
        return failures

    def _path(self, key: str) -> Path:
        path = self._named(key)
        with self._typed_errors(key):
            self._check_folders(path)
        return path

    def _check_folders(self, path: Path) -> None:
        """Raise if the way from the store's folder to a file leads through a symbolic link."""
        for folder in path.parents:
            if folder == self._root:
                return
            if folder.is_symlink():  # guard: never follow a symbolic link
                raise _NotAnObjectError(f"{folder} is a symbolic link, which is not followed")

    def _named(self, key: str) -> Path:
        names = check_key(key).split("/")
        for name in names:
            if len(name.encode()) > _MAX_NAME_BYTES:
                raise InvalidInput(
                    f"object key {key!r} has a part longer than {_MAX_NAME_BYTES} bytes: no file name can be"
                    "; use shorter names"
                )
            if name.startswith(_RESERVED):
                raise InvalidInput(
                    f"object key {key!r} uses {_RESERVED!r}, which file stores keep for themselves; choose another name"
                )
        return self._root.joinpath(*names)

    @contextmanager
    def _filled(self, path: Path, data: Data) -> Iterator[Path]:
        """A synced temporary file beside `path`, gone again unless it was renamed."""
        temporary = self._write_temporary(path, data)
        try:
            self._sweep_leftovers(temporary)
            yield temporary
        finally:
            # guard: tell what became of a write even if its temporary file stays
            with suppress(OSError):  # a leftover is removed later
                self._disk.unlink(temporary)

    def _sync_found(self, folder: Path) -> None:
        """Make what was found in a folder survive a power cut. Who wrote it may not have synced it, or may be dead."""
        try:
            self._disk.sync_folder(folder)  # guard: sync a folder before showing what is in it
        except OSError as error:
            # guard: show nothing of a write that may not survive a power cut
            if folder in self._unsynced or error.errno not in _MAY_NOT_SYNC:
                raise
        else:
            self._unsynced.discard(folder)

    def _make_folder(self, folder: Path) -> None:
        """Make the folder and those above it, so that they survive a crash as well as what is put into them."""
        if folder.is_dir():
            if folder in self._lasting_folders:
                return
            # The process that made it may have died before it synced its name, or may not have come to that yet. The
            # names of the folders above it were synced before it was made.
            with suppress(PermissionError):
                self._disk.sync_folder(folder.parent)  # guard: fsync the name of a folder that another process made
        else:
            self._make_folder(folder.parent)
            try:
                self._disk.make_folder(folder)
            except FileExistsError:
                if not folder.is_dir():  # else another process was quicker
                    raise NotADirectoryError from None
            self._disk.sync_folder(folder.parent)  # guard: fsync the name of a new folder
        self._lasting_folders.add(folder)

    def _write_temporary(self, path: Path, data: Data) -> Path:
        """Write a synced temporary file. On a full disk, remove leftovers of killed processes and try once more."""
        try:
            return self._write_once(path, data)
        except OSError as error:
            if error.errno not in _FULL or not self._free_space(path.parent):
                raise
        return self._write_once(path, data)

    def _write_once(self, path: Path, data: Data) -> Path:
        self._make_folder(path.parent)
        temporary = path.parent / f"{_RESERVED}tmp-{os.getpid()}-{system_random().getrandbits(64):016x}"
        descriptor = self._disk.create(temporary)
        try:
            try:
                rest = memoryview(data).cast("B")
                while rest:  # one write call moves at most 2 GiB
                    rest = rest[self._disk.write(descriptor, rest) :]
                self._disk.sync_file(descriptor)  # guard: fsync the data before the rename
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(OSError):  # a leftover is removed later
                self._disk.unlink(temporary)
            raise
        return temporary

    def _free_space(self, written: Path) -> int:
        """Remove old temporary files from every folder, and return how many; once a minute at most.

        `written` is the folder of the write that just failed, so its time is the file system's current time.
        """
        now = self._clock.monotonic()
        if self._rescued_at is not None and now < self._rescued_at + _RESCUE_PAUSE_SECONDS:
            return 0
        self._rescued_at = now
        oldest_ns = written.stat().st_mtime_ns - _LEFTOVER_AGE_NS
        # os.walk follows no symbolic links.
        return sum(_remove_leftovers(Path(folder), oldest_ns) for folder, _folders, _names in os.walk(self._root))

    def _sweep_leftovers(self, fresh: Path) -> None:
        """Remove temporary files that killed processes left, once for each folder; their age is the file system's."""
        if fresh.parent in self._swept:
            return
        self._swept.add(fresh.parent)
        _remove_leftovers(fresh.parent, fresh.stat().st_mtime_ns - _LEFTOVER_AGE_NS)

    def _sync_written(self, folder: Path) -> None:
        try:
            self._disk.sync_folder(folder)  # guard: fsync the folder after the rename
        except OSError as error:
            self._unsynced.add(folder)
            raise _FolderNotSyncedError(error.strerror or str(error)) from error

    def _locked(self, folder: Path) -> AbstractContextManager[None]:
        return hold_lock(folder / _LOCK_NAME, self._lock_seconds, self._clock)

    @contextmanager
    def _typed_errors(self, key: str) -> Iterator[None]:
        where = f"{self.url}/{key}".rstrip("/")
        try:
            yield
        except PermissionError as error:
            raise Denied(f"{where}: permission denied; check who owns {self._root} and its mode") from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise InvalidInput(
                f"{where}: a key cannot be both an object and a folder of objects on a file system"
                "; choose another name for one of them"
            ) from error
        except _NotAnObjectError as error:
            raise Unsupported(f"{where}: {error}; remove it, or put the objects themselves in its place") from None
        except OSError as error:
            if error.errno in _FULL:
                raise Unavailable(f"{where}: the disk is full; free some space and try again") from error
            raise Unavailable(
                f"{where}: the file system failed ({error.strerror or error}); check the disk and the "
                "folder, and try again"
            ) from error


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether a full disk, or a user's full quota on it, caused a store's error."""
    for _ in range(10):  # a chain of causes is short
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


def _open_object(path: Path) -> FileIO:
    """Open a file to read it; never wait for the other end of a pipe."""
    extra_flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    try:
        return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | extra_flags))
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:  # a symbolic link, a socket
            raise
        raise _NotAnObjectError(f"{path} is a symbolic link, a socket or a device, not an object") from None


def _check_regular(path: Path, stat: os.stat_result) -> None:
    if modes.S_ISDIR(stat.st_mode):
        raise IsADirectoryError
    if not modes.S_ISREG(stat.st_mode):
        raise _NotAnObjectError(f"{path} is a symbolic link, a pipe, a socket or a device, not an object")


def _may_list(entry: os.DirEntry[str]) -> bool:
    # A name with stray bytes arrives with surrogates in it. Such a file is not ours: no key can name it.
    is_utf8 = not any("\ud800" <= char <= "\udfff" for char in entry.name)
    return is_utf8 and (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))


def _listed_name(entry: os.DirEntry[str]) -> str:
    """The name of a file or folder. A folder sorts as its keys do: with the slash that follows its name."""
    return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name


def _remove_leftovers(folder: Path, oldest_ns: int) -> int:
    """Remove a folder's temporary files that were last written before a moment, and return how many."""
    removed = 0
    for path in folder.glob(f"{_RESERVED}tmp-*"):
        with suppress(OSError):  # another process removed it, or it is another user's in a folder with a sticky bit
            if path.lstat().st_mtime_ns < oldest_ns:
                path.unlink()
                removed += 1
    return removed


def _read_all(file: FileIO, size: int) -> bytes | memoryview:
    """Return the file's bytes; many of them in memory of Arrow's pool, which gives out warm memory again.

    Fresh pages from the system cost several times what the bytes do that are read into them.
    """
    if size < _LARGE:
        return file.read()
    whole = memoryview(pa.allocate_buffer(size)).cast("B")
    end = 0
    while end < size and (found := file.readinto(whole[end:])):
        end += found
    return whole[:end].toreadonly()


def _stat(path: Path) -> os.stat_result | None:
    """Return what is known of an object, or None if there is none."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return None
    _check_regular(path, stat)
    return stat


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"


def _rename_over(disk: Disk, temporary: Path, path: Path, old: os.stat_result | None) -> str:
    """Put the temporary file in the place of `path`, with a later time than it had, and return its version."""
    step_ns = 1
    # guard: make the mtime grow with every version
    while old is not None and temporary.stat().st_mtime_ns <= old.st_mtime_ns:
        if step_ns >= 10**_LATER_TIMES:
            raise OSError(errno.EIO, f"the file system cannot give a file a later time than {old.st_mtime_ns} ns")
        # The clock went back, or both writes fell into one tick. File systems with coarse times round the step away.
        os.utime(temporary, ns=(old.st_mtime_ns, old.st_mtime_ns + step_ns))
        step_ns *= 10
    version = _version(temporary.stat())
    disk.replace(temporary, path)
    return version
