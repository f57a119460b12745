"""Collecting a native buffer: what is trimmed, what is deleted, and what nothing may touch (rfcs/0006)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kinds import append_all

from forebay.buffer.base import names
from forebay.buffer.base.errors import Corrupt, Denied, InvalidInput, Trimmed, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Cursor, GroupReader, Groups, cursor_key
from forebay.buffer.manifest import BelowFloor, Head, Queue, UnnamedReader
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector, Retention
from forebay.testing import FaultyStore, ManualClock

# What is trimmed


def test_what_the_unnamed_consumer_has_read_is_trimmed_and_deleted(pool: Any) -> None:
    appended = pool.append(5, every=1.0)
    pool.read(2)
    pool.age()
    report = pool.collect()
    assert (report.trimmed, report.deleted, report.kept) == (3, 3, 2)
    assert (report.failed, report.failed_count, report.dropped_unread) == ({}, 0, 0)
    assert pool.listed() == pool.objects() == appended[3:]
    assert report.floor == pool.head.gc_floor == names.ulid_in(appended[3])


def test_nothing_is_trimmed_while_nobody_reads(pool: Any) -> None:
    appended = pool.append(5)
    pool.age()
    report = pool.collect()
    assert (report.trimmed, report.deleted) == (0, 0)
    assert pool.listed() == appended


def test_slowest_of_all_readers_decides(pool: Any) -> None:
    appended = pool.append(9, every=1.0)
    pool.read(7)
    pool.group("fast", through=8)
    pool.group("slow", through=3)
    pool.age()
    assert pool.collect().trimmed == 4
    assert pool.listed() == pool.objects() == appended[4:]


def test_group_without_a_cursor_is_at_its_start(pool: Any) -> None:
    appended = pool.append(6, every=1.0)
    pool.read(5)
    pool.group("new", start=2)
    pool.age()
    assert pool.collect().trimmed == 2
    assert pool.listed() == appended[2:]


def test_consumer_that_has_acknowledged_nothing_holds_everything(pool: Any) -> None:
    appended = pool.append(4)
    pool.group("done", through=3)
    UnnamedReader(pool.queue).claim()
    pool.age()
    assert pool.collect().trimmed == 0
    assert pool.listed() == appended


def test_reader_ahead_of_what_exists_lets_all_go_and_no_more(pool: Any) -> None:
    pool.append(3, every=1.0)
    pool.read(40)
    pool.age()
    report = pool.collect()
    assert (report.trimmed, report.deleted, report.kept) == (3, 3, 0)
    head = pool.head
    assert (head.first_sequence, head.next_sequence) == (3, 3)
    pool.append(1)
    assert pool.head.next_sequence == 4


def test_batches_are_trimmed_through_sealed_segments_and_index_nodes(pool: Any) -> None:
    count = KEPT_LISTINGS * (FANOUT + 3)
    appended = pool.append(count, every=0.01)
    assert any(ref.level == 1 for ref in pool.head.refs), "the test is about index nodes"
    read = KEPT_LISTINGS * 3 + 5
    pool.read(read - 1)
    pool.age()
    report = pool.collect()
    assert report.trimmed == read
    assert pool.listed() == appended[read:]
    # A segment read in part still needs its object, and the floor stops at the oldest batch in it.
    assert pool.objects() == appended[KEPT_LISTINGS * 3 :]

    pool.read(count - 1)
    pool.age()
    pool.collect()
    assert pool.objects() == pool.objects("segments") == []


def test_segments_that_no_head_refers_to_any_more_are_deleted(pool: Any) -> None:
    for _ in range(KEPT_LISTINGS * 6 // 32):
        pool.append(32, every=0.01)
    assert len(pool.objects("segments")) == 4
    pool.read(KEPT_LISTINGS * 3)
    pool.age()
    pool.collect()
    left = [f"segments/{ref.name}.segment" for ref in pool.head.refs]
    assert len(left) == 1
    assert pool.objects("segments") == left


# Holds


def test_hold_keeps_what_it_needs_and_only_readers_let_go_of_the_rest(pool: Any) -> None:
    appended = pool.append(6, every=1.0)
    pool.hold("job", first=2, ttl=10_000)
    pool.age()
    assert pool.collect().trimmed == 0, "a hold is no reader"
    pool.read(5)
    pool.age()
    assert pool.collect().trimmed == 2
    assert pool.listed() == appended[2:]


def test_hold_of_uploads_keeps_the_floor_below_them(pool: Any) -> None:
    upload = pool.upload()
    pool.hold("job", floor=names.ulid_in(upload.location), ttl=10_000)
    pool.age()
    report = pool.collect()
    assert report.floor == names.ulid_in(upload.location)
    assert pool.objects() == [upload.location]
    append_all(pool.queue, [upload])


def test_expired_hold_goes_in_the_same_write_as_what_it_held(pool: Any) -> None:
    pool.append(4, every=1.0)
    pool.read(3)
    pool.hold("job", first=1, ttl=60)
    pool.age()
    before = pool.head.revision
    report = pool.collect()
    assert report.expired_holds == ("job",)
    assert report.trimmed == 4
    assert pool.head.holds == {}
    assert pool.head.revision == before + 1


def test_hold_renewed_before_the_write_is_kept(pool: Any) -> None:
    """The decision is made on the very head that is replaced, not on the one read first."""
    appended = pool.append(4, every=1.0)
    pool.read(3)
    pool.hold("job", first=1, ttl=60)
    pool.age()

    class RenewedFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                pool.hold("job", first=1, ttl=3600)
            return super().replace(key, data, version)

    report = pool.collect(RenewedFirst(pool.store))
    assert report.expired_holds == ()
    assert report.trimmed == 1
    assert "job" in pool.head.holds
    assert pool.listed() == appended[1:]


def test_hold_expires_in_a_buffer_that_nobody_writes(pool: Any) -> None:
    """The store's time of the manifest would stand still, if the collector did not make it write."""
    pool.append(2)
    pool.read(1)
    pool.hold("job", first=0, ttl=3600)
    pool.clock.advance(4000)
    assert pool.collect().expired_holds == ("job",)


