"""Verification: each kind of harm is found, named and graded, and a healthy buffer in use is not accused."""

from __future__ import annotations

import json
import re
import threading
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from kinds import Kind, append_all, kind_in
from msgspec.structs import replace
from patience import PATIENCE

from forebay.buffer.base import names
from forebay.buffer.base.errors import InvalidInput, NotFound, Unavailable
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.groups import Cursor, GroupReader, Groups, cursor_key
from forebay.buffer.inspect.inventory import Inventory
from forebay.buffer.inspect.verify import Severity, verify
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS
from forebay.buffer.producer import Producer
from forebay.buffer.store import ObjectInfo, StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import create_topic
from forebay.cli import main
from forebay.testing import FaultyStore, ManualClock

_clock = ManualClock()
_random = Random(3)


def upload(store: Any) -> NewBatch:
    location, now = f"data/{names.mint(_clock, _random)}.batch", _clock.now_ms()
    return kind_in(store).upload(store, location, [_random.randbytes(50), b"two"], now, now)


def append(store: Any, count: int) -> list[str]:
    batches = [upload(store) for _ in range(count)]
    queue = Queue(store, clock=_clock, random=_random)
    for start in range(0, count, 32):
        append_all(queue, batches[start : start + 32])
    return [batch.location for batch in batches]


def head_of(store: Any) -> Head:
    head = Queue(store).read()
    assert isinstance(head, Head)
    return head


def kinds(report: Any) -> set[tuple[str, str]]:
    return {(found.kind, found.key) for found in report.findings}


@pytest.fixture(params=["deep", "shallow"])
def deep(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "deep")


@pytest.fixture
def native(request: pytest.FixtureRequest, kind: Kind) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name.translate(str.maketrans('[]', '--'))}")
    store.create("manifest", Head(buffer_id="b" * 32).to_bytes())
    kind.begin(store)
    return store


def test_healthy_buffer_is_ok_and_all_of_it_was_looked_at(inner: MemoryStore, profile: str, deep: bool) -> None:
    append(inner, 200)
    report = verify(inner, deep=deep)
    assert report.severity is Severity.OK
    assert report.findings == ()
    assert (report.batches, report.entries) == (200, 400 if deep else 0)
    assert report.version == (1 if profile == "opendata" else 2)


def test_segments_index_nodes_and_cursors_are_walked(native: MemoryStore) -> None:
    append(native, KEPT_LISTINGS * (FANOUT + 3))
    reader = GroupReader(Queue(native), "etl")
    reader.ack(reader.claim(), 5)
    report = verify(native)
    assert report.severity is Severity.OK
    assert report.segments == sum(1 for _ in native.list("segments/"))
    assert report.segments > FANOUT
    assert report.groups == 1


def test_missing_batch_is_damage(inner: MemoryStore, deep: bool) -> None:
    appended = append(inner, 100)
    inner.delete([appended[7]])
    report = verify(inner, deep=deep)
    assert report.severity is Severity.DAMAGE
    assert kinds(report) == {("missing", appended[7])}
    assert "batch 7" in report.findings[0].what
    assert report.batches == 100


@pytest.mark.parametrize("at", [0, 20, -1])
def test_flipped_bit_in_a_batch_is_found_by_a_deep_look(native: MemoryStore, at: int) -> None:
    appended = append(native, 4)
    data = bytearray(native.get(appended[2]).data)
    data[at] ^= 1
    native.put(appended[2], data)
    assert verify(native, deep=False).severity is Severity.OK, "a listing cannot show it"
    report = verify(native)
    assert kinds(report) == {("corrupt", appended[2])}
    assert "CRC32C" in report.findings[0].what


def test_truncated_batch_is_found_even_by_a_listing(native: MemoryStore) -> None:
    appended = append(native, 4)
    native.put(appended[1], bytes(native.get(appended[1]).data)[:-1])
    assert kinds(verify(native, deep=False)) == {("corrupt", appended[1])}


def test_batch_of_version_1_that_does_not_decode_is_found(request: pytest.FixtureRequest) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    store.create("manifest", Manifest.empty("new").to_bytes())
    appended = append(store, 3)
    store.put(appended[0], b"nonsense")
    assert kinds(verify(store)) == {("corrupt", appended[0])}


def test_batch_with_another_number_of_entries_than_listed_is_found(native: MemoryStore) -> None:
    batch = upload(native)
    facts = batch.facts
    assert facts is not None
    wrong = Facts(facts.object_bytes, facts.raw_bytes, 5, facts.crc32c, facts.first_time_ms, facts.last_time_ms)
    append_all(Queue(native), [NewBatch(batch.location, (), wrong)])
    report = verify(native)
    assert kinds(report) == {("corrupt", batch.location)}
    assert re.search("2 (entries|rows)", report.findings[0].what)


