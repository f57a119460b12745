"""Version 2 heads, segments, index nodes and cursors, kept for ever: built here field by field, and as files beside.

The layout is rfcs/0005's: a MessagePack body, its CRC32C, and the version. An array's first field is its tag.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.buffer.base.process import Process
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.groups import Cursor
from forebay.buffer.manifest.decode import read_head, read_node, read_writer_node
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.head import Head
from forebay.buffer.manifest.head_fields import Bucket, Group, Hold, Owner, Writer
from forebay.buffer.manifest.nodes import Node, Ref, WriterNode

HERE = Path(__file__).parent

NIL = b"\xc0"


def array(*fields: bytes) -> bytes:
    length = bytes([0x90 | len(fields)]) if len(fields) < 16 else b"\xdc" + len(fields).to_bytes(2, "big")
    return length + b"".join(fields)


def mapping(*pairs: tuple[bytes, bytes]) -> bytes:
    return bytes([0x80 | len(pairs)]) + b"".join(key + value for key, value in pairs)


def text(value: str) -> bytes:
    data = value.encode()
    return (bytes([0xA0 | len(data)]) if len(data) < 32 else bytes([0xD9, len(data)])) + data


def binary(value: bytes) -> bytes:
    return bytes([0xC4, len(value)]) + value


def number(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if value < 0:
        return b"\xff" if value == -1 else b"\xd3" + value.to_bytes(8, "big", signed=True)
    for tag, size in ((b"\xcc", 1), (b"\xcd", 2), (b"\xce", 4), (b"\xcf", 8)):
        if value < 256**size:
            return tag + value.to_bytes(size, "big")
    raise ValueError(value)


def crc32c(data: bytes) -> int:
    """Bit by bit, so that the files do not depend on the library they guard."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def stored(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "little") + (2).to_bytes(2, "little")


BUFFER = "00112233445566778899aabbccddeeff"
BATCH = "01HF7YAT00000000000000000B"
SEGMENT, INDEX = "01HF7YB0000000000000000001", "01HF7YC0000000000000000002"
FLOOR = "01HF7YAS000000000000000000"
TIME = 1_700_000_000_123

# An entry is its location, its metadata (of each call: first entry, time, payload) and its facts (object bytes, raw
# bytes, records, crc32c, first and last time), which are nil for batches from version 1.
PLAIN_ENTRY = array(text("ingest/old.batch"), array(), NIL)
RICH_FIELDS = (
    text(f"data/{BATCH}.batch"),
    array(array(number(0), number(TIME), binary(b"svc=web")), array(number(300), number(-1), binary(b""))),
    array(number(70_000), number(2**33), number(500), number(0xDEADBEEF), number(-1), number(TIME)),
)
RICH_ENTRY = array(*RICH_FIELDS)
PLAIN = NewBatch("ingest/old.batch")
RICH = NewBatch(
    f"data/{BATCH}.batch",
    (Metadata(0, TIME, b"svc=web"), Metadata(300, -1, b"")),
    Facts(70_000, 2**33, 500, 0xDEADBEEF, -1, TIME),
)

# Later releases add the version of the schema that the rows are in; nil for a batch of bytes.
PLAIN_NOW = array(text("ingest/old.batch"), array(), NIL, NIL)
RICH_NOW = array(*RICH_FIELDS, NIL)
TYPED_ENTRY = array(
    text(f"data/{BATCH}.parquet"),
    array(array(number(0), number(TIME), binary(b""))),
    array(number(70_000), number(2**33), number(500), number(0xDEADBEEF), number(TIME), number(TIME)),
    number(1),
)
TYPED = NewBatch(
    f"data/{BATCH}.parquet", (Metadata(0, TIME, b""),), Facts(70_000, 2**33, 500, 0xDEADBEEF, TIME, TIME), 1
)
SCHEMAS = ("0" * 31 + "a", "f" * 32)

