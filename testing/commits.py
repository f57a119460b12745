"""Makes batches and commits by hand, to test a decoder or a sink without a buffer or a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.format.model import BatchDescriptor, Metadata
from forebay.buffer.read.fetch import Batch
from forebay.runtime.contract import Commit, CommitIdentity
from forebay.runtime.decoders import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.runtime.contract import Decoder


def make_batch(
    entries: Sequence[bytes], sequence: int = 0, *, metadata: bytes = b"", time_ms: int = 1_700_000_000_000
) -> Batch:
    """Return a batch of these entries, all with the ingestion time `time_ms`."""
    data = encode_batch(entries)
    described = BatchDescriptor(sequence, f"data/{sequence:026}.batch", (Metadata(0, time_ms, metadata),))
    return Batch(described, decode_batch(data), len(data))


def make_commit(
    *batches: Batch, decoder: Decoder = raw, group: str = "tests", source: str = "5" * 32, replay: bool = False
) -> Commit:
    """Return the commit that a runtime would give to a sink for these batches, whose sequences must be contiguous."""
    generation = "9" * 32 if group else ""
    identity = CommitIdentity(source, group, generation, batches[0].sequence, batches[-1].sequence)
    table = pa.concat_tables([decoder(batch) for batch in batches])
    return Commit(identity, "memory://tests", batches, table, replay=replay)
