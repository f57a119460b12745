"""Buffers to look at: batches that are listed with their facts, and have no objects, which nobody here fetches."""

from __future__ import annotations

from forebay.buffer.clock import Clock, system_random
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.model import Facts, Metadata, NewBatch
from forebay.buffer.names import mint
from forebay.buffer.store import ObjectStore


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