# name, level, first sequence, count, first record, object bytes, lowest name, first and last time; and, in later
# releases, highest name
OLD_SEGMENT_REF_FIELDS = (
    text(SEGMENT), number(0), number(40), number(2), NIL, number(70_000), text(BATCH), number(-1), number(TIME)
)  # fmt: skip
OLD_SEGMENT_REF = Ref(SEGMENT, 0, 40, 2, None, 70_000, BATCH, -1, TIME)
SEGMENT_REF = Ref(SEGMENT, 0, 40, 2, None, 70_000, BATCH, -1, TIME, SEGMENT)
OLD_INDEX_REF_FIELDS = (
    text(INDEX), number(1), number(40), number(2), NIL, number(70_000), text(BATCH), number(-1), number(TIME)
)  # fmt: skip
OLD_INDEX_REF = Ref(INDEX, 1, 40, 2, None, 70_000, BATCH, -1, TIME)
INDEX_REF = Ref(INDEX, 1, 40, 2, None, 70_000, BATCH, -1, TIME, INDEX)

HEAD = array(
    text("head"),
    text(BUFFER),
    number(1000),  # revision
    array(),  # required features
    number(41),  # first sequence
    number(43),  # next sequence
    number(123_456),  # next record
    text(FLOOR),
    array(number(7), text("claim"), number(40)),  # owner: epoch, claim id, acked
    mapping((text("etl"), array(text("generation"), number(41)))),  # groups: generation, start
    mapping(  # holds: first sequence, floor, expiry, purpose
        (text("reads"), array(number(41), NIL, number(TIME), text("job"))),
        (text("writes"), array(NIL, text(FLOOR), number(TIME), text(""))),
    ),
    mapping((text("writer"), array(number(5), number(999)))),  # writers: number, revision
    number(3),  # dropped
    array(array(*OLD_INDEX_REF_FIELDS)),
    array(RICH_ENTRY),
)
SEALED_FIELDS = (
    text("head"),
    text(BUFFER),
    number(1000),
    array(text("reference-floor"), text("sealed-writers")),
    number(41), number(43), number(123_456), text(FLOOR), NIL, mapping(), mapping(),
    mapping((text("=pod"), array(number(5), number(999), b"\xc3"))),  # writers: number, revision, sealed
    number(0),
    array(array(*OLD_INDEX_REF_FIELDS, text(INDEX))),
)  # fmt: skip
SEALED_END = (
    text(SEGMENT),  # reference floor
    text(BATCH),  # swept
    mapping((number(39), array(text(INDEX), number(1)))),  # writer buckets: name, count
)  # fmt: skip
SEALED_HEAD = array(*SEALED_FIELDS, array(RICH_ENTRY), *SEALED_END)
BYTES_HEAD = array(*SEALED_FIELDS, array(RICH_NOW), *SEALED_END, array())  # and the ids of schemas
TYPED_HEAD = array(
    text("head"), text(BUFFER), number(1000), array(text("typed-batches")),
    number(41), number(42), number(123_456), text(FLOOR), NIL, mapping(), mapping(), mapping(), number(0),
    array(), array(TYPED_ENTRY), text(FLOOR), text(FLOOR), mapping(),
    array(*(text(schema) for schema in SCHEMAS)),
)  # fmt: skip
WRITER_NODE = array(text("writers"), text(BUFFER), number(39), mapping((text("=pod"), number(2**40))))
COUNTED_HEAD = array(
    text("head"),
    text(BUFFER),
    number(1000),
    array(text("counted-holds")),
    number(41),
    number(41),
    number(123_456),
    text(FLOOR),
    NIL,
    mapping(),
    mapping(  # holds: first sequence, floor, expiry (of older releases), purpose, time to live, renewals, stamp
        (text("reads"), array(number(41), NIL, number(0), text("job"), number(300_000), number(7), number(TIME))),
        (text("writes"), array(NIL, text(FLOOR), number(0), text(""), number(1), number(0), NIL)),
        (text("old"), array(number(41), NIL, number(TIME), text(""), number(0), number(0), NIL)),
    ),
    mapping(),
    number(0),
    array(),
    array(),
    *(text("0" * 26), text("0" * 26), mapping()),  # reference floor, swept, writer buckets
)
EMPTY_HEAD = array(
    text("head"), text(BUFFER), number(0), array(), number(0), number(0), number(0), text("0" * 26), NIL,
    mapping(), mapping(), mapping(), number(0), array(), array(),
)  # fmt: skip
# tag, buffer id, level, first sequence, first record, entries, references
SEGMENT_NODE = array(text("node"), text(BUFFER), number(0), number(40), NIL, array(PLAIN_ENTRY, RICH_ENTRY), array())
NEW_SEGMENT_NODE = array(text("node"), text(BUFFER), number(0), number(40), NIL, array(PLAIN_NOW, RICH_NOW), array())
TYPED_SEGMENT_NODE = array(text("node"), text(BUFFER), number(0), number(41), number(7), array(TYPED_ENTRY), array())
INDEX_NODE = array(
    text("node"), text(BUFFER), number(1), number(40), NIL, array(), array(array(*OLD_SEGMENT_REF_FIELDS))
)
NEW_INDEX_NODE = array(
    text("node"), text(BUFFER), number(1), number(40), NIL, array(),
    array(array(*OLD_SEGMENT_REF_FIELDS, text(SEGMENT))),
)  # fmt: skip
# tag, buffer id, epoch, claim id, acked, number; and, in later releases, where planned ranges end
CURSOR = array(text("cursor"), text(BUFFER), number(4), text("claim"), number(300), number(17))
NEW_CURSOR = array(text("cursor"), text(BUFFER), number(1), text(""), NIL, number(2))
PLANNED_CURSOR = array(
    text("cursor"), text(BUFFER), number(4), text("claim"), number(300), number(17), array(number(302), number(400))
)
# and, in later releases, the process that made the claim, here and in the owner of a head
PROCESS = mapping((text("host"), text("web-1")), (text("pid"), number(4711)), (text("since_ms"), number(TIME)))
OWNED_CURSOR = array(
    text("cursor"), text(BUFFER), number(4), text("claim"), number(300), number(17), array(number(302)), PROCESS
)
UNNAMED_CURSOR = array(
    text("cursor"), text(BUFFER), number(5), text("claim"), number(300), number(18), array(), NIL
)  # fmt: skip
OWNED_HEAD = array(
    text("head"),
    text(BUFFER),
    number(1000),  # revision
    array(),  # required features
    number(41),  # first sequence
    number(41),  # next sequence
    number(123_456),  # next record
    text(FLOOR),
    array(number(7), text("claim"), number(40), PROCESS),
    mapping(),  # groups
    mapping(),  # holds
    mapping(),  # writers
    number(0),  # dropped
    array(),  # references
    array(),  # tail
    text("0" * 26),  # reference floor
    text("0" * 26),  # swept
    mapping(),  # writer buckets
)

