"""What a driver reads: one moment of a buffer or topic, by its manifests alone."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from read_job import fill, new_store, trim

from forebay import InvalidInput, NotFound, Trimmed
from forebay.buffer.either.schemas import evolve_schema
from forebay.buffer.store.base import Data, Outcome
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicProducer, create_topic
from forebay.runtime.spark.snapshots import count_entries, take_snapshot

SCHEMA = pa.schema([("user", pa.int64())])


def test_count_comes_from_the_manifest_alone() -> None:
    store = new_store()
    fill(store, *([b"x"] * (number + 1) for number in range(1500)))  # enough that old listings are sealed
    store.delete([found.key for found in store.list("data/")])
    assert count_entries(store, None, None, None) == 1500 * 1501 // 2
    assert count_entries(store, 2, 4, None) == 3 + 4 + 5
    assert count_entries(store, 1499, None, None) == 1500
    assert count_entries(store, 7, 6, None) == 0
    trim(store, 1490)
    assert count_entries(store, None, None, None) == sum(range(1491, 1501))
    with pytest.raises(Trimmed):
        count_entries(store, 1489, None, None)


def test_count_of_a_topic_is_that_of_its_partitions() -> None:
    store = new_store()
    create_topic(store, 3)
    for number, partition in enumerate(Topic(store).stores()):
        fill(partition, [b"x"] * (number + 1))
    assert count_entries(store, None, None, None) == 6
    with pytest.raises(InvalidInput, match="another batch in each partition"):
        count_entries(store, 0, None, None)


def test_count_of_nothing_is_an_error() -> None:
    with pytest.raises(NotFound):
        count_entries(new_store(), None, None, None)


class _Interrupted(MemoryStore):
    """Does something just before the first write of a partition's manifest."""

    before: Callable[[], None] | None = None

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        before, self.before = self.before, None if "/manifest" in key else self.before
        if before is not None and "/manifest" in key:
            before()
        return super().replace(key, data, version)


def test_schema_is_no_older_than_any_batch_that_is_held() -> None:
    """A topic's record evolves first. So a record that is read after the holds knows the schemas of all batches."""
    store = _Interrupted("memory://evolves-meanwhile")
    create_topic(store, 1, schema=SCHEMA)

    def evolve() -> None:
        evolve_schema(store, pa.schema([*SCHEMA, ("page", pa.string())]))
        with TopicProducer(store) as producer:
            producer.produce({"user": 1, "page": "/"}).result()

    store.before = evolve
    snapshot = take_snapshot(store, hold=True)
    assert [batch.facts.records for part in snapshot.parts for batch in part.batches() if batch.facts] == [1]
    assert snapshot.schema is not None
    assert snapshot.schema.names == ["user", "page"]
    for held in snapshot.holds:
        held.close()
