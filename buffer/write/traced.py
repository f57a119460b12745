"""A producer's way in if the host has configured a tracer: a span for each call, until it is durable (rfcs/0004)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from forebay.buffer.base.tracing import end_with_error, span_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Span, Tracer

    from forebay.buffer.coordinator import WriteChannel, WriteHandle

_SPAN_BYTES: Final = 3200
"""About what a span that is recorded takes in memory until its call is durable."""


class TracedChannel:
    """Enters calls as the channel does that it stands before.

    Args:
        channel: where the calls enter.
        tracer: makes the spans.
        url: the buffer.
    """

    def __init__(self, channel: WriteChannel[Any, Any], tracer: Tracer, url: str) -> None:
        self._channel = channel
        self._tracer = tracer
        self._name = f"produce {url}"
        self._attributes = span_attributes(url, "produce", "send")

    def write(self, call: Any, *, timeout: float | None = None, cost: int = 0) -> WriteHandle[Any]:
        """Hand a call in, waiting for room."""
        with self._produce(call) as span:
            return _end_when_durable(span, self._channel.write(call, timeout=timeout, cost=cost + _memory_of(span)))

    def try_write(self, call: Any, *, cost: int = 0) -> WriteHandle[Any]:
        """Hand a call in if there is room now."""
        with self._produce(call) as span:
            return _end_when_durable(span, self._channel.try_write(call, cost=cost + _memory_of(span)))

    async def write_async(
        self,
        call: Any,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 -- the channel's
        cost: int = 0,
    ) -> WriteHandle[Any]:
        """Hand a call in, waiting for room without blocking the event loop."""
        with self._produce(call) as span:
            cost += _memory_of(span)
            return _end_when_durable(span, await self._channel.write_async(call, timeout=timeout, cost=cost))

    @contextmanager
    def _produce(self, call: Any) -> Iterator[Span]:
        """Start the span of a call, and end it if the call is not taken."""
        attributes = {**self._attributes, "messaging.batch.message_count": call.count}
        span = self._tracer.start_span(self._name, kind=SpanKind.PRODUCER, attributes=attributes)
        try:
            yield span
        except BaseException as error:
            end_with_error(span, type(error).__name__, str(error))
            raise


def _memory_of(span: Span) -> int:
    return _SPAN_BYTES if span.is_recording() else 0


def _end_when_durable(span: Span, handle: WriteHandle[Any]) -> WriteHandle[Any]:
    if span.is_recording():  # else nobody will see its end
        handle.add_done_callback(lambda done: _end(span, done))
    return handle


def _end(span: Span, handle: WriteHandle[Any]) -> None:
    standing = handle.standing(handle.final_level)
    if isinstance(standing, BaseException):
        end_with_error(span, type(standing).__name__, str(standing))
    else:
        span.end()
