"""Sources: what a runtime reads, and how it is opened."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.dispatch import is_topic
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.store.options import seal, unseal
from forebay.buffer.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from forebay.buffer.base.clock import Clock, Random


@dataclass(frozen=True, slots=True)
class Source:
    """A buffer, a topic or some of a topic's partitions, to be opened by the runtime and closed by it."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        # As a store's handle does: no credential can be read off a pickle by eye.
        options = None if self.storage_options is None else seal(dict(self.storage_options))
        return _unpickle, (self.url, self.group, self.from_, self.partitions, options)


def _unpickle(url: StoreUrl, *rest: Any) -> Source:
    group, from_, partitions, sealed = rest
    return Source(url, group, from_, partitions, None if sealed is None else unseal(sealed))


class Opening:
    """A source about to be opened: which buffers it stands for is known, and nothing is claimed yet."""

    def __init__(self, source: Source) -> None:
        store = open_store(source.url, source.storage_options)
        self._group = source.group
        self._from = source.from_
        self._stores = [store]
        if source.partitions is not None or is_topic(store):
            self._choose_partitions(Topic(store), source)

    def _choose_partitions(self, topic: Topic, source: Source) -> None:
        everyone = range(topic.partitions)
        numbers = everyone if source.partitions is None else sorted(set(source.partitions))
        if not numbers or not set(numbers) <= set(everyone):
            raise InvalidInput(f"{topic.url} has partitions 0 to {topic.partitions - 1}; asked for {list(numbers)}")
        if source.group is not None:
            # Everywhere, also where another process reads: until then the collector may trim there.
            start = "earliest" if source.from_ is None else source.from_
            self._from = topic.register_group(source.group, start, apart_from=numbers)
        self._stores = [topic.partition(number) for number in numbers]

    @property
    def readers(self) -> list[tuple[str, str]]:
        """The URL of each buffer, and the group."""
        return [(store.url, self._group or "") for store in self._stores]

    def open(self, *, clock: Clock, random: Random) -> list[Consumer]:
        """Return a consumer for each buffer; each takes over from the one before."""
        # The pipeline has its own retries, and shows what it waits for.
        open_one = partial(Consumer, group=self._group, from_=self._from, retry_timeout=0, clock=clock, random=random)
        with ExitStack() as closing:
            opened = [closing.enter_context(open_one(store)) for store in self._stores]
            closing.pop_all()
        return opened
