"""Spans of commits, from the first fetch to the sink's answer: rfcs/0004, "Traces"."""

from __future__ import annotations

import pytest
from filled import new_buffer, run, running
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from patience import wait_for
from traces import Traces

from forebay.buffer import add_trace_context
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import CallableSink, Commit, Fatal, NotCommitted, Runtime, Source
from forebay.runtime.dead_letter import Halted
from forebay.testing.ledger import LedgerSink


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    return Traces(monkeypatch)


def test_commit_has_a_span_of_its_own_trace_with_the_attributes_of_messaging(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("job"):
        run(new_buffer("spans", 1), LedgerSink())
    [span] = traces.ended("process")
    assert span.name == "process memory://runtime-spans"
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is None
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "forebay",
        "messaging.destination.name": "memory://runtime-spans",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "etl",
        "messaging.batch.message_count": 2,
        "forebay.sequence.first": 0,
        "forebay.sequence.last": 0,
    }


def test_span_links_to_the_span_in_which_the_entries_were_produced(traces: Traces) -> None:
    store = MemoryStore("memory://runtime-linked")
    with Producer(store) as producer, traces.tracer.start_as_current_span("request") as request:
        producer.produce(b"a", add_trace_context(b"svc=web")).result()
    run(store, LedgerSink())
    [span] = traces.ended("process")
    assert [link.context.span_id for link in span.links] == [request.get_span_context().span_id]


def test_spans_of_commits_that_make_room_for_each_other_are_not_nested(traces: Traces) -> None:
    run(new_buffer("roots", 5), LedgerSink(), config={"max_batches": 1})
    assert [span.parent for span in traces.ended("process")] == [None] * 5


def test_sink_runs_in_the_span_of_its_commit(traces: Traces) -> None:
    seen = []

    def commit(given: Commit) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    with CallableSink(commit) as sink:
        run(new_buffer("current", 3), sink)
    assert sorted(seen) == sorted(span.context.span_id for span in traces.ended("process") if span.context)
    assert len(seen) == 3


def test_attempts_that_failed_are_events_of_the_span(traces: Traces) -> None:
    run(new_buffer("retried", 1), LedgerSink((False, NotCommitted("busy"))))
    [span] = traces.ended("process")
    [event] = span.events
    assert (event.name, (event.attributes or {})["reason"]) == ("retry", "the sink: busy")


def test_span_of_a_commit_that_halts_the_runtime_ends_with_the_error(traces: Traces) -> None:
    with pytest.raises(Halted):
        run(new_buffer("halted", 1), LedgerSink((False, Fatal("no such table"))))
    [span] = traces.ended("process")
    assert span.status.status_code is StatusCode.ERROR
    assert "no such table" in (span.status.description or "")
    assert (span.attributes or {})["error.type"] == "Halted"


def test_span_of_what_a_stop_leaves_uncommitted_ends_as_stopped(traces: Traces) -> None:
    sink = LedgerSink(*[(False, NotCommitted("busy"))] * 1000)
    runtime = Runtime([Source(new_buffer("stopped", 1), group="etl")], sink)
    with running(runtime):
        wait_for(lambda: runtime.status().sources and runtime.status().sources[0].batches)
        runtime.stop(drain=0)
        [span] = traces.wait_for("process")
    assert (span.attributes or {})["error.type"] == "stopped"


def test_runtime_without_a_tracer_makes_no_spans() -> None:
    seen = []
    with CallableSink(lambda commit: seen.append(trace.get_current_span())) as sink:
        run(new_buffer("off", 1), sink)
    assert seen == [trace.INVALID_SPAN]


def test_span_processor_that_fails_at_the_end_of_a_commit_does_not_halt_the_runtime(
    traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("the collector is down")

    traces.provider.add_span_processor(Failing())
    run(new_buffer("failing", 3), LedgerSink())
    assert "a span processor failed" in caplog.text
    assert len(traces.ended("process")) == 3
