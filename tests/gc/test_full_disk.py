"""A disk that is full: the collector has to write the manifest before it may delete, and finds the room for that."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forebay import Consumer, Producer
from forebay.buffer.base.errors import Unavailable
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store import file as file_module
from forebay.gc import Collector
from forebay.testing import ManualClock


class Disk:
    """A disk with room for this many bytes of one buffer's objects; None while there is enough."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.size: int | None = None
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if self.size is not None and not Path(f"/proc/self/fd/{descriptor}").is_dir() and self.used() > self.size:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(descriptor)

        monkeypatch.setattr(file_module.os, "fsync", fsync)

    def used(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def fill(self) -> None:
        self.size = self.used()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "buffer", monkeypatch)


@pytest.fixture
def store(disk: Disk) -> ObjectStore:
    return open_store(disk.folder)


def write_and_read(store: ObjectStore, count: int) -> None:
    with Producer(store) as producer:
        for _ in range(count):
            producer.produce(os.urandom(1000)).result()
    with Consumer(store) as consumer:
        for batch in consumer.batches(wait=False):
            consumer.ack_through(batch.sequence)


def batches(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("data/")]


def collector(store: ObjectStore) -> Collector:
    return Collector(store, grace=0, clock=ManualClock())


def test_full_disk_is_collected_by_way_of_the_reserve(store: ObjectStore, disk: Disk) -> None:
    write_and_read(store, 3)
    collector(store).collect_once()
    write_and_read(store, 3)
    before = batches(store)
    disk.fill()

    report = collector(store).collect_once()

    assert report.trimmed == 3
    assert len(batches(store)) < len(before)
    disk.size = None
    write_and_read(store, 1)


def test_what_an_earlier_collection_left_is_deleted_first(store: ObjectStore, disk: Disk) -> None:
    """A collector was killed after it had raised the floor, and before it deleted anything."""
    write_and_read(store, 3)
    kept = {key: store.get(key).data for key in batches(store)}
    collector(store).collect_once()
    store.delete([info.key for info in store.list("gc.reserve")])
    for key, data in kept.items():
        store.put(key, data)
    write_and_read(store, 2)
    floor = read_head(store).gc_floor
    disk.fill()

    report = collector(store).collect_once()

    assert report.deleted >= 3
    assert read_head(store).gc_floor > floor
    assert not set(kept) & set(batches(store))


def test_full_disk_without_anything_to_free_is_told_and_changes_nothing(store: ObjectStore, disk: Disk) -> None:
    write_and_read(store, 1)
    before = [(info.key, info.size) for info in store.list()]
    disk.fill()

    with pytest.raises(Unavailable, match="disk is full"):
        collector(store).collect_once()

    assert [(info.key, info.size) for info in store.list()] == before


def test_dry_run_on_a_full_disk_frees_nothing(store: ObjectStore, disk: Disk) -> None:
    write_and_read(store, 1)
    collector(store).collect_once()
    write_and_read(store, 1)
    before = [info.key for info in store.list()]
    disk.fill()

    collector(store).collect_once(dry_run=True)

    assert [info.key for info in store.list()] == before


def read_head(store: ObjectStore) -> Head:
    head = Queue(store, "manifest").read()
    assert isinstance(head, Head)
    return head