GOLDEN: dict[str, tuple[bytes, Any]] = {
    "head-v2-empty": (stored(EMPTY_HEAD), Head(BUFFER)),
    "head-v2-full": (
        stored(HEAD),
        Head(
            BUFFER,
            revision=1000,
            first_sequence=41,
            next_sequence=43,
            next_record=123_456,
            gc_floor=FLOOR,
            owner=Owner(7, "claim", 40),
            groups={"etl": Group("generation", 41)},
            holds={"reads": Hold(41, None, TIME, "job"), "writes": Hold(None, FLOOR, TIME, "")},
            writers={"writer": Writer(5, 999)},
            dropped=3,
            refs=(OLD_INDEX_REF,),
            tail=(RICH,),
        ),
    ),
    "head-v2-sealed": (
        stored(SEALED_HEAD),
        Head(
            BUFFER,
            revision=1000,
            required_features=("reference-floor", "sealed-writers"),
            first_sequence=41,
            next_sequence=43,
            next_record=123_456,
            gc_floor=FLOOR,
            writers={"=pod": Writer(5, 999, True)},
            refs=(INDEX_REF,),
            tail=(RICH,),
            reference_floor=SEGMENT,
            swept=BATCH,
            writer_buckets={39: Bucket(INDEX, 1)},
        ),
    ),
    "head-v2-bytes": (
        stored(BYTES_HEAD),
        Head(
            BUFFER,
            revision=1000,
            required_features=("reference-floor", "sealed-writers"),
            first_sequence=41,
            next_sequence=43,
            next_record=123_456,
            gc_floor=FLOOR,
            writers={"=pod": Writer(5, 999, True)},
            refs=(INDEX_REF,),
            tail=(RICH,),
            reference_floor=SEGMENT,
            swept=BATCH,
            writer_buckets={39: Bucket(INDEX, 1)},
        ),
    ),
    "head-v2-typed": (
        stored(TYPED_HEAD),
        Head(
            BUFFER,
            revision=1000,
            required_features=("typed-batches",),
            first_sequence=41,
            next_sequence=42,
            next_record=123_456,
            gc_floor=FLOOR,
            tail=(TYPED,),
            reference_floor=FLOOR,
            swept=FLOOR,
            schemas=SCHEMAS,
        ),
    ),
    "writers-v2": (stored(WRITER_NODE), WriterNode(BUFFER, 39, {"=pod": 2**40})),
    "head-v2-counted": (
        stored(COUNTED_HEAD),
        Head(
            BUFFER,
            revision=1000,
            required_features=("counted-holds",),
            first_sequence=41,
            next_sequence=41,
            next_record=123_456,
            gc_floor=FLOOR,
            holds={
                "reads": Hold(41, None, 0, "job", 300_000, 7, TIME),
                "writes": Hold(None, FLOOR, 0, "", 1),
                "old": Hold(41, None, TIME, ""),
            },
        ),
    ),
    "segment-v2": (stored(SEGMENT_NODE), Node(BUFFER, 0, 40, None, (PLAIN, RICH), ())),
    "segment-v2-bytes": (stored(NEW_SEGMENT_NODE), Node(BUFFER, 0, 40, None, (PLAIN, RICH), ())),
    "segment-v2-typed": (stored(TYPED_SEGMENT_NODE), Node(BUFFER, 0, 41, 7, (TYPED,), ())),
    "index-v2": (stored(INDEX_NODE), Node(BUFFER, 1, 40, None, (), (OLD_SEGMENT_REF,))),
    "index-v2-highest": (stored(NEW_INDEX_NODE), Node(BUFFER, 1, 40, None, (), (SEGMENT_REF,))),
    "cursor-v2": (stored(CURSOR), Cursor(BUFFER, 4, "claim", 300, 17)),
    "cursor-v2-new": (stored(NEW_CURSOR), Cursor(BUFFER, 1, "", None, 2)),
    "cursor-v2-planned": (stored(PLANNED_CURSOR), Cursor(BUFFER, 4, "claim", 300, 17, (302, 400))),
    "cursor-v2-owned": (
        stored(OWNED_CURSOR),
        Cursor(BUFFER, 4, "claim", 300, 17, (302,), Process("web-1", 4711, TIME)),
    ),
    "cursor-v2-unknown-owner": (stored(UNNAMED_CURSOR), Cursor(BUFFER, 5, "claim", 300, 18)),
    "head-v2-owned": (
        stored(OWNED_HEAD),
        Head(
            BUFFER,
            revision=1000,
            first_sequence=41,
            next_sequence=41,
            next_record=123_456,
            gc_floor=FLOOR,
            owner=Owner(7, "claim", 40, Process("web-1", 4711, TIME)),
        ),
    ),
}
OLD = {
    *("cursor-v2", "cursor-v2-new", "cursor-v2-planned", "index-v2", "segment-v2"),
    *("head-v2-counted", "head-v2-empty", "head-v2-full", "head-v2-sealed", "head-v2-owned"),
}
"""What earlier releases wrote, and no release does any more."""


