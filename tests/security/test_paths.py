"""Anyone who can write a manifest chooses its names: none of them leads a reader or the collector out of the buffer.

Mutation notes: `check_key` in `describe` (version 2), in `_decode_entry` (version 1) and in the stores, `is_ulid` in
`Segments._load`, `_check_names` in `read_head`: each removed fails a test here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from every_reader import EVERY_READER, verify_all

from forebay.buffer.base.errors import Corrupt, InvalidInput, NotFound
from forebay.buffer.base.names import LOWEST
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.model import BatchDescriptor, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.inspect.migrate import migrate
from forebay.buffer.manifest import Head
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head_fields import Group, Owner
from forebay.buffer.manifest.nodes import Node, Ref
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import ObjectStore, open_store
from forebay.gc import Collector
from forebay.testing import ManualClock
from forebay.testing.servers import MotoServer, SeaweedServer

BUFFER_ID = "b" * 32
ULID = "01JD0000000000000000000000"
SECRET = b"somebody else's"

ESCAPES = [
    "../victim.batch",
    "data/../../victim.batch",
    "/victim.batch",
    "//other/victim.batch",
    "s3://other/victim.batch",
    "file:///victim.batch",
    "..\\victim.batch",
    "data\\..\\..\\victim.batch",
    "data/./../../victim.batch",
    "data//../victim.batch",
    "data/victim.batch\0.batch",
    "data/victim\n.batch",
    "data/..",
    "..",
    ".",
    "",
    f"../data/{ULID}.batch",
]
"""Locations that are no key of any buffer."""


class Scene:
    """A buffer, and beside it an object that belongs to somebody else."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}/buffer"
        self.store = open_store(self.url)
        self.victims = [folder / "victim.batch", folder / "other" / "victim.batch", folder / "data" / f"{ULID}.batch"]
        for victim in self.victims:
            victim.parent.mkdir(exist_ok=True)
            victim.write_bytes(encode_batch([SECRET]))

    def check_untouched(self) -> None:
        for victim in self.victims:
            assert victim.read_bytes() == encode_batch([SECRET])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.check_untouched()


def manifest_v1(location: str) -> bytes:
    name = location.encode()
    entry = struct.pack("<QH", 0, len(name)) + name + struct.pack("<I", 0)
    return struct.pack("<I", len(entry)) + entry + struct.pack("<IQQH", 1, 1, 1, 1)


def head(**fields: Any) -> bytes:
    return Head(BUFFER_ID, **fields).to_bytes()


def write_v1(store: ObjectStore, location: str) -> None:
    store.put("manifest", manifest_v1(location))


def write_head(store: ObjectStore, location: str) -> None:
    store.put("manifest", head(next_sequence=1, tail=(NewBatch(location),)))


def write_segment(store: ObjectStore, location: str) -> None:
    node = Node(BUFFER_ID, 0, 0, 0, (NewBatch(location),), ())
    store.put(f"segments/{ULID}.segment", pack(node))
    store.put("manifest", head(next_sequence=1, refs=(node.refer(ULID),)))


FORMATS = pytest.mark.parametrize("write", [write_v1, write_head, write_segment])


@FORMATS
def test_no_such_location_is_handed_out(scene: Scene, write: Callable[[ObjectStore, str], None]) -> None:
    for location in ESCAPES:
        write(scene.store, location)
        with pytest.raises(Corrupt):
            Consumer(scene.store).next_descriptors(10)


@FORMATS
@EVERY_READER
def test_no_reader_follows_a_location_out_of_the_buffer(
    scene: Scene, write: Callable[[ObjectStore, str], None], read: Callable[[ObjectStore], object]
) -> None:
    for location in ESCAPES:
        write(scene.store, location)
        with pytest.raises(Corrupt) as caught:
            read(scene.store)
        assert SECRET.decode() not in str(caught.value)


@pytest.mark.parametrize("location", ESCAPES)
def test_no_fetch_follows_a_descriptor_out_of_the_buffer(scene: Scene, location: str) -> None:
    """Descriptors travel to workers and Spark tasks: the store refuses what a manifest would not have listed."""
    with pytest.raises(InvalidInput):
        FetchHandle(scene.store).fetch(BatchDescriptor(0, location))
    with pytest.raises(InvalidInput):
        scene.store.delete([location])


@pytest.mark.parametrize("location", ESCAPES)
def test_migration_takes_no_such_location_along(scene: Scene, location: str) -> None:
    write_v1(scene.store, location)
    with pytest.raises(Corrupt):
        migrate(scene.url, others_stopped=True)
    assert scene.store.get("manifest").data == manifest_v1(location)


