"""The versions of a schema, and changing it without writing rows, in buffers and topics."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import InvalidInput, NotFound, Unsupported
from forebay.buffer.either.schemas import evolve_schema, schema_versions
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, create_topic

FIRST = pa.schema([pa.field("id", pa.int64(), nullable=False)])
WIDER = pa.schema([pa.field("page", pa.string())])


@pytest.fixture(params=["buffer", "topic"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}/typed")
    if request.param == "topic":
        create_topic(store, 2, schema=FIRST)
    else:
        Producer(store, schema=FIRST).close()
    return store


def test_every_version_is_listed_with_its_changes(store: MemoryStore) -> None:
    evolve_schema(store, pa.schema([*FIRST, *WIDER]))
    first, second = schema_versions(store)
    assert first.schema.equals(FIRST)
    assert first.changes == ()
    assert second.schema.names == ["id", "page"]
    assert [str(change) for change in second.changes] == ["column page: added, string"]


def test_dry_run_says_what_would_change_and_changes_nothing(store: MemoryStore) -> None:
    changes = evolve_schema(store, pa.schema([*FIRST, *WIDER]), dry_run=True)
    assert [change.path for change in changes] == ["page"]
    assert len(schema_versions(store)) == 1


def test_repeating_changes_nothing(store: MemoryStore) -> None:
    wanted = pa.schema([*FIRST, *WIDER])
    evolve_schema(store, wanted)
    assert evolve_schema(store, wanted) == []
    assert len(schema_versions(store)) == 2


def test_change_that_is_not_allowed_is_refused(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="int64 to string"):
        evolve_schema(store, pa.schema([pa.field("id", pa.string(), nullable=False)]))


def test_bytes_have_no_versions_and_cannot_evolve() -> None:
    store = MemoryStore("memory://bytes-do-not-evolve")
    with Producer(store) as producer:
        producer.produce(b"x")
    assert schema_versions(store) == []
    with pytest.raises(Unsupported, match="no schema"):
        evolve_schema(store, FIRST)


def test_wrong_url_is_not_found() -> None:
    with pytest.raises(NotFound):
        schema_versions(MemoryStore("memory://nothing-is-here"))


@pytest.mark.parametrize("dry_run", [True, False])
def test_partition_of_a_topic_refuses_to_evolve_on_its_own(dry_run: bool) -> None:
    store = MemoryStore(f"memory://partition-does-not-evolve-{dry_run}")
    create_topic(store, 1, schema=FIRST)
    with pytest.raises(Unsupported, match="gets its schema from the topic"):
        evolve_schema(Topic(store).partition(0), pa.schema([*FIRST, *WIDER]), dry_run=dry_run)
