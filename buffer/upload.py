"""Storing a producer's batches: encode and upload in parallel, then list them in the manifest in order (rfcs/0004)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ulid import ULID

from forebay.buffer import metrics
from forebay.buffer.batch import encode_batch
from forebay.buffer.coordinator import DeltaRejected
from forebay.buffer.errors import ForebayError, Unknown
from forebay.buffer.manifest import PlaceConsumed
from forebay.buffer.model import NewBatch
from forebay.buffer.store.base import Applied, NotApplied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.buffer.batch import Compression
    from forebay.buffer.clock import Clock, Random
    from forebay.buffer.coordinator import Stamped
    from forebay.buffer.filling import Filled
    from forebay.buffer.manifest import Queue
    from forebay.buffer.model import Metadata
    from forebay.buffer.store.base import Data, ObjectStore

_log = logging.getLogger("forebay.producer")

_MOST_REPEATS = 5


@dataclass(slots=True)
class Uploaded:
    """A batch object in the store that the manifest does not list yet."""

    location: str
    metadata: tuple[Metadata, ...]
    data: Data
    """Kept until the batch is listed, as it may have to be stored again; then empty, since views keep the receipt."""
    at: float
    """When the upload began, by the monotonic clock."""
    at_ms: int
    """The same by the wall clock, which goes on while a machine sleeps."""


class BatchUploader:
    """The coordinator's flusher of a producer.

    *Written* is the object in the store; *durable* is the manifest that lists it. A batch that cannot be stored or
    listed fails its own calls and no others.

    If the process dies: before the upload, nothing is there; between upload and append, an object that nobody lists,
    which the collector sweeps; after the append, all is done. If an answer is lost: an upload is repeated under its own
    name; an append is looked for in the manifest (`Queue.append`).
    """

    def __init__(
        self,
        store: ObjectStore,
        queue: Queue,
        *,
        data_prefix: str,
        compression: Compression,
        compression_level: int,
        grace: float,
        clock: Clock,
        random: Random,
    ) -> None:
        self._store = store
        self._queue = queue
        self._data_prefix = data_prefix
        self._compression = compression
        self._compression_level = compression_level
        self._grace = grace
        self._clock = clock
        self._random = random
        self._attributes = {"buffer": store.url}

    def flush_delta(self, filled: Filled, _epochs: range) -> Uploaded:
        """Encode and upload one batch."""
        began = self._clock.monotonic()
        try:
            data = encode_batch(filled.take_entries(), self._compression, self._compression_level)
            uploaded = self._upload(data, filled.metadata)
        except ForebayError as error:
            raise DeltaRejected(error) from error
        metrics.flush_duration.record(self._clock.monotonic() - began, self._attributes)
        metrics.batches_flushed.add(1, self._attributes)
        metrics.entries_flushed.add(filled.count, self._attributes)
        metrics.bytes_flushed.add(filled.raw_bytes, self._attributes)
        return uploaded

    def flush_storage(self, written: Sequence[Stamped[Uploaded]]) -> Mapping[range, Exception]:
        """List every batch written so far in one append, in order."""
        if not written:
            return {}
        began = self._clock.monotonic()
        try:
            self._append([stamped.value for stamped in written])
        except ForebayError as error:
            return {stamped.epochs: error for stamped in written}
        finally:
            for stamped in written:
                stamped.value.data = b""
        metrics.commit_duration.record(self._clock.monotonic() - began, self._attributes)
        return {}

    def _append(self, batches: Sequence[Uploaded]) -> None:
        repeats = 0
        while True:
            try:
                self._queue.append([NewBatch(batch.location, batch.metadata) for batch in batches])
                break
            except PlaceConsumed as error:
                if repeats == _MOST_REPEATS:
                    raise
                repeats += 1
                # Whether it was applied can never be found out. Being read twice is the lesser evil; and under a new
                # name, since by the old one a reader could meet an object that was swept.
                _log.warning("%s; %d batches are appended again and may be read twice", error, len(batches))
                metrics.appends_repeated.add(len(batches), self._attributes)
                batches = [self._upload(batch.data, batch.metadata) for batch in batches]
        for batch in batches:
            self._put_back_if_overtaken(batch)

    def _put_back_if_overtaken(self, batch: Uploaded) -> None:
        """Store an object again that the collector may have swept because its listing took so long."""
        age = max(self._clock.monotonic() - batch.at, (self._clock.now_ms() - batch.at_ms) / 1000)
        if age <= self._grace / 2:
            return
        trouble = ""
        for _ in range(_MOST_REPEATS):
            outcome = self._store.create(batch.location, batch.data)
            if isinstance(outcome, Applied):
                _log.warning("%s/%s was swept before it was listed; stored again", self._store.url, batch.location)
                return
            if isinstance(outcome, NotApplied) and outcome.condition_failed:
                return  # it is still there
            trouble = outcome.reason
        raise Unknown(
            f"{self._store.url}/{batch.location} is listed, but was listed {age:.0f} s after its upload and may have "
            f"been swept before; storing it again failed: {trouble}"
        )

    def _upload(self, data: Data, metadata: tuple[Metadata, ...]) -> Uploaded:
        at, at_ms = self._clock.monotonic(), self._clock.now_ms()
        name = ULID.from_bytes(at_ms.to_bytes(6, "big") + self._random.randbytes(10))
        location = f"{self._data_prefix}/{name}.batch"
        self._store.put(location, data)
        metrics.bytes_written.add(len(data), self._attributes)
        return Uploaded(location, metadata, data, at, at_ms)
