"""Making topics, adding partitions, and what stands at a topic's URL: rfcs/0005, "Topics"."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kinds import Kind, ValueTopicProducer, values_of

from forebay.buffer import buffers_at
from forebay.buffer.base.errors import Corrupt, InvalidInput, NotFound, NotReady, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.topic import TopicRecord
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store
from forebay.buffer.store.base import NotApplied, ObjectStore
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import (
    Topic,
    TopicConsumer,
    TopicGroups,
    TopicProducer,
    add_partitions,
    create_topic,
    partition_for,
)
from forebay.testing import ManualClock


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}/topic")


def keys_of(store: ObjectStore) -> list[str]:
    return [found.key for found in store.list()]


# Making


def test_topic_is_a_folder_of_buffers_and_a_record(store: MemoryStore) -> None:
    topic = create_topic(store, 3)
    assert topic.partitions == 3
    assert topic.partition_urls() == [f"{store.url}/p-0000{number}" for number in range(3)]
    assert keys_of(store) == ["manifest", "p-00000/manifest", "p-00001/manifest", "p-00002/manifest"]
    ids = {Queue(topic.partition(number)).read().buffer_id for number in range(3)}
    assert len(ids) == 3, "each partition is a buffer of its own"


def test_creating_it_again_with_as_many_partitions_changes_nothing(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 3, schema=kind.schema)
    before = store.get("manifest")
    assert create_topic(store, 3, schema=kind.schema).partitions == 3
    assert store.get("manifest") == before


@pytest.mark.parametrize("partitions", [2, 4])
def test_creating_it_again_with_another_number_is_refused(store: MemoryStore, partitions: int) -> None:
    create_topic(store, 3)
    with pytest.raises(InvalidInput, match=r"topic of 3 partitions already.*add_partitions"):
        create_topic(store, partitions)
    assert Topic(store).partitions == 3


@pytest.mark.parametrize("partitions", [0, -1, 100_001])
def test_topic_has_a_sensible_number_of_partitions(store: MemoryStore, partitions: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1 and at most 100000"):
        create_topic(store, partitions)
    assert keys_of(store) == []


@pytest.mark.parametrize("profile", ["native", "opendata"])
def test_buffer_is_not_made_into_a_topic(store: MemoryStore, profile: str) -> None:
    with Producer(store, profile=profile, manifest_path="manifest") as producer:  # type: ignore[arg-type]  # parametrized
        producer.produce(b"x")
    before = store.get("manifest")
    with pytest.raises(InvalidInput, match="is a buffer, not a topic"):
        create_topic(store, 2)
    for opened in (Topic, TopicProducer, TopicConsumer):
        with pytest.raises(InvalidInput, match="is a buffer, not a topic"):
            opened(store)
    assert store.get("manifest") == before


def test_topic_is_not_made_into_a_buffer(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    before = keys_of(store)
    for profile in ("native", "opendata"):
        with pytest.raises(InvalidInput, match=r"is a topic of 2 partitions.*TopicProducer.*/p-00000"):
            Producer(store, profile=profile, manifest_path="manifest")  # type: ignore[arg-type]  # in a loop
        with pytest.raises(InvalidInput, match=r"TopicConsumer"):
            Consumer(store, profile=profile)  # type: ignore[arg-type]  # in a loop
    with pytest.raises(InvalidInput, match=r"TopicConsumer"):
        Consumer(store, group="etl")
    with pytest.raises(InvalidInput, match="is a topic"):
        Groups(store).list()
    assert keys_of(store) == before


def test_producer_that_opened_before_the_topic_was_made_cannot_put_a_manifest_beside_it(store: MemoryStore) -> None:
    producer = Producer(store, flush_interval=1000)
    create_topic(store, 2)
    handle = producer.produce(b"x")
    with pytest.raises(InvalidInput, match="is a topic"):
        producer.close()
    with pytest.raises(InvalidInput, match="is a topic"):
        handle.result()
    assert Topic(store).partitions == 2


def test_partitions_without_their_record_are_corrupt_not_empty(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    store.delete(["manifest"])
    with pytest.raises(Corrupt, match=r"manifest is missing, but p-00000/manifest is there"):
        create_topic(store, 2, schema=kind.schema)
    with pytest.raises(Corrupt, match=r"manifest is missing, but p-00000/manifest is there"):
        Producer(store)


def test_missing_topic_is_not_found_and_says_what_to_do(store: MemoryStore) -> None:
    for opened in (Topic, TopicProducer, TopicConsumer):
        with pytest.raises(NotFound, match=r"no topic at memory://.*create_topic"):
            opened(store)
    with pytest.raises(NotFound, match="create_topic"):
        add_partitions(store, 3)
    assert keys_of(store) == []


def test_topic_whose_creation_was_left_is_not_ready(store: MemoryStore) -> None:
    store.create("manifest", TopicRecord("t" * 32).to_bytes())
    with pytest.raises(NotReady, match="create it again"):
        TopicProducer(store)
    assert create_topic(store, 2).record.topic_id == "t" * 32


def test_record_that_needs_a_later_release_is_unsupported(store: MemoryStore) -> None:
    store.create("manifest", TopicRecord("t" * 32, required_features=("moons",), partitions=1).to_bytes())
    with pytest.raises(Unsupported, match=r"needs moons.*upgrade"):
        Topic(store)


def test_damaged_record_is_corrupt(store: MemoryStore, kind: Kind) -> None:
    clock = ManualClock()
    create_topic(store, 2, schema=kind.schema)
    whole = bytes(store.get("manifest").data)
    for position in range(len(whole)):
        store.put("manifest", whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with pytest.raises(Corrupt, match="manifest"):
            Topic(store, clock=clock)
        with pytest.raises(Corrupt, match="manifest"):
            create_topic(store, 2, schema=kind.schema, clock=clock)
    store.put("manifest", TopicRecord("t", partitions=-1).to_bytes())
    with pytest.raises(Corrupt, match="-1 partitions"):
        Topic(store)


def test_record_is_read_as_it_always_was(store: MemoryStore) -> None:
    """Kept from the first release: old topics stay readable."""
    kept = bytes.fromhex(
        "96a5746f706963d9203031323334353637383961626364656630313233343536373839616263646566"
        "07900482a365746ca86561726c69657374a36e6577b9323032362d30312d33315431323a30303a30302b30303a3030"
        "8dbc5e730200"
    )
    groups = {"etl": "earliest", "new": "2026-01-31T12:00:00+00:00"}
    record = TopicRecord("0123456789abcdef" * 2, 7, (), 4, groups)
    store.put("manifest", kept)
    assert Topic(store).record == record


def test_record_with_schemas_is_written_and_read_as_it_always_was(store: MemoryStore) -> None:
    kept = bytes.fromhex(
        "97a5746f706963d92030313233343536373839616263646566303132333435363738396162636465660791ad"
        "74797065642d62617463686573048092d9203030303030303030303030303030303030303030303030303030"
        "303030303061d9206666666666666666666666666666666666666666666666666666666666666666"
        "f0d9d3720200"
    )
    record = TopicRecord("0123456789abcdef" * 2, 7, ("typed-batches",), 4, {}, ("0" * 31 + "a", "f" * 32))
    assert record.to_bytes() == kept
    store.put("manifest", kept)
    assert Topic(store).record == record


# Adding partitions


def test_added_partitions_have_every_group_at_their_start(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    for group, start in (("all", "earliest"), ("new", "latest"), ("past", datetime(2020, 1, 1, tzinfo=UTC))):
        TopicConsumer(store, group=group, from_=start).close()
    add_partitions(store, 4)
    for number in (2, 3):
        head = Queue(Topic(store).partition(number)).read()
        assert isinstance(head, Head)
        assert {name: group.start for name, group in head.groups.items()} == {"all": 0, "new": 0, "past": 0}
    assert Topic(store).record.groups == {"all": "earliest", "new": "latest", "past": "2020-01-01T00:00:00+00:00"}


def test_adding_partitions_says_how_many_keys_move(
    store: MemoryStore, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(store, 4, schema=kind.schema)
    with caplog.at_level(logging.WARNING, logger="forebay.topic"):
        growth = add_partitions(store, 5)
    assert (growth.before, growth.after) == (4, 5)
    assert growth.moved_share == pytest.approx(0.2)
    assert "20 % of the keys have moved" in caplog.text


def test_adding_as_many_as_there_are_changes_nothing(
    store: MemoryStore, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(store, 4, schema=kind.schema)
    before = store.get("manifest")
    growth = add_partitions(store, 4)
    assert (growth.before, growth.after, growth.moved_share) == (4, 4, 0)
    assert store.get("manifest") == before
    assert "moved" not in caplog.text


def test_partitions_are_never_removed(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 4, schema=kind.schema)
    with pytest.raises(InvalidInput, match=r"has 4 partitions, .* at least that, not 3"):
        add_partitions(store, 3)
    assert Topic(store).partitions == 4


# Groups


def test_group_of_a_topic_is_listed_with_its_place_in_each_partition(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    with ValueTopicProducer(store) as producer:
        for number in range(8):
            producer.produce(b"x", key=bytes([number]))
            producer.flush().result()
    consumer = TopicConsumer(store, group="etl")
    partition, batch = next(iter(consumer))
    consumer.ack_through(partition, batch.sequence)
    (state,) = TopicGroups(store).list()
    assert (state.name, state.start, state.alive, state.waiting) == ("etl", "earliest", True, 7)
    found = state.partitions[partition]
    assert found is not None
    assert found.acked == 0
    consumer.close()
    assert not TopicGroups(store).describe("etl").alive


def test_reset_group_reads_every_partition_again(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    with ValueTopicProducer(store) as producer:
        for number in range(8):
            producer.produce(bytes([number]), key=bytes([number]))
    with TopicConsumer(store, group="etl") as consumer:
        for partition, batch in consumer:
            consumer.ack_through(partition, batch.sequence)
        with pytest.raises(InvalidInput, match="a consumer owns group etl"):
            TopicGroups(store).reset("etl", "earliest")
    with pytest.raises(InvalidInput, match="sequence 0 is another batch in each partition"):
        TopicGroups(store).reset("etl", 0)  # type: ignore[arg-type]  # what a caller might try
    assert TopicGroups(store).reset("etl", "earliest").waiting == 2
    with TopicConsumer(store, group="etl") as consumer:
        assert sorted(value for _, batch in consumer for value in values_of(batch)) == [bytes([n]) for n in range(8)]


def test_deleted_group_is_gone_everywhere_and_comes_into_no_new_partition(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    TopicConsumer(store, group="etl").close()
    groups = TopicGroups(store)
    groups.delete("etl")
    groups.delete("etl")
    with pytest.raises(NotFound, match="no group 'etl'; it has no groups"):
        groups.describe("etl")
    add_partitions(store, 3)
    for buffer in buffers_at(store):
        assert Groups(buffer).list() == []


def test_group_is_deleted_in_partitions_that_are_not_counted_yet(store: MemoryStore, kind: Kind) -> None:
    topic = create_topic(store, 2, schema=kind.schema)
    TopicConsumer(store, group="etl").close()
    # Somebody prepared a third partition and died.
    Consumer(topic.partition(2), group="etl").close()
    TopicGroups(store).delete("etl")
    assert Groups(topic.partition(2)).list() == []


def test_group_that_is_being_read_is_not_deleted_without_force(store: MemoryStore, kind: Kind) -> None:
    create_topic(store, 2, schema=kind.schema)
    with TopicConsumer(store, group="etl"):
        with pytest.raises(InvalidInput, match="a consumer owns group etl"):
            TopicGroups(store).delete("etl")
        assert Topic(store).record.groups == {"etl": "earliest"}


# Keys


def test_keys_go_where_they_went_in_every_release() -> None:
    """Written down: another hash would send keys elsewhere, and their order would be lost."""
    keys = [b"", b"a", b"b", b"customer-17", "Zürich".encode(), bytes(range(256))]
    assert [partition_for(key, 1) for key in keys] == [0] * 6
    assert [partition_for(key, 8) for key in keys] == [6, 3, 2, 6, 2, 5]
    assert [partition_for(key, 1000) for key in keys] == [987, 333, 107, 728, 8, 530]


def test_keys_are_spread_evenly() -> None:
    counts = Counter(partition_for(str(number).encode(), 10) for number in range(20_000))
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 1.15 * min(counts.values())


def test_keys_move_to_new_partitions_alone_and_no_more_than_needed() -> None:
    keys = [str(number).encode() for number in range(5_000)]
    moved = [(partition_for(key, 8), partition_for(key, 12)) for key in keys]
    assert all(after == before or after in range(8, 12) for before, after in moved)
    share = sum(before != after for before, after in moved) / len(moved)
    assert share == pytest.approx(1 - 8 / 12, abs=0.03)


# The store of a partition


def test_folder_of_a_store_is_the_store_at_the_folders_url(tmp_path: Path) -> None:
    for url in (f"memory://{tmp_path.name}", f"file://{tmp_path}"):
        folder = FolderStore(open_store(url), "p-00000")
        direct = open_store(f"{url}/p-00000")
        assert folder.url == direct.url
        version = folder.put("data/a", b"1")
        assert direct.get("data/a").data == b"1"
        assert folder.get_if_changed("data/a", version) is None
        assert isinstance(direct.create("data/a", b"2"), NotApplied)
        assert isinstance(folder.create("data/a", b"2"), NotApplied)
        direct.replace("data/a", b"2", version)
        assert isinstance(folder.replace("data/a", b"3", version), NotApplied)
        folder.create("data/b", b"4")
        assert [found.key for found in folder.list("data/")] == ["data/a", "data/b"]
        assert [found.key for found in folder.list("data/", start_after="data/a")] == ["data/b"]
        assert bytes(pickle.loads(pickle.dumps(folder)).get("data/b").data) == b"4"
        assert folder.delete(["data/a", "data/b"]) == {}
        assert list(direct.list()) == []
        for wrong in ("", "../manifest", "/a"):
            with pytest.raises(InvalidInput):
                folder.get(wrong)
