"""`file:///folder`: objects as files, with a compare-and-swap that holds between processes.

- A write fills a temporary file beside its target and syncs it; the target changes by one rename (or, for `create`, one
  hard link), and then its folder is synced. A crash at any point leaves the old object or the new one, whole.
- Renames are made under an exclusive `flock` on a lock file in the same folder, which is never deleted; readers take no
  lock, because an open file keeps its bytes when its name moves on.
- The version is the file's modification time, size and inode. Two versions that follow each other differ in inode,
  since both files exist at the moment of the rename; inodes are reused, so the time is made to grow with every write.

`flock` over a network file system is as good as that file system: use this store on a local disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from forebay.buffer.clock import system_random
from forebay.buffer.errors import Denied, InvalidInput, NotFound, StoreError, Unavailable, Unknown
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from io import FileIO

_RESERVED = ".forebay-"
_LOCK_NAME = _RESERVED + "lock"
_MAX_NAME_BYTES = 255
_LARGE = 1 << 20
_LEFTOVER_AGE_NS = 3600 * 10**9
"""No write takes so long: a temporary file older than that has lost its writer."""


class _FolderNotSyncedError(Exception):
    """The rename was made, but the folder that holds it could not be synced."""


class FileStore(ObjectStore):
    """Files below one folder, which is made by the first write."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc not in {"", "localhost"} or not path.startswith("/"):
            raise InvalidInput(f"{url!r} is not a local folder: write file:///absolute/path (three slashes)")
        self.url = url.rstrip("/")
        self._root = Path(path)
        self._swept: set[Path] = set()

    def __reduce__(self) -> tuple[type[FileStore], tuple[str]]:
        return FileStore, (self.url,)

    def get(self, key: str) -> StoredObject:
        """Return the file's bytes and version, from one open file."""
        found = self._read(key, unless=None)
        if found is None:
            raise AssertionError("a read without a known version always finds or raises")
        return found

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Return the object, or None while its version is still `version`: an unchanged file costs one stat."""
        return self._read(key, unless=version)

    def _read(self, key: str, *, unless: str | None) -> StoredObject | None:
        path = self._path(key)
        with self._typed_errors(key):
            try:
                with path.open("rb", buffering=0) as file:
                    stat = os.fstat(file.fileno())
                    version = _version(stat)
                    return None if version == unless else StoredObject(_read_all(file, stat.st_size), version)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound(f"{self.url}/{key} does not exist") from None

    def put(self, key: str, data: Data) -> str:
        """Write the file whatever was there."""
        path = self._path(key)
        try:
            with self._typed_errors(key), self._filled(path, data) as temporary:
                with _locked(path.parent):
                    version = _rename_over(temporary, path, _stat(path))
                _sync_written(path.parent)
        except _FolderNotSyncedError as error:
            raise Unknown(f"{self.url}/{key} was written, but may not survive a crash: {error}") from error
        return version

    def create(self, key: str, data: Data) -> Outcome:
        """Write the file only if there is none."""
        path = self._path(key)
        try:
            with self._typed_errors(key), self._filled(path, data) as temporary:
                version = _version(temporary.stat())
                try:
                    os.link(temporary, path)  # fails if the name is taken, so it needs no lock
                except FileExistsError:
                    if path.is_dir():
                        raise IsADirectoryError from None
                    return NotApplied("it exists")
                _sync_written(path.parent)
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
                with _locked(path.parent):
                    now = _stat(path)
                    if now is None:
                        return NotApplied("it does not exist")
                    if _version(now) != version:
                        return NotApplied("its version has changed")
                    version = _rename_over(temporary, path, now)
                _sync_written(path.parent)
        except _FolderNotSyncedError as error:
            return InDoubt(f"it was replaced, but may not survive a crash: {error}")
        return Applied(version)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the files whose keys start with `prefix`, one folder at a time, in the keys' UTF-8 order."""
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        yield from self._walk(f"{folder}/" if folder else "", prefix.encode(), start_after.encode())

    def _walk(self, folder: str, prefix: bytes, start_after: bytes) -> Iterator[ObjectInfo]:
        with self._typed_errors(folder):
            try:
                with os.scandir(self._root / folder) as found:
                    # A folder sorts as its keys do: with the slash that follows its name.
                    names = sorted((e.name + "/" if e.is_dir() else e.name).encode() for e in found if _is_utf8(e.name))
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in names:
            key = folder.encode() + name
            if name.endswith(b"/"):
                within = prefix.startswith(key) or key.startswith(prefix)
                if within and (key >= start_after or start_after.startswith(key)):
                    yield from self._walk(key.decode(), prefix, start_after)
            elif key.startswith(prefix) and key > start_after and not name.startswith(_RESERVED.encode()):
                stat = _stat(self._root / key.decode())
                if stat is not None:
                    yield ObjectInfo(key.decode(), stat.st_size, stat.st_mtime_ns // 1_000_000)

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete files, and return the failures by key."""
        paths = {key: self._path(key) for key in keys}  # all checked before anything is deleted
        failures: dict[str, StoreError] = {}
        folders = set()
        for key, path in paths.items():
            try:
                with self._typed_errors(key), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    path.unlink()
                    folders.add(path.parent)
            except StoreError as error:
                failures[key] = error
        for folder in folders:
            with suppress(OSError):  # a deletion that a crash undoes is swept again
                _sync_folder(folder)
        return failures

    def _path(self, key: str) -> Path:
        names = check_key(key).split("/")
        for name in names:
            if len(name.encode()) > _MAX_NAME_BYTES:
                raise InvalidInput(
                    f"object key {key!r} has a part longer than {_MAX_NAME_BYTES} bytes: no file name can be"
                )
            if name.startswith(_RESERVED):
                raise InvalidInput(f"object key {key!r} uses {_RESERVED!r}, which file stores keep for themselves")
        return self._root.joinpath(*names)

    @contextmanager
    def _filled(self, path: Path, data: Data) -> Iterator[Path]:
        """A synced temporary file beside `path`, gone again unless it was renamed."""
        _make_folder(path.parent)
        temporary = path.parent / f"{_RESERVED}tmp-{os.getpid()}-{system_random().getrandbits(64):016x}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                rest = memoryview(data).cast("B")
                while rest:  # one write call moves at most 2 GiB
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            self._sweep_leftovers(temporary)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _sweep_leftovers(self, fresh: Path) -> None:
        """Remove temporary files that killed processes left, once for each folder; their age is the file system's."""
        if fresh.parent in self._swept:
            return
        self._swept.add(fresh.parent)
        oldest_ns = fresh.stat().st_mtime_ns - _LEFTOVER_AGE_NS
        for leftover in fresh.parent.glob(f"{_RESERVED}tmp-*"):
            stat = _stat(leftover)
            if stat is not None and stat.st_mtime_ns < oldest_ns:
                leftover.unlink(missing_ok=True)

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
            ) from error
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise Unavailable(f"{where}: the disk is full; free some space and try again") from error
            raise Unavailable(f"{where}: {error.strerror or error}") from error


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
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # A lock belongs to the open file, so threads of one process exclude each other as processes do. And a child that is
    # forked meanwhile has the same open file: to close ours would not unlock it.
    descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _open_locks.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _open_locks.discard(descriptor)
        os.close(descriptor)


