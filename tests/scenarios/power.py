"""A disk that records what a file store does to it, and the disks that a power cut may leave behind.

The model is the one of ALICE (Pillai et al., OSDI 2014): a power cut keeps only what was synced. The bytes of a file
survive if the file was synced after they were written. A name survives if its folder was synced after the name
changed. Whatever was not synced may survive or not, each change alone and in any order. A rename within a folder
is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import RLock
from typing import TypeAlias

from forebay.buffer.store.disk import Disk
from forebay.testing import Crash

TEMPORARY = ".forebay-tmp-"
LOCK = ".forebay-lock"
RANDOM_SUBSETS = 2
"""Number of random disks after each change."""

Tree: TypeAlias = Mapping[str, bytes | None]
"""Files by path, with their bytes; None is a folder."""


@dataclass(eq=False)
class _File:
    data: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    pending: list[dict[str, _File | _Folder | None]] = field(default_factory=list)
    """Changes since the last sync. None stands for a name that was removed."""

    def change(self, names: dict[str, _File | _Folder | None]) -> None:
        self.pending.append(names)
        _apply(self.names, names)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.names), []


def _apply(names: dict[str, _File | _Folder], change: Mapping[str, _File | _Folder | None]) -> None:
    for name, what in change.items():
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


@dataclass(frozen=True)
class Cut:
    """A way to lose power: which changes of names survive, and what is left of a file."""

    name: str
    keeps_change: Callable[[], bool]
    keeps_data: Callable[[_File], bytes]


def cuts(random: Random) -> Iterator[Cut]:
    """The ways to lose power that are tried after each change."""

    def some_of(file: _File) -> bytes:
        """What was synced and a part of the rest, or as many zeros: the size was written, and the bytes were not."""
        rest = len(file.data) - len(file.synced)
        kept = random.choice((0, rest // 2, rest))
        whole = file.data[: len(file.synced) + kept]
        return whole if random.random() < 0.5 else file.synced.ljust(len(whole), b"\0")

    yield Cut("only what was synced", lambda: False, lambda file: file.synced)
    yield Cut("everything", lambda: True, lambda file: file.data)
    yield Cut("names without data", lambda: True, lambda file: file.synced)
    yield Cut(
        "names with half of the data",
        lambda: True,
        lambda file: file.data[: max(len(file.synced), len(file.data) // 2)],
    )
    yield Cut("data without names", lambda: False, lambda file: file.data)
    for number in range(RANDOM_SUBSETS):
        yield Cut(f"random subset {number}", lambda: random.random() < 0.5, some_of)


class RecordingDisk(Disk):
    """A disk below one folder that knows at each moment what a power cut would leave of it.

    Args:
        root: the folder; what is above it has survived.
        after_change: called after every change and every sync, with the disk locked.
    """

    def __init__(self, root: Path, after_change: Callable[[str], None] = lambda _what: None) -> None:
        self._base = root
        self.after_change = after_change
        self._lock = RLock()
        self._root = _Folder()
        self._open: dict[int, _File] = {}
        self.changes = 0
        """How many changes and syncs there were."""
        self.dies_at: int | None = None
        """The number of the change at which the process that uses this disk is killed."""

    def create(self, path: Path) -> int:
        with self._lock, self._changing(f"create {path.name}"):
            descriptor = super().create(path)
            file = self._open[descriptor] = _File()
            self._parent(path).change({path.name: file})
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        with self._lock, self._changing("write"):
            written = super().write(descriptor, data)
            self._open[descriptor].data += bytes(data[:written])
        return written

    def sync_file(self, descriptor: int) -> None:
        # The real disk of a test need not be synced: nobody turns it off.
        with self._lock, self._changing("sync a file"):
            file = self._open[descriptor]
            file.synced = file.data

    def sync_folder(self, folder: Path) -> None:
        with self._lock, self._changing(f"sync {folder.name}/"):
            if folder == self._base or self._base in folder.parents:
                self._folder(folder).sync()

    def link(self, source: Path, target: Path) -> None:
        with self._lock, self._changing(f"link {target.name}"):
            super().link(source, target)
            self._parent(target).change({target.name: self._parent(source).names[source.name]})

    def replace(self, source: Path, target: Path) -> None:
        with self._lock, self._changing(f"rename {target.name}"):
            super().replace(source, target)
            folder = self._parent(target)
            assert folder is self._parent(source)
            folder.change({target.name: folder.names[source.name], source.name: None})

    def unlink(self, path: Path) -> None:
        with self._lock:
            if path.name not in self._parent(path).names:
                raise FileNotFoundError(path)
            with self._changing(f"remove {path.name}"):
                super().unlink(path)
                self._parent(path).change({path.name: None})

    def make_folder(self, folder: Path) -> None:
        with self._lock, self._changing(f"make {folder.name}/"):
            super().make_folder(folder)
            self._parent(folder).change({folder.name: _Folder()})

    def leave(self, cut: Cut) -> Tree:
        """Return what is left after a power cut now."""
        with self._lock:
            return dict(_left(self._root, cut, ""))

    def _folder(self, path: Path) -> _Folder:
        folder = self._root
        for name in path.relative_to(self._base).parts:
            inner = folder.names[name]
            assert isinstance(inner, _Folder)
            folder = inner
        return folder

    def _parent(self, path: Path) -> _Folder:
        return self._folder(path.parent)

    def _changing(self, what: str) -> _Change:
        if self.dies_at is not None and self.changes >= self.dies_at:
            raise Crash("the process is gone")
        return _Change(self, what)


class _Change:
    def __init__(self, disk: RecordingDisk, what: str) -> None:
        self._disk = disk
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._disk.changes += 1
            self._disk.after_change(self._what)


def _left(folder: _Folder, cut: Cut, path: str) -> Iterator[tuple[str, bytes | None]]:
    names = dict(folder.synced)
    for change in folder.pending:
        if cut.keeps_change():
            _apply(names, change)
    for name, what in names.items():
        if isinstance(what, _File):
            yield path + name, cut.keeps_data(what)
        else:
            yield path + name, None
            yield from _left(what, cut, f"{path}{name}/")


def write_tree(tree: Tree, folder: Path) -> None:
    """Make a folder as a power cut left it. The folders of a tree come before what is in them."""
    folder.mkdir()
    for path, data in tree.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


class UnsyncedDisk(Disk):
    """A disk that loses nothing, so that nothing needs to be synced. It makes tests fast."""

    def sync_file(self, descriptor: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass
