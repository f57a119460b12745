"""Snapshots: what a catalog starts from instead of a replay, and never has to trust."""

from __future__ import annotations

import logging
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from catalog_rig import ORDERS, PARTITIONS, TOPIC, FlakyLog, ObedientBackend, Rig, eventually, finish, segment
from hypothesis import given, settings

from forebay.buffer.manifest.envelope import pack
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.catalog import Catalog, SegmentState
from forebay.runtime.catalog.snapshot import SNAPSHOT_KEY, CatalogSnapshot, load_snapshot, write_snapshot
from forebay.runtime.catalog.view import View
from forebay.testing import Fault, FaultyStore, ManualClock


def test_close_writes_a_snapshot_of_everything_applied(rig: Rig) -> None:
    catalog = rig.open(snapshots=rig.snapshots)
    catalog.add(segment())
    catalog.update(finish(segment()))
    assert not rig.has_snapshot()
    catalog.close()
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert snapshot.applied == [1 if n == catalog.log_partition(ORDERS) else -1 for n in range(PARTITIONS)]
    assert [item.state for dump in snapshot.partitions for item in dump.segments] == [SegmentState.COPY_FINISHED]


def test_restart_goes_on_after_the_snapshot_and_replays_nothing_before_it(rig: Rig) -> None:
    catalog = rig.open(snapshots=rig.snapshots)
    number = catalog.log_partition(ORDERS)
    for item in (segment("a", 0, 99), segment("b", 100, 199), segment("c", 200, 299)):
        catalog.add(item)
        catalog.update(finish(item))
    before = catalog.segments(ORDERS)
    catalog.close()
    rig.backend.reads.clear()
    fresh = rig.open(snapshots=rig.snapshots)
    assert fresh.segments(ORDERS) == before  # at once: there is nothing to catch up with
    assert fresh.highest_offset(ORDERS, 0) == 299
    fresh.add(segment("d", 300, 399))
    assert len(fresh.segments(ORDERS)) == 4
    assert rig.backend.reads
    assert all(first == 6 for partition, first in rig.backend.reads if partition == number)


def test_restart_catches_up_with_what_came_after_the_snapshot(rig: Rig) -> None:
    with rig.open(snapshots=rig.snapshots) as catalog:
        catalog.add(segment("a"))
    rig.write(segment("b", 100, 199))
    fresh = rig.open(snapshots=rig.snapshots)
    assert [item.segment_id for item in eventually(lambda: fresh.segments(ORDERS))] == ["a", "b"]


def test_snapshots_are_written_now_and_then_but_only_if_something_advanced(rig: Rig) -> None:
    clock = ManualClock()
    counted = FaultyStore(rig.snapshots)
    catalog = rig.open(snapshots=counted, snapshot_interval=60.0, clock=clock, log=FlakyLog(rig.backend, clock=clock))

    def advance(until: Callable[[], bool]) -> None:
        while not until():
            clock.advance(61.0)

    advance(lambda: catalog._follower._snapshot_due > 300.0)  # it was due several times
    assert counted.calls["put"] == 0
    catalog.add(segment())
    advance(lambda: counted.calls["put"] == 1)
    due = catalog._follower._snapshot_due
    advance(lambda: catalog._follower._snapshot_due > due + 300.0)
    assert counted.calls["put"] == 1
    catalog.close()
    assert counted.calls["put"] == 1
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert max(snapshot.applied) == 0


def test_snapshot_that_cannot_be_written_is_logged_and_tried_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    catalog = rig.open(snapshots=FaultyStore(rig.snapshots, {0: Fault.FAIL}, only={"put"}))
    catalog.add(segment())
    catalog._follower._save()
    assert "could not be written" in caplog.text
    assert not rig.has_snapshot()
    catalog.close()
    assert rig.has_snapshot()


def damage_nothing_there(store: MemoryStore) -> None:
    store.delete([SNAPSHOT_KEY])


