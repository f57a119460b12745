"""Integrity: walks a buffer or topic and says what is missing, damaged, contradictory or left over. It changes nothing.

`forebay verify URL` is the same as a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.errors import ForebayError, InvalidInput
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.inspect.findings import Finding, Severity, VerifyReport
from forebay.buffer.inspect.verify_buffer import BufferVerification, damaged_schemas
from forebay.buffer.manifest import Queue
from forebay.buffer.store import ObjectStore, StoreUrl, open_store
from forebay.buffer.store.base import check_key
from forebay.buffer.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from forebay.buffer.base.clock import Clock

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]


def verify(
    url: StoreUrl,
    *,
    deep: bool = True,
    manifest_path: str = "manifest",
    data_prefix: str = "data",
    storage_options: Mapping[str, Any] | None = None,
    max_concurrent_fetches: int = 4,
    clock: Clock | None = None,
) -> VerifyReport:
    """Check everything that a buffer's manifest reaches, and return what is wrong with it; of a topic, every partition.

    Producers, consumers and collectors may go on meanwhile: what is trimmed during the walk is not missed. Batches that
    cannot be reached, because something on the way to them is damaged, count as orphaned. A partition of a topic that
    cannot be read keeps no other from being checked: its report has the error.

    Args:
        url: the buffer or topic, or its store if it is open already.
        deep: fetch every batch, compare its checksum and decode it. Otherwise it is only looked for in a listing,
            where its size is compared.
        manifest_path: the manifest's key below `url`.
        data_prefix: the folder below `url` that batches are stored in; orphans are looked for there.
        storage_options: credentials, endpoint and client of the store.
        max_concurrent_fetches: batches fetched at once, which bounds the memory used.
        clock: for tests.

    Raises:
        StoreError: something could not be read, so nothing can be said of it. `NotFound` if there is no buffer.
    """
    if max_concurrent_fetches < 1:
        raise InvalidInput(f"max_concurrent_fetches must be at least 1, not {max_concurrent_fetches}")
    check_key(data_prefix)
    store = open_store(url, storage_options)

    def verify_buffer(buffer: ObjectStore) -> VerifyReport:
        queue = Queue(buffer, manifest_path, role="verify", clock=clock)
        return BufferVerification(queue, data_prefix, deep=deep, fetches=max_concurrent_fetches, clock=clock).run()

    def verify_partition(partition: ObjectStore) -> VerifyReport:
        try:
            return verify_buffer(partition)
        except ForebayError as error:
            return VerifyReport(partition.url, deep, None, error=error)

    def verify_topic() -> VerifyReport:
        # One after the other: memory stays bounded by `max_concurrent_fetches`.
        topic = Topic(store, clock=clock)
        partitions = tuple(verify_partition(partition) for partition in topic.stores())
        return VerifyReport.of_topic(store.url, deep, partitions, damaged_schemas(store, topic.record.schemas, clock))

    return buffer_or_topic(lambda: verify_buffer(store), verify_topic)
