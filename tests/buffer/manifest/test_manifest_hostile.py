"""Bytes from a stranger, as a manifest: a result or `Corrupt`, never anything else (rfcs/0003)."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.buffer.base.errors import Corrupt
from forebay.buffer.format.model import BatchDescriptor, Metadata, NewBatch
from forebay.buffer.manifest.v1 import Manifest

segments = st.text("abcÄ-_1", min_size=1, max_size=8)
locations = st.lists(segments, min_size=1, max_size=4).map("/".join)
items = st.tuples(st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20))
metadata = st.lists(items, max_size=4).map(lambda found: tuple(Metadata(*item) for item in sorted(found)))
new_batches = st.lists(st.builds(NewBatch, locations, metadata), max_size=12)


def read_whole(data: bytes) -> list[BatchDescriptor]:
    manifest = Manifest(data, "here")
    return manifest.tail_descriptors(0, manifest.count)


@given(new_batches, new_batches, st.integers(0, 30))
def test_any_batches_survive_append_and_dequeue(first: list[NewBatch], second: list[NewBatch], through: int) -> None:
    manifest = Manifest.empty("here").append(first).append(second).claim()
    expected = [BatchDescriptor(i, b.location, b.metadata) for i, b in enumerate(first + second)]
    assert read_whole(manifest.data) == expected
    assert read_whole(manifest.ack(through).data) == expected[through + 1 :]


@settings(max_examples=200)
@given(new_batches, st.data())
def test_mutated_manifest_gives_a_result_or_corrupt(batches: list[NewBatch], data: st.DataObject) -> None:
    whole = bytearray(Manifest.empty("here").append(batches).data)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for mutated in (bytes(whole), bytes(whole[:cut]), bytes(whole[cut:])):
        with suppress(Corrupt):
            read_whole(mutated)
            Manifest(mutated, "here").ack(3)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_random_bytes_with_a_footer_give_a_result_or_corrupt(body: bytes, count: int, next_sequence: int) -> None:
    for claimed in (count, len(body) // 18):
        with suppress(Corrupt):
            read_whole(body + struct.pack("<IQQH", claimed, next_sequence, 0, 1))


def test_lying_manifest_allocates_no_more_than_its_own_size_justifies() -> None:
    entry = struct.pack("<IQH", 2**31, 0, 0xFFFF) + b"x" * 30
    lies = [
        entry + struct.pack("<IQQH", 2**32 - 1, 2**40, 0, 1),
        entry + struct.pack("<IQQH", 1, 1, 0, 1),
        struct.pack("<IQH", 16 + 1, 0, 1) + b"a" + b"\xff" * 4 + struct.pack("<IQQH", 1, 1, 0, 1),
    ]
    for lie in lies:
        tracemalloc.start()
        with pytest.raises(Corrupt):
            read_whole(lie)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
