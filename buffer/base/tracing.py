"""Spans by the OpenTelemetry API, and the context of a trace in the metadata of calls (rfcs/0004).

Nothing here runs unless the host has configured a tracer, or calls one of the public functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.trace import Link, NoOpTracer, NoOpTracerProvider, ProxyTracerProvider, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from forebay.buffer.base.install import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.trace import Span, SpanContext, Tracer

_FIELD: Final = b"traceparent="
_HEADER_BYTES: Final = 55
_CONTEXT_BYTES: Final = len(_FIELD) + _HEADER_BYTES + 1
"""What a context takes before the user's own metadata, with the semicolon after it."""
_MOST_LINKS: Final = 128
"""Maximum number of links of a span, as in the SDK."""


def configured_tracer() -> Tracer | None:
    """Return forebay's tracer; None if this program has configured none by now."""
    if isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider):
        return None
    tracer = trace.get_tracer("forebay", installed_version("forebay"))
    return None if isinstance(tracer, NoOpTracer) else tracer


def span_attributes(url: str, name: str, operation: str) -> dict[str, str | int]:
    """Return what OpenTelemetry's conventions for messaging ask of a span."""
    return {
        "messaging.system": "forebay",
        "messaging.destination.name": url,
        "messaging.operation.name": name,
        "messaging.operation.type": operation,
    }


def end_with_error(span: Span, kind: str, message: str) -> None:
    """End the span of something that failed."""
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, message)
    span.end()


def add_trace_context(metadata: bytes = b"") -> bytes:
    """Return the metadata for a call, with the context of the current span before it as a W3C `traceparent`.

    Readers that link to it are `trace_links` and the runtime's spans. All readers see these 68 bytes before the
    metadata: `split_trace_context` removes them. Without a current span that is sampled, the metadata is returned
    unchanged.
    """
    context = trace.get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return metadata
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return _FIELD + carrier["traceparent"].encode() + b";" + metadata


def split_trace_context(metadata: bytes) -> tuple[SpanContext | None, bytes]:
    """Return the context that `add_trace_context` put before metadata, and the metadata that was given to it.

    The context is None if there is none; then all of the metadata is the user's own.
    """
    if not metadata.startswith(_FIELD) or metadata[_CONTEXT_BYTES - 1 : _CONTEXT_BYTES] != b";":
        return None, metadata
    header = metadata[len(_FIELD) : _CONTEXT_BYTES - 1].decode("ascii", "replace")
    found = TraceContextTextMapPropagator().extract({"traceparent": header})
    context = trace.get_current_span(found).get_span_context()
    return (context, metadata[_CONTEXT_BYTES:]) if context.is_valid else (None, metadata)


def trace_links(metadata: Iterable[bytes]) -> list[Link]:
    """Return links to the contexts in the metadata of calls, for a span that processes their entries.

    Each context is linked once, and at most 128 are. For a batch: `trace_links(item.payload for item in
    batch.metadata)`.
    """
    found: dict[tuple[int, int], Link] = {}
    for payload in metadata:
        context, _ = split_trace_context(payload)
        if context is not None:
            found.setdefault((context.trace_id, context.span_id), Link(context))
            if len(found) == _MOST_LINKS:
                break
    return list(found.values())
