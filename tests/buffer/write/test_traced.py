"""Spans of calls, from `produce` until they are durable: rfcs/0004, "Traces"."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from traces import Traces

from forebay.buffer.base.errors import Backpressure, Denied, InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import Data
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.buffer.write.settings import ProducerLimits
from forebay.testing import FaultyStore, ManualClock


class ReadOnly(FaultyStore):
    """Takes no batch."""

    def put(self, key: str, data: Data) -> str:
        if key.startswith("data/"):
            raise Denied(f"{key} may not be written")
        return super().put(key, data)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    return Traces(monkeypatch)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}/x")


def test_call_has_a_span_in_the_callers_trace_with_the_attributes_of_messaging(
    store: MemoryStore, traces: Traces
) -> None:
    with Producer(store) as producer, traces.tracer.start_as_current_span("request") as request:
        producer.produce([b"a", b"b"]).result()
    [span] = traces.wait_for("produce")
    assert span.name == f"produce {store.url}"
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert dict(span.attributes or {}) == {
        "messaging.system": "forebay",
        "messaging.destination.name": store.url,
        "messaging.operation.name": "produce",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 2,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "forebay"


def test_span_ends_when_the_call_is_durable_and_not_before(store: MemoryStore, traces: Traces) -> None:
    clock = ManualClock()
    with Producer(store, clock=clock) as producer:
        handle = producer.produce(b"a")
        assert not traces.ended("produce")
        producer.flush().result()
        handle.result()
    traces.wait_for("produce")


def test_call_that_cannot_be_stored_ends_its_span_with_the_error(store: MemoryStore, traces: Traces) -> None:
    with Producer(ReadOnly(store)) as producer, pytest.raises(Denied):
        producer.produce(b"a").result()
    [span] = traces.wait_for("produce")
    assert span.status.status_code is StatusCode.ERROR
    assert "may not be written" in (span.status.description or "")
    assert (span.attributes or {})["error.type"] == "Denied"


def test_row_that_does_not_fit_ends_its_own_span_with_the_error(store: MemoryStore, traces: Traces) -> None:
    with Producer(store, schema=pa.schema([("n", pa.int64())])) as producer:
        good, bad = producer.produce({"n": 1}), producer.produce({"n": "one"})
        good.result()
        with pytest.raises(InvalidInput):
            bad.result()
    errors = {(span.attributes or {}).get("error.type") for span in traces.wait_for("produce", 2)}
    assert errors == {None, "InvalidInput"}


def test_call_that_finds_no_room_ends_its_span_with_the_error(store: MemoryStore, traces: Traces) -> None:
    with Producer(store, limits=ProducerLimits(buffered_bytes=1), clock=ManualClock()) as producer:
        producer.produce(b"a")
        with pytest.raises(Backpressure):
            producer.try_produce(b"b")
        [span] = traces.ended("produce")
        assert (span.attributes or {})["error.type"] == "Backpressure"


def test_coroutines_have_spans_of_their_own_traces(store: MemoryStore, traces: Traces) -> None:
    async def call(producer: Producer, name: str) -> None:
        with traces.tracer.start_as_current_span(name):
            await (await producer.produce_async(b"a"))

    async def main() -> None:
        async with Producer(store) as producer:
            await asyncio.gather(call(producer, "one"), call(producer, "two"))

    asyncio.run(main())
    parents = {span.parent.span_id for span in traces.wait_for("produce", 2) if span.parent is not None}
    requests = [*traces.ended("one"), *traces.ended("two")]
    assert parents == {span.context.span_id for span in requests if span.context is not None}
    assert len(parents) == 2


def test_calls_of_a_topic_have_spans_that_name_the_partition(store: MemoryStore, traces: Traces) -> None:
    create_topic(store, 2)
    with TopicProducer(store) as producer:
        producer.produce(b"a", key=b"k").result()
    [span] = traces.wait_for("produce")
    assert str((span.attributes or {})["messaging.destination.name"]).startswith(f"{store.url}/")


def test_metadata_is_stored_as_it_was_given(store: MemoryStore, traces: Traces) -> None:
    with Producer(store) as producer, traces.tracer.start_as_current_span("request"):
        producer.produce(b"a", b"svc=web").result()
    with Consumer(store) as consumer:
        batch = consumer.next_batch()
    assert batch is not None
    assert [item.payload for item in batch.metadata] == [b"svc=web"]


def test_memory_of_spans_counts_until_calls_are_durable(store: MemoryStore, traces: Traces) -> None:
    with Producer(store, clock=ManualClock()) as producer:
        producer.produce(b"a")
        assert producer.buffered_bytes > 3000


def test_span_that_is_not_sampled_takes_no_memory(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    Traces(monkeypatch, ALWAYS_OFF)
    with Producer(store, clock=ManualClock()) as producer:
        producer.produce(b"a")
        assert producer.buffered_bytes < 1000


def test_spans_reach_the_sdk_that_a_program_has_set() -> None:
    """In a process of its own: a provider can be set once."""
    program = textwrap.dedent("""
        import threading

        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        import forebay
        with forebay.Producer("memory://before") as producer:
            producer.produce(b"a").result()
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        ended = threading.Event()
        with forebay.Producer("memory://after") as producer:
            producer.produce(b"a").add_done_callback(lambda handle: ended.set())
        ended.wait()
        print([span.name for span in exporter.get_finished_spans()])
    """)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == "['produce memory://after']\n"
