"""Power cuts on a local disk: what was reported durable is there afterwards, and the buffer can be used."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from power import RecordingDisk, cuts
from power_work import Work
from simulation_world import small_limits

from forebay.buffer.base.errors import NotFound, Unavailable
from forebay.buffer.store import Applied, InDoubt, NotApplied
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


KEYS = ("register", "data/deep/1")
"""What `write_first` writes."""


def get_all(store: FileStore) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for key in KEYS:
        with suppress(NotFound):
            found[key] = bytes(store.get(key).data)
    return found


def get_all_that_changed(store: FileStore) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for key in KEYS:
        with suppress(NotFound):
            changed = store.get_if_changed(key, "another version")
            assert changed is not None
            found[key] = bytes(changed.data)
    return found


def list_all(store: FileStore) -> dict[str, bytes | None]:
    return {info.key: None for info in store.list()}


def list_folder(store: FileStore) -> dict[str, bytes | None]:
    return {info.key: None for info in store.list("data/deep/")}


def fail_to_create(store: FileStore) -> dict[str, bytes | None]:
    return {key: None for key in KEYS if isinstance(store.create(key, b"mine"), NotApplied)}


@pytest.mark.parametrize("look", [get_all, get_all_that_changed, list_all, list_folder, fail_to_create])
def test_whatever_a_store_shows_of_a_killed_process_survives_a_power_cut(
    look: Callable[[FileStore], dict[str, bytes | None]], tmp_path: Path
) -> None:
    """Else what was done elsewhere on the strength of it survives alone: an ack, a repeat that was left out."""
    kills = shown = 0
    was_killed = True
    while was_killed:
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

        found = look(FileStore(f"file://{home}/lake/events", disk=disk))

        for cut in cuts(Random(kills)):
            left = disk.leave(cut)
            for key, data in found.items():
                now = left.get(f"lake/events/{key}")
                assert now is not None, f"killed after {kills} changes; {cut.name}: {key} is gone"
                assert data is None or now == data, f"killed after {kills} changes; {cut.name}: {key} is an older one"
        shown += len(found)
        kills += 1
    assert kills > 20
    assert shown > 5


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
    number = errno.EIO

    def sync_folder(self, folder: Path) -> None:
        if self.is_broken:
            raise OSError(self.number, os.strerror(self.number))
        super().sync_folder(folder)


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_append_whose_folder_could_not_be_synced_is_not_reported_durable(number: int, tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    disk.number = number
    store = FileStore(f"file://{tmp_path}/lake", disk=disk)
    created = store.create("register", b"old")
    assert isinstance(created, Applied)
    disk.is_broken = True
    assert isinstance(store.replace("register", b"new", created.version), InDoubt)

    with pytest.raises(Unavailable):
        store.get("register")  # a writer that finds its own write here would report it durable
    with pytest.raises(Unavailable):
        list(store.list())

    disk.is_broken = False
    assert store.get("register").data == b"new"
    assert disk.leave(next(cuts(Random(0))))["lake/register"] == b"new"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_reader_that_is_refused_the_sync_of_a_folder_can_read_it(number: int, tmp_path: Path) -> None:
    """It may not list the folder, or nobody can write to that file system."""
    disk = FailingDisk(tmp_path)
    FileStore(f"file://{tmp_path}/lake", disk=disk).put("register", b"1")
    disk.is_broken, disk.number = True, number
    reader = FileStore(f"file://{tmp_path}/lake", disk=disk)

    assert reader.get("register").data == b"1"
    assert [info.key for info in reader.list()] == ["register"]


def test_objects_on_a_disk_that_fails_are_not_shown(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    FileStore(f"file://{tmp_path}/lake", disk=disk).put("register", b"1")
    disk.is_broken = True
    reader = FileStore(f"file://{tmp_path}/lake", disk=disk)

    with pytest.raises(Unavailable):
        reader.get("register")
    with pytest.raises(Unavailable):
        list(reader.list())
