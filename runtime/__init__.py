"""The runtime: reads buffers with many workers and commits their rows to one sink (rfcs/0007).

    runtime.py        `Runtime`: starts, stops and watches everything below
    config.py         its settings; source.py: what it reads; contract.py: what it and a sink promise each other
    decoders.py       bytes to rows; bad_entries.py and json_kinds.py find the entries at fault
    stages/           the way of a batch, from the manifest to the ack
    sinks/            where rows can go
    dead_letter.py    entries that cannot be committed; letters.py reads them, letter_replay.py produces them again
    status.py         what it is doing now, shown by progress.py and prometheus.py

Two folders stand beside the runtime and do not use it: spark/ is the Spark data source (rfcs/0008), catalog/ is a view
of segments over an event log (rfcs/0009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.lazy import load_on_demand

if TYPE_CHECKING:
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
    from forebay.runtime.sinks import BufferSink, CallableSink, DeltaSink, IcebergSink, ParquetSink
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
    "IcebergSink",
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

_HOMES = {
    "Answer": "forebay.runtime.contract",
    "BufferSink": "forebay.runtime.sinks",
    "CallableSink": "forebay.runtime.sinks",
    "Combining": "forebay.runtime.contract",
    "Commit": "forebay.runtime.contract",
    "CommitIdentity": "forebay.runtime.contract",
    "Committed": "forebay.runtime.contract",
    "DeadLetter": "forebay.runtime.dead_letter",
    "Decoder": "forebay.runtime.contract",
    "DeltaSink": "forebay.runtime.sinks",
    "Fatal": "forebay.runtime.contract",
    "Halted": "forebay.runtime.dead_letter",
    "IcebergSink": "forebay.runtime.sinks",
    "MaybeCommitted": "forebay.runtime.contract",
    "NotCommitted": "forebay.runtime.contract",
    "ParquetSink": "forebay.runtime.sinks",
    "Runtime": "forebay.runtime.runtime",
    "RuntimeConfig": "forebay.runtime.config",
    "RuntimeStatus": "forebay.runtime.status",
    "Sink": "forebay.runtime.contract",
    "Source": "forebay.runtime.source",
    "SourceStatus": "forebay.runtime.status",
    "StageStatus": "forebay.runtime.status",
}
"""Where each name is. They are loaded when asked for: a process that Spark plans in needs few of them."""

if not TYPE_CHECKING:  # a type checker would take any name for one of them
    __getattr__, __dir__ = load_on_demand(__name__, _HOMES)
