"""Buffers to look at: batches that are listed with their facts, and have no objects, which nobody here fetches."""

from __future__ import annotations

from forebay.buffer.base.clock import Clock, system_random
from forebay.buffer.base.errors import Unavailable
from forebay.buffer.base.names import mint
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import StoredObject
from forebay.buffer.store.folder import FolderStore


def list_batches(store: ObjectStore, count: int, clock: Clock, *, entries: int = 10, apart: float = 0.0) -> None:
    """List batches of `entries` entries each, 100 bytes stored and 400 raw, the newest taken in just now."""
    queue, random, now_ms = Queue(store, clock=clock), system_random(), clock.now_ms()
    batches = []
    for i in range(count):
        time_ms = now_ms - int(1000 * apart * (count - 1 - i))
        facts = Facts(100, 400, entries, 0, time_ms, time_ms)
        batches.append(NewBatch(f"data/{mint(clock, random)}.batch", (Metadata(0, time_ms, b""),), facts))
    queue.append(batches)


def read_batches(store: ObjectStore, count: int, group: str | None) -> None:
    """Acknowledge the next `count` batches, and close."""
    with Consumer(store, group=group) as consumer:
        (*_, last) = consumer.next_descriptors(count)
        consumer.ack_through(last.sequence)


class OnePartitionDown(FolderStore):
    """The topic in the folder `topic` of a store, of which one partition can be made unreadable."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, "topic")
        self.down = False

    def get(self, key: str) -> StoredObject:
        self._check(key)
        return super().get(key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        self._check(key)
        return super().get_if_changed(key, version)

    def _check(self, key: str) -> None:
        if self.down and key.startswith("p-00001/"):
            raise Unavailable(f"{self.url}/{key}: could not connect")
