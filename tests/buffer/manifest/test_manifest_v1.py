"""The version 1 manifest's bytes: rfcs/0003."""

from __future__ import annotations

import struct

import pytest

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.format.model import BatchDescriptor, Metadata, NewBatch
from forebay.buffer.manifest.v1 import Manifest

URL = "memory://lake/manifest"


def new_batches(count: int) -> list[NewBatch]:
    return [NewBatch(f"data/{i:04}.batch", (Metadata(0, 1_700_000_000_000 + i, b"m" * i),)) for i in range(count)]


def manifest_of(count: int) -> Manifest:
    return Manifest.empty(URL).append(new_batches(count))


def test_empty_manifest_has_nothing_and_starts_at_zero() -> None:
    manifest = Manifest.empty(URL)
    assert (manifest.count, manifest.first_sequence, manifest.next_sequence, manifest.epoch) == (0, 0, 0, 0)
    assert manifest.tail_descriptors(0, 10) == []


def test_appended_batches_come_back_in_order_with_contiguous_sequences() -> None:
    manifest = manifest_of(3)
    assert manifest.tail_descriptors(0, 10) == [
        BatchDescriptor(i, batch.location, batch.metadata) for i, batch in enumerate(new_batches(3))
    ]


def test_append_in_two_steps_gives_the_same_bytes_as_in_one() -> None:
    first, second = new_batches(5)[:2], new_batches(5)[2:]
    assert Manifest.empty(URL).append(first).append(second) == manifest_of(5)


def test_append_does_not_look_at_the_entries_that_are_there() -> None:
    """Entries that nobody could decode stay as they are."""
    footer = struct.pack("<IQQH", 1, 8, 3, 1)
    body = struct.pack("<I", 20) + b"\xff" * 20
    longer = Manifest(body + footer, URL).append(new_batches(1))
    assert longer.data.startswith(body)
    assert (longer.count, longer.next_sequence, longer.epoch) == (2, 9, 3)


@pytest.mark.parametrize(
    ("first", "limit", "expected"),
    [(0, 2, [0, 1]), (2, 2, [2, 3]), (4, 9, [4]), (5, 9, []), (100, 9, []), (0, 0, [])],
)
def test_entries_from_a_sequence_on(first: int, limit: int, expected: list[int]) -> None:
    assert [entry.sequence for entry in manifest_of(5).tail_descriptors(first, limit)] == expected


def test_ack_keeps_the_rest_and_the_numbering() -> None:
    rest = manifest_of(5).ack(2)
    assert (rest.count, rest.first_sequence, rest.next_sequence) == (2, 3, 5)
    assert rest.tail_descriptors(0, 9) == manifest_of(5).tail_descriptors(3, 9)
    assert rest.tail_descriptors(1, 9) == rest.tail_descriptors(0, 9)


def test_ack_of_everything_and_beyond_leaves_an_empty_manifest_that_counts_on() -> None:
    for through in (4, 5, 99):
        rest = manifest_of(5).ack(through)
        assert (rest.count, rest.first_sequence, rest.next_sequence) == (0, 5, 5)
        assert rest.append(new_batches(1)).tail_descriptors(0, 9)[0].sequence == 5


def test_ack_below_the_first_changes_nothing() -> None:
    manifest = manifest_of(5).ack(2)
    assert manifest.ack(1) == manifest


def test_claim_raises_the_epoch_and_nothing_else() -> None:
    claimed = manifest_of(2).claim().claim()
    assert claimed.epoch == 2
    assert claimed.tail_descriptors(0, 9) == manifest_of(2).tail_descriptors(0, 9)


def test_own_location_is_found_wherever_it_stands() -> None:
    manifest = manifest_of(50)
    assert manifest.lists_any(["data/none", "data/0049.batch"])
    assert not manifest.lists_any(["data/0050.batch"])


def test_location_quoted_in_metadata_is_not_mistaken_for_an_entry() -> None:
    manifest = Manifest.empty(URL).append([NewBatch("data/a", (Metadata(0, 0, b"replaces data/b"),))])
    assert not manifest.lists_any(["data/b"])


@pytest.mark.parametrize("location", ["", "/etc/passwd", "../other", "data//x", "data/\x00", "x" * 1025])
def test_location_that_is_no_key_is_refused_at_append(location: str) -> None:
    with pytest.raises(InvalidInput):
        Manifest.empty(URL).append([NewBatch(location)])


def raw_entry(sequence: int, location: bytes, tail: bytes = b"\0\0\0\0", location_size: int | None = None) -> bytes:
    size = len(location) if location_size is None else location_size
    entry = struct.pack("<QH", sequence, size) + location + tail
    return struct.pack("<I", len(entry)) + entry


def footer(count: int, next_sequence: int, epoch: int = 0, version: int = 1) -> bytes:
    return struct.pack("<IQQH", count, next_sequence, epoch, version)


def item(start: int, payload: bytes, size: int | None = None) -> bytes:
    return struct.pack("<IqI", start, 0, len(payload) if size is None else size) + payload


GOOD = raw_entry(0, b"data/a")
HOSTILE = {
    "too short": b"\x01" * 21,
    "empty object": b"",
    "version 0": GOOD + footer(1, 1, version=0),
    "version 2": GOOD + footer(1, 1, version=2),
    "four billion entries": GOOD + footer(2**32 - 1, 2**33),
    "more entries than numbers": GOOD + footer(1, 0),
    "bytes before an empty footer": b"x" + footer(0, 0),
    "fewer entries than claimed": GOOD + b"\0" * 20 + footer(2, 2),
    "more entries than claimed": GOOD + raw_entry(1, b"data/b") + footer(1, 2),
    "entry runs past the end": struct.pack("<I", 2**31) + GOOD[4:] + footer(1, 1),
    "truncated in the middle": GOOD[:-2] + footer(1, 1),
    "wrong sequence": raw_entry(7, b"data/a") + footer(1, 1),
    "location past the entry": raw_entry(0, b"data/a", location_size=60_000) + footer(1, 1),
    "location not UTF-8": raw_entry(0, b"data/\xff") + footer(1, 1),
    "location escapes": raw_entry(0, b"../../secret") + footer(1, 1),
    "absolute location": raw_entry(0, b"/etc/passwd") + footer(1, 1),
    "empty location": raw_entry(0, b"xx", location_size=0) + footer(1, 1),
    "four billion items": raw_entry(0, b"data/a", b"\xff\xff\xff\xff") + footer(1, 1),
    "no room for the item count": raw_entry(0, b"data/abcd", b"\0\0") + footer(1, 1),
    "payload past the entry": raw_entry(0, b"data/a", b"\1\0\0\0" + item(0, b"pay", 2**32 - 1)) + footer(1, 1),
    "items out of order": raw_entry(0, b"data/a", b"\2\0\0\0" + item(5, b"") + item(4, b"")) + footer(1, 1),
    "bytes after the items": raw_entry(0, b"data/a", b"\0\0\0\0junk") + footer(1, 1),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_corrupt_and_named(data: bytes) -> None:
    with pytest.raises(Corrupt, match=URL):
        Manifest(data, URL).tail_descriptors(0, 2**32)
