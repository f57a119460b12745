"""Making a topic, and adding partitions: first these, with every group in them, then the count (rfcs/0005)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import InvalidInput, Timeout, Unknown
from forebay.buffer.format.schema import check_schema
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.manifest.state import check_no_remains
from forebay.buffer.manifest.topic import MAX_PARTITIONS, TopicRecord, partition_name
from forebay.buffer.store import ObjectStore, StoreUrl, open_store
from forebay.buffer.store.folder import FolderStore
from forebay.buffer.topic.schemas import open_topic_format
from forebay.buffer.topic.topic import Topic, open_record, required

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.manifest.register import Register

_log = logging.getLogger("forebay.topic")

_MAX_ATTEMPTS: Final = 100
"""Maximum number of times that new partitions are prepared again because groups were created or deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What adding partitions has changed."""

    before: int
    """Partitions before."""
    after: int
    """Partitions now."""

    @property
    def moved_share(self) -> float:
        """The share of all keys, from 0 to 1, that have moved, each to one of the new partitions."""
        return 1 - self.before / self.after


def create_topic(
    url: StoreUrl,
    partitions: int,
    *,
    schema: pa.Schema | type | None = None,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Topic:
    """Create a topic with this number of partitions, and return it. If it exists with this number, return it unchanged.

    With a `schema` the topic holds rows instead of bytes, in every partition, and this cannot be undone (rfcs/0010).

    Safe to repeat after any failure: it continues where it stopped.

    Raises:
        InvalidInput: there is a buffer at that URL, or a topic with another number of partitions or another schema.
        Unsupported: there is a topic of bytes at that URL, and a schema was given.
        Corrupt: parts of a buffer or topic are there, but not what held them together.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(f"partitions must be at least 1 and at most {MAX_PARTITIONS}, not {partitions}")
    store = open_store(url, storage_options)
    random = random or system_random()
    register = open_record(store, clock=clock, random=random)
    topic_id = f"{random.getrandbits(128):032x}"
    schemas = Schemas(store, clock=clock or SystemClock())
    new = TopicRecord(topic_id)
    if schema is not None:
        new = new.with_schemas((schemas.save(check_schema(schema)),))

    def claim_url(record: TopicRecord | None) -> TopicRecord | None:
        if record is not None:
            return None
        check_no_remains(store, register.key)
        return new

    # The URL is a topic's from here on, with no partitions; no buffer can come to stand there any more.
    try:
        register.update(claim_url, lambda _record: True)
    except Unknown:
        register.read()  # a buffer may have come first, and is then refused: nothing of ours can land on it
        raise
    grower = _Grower(store, register, clock, random)
    _, found = grower.grow(partitions, new=True)
    if found.partitions != partitions:
        raise InvalidInput(
            f"{store.url} is a topic of {found.partitions} partitions already, not {partitions}: "
            "use it as it is, or add_partitions"
        )
    topic = Topic(store, clock=clock, random=random)
    if schema is not None:
        open_topic_format(topic, schema, evolve=False)  # another may have created it
    return topic


