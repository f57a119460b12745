"""A topic: a folder of buffers, and one record that says how many there are and who reads them (rfcs/0005).

The record is at the place of a buffer's manifest. If any process dies or any answer is lost: the count never falls,
and no group misses anything in a partition that was added after it was made.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.buffer.base.checks import parse_time
from forebay.buffer.base.clock import system_random
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import Corrupt, ForebayError, InvalidInput, NotFound, NotReady
from forebay.buffer.base.lifecycle import shows_unopened
from forebay.buffer.groups import GroupReader, check_group_name
from forebay.buffer.manifest import Queue, read_state
from forebay.buffer.manifest.register import Register, Snapshot
from forebay.buffer.manifest.topic import TopicRecord, partition_name, read_record
from forebay.buffer.store import ObjectStore, StoreUrl, open_store
from forebay.buffer.store.folder import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.base.lifecycle import Closing

RECORD_KEY: Final = "manifest"
LOOK_SECONDS: Final = 10.0
"""Producers and consumers look so often whether there are new partitions."""
_REQUESTS_AT_ONCE: Final = 8

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Topic:
    """An existing topic. It may be asked for its partitions, each of which is a buffer, by any layer.

    Args:
        url: the topic, such as `s3://lake/clicks`, or its store if it is open already.
        storage_options: credentials, endpoint and client of the store.
        record: the topic's record, if the caller has just read it; this saves a request.

    Raises:
        NotFound: there is nothing at that URL.
        InvalidInput: it is a buffer's.
        NotReady: somebody is creating the topic, or died while doing so; `create_topic` finishes it.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        record: TopicRecord | None = None,
    ) -> None:
        self.store: Final = open_store(url, storage_options)
        self.url: str = self.store.url
        self.clock = clock
        self.random: Final = random or system_random()
        self.register: Final = open_record(self.store, clock=clock, random=random)
        # Without a version the next look is a full read.
        self._known: Snapshot[TopicRecord] | None = None if record is None else Snapshot(record, None, b"")
        if self.partitions == 0:
            raise NotReady(f"{self.url}: this topic has no partitions yet: its creation goes on, or create it again")

    @property
    def partitions(self) -> int:
        """How many partitions there were when last looked."""
        return self.record.partitions

    @property
    def record(self) -> TopicRecord:
        """The record as last seen."""
        known = self._known
        return self.refresh() if known is None else required(known.value, self.url)

    def refresh(self) -> TopicRecord:
        """Look again: a conditional read if nothing has changed."""
        self._known = self.register.read(self._known)
        return required(self._known.value, self.url)

    def partition(self, number: int) -> ObjectStore:
        """Return the store of one partition, for whatever takes a buffer's URL."""
        return FolderStore(self.store, partition_name(number))

    def stores(self) -> list[ObjectStore]:
        """Return the store of every partition, in order."""
        return [self.partition(number) for number in range(self.partitions)]

    def partition_urls(self) -> list[str]:
        """Return the URL of every partition, each a buffer's."""
        return [partition.url for partition in self.stores()]

    def open_queue(self, number: int, role: str) -> Queue:
        """Return a view of one partition's manifest."""
        return Queue(self.partition(number), role=role, clock=self.clock, random=self.random)

    def register_group(self, name: str, start: str | int | datetime, *, apart_from: Collection[int] = ()) -> str:
        """Create a group in the record and then in every partition, unless it exists. Return where it starts.

        The order matters: a process that adds partitions after the first write puts the group into them, and this call
        puts it into the older ones. If the process dies in between, the next one that opens the group does the rest.

        Args:
            name: the group.
            start: `earliest`, `latest` or a time, for a group that does not exist yet.
            apart_from: partitions where the caller will do it, by opening a consumer.
        """
        check_group_name(name)
        rule = check_place(start)

        def add(record: TopicRecord | None) -> TopicRecord | None:
            record = required(record, self.url)
            return None if name in record.groups else record.with_group(name, rule)

        self._known = self.register.update(add, lambda record: name in record.groups)
        known_rule = self.record.groups[name]
        rest = [number for number in range(self.partitions) if number not in apart_from]
        in_parallel(lambda number: GroupReader(self.open_queue(number, "groups"), name, start=known_rule), rest)
        return known_rule

    @shows_unopened
    def __repr__(self) -> str:
        return f"<Topic {self.url} of {counted(self.partitions, 'partition')}>"


def open_record(store: ObjectStore, *, clock: Clock | None, random: Random | None) -> Register[TopicRecord]:
    """Return the register that holds a topic's record."""
    return Register(
        store,
        RECORD_KEY,
        decode=lambda data: _read_record(data, store.url),
        encode=lambda record: record.to_bytes(),
        clock=clock,
        random=random,
    )


def in_parallel(do: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Return what `do` returns for every item, in their order; many partitions must not mean as many round trips."""
    items = list(items)
    if len(items) < 2:
        return [do(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _REQUESTS_AT_ONCE)) as pool:
        return list(pool.map(do, items))


def close_all(opened: Iterable[Closing]) -> list[ForebayError]:
    """Close them all, and return the errors of those that failed."""

    def close(one: Closing) -> ForebayError | None:
        try:
            one.close()
        except ForebayError as error:
            return error
        return None

    return [error for error in in_parallel(close, opened) if error is not None]


def _read_record(data: bytes | memoryview, url: str) -> TopicRecord:
    location = f"{url}/{RECORD_KEY}"
    try:
        return read_record(data, location)
    except Corrupt as error:
        try:
            read_state(data, location)
        except ForebayError:
            raise error from None
        raise InvalidInput(
            f"{url} is a buffer, not a topic: use Producer and Consumer, or another URL for the topic"
        ) from None


def required(record: TopicRecord | None, url: str) -> TopicRecord:
    """Return the record if there is one, or raise `NotFound`."""
    if record is None:
        raise NotFound(f"there is no topic at {url}: create it with create_topic")
    return record


def check_place(place: str | int | datetime) -> str:
    """Return a place that means the same in every partition, as text, or raise `InvalidInput`."""
    if isinstance(place, int):
        raise InvalidInput(
            "in a topic a place is 'earliest', 'latest' or a time: "
            f"sequence {place} is another batch in each partition; name the partition, by its URL such as …/p-00000"
        )
    if place not in ("earliest", "latest"):
        parse_time(place)
    return place if isinstance(place, str) else place.isoformat()