def read(name: str) -> Any:
    data = (HERE / name).read_bytes()
    if name.startswith("head"):
        return read_head(data, name)
    if name.startswith("writers"):
        return read_writer_node(data, name)
    return unpack(data, Cursor, name) if name.startswith("cursor") else read_node(data, name)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_file_is_what_the_layout_says(name: str) -> None:
    assert (HERE / name).read_bytes() == GOLDEN[name][0]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_object_reads_as_it_always_did(name: str) -> None:
    assert read(name) == GOLDEN[name][1]


@pytest.mark.parametrize("name", sorted(GOLDEN.keys() - OLD))
def test_golden_object_is_written_as_it_always_was(name: str) -> None:
    assert pack(GOLDEN[name][1]) == (HERE / name).read_bytes()


def test_references_say_of_golden_nodes_what_they_always_did() -> None:
    assert read("segment-v2").refer(SEGMENT) == SEGMENT_REF
    assert read("index-v2").refer(INDEX) == OLD_INDEX_REF
    assert read("index-v2-highest").refer(INDEX) == INDEX_REF


@pytest.mark.parametrize(("node", "ref"), [("segment-v2", OLD_SEGMENT_REF), ("index-v2-highest", OLD_INDEX_REF)])
def test_reference_of_an_earlier_release_stands_for_its_node(node: str, ref: Ref) -> None:
    assert read(node).is_behind(ref)
