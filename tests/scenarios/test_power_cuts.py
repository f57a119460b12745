"""Power cuts on a local disk: what was reported durable is there afterwards, and the buffer can be used."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from power import RecordingDisk, cuts
from power_work import Work
from simulation_world import small_limits

from forebay.buffer.base.errors import Unavailable
from forebay.buffer.store import Applied, InDoubt
from forebay.buffer.store.file import FileStore
from forebay.testing import Crash


def find_faults(home: Path, *, rows: bool, seed: int) -> list[str]:
    with small_limits(forgetful=False):
        work = Work(home / "disk", rows=rows, seed=seed)
        work.do_all()
        assert work.cut_disks > 1000
        assert len(work.states) > 40, "too few different disks for the run to mean anything"
        return work.check_all(home / "after")


@pytest.mark.parametrize("rows", [False, True], ids=["bytes", "rows"])
def test_what_was_reported_durable_survives_a_power_cut_after_any_change_of_the_disk(
    rows: bool, tmp_path: Path
) -> None:
    assert find_faults(tmp_path, rows=rows, seed=0) == []


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True], ids=["bytes", "rows"])
def test_many_random_power_cuts_lose_nothing(rows: bool, tmp_path: Path) -> None:
    first = Random().randrange(10**9)
    for seed in range(first, first + 100):
        home = tmp_path / str(seed)
        home.mkdir()
        assert find_faults(home, rows=rows, seed=seed) == [], f"seed {seed}"


def write_first(store: FileStore) -> None:
    created = store.create("register", b"1")
    assert isinstance(created, Applied)
    store.put("data/deep/1", b"1")
    assert isinstance(store.replace("register", b"2", created.version), Applied)


def write_next(store: FileStore) -> None:
    if not isinstance(store.create("register", b"new"), Applied):
        assert isinstance(store.replace("register", b"new", store.get("register").version), Applied)
    store.put("data/deep/2", b"new")


def test_write_survives_a_power_cut_whatever_another_process_left_undone_when_it_was_killed(tmp_path: Path) -> None:
    kills = 0
    while True:
        home = tmp_path / str(kills)
        home.mkdir()
        disk = RecordingDisk(home)
        disk.dies_at = kills
        was_killed = False
        try:
            write_first(FileStore(f"file://{home}/lake/events", disk=disk))
        except Crash:
            was_killed = True
        disk.dies_at = None

        write_next(FileStore(f"file://{home}/lake/events", disk=disk))

        for cut in cuts(Random(kills)):
            left = disk.leave(cut)
            found = (left.get("lake/events/register"), left.get("lake/events/data/deep/2"))
            assert found == (b"new", b"new"), f"killed after {kills} changes; {cut.name}"
        if not was_killed:
            break
        kills += 1
    assert kills > 20


@pytest.mark.parametrize("deletes", [False, True], ids=["write", "deletion"])
def test_what_a_process_did_after_a_read_survives_only_together_with_what_it_read(
    deletes: bool, tmp_path: Path
) -> None:
    """A reader acts between a writer's rename and its sync, as a consumer acknowledges and a collector deletes."""
    url = f"file://{tmp_path}/lake"
    disk = RecordingDisk(tmp_path)
    writer, reader = FileStore(url, disk=disk), FileStore(url, disk=disk)
    first = writer.create("register", b"old")
    assert isinstance(first, Applied)
    for key in ("acked/0", "swept/1"):
        reader.put(key, b"1")  # it knows the names of these folders to last
    left: list[Mapping[str, bytes | None]] = []

    def act(what: str) -> None:
        if what != "rename register":
            return
        disk.after_change = lambda _what: left.extend(disk.leave(cut) for cut in cuts(Random(len(left))))
        assert reader.get("register").data == b"new"
        if deletes:
            reader.delete(["swept/1"])
        else:
            reader.put("acked/1", b"new")

    disk.after_change = act
    assert isinstance(writer.replace("register", b"new", first.version), Applied)

    acted = [tree for tree in left if "lake/acked/1" in tree or "lake/swept/1" not in tree]
    assert len(acted) > 3
    assert all(tree["lake/register"] == b"new" for tree in acted)


class FailingDisk(RecordingDisk):
    """A disk that syncs no folder while it is broken."""

    is_broken = False

    def sync_folder(self, folder: Path) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "input/output error")
        super().sync_folder(folder)


def test_append_whose_folder_could_not_be_synced_is_not_reported_durable(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    store = FileStore(f"file://{tmp_path}/lake", disk=disk)
    created = store.create("register", b"old")
    assert isinstance(created, Applied)
    disk.is_broken = True
    assert isinstance(store.replace("register", b"new", created.version), InDoubt)

    with pytest.raises(Unavailable):
        store.get("register")  # a writer that finds its own write here would report it durable

    disk.is_broken = False
    assert store.get("register").data == b"new"
    assert disk.leave(next(cuts(Random(0))))["lake/register"] == b"new"
