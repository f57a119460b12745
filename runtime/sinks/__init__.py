"""Where the runtime's rows can go, each exactly or at least once as its docstring says (rfcs/0007)."""

from __future__ import annotations

from forebay.runtime.sinks.buffer import BufferSink
from forebay.runtime.sinks.callable import CallableSink
from forebay.runtime.sinks.delta import DeltaSink
from forebay.runtime.sinks.parquet import ParquetSink

__all__ = ["BufferSink", "CallableSink", "DeltaSink", "ParquetSink"]