def add_partitions(
    url: StoreUrl,
    total: int,
    *,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Growth:
    """Let a topic have `total` partitions, and say how many it had before. As many as there are changes nothing.

    Keys move: the share that `Growth.moved_share` tells goes to the new partitions from then on. Of a key that moves,
    later entries may be read before earlier ones. Producers notice within ten seconds, each on its own. Where that
    matters, stop them, let the readers catch up, add, and start them again.

    Every group of the topic is at the start of the new partitions before they are used, so none misses anything. Safe
    to repeat after any failure.

    Raises:
        InvalidInput: it has more than `total` already; partitions are never removed.
        Timeout: groups were made or deleted again and again meanwhile; the number of partitions was not changed.
    """
    if not 1 <= total <= MAX_PARTITIONS:
        raise InvalidInput(f"a topic must have at least 1 and at most {MAX_PARTITIONS} partitions, not {total}")
    topic = Topic(url, storage_options=storage_options, clock=clock, random=random)
    before, record = _Grower(topic.store, topic.register, clock, topic.random).grow(total)
    if record.partitions > total:
        raise InvalidInput(
            f"{topic.url} has {record.partitions} partitions, which are never removed; the total must "
            f"be at least that, not {total}"
        )
    growth = Growth(before, record.partitions)
    if growth.after > growth.before:
        _log.warning(
            "%s: %d partitions instead of %d: %.0f %% of the keys have moved to the new ones",
            topic.url,
            growth.after,
            growth.before,
            100 * growth.moved_share,
        )
    return growth


class _GroupsChanged(Exception):
    """The record has other groups than those that the new partitions were made with."""


class _Grower:
    """Raises a topic's count: first the partitions, with every group at their start, then the record."""

    def __init__(
        self, store: ObjectStore, register: Register[TopicRecord], clock: Clock | None, random: Random
    ) -> None:
        self._store = store
        self._register = register
        self._clock = clock
        self._random = random
        self._schemas = Schemas(store, clock=clock or SystemClock())
        self._generation = f"{random.getrandbits(128):032x}"

    def grow(self, total: int, *, new: bool = False) -> tuple[int, TopicRecord]:
        """Return how many partitions there were and the record as it is then; `new` raises no count but 0."""

        def is_done(record: TopicRecord) -> bool:
            # guard: creating a topic raises its partition count only from 0
            return record.partitions >= total or (new and record.partitions > 0)

        for _ in range(_MAX_ATTEMPTS):
            before = required(self._register.read().value, self._store.url)
            if is_done(before):
                return before.partitions, before
            for number in range(before.partitions, total):  # guard: create partitions before they count
                self._prepare(number, before)  # guard: create groups in new partitions before they count

            def raise_count(
                record: TopicRecord | None, prepared: Collection[str] = before.groups.keys()
            ) -> TopicRecord | None:
                record = required(record, self._store.url)
                if is_done(record):
                    return None
                if record.groups.keys() != prepared:  # guard: new partitions must have the current groups
                    raise _GroupsChanged
                return record.with_partitions(total)

            try:
                after = self._register.update(raise_count, is_done)
            except _GroupsChanged:
                continue
            return before.partitions, required(after.value, self._store.url)
        raise Timeout(
            f"{self._store.url}: the groups changed {_MAX_ATTEMPTS} times while partitions were being "
            "added; the number of partitions was not changed. Try again"
        )

    def _prepare(self, number: int, record: TopicRecord) -> None:
        """Make a partition's manifest, or what is missing in it, while nobody uses the partition yet."""
        groups, schemas = record.groups, record.schemas
        folder = FolderStore(self._store, partition_name(number))
        self._schemas.copy(schemas, folder)

        def unwanted(head: Head) -> list[str]:
            # Made here a moment ago, for a group that was deleted meanwhile. What others made is theirs to remove.
            return [
                name
                for name, group in head.groups.items()
                if group.generation == self._generation and name not in groups
            ]

        def change(head: Head) -> Head | None:
            changed = head
            for name in groups:
                if name not in changed.groups:
                    changed = changed.with_group(name, self._generation, changed.first_sequence)
            for name in unwanted(head):  # guard: remove deleted groups from new partitions
                changed = changed.without_group(name)
            if not is_typed(head):
                changed = changed.evolve(schemas)
            if changed.revision == 0:
                changed = replace(changed, revision=1)  # a new one, and without groups: write it all the same
            return None if changed is head else changed

        def is_typed(head: Head) -> bool:
            return head.schemas[: len(schemas)] == schemas

        def is_done(head: Head) -> bool:
            return groups.keys() <= head.groups.keys() and not unwanted(head) and is_typed(head)

        Queue(folder, role="topic", clock=self._clock, random=self._random).change_head(change, is_done)
