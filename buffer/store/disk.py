"""The calls by which a file store changes a disk.

They are in one small class so that a test can record them, and then build every disk that a power cut could leave.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Disk:
    """A real disk."""

    def create(self, path: Path) -> int:
        """Create a file and return its descriptor. Raises `FileExistsError` if the name is taken."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write to a file that `create` opened, and return how many bytes were written."""
        return os.write(descriptor, data)

    def sync_file(self, descriptor: int) -> None:
        """Make the bytes of a file that `create` opened survive a power cut."""
        os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder survive a power cut."""
        sync_path(folder)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises `FileExistsError` if that name is taken."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, over the file that has the new name."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def make_folder(self, folder: Path) -> None:
        """Make a folder. Raises `FileExistsError` if the name is taken."""
        folder.mkdir()


def sync_path(path: Path) -> None:
    """Write a file's data, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
