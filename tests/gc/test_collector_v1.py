"""Collecting a buffer of version 1: by references, age and the store's time, as OpenData does (rfcs/0006)."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.buffer.base import names
from forebay.buffer.base.errors import Corrupt, Unsupported
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector, Retention
from forebay.testing import FaultyStore, ManualClock


def test_what_was_consumed_is_deleted_once_it_is_older_than_the_grace_period(pool_v1: Any) -> None:
    appended = pool_v1.append(5, every=1.0)
    pool_v1.read(2)
    assert pool_v1.collect().deleted == 0, "too young"
    pool_v1.age()
    report = pool_v1.collect()
    assert (report.deleted, report.kept, report.trimmed) == (3, 2, 0)
    assert pool_v1.listed() == pool_v1.objects() == appended[3:]


def test_drained_buffer_is_emptied(pool_v1: Any) -> None:
    pool_v1.append(5)
    pool_v1.read(4)
    pool_v1.age()
    assert pool_v1.collect().deleted == 5
    assert pool_v1.objects() == []


def test_unreferenced_object_younger_than_the_oldest_referenced_one_is_kept(pool_v1: Any) -> None:
    (listed,) = pool_v1.append(1, every=1.0)
    orphan = pool_v1.upload().location
    pool_v1.age()
    assert pool_v1.collect().deleted == 0
    assert pool_v1.objects() == sorted([listed, orphan])


def test_oldest_referenced_is_the_smallest_name_wherever_it_stands(pool_v1: Any) -> None:
    late = pool_v1.upload()
    pool_v1.clock.advance(1.0)
    orphan = pool_v1.upload()
    pool_v1.clock.advance(1.0)
    pool_v1.append(1_500)
    pool_v1.queue.append([late])
    pool_v1.age()
    assert pool_v1.collect().deleted == 0
    assert orphan.location in set(pool_v1.objects())


def test_object_with_an_old_name_that_the_store_was_given_lately_is_kept(pool_v1: Any) -> None:
    """Its producer's clock is behind; it may be about to be listed."""
    behind = ManualClock(pool_v1.clock.now_ms() - 86_400_000)
    pool_v1.age()
    upload = pool_v1.upload(clock=behind)
    assert pool_v1.collect().deleted == 0
    pool_v1.queue.append([upload])
    assert pool_v1.listed() == [upload.location]


def test_object_with_a_young_name_that_the_store_was_given_long_ago_is_kept(pool_v1: Any) -> None:
    ahead = ManualClock(pool_v1.clock.now_ms() + 86_400_000)
    pool_v1.upload(clock=ahead)
    pool_v1.age()
    assert pool_v1.collect().deleted == 0


def test_collector_whose_clock_is_in_2099_deletes_nothing_in_flight(pool_v1: Any) -> None:
    upload = pool_v1.upload()
    Collector(pool_v1.store, clock=ManualClock(4_070_908_800_000)).collect_once()
    assert pool_v1.objects() == [upload.location]


def test_batch_listed_between_the_first_two_calls_is_seen_however_old_it_is(pool_v1: Any) -> None:
    """The store's time is taken before the manifest is read, never after."""
    upload = pool_v1.upload()
    pool_v1.age()

    class ListedJustNow(FaultyStore):
        def next_fault(self, kind: str) -> Any:
            if sum(self.calls.values()) == 1:
                pool_v1.queue.append([upload])
            return super().next_fault(kind)

    assert pool_v1.collect(ListedJustNow(pool_v1.store)).deleted == 0
    assert pool_v1.listed() == [upload.location]


def test_names_that_are_no_ulids_and_the_manifest_beside_them_are_never_deleted(pool_v1: Any) -> None:
    store = MemoryStore("memory://opendata-names", clock=pool_v1.clock)
    store.put("ingest/manifest", Manifest.empty("new").to_bytes())
    queue = Queue(store, "ingest/manifest")
    queue.append([NewBatch("ingest/no-ulid")])
    store.put("ingest/0-notes", b"x")
    store.put("ingest/00000000000000000000000001.batch", b"x")
    pool_v1.clock.advance(10_000)
    queue.append([NewBatch("ingest/no-ulid-2")])
    collector = Collector(store, manifest_path="ingest/manifest", data_prefix="ingest", clock=pool_v1.clock)
    assert collector.collect_once(dry_run=True).deleted == 1
    assert collector.collect_once().deleted == 1
    assert [found.key for found in store.list()] == ["ingest/0-notes", "ingest/manifest"]


def test_damaged_manifest_lets_nothing_be_deleted(pool_v1: Any) -> None:
    pool_v1.upload()
    pool_v1.age()
    pool_v1.store.put("manifest", b"\x05\x00\x00\x00" + bytes(16) + b"\x01\x00")
    with pytest.raises(Corrupt):
        pool_v1.collect()
    assert len(pool_v1.objects()) == 1


def test_entry_that_cannot_be_decoded_lets_nothing_be_deleted(pool_v1: Any) -> None:
    pool_v1.append(2)
    pool_v1.upload()
    data = bytearray(pool_v1.store.get("manifest").data)
    data[4] ^= 0xFF  # the first entry's sequence
    pool_v1.age()
    pool_v1.store.put("manifest", data)
    with pytest.raises(Corrupt):
        pool_v1.collect()
    assert len(pool_v1.objects()) == 3


def test_retention_needs_version_2(pool_v1: Any) -> None:
    with pytest.raises(Unsupported, match="migrate"):
        pool_v1.collect(retention=Retention(max_bytes=1))


def test_dry_run_deletes_nothing(pool_v1: Any) -> None:
    pool_v1.append(3)
    pool_v1.read(2)
    pool_v1.age()
    report = pool_v1.collector().collect_once(dry_run=True)
    assert (report.deleted, report.dry_run) == (3, True)
    assert len(pool_v1.objects()) == 3
    assert report.floor <= names.at_time(pool_v1.clock.now_ms())
