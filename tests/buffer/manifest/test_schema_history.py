"""The versions of a typed buffer's schema in its head: what an append may carry, and what is refused."""

from __future__ import annotations

import pytest

from forebay.buffer.base.errors import Corrupt, Unsupported
from forebay.buffer.format.model import BatchSchema, Facts, NewBatch
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.decode import read_head
from forebay.buffer.manifest.head import KEPT_LISTINGS
from forebay.buffer.manifest.schema_history import TYPED_BATCHES
from forebay.buffer.store.memory import MemoryStore

A, B, C, D = (letter * 32 for letter in "abcd")
FACTS = Facts(10, 10, 1, 7, 5, 5)


def rows(name: str, version: int) -> NewBatch:
    return NewBatch(f"data/{name}.parquet", (), FACTS, version)


def typed(*ids: str) -> Head:
    return Head("b" * 32).evolve(ids)


def test_append_in_a_version_that_the_head_has_lists_it() -> None:
    head = typed(A, B).append((rows("one", 0),), "w", 1, schemas=(A,))
    assert head.schemas == (A, B)
    assert head.tail[0].schema == 0


def test_head_takes_the_versions_that_it_lacks_with_the_append() -> None:
    head = typed(A).append((rows("one", 2),), "w", 1, schemas=(A, B, C))
    assert head.schemas == (A, B, C)


def test_first_append_makes_the_buffer_typed_and_keeps_older_releases_away() -> None:
    head = Head("b" * 32).append((rows("one", 0),), "w", 1, schemas=(A,))
    assert head.schemas == (A,)
    assert head.required_features == (TYPED_BATCHES,)


def test_batch_of_bytes_is_refused_in_a_typed_buffer() -> None:
    with pytest.raises(Unsupported, match="holds rows of a schema"):
        typed(A).append((NewBatch("data/x"),), "w", 1)


def test_rows_are_refused_in_a_buffer_that_bytes_were_ever_written_to() -> None:
    head = Head("b" * 32).append((NewBatch("data/x"),), "w", 1)
    drained = head.collect(point=1, dropped=0, expired=(), floor=head.gc_floor, nodes={})
    for each in (head, drained):
        assert each is not None
        with pytest.raises(Unsupported, match="holds entries of bytes"):
            each.append((rows("one", 0),), "w", 2, schemas=(A,))


@pytest.mark.parametrize("carried", [(B,), (A, C), (A, C, B), (C, A, B)])
def test_rows_of_another_history_are_refused(carried: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported, match="other versions of its schema"):
        typed(A, B).append((rows("one", 0),), "w", 1, schemas=carried)


@pytest.mark.parametrize("version", [1, 7])
def test_rows_in_a_version_that_their_writer_does_not_carry_are_refused(version: int) -> None:
    with pytest.raises(Unsupported, match=f"schema version {version}"):
        typed(A, B).append((rows("one", version),), "w", 1, schemas=(A,))


def test_rows_are_refused_if_their_writer_carries_no_schema() -> None:
    with pytest.raises(Unsupported, match="schema version 0"):
        Head("b" * 32).append((rows("one", 0),), "w", 1)


def test_descriptor_names_the_version_written_and_the_newest_one() -> None:
    head = typed(A, B, C).append((rows("one", 1),), "w", 1, schemas=(A, B))
    assert head.tail_descriptors(0, 1)[0].schema == BatchSchema(B, C)


@pytest.mark.parametrize("schema", [2, None])
def test_listing_whose_version_the_head_does_not_have_is_corrupt(schema: int | None) -> None:
    head = Head("b" * 32, next_sequence=1, tail=(NewBatch("data/x", (), FACTS, schema),), schemas=(A, B))
    with pytest.raises(Corrupt, match="sequence 0 names schema version"):
        head.tail_descriptors(0, 1)


@pytest.mark.parametrize("schemas", [("../manifest",), (A, A), ("A" * 32,), (A[:-1],)])
def test_head_with_ids_that_cannot_be_is_corrupt(schemas: tuple[str, ...]) -> None:
    head = Head("b" * 32, required_features=(TYPED_BATCHES,), schemas=schemas)
    with pytest.raises(Corrupt, match="cannot be"):
        read_head(head.to_bytes(), "here")


def test_head_whose_feature_does_not_agree_with_its_schemas_is_corrupt() -> None:
    for head in (Head("b" * 32, schemas=(A,)), Head("b" * 32, required_features=(TYPED_BATCHES,))):
        with pytest.raises(Corrupt, match="schemas and needs"):
            read_head(head.to_bytes(), "here")


def test_sealed_listings_are_shown_in_a_version_that_came_after_they_were_read() -> None:
    store = MemoryStore("memory://sealed-and-evolved")
    writer, reader = Queue(store), Queue(store)
    for number in range(2 * KEPT_LISTINGS + 1):
        writer.append([rows(str(number), 0)], schemas=(A,), version=2)
    assert writer.last_head() is not None
    assert reader.read().refs, "some are in a segment"
    assert reader.descriptors(0, 1)[0].schema == BatchSchema(A, A)
    writer.append([rows("new", 1)], schemas=(A, B), version=2)
    assert reader.descriptors(0, 1)[0].schema == BatchSchema(A, B)


def test_refusal_names_the_manifest() -> None:
    store = MemoryStore("memory://refusal")
    Queue(store).append([NewBatch("data/x")])
    with pytest.raises(Unsupported, match="memory://refusal/manifest: this buffer holds entries of bytes"):
        Queue(store).append([rows("one", 0)], schemas=(A,), version=2)