@pytest.mark.parametrize("location", ESCAPES)
def test_collector_deletes_nothing_outside_the_buffer(scene: Scene, location: str) -> None:
    """It deletes what a listing of its own folders shows, never what a manifest names, even if everyone has read it."""
    swept = f"data/{ULID}.batch"
    scene.store.put(swept, b"")
    read_by_all = Owner(1, "c" * 32, 0)
    scene.store.put("manifest", head(next_sequence=1, tail=(NewBatch(location),), owner=read_by_all))
    report = Collector(scene.store, grace=0).collect_once()
    assert (report.trimmed, report.deleted) == (1, 1)
    assert swept not in [found.key for found in scene.store.list()]


@pytest.mark.parametrize("location", ESCAPES)
def test_collector_of_version_1_deletes_nothing_where_a_location_is_none(scene: Scene, location: str) -> None:
    scene.store.put(f"data/{ULID}.batch", b"")
    write_v1(scene.store, location)
    with pytest.raises(Corrupt):
        Collector(scene.store, grace=0).collect_once()
    assert scene.store.get(f"data/{ULID}.batch").data == b""


@pytest.mark.parametrize("name", ["../../victim", "..", "/victim", f"x/../../../data/{ULID}", "a\\b", "a\0b", "a/b"])
@pytest.mark.parametrize("field", ["buffer_id", "group", "generation"])
def test_no_other_name_of_a_head_leads_astray(scene: Scene, name: str, field: str) -> None:
    """A cursor's key is made of a group's, and a Parquet file's name of the buffer's id and the group's."""
    location = f"data/{ULID}.batch"
    scene.store.put(location, encode_batch([b"ours"]))
    made = Head(
        name if field == "buffer_id" else BUFFER_ID,
        next_sequence=1,
        groups={name if field == "group" else "etl": Group(name if field == "generation" else "9" * 32, 0)},
        tail=(NewBatch(location),),
    )
    scene.store.put("manifest", made.to_bytes())
    clock = ManualClock()  # what is corrupt is read again after a pause
    for use in (
        lambda: Consumer(scene.store, group="etl", clock=clock),
        lambda: verify_all(scene.store, clock),
        Groups(scene.store, clock=clock).list,
        Collector(scene.store, grace=0, clock=clock).collect_once,
    ):
        with pytest.raises(Corrupt):
            use()


@pytest.mark.parametrize("name", ["../../victim", f"../data/{ULID}", "/victim", "a/b", ""])
@EVERY_READER
def test_no_segment_is_looked_for_outside_the_buffer(
    scene: Scene, name: str, read: Callable[[ObjectStore], object]
) -> None:
    ref = Ref(name, 0, 0, 1, 0, 0, LOWEST, None, None)
    scene.store.put("manifest", head(next_sequence=1, refs=(ref,)))
    with pytest.raises(Corrupt, match="not a segment's name"):
        read(scene.store)


ENCODED = [
    "%2e%2e/%2e%2e/other/victim.batch",
    "..%2f..%2fother%2fvictim.batch",
    "data/%2e%2e/%2e%2e/%2e%2e/other/victim.batch",
    "%252e%252e/%252e%252e/other/victim.batch",
    "..;/..;/other/victim.batch",
]
"""Keys like any other, unless somebody on the way decodes them once too often."""


@pytest.mark.parametrize("location", ENCODED)
@pytest.mark.parametrize("client", ["s3fs", "obstore"])
@pytest.mark.parametrize("server", ["weed", "moto"])
def test_encoded_escapes_are_plain_names_on_s3(
    server: str, client: str, location: str, request: pytest.FixtureRequest
) -> None:
    running: SeaweedServer | MotoServer = request.getfixturevalue(server)
    options = {**running.storage_options, "client": client}
    open_store("s3://tests/other", options).put("victim.batch", encode_batch([SECRET]))
    open_store("s3://tests", options).put("other/victim.batch", encode_batch([SECRET]))
    buffer = open_store(f"s3://tests/security/{client}/buffer", options)
    with pytest.raises(NotFound):
        FetchHandle(buffer).fetch(BatchDescriptor(0, location))
    buffer.put(location, encode_batch([b"ours"]))
    assert FetchHandle(buffer).fetch(BatchDescriptor(0, location)).entries == [b"ours"]
    assert open_store("s3://tests/other", options).get("victim.batch").data == encode_batch([SECRET])
    assert [found.key for found in buffer.list()] == [location]
    assert buffer.delete([location]) == {}


@pytest.mark.parametrize("location", ENCODED)
def test_encoded_escapes_are_plain_names_on_files(scene: Scene, location: str) -> None:
    with pytest.raises(NotFound):
        FetchHandle(scene.store).fetch(BatchDescriptor(0, location))
