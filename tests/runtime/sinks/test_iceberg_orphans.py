"""Files of failed attempts are found and deleted, and no others (rfcs/0011)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from forebay.buffer.base.errors import NotFound
from forebay.runtime.contract import Commit, Committed
from forebay.runtime.sinks import IcebergSink
from forebay.runtime.sinks.iceberg_orphans import Fate, delete_orphans, find_left_files
from forebay.testing import Fault, FaultyCatalog
from forebay.testing.commits import make_batch, make_commit

TABLE = "lake.clicks"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    found = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with load_catalog("default", **found) as catalog:
        yield catalog


def commit_of(sequence: int) -> Commit:
    return make_commit(make_batch([b"entry %d" % sequence], sequence))


def fail(catalog: Catalog, sequence: int, fault: Fault = Fault.DROP) -> FaultyCatalog:
    """An attempt that is not applied, and leaves a data file, a manifest and a manifest list."""
    faulty = FaultyCatalog(catalog, {0: fault}, only=["commit_table"])
    assert IcebergSink(faulty, TABLE).commit(commit_of(sequence)) != Committed()
    return faulty


def fates(catalog: Catalog, min_age: float = 0.0) -> list[Fate]:
    return [file.fate for file in find_left_files(catalog, TABLE, min_age=min_age)]


def files_of(catalog: Catalog) -> set[str]:
    folder = Path(catalog.load_table(TABLE).location().removeprefix("file://"))
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_files_of_a_failed_attempt_are_orphans_once_the_reader_has_come_past_them(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE)
    sink.commit(commit_of(0))
    fail(catalog, 1)
    assert fates(catalog) == [Fate.PENDING] * 3, "a data file, a manifest and a manifest list"
    sink.commit(commit_of(1))
    assert fates(catalog) == [Fate.ORPHAN] * 3


def test_only_orphans_are_deleted_and_the_table_reads_as_before(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE)
    fail(catalog, 0)
    for sequence in range(3):
        sink.commit(commit_of(sequence))
    fail(catalog, 3)
    before = files_of(catalog)
    left = find_left_files(catalog, TABLE, min_age=0)
    assert delete_orphans(catalog, TABLE, left) == 3
    gone = {Path(file.location).name for file in left if file.fate is Fate.ORPHAN}
    assert before - files_of(catalog) == gone
    assert len(catalog.load_table(TABLE).scan().to_arrow()) == 3
    assert fates(catalog) == [Fate.PENDING] * 3


def test_what_was_written_a_moment_ago_is_too_young(catalog: Catalog) -> None:
    fail(catalog, 0)
    IcebergSink(catalog, TABLE).commit(commit_of(0))
    assert fates(catalog, min_age=3600) == [Fate.YOUNG] * 3
    assert delete_orphans(catalog, TABLE, find_left_files(catalog, TABLE, min_age=3600)) == 0


def test_commit_that_arrives_late_finds_its_files(catalog: Catalog) -> None:
    """Nobody has come past it, so its files are kept."""
    faulty = fail(catalog, 0, Fault.LATE)
    delete_orphans(catalog, TABLE, find_left_files(catalog, TABLE, min_age=0))
    faulty.land_late_requests()
    assert catalog.load_table(TABLE).scan().to_arrow()["value"].to_pylist() == [b"entry 0"]
    assert fates(catalog) == []


def test_files_of_snapshots_that_only_another_branch_has_are_kept(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE)
    sink.commit(commit_of(0))
    sink.commit(commit_of(1))
    first, second = (snapshot.snapshot_id for snapshot in catalog.load_table(TABLE).snapshots())
    with catalog.load_table(TABLE).manage_snapshots() as change:
        change.create_branch(second, "audit").rollback_to_snapshot(first)
    assert fates(catalog) == []


def test_after_a_rollback_files_of_the_reader_are_kept_though_their_snapshot_has_expired(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE)
    sink.commit(commit_of(0))
    sink.commit(commit_of(1))
    first, second = (snapshot.snapshot_id for snapshot in catalog.load_table(TABLE).snapshots())
    with catalog.load_table(TABLE).manage_snapshots() as change:
        change.rollback_to_snapshot(first)
    catalog.load_table(TABLE).maintenance.expire_snapshots().by_id(second).commit()
    assert set(fates(catalog)) == {Fate.PENDING}


class Meanwhile(FaultyCatalog):
    """Somebody acts after the first look at the table."""

    def __init__(self, inner: Catalog, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act

    def next_fault(self, kind: str) -> Fault | None:
        fault = super().next_fault(kind)
        if self.calls["load_table"] == 2:
            self._act()
        return fault


def test_file_that_is_committed_after_it_was_listed_is_kept(catalog: Catalog) -> None:
    IcebergSink(catalog, TABLE).commit(commit_of(0))
    late = fail(catalog, 1, Fault.LATE)
    found = find_left_files(Meanwhile(catalog, late.land_late_requests), TABLE, min_age=0)
    assert found == []
    assert len(catalog.load_table(TABLE).scan().to_arrow()) == 2


def test_files_of_others_are_not_looked_at(catalog: Catalog) -> None:
    IcebergSink(catalog, TABLE).commit(commit_of(0))
    folder = Path(catalog.load_table(TABLE).location().removeprefix("file://"))
    (folder / "data" / "somebody-elses.parquet").write_bytes(b"")
    assert fates(catalog) == []


def test_table_that_is_not_there_is_an_error(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="has no table lake"):
        find_left_files(catalog, TABLE)
