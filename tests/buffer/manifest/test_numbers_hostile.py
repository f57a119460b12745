"""Objects with a right checksum and numbers that no program counts to: `Corrupt` when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.eventlog import Event, open_event_log
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.groups import Cursor, GroupReader, Groups
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.decode import read_head, read_node
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head import Head
from forebay.buffer.manifest.head_fields import Group, Hold, Owner, Writer
from forebay.buffer.manifest.nodes import Node, Ref
from forebay.buffer.manifest.topic import TopicRecord, read_record
from forebay.buffer.store import open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.catalog.model import Segment, decode_change
from forebay.runtime.catalog.snapshot import SNAPSHOT_KEY, CatalogSnapshot, load_snapshot

TOO_LARGE = 2**64 - 1
ID = "b" * 32
ULID = "01HF7YAT008940MQ9F6HNTN52N"


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name.replace('[', '-').replace(']', '')}")


@pytest.fixture
def group(store: MemoryStore) -> str:
    """The key of the cursor of a group that has been read."""
    GroupReader(Queue(store, "manifest"), "etl").claim()
    return next(info.key for info in store.list("cursors/"))


@pytest.mark.parametrize("field", ["epoch", "acked", "number", "planned"])
def test_a_cursor_with_a_number_too_large_is_corrupt(store: MemoryStore, group: str, field: str) -> None:
    found = msgspec.msgpack.decode(bytes(store.get(group).data)[:-6], type=Cursor)
    value: Any = (TOO_LARGE,) if field == "planned" else TOO_LARGE
    store.put(group, pack(msgspec.structs.replace(found, **{field: value})))

    with pytest.raises(Corrupt, match="cursors/etl"):
        Consumer(store, group="etl")
    with pytest.raises(Corrupt, match="cursors/etl"):
        Groups(store).reset("etl", "earliest", force=True)


def test_a_topic_record_with_a_number_too_large_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="here"):
        read_record(pack(TopicRecord(ID, number=TOO_LARGE, partitions=1)), "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": Owner(1, "c", TOO_LARGE)},
        {"groups": {"g": Group(ID, TOO_LARGE)}},
        {"holds": {ID: Hold(TOO_LARGE, None, 1, "")}},
        {"holds": {ID: Hold(None, ULID, TOO_LARGE, "")}},
        {"writers": {ID: Writer(TOO_LARGE, 1)}},
        {"writers": {ID: Writer(1, TOO_LARGE)}},
        {"tail": (NewBatch("data/x", (), Facts(TOO_LARGE, 1, 1, 1, 1, 1)),), "next_sequence": 1},
        {"tail": (NewBatch("data/x", (), Facts(1, 1, TOO_LARGE, 1, 1, 1)),), "next_sequence": 1},
        {"tail": (NewBatch("data/x", (), Facts(1, 1, -1, 1, 1, 1)),), "next_sequence": 1},
        {"tail": (NewBatch("data/x", (), Facts(1, 1, 1, 1, 1, TOO_LARGE)),), "next_sequence": 1},
        {"tail": (NewBatch("data/x", (Metadata(TOO_LARGE, 1, b""),)),), "next_sequence": 1},
        {"refs": (Ref(ULID, 0, 0, 1, TOO_LARGE, 1, ULID, None, None),), "next_sequence": 1},
        {"refs": (Ref(ULID, 0, 0, 1, 0, TOO_LARGE, ULID, None, None),), "next_sequence": 1},
        {"refs": (Ref(ULID, TOO_LARGE, 0, 1, 0, 1, ULID, None, None),), "next_sequence": 1},
        {"refs": (Ref(ULID, 0, 0, 1, 0, 1, ULID, TOO_LARGE, None),), "next_sequence": 1},
    ],
    ids=str,
)
def test_a_head_with_a_number_too_large_is_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="here"):
        read_head(pack(Head(ID, **changes)), "here")


@pytest.mark.parametrize("field", ["first_sequence", "first_record"])
def test_a_segment_with_a_number_too_large_is_corrupt(field: str) -> None:
    node = Node(ID, 0, 0, 0, (NewBatch("data/x"),), ())
    with pytest.raises(Corrupt, match="here"):
        read_node(pack(msgspec.structs.replace(node, **{field: TOO_LARGE})), "here")


def test_a_catalog_snapshot_with_a_number_too_large_is_replayed_over(store: MemoryStore) -> None:
    store.put(SNAPSHOT_KEY, pack(CatalogSnapshot("t", [TOO_LARGE], [])))

    assert load_snapshot(store, "t", 1) is None


def test_a_segment_whose_numbers_no_snapshot_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="epochs must begin"):
        Segment("p", "s", 0, 2**64, {0: 0})
    with pytest.raises(InvalidInput, match="size_bytes"):
        decode_change(
            Event(
                "segment.added",
                {"partition": "p", "segment_id": "s", "start_offset": 0, "end_offset": 1, "epochs": {"0": 0}}
                | {"size_bytes": 2**64},
            )
        )


def test_an_event_cursor_with_a_number_too_large_is_corrupt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with open_event_log(f"objects+{store.url}") as log:
        log.append("t", Event("k"))
        log.ack("t", "me", 0)
    key = next(info.key for info in store.list() if "/consumers/" in info.key)
    cursor = msgspec.json.decode(store.get(key).data)
    store.put(key, msgspec.json.encode({**cursor, "number": TOO_LARGE}))

    with open_event_log(f"objects+{store.url}") as log, pytest.raises(Corrupt, match="cursor"):
        log.cursor("t", "me")


def test_what_does_not_fit_into_an_object_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        pack(TopicRecord(ID, number=2**64))
