"""Holding a range of a buffer or of a topic: the public `forebay.hold`."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from forebay.buffer.holds import HeldRange, hold_range
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.lease import check_ttl
from forebay.buffer.manifest.topic import IsTopic
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic.holds import HeldTopic, hold_topic
from forebay.buffer.topic.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random


@overload
def hold(
    url: StoreUrl,
    *,
    from_: str | int | datetime = ...,
    upto: str | int | datetime | None = ...,
    ttl: float = ...,
    purpose: str = ...,
    storage_options: Mapping[str, Any] | None = ...,
    manifest_path: str = ...,
    clock: Clock | None = ...,
    random: Random | None = ...,
) -> HeldRange: ...
@overload
def hold(
    url: Topic, *, from_: str | datetime = ..., upto: str | datetime | None = ..., ttl: float = ..., purpose: str = ...
) -> HeldTopic: ...
def hold(
    url: StoreUrl | Topic,
    *,
    from_: str | int | datetime = "earliest",
    upto: str | int | datetime | None = None,
    ttl: float = 300.0,
    purpose: str = "",
    storage_options: Mapping[str, Any] | None = None,
    manifest_path: str = "manifest",
    clock: Clock | None = None,
    random: Random | None = None,
) -> HeldRange | HeldTopic:
    """Return a range of batches that the collector keeps until you `close` it, or until the end of a `with`.

    For a topic it is a `HeldTopic`: the range in every partition, all of them or none. A type checker cannot tell from
    a URL whether it is a buffer or a topic: pass `Topic(url)` for a topic.

    Args:
        url: the buffer or topic, or its store if it is open already.
        from_: the first batch: `earliest`, `latest` (the next one to be appended), a sequence, or a time.
        upto: the last batch: a sequence (included), or a time (not included). None is the newest batch. Later batches
            are kept as well, but `descriptors` leaves them out. For a topic, use times: a sequence belongs to one
            partition.
        ttl: seconds, by the store's clock, after which the collector removes the hold if it is not renewed. This
            process renews it three times within that time.
        purpose: text that tells operators what keeps the collector from deleting batches.
        storage_options: credentials, endpoint and client of the store.
        manifest_path: the manifest's key below `url`.
        clock: its monotonic time decides when to renew the hold.
        random: what its id is drawn from.

    Raises:
        InvalidInput: `ttl` is not a positive, finite number of seconds, or there is no such range.
        NotFound: there is no such buffer.
        Trimmed: `from_` is gone.
        Unsupported: the buffer is of version 1.
    """
    check_ttl(ttl, "ttl")
    last = "latest" if upto is None else upto
    if not isinstance(url, Topic):
        queue = Queue(open_store(url, storage_options), manifest_path, role="hold", clock=clock, random=random)
        try:
            queue.read_existing()
            return hold_range(queue, from_, last, ttl=ttl, purpose=purpose, clock=clock)
        except IsTopic:
            url = Topic(queue.store, clock=clock, random=random)
    return hold_topic(url, from_, last, ttl=ttl, purpose=purpose)
