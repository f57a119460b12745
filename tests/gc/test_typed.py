"""The collector and typed buffers: batches go as all others do, schemas stay."""

from __future__ import annotations

import pyarrow as pa

from forebay.buffer.consumer import Consumer
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector
from forebay.testing import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64())])


def test_collector_sweeps_typed_batches_that_were_read_and_never_a_schema() -> None:
    clock = ManualClock(now_ms=1_700_000_000_000)
    store = MemoryStore("memory://typed-gc", clock=clock)
    with Producer(store, schema=SCHEMA, clock=clock, flush_interval=10_000) as producer:
        producer.produce({"id": 1})
    schemas = [found.key for found in store.list("schemas/")]
    with Consumer(store, clock=clock) as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)
    clock.advance(10_000)
    report = Collector(store, grace=600, clock=clock).collect_once()
    assert report.deleted == 1
    assert not list(store.list("data/"))
    clock.advance(1_000_000)
    Collector(store, grace=600, clock=clock).collect_once()
    assert [found.key for found in store.list("schemas/")] == schemas
    with Producer(store, clock=clock, flush_interval=10_000) as producer:
        producer.produce({"id": 2})
    assert [row for batch in Consumer(store, clock=clock) for row in batch.entries] == [{"id": 2}]


def test_collector_sweeps_a_typed_batch_that_was_never_listed() -> None:
    clock = ManualClock(now_ms=1_700_000_000_000)
    store = MemoryStore("memory://typed-gc-unlisted", clock=clock)
    with Producer(store, schema=SCHEMA, clock=clock, flush_interval=10_000) as producer:
        producer.produce({"id": 1})
    store.put("data/01HF7YAT00000000000000000B.parquet", b"lost")
    with Consumer(store, clock=clock):
        pass
    clock.advance(10_000)
    Collector(store, grace=600, clock=clock).collect_once()
    left = [found.key for found in store.list("data/")]
    assert len(left) == 1
    assert "01HF7YAT00000000000000000B" not in left[0]
