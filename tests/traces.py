"""Spans that a test can look at, for as long as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from patience import wait_for

if TYPE_CHECKING:
    import pytest
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Tracer


class Traces:
    """A tracer provider in the place of the process's own, which can be set only once, and what it has exported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: self.provider)
        self.tracer: Tracer = self.provider.get_tracer("test")

    def ended(self, start: str) -> list[ReadableSpan]:
        """The spans that have ended and whose names start so."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(start)]

    def wait_for(self, start: str, count: int = 1) -> list[ReadableSpan]:
        """The same, once there are as many: a handle may be done shortly before its span has ended."""
        wait_for(lambda: len(self.ended(start)) >= count)
        found = self.ended(start)
        assert len(found) == count
        return found