def damage_torn(store: MemoryStore) -> None:
    data = store.get(SNAPSHOT_KEY).data
    store.put(SNAPSHOT_KEY, data[: len(data) // 2])


def damage_a_bit(store: MemoryStore) -> None:
    data = bytearray(store.get(SNAPSHOT_KEY).data)
    data[10] ^= 1
    store.put(SNAPSHOT_KEY, data)


def damage_empty(store: MemoryStore) -> None:
    store.put(SNAPSHOT_KEY, b"")


def damage_other_count(store: MemoryStore) -> None:
    write_snapshot(store, CatalogSnapshot(TOPIC, [5] * (PARTITIONS + 1), []))


def damage_other_topic(store: MemoryStore) -> None:
    write_snapshot(store, CatalogSnapshot("others", [5] * PARTITIONS, []))


def damage_impossible(store: MemoryStore) -> None:
    write_snapshot(store, CatalogSnapshot(TOPIC, [-2] * PARTITIONS, []))


def damage_other_object(store: MemoryStore) -> None:
    store.put(SNAPSHOT_KEY, pack(segment()))


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_snapshot_that_is_torn_or_foreign_means_a_replay_and_never_a_failure(
    rig: Rig, damage: Callable[[MemoryStore], None], caplog: pytest.LogCaptureFixture
) -> None:
    with rig.open(snapshots=rig.snapshots) as catalog:
        catalog.add(segment())
    damage(rig.snapshots)
    with caplog.at_level(logging.WARNING, logger="forebay.catalog"):
        fresh = rig.open(snapshots=rig.snapshots)
    assert len(eventually(lambda: fresh.segments(ORDERS))) == 1
    assert ("everything is replayed" in caplog.text) == (damage is not damage_nothing_there)
    fresh.add(segment("b", 100, 199))
    fresh.close()
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert max(snapshot.applied) == 1


def test_snapshot_store_that_cannot_be_read_means_a_replay(rig: Rig) -> None:
    rig.write(segment())
    catalog = rig.open(snapshots=FaultyStore(rig.snapshots, {0: Fault.FAIL}, only={"get"}))
    assert len(eventually(lambda: catalog.segments(ORDERS))) == 1


def foreign(rig: Rig) -> None:
    """A snapshot of a log that had more in it, and other things."""
    view = View()
    view.apply(segment("foreign", 1000, 1099), 1)
    write_snapshot(rig.snapshots, CatalogSnapshot(TOPIC, [9] * PARTITIONS, view.dump()))


def test_snapshot_with_offsets_beyond_the_mark_is_foreign_and_all_of_it_is_replayed(rig: Rig) -> None:
    rig.write(segment("a"))
    foreign(rig)
    catalog = rig.open(snapshots=rig.snapshots)
    assert [item.segment_id for item in eventually(lambda: catalog.segments(ORDERS))] == ["a"]
    catalog.add(segment("b", 100, 199))
    assert [item.segment_id for item in catalog.segments(ORDERS)] == ["a", "b"]


def test_foreign_snapshot_is_found_out_when_the_marks_are_known_at_last(rig: Rig) -> None:
    rig.write(segment("a"))
    foreign(rig)
    rig.log.fails_marks = True
    catalog = rig.open(snapshots=rig.snapshots)
    rig.log.fails_marks = False
    catalog.reconcile_assignment(range(PARTITIONS))
    assert [item.segment_id for item in eventually(lambda: catalog.segments(ORDERS))] == ["a"]


def test_snapshot_up_to_the_very_end_of_the_log_is_not_foreign(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with rig.open(snapshots=rig.snapshots) as catalog:
        catalog.add(segment())
    with caplog.at_level(logging.WARNING, logger="forebay.catalog"):
        fresh = rig.open(snapshots=rig.snapshots)
    assert "replayed" not in caplog.text
    assert len(fresh.segments(ORDERS)) == 1


def test_what_came_for_the_view_before_it_started_anew_is_not_applied(rig: Rig) -> None:
    """The pump may hold an event of the old life while the view is dropped; applying it would skip all before it."""
    rig.write(segment("a"), segment("b", 100, 199))
    catalog = rig.open(assign=[])
    follower = catalog._follower
    (record,) = rig.log.read_range(TOPIC, after=2, limit=1, partition=catalog.log_partition(ORDERS))
    follower._life += 1
    follower._apply(record, follower._life - 1)
    assert follower.applied == [-1] * PARTITIONS


def test_event_that_was_applied_before_moves_nothing_back(rig: Rig) -> None:
    """The pump may hold an event while its partition is removed and added again."""
    rig.write(segment("a"))
    catalog = rig.open()
    eventually(lambda: catalog.segments(ORDERS))
    number, follower = catalog.log_partition(ORDERS), catalog._follower
    for record in rig.log.read_range(TOPIC, partition=number):
        follower._apply(record, follower._life)
        assert follower.applied[number] == 1
        assert len(catalog.segments(ORDERS)) == 1


def test_view_in_a_snapshot_is_never_behind_its_offsets(rig: Rig) -> None:
    """Snapshots at every moment, while another thread's writes are applied: each replays to the same end."""
    taken: list[CatalogSnapshot] = []
    catalog = rig.open(snapshots=rig.snapshots)
    apply = catalog._follower.view.apply

    def apply_and_save(*change: object) -> None:
        taken.append(CatalogSnapshot(TOPIC, list(catalog._follower.applied), catalog._follower.view.dump()))
        apply(*change)  # type: ignore[arg-type]

    catalog._follower.view.apply = apply_and_save  # type: ignore[method-assign]
    for item in (segment("a", 0, 9), segment("b", 10, 19), segment("c", 20, 29)):
        catalog.add(item)
        catalog.update(finish(item))
    expected = catalog.segments(ORDERS)
    for snapshot in taken:
        write_snapshot(rig.snapshots, snapshot)
        fresh = rig.open(snapshots=MemoryStore(rig.snapshots.url))
        assert eventually(lambda fresh=fresh: fresh.segments(ORDERS)) == expected


@settings(max_examples=20)
@given(st.data())
def test_catalogs_that_come_and_go_agree_with_a_replay_from_nothing(data: st.DataObject) -> None:
    """Random writes by two catalogs, that restart from snapshots and change what they follow in between."""
    rig = Rig(f"catalog-random-{data.draw(st.integers(0, 2**64))}")
    names = [f"orders/{n}" for n in range(4)]
    stores = [MemoryStore(f"memory://{rig.name}-{who}") for who in "ab"]
    catalogs = [rig.open(snapshots=store) for store in stores]
    for step in range(data.draw(st.integers(5, 25))):
        who = data.draw(st.integers(0, 1))
        action = data.draw(st.sampled_from(["add", "update", "update", "restart", "reassign"]))
        item = segment(f"{step % 5}", 10 * (step % 5), 10 * (step % 5) + 9, partition=data.draw(st.sampled_from(names)))
        if action == "restart":
            catalogs[who].close()
            catalogs[who] = rig.open(snapshots=stores[who])
        elif action == "reassign":
            catalogs[who].reconcile_assignment([])
            catalogs[who].reconcile_assignment(range(PARTITIONS))
        else:
            try:
                if action == "add":
                    catalogs[who].add(item)
                else:
                    catalogs[who].update(finish(item, data.draw(st.sampled_from(list(SegmentState)))))
            except ValueError:
                continue  # out of order: refused, and so for everyone
    marks = rig.log.high_water_marks(TOPIC)
    replayed = Catalog(FlakyLog(ObedientBackend(rig.backend.url)), TOPIC, partitions=PARTITIONS)
    replayed.reconcile_assignment(range(PARTITIONS))
    for catalog in (*catalogs, replayed):
        eventually(lambda catalog=catalog: [end + 1 for end in catalog._follower.applied] == marks)
    for name in names:
        expected = replayed.segments(name)
        assert [catalog.segments(name) for catalog in catalogs] == [expected, expected]
        highest = replayed.highest_offset(name, 0)
        assert [catalog.highest_offset(name, 0) for catalog in catalogs] == [highest, highest]
    replayed.close()
    rig.close()


def test_snapshot_that_arrives_falsified_once_is_used(rig: Rig) -> None:
    with rig.open(snapshots=rig.snapshots) as catalog:
        catalog.add(segment())
    faulty = FaultyStore(rig.snapshots, {0: Fault.FALSIFY}, only={"get"})
    assert load_snapshot(faulty, TOPIC, PARTITIONS, clock=ManualClock()) == rig.snapshot()
    assert faulty.calls["get"] == 2
