"""What a topic's reader is given: batches and lags, each with its partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from forebay.buffer.manifest.topic import partition_name
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.store.retry import RETRY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.consumer import Lag
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.read.typed import Columns
    from forebay.buffer.store import ObjectStore


class PartitionDescriptor(NamedTuple):
    """A batch of a topic, not fetched yet. Pickles; may be sent anywhere."""

    partition: int
    descriptor: BatchDescriptor
    """Its sequence counts in its partition alone."""


class PartitionBatch(NamedTuple):
    """A batch of a topic."""

    partition: int
    batch: Batch
    """Its sequence counts in its partition alone."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far a consumer is behind in the partitions that it reads."""

    partitions: Mapping[int, Lag]

    @property
    def batches(self) -> int:
        """Batches appended and not acknowledged here, in all partitions together."""
        return sum(lag.batches for lag in self.partitions.values())

    @property
    def seconds(self) -> float:
        """The age of the oldest of them."""
        return max((lag.seconds for lag in self.partitions.values()), default=0.0)


class TopicFetchHandle:
    """Fetches batches of a topic by descriptor. Stateless: pickle it, fork it, share it between threads."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        columns: Columns | None = None,
        retry_timeout: float = RETRY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Make a handle; see `FetchHandle` for the arguments."""
        self._store = store
        self._columns = columns
        self._retry_timeout = retry_timeout
        self._clock = clock
        self._handles: dict[int, FetchHandle] = {}  # each keeps the schemas that it has read

    def fetch(self, found: PartitionDescriptor) -> PartitionBatch:
        """Return the batch, decoded."""
        return PartitionBatch(found.partition, self.of_partition(found.partition).fetch(found.descriptor))

    def fetch_raw(self, found: PartitionDescriptor) -> bytes | memoryview:
        """Return the batch object's bytes, to be decoded elsewhere by `decode_batch`."""
        return self.of_partition(found.partition).fetch_raw(found.descriptor)

    def of_partition(self, partition: int) -> FetchHandle:
        """Return what fetches the batches of one partition."""
        handle = self._handles.get(partition)
        if handle is None:
            store = FolderStore(self._store, partition_name(partition))
            handle = FetchHandle(store, columns=self._columns, retry_timeout=self._retry_timeout, clock=self._clock)
            self._handles[partition] = handle
        return handle
