"""Which schema a producer writes in: made, taken, evolved or refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.schemas import Schemas, schema_key
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.write.formats import open_format
from forebay.buffer.write.rows import RowFormat
from forebay.testing import Fault, FaultyStore, ManualClock

ID = pa.field("id", pa.int64(), nullable=False)
TEXT = pa.field("text", pa.string())
SMALL = pa.field("count", pa.int32())
LARGE = pa.field("count", pa.int64())
FIRST = pa.schema([ID, SMALL])
WIDER = pa.schema([ID, LARGE, TEXT])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def open_rows(store: ObjectStore, schema: pa.Schema | None = None, *, evolve: bool = False) -> RowFormat | None:
    queue = Queue(store, clock=ManualClock())
    return open_format(queue, queue.read(), schema=schema, evolve=evolve)


def history(store: ObjectStore) -> tuple[str, ...]:
    return tuple(Queue(store).read().schemas)


def test_schema_of_the_first_producer_makes_a_typed_buffer(store: MemoryStore) -> None:
    rows = open_rows(store, FIRST)
    assert rows is not None
    assert rows.schema.equals(FIRST)
    assert rows.ids == history(store)
    assert Schemas(store, clock=ManualClock()).load(rows.ids[0]).equals(FIRST)


def test_buffer_without_a_schema_stays_one_of_bytes(store: MemoryStore) -> None:
    assert open_rows(store) is None
    assert list(store.list()) == []


def test_producer_without_a_schema_takes_the_newest_one(store: MemoryStore) -> None:
    open_rows(store, FIRST)
    open_rows(store, WIDER, evolve=True)
    rows = open_rows(store)
    assert rows is not None
    assert rows.stored.equals(WIDER)
    assert rows.version == 1


def test_same_schema_again_changes_nothing(store: MemoryStore) -> None:
    open_rows(store, FIRST)
    before = bytes(store.get("manifest").data)
    open_rows(store, pa.schema([SMALL, ID]))
    open_rows(store, FIRST, evolve=True)
    assert bytes(store.get("manifest").data) == before


def test_wider_schema_is_refused_and_named_without_evolve(store: MemoryStore) -> None:
    open_rows(store, FIRST)
    with pytest.raises(InvalidInput, match=r"column count: widened, int32 to int64; column text: added.*evolve=True"):
        open_rows(store, WIDER)
    assert len(history(store)) == 1


def test_wider_schema_becomes_a_version_with_evolve(store: MemoryStore) -> None:
    first = open_rows(store, FIRST)
    rows = open_rows(store, WIDER, evolve=True)
    assert first is not None
    assert rows is not None
    assert rows.ids == history(store)
    assert rows.ids[:1] == first.ids
    assert rows.stored.equals(WIDER)


@pytest.mark.parametrize("evolve", [False, True])
def test_incompatible_schema_is_refused_with_both_types(store: MemoryStore, evolve: bool) -> None:
    open_rows(store, FIRST)
    with pytest.raises(InvalidInput, match="column count: incompatible, int32 to string"):
        open_rows(store, pa.schema([ID, pa.field("count", pa.string())]), evolve=evolve)
    assert len(history(store)) == 1


def test_producer_may_lack_nullable_columns(store: MemoryStore) -> None:
    open_rows(store, WIDER)
    rows = open_rows(store, pa.schema([ID]))
    assert rows is not None
    assert rows.schema.names == ["id"]
    assert rows.stored.equals(WIDER)


def test_producer_may_not_lack_a_required_column(store: MemoryStore) -> None:
    open_rows(store, WIDER)
    with pytest.raises(InvalidInput, match="column id: incompatible"):
        open_rows(store, pa.schema([TEXT]))


def test_program_with_an_older_schema_goes_on_in_that_version(store: MemoryStore) -> None:
    first = open_rows(store, FIRST)
    open_rows(store, WIDER, evolve=True)
    again = open_rows(store, FIRST)
    assert again == first
    assert len(history(store)) == 2


def test_evolve_needs_a_schema(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="evolve=True needs a schema"):
        open_rows(store, evolve=True)


def test_schema_that_a_buffer_cannot_hold_is_refused_before_anything_is_written(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="column at"):
        open_rows(store, pa.schema([pa.field("at", pa.timestamp("ns"))]))
    assert list(store.list()) == []


def test_schema_is_refused_in_a_buffer_of_bytes(store: MemoryStore) -> None:
    Queue(store).append([NewBatch("data/x")])
    with pytest.raises(Unsupported, match="holds entries of bytes"):
        open_rows(store, FIRST)
    assert not list(store.list("schemas/"))


def test_schema_is_refused_in_a_buffer_of_version_1(store: MemoryStore) -> None:
    store.create("manifest", Manifest.empty("old").append((NewBatch("data/x"),)).to_bytes())
    with pytest.raises(Unsupported, match="version 1"):
        open_rows(store, FIRST)
    assert open_rows(store) is None


def test_schema_is_refused_for_a_buffer_that_is_made_for_opendata(store: MemoryStore) -> None:
    queue = Queue(store, profile="opendata")
    with pytest.raises(Unsupported, match="version 1"):
        open_format(queue, queue.read(), schema=FIRST)


def test_partition_of_a_topic_gets_no_schema_of_its_own(store: MemoryStore) -> None:
    with pytest.raises(Unsupported, match="gets its schema from the topic"):
        open_rows(FolderStore(store, "p-00000"), FIRST)


def test_group_that_was_made_first_does_not_keep_a_buffer_from_becoming_typed(store: MemoryStore) -> None:
    store.create("manifest", Head("b" * 32).with_group("etl", "g" * 32, 0).to_bytes())
    assert open_rows(store, FIRST) is not None
    assert "etl" in Queue(store).read().groups


class Interrupted(FaultyStore):
    """Lets somebody else come between the first schema object and the write of the manifest."""

    def __init__(self, inner: MemoryStore, other: pa.Schema | NewBatch) -> None:
        super().__init__(inner)
        self.inner_store, self.other = inner, other

    def put(self, key: str, data: object) -> str:
        version = super().put(key, data)  # type: ignore[arg-type]
        if key.startswith("schemas/") and self.other is not None:
            other, self.other = self.other, None  # type: ignore[assignment]
            if isinstance(other, NewBatch):
                Queue(self.inner_store).append([other])
            else:
                open_rows(self.inner_store, other, evolve=True)
        return version


def test_two_that_evolve_at_once_have_both_changes(store: MemoryStore) -> None:
    open_rows(store, FIRST)
    more = pa.field("more", pa.bool_())
    rows = open_rows(Interrupted(store, pa.schema([ID, SMALL, more])), WIDER, evolve=True)
    assert rows is not None
    assert len(history(store)) == 3
    assert rows.ids == history(store)
    assert rows.stored.equals(pa.schema([ID, LARGE, more, TEXT]))


def test_bytes_that_come_first_keep_the_buffer_one_of_bytes(store: MemoryStore) -> None:
    with pytest.raises(Unsupported, match="holds entries of bytes"):
        open_rows(Interrupted(store, NewBatch("data/x")), FIRST)
    assert history(store) == ()


def test_two_that_make_a_buffer_with_different_schemas_do_not_both_have_it(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="column count: incompatible"):
        open_rows(Interrupted(store, pa.schema([ID, pa.field("count", pa.string())])), FIRST)
    assert len(history(store)) == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP, Fault.OWN_RETRY, Fault.LATE, Fault.FAIL])
@pytest.mark.parametrize("kind", ["create", "replace"])
def test_write_of_the_history_with_a_fault_is_made_exactly_once(store: MemoryStore, fault: Fault, kind: str) -> None:
    if kind == "replace":
        open_rows(store, FIRST)
    faulty = FaultyStore(store, {0: fault}, only={kind})
    rows = open_rows(faulty, WIDER, evolve=kind == "replace")
    assert rows is not None
    assert rows.ids == history(store)
    assert len(history(store)) == (2 if kind == "replace" else 1)


def test_schema_is_stored_before_the_manifest_names_it(store: MemoryStore) -> None:
    seen: list[str] = []

    class Watching(FaultyStore):
        def put(self, key: str, data: object) -> str:
            seen.append(key)
            return super().put(key, data)  # type: ignore[arg-type]

        def create(self, key: str, data: object) -> object:  # type: ignore[override]
            seen.append(key)
            return super().create(key, data)  # type: ignore[arg-type]

    rows = open_rows(Watching(store), FIRST)
    assert rows is not None
    assert seen == [schema_key(rows.ids[0]), "manifest"]
