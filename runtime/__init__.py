"""The parallel consumer runtime: reads sources with many workers and commits to one sink (rfcs/0007).

Builds on `forebay.buffer`. The catalog and the Spark data source lie in folders of their own beside it.
"""

from __future__ import annotations

from forebay.runtime.config import RuntimeConfig
from forebay.runtime.contract import (
    Answer,
    Combining,
    Commit,
    CommitIdentity,
    Committed,
    Decoder,
    Fatal,
    MaybeCommitted,
    NotCommitted,
    Sink,
)
from forebay.runtime.dead_letter import DeadLetter, Halted
from forebay.runtime.runtime import Runtime
from forebay.runtime.sinks import BufferSink, CallableSink, DeltaSink, ParquetSink
from forebay.runtime.source import Source
from forebay.runtime.status import RuntimeStatus, SourceStatus, StageStatus

__all__ = [
    "Answer",
    "BufferSink",
    "CallableSink",
    "Combining",
    "Commit",
    "CommitIdentity",
    "Committed",
    "DeadLetter",
    "Decoder",
    "DeltaSink",
    "Fatal",
    "Halted",
    "MaybeCommitted",
    "NotCommitted",
    "ParquetSink",
    "Runtime",
    "RuntimeConfig",
    "RuntimeStatus",
    "Sink",
    "Source",
    "SourceStatus",
    "StageStatus",
]