# Retention


def test_retention_by_age_drops_unread_batches_counts_them_and_says_so_loudly(
    pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    appended = pool.append(10, every=100.0)
    pool.group("slow", through=1)
    pool.age(0)
    with caplog.at_level(logging.WARNING, logger="forebay.gc"):
        report = pool.collect(retention=Retention(max_age=450.0), grace=1.0)
    assert (report.trimmed, report.dropped_unread) == (6, 4)
    assert pool.listed() == pool.objects() == appended[6:]
    assert pool.head.dropped == 4
    assert "retention dropped 4 batches" in caplog.text
    reader = GroupReader(pool.queue, "slow")
    with pytest.raises(Trimmed) as refused:
        reader.look(reader.claim(), None, 1)
    assert refused.value.first == 6


def test_retention_without_any_reader_counts_all_it_drops(pool: Any) -> None:
    pool.append(4, every=100.0)
    pool.age(0)
    assert pool.collect(retention=Retention(max_age=250.0)).dropped_unread == 2
    assert pool.collect(retention=Retention(max_age=250.0)).dropped_unread == 0
    assert pool.head.dropped == 2


def test_retention_by_age_works_in_a_buffer_that_nobody_writes(pool: Any) -> None:
    pool.append(3)
    pool.clock.advance(10_000)
    assert pool.collect(retention=Retention(max_age=5_000)).dropped_unread == 3


@pytest.mark.parametrize("kept", [0, 1, 3, KEPT_LISTINGS - 1, KEPT_LISTINGS * 2, KEPT_LISTINGS * (FANOUT + 1) - 3])
def test_retention_by_bytes_is_exact_through_segments_and_index_nodes(pool: Any, kept: int) -> None:
    appended = pool.append(KEPT_LISTINGS * (FANOUT + 3))
    size = len(pool.store.get(appended[0]).data)
    report = pool.collect(retention=Retention(max_bytes=kept * size + size // 2))
    assert report.dropped_unread == len(appended) - kept
    assert pool.listed() == appended[len(appended) - kept :]
    assert pool.collect(retention=Retention(max_bytes=kept * size + size // 2)).dropped_unread == 0


@pytest.mark.parametrize("kept", [0, 5, KEPT_LISTINGS * 2, KEPT_LISTINGS * (FANOUT + 1) - 3])
def test_retention_by_age_is_exact_through_segments_and_index_nodes(pool: Any, kept: int) -> None:
    appended = pool.append(KEPT_LISTINGS * (FANOUT + 3), every=1.0)
    pool.age(0)
    report = pool.collect(retention=Retention(max_age=kept + 0.5))
    assert report.dropped_unread == len(appended) - kept
    assert pool.listed() == appended[len(appended) - kept :]


def test_retention_never_passes_a_hold(pool: Any) -> None:
    appended = pool.append(8, every=100.0)
    pool.hold("job", first=3)
    pool.age(0)
    report = pool.collect(retention=Retention(max_age=1.0, max_bytes=1))
    assert report.dropped_unread == 3
    assert pool.listed() == appended[3:]


def test_batches_of_unknown_age_are_kept_until_an_old_one_follows(pool: Any) -> None:
    """Entries from version 1 may tell neither time nor, by their names, anything."""
    pool.store.put("data/first", b"x")
    append_all(pool.queue, [NewBatch("data/first")])
    pool.age(10_000)
    assert pool.collect(retention=Retention(max_age=100)).dropped_unread == 0
    (second,) = pool.append(1)
    pool.age(10_000)
    third = pool.append(1)
    assert pool.collect(retention=Retention(max_age=100)).dropped_unread == 2
    assert pool.listed() == third
    assert pool.objects() == [*third, "data/first"], "a name that is no ULID is not the collector's to delete"
    assert second not in pool.objects()


@pytest.mark.parametrize("bounds", [{}, {"max_age": 0}, {"max_age": -1.0}, {"max_bytes": 0}, {"max_age": float("nan")}])
def test_retention_without_a_sensible_bound_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="retention"):
        Retention(**bounds)


# What is deleted


def test_orphaned_uploads_and_segments_are_swept_after_the_grace_period(pool: Any) -> None:
    pool.append(1)
    pool.read(0)
    old = pool.upload().location
    pool.store.put(f"segments/{names.mint(pool.clock, pool.random)}.segment", b"abandoned")
    pool.age()
    young = pool.upload().location
    pool.collect()
    assert pool.objects("segments") == []
    assert pool.objects() == [young]
    assert old != young


def test_names_that_are_no_ulids_are_never_deleted(pool: Any) -> None:
    others = [
        "data/0.batch",
        "data/00000000000000000000000000/part.batch",  # a folder of somebody else's
        "data/00-archive/00000000000000000000000001.batch",
        "data/0000000000000000000000000l.batch",
        "data/00-readme.txt",
        "data/nested/00000000000000000000000001.batch",
        "segments/000.segment",
        "cursors/etl/notes.txt",
        "other/00000000000000000000000001.batch",
    ]
    for key in others:
        pool.store.put(key, b"x")
    pool.store.put("data/00000000000000000000000001.batch", b"x")
    pool.age()
    assert pool.collect().deleted == 1
    assert all(pool.store.get(key) for key in others)


def test_listing_stops_at_the_floor_and_deletes_go_in_bulk(pool: Any) -> None:
    for _ in range(2_500):
        pool.upload()
    pool.age()
    kept = pool.append(3)

    class Counting(FaultyStore):
        rows = 0

        def list(self, prefix: str = "", *, start_after: str = "") -> Any:
            for found in super().list(prefix, start_after=start_after):
                if prefix == "data/":
                    Counting.rows += 1
                yield found

        def delete(self, keys: Any) -> Any:
            sizes.append(len(keys))
            return super().delete(keys)

    sizes: list[int] = []
    report = pool.collect(Counting(pool.store))
    assert report.deleted == 2_500
    assert sizes == [1000, 1000, 500]
    assert Counting.rows == 2_501, "one row past the floor, and no further"
    assert pool.objects() == sorted(kept)


def test_keys_that_could_not_be_deleted_are_reported_and_tried_again(pool: Any) -> None:
    uploads = [pool.upload().location for _ in range(4)]
    pool.age()

    class Stubborn(FaultyStore):
        stubborn = True

        def delete(self, keys: Any) -> Any:
            refused = {key: Denied(f"{key} is locked") for key in keys if self.stubborn and key in uploads[1:3]}
            return {**super().delete([key for key in keys if key not in refused]), **refused}

    store = Stubborn(pool.store)
    collector = pool.collector(store)
    report = collector.collect_once()
    assert (report.deleted, report.failed_count) == (2, 2)
    assert sorted(report.failed) == sorted(uploads[1:3])
    assert "locked" in str(report.as_json()["failed"][uploads[1]])
    store.stubborn = False
    report = collector.collect_once()
    assert (report.deleted, report.failed_count) == (2, 0)
    assert pool.objects() == []


def test_deletes_that_are_all_refused_are_counted_and_the_report_stays_small(pool: Any) -> None:
    for _ in range(1_300):
        pool.upload()
    pool.age()

    class Refusing(FaultyStore):
        def delete(self, keys: Any) -> Any:
            raise Denied("no right to delete")

    report = pool.collect(Refusing(pool.store))
    assert (report.deleted, report.failed_count, len(report.failed)) == (0, 1_300, 1_000)
    assert len(pool.objects()) == 1_300


def test_listing_that_breaks_off_is_a_failure_of_its_folder_and_the_rest_goes_on(pool: Any) -> None:
    pool.upload()
    pool.store.put(f"segments/{names.mint(pool.clock, pool.random)}.segment", b"abandoned")
    pool.age()

    class NoData(FaultyStore):
        def list(self, prefix: str = "", *, start_after: str = "") -> Any:
            if prefix == "data/":
                raise Unavailable("the listing broke off")
            return super().list(prefix, start_after=start_after)

    report = pool.collect(NoData(pool.store))
    assert list(report.failed) == ["data/"]
    assert pool.objects("segments") == []
    assert len(pool.objects()) == 1


# Cursors


def test_cursors_of_generations_that_are_gone_are_deleted_and_others_kept(pool: Any) -> None:
    pool.append(4)
    pool.group("kept", through=1)
    pool.group("reset", through=1)
    pool.group("deleted", through=1)
    groups = Groups(pool.store, clock=pool.clock, random=pool.random)
    groups.reset("reset", 0, force=True)
    groups.delete("deleted", force=True)
    assert len(pool.objects("cursors")) == 3
    report = pool.collect()
    assert report.deleted == 2
    assert pool.objects("cursors") == [cursor_key("kept", pool.head.groups["kept"].generation)]


def test_cursor_of_a_group_made_after_the_trim_is_not_taken_for_an_old_one(pool: Any) -> None:
    """The head that the trim wrote does not know the group; only one read after the listing can tell."""
    pool.append(4)

    class GroupBeforeListing(FaultyStore):
        def list(self, prefix: str = "", *, start_after: str = "") -> Any:
            if prefix == "cursors/":
                pool.group("new", through=2)
            return super().list(prefix, start_after=start_after)

    pool.collect(GroupBeforeListing(pool.store))
    assert pool.objects("cursors") == [cursor_key("new", pool.head.groups["new"].generation)]
    (state,) = Groups(pool.store).list()
    assert state.acked == 2


# What it must not do


def test_group_that_appears_between_the_read_and_the_write_is_heeded(pool: Any) -> None:
    appended = pool.append(6, every=1.0)
    pool.read(5)
    pool.age()

    class GroupFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                pool.group("late", start=2)
            return super().replace(key, data, version)

    report = pool.collect(GroupFirst(pool.store))
    assert report.trimmed == 2
    assert pool.listed() == appended[2:]


def test_group_that_is_moved_back_between_the_read_and_the_write_is_heeded(pool: Any) -> None:
    appended = pool.append(6, every=1.0)
    pool.group("etl", through=5)
    pool.age()

    class ResetFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            if self.calls["replace"] == 0:
                Groups(pool.store).reset("etl", 1, force=True)
            return super().replace(key, data, version)

    report = pool.collect(ResetFirst(pool.store))
    assert report.trimmed == 1
    assert pool.listed() == appended[1:]


def test_unreadable_cursor_lets_nothing_be_trimmed_or_deleted(pool: Any) -> None:
    pool.append(4)
    pool.upload()
    pool.read(3)
    pool.group("etl", through=3)
    pool.age()
    before = (pool.head, pool.objects())

    class NoCursor(FaultyStore):
        def get(self, key: str) -> Any:
            if key.startswith("cursors/"):
                raise Denied(f"{key} may not be read")
            return super().get(key)

    with pytest.raises(Denied):
        pool.collect(NoCursor(pool.store))
    assert (pool.head, pool.objects()) == before


@pytest.mark.parametrize("damage", [b"", b"not a cursor", b"other buffer"])
def test_damaged_cursor_lets_nothing_be_trimmed_or_deleted(pool: Any, damage: bytes) -> None:
    pool.append(4)
    pool.read(3)
    pool.group("etl", through=3)
    key = cursor_key("etl", pool.head.groups["etl"].generation)
    if damage == b"other buffer":
        damage = pack(Cursor("c" * 32, 1, "", 3, 1))
    pool.store.put(key, damage)
    pool.age()
    before = (pool.head, pool.objects())
    with pytest.raises(Corrupt):
        pool.collect()
    assert (pool.head, pool.objects()) == before


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_or_missing_head_lets_nothing_be_deleted(pool: Any, damage: str) -> None:
    pool.append(KEPT_LISTINGS * 2 + 1)
    pool.age()
    data = bytearray(pool.store.get("manifest").data)
    data[10] ^= 1
    match damage:
        case "flip":
            pool.store.put("manifest", data)
        case "cut":
            pool.store.put("manifest", data[:-3])
        case "gone":
            pool.store.delete(["manifest"])
    before = (pool.objects(), pool.objects("segments"))
    with pytest.raises(Corrupt):
        pool.collect()
    assert (pool.objects(), pool.objects("segments")) == before


def test_segment_that_is_missing_lets_nothing_be_trimmed(pool: Any) -> None:
    pool.append(KEPT_LISTINGS * (FANOUT + 2))
    pool.read(KEPT_LISTINGS + 3)
    node = next(ref for ref in pool.head.refs if ref.level == 1)
    pool.store.delete([f"segments/{node.name}.segment"])
    pool.age()
    before = (pool.head, pool.objects())
    with pytest.raises(Corrupt, match="not there"):
        pool.collect()
    assert (pool.head, pool.objects()) == before


def test_buffer_that_does_not_exist_is_left_that_way() -> None:
    store = MemoryStore("memory://nothing-here")
    store.put("data/00000000000000000000000001.batch", b"x")
    report = Collector(store).collect_once()
    assert (report.deleted, report.kept) == (0, 0)
    assert [found.key for found in store.list()] == ["data/00000000000000000000000001.batch"]


@pytest.mark.parametrize("replaced", [False, True])
def test_manifest_that_is_deleted_or_replaced_meanwhile_is_not_made_anew(pool: Any, replaced: bool) -> None:
    pool.append(2)
    pool.read(1)
    pool.age()
    other = Head(buffer_id="c" * 32).to_bytes()

    class DeletedFirst(FaultyStore):
        def replace(self, key: str, data: Any, version: str) -> Any:
            pool.store.delete(["manifest"])
            if replaced:
                pool.store.put("manifest", other)
            return super().replace(key, data, version)

    with pytest.raises(Corrupt, match="deleted"):
        pool.collect(DeletedFirst(pool.store))
    assert [found.size for found in pool.store.list("manifest")] == ([len(other)] if replaced else [])
    assert len(pool.objects()) == 2


def test_nothing_is_written_when_nothing_would_change(pool: Any) -> None:
    pool.append(3)
    pool.read(1)
    pool.collect()
    store = FaultyStore(pool.store)
    pool.collect(store)
    assert store.calls["replace"] == 0


def test_floor_never_goes_down(pool: Any) -> None:
    pool.age()
    floor = pool.collect().floor
    pool.clock.step_wall(-86_400)
    pool.age(0)
    assert pool.collect().floor == floor
    assert pool.head.gc_floor == pool.head.reference_floor == floor


# Clocks


def test_producer_asleep_between_upload_and_append_over_a_sweep_is_refused_and_loses_nothing(pool: Any) -> None:
    pool.append(1)
    sleeper = pool.upload()
    pool.age()
    pool.collect()
    assert sleeper.location not in pool.objects()
    with pytest.raises(BelowFloor) as refused:
        append_all(pool.open_queue(), [sleeper])
    assert names.ulid_in(sleeper.location) < refused.value.floor
    assert len(pool.listed()) == 1


def test_collector_whose_clock_is_in_2099_deletes_and_drops_nothing_that_is_listed(pool: Any) -> None:
    appended = pool.append(4, every=1.0)
    pool.read(1)
    pool.hold("job", first=1)
    in_flight = pool.upload()
    wrong = ManualClock(4_070_908_800_000)
    report = Collector(pool.store, grace=600, retention=Retention(max_age=86_400), clock=wrong).collect_once()
    assert (report.trimmed, report.dropped_unread, report.expired_holds) == (1, 0, ())
    assert pool.listed() == appended[1:]
    assert in_flight.location in pool.objects()


def test_store_whose_clock_is_in_2099_costs_uploads_in_flight_a_repeat_and_no_entry(pool: Any) -> None:
    in_flight = pool.upload()
    wrong = ManualClock(4_070_908_800_000)
    Collector(MemoryStore(pool.store.url, clock=wrong), clock=wrong).collect_once()
    assert in_flight.location not in pool.objects()
    with Producer(pool.store, clock=pool.clock, random=pool.random) as producer:
        producer.produce(pool.kind.make(b"kept"))
    (location,) = pool.listed()
    assert names.ulid_in(location) > pool.head.gc_floor


# Dry run


def test_dry_run_changes_nothing_and_says_what_a_collection_then_does(pool: Any) -> None:
    pool.append(KEPT_LISTINGS * 4, every=10.0)
    pool.read(50)
    pool.group("etl", through=40)
    pool.group("old", through=40)
    Groups(pool.store).delete("old", force=True)
    pool.hold("job", first=KEPT_LISTINGS + 6, ttl=1.0)
    pool.hold("other", first=KEPT_LISTINGS * 2, ttl=10**6)
    pool.upload()
    pool.clock.advance(5_000)
    before = [(found.key, found.modified_ms) for found in pool.store.list()]
    collector = pool.collector(retention=Retention(max_age=6_000))
    predicted = collector.collect_once(dry_run=True)
    assert [(found.key, found.modified_ms) for found in pool.store.list()] == before
    assert predicted.dry_run
    done = collector.collect_once()
    assert {**predicted.as_json(), "dry_run": False} == done.as_json()
    assert done.deleted > 0
    assert done.dropped_unread > 0
    assert done.expired_holds == ("job",)


@pytest.mark.parametrize("wrong", [{"grace": -1.0}, {"grace": float("nan")}, {"data_prefix": "../up"}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Collector("memory://settings", **wrong)


def test_report_says_in_a_line_what_was_done(pool: Any) -> None:
    pool.append(3, every=1.0)
    pool.read(1)
    pool.age()
    assert str(pool.collect()) == f"{pool.store.url}: deleted 2 objects, trimmed 2 batches, kept 1"
    assert isinstance(Queue(pool.store).read(), Head)


@pytest.mark.parametrize("claimed", [False, True])
def test_collector_of_a_buffer_that_nothing_was_written_to_says_so(
    claimed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(f"memory://collected-unwritten-{claimed}")
    if claimed:
        Consumer(store)
    before = [found.key for found in store.list()]
    with caplog.at_level(logging.WARNING, logger="forebay.gc"):
        Collector(store).collect_once()
    assert f"nothing was ever written to {store.url}" in caplog.text
    assert [found.key for found in store.list()] == before
