"""Sources: what a runtime reads, and how it is opened."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.dispatch import is_topic
from forebay.buffer.store import ObjectStore, StoreUrl, open_store
from forebay.buffer.store.options import seal, unseal
from forebay.buffer.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.groups import CursorState


@dataclass(frozen=True, slots=True)
class Source:
    """A buffer, a topic or some of a topic's partitions, which the runtime opens and closes."""

    url: StoreUrl
    """Such as `s3://lake/clicks`, or its store if it is open already."""
    group: str | None = None
    """A named reader. None is the unnamed consumer, which cannot combine batches."""
    from_: str | int | datetime | None = None
    """Where the group starts if it does not exist yet; `earliest` by default."""
    partitions: Collection[int] | None = None
    """Of a topic, those to read, so that several processes can share it. None is all that are there at the opening."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Credentials, endpoint and client of the store."""
    takeover: bool = False
    """Take the group from its owner at once, which gets `Fenced`. By default the runtime waits until the owner is gone:
    it closed, or gave no sign of life for 30 seconds. The unnamed consumer always takes over."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As a store's handle does: no credential can be read off a pickle by eye.
        options = None if self.storage_options is None else seal(dict(self.storage_options))
        return _unpickle, (self.url, self.group, self.from_, self.partitions, self.takeover, options)


def _unpickle(url: StoreUrl, *rest: Any) -> Source:
    group, from_, partitions, takeover, sealed = rest
    return Source(url, group, from_, partitions, None if sealed is None else unseal(sealed), takeover)


class Opening:
    """A source about to be opened: which buffers it stands for is known, and nothing is claimed yet."""

    def __init__(self, source: Source) -> None:
        store = open_store(source.url, source.storage_options)
        self._group = source.group
        self._from = source.from_
        self._stores = [store]
        self._topic: Topic | None = None
        if source.partitions is not None or is_topic(store):
            self._topic = Topic(store)
            self._choose_partitions(self._topic, source.partitions)

    def _choose_partitions(self, topic: Topic, wanted: Collection[int] | None) -> None:
        everyone = range(topic.partitions)
        self._numbers: Collection[int] = everyone if wanted is None else sorted(set(wanted))
        if not self._numbers or not set(self._numbers) <= set(everyone):
            raise InvalidInput(
                f"partitions must be some of 0 to {topic.partitions - 1} of {topic.url}; asked for "
                f"{list(self._numbers)}"
            )
        self._stores = [topic.partition(number) for number in self._numbers]

    @property
    def readers(self) -> list[tuple[str, str]]:
        """The URL of each buffer, and the group."""
        return [(store.url, self._group or "") for store in self._stores]

    @property
    def lease(self) -> ObjectStore:
        """The buffer whose cursor is the lease of the whole group: the first one."""
        return self._stores[0]

    def open(
        self,
        claimed: Callable[[Consumer], None],
        check_claim: Callable[[CursorState], None] | None,
        *,
        clock: Clock,
        random: Random,
    ) -> list[Consumer]:
        """Return a consumer for each buffer; each takes over from the one before.

        Args:
            claimed: called with the first consumer, whose cursor is the lease, before the others are opened.
            check_claim: may refuse the claim of the lease, as for `Consumer`.
            clock: where time comes from.
            random: what ids and pauses are drawn from.

        Raises:
            Fenced: `check_claim` refused, or another process has claimed the lease meanwhile.
        """
        start = self._from
        if self._topic is not None and self._group is not None:
            # Everywhere, also where another process reads: until then the collector may trim there.
            place = "earliest" if start is None else start
            start = self._topic.register_group(self._group, place, apart_from=self._numbers)
        # The pipeline has its own retries, and shows what it waits for.
        open_one = partial(Consumer, group=self._group, from_=start, retry_timeout=0, clock=clock, random=random)
        with ExitStack() as closing:  # it closes the first one last
            first = closing.enter_context(open_one(self.lease, check_claim=check_claim))
            claimed(first)  # guard: start the heartbeat before other partitions are claimed

            def still_ours(_found: CursorState) -> None:
                first.check_owned()  # guard: claim other partitions only while the lease is ours

            others = [closing.enter_context(open_one(store, check_claim=still_ours)) for store in self._stores[1:]]
            closing.pop_all()
        return [first, *others]
