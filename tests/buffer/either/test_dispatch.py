"""One URL, a buffer's or a topic's: which one is there, and what it costs to ask."""

from __future__ import annotations

import pytest

from forebay.buffer import buffers_at, create_topic
from forebay.buffer.base.errors import NotFound
from forebay.buffer.either.dispatch import buffer_or_topic, is_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore


@pytest.fixture
def buffer(request: pytest.FixtureRequest) -> FaultyStore:
    store = MemoryStore(f"memory://{request.node.name}-buffer")
    with Producer(store) as producer:
        producer.produce(b"x")
    return FaultyStore(store)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> FaultyStore:
    store = MemoryStore(f"memory://{request.node.name}-topic")
    create_topic(store, 2)
    return FaultyStore(store)


def test_buffers_way_is_taken_in_a_buffer_and_the_topics_in_a_topic(buffer: FaultyStore, topic: FaultyStore) -> None:
    for store, taken in ((buffer, "buffer"), (topic, "topic")):
        queue = Queue(store)
        assert buffer_or_topic(lambda queue=queue: queue.read() and "buffer", lambda: "topic") == taken
        assert store.calls.total() == 1


def test_asking_whether_it_is_a_topic_is_one_request(buffer: FaultyStore, topic: FaultyStore) -> None:
    assert not is_topic(buffer)
    assert is_topic(topic)
    assert (buffer.calls.total(), topic.calls.total()) == (1, 1)


def test_where_nothing_is_a_buffer_is_expected_unless_something_must_exist() -> None:
    nothing = MemoryStore("memory://nothing-is-here")
    assert not is_topic(nothing)
    assert buffers_at(nothing) == [nothing]
    with pytest.raises(NotFound, match="nothing was ever written"):
        is_topic(nothing, must_exist=True)
    with pytest.raises(NotFound, match="nothing was ever written"):
        buffers_at(nothing, must_exist=True)


def test_buffers_at_a_url_are_the_buffer_or_the_partitions(buffer: FaultyStore, topic: FaultyStore) -> None:
    assert buffers_at(buffer) == [buffer]
    assert [found.url for found in buffers_at(topic.url)] == [f"{topic.url}/p-00000", f"{topic.url}/p-00001"]
