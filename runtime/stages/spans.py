"""Spans of portions: from the first fetch to the commit (rfcs/0004)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, use_span

from forebay.buffer.base.tracing import end_with_error, span_attributes, trace_links

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, Tracer

    from forebay.runtime.stages.active_source import ActiveSource
    from forebay.runtime.stages.portions import Portion

_log = logging.getLogger("forebay.runtime")


def start_span(tracer: Tracer, source: ActiveSource, portion: Portion) -> None:
    """Start the span of a portion, as the root of a new trace, with links to the calls in its batches."""
    attributes = {
        **span_attributes(source.url, "process", "process"),
        "messaging.batch.message_count": sum(found.facts.records for found in portion.descriptors if found.facts),
        "forebay.sequence.first": portion.identity.first,
        "forebay.sequence.last": portion.identity.last,
    }
    if source.reader.group:
        attributes["messaging.consumer.group.name"] = source.reader.group
    portion.span = tracer.start_span(
        f"process {source.url}",
        Context(),
        SpanKind.CONSUMER,
        attributes,
        trace_links(item.payload for found in portion.descriptors for item in found.metadata),
    )


def use(portion: Portion) -> AbstractContextManager[Span]:
    """Make a portion's span the current one, so that spans of decoders and sinks become its children."""
    return use_span(portion.span, record_exception=False, set_status_on_exception=False)


def end(portion: Portion) -> None:
    """End the span of a committed portion. An error of the host's span processor is logged and has no effect."""
    try:
        portion.span.end()
    except Exception:  # noqa: BLE001 - whatever the host's processor raises
        _log.warning("a span processor failed", exc_info=True)


def end_unfinished(source: ActiveSource, failure: BaseException | None) -> None:
    """End, with an error, the spans of the portions that a source will not commit any more."""
    kind = "stopped" if failure is None else type(failure).__name__
    for portion in source.frontier.unfinished:
        end_with_error(portion.span, kind, f"the runtime stopped before this was committed: {failure or 'on request'}")
