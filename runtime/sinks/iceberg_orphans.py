"""Files that failed attempts to commit left behind in an Iceberg table (rfcs/0011)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.base.errors import NotFound
from forebay.runtime.sinks.iceberg import FILE_MARK, open_catalog
from forebay.runtime.sinks.iceberg_position import RolledBack, read_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyarrow.fs import FileInfo
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

MIN_AGE: Final = 3 * 24 * 3600.0
"""Seconds since a file was written before it is taken for an orphan."""
_NAME: Final = re.compile(
    re.escape(FILE_MARK) + r"(?P<reader>.+)\.(?P<first>\d{20})-(?P<last>\d{20})\.[0-9a-f]{8}-\d+(-m\d+)?\.[a-z0-9]+$"
)


class Fate(Enum):
    """What is known of a file that no snapshot refers to."""

    ORPHAN = "nothing will ever refer to it"
    PENDING = "its reader has not come so far, so a commit of it may be under way"
    YOUNG = "it is younger than the minimum age"


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that the sink wrote, and that no snapshot of the table refers to."""

    location: str
    size: int
    reader: str
    """Whose commit it was to be part of."""
    last: int
    """The last sequence of that commit."""
    fate: Fate


def find_left_files(
    catalog: Catalog | str | Mapping[str, Any],
    table: str,
    *,
    min_age: float = MIN_AGE,
    clock: Clock | None = None,
) -> list[LeftFile]:
    """Return the files of failed attempts, and of those under way. Only those that are `Fate.ORPHAN` may be deleted."""
    opened, is_owned = open_catalog(catalog, read_only=True)
    now = (clock or SystemClock()).now_ms() / 1000
    try:
        loaded = _load(opened, table)
        listed = list(_list_files(loaded))
        # guard: look at the snapshots after the files were listed
        loaded = _load(opened, table)
        referenced = _referenced_names(loaded)
        # guard: keep what a snapshot refers to
        listed = [(location, file, found) for location, file, found in listed if file.base_name not in referenced]
        positions = {reader: _position(loaded, reader) for reader in {found["reader"] for _, _, found in listed}}
    finally:
        if is_owned:
            opened.close()
    return [
        LeftFile(
            location,
            file.size,
            found["reader"],
            int(found["last"]),
            _judge(int(found["last"]), positions[found["reader"]], now - file.mtime.timestamp(), min_age),
        )
        for location, file, found in listed
    ]


def delete_orphans(catalog: Catalog | str | Mapping[str, Any], table: str, files: Iterable[LeftFile]) -> int:
    """Delete those that are `Fate.ORPHAN`, and return how many."""
    opened, is_owned = open_catalog(catalog, read_only=True)
    try:
        io = _load(opened, table).io
        orphans = [file for file in files if file.fate is Fate.ORPHAN]
        for file in orphans:
            io.delete(file.location)
    finally:
        if is_owned:
            opened.close()
    return len(orphans)


def _judge(last: int, position: int, age: float, min_age: float) -> Fate:
    # guard: keep what a reader may still commit
    if position < last:
        return Fate.PENDING
    return Fate.ORPHAN if age >= min_age else Fate.YOUNG


def _load(catalog: Catalog, table: str) -> Table:
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415

    try:
        return catalog.load_table(table)
    except NoSuchTableError:
        raise NotFound(
            f"catalog {catalog.name!r} has no table {table}: check the table's name, and the catalog's name and uri"
        ) from None


def _position(table: Table, reader: str) -> int:
    """How far the reader has come for certain; -1 if it may have to commit everything again."""
    try:
        found = read_position(table.metadata, reader)
    except RolledBack:
        return -1
    return -1 if found is None else found.sequence


def _list_files(table: Table) -> Iterator[tuple[str, FileInfo, dict[str, str]]]:
    """The files with the sink's names in the table's folders, each with its location and the parts of its name."""
    from pyarrow.fs import FileSelector  # noqa: PLC0415
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415

    provider = table.location_provider()
    files = PyArrowFileIO(table.io.properties)
    for folder in sorted({provider.data_path, provider.metadata_path}):
        scheme, netloc, path = PyArrowFileIO.parse_location(folder, table.io.properties)
        selector = FileSelector(path, allow_not_found=True, recursive=True)
        for file in files.fs_by_scheme(scheme, netloc).get_file_info(selector):
            found = _NAME.search(file.base_name) if file.is_file else None
            if found is not None:
                yield folder + file.path[len(path) :], file, found.groupdict()


def _referenced_names(table: Table) -> set[str]:
    """The names of all files that any snapshot in the metadata refers to, on whatever branch."""
    names: set[str] = set()
    manifests = {}
    for snapshot in table.metadata.snapshots:
        names.add(_base_name(snapshot.manifest_list))
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
    for path, manifest in manifests.items():
        names.add(_base_name(path))
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            names.add(_base_name(entry.data_file.file_path))
    return names


def _base_name(location: str) -> str:
    return location.rpartition("/")[2]