_open_locks: set[int] = set()


def _close_inherited_locks() -> None:
    """Or this process would go on with a lock of its parent's, should that die before it unlocks."""
    for descriptor in _open_locks:
        os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


def _rename_over(temporary: Path, path: Path, old: os.stat_result | None) -> str:
    """Put the temporary file in the place of `path`, with a later time than it had, and return its version."""
    step_ns = 1
    while old is not None and temporary.stat().st_mtime_ns <= old.st_mtime_ns:
        # The clock went back, or both writes fell into one tick. File systems with coarse times round the step away.
        os.utime(temporary, ns=(old.st_mtime_ns, old.st_mtime_ns + step_ns))
        step_ns *= 10
    version = _version(temporary.stat())
    temporary.replace(path)
    return version


def _make_folder(folder: Path) -> None:
    """Make the folder and those above it, so that they survive a crash as well as what is put into them."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)  # another process may have been quicker
    except FileExistsError:
        raise NotADirectoryError from None
    _sync_folder(folder.parent)


def _is_utf8(name: str) -> bool:
    # A name with stray bytes arrives with surrogates in it. Such a file is not ours: no key can name it.
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_written(folder: Path) -> None:
    try:
        _sync_folder(folder)
    except OSError as error:
        raise _FolderNotSyncedError(error.strerror or str(error)) from error
