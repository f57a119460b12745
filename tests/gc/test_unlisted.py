"""Objects that were never listed are swept, however old the oldest retained batch is: rfcs/0006."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kinds import append_all

from forebay.buffer.base import names
from forebay.buffer.format.model import NewBatch
from forebay.buffer.holds import HeldUploads
from forebay.buffer.inspect.findings import Severity
from forebay.buffer.inspect.verify import verify
from forebay.buffer.manifest import BelowFloor, Queue
from forebay.buffer.manifest.head import KEPT_LISTINGS
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock

from .conftest import GRACE, Pool


def strand_segment(pool: Pool) -> str:
    """A segment that a producer stored and never referred to."""
    pool.queue.read()
    node = pool.head.plan_seal(turn=-10)
    assert node is not None
    pool.queue.segments.store_node(node, above=names.LOWEST)
    return pool.objects("segments")[-1]


def test_unlisted_uploads_and_segments_are_swept_while_an_older_batch_is_retained(pool: Any) -> None:
    pool.append(3 * KEPT_LISTINGS, every=0.01)
    stray_batch, stray_segment = pool.upload().location, strand_segment(pool)
    listed = pool.listed()
    pool.age()
    pool.collect()
    assert stray_batch not in pool.objects()
    assert stray_segment not in pool.objects("segments")
    assert pool.listed() == listed
    assert pool.objects("segments") == [f"segments/{ref.name}.segment" for ref in pool.head.refs]


def test_upload_within_the_grace_period_is_kept_and_can_be_listed(pool: Any) -> None:
    pool.append(3)
    pool.age()
    young = pool.upload()
    pool.collect()
    append_all(pool.queue, [young])
    assert young.location in pool.listed()


def test_upload_that_was_passed_by_is_refused_in_the_write_that_would_list_it(pool: Any) -> None:
    pool.append(3)
    old = pool.upload()
    pool.age()
    pool.collect()
    with pytest.raises(BelowFloor) as caught:
        append_all(pool.queue, [old])
    assert caught.value.floor == pool.head.reference_floor > pool.head.gc_floor


def test_producer_that_read_the_manifest_before_the_sweep_lists_nothing_swept(pool: Any) -> None:
    pool.append(3)
    slow = pool.open_queue()
    slow.register_writer()
    old = pool.upload()
    pool.age()
    pool.collect()
    with pytest.raises(BelowFloor):
        append_all(slow, [old])
    assert old.location not in pool.listed()


def test_listed_batch_with_a_name_from_the_future_is_not_taken_for_unlisted(pool: Any) -> None:
    """A producer's clock is ahead: its segment is found by the highest name below it."""
    ahead = ManualClock(pool.clock.now_ms() + 5_000_000)
    early = pool.upload(clock=ahead)
    append_all(pool.queue, [early])
    pool.append(4 * KEPT_LISTINGS, every=0.01)
    for _ in range(8):
        pool.age()
        pool.collect()
    assert early.location in pool.listed()
    assert pool.head.swept > (names.ulid_in(early.location) or "")


def test_each_name_is_looked_at_once(pool: Any) -> None:
    pool.append(4 * KEPT_LISTINGS, every=0.01)
    pool.age()
    pool.collect()
    pool.clock.advance(1)
    pool.append(1)
    pool.age()
    watched = FaultyStore(pool.store)
    pool.collect(watched)
    assert watched.calls["get"] <= 2, "the head, and no segment that was swept before"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER])
def test_names_whose_deletion_failed_are_looked_at_again(pool: Any, fault: Fault) -> None:
    pool.append(3)
    stray = pool.upload().location
    pool.age()
    report = pool.collect(FaultyStore(pool.store, {0: fault}, only={"delete"}))
    assert report.failed_count == 1
    assert pool.head.swept == names.LOWEST
    pool.collect()
    assert stray not in pool.objects()


def test_dry_run_counts_unlisted_objects_and_writes_nothing(pool: Any) -> None:
    pool.append(3)
    pool.upload()
    pool.age()
    before = pool.head
    assert pool.collector().collect_once(dry_run=True).deleted == 1
    assert pool.head == before


def test_floor_of_a_job_keeps_its_uploads_although_nothing_lists_them(pool: Any) -> None:
    pool.append(3)
    HeldUploads(pool.queue, "a job", ttl=10 * GRACE, clock=pool.clock).floor()
    mine = pool.upload()
    pool.age(GRACE * 2)
    pool.collect()
    append_all(pool.queue, [mine], let_go="a job")
    assert mine.location in pool.listed()


def test_job_whose_clock_is_behind_holds_a_floor_that_it_can_list_at(pool: Any) -> None:
    pool.append(3)
    pool.age()
    pool.collect()
    behind = ManualClock(pool.clock.now_ms() - 10_000_000)
    floor = HeldUploads(pool.queue, "a job", ttl=10 * GRACE, clock=behind).floor()
    name = names.mint(behind, pool.random, above=floor)
    pool.store.put(f"data/{name}.batch", b"x")
    append_all(pool.queue, [NewBatch(f"data/{name}.batch")], let_go="a job")


def test_producers_that_share_a_manifest_leave_few_unused_segments() -> None:
    """All of them see at once when the tail is full, and store what they would seal before any of them appends."""
    clock = ManualClock()
    store = MemoryStore("memory://taking-turns", clock=clock)
    random = Random(5)
    queues = [Queue(store, clock=clock, random=random) for _ in range(3)]
    for number in range(40 * KEPT_LISTINGS):
        for queue in queues:
            queue.read()
            queue.seal_if_due()
        append_all(queues[number % 3], [NewBatch(f"data/{number}")])
        clock.advance(0.01)
    report = verify(store, deep=False)
    assert report.segments > 30
    assert report.orphaned <= report.segments // 10


def test_healthy_buffer_with_an_upload_under_way_passes_verification(pool: Any) -> None:
    pool.append(3)
    pool.upload()
    report = verify(pool.store, clock=pool.clock)
    assert (report.severity, report.orphaned) == (Severity.OK, 1)
