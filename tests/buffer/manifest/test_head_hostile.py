"""Bytes from a stranger, as a head, a node or a cursor: a result, `Corrupt` or `Unsupported`, never anything else."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from forebay.buffer.base.errors import Corrupt, InvalidInput, Trimmed, Unsupported
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.groups import Cursor
from forebay.buffer.manifest import Head, read_state
from forebay.buffer.manifest.decode import read_head, read_node
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.head_fields import Group, Hold, Owner, Writer
from forebay.buffer.manifest.nodes import Node, NodeNeeded, Ref
from forebay.buffer.manifest.segments import Segments
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import ManualClock

ULID = "01HF7YAT008940MQ9F6HNTN52N"
LOWER = "01HF7YAT008940MQ9F6HNTN52M"

ENTRIES = tuple(
    NewBatch(f"data/{i}", (Metadata(0, 5, b"svc=web"),), Facts(100, 200, 10, 77, 5, 9) if i else None) for i in range(4)
)
SEGMENT = Node("b" * 32, 0, 4, 30, ENTRIES, ())
INDEX = Node("b" * 32, 1, 4, 30, (), (SEGMENT.refer(ULID), Ref(LOWER, 0, 8, 2, None, 9, LOWER, None, None)))
HEAD = Head(
    "b" * 32,
    revision=7,
    first_sequence=5,
    next_sequence=14,
    next_record=90,
    gc_floor=LOWER,
    owner=Owner(3, "claim", 4),
    groups={"etl": Group("g" * 32, 5)},
    holds={"h" * 32: Hold(6, None, 99, "job"), "i" * 32: Hold(None, ULID, 0, "", 60_000, 3, 99)},
    writers={"w" * 32: Writer(4, 6)},
    dropped=1,
    refs=(INDEX.refer(ULID),),
    tail=ENTRIES,
)
SCHEMAS = ("0" * 31 + "a", "f" * 32)
TYPED_ENTRIES = tuple(structs.replace(entry, schema=i % 2) for i, entry in enumerate(ENTRIES) if entry.facts)
TYPED_HEAD = structs.replace(
    HEAD, required_features=("typed-batches",), tail=TYPED_ENTRIES, next_sequence=13, schemas=SCHEMAS
)
TYPED_SEGMENT = Node("b" * 32, 0, 4, 30, TYPED_ENTRIES, ())
CURSOR = Cursor("b" * 32, 3, "claim", 7, 12)
OBJECTS: dict[str, Any] = {
    "head": HEAD,
    "typed head": TYPED_HEAD,
    "segment": SEGMENT,
    "typed segment": TYPED_SEGMENT,
    "index": INDEX,
    "cursor": CURSOR,
}


def use_head(data: bytes) -> None:
    head = read_head(data, "here")
    store = MemoryStore("memory://hostile-head")
    segments = Segments(store, clock=ManualClock(), random=Random(0))
    assert head.count >= 0
    if head.tail:
        head.tail_descriptors(head.tail_start, 10)
    with suppress(NodeNeeded):
        head.trim(head.first_sequence + 1, {}).to_bytes()
    node = head.plan_seal()
    if node is not None:
        head.seal(segments.store_node(node, above=head.gc_floor)).to_bytes()
    schema = len(head.schemas) - 1 if head.schemas else None
    head.append((NewBatch("data/x", schema=schema),), "w", 1, schemas=head.schemas).to_bytes()
    head.claim("c").to_bytes()
    for hold_id, held in head.holds.items():
        with suppress(Trimmed):
            head.with_hold(hold_id, held.renew(1)).to_bytes()
        with suppress(NodeNeeded):
            stamped = head.collect(
                point=0, dropped=0, expired=(), floor=LOWER, nodes={}, stamps={hold_id: 1_700_000_000_000}
            )
            (stamped or head).to_bytes()
    with suppress(Trimmed, InvalidInput):
        head.with_group("g", "1", head.first_sequence).to_bytes()


def use_node(data: bytes) -> None:
    node = read_node(data, "here")
    node.refer(ULID)
    if node.level == 0:
        with suppress(Corrupt):  # a version that the head does not have
            node.describe(())
            node.describe(SCHEMAS)


def use_cursor(data: bytes) -> None:
    unpack(data, Cursor, "here")


USES: dict[str, Callable[[bytes], None]] = {
    "head": use_head,
    "typed head": use_head,
    "segment": use_node,
    "typed segment": use_node,
    "index": use_node,
    "cursor": use_cursor,
}


def sealed(body: bytes) -> bytes:
    """A body with the checksum and version that belong to it."""
    return body + struct.pack("<IH", crc32c(body), 2)


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_was_written_is_read(kind: str) -> None:
    USES[kind](pack(OBJECTS[kind]))


@pytest.mark.parametrize("kind", OBJECTS)
def test_any_changed_byte_and_any_missing_one_is_noticed(kind: str) -> None:
    whole = pack(OBJECTS[kind])
    for at in range(len(whole)):
        for mask in (0x01, 0x80):
            mutated = bytearray(whole)
            mutated[at] ^= mask
            with pytest.raises(Corrupt, match="here"):
                USES[kind](bytes(mutated))
        with pytest.raises(Corrupt, match="here"):
            USES[kind](whole[:at])
    with pytest.raises(Corrupt, match="here"):
        USES[kind](whole + b"\0")


@pytest.mark.parametrize("kind", OBJECTS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_mutated_body_with_a_right_checksum_gives_a_result_corrupt_or_unsupported(
    kind: str, data: st.DataObject
) -> None:
    body = bytearray(pack(OBJECTS[kind])[:-6])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for mutated in (bytes(body), bytes(body[:cut]), bytes(body[cut:])):
        with suppress(Corrupt, Unsupported):
            USES[kind](sealed(mutated))


plain = st.recursive(
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, 5, 2**62, 2**63, -1, "", ULID, "../x", "b" * 32])
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", OBJECTS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_well_formed_object_with_other_fields_gives_a_result_or_corrupt(kind: str, data: st.DataObject) -> None:
    """Not bytes but values are changed: what gets further in than any flipped bit."""
    fields: list[Any] = msgspec.msgpack.decode(pack(OBJECTS[kind])[:-6])

    def change(value: Any) -> Any:
        if isinstance(value, list) and value and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(value) - 1))
            return [*value[:at], change(value[at]), *value[at + 1 :]]
        if isinstance(value, int) and data.draw(st.booleans()):
            return max(-(2**63), min(value + data.draw(st.integers(-2, 2)), 2**64 - 1))
        return data.draw(plain)

    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(fields) - 1))
        fields[at] = change(fields[at])
    with suppress(Corrupt, Unsupported):
        USES[kind](sealed(msgspec.msgpack.encode(fields)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_no_head(body: bytes) -> None:
    for data in (body, sealed(body)):
        with pytest.raises((Corrupt, Unsupported)):
            use_head(data)
        with pytest.raises(Corrupt):
            use_node(data)
        with pytest.raises(Corrupt):
            use_cursor(data)


def fields_of(head: Head, **changes: Any) -> bytes:
    return Head(**{name: getattr(head, name) for name in Head.__struct_fields__} | changes).to_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"next_sequence": 13},
        {"next_sequence": 15},
        {"next_sequence": 2**63},
        {"next_sequence": -1},
        {"first_sequence": 3},
        {"first_sequence": 15},
        {"refs": ()},
        {"refs": HEAD.refs * 2},
        {"tail": ()},
        {"revision": -1},
        {"revision": 2**63},
        {"next_record": -5},
        {"dropped": -1},
        {"owner": Owner(-1, "", None)},
        {"holds": {"h": Hold(6, None, 0, "", -1)}},
        {"holds": {"h": Hold(6, None, 0, "", 2**63)}},
        {"holds": {"h": Hold(6, None, 0, "", 1, -1)}},
        {"holds": {"h": Hold(6, None, 0, "", 1, 2**63)}},
        {"holds": {"h": Hold(6, None, 0, "", 1, 0, 2**63)}},
        {"gc_floor": "not a ulid"},
        {"gc_floor": ULID.lower()},
        {"gc_floor": "Z" * 26},
    ],
    ids=str,
)
def test_head_that_contradicts_itself_is_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="here"):
        read_head(fields_of(HEAD, **changes), "here")


@pytest.mark.parametrize(
    "node",
    [
        Node("b", 0, 4, 30, (), ()),
        Node("b", 0, 4, 30, ENTRIES, INDEX.refs),
        Node("b", 1, 4, 30, ENTRIES, ()),
        Node("b", 1, 4, 30, (), ()),
        Node("b", -1, 4, 30, (), ()),
        Node("b", 2, 4, 30, (), INDEX.refs),
        Node("b", 1, 5, 30, (), INDEX.refs),
        Node("b", 1, 4, 30, (), INDEX.refs[::-1]),
        Node("b", 1, 4, 30, (), (INDEX.refs[0], INDEX.refs[0])),
    ],
    ids=str,
)
def test_node_that_contradicts_itself_is_corrupt(node: Node) -> None:
    with pytest.raises(Corrupt, match="here"):
        read_node(pack(node), "here")


def test_feature_that_this_release_does_not_know_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="needs sharding, which this release does not know: upgrade"):
        read_head(fields_of(HEAD, required_features=("sharding",)), "here")


def test_one_kind_of_object_is_not_taken_for_another() -> None:
    for kind, data in ((kind, pack(value)) for kind, value in OBJECTS.items()):
        for other, use in USES.items():
            if use is not USES[kind]:
                with pytest.raises(Corrupt):
                    use(data)
            assert other
        if kind not in ("head", "typed head"):
            with pytest.raises(Corrupt):
                read_state(data, "here")


def test_other_versions_are_corrupt_and_named() -> None:
    body = pack(HEAD)[:-2]
    for version in (0, 3, 65535):
        with pytest.raises(Corrupt, match=f"version {version}"):
            read_state(body + struct.pack("<H", version), "here")


def test_lying_lengths_allocate_no_more_than_the_object_justifies() -> None:
    lengths = [
        b"\xdd\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ]
    nested = b"\x91" * 100_000
    for kind, tag in (("head", b"\xa4head"), ("segment", b"\xa4node"), ("cursor", b"\xa6cursor")):
        bodies = [b"\x9f" + tag + b"\xa1b" * before + lie for before in range(15) for lie in lengths]
        bodies += [b"\xdd\xff\xff\xff\xff" + tag, b"\x9f" + tag + b"\xa1b" + nested, nested]
        for body in bodies:
            data = sealed(body)
            tracemalloc.start()
            with pytest.raises(Corrupt):
                USES[kind](data)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 50_000 + 4 * len(data)
