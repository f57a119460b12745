"""Sinks: where the runtime's rows can go. Each one's docstring says if it is exactly or at least once (rfcs/0007).

Builds on the contract between the runtime and a sink.
"""

from __future__ import annotations

from forebay.runtime.sinks.buffer import BufferSink
from forebay.runtime.sinks.callable import CallableSink
from forebay.runtime.sinks.delta import DeltaSink
from forebay.runtime.sinks.iceberg import IcebergSink
from forebay.runtime.sinks.parquet import ParquetSink

__all__ = ["BufferSink", "CallableSink", "DeltaSink", "IcebergSink", "ParquetSink"]
