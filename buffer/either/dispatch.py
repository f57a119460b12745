"""Finds out whether a URL is a buffer's or a topic's, and calls or returns what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.topic import IsTopic, check_record
from forebay.buffer.store import ObjectStore, StoreUrl, open_store
from forebay.buffer.topic.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

BufferT = TypeVar("BufferT")
TopicT = TypeVar("TopicT")


def buffer_or_topic(buffer: Callable[[], BufferT], topic: Callable[[], TopicT]) -> BufferT | TopicT:
    """Return what `buffer` returns or, if it finds a topic where it expects a buffer, what `topic` returns.

    For an operation that reads the manifest anyway: it makes no request of its own.
    """
    try:
        return buffer()
    except IsTopic:
        pass
    return topic()


def is_topic(store: ObjectStore, manifest_path: str = "manifest", *, must_exist: bool = False) -> bool:
    """Whether a topic is there, by one read of the manifest. Without one, a buffer is expected.

    Raises:
        NotFound: `must_exist` is set, and there is neither.
    """
    queue = Queue(store, manifest_path)
    return buffer_or_topic(queue.read_existing if must_exist else queue.read, lambda: None) is None


def buffers_at(
    url: StoreUrl,
    *,
    manifest_path: str = "manifest",
    must_exist: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[ObjectStore]:
    """Return the buffer at a URL, or every partition of the topic there, for code that works on one buffer at a time.

    Args:
        url: the buffer or topic, or its store if it is open already.
        manifest_path: the buffer's manifest below `url`.
        must_exist: raise `NotFound` if there is neither. Otherwise a buffer is expected there.
        storage_options: credentials, endpoint and client of the store.
    """
    found = open_buffer_or_topic(open_store(url, storage_options), manifest_path, must_exist=must_exist)
    return found.stores() if isinstance(found, Topic) else [found.store]


def open_buffer_or_topic(
    store: ObjectStore, manifest_path: str = "manifest", *, must_exist: bool = False, role: str = "reader"
) -> Queue | Topic:
    """Return the topic at a store, or else the queue of the buffer there. Only its manifest, or the record, is read.

    The queue's `last_seen` is the manifest that was read, so that its next step needs no second read.

    Raises:
        NotFound: `must_exist` is set, and there is neither.
    """
    queue = Queue(store, manifest_path, role=role)
    try:
        queue.read_existing() if must_exist else queue.read()
    except IsTopic as found:
        return Topic(store, record=check_record(found.record, queue.url))
    return queue