def test_objects_that_nothing_lists_are_orphans_and_no_damage(inner: MemoryStore, deep: bool) -> None:
    append(inner, 3)
    orphan = upload(inner).location
    inner.put("data/README", b"somebody's")
    report = verify(inner, deep=deep)
    assert report.severity is Severity.OK
    assert kinds(report) == {("orphaned", orphan)}


def test_orphaned_segments_and_cursors_are_named(native: MemoryStore) -> None:
    append(native, 3)
    segment = f"segments/{names.mint(_clock, _random)}.segment"
    native.put(segment, b"abandoned")
    reader = GroupReader(Queue(native), "old")
    reader.claim()
    cursor = cursor_key("old", head_of(native).groups["old"].generation)
    Groups(native).delete("old", force=True)
    report = verify(native)
    assert kinds(report) == {("orphaned", segment), ("orphaned", cursor)}
    assert report.severity is Severity.OK


def test_many_orphans_are_counted_and_the_first_thousand_named(native: MemoryStore) -> None:
    append(native, 3)
    for _ in range(1_200):
        native.put(f"data/{names.mint(_clock, _random)}.batch", b"x")
    report = verify(native, deep=False)
    assert report.orphaned == 1_200
    assert len(report.findings) == 1_000


@pytest.mark.parametrize("harm", ["missing", "corrupt"])
@pytest.mark.parametrize("level", [0, 1])
def test_harm_to_a_segment_is_found_and_the_rest_still_checked(native: MemoryStore, harm: str, level: int) -> None:
    appended = append(native, KEPT_LISTINGS * (FANOUT + 3))
    ref = next(ref for ref in head_of(native).refs if ref.level == level)
    key = f"segments/{ref.name}.segment"
    data = bytearray(native.get(key).data)
    data[len(data) // 2] ^= 1
    if harm == "missing":
        native.delete([key])
    else:
        native.put(key, data)
    native.delete([appended[-1]])
    report = verify(native, deep=False)
    assert (harm, key) in kinds(report)
    assert ("missing", appended[-1]) in kinds(report)
    assert report.batches == len(appended) - ref.count
    assert report.severity is Severity.DAMAGE


def test_location_listed_twice_is_contradictory(native: MemoryStore) -> None:
    batch = upload(native)
    append_all(Queue(native), [batch])
    append_all(Queue(native), [batch])
    assert ("contradictory", batch.location) in kinds(verify(native))


def test_batch_listed_below_the_floor_is_contradictory(native: MemoryStore) -> None:
    (location,) = append(native, 1)
    head = head_of(native)
    native.put("manifest", replace(head, gc_floor=names.at_time(_clock.now_ms() + 1), revision=99).to_bytes())
    report = verify(native)
    assert kinds(report) == {("contradictory", location)}
    assert "floor" in report.findings[0].what


def test_records_that_are_not_counted_on_are_contradictory(native: MemoryStore) -> None:
    append(native, KEPT_LISTINGS * 3)
    head = head_of(native)
    native.put("manifest", replace(head, next_record=head.next_record + 1, revision=99).to_bytes())
    report = verify(native, deep=False)
    assert report.contradictory == 1
    assert "begins at record" in report.findings[0].what


@pytest.mark.parametrize("harm", ["nonsense", "other buffer", "behind the trim"])
def test_harm_to_a_cursor_is_found(native: MemoryStore, harm: str) -> None:
    append(native, 3)
    reader = GroupReader(Queue(native), "etl")
    reader.ack(reader.claim(), 0)
    head = head_of(native)
    key = cursor_key("etl", head.groups["etl"].generation)
    match harm:
        case "nonsense":
            native.put(key, b"nonsense")
        case "other buffer":
            native.put(key, pack(Cursor("c" * 32, 1, "", 0, 1)))
        case _:
            native.put("manifest", replace(head.trim(2, {}), revision=99).to_bytes())
    report = verify(native, deep=False)
    assert ("corrupt" if harm == "nonsense" else "contradictory", key) in kinds(report)
    assert report.severity is Severity.DAMAGE


@pytest.mark.parametrize("harm", [b"", b"nonsense", b"\x00" * 22])
def test_damaged_manifest_is_damage(native: MemoryStore, harm: bytes) -> None:
    append(native, 2)
    native.put("manifest", harm)
    report = verify(native)
    assert kinds(report) == {("corrupt", "manifest")}
    assert report.version is None


def test_damaged_entry_of_version_1_is_damage(request: pytest.FixtureRequest) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    store.create("manifest", Manifest.empty("new").to_bytes())
    append(store, 3)
    data = bytearray(store.get("manifest").data)
    data[4] ^= 0xFF
    store.put("manifest", data)
    assert ("corrupt", "manifest") in kinds(verify(store))


def test_missing_manifest_beside_its_segments_is_damage_and_beside_nothing_is_not_found(native: MemoryStore) -> None:
    native.delete(["manifest"])
    with pytest.raises(NotFound, match="not there"):
        verify(native)
    native.put("segments/x", b"x")
    assert verify(native).severity is Severity.DAMAGE


def test_store_that_cannot_be_read_is_an_error_and_no_verdict(native: MemoryStore) -> None:
    append(native, 3)

    class Away(FaultyStore):
        def get(self, key: str) -> Any:
            if key.startswith("data/"):
                raise Unavailable("away")
            return super().get(key)

    with pytest.raises(Unavailable):
        verify(Away(native), clock=ManualClock())


# While others are at work


def test_batches_appended_during_the_walk_are_neither_orphaned_nor_missing(native: MemoryStore, deep: bool) -> None:
    append(native, 5)
    in_flight = upload(native)

    class Busy(FaultyStore):
        def get(self, key: str) -> Any:
            if self.calls["get"] == 0:
                append_all(Queue(native), [in_flight])
                append(native, 1)
            return super().get(key)

    report = verify(Busy(native), deep=deep)
    assert report.findings == ()
    assert report.batches == 7


def test_batches_appended_as_the_walk_begins_are_not_taken_for_orphans(native: MemoryStore) -> None:
    """Objects are listed before the manifest is read, never after."""
    append(native, 5)
    in_flight = upload(native)

    class Busy(FaultyStore):
        def list(self, prefix: str = "", *, start_after: str = "") -> Any:
            if self.calls["list"] == 0:
                append_all(Queue(native), [in_flight])
            return super().list(prefix, start_after=start_after)

    assert verify(Busy(native)).severity is Severity.OK


def test_batches_trimmed_and_swept_before_they_were_fetched_are_not_missed(native: MemoryStore) -> None:
    appended = append(native, 10)
    head = head_of(native)

    class Sweeping(FaultyStore):
        def get(self, key: str) -> Any:
            if key == appended[0]:
                native.put("manifest", replace(head.trim(5, {}), revision=99).to_bytes())
                native.delete(appended[:5])
            return super().get(key)

    assert verify(Sweeping(native), max_concurrent_fetches=1).severity is Severity.OK
    native.delete([appended[7]])
    assert kinds(verify(native)) == {("missing", appended[7])}


def test_what_is_trimmed_and_swept_during_the_walk_is_not_missed(native: MemoryStore, deep: bool) -> None:
    count = KEPT_LISTINGS * (FANOUT + 3)
    appended = append(native, count)
    head = head_of(native)
    nodes = {ref.name: Queue(native).segments.load(ref, head.buffer_id) for ref in head.refs if ref.level == 1}

    class Sweeping(FaultyStore):
        def get(self, key: str) -> Any:
            if key.startswith("segments/") and self.calls["swept"] == 0:
                self.calls["swept"] = 1
                collected = head.collect(point=200, dropped=0, expired=(), floor=names.LOWEST, nodes=nodes)
                assert collected is not None
                native.put("manifest", collected.to_bytes())
                native.delete([*appended[:200], *(f"segments/{name}.segment" for name in nodes)])
            return super().get(key)

    report = verify(Sweeping(native), deep=deep)
    assert report.missing == report.corrupt == report.contradictory == 0
    assert report.severity is not Severity.DAMAGE


def test_walk_changes_nothing(native: MemoryStore) -> None:
    append(native, 200)
    store = FaultyStore(native)
    verify(store)
    assert not store.calls.keys() & {"put", "create", "replace", "delete"}


def test_number_of_batches_fetched_at_once_is_limited(native: MemoryStore) -> None:
    append(native, 40)
    lock, now, most = threading.Lock(), 0, 0
    all_there = threading.Event()

    class Counting(FaultyStore):
        def get(self, key: str) -> Any:
            nonlocal now, most
            if not key.startswith("data/"):
                return super().get(key)
            with lock:
                now += 1
                most = max(most, now)
                if most == 3:
                    all_there.set()
            assert all_there.wait(timeout=PATIENCE)
            try:
                return super().get(key)
            finally:
                with lock:
                    now -= 1

    verify(Counting(native), max_concurrent_fetches=3)
    assert most == 3
    with pytest.raises(InvalidInput):
        verify(native, max_concurrent_fetches=0)


def test_inventory_keeps_sizes_and_marks_by_key() -> None:
    inventory = Inventory(ObjectInfo(f"data/{i}", i, 0) for i in range(1_000))
    assert [inventory.size_of(f"data/{i}") for i in (0, 1, 999, 1_000)] == [0, 1, 999, None]
    assert not inventory.mark("data/5")
    assert inventory.mark("data/5")
    assert not inventory.mark("data/none")
    assert inventory.unmarked == 999
    assert not inventory.is_unmarked("data/5")
    assert inventory.is_unmarked("data/6")
    assert Inventory([]).size_of("x") is None


# The command


def test_command_exits_by_severity(native: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    appended = append(native, 3)
    assert main(["verify", native.url]) == 0
    assert "ok: 3 batches" in capsys.readouterr().out
    orphan = upload(native).location
    assert main(["verify", native.url, "--shallow"]) == 0
    assert f"orphaned: {orphan}" in capsys.readouterr().out
    native.delete([appended[0]])
    assert main(["verify", native.url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["severity"], found["missing"], found["orphaned"]) == ("DAMAGE", 1, 1)
    native.put("manifest", b"nonsense")
    assert main(["verify", native.url]) == 1


def test_command_that_cannot_read_exits_with_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "memory://not-there"]) == 2
    assert main(["verify", "nonsense"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["error"] * 2
    assert "check the URL" in err


def test_command_checks_every_partition_of_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore("memory://verify-topic")
    create_topic(store, 3)
    assert main(["verify", store.url]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_schema_of_a_topic_that_is_missing_is_damage(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore("memory://verify-typed-topic")
    create_topic(store, 2, schema=_ROWS)
    assert verify(store).severity is Severity.OK
    (found,) = store.list("schemas/")
    store.delete([found.key])
    report = verify(store)
    assert (report.corrupt, [finding.key for finding in report.findings]) == (1, [found.key])
    assert main(["verify", store.url]) == 1
    assert found.key in capsys.readouterr().out


def test_consumer_reads_what_verify_calls_ok(native: MemoryStore) -> None:
    append(native, 3)
    assert verify(native).severity is Severity.OK
    assert len(list(Consumer(native))) == 3


def test_segment_that_is_missing_is_found_while_writers_change_the_head_all_the_time(native: MemoryStore) -> None:
    append(native, 3 * KEPT_LISTINGS)
    ref = head_of(native).refs[0]
    key = f"segments/{ref.name}.segment"
    native.delete([key])
    looks = 0

    class Busy(FaultyStore):
        def get(self, wanted: str) -> StoredObject:
            nonlocal looks
            if wanted == key:
                looks += 1
                assert looks < 10, "it looks for the same segment again and again"
                append(native, 1)
            return super().get(wanted)

    assert ("missing", key) in kinds(verify(Busy(native), clock=_clock))


# Typed buffers

_ROWS = pa.schema([pa.field("id", pa.int64())])


def test_sound_typed_buffer_has_no_findings(request: pytest.FixtureRequest, deep: bool) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    with Producer(store, schema=_ROWS) as producer:
        producer.produce([{"id": 1}, {"id": 2}])
    report = verify(store, deep=deep)
    assert report.findings == ()
    assert (report.batches, report.entries) == (1, 2 if deep else 0)


def test_schema_that_is_missing_or_damaged_is_damage(request: pytest.FixtureRequest) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    with Producer(store, schema=_ROWS) as producer:
        producer.produce({"id": 1})
    (found,) = store.list("schemas/")
    store.put(found.key, b"{}")
    assert ("corrupt", found.key) in kinds(verify(store, deep=False, clock=ManualClock()))
    store.delete([found.key])
    assert ("corrupt", found.key) in kinds(verify(store, deep=False, clock=ManualClock()))


def test_deep_look_finds_a_typed_batch_that_is_not_what_is_listed(request: pytest.FixtureRequest) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    with Producer(store, schema=_ROWS) as producer:
        producer.produce({"id": 1})
    (found,) = store.list("data/")
    data = bytearray(store.get(found.key).data)
    data[20] ^= 1
    store.put(found.key, data)
    assert kinds(verify(store, deep=True, clock=ManualClock())) == {("corrupt", found.key)}
