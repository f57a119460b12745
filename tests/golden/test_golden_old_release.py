"""What an older release makes of heads that this one writes: it reads or refuses them, and never loses anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoder_cf326e9 import OldUnsupported, pack
from decoder_cf326e9 import read_head as read_as_before
from msgspec import Struct

from forebay.buffer.base.names import at_time
from forebay.buffer.either.holds import hold
from forebay.buffer.format.model import NewBatch
from forebay.buffer.groups import Cursor
from forebay.buffer.holds import HeldUploads
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.decode import read_head
from forebay.buffer.manifest.envelope import pack as pack_any
from forebay.buffer.manifest.envelope import unpack
from forebay.buffer.manifest.head import bucket_of
from forebay.buffer.manifest.head_fields import Bucket, Hold
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import ManualClock

HERE = Path(__file__).parent
LISTED = Head("b" * 32).append((NewBatch("data/a"),), "w", 1)


@pytest.mark.parametrize("name", ["head-v2-empty", "head-v2-full"])
def test_older_release_reads_and_writes_the_heads_of_its_time(name: str) -> None:
    data = (HERE / name).read_bytes()
    assert pack(read_as_before(data)) == data


def test_older_release_reads_a_head_without_a_counted_hold() -> None:
    """Its own holds are written with the new fields at their end, which it drops: they were empty."""
    head = LISTED.with_hold("old", Hold(0, None, 99, "job"))
    again = read_head(pack(read_as_before(head.to_bytes())), "again")
    assert again == head


def test_older_release_refuses_a_head_with_a_counted_hold() -> None:
    head = LISTED.with_hold("new", Hold(0, None, 0, "job", 300_000))
    with pytest.raises(OldUnsupported, match="counted-holds"):
        read_as_before(head.to_bytes())


def test_older_release_refuses_the_head_even_when_the_hold_is_gone() -> None:
    head = LISTED.with_hold("new", Hold(0, None, 0, "job", 300_000)).without_hold("new")
    with pytest.raises(OldUnsupported, match="counted-holds"):
        read_as_before(head.to_bytes())


def test_older_release_reads_a_head_that_names_its_owner_and_drops_the_name() -> None:
    data = (HERE / "head-v2-owned").read_bytes()
    again = read_head(pack(read_as_before(data)), "again")
    assert again.claimed_by is None
    assert (again.epoch, again.claim_id, again.acked) == (7, "claim", 40)


class OldCursor(Struct, frozen=True, array_like=True, tag="cursor"):
    """A cursor of the same release: it knew no owner."""

    buffer_id: str
    epoch: int
    claim_id: str
    acked: int | None
    number: int
    planned: tuple[int, ...] = ()


def test_older_release_reads_a_cursor_that_names_its_owner_and_drops_the_name() -> None:
    data = (HERE / "cursor-v2-owned").read_bytes()
    again = unpack(pack_any(unpack(data, OldCursor, "old")), Cursor, "again")
    assert again == Cursor("00112233445566778899aabbccddeeff", 4, "claim", 300, 17, (302,))


@pytest.mark.parametrize("of_uploads", [False, True])
def test_older_release_refuses_a_buffer_from_the_write_that_takes_a_hold(of_uploads: bool) -> None:
    store = MemoryStore(f"memory://older-release-{of_uploads}")
    Queue(store).append([NewBatch("data/a")])
    read_as_before(bytes(store.get("manifest").data))
    if of_uploads:
        HeldUploads(Queue(store), "a job", ttl=300).floor()
    else:
        hold(store, clock=ManualClock()).hand_over()
    with pytest.raises(OldUnsupported, match="counted-holds"):
        read_as_before(bytes(store.get("manifest").data))


def test_features_are_sorted_and_named_once() -> None:
    head = LISTED.with_hold("one", Hold(0, None, 0, "", 1)).with_hold("two", Hold(0, None, 0, "", 1))
    assert head.required_features == ("counted-holds",)


def test_older_release_refuses_a_head_whose_lasting_writers_are_in_a_bucket() -> None:
    """It would drop the reference to the bucket, and repeats of the writers in it would be stored again."""
    head = Head("b" * 32).append((NewBatch("data/a"),), "=pod", 1)
    read_as_before(head.to_bytes())
    sealed = head.seal_writers(bucket_of("=pod"), None, Bucket(at_time(1), 1), head.writers)
    with pytest.raises(OldUnsupported, match="sealed-writers"):
        read_as_before(sealed.to_bytes())


def test_older_release_refuses_a_head_whose_reference_floor_has_passed_what_is_listed() -> None:
    """It would drop that floor, and could list an upload that was swept."""
    head = Head("b" * 32).append((NewBatch(f"data/{at_time(1)}.batch"),), "w", 1)
    drained = head.collect(point=1, dropped=0, expired=(), floor=at_time(5), nodes={})
    assert drained is not None
    read_as_before(drained.to_bytes())
    with_backlog = head.collect(point=0, dropped=0, expired=(), floor=at_time(5), nodes={})
    assert with_backlog is not None
    with pytest.raises(OldUnsupported, match="reference-floor"):
        read_as_before(with_backlog.to_bytes())


def test_older_release_refuses_a_typed_buffer_from_the_write_that_makes_it() -> None:
    """It would drop the ids of the schemas, and nobody could read the rows."""
    head = Head("b" * 32).evolve(("a" * 32,))
    with pytest.raises(OldUnsupported, match="typed-batches"):
        read_as_before(head.to_bytes())
    with_rows = Head("b" * 32).append((NewBatch("data/a", schema=0),), "w", 1, schemas=("a" * 32,))
    with pytest.raises(OldUnsupported, match="typed-batches"):
        read_as_before(with_rows.to_bytes())
