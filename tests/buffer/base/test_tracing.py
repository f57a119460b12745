"""The context of a trace in the metadata of calls: rfcs/0004, "Traces"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from traces import Traces

from forebay.buffer import add_trace_context, split_trace_context, trace_links
from forebay.buffer.base.tracing import configured_tracer


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    return Traces(monkeypatch)


def test_program_without_a_tracer_has_none() -> None:
    assert configured_tracer() is None


def test_sdk_that_is_disabled_counts_as_no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    Traces(monkeypatch)
    assert configured_tracer() is None


def test_context_of_the_current_span_stands_before_the_metadata_and_comes_off_again(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request") as span:
        metadata = add_trace_context(b"svc=web")
    own = span.get_span_context()
    flags = own.trace_flags
    assert metadata == b"traceparent=00-%032x-%016x-%02x;svc=web" % (own.trace_id, own.span_id, flags)
    context, rest = split_trace_context(metadata)
    assert rest == b"svc=web"
    assert context is not None
    assert (context.trace_id, context.span_id) == (own.trace_id, own.span_id)


def test_metadata_is_unchanged_outside_of_a_span() -> None:
    assert add_trace_context(b"svc=web") == b"svc=web"
    assert add_trace_context() == b""


def test_metadata_is_unchanged_in_a_span_that_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    with Traces(monkeypatch, ALWAYS_OFF).tracer.start_as_current_span("request"):
        assert add_trace_context(b"svc=web") == b"svc=web"


@given(st.binary() | st.binary().map(lambda data: b"traceparent=" + data))
def test_metadata_of_users_is_returned_as_it_is(metadata: bytes) -> None:
    assert split_trace_context(metadata) == (None, metadata)


@pytest.mark.parametrize(
    "header", ["00-" + "0" * 32 + "-" + "a" * 16 + "-01", "ff-" + "a" * 32 + "-" + "a" * 16 + "-01"]
)
def test_context_that_is_none_is_the_users_own_metadata(header: str, traces: Traces) -> None:
    metadata = f"traceparent={header};".encode()
    with traces.tracer.start_as_current_span("reader"):  # which must not pass for the context
        assert split_trace_context(metadata) == (None, metadata)


def test_each_context_is_linked_once_and_metadata_without_one_not_at_all(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("one") as one:
        first = add_trace_context()
    with traces.tracer.start_as_current_span("two") as two:
        second = add_trace_context(b"svc=web")
    links = trace_links([first, b"", b"svc=web", second, first])
    assert [link.context.span_id for link in links] == [span.get_span_context().span_id for span in (one, two)]
    assert all(link.context.is_remote for link in links)


def test_no_more_contexts_are_linked_than_a_span_keeps(traces: Traces) -> None:
    metadata = []
    for number in range(200):
        with traces.tracer.start_as_current_span(str(number)):
            metadata.append(add_trace_context())
    assert len(trace_links(metadata)) == 128
    assert trace.get_current_span() is trace.INVALID_SPAN
